//! An outage while many ask: when the first and the last of them are told, and what.

use std::collections::BTreeMap;

use lock_core::{ErrorKind, LockManager};
use lock_tests::{RedisServer, figure};
use tokio::task::JoinSet;

use crate::*;

/// How the requests of one moment ended.
struct Told {
    first: Duration,
    last: Duration,
    kinds: BTreeMap<String, usize>,
}

/// Asks for `count` keys at once, each for a key of its own and without a wait, and prints when the errors came.
async fn told(manager: &LockManager, count: u32, state: &str) -> Told {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for key in 0..count {
        let manager = manager.clone();
        tasks.spawn(async move {
            let outcome = manager.lock(format!("{key}")).wait(Duration::ZERO).await.map(drop);
            (begun.elapsed(), outcome.map_err(|error| error.kind()))
        });
    }
    let outcomes = tasks.join_all().await;
    let times = || outcomes.iter().map(|(time, _)| *time);
    let mut kinds = BTreeMap::new();
    for (_, outcome) in &outcomes {
        *kinds.entry(format!("{outcome:?}")).or_default() += 1;
    }
    let told = Told { first: times().min().unwrap_or_default(), last: times().max().unwrap_or_default(), kinds };
    figure(32, &format!("{state}, {count} at once: first error"), told.first);
    figure(32, &format!("{state}, {count} at once: last error"), told.last);
    println!("{state}, {count} at once: {:?}", told.kinds);
    told
}

fn only_backend(told: &Told) {
    let backend = format!("{:?}", Err::<(), _>(ErrorKind::Backend));
    assert_eq!(told.kinds.keys().collect::<Vec<_>>(), [&backend]);
}

#[tokio::test]
async fn outage_is_told_to_all_who_ask_and_at_once_while_the_server_is_known_to_be_down() {
    for (how, killed) in [("stopped", false), ("killed", true)] {
        for count in [1, 100, 10_000] {
            let mut server = RedisServer::start().await;
            let manager = LockManager::connect(&server.url()).await.expect("connects");
            manager.lock("warm").await.expect("free").release().await.expect("held");
            if killed {
                server.stop();
            } else {
                server.pause();
            }
            only_backend(&told(&manager, count, how).await);
            only_backend(&told(&manager, count, &format!("{how}, known to be down")).await);
            if !killed {
                server.resume();
            }
        }
    }
}
