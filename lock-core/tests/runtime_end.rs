//! Runtimes that end: what is told, by whom the work is taken over, and what it costs; memory backend.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use lock_core::{ErrorKind, LockManager, LossReason};
use tokio::runtime::{self, Runtime};

use crate::support::{self, Fate, Faulty, ms, secs};

fn workers(threads: usize) -> Runtime {
    runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap()
}

fn manager(backend: Faulty, runtime: Option<&Runtime>) -> LockManager {
    let builder = LockManager::builder().backend(backend);
    match runtime {
        Some(runtime) => builder.runtime(runtime.handle().clone()).build().unwrap(),
        None => builder.build().unwrap(),
    }
}

/// Waits until the backend was called so often.
fn until_called(backend: &Faulty, calls: usize) {
    let limit = Instant::now() + secs(60);
    while backend.calls() < calls {
        assert!(Instant::now() < limit, "{} calls, and not {calls}", backend.calls());
        thread::sleep(ms(1));
    }
}

#[test]
fn release_that_waits_to_be_sent_when_the_engine_s_runtime_ends_is_told() {
    for of_the_builder in [true, false] {
        let (outer, engine) = (workers(2), workers(1));
        let backend = Faulty::new();
        let manager = manager(backend.clone(), of_the_builder.then_some(&engine));
        let guards = engine.block_on(async {
            let mut guards = Vec::new();
            for index in 0..3 {
                guards.push(manager.lock(format!("k{index}")).ttl(secs(600)).await.unwrap());
            }
            guards
        });
        let [one, two, three] = <[_; 3]>::try_from(guards).unwrap();
        let before = backend.calls();
        backend.always(Fate::Hold);
        drop(one);
        until_called(&backend, before + 1);
        drop(two);
        until_called(&backend, before + 2);
        // The engine has its fill of calls: this one waits.
        let (asked, is_asked) = std::sync::mpsc::channel();
        let release = outer.spawn(async move {
            let mut release = Box::pin(three.release());
            asked.send(release.as_mut().now_or_never().is_none()).unwrap();
            tokio::time::timeout(secs(60), release).await
        });
        assert!(is_asked.recv().unwrap(), "it waits");
        assert_eq!(backend.calls(), before + 2);
        backend.always(Fate::Answer);
        drop(engine);
        let told = outer.block_on(release).unwrap().expect("it is told");
        if of_the_builder {
            let error = told.unwrap_err();
            assert!(error.kind() == ErrorKind::Backend && error.to_string().contains("runtime"), "{error}");
            continue;
        }
        // The next task, which the release starts on its own runtime, sends it.
        told.unwrap();
        for key in ["k0", "k1", "k2"] {
            support::really_free(&outer, &manager, key);
        }
    }
}

#[test]
fn requests_in_flight_when_the_builder_s_runtime_ends_are_told_so() {
    let (outer, engine) = (workers(2), workers(1));
    let backend = Faulty::new();
    let manager = manager(backend.clone(), Some(&engine));
    let (to_release, mut to_extend, holder) = outer.block_on(async {
        let lock = async |key| manager.lock(key).ttl(secs(600)).await.unwrap();
        (lock("a").await, lock("b").await, lock("c").await)
    });
    backend.always(Fate::Hold);
    let before = backend.calls();
    let kind = |error: lock_core::Error| error.kind();
    let acquire = outer.spawn({
        let manager = manager.clone();
        async move { manager.lock("d").await.map(drop).map_err(kind) }
    });
    until_called(&backend, before + 1);
    let extend = outer.spawn(async move { to_extend.extend(secs(900)).await.map(drop).map_err(kind) });
    until_called(&backend, before + 2);
    let release = outer.spawn(async move { to_release.release().await.map_err(kind) });
    let waiting = outer.spawn({
        let manager = manager.clone();
        async move { manager.lock("c").await.map(drop).map_err(kind) }
    });
    until_called(&backend, before + 3);
    engine.shutdown_timeout(secs(5));
    backend.let_go();
    let tasks = [("acquire", acquire), ("extend", extend), ("release", release), ("waiting", waiting)];
    for (name, task) in tasks {
        let told = outer.block_on(async { tokio::time::timeout(secs(60), task).await.expect(name).expect(name) });
        let expected = match name {
            // What became of it is not known.
            "release" => ErrorKind::Backend,
            // All leases have ended.
            "extend" => ErrorKind::Lost(LossReason::ShutDown),
            _ => ErrorKind::NoRuntime,
        };
        assert_eq!(told, Err(expected), "{name}");
    }
    drop(holder);
}

