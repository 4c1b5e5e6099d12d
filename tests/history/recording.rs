//! What the recorder writes.

use std::mem;

use lock_core::LockManager;
use lock_tests::{
    RedisServer, SOON, actor,
    history::{Recorded, Register, Run, judged_by, now},
};
use tokio::time::{sleep, timeout};

use crate::history::lines::*;

const TTL: Duration = Duration::from_secs(10);

fn client(run: &Run, manager: &LockManager) -> Recorded {
    Recorded::new(manager, &run.recorder("p0"), "t1")
}

/// What is in the files, in order, judged.
fn written(run: &Run) -> Vec<Event> {
    let history = run.history().expect("the files can be read");
    Checker::new().assert_clean(&history);
    let mut events = history.events().to_vec();
    events.sort_by(|a, b| a.t_invoke.total_cmp(&b.t_invoke));
    events
}

fn ops(events: &[Event]) -> Vec<(Op, Outcome)> {
    events.iter().map(|event| (event.op, event.result)).collect()
}

#[tokio::test]
async fn calls_are_written_with_what_came_of_them() {
    let (run, manager) = (Run::new("recording-calls"), LockManager::in_memory());
    let (one, other) = (client(&run, &manager), Recorded::new(&manager, &run.recorder("p1"), ""));
    let before = now();
    let mut held = one.acquire("k", TTL, |request| request).await.unwrap();
    assert!(other.try_acquire("k", TTL).await.unwrap().is_none());
    assert!(held.check());
    held.extend(2 * TTL).await.unwrap();
    let fence = held.fence().get();
    held.release().await.unwrap();

    let events = written(&run);
    let expected = [
        (Op::Acquire, Outcome::Ok),
        (Op::Acquire, Outcome::Fail),
        (Op::Check, Outcome::Ok),
        (Op::Extend, Outcome::Ok),
        (Op::Release, Outcome::Ok),
    ];
    assert_eq!(ops(&events), expected);
    let [acquire, tried, check, extend, release] = &events[..] else { unreachable!() };
    assert_eq!((acquire.process.as_str(), acquire.key.as_deref()), ("p0/t1", Some("k")));
    assert_eq!((acquire.fence, acquire.ttl), (Some(fence), Some(10_000.0)));
    assert!(acquire.t_invoke >= before && acquire.t_return.unwrap() <= now());
    // From the sending of its request on, which came after the call and before its return.
    let (least, most) = (acquire.t_invoke + 9_000.0, acquire.t_return.unwrap() + 10_000.0);
    assert!((least..most).contains(&acquire.deadline.unwrap()), "{acquire:?}");
    assert!(tried.only_tries && tried.process == "p1" && tried.token.is_none());
    assert_eq!(check.valid, Some(true));
    assert!(extend.deadline.unwrap() > acquire.deadline.unwrap() + 9_000.0);
    assert!(events.iter().all(|event| event.op == Op::Acquire || event.token == acquire.token), "{release:?}");
}

#[tokio::test]
async fn what_is_dropped_has_no_known_outcome() {
    let (run, manager) = (Run::new("recording-drops"), LockManager::in_memory());
    let one = client(&run, &manager);
    let held = one.acquire("k", TTL, |request| request).await.unwrap();
    let other = Recorded::new(&manager, &run.recorder("p1"), "");
    let waits = other.acquire("k", TTL, |request| request);
    assert!(timeout(Duration::from_millis(20), waits).await.is_err());
    drop(held);
    let expected = [(Op::Acquire, Outcome::Ok), (Op::Acquire, Outcome::Info), (Op::Release, Outcome::Info)];
    assert_eq!(ops(&written(&run)), expected);
}

