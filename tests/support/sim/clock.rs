//! The clock of a client, and what holds up its tasks and its engine.

use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use lock_core::clock::{Clock, Moment, Sleep};

use super::world::{Timer, World, micros};

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
        let timer = self.world.sleep(Duration::from_micros(length));
        Box::pin(SimSleep { timer, world: Arc::clone(&self.world), client: self.client, gated })
    }
}

/// Further ahead than any schedule goes.
const FAR: Duration = Duration::from_secs(1 << 30);

struct SimSleep {
    timer: Timer,
    world: Arc<World>,
    client: usize,
    gated: bool,
}

impl Future for SimSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Pin::new(&mut self.timer).poll(cx).is_pending() {
            return Poll::Pending;
        }
        if self.gated && !self.world.state().links[self.client].engine.lets_pass(cx) {
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

thread_local! {
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

/// A task of a client: it does not run while the client is stopped.
pub(super) struct InTask<F> {
    pub(super) world: Arc<World>,
    pub(super) client: usize,
    pub(super) inner: Pin<Box<F>>,
}

impl<F: Future<Output = ()>> Future for InTask<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if !self.world.state().links[self.client].tasks.lets_pass(cx) {
            return Poll::Pending;
        }
        let before = IN_TASK.replace(true);
        let polled = self.inner.as_mut().poll(cx);
        IN_TASK.set(before);
        polled
    }
}