#[test]
fn release_in_flight_when_the_first_request_s_runtime_ends_is_made_again_by_the_next_task() {
    let (outer, engine) = (workers(2), workers(1));
    let backend = Faulty::new();
    let manager = manager(backend.clone(), None);
    let guard = engine.block_on(async { manager.lock("k").ttl(secs(600)).await.unwrap() });
    let calls = backend.calls();
    backend.next([Fate::Hold]);
    let release = outer.spawn(async move { guard.release().await.map_err(|error| error.kind()) });
    until_called(&backend, calls + 1);
    drop(engine);
    let told = outer.block_on(async { tokio::time::timeout(secs(60), release).await.unwrap().unwrap() });
    assert_eq!(told, Err(ErrorKind::Backend));
    // Nobody asks this manager for anything more.
    let other = LockManager::builder().backend(backend.store.clone()).build().unwrap();
    support::really_free(&outer, &other, "k");
}

#[test]
fn acquire_in_flight_when_the_first_request_s_runtime_ends_starts_the_next_task() {
    let (outer, engine) = (workers(2), workers(1));
    let backend = Faulty::new();
    let manager = manager(backend.clone(), None);
    engine.block_on(async { manager.lock("x").await.unwrap().release().await.unwrap() });
    backend.next([Fate::Hold]);
    let calls = backend.calls();
    let acquire = outer.spawn({
        let manager = manager.clone();
        async move { manager.lock("k").wait(secs(30)).await }
    });
    until_called(&backend, calls + 1);
    drop(engine);
    // As a connection that comes up wakes the request: it has nobody else who keeps one for it.
    backend.let_go();
    let guard = outer.block_on(async { tokio::time::timeout(secs(60), acquire).await.unwrap().unwrap().unwrap() });
    assert!(guard.is_held());
    let limit = Instant::now() + secs(60);
    while backend.drivers() < 2 {
        assert!(Instant::now() < limit, "its own runtime has no task");
        thread::sleep(ms(1));
    }
}

#[test]
fn requests_go_on_in_another_runtime_when_the_one_that_polled_them_has_ended() {
    let (outer, first) = (workers(2), workers(1));
    let backend = Faulty::new();
    let manager = manager(backend.clone(), None);
    let guard = outer.block_on(async { manager.lock("k").await.unwrap() });
    let mut waits = manager.lock("k").wait(secs(60)).acquire();
    assert!(first.block_on(async { (&mut waits).now_or_never() }).is_none());
    let calls = backend.calls();
    backend.next([Fate::Hold]);
    let mut release = Box::pin(guard.release());
    assert!(first.block_on(async { (&mut release).now_or_never() }).is_none());
    until_called(&backend, calls + 1);
    drop(first);
    // The timers of a runtime that has ended panic.
    outer.block_on(async {
        assert!((&mut waits).now_or_never().is_none());
        assert!((&mut release).now_or_never().is_none());
    });
    backend.let_go();
    let next = outer.block_on(async {
        release.await.unwrap();
        tokio::time::timeout(secs(60), waits).await.unwrap()
    });
    assert!(next.unwrap().is_held());
}

