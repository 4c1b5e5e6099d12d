//! What is left in a Redis after a run.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{record::Run, store::Register};
use crate::{server::RedisServer, wait::SOON};

impl Run {
    /// Waits until nothing is left in `server` but what may stay: the counter of fencing tokens, for some seconds until
    /// when somebody may be waiting, and the registers of the test. Writes down what is there then, or still after
    /// [`SOON`]; returns how long it took. Leases whose release is awaited so have the ttl [`LONG`](crate::LONG).
    pub async fn settle(&self, server: &RedisServer) -> Duration {
        let start = Instant::now();
        while !server.left().await.iter().all(|key| key.starts_with(Register::PREFIX)) && start.elapsed() < SOON {
            sleep(Duration::from_millis(5)).await;
        }
        let took = start.elapsed();
        for key in server.keys("*").await {
            // It may have gone meanwhile.
            let Some(pttl @ -1..) = server.call(&["PTTL", &key]).await.integer() else {
                continue;
            };
            let longest = (key == RedisServer::WAITING).then_some(WAITING_LIVES);
            let stays = key == RedisServer::COUNTER || key.starts_with(Register::PREFIX);
            self.left_over(&key, pttl, longest, stays);
        }
        took
    }
}

/// The longest life of a place, and what is added to it so that not every place writes the time anew.
const WAITING_LIVES: f64 = 10_000.0;
