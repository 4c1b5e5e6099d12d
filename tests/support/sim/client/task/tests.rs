//! A future that is kept aside for exactly so long, for scenarios.

use std::{
    future::{Future, poll_fn},
    task::Poll,
    time::Duration,
};

use lock_core::LockGuard;

use super::{Extras, Mode, Op, Task, Under};

impl Task {
    /// Acquires a free key, and lets others share it, by a future that is polled once, and not again for a while.
    pub(in crate::sim) async fn downgrade_aside(&self, key: &str, ttl: Duration, pause: Duration) -> LockGuard {
        let exclusive = self.client.manager.lock(key).ttl(ttl).acquire().await.expect("the key is free");
        let mut event = self.event(self.process.clone(), Op::Acquire, key);
        (event.ttl, event.mode, event.only_tries) = (Some(ttl.as_secs_f64() * 1_000.0), Mode::Shared, true);
        let under = Under::new(&self.client, event);
        let mut future = Box::pin(exclusive.downgrade());
        let is_pending = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await;
        assert!(is_pending, "it has no answer yet");
        self.client.world.sleep(pause).await;
        let guard = future.await.expect("it has an answer by now");
        self.got(under, guard.lease(), Extras::None, true);
        guard
    }
}
