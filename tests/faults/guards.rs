//! Guards dropped in strange places, and runtimes that have no time.

use std::{
    mem, panic,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use lock_core::{End, LockManager, LossReason};
use lock_tests::{
    RedisServer, actor, eventually, figure,
    history::{Held, Recorded, Run, now},
};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
    time::sleep,
};

use crate::{faults::*, patient};

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
        // Its ttl is far longer than the limit of this.
        outside.block_on(freed(&server, what))
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

    let other = runtime();
    let (_manager, held) = held_on(&engine, &run, &url, LONG);
    other.spawn(async move {
        let _held = held;
        sleep(LONG).await;
    });
    drop(other); // and with it the task and its guard
    released("dropped by the end of another runtime");

    // After the end of the runtime nobody is left to release it.
    let (_manager, held) = held_on(&engine, &run, &url, 5 * TTL);
    drop(engine);
    assert!(!held.guard().is_held(), "nobody renews it any more");
    drop(held);
    let left = outside.block_on(async { server.call(&["PTTL", "k"]).await.integer() });
    assert!(left <= Some(5_000), "what the server counts down is all that is left: {left:?}");
    let took = outside.block_on(freed(&server, "expires"));
    figure(32, "dropped after the end of its runtime, ttl 5 s, key gone after", took);

    // A guard that is forgotten is held until the process ends; its manager's end is the end of it.
    let engine = runtime();
    let (manager, held) = held_on(&engine, &run, &url, LONG);
    mem::forget(held);
    assert_eq!(engine.block_on(manager.shutdown(Duration::ZERO)), 1);
    released("forgotten");

    outside.block_on(run.settle(&server));
    judged(&run);
}

#[tokio::test]
async fn fault_33_starved_runtime_finds_its_lease_lost_and_revives_nothing() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-33"));
    let mut next = actor!(run, server.url(), "next").await;
    let (_manager, client) = client(&run, &server.url(), "p0").await;
    let mut held = client.acquire("k", LASTS, |request| request).await.expect("the key is free");
    next.begin("k", LONG, LONG).await;
    has_places(&server, 1).await;
    thread::sleep(LASTS + TTL); // the only thread of this runtime
    let woken = now();
    assert!(!held.check(), "it knows at once");
    assert_eq!(held.guard().ended().await, End::Lost(LossReason::Expired));
    figure(33, "end of the starvation to lost", span(woken, now()));
    next.held(SOON).await;
    sleep(TTL).await; // renewals that waited for their turn have had it on most machines
    assert!(next.tell("check").await.starts_with("check held"));
    assert!(held.release().await.is_err());
    assert!(next.tell("check").await.starts_with("check held"));
    assert_eq!(next.tell("release").await, "released");
    run.settle(&server).await;
    judged(&run);
}

#[test]
fn fault_33_manager_with_a_runtime_of_its_own_keeps_the_leases_of_a_starved_one() {
    let (engine, starved) = (runtime(), Builder::new_current_thread().enable_all().build().expect("no threads needed"));
    starved.block_on(async {
        let (server, run) = (RedisServer::start().await, Run::new("fault-33-own-runtime"));
        let manager = patient::builder().url(server.url()).runtime(engine.handle().clone());
        let manager = manager.connect().await.expect("connects");
        let client = Recorded::new(&manager, &run.recorder("p0"), "");
        let often = |request: lock_core::LockRequest| request.renew_every(OFTEN);
        let mut held = client.acquire("k", LONG, often).await.expect("the key is free");
        // The only thread of this runtime does nothing else meanwhile.
        for _ in 0..3 {
            let (before, start) = (held.guard().deadline(), Instant::now());
            while held.guard().deadline() <= before {
                assert!(start.elapsed() < SOON, "it is not renewed");
                thread::sleep(ms(10));
            }
        }
        assert!(held.check());
        held.release().await.expect("held");
        run.settle(&server).await;
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
            let often = |request: lock_core::LockRequest| request.renew_every(OFTEN);
            held.push(client.acquire(&format!("k{index}"), LONG, often).await.expect("free"));
        }
        let is_done = Arc::new(AtomicBool::new(false));
        let mut hogs = JoinSet::new();
        for _ in 0..200 {
            let is_done = Arc::clone(&is_done);
            hogs.spawn(async move {
                while !is_done.load(Ordering::Relaxed) {
                    let pause = Instant::now() + Duration::from_micros(200);
                    while Instant::now() < pause {
                        std::hint::spin_loop();
                    }
                    tokio::task::yield_now().await;
                }
            });
        }
        // How long a turn takes depends on what else the machine does; that renewals have their turns beside the tasks does not.
        let begun = Instant::now();
        for held in &held {
            renewed(held, 2).await;
        }
        figure(34, "two renewals of 50 leases beside 200 busy tasks", begun.elapsed());
        is_done.store(true, Ordering::Relaxed);
        hogs.join_all().await;
        for mut held in held {
            assert!(held.check());
            held.release().await.expect("held");
        }
        run.settle(&server).await;
        judged(&run);
    });
}

#[test]
fn fault_34_all_threads_blocked_for_three_tenths_of_a_ttl_cost_no_lease() {
    // Of what a renewal leaves of it, two thirds, more than a third of the ttl is for what else the machine does.
    let ttl = 20 * TTL;
    let stall = 3 * ttl / 10;
    let busy = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads can be had");
    busy.block_on(async {
        let (server, run) = (RedisServer::start().await, Run::new("fault-34-stalls"));
        let (manager, _) = client(&run, &server.url(), "p0").await;
        let recorder = run.recorder("p0");
        let mut held = Vec::new();
        for index in 0..50 {
            let client = Recorded::new(&manager, &recorder, &format!("t{index}"));
            held.push(client.acquire(&format!("k{index}"), ttl, |request| request).await.expect("free"));
        }
        // For longer than the ttl, all in all.
        for _ in 0..4 {
            let before: Vec<_> = held.iter().map(|held| held.guard().deadline()).collect();
            // Each waits for the other on a thread of its own: there are no more than the two.
            let both = Arc::new(Barrier::new(2));
            let blocked = [Arc::clone(&both), both].map(|both| {
                tokio::spawn(async move {
                    both.wait();
                    thread::sleep(stall);
                })
            });
            for blocked in blocked {
                blocked.await.expect("no panic");
            }
            // What has waited has its turn now.
            let is_renewed = || held.iter().zip(&before).all(|(held, before)| held.guard().deadline() > *before);
            eventually(SOON, "all are renewed, and none is lost", async || is_renewed()).await;
        }
        let lost = held.iter_mut().filter_map(|held| (!held.check()).then_some(())).count();
        println!("{lost} false losses of 50 with a ttl of {ttl:?} and stalls of {stall:?}");
        assert_eq!(lost, 0);
        for held in held {
            held.release().await.expect("held");
        }
        run.settle(&server).await;
        judged(&run);
    });
}
