//! The clock of a client, and what holds up its tasks and its engine.

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use lock_core::clock::{Clock, Moment, Sleep};

use super::world::{World, micros};

/// The clock of one client. It runs at a rate of its own, and may leap.
#[derive(Debug)]
pub(super) struct SimClock {
    pub(super) world: Arc<World>,
    pub(super) client: usize,
}

impl Clock for SimClock {
    fn now(&self) -> Moment {
        let now = self.world.now();
        let state = self.world.state();
        let link = &state.links[self.client];
        let own = i128::from(now) * i128::from(1_000_000 + link.rate) / 1_000_000 + i128::from(link.leapt);
        Moment::from_origin(Duration::from_micros(u64::try_from(own).unwrap_or(0)))
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let rate = self.world.state().links[self.client].rate;
        let own = i128::from(micros(duration.min(FAR))) * 1_000_000;
        let length = u64::try_from(own / i128::from(1_000_000 + rate)).unwrap_or(0) + 1;
        // In the task of a client it is the task that is held up, else the engine.
        let gated = !IN_TASK.get();
        let (timer, world, client) =
            (self.world.sleep(Duration::from_micros(length)), Arc::clone(&self.world), self.client);
        Box::pin(async move {
            timer.await;
            if gated {
                world.engine_runs(client).await;
            }
        })
    }
}

/// Further ahead than any schedule goes.
const FAR: Duration = Duration::from_secs(1 << 30);

impl World {
    /// Waits until the engine of a client may run.
    pub(super) async fn engine_runs(&self, client: usize) {
        let passes = |cx: &Context<'_>| self.state().links[client].engine.lets_pass(cx);
        poll_fn(|cx| if passes(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

thread_local! {
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

/// A task of a client: it does not run while the client is stopped.
pub(super) fn in_task(
    world: Arc<World>,
    client: usize,
    task: impl Future<Output = ()> + Send + 'static,
) -> impl Future<Output = ()> + Send + 'static {
    let mut task = Box::pin(task);
    poll_fn(move |cx| {
        if !world.state().links[client].tasks.lets_pass(cx) {
            return Poll::Pending;
        }
        let before = IN_TASK.replace(true);
        let polled = task.as_mut().poll(cx);
        IN_TASK.set(before);
        polled
    })
}