#[tokio::test]
async fn a_call_of_a_process_that_dies_never_comes_back() {
    let run = Run::new("recording-crash");
    let mut event = Event::new("p0/t1", Op::Acquire, 0.0);
    event.key = Some("k".to_owned());
    mem::forget(run.recorder("p0").begin(event));
    run.crashed("p0");
    for _ in 0..2 {
        let events = written(&run);
        assert_eq!(events.len(), 2, "put in once");
        assert_eq!((events[0].op, events[0].t_return), (Op::Acquire, None));
        assert_eq!((events[1].op, events[1].process.as_str()), (Op::Crash, "p0"));
    }
}

#[test]
fn what_a_test_excuses_is_written_for_other_judges() {
    let run = Run::new("recording-marks");
    let marks = [(None, 1.0, 2.5), (Some("k".to_owned()), 3.0, 4.0)];
    let mark = |(key, from, to): &(Option<String>, f64, f64)| Mark { key: key.clone(), from: *from, to: *to };
    judged_by(&run, marks.iter().map(mark).fold(Checker::new(), Checker::mark));
    let history = run.history().expect("the files can be read");
    let written: Vec<_> = history.marks().into_iter().map(|mark| (mark.key, mark.from, mark.to)).collect();
    assert_eq!(written, marks);
}

#[tokio::test]
async fn renewals_and_losses_are_noticed() {
    let (run, manager) = (Run::new("recording-renewals"), LockManager::in_memory());
    let often = Duration::from_millis(50);
    let mut held = client(&run, &manager).acquire("k", TTL, |request| request.renew_every(often)).await.unwrap();
    lock_tests::eventually(SOON, "a renewal is written", async || {
        assert!(held.check());
        ops(&written(&run)).contains(&(Op::Extend, Outcome::Ok))
    })
    .await;
    assert!(manager.force_release("k").await.unwrap());
    held.guard().ended().await;
    assert!(!held.check());
    lock_tests::eventually(SOON, "the loss is written", async || {
        ops(&written(&run)).contains(&(Op::Lost, Outcome::Ok))
    })
    .await;
    let events = written(&run);
    assert_eq!(events.iter().filter(|event| event.op == Op::Lost).count(), 1);
    let renewal = events.iter().find(|event| event.op == Op::Extend).unwrap();
    assert!(renewal.deadline > events[0].deadline);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_takes_longer_than_a_lease_hides_no_renewal() {
    let (server, run, manager) = (RedisServer::start().await, Run::new("recording-hidden"), LockManager::in_memory());
    let mut register = Register::connect(&server.address()).await.unwrap();
    let ttl = Duration::from_secs(6);
    let mut held = client(&run, &manager).acquire("k", ttl, |request| request).await.unwrap();
    server.pause();
    let counting = tokio::spawn(async move {
        let counted = held.count(&mut register).await;
        (held, counted)
    });
    sleep(2 * ttl).await;
    server.resume();
    let (held, counted) = counting.await.unwrap();
    assert_eq!(counted, Some(true));
    held.release().await.unwrap();
    // The judge finds no fault in it.
    let renewals = ops(&written(&run)).into_iter().filter(|(op, _)| *op == Op::Extend).count();
    assert!(renewals > 1, "{renewals}");
}

#[tokio::test]
async fn a_process_that_is_stopped_has_stood_still_until_it_goes_on() {
    let (server, run) = (RedisServer::start().await, Run::new("recording-standstill"));
    let mut stopped = actor!(run, server.url(), "stopped").await;
    stopped.acquire("k", TTL).await;
    stopped.process.pause();
    let from = now();
    sleep(Duration::from_millis(400)).await;
    let to = now();
    stopped.process.resume();
    // What it writes down next comes after its standstill.
    assert_eq!(stopped.tell("release").await, "released");
    let history = run.history().expect("the files can be read");
    let stood = history.stood_still("stopped", from, to);
    assert!(stood > (to - from) * 0.9 && stood <= to - from, "{stood} of {} ms", to - from);
    assert!(history.stood_still("stopped", from - 60_000.0, from - 50_000.0) == 0.0, "it had not begun");
    assert!(history.events().iter().all(|event| event.op != Op::Standstill));
}
