//! How long a shutdown waits for nodes that do not answer.

use std::time::Duration;

use tokio::time::Instant;

use super::nodes::{LIMIT, TTL, a_while, nodes, quorum};
use crate::{LeaseOptions, LockManager};

#[tokio::test(start_paused = true)]
async fn a_manager_is_shut_down_at_once_when_a_node_is_known_not_to_answer() {
    for is_known in [true, false] {
        let nodes = nodes::<3>();
        let long = LeaseOptions::new().ttl(TTL * 10);
        let manager = LockManager::builder().backend(quorum(&nodes)).defaults(long).build().unwrap();
        let _guard = manager.lock("k").await.unwrap();
        a_while().await;
        nodes[1].is_silent(true);
        if is_known {
            assert!(manager.lock("other").try_acquire().await.unwrap().is_some());
            tokio::time::sleep(LIMIT * 2).await;
        }
        let begun = Instant::now();
        assert_eq!(manager.shutdown(Duration::ZERO).await, 1);
        let took = begun.elapsed();
        if is_known {
            assert!(took <= Duration::from_millis(10), "{took:?}");
        } else {
            assert!(took >= LIMIT && took <= LIMIT + Duration::from_millis(260), "{took:?}");
        }
        assert!(nodes[1].has("k").await && !nodes[0].has("k").await && !nodes[2].has("k").await);
        nodes[1].is_silent(false);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!nodes[1].has("k").await, "it is told all the same");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "then the task ends");
    }
}
