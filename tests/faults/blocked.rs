//! Threads that are blocked, on real Redis.

use std::{future::poll_fn, pin::pin, task::Poll, thread};

use lock_core::{LockGuard, LockManager};
use lock_tests::RedisServer;
use tokio::runtime::Builder;

use crate::faults::*;

/// Wakes the engine in four ways, in a process that does nothing else, and blocks the thread for three times the ttl of the other
/// leases after each.
///
/// It measures time, so that it is not one of the tests that run everywhere: `blocked` of `lock-core/tests` proves the same by counting.
/// Run it on a quiet machine: `cargo test -p lock-tests --test system twenty_leases -- --ignored --nocapture`.
#[test]
#[ignore = "measures time"]
fn twenty_leases_survive_a_thread_that_is_blocked_for_three_times_their_ttl() {
    let mut kept = [0; 4];
    for _ in 0..10 {
        for (way, kept) in kept.iter_mut().enumerate() {
            *kept += kept_while_blocked(way);
        }
    }
    println!(
        "release polled once, acquire polled once and dropped, guard dropped, after an acquire: {kept:?} of 200 each"
    );
    assert_eq!(kept, [200; 4]);
}

fn kept_while_blocked(way: usize) -> usize {
    let runtime = Builder::new_multi_thread().worker_threads(4).enable_all().build().expect("threads can be had");
    runtime.block_on(async {
        let server = RedisServer::start().await;
        let manager = LockManager::builder().url(server.url()).connect().await.expect("connects");
        let mut leases = Vec::new();
        for index in 0..20 {
            leases.push(manager.lock(format!("lease:{index}")).ttl(TTL).await.expect("it is free"));
        }
        let mine = manager.lock("mine").ttl(LONG).await.expect("it is free");
        let theirs = manager.clone();
        let blocked = tokio::spawn(async move {
            match way {
                0 => {
                    let mut release = pin!(mine.release());
                    poll_fn(|cx| {
                        assert!(release.as_mut().poll(cx).is_pending());
                        Poll::Ready(())
                    })
                    .await;
                    thread::sleep(3 * TTL);
                }
                1 => {
                    let mut acquire = Box::pin(theirs.lock("another").acquire());
                    poll_fn(|cx| {
                        assert!(acquire.as_mut().poll(cx).is_pending());
                        Poll::Ready(())
                    })
                    .await;
                    drop(acquire);
                    thread::sleep(3 * TTL);
                }
                2 => {
                    drop(mine);
                    thread::sleep(3 * TTL);
                }
                _ => {
                    let _guard = theirs.lock("another").await.expect("it is free");
                    thread::sleep(3 * TTL);
                }
            }
        });
        blocked.await.expect("no panic");
        leases.iter().filter(|lease: &&LockGuard| lease.is_held()).count()
    })
}
