//! Guards dropped in strange places, and runtimes that have no time.

use std::{mem, panic, sync::Arc, thread};

use lock_core::{LockManager, LossReason};
use lock_tests::{
    RedisServer, actor, eventually, figure,
    history::{Held, Recorded, Run, now},
};
use tokio::{
    runtime::{Builder, Runtime},
    time::sleep,
};

use crate::*;

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads can be had")
}

/// Acquires `k` for `ttl` on this runtime.
fn held_on(runtime: &Runtime, run: &Run, url: &str, ttl: Duration) -> (LockManager, Held) {
    runtime.block_on(async {
        let (manager, client) = client(run, url, "p0").await;
        let held = client.acquire("k", ttl, |request| request).await.expect("the key is free");
        (manager, held)
    })
}

/// Waits until `k` is gone; returns how long that took.
async fn freed(server: &RedisServer, what: &str) -> Duration {
    let start = Instant::now();
    eventually(SOON, what, async || server.call(&["GET", "k"]).await.is_nil()).await;
    start.elapsed()
}

#[test]
fn fault_32_guard_dropped_anywhere_is_released_or_expires_and_never_panics() {
    let outside = runtime();
    let (server, run) = outside.block_on(async { (RedisServer::start().await, Run::new("fault-32")) });
    let url = server.url();
    let released = |what: &str| {
        let took = outside.block_on(freed(&server, what));
        assert!(took < HANDOFF, "{what}: {took:?}");
        took
    };

    let engine = runtime();
    let (_manager, held) = held_on(&engine, &run, &url, LONG);
    engine.block_on(async { drop(held) });
    figure(32, "dropped in its runtime, key gone after", released("dropped in its runtime"));

    let (_manager, held) = held_on(&engine, &run, &url, LONG);
    thread::spawn(move || drop(held)).join().expect("no panic");
    released("dropped on a thread without a runtime");

    let (_manager, held) = held_on(&engine, &run, &url, LONG);
    outside.block_on(async { drop(held) });
    released("dropped in another runtime");

    let (_manager, held) = held_on(&engine, &run, &url, LONG);
    engine.block_on(async { tokio::task::spawn_blocking(move || drop(held)).await.expect("no panic") });
    released("dropped in spawn_blocking");

    let (_manager, held) = held_on(&engine, &run, &url, LONG);
    let unwinds = panic::AssertUnwindSafe(move || {
        let _held = held;
        panic::resume_unwind(Box::new("as in a panic")); // without its message
    });
    assert!(panic::catch_unwind(unwinds).is_err());
    released("dropped in unwinding");

    let (_manager, held) = held_on(&engine, &run, &url, LONG);
    engine.block_on(async {
        let task = tokio::spawn(async move {
            let _held = held;
            sleep(LONG).await;
        });
        task.abort();
        assert!(task.await.is_err());
    });
    released("dropped with an aborted task");

    // After the end of the runtime nobody is left to release it.
    let (_manager, held) = held_on(&engine, &run, &url, TTL);
    drop(engine);
    assert!(!held.guard().is_held(), "nobody renews it any more");
    drop(held);
    let took = outside.block_on(freed(&server, "expires"));
    figure(32, "dropped after the end of its runtime, ttl 1 s, key gone after", took);
    assert!(took < TTL + SLACK, "{took:?}");

    // A guard that is forgotten is held until the process ends; its manager's end is the end of it.
    let engine = runtime();
    let (manager, held) = held_on(&engine, &run, &url, TTL);
    mem::forget(held);
    assert_eq!(engine.block_on(manager.shutdown(Duration::ZERO)), 1);
    released("forgotten");

    outside.block_on(run.settle(&server, SOON));
    judged(&run);
}

#[tokio::test]
async fn fault_33_starved_runtime_finds_its_lease_lost_and_revives_nothing() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-33"));
    let mut next = actor!(run, server.url(), "next").await;
    let (_manager, client) = client(&run, &server.url(), "p0").await;
    let mut held = client.acquire("k", TTL, |request| request).await.expect("the key is free");
    next.begin("k", LONG, LONG).await;
    next.surely_waits(&server).await;
    thread::sleep(TTL + TTL / 2); // the only thread of this runtime
    let woken = now();
    assert!(!held.check(), "it knows at once");
    assert_eq!(held.guard().lost().await, LossReason::Expired);
    figure(33, "end of the starvation to lost", span(woken, now()));
    next.held(HANDOFF).await;
    sleep(TTL).await; // renewals that waited for their turn have had it
    assert!(next.tell("check").await.starts_with("check held"));
    assert!(held.release().await.is_err());
    assert!(next.tell("check").await.starts_with("check held"));
    assert_eq!(next.tell("release").await, "released");
    run.settle(&server, SOON).await;
    judged(&run);
}

#[test]
fn fault_33_manager_with_a_runtime_of_its_own_keeps_the_leases_of_a_starved_one() {
    let (engine, starved) = (runtime(), Builder::new_current_thread().enable_all().build().expect("no threads needed"));
    starved.block_on(async {
        let (server, run) = (RedisServer::start().await, Run::new("fault-33-own-runtime"));
        let manager = LockManager::builder().url(&server.url()).runtime(engine.handle().clone());
        let manager = manager.connect().await.expect("connects");
        let client = Recorded::new(&manager, &run.recorder("p0"), "");
        let mut held = client.acquire("k", TTL, |request| request).await.expect("the key is free");
        thread::sleep(2 * TTL);
        assert!(held.check(), "it was renewed meanwhile");
        held.release().await.expect("held");
        run.settle(&server, SOON).await;
        judged(&run);
    });
}

#[test]
fn fault_34_busy_tasks_on_all_threads_cost_no_lease() {
    let busy = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads can be had");
    busy.block_on(async {
        let (server, run) = (RedisServer::start().await, Run::new("fault-34"));
        let (manager, _) = client(&run, &server.url(), "p0").await;
        let recorder = run.recorder("p0");
        let mut held = Vec::new();
        for index in 0..50 {
            let client = Recorded::new(&manager, &recorder, &format!("t{index}"));
            held.push(client.acquire(&format!("k{index}"), 2 * TTL, |request| request).await.expect("free"));
        }
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let mut hogs = tokio::task::JoinSet::new();
        for _ in 0..200 {
            let stop = Arc::clone(&stop);
            hogs.spawn(async move {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let until = Instant::now() + ms(1);
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                    tokio::task::yield_now().await;
                }
            });
        }
        sleep(4 * TTL).await;
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        hogs.join_all().await;
        let lost = held.iter_mut().filter_map(|held| (!held.check()).then_some(())).count();
        println!("{lost} false losses of 50");
        assert_eq!(lost, 0);
        for held in held {
            held.release().await.expect("held");
        }
        run.settle(&server, SOON).await;
        judged(&run);
    });
}