#[test]
fn every_waiter_is_told_of_the_end_of_the_builder_s_runtime() {
    const WAITERS: usize = 10_000;
    let (outer, engine) = (workers(2), workers(1));
    let manager = manager(Faulty::new(), Some(&engine));
    let guard = outer.block_on(async { manager.lock("k").await.unwrap() });
    let (polled, waiting) = std::sync::mpsc::channel();
    let waiters: Vec<_> = (0..WAITERS)
        .map(|_| {
            let (polled, mut acquire) = (polled.clone(), Box::pin(manager.lock("k").wait_forever().acquire()));
            outer.spawn(async move {
                assert!(acquire.as_mut().now_or_never().is_none());
                polled.send(()).unwrap();
                acquire.await
            })
        })
        .collect();
    waiting.iter().take(WAITERS).for_each(drop);
    drop(engine);
    let all = futures_util::future::join_all(waiters);
    let told = outer.block_on(async { tokio::time::timeout(secs(600), all).await });
    for told in told.expect("all are told") {
        assert_eq!(told.unwrap().unwrap_err().kind(), ErrorKind::NoRuntime);
    }
    drop(guard);
}

#[test]
fn waiter_on_a_runtime_that_goes_on_is_not_failed_by_one_that_is_polled_in_the_ended_one() {
    let (outer, engine) = (workers(2), workers(1));
    let backend = Faulty::new();
    let manager = manager(backend.clone(), None);
    engine.block_on(async { manager.lock("x").await.unwrap().release().await.unwrap() });
    backend.next([Fate::Hold]);
    let ended = engine.handle().clone();
    let (mut first, mut second) = (manager.lock("k").acquire(), manager.lock("k").wait(secs(30)).acquire());
    {
        let _entered = ended.enter();
        assert!((&mut first).now_or_never().is_none());
    }
    assert!(outer.block_on(async { (&mut second).now_or_never() }).is_none());
    drop(engine);
    let told = {
        let _entered = ended.enter();
        (&mut first).now_or_never().expect("it cannot go on").map(drop)
    };
    assert_eq!(told.unwrap_err().kind(), ErrorKind::NoRuntime);
    let guard = outer.block_on(async { tokio::time::timeout(secs(60), second).await.unwrap() });
    assert!(guard.unwrap().is_held());
}

#[test]
fn shutdown_releases_what_the_end_of_the_first_request_s_runtime_has_left() {
    let (outer, engine) = (workers(2), workers(1));
    let backend = Faulty::new();
    let manager = manager(backend.clone(), None);
    let guard = engine.block_on(async { manager.lock("k").ttl(secs(600)).await.unwrap() });
    // Its task may not have had its first turn yet, and would then never begin.
    while backend.drivers() == 0 {
        thread::yield_now();
    }
    drop(engine);
    assert!(!guard.is_held());
    outer.block_on(async {
        manager.shutdown(secs(1)).await;
        let other = LockManager::builder().backend(backend.store.clone()).build().unwrap();
        assert!(!other.is_locked("k").await.unwrap());
    });
    assert_eq!(backend.drivers(), 2);
}

#[test]
fn futures_that_are_polled_at_the_very_moment_of_the_end_are_told_so_and_do_not_panic() {
    for round in 0..200 {
        let engine = workers(1);
        let manager = manager(Faulty::new(), Some(&engine));
        let guard = engine.block_on(async { manager.lock("k").await.unwrap() });
        let pollers: Vec<_> = (0..2)
            .map(|_| {
                let manager = manager.clone();
                thread::spawn(move || {
                    let mut cx = Context::from_waker(Waker::noop());
                    loop {
                        let mut acquire = manager.lock("k").wait(secs(60)).acquire();
                        for _ in 0..20 {
                            if let Poll::Ready(told) = Pin::new(&mut acquire).poll(&mut cx) {
                                return told.unwrap_err().kind();
                            }
                        }
                    }
                })
            })
            .collect();
        thread::sleep(Duration::from_micros(300 + round * 7 % 900));
        drop(engine);
        for poller in pollers {
            assert_eq!(poller.join().expect("no panic"), ErrorKind::NoRuntime);
        }
        drop(guard);
    }
}
