//! What is left in a Redis after a run.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{record::Run, store::Register};
use crate::server::RedisServer;

impl Run {
    /// Waits until nothing is left in `server` but what may stay: counters of fencing tokens, which expire, and the
    /// registers of the test. Writes down what is there then, or still after `within`; returns how long it took.
    pub async fn settle(&self, server: &RedisServer, within: Duration) -> Duration {
        let start = Instant::now();
        let may_stay = |key: &String| key.ends_with(FENCE_COUNTER) || key.starts_with(Register::PREFIX);
        let mut keys = server.keys("*").await;
        while !keys.iter().all(may_stay) && start.elapsed() < within {
            sleep(Duration::from_millis(5)).await;
            keys = server.keys("*").await;
        }
        let took = start.elapsed();
        for key in keys {
            // It may have gone meanwhile.
            let Some(pttl @ -1..) = server.call(&["PTTL", &key]).await.integer() else {
                continue;
            };
            let longest = key.ends_with(FENCE_COUNTER).then_some(COUNTER_LIVES);
            self.left_over(&key, pttl, longest, key.starts_with(Register::PREFIX));
        }
        took
    }
}

const FENCE_COUNTER: &str = "lock-core:fence";

/// A minute, and the lead that it may have over the clock.
const COUNTER_LIVES: f64 = 61_000.0;
