//! Wall clocks that step, of a client and of the server. They take Linux and a C compiler.

use std::{
    process::{Command, Stdio},
    time::SystemTime,
};

use lock_core::{End, ErrorKind, LossReason};
use lock_tests::{
    RedisServer, WallClock, actor, figure,
    history::{Checker, Mark, Run, now},
    left_out,
};
use tokio::time::{sleep, timeout};

use crate::{faults::*, modes::state::give_back};

const HOUR_MS: i64 = 3_600_000;

/// A clock, unless this system has none that can be set.
fn wall_clock(fault: &str) -> Option<WallClock> {
    let clock = WallClock::new();
    if clock.is_none() {
        left_out(fault, "no wall clock can be set without a C compiler", cfg!(target_os = "linux"));
    }
    clock
}

/// What a wall clock that nobody set says, in ms since 1970.
fn right_time() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970");
    i64::try_from(since.as_millis()).expect("far below the limit")
}

/// A server by this clock.
async fn server_by(clock: &WallClock) -> RedisServer {
    let environment = clock.environment();
    let server =
        environment.iter().fold(RedisServer::builder(), |server, (name, value)| server.environment(name, value));
    server.start().await
}

#[tokio::test]
async fn fault_29_wall_clock_of_a_client_may_step_by_an_hour_both_ways() {
    let Some(clock) = wall_clock("fault_29") else { return };
    let (server, run) = (RedisServer::start().await, Run::new("fault-29"));
    let environment = clock.environment().map(|(name, value)| format!("{name}={value}"));
    let command = ["env", &environment[0], &environment[1], &environment[2]];
    let mut stepping = actor!(run, server.url(), "stepping", through command).await;
    let mut other = actor!(run, server.url(), "other").await;
    let mut last = 0;
    let ttl = LASTS;
    for step in [HOUR_MS, -HOUR_MS] {
        last = last.max(stepping.acquire("k", ttl).await);
        clock.set(step);
        let wall = stepping.tell("wall").await;
        let wall: i64 = wall.strip_prefix("wall ").unwrap_or_else(|| panic!("{wall}")).parse().unwrap();
        let stepped = wall - right_time();
        assert!((stepped - step).abs() < HOUR_MS / 60, "its clock stepped by {stepped} ms instead of {step} ms");
        other.begin("k", LONG, LONG).await;
        sleep(ttl + ttl / 10).await; // renewals go on, and nothing ends too soon
        let checked = stepping.tell("check").await;
        let remaining: u64 =
            checked.strip_prefix("check held ").unwrap_or_else(|| panic!("{checked}")).parse().unwrap();
        assert!(u128::from(remaining) <= ttl.as_millis(), "{remaining} ms");
        assert_eq!(stepping.tell("release").await, "released");
        let fence = other.held(SOON).await;
        assert!(fence > last, "numbers are the server's");
        last = fence;
        give_back(&mut other).await;
    }
    run.settle(&server).await;
    judged(&run);
}

/// The machine cannot be suspended here. But there may be a time of its own in which it has slept for eleven days: only
/// the clock that counts them is ahead there.
#[tokio::test]
async fn lease_clock_counts_the_time_that_the_machine_was_suspended() {
    let command = ["unshare", "--time", "--boottime", "1000000"];
    let made = Command::new(command[0]).args(&command[1..]).arg("true").stderr(Stdio::null()).status();
    if !made.is_ok_and(|made| made.success()) {
        left_out("the lease clock after a suspend", "no namespace of times can be made", false);
        return;
    }
    let (server, run) = (RedisServer::start().await, Run::new("suspended"));
    let mut slept = actor!(run, server.url(), "slept", through command).await;
    let clock = slept.tell("clock").await;
    let seconds: u64 = clock.strip_prefix("clock ").unwrap_or_else(|| panic!("{clock}")).parse().unwrap();
    assert!(seconds >= 1_000_000, "{seconds} s");
    slept.acquire("k", LASTS).await;
    sleep(LASTS + TTL).await;
    assert!(slept.tell("check").await.starts_with("check held"), "renewals go on");
    assert_eq!(slept.tell("release").await, "released");
    judged(&run);
}

#[tokio::test]
async fn fault_30_server_clock_that_steps_forward_frees_keys_early_and_fences_rise() {
    let Some(clock) = wall_clock("fault_30") else { return };
    let (server, run) = (server_by(&clock).await, Run::new("fault-30"));
    let ttl = LONG;
    let mut next = actor!(run, server.url(), "next").await;
    let (_manager, client) = client(&run, &server.url(), "p0").await;
    let mut held = client.acquire("k", ttl, |request| request).await.expect("the key is free");
    watched(&server).await;
    let from = now();
    clock.set(HOUR_MS);
    // Documented: the server counts from its own clock, so the key is free, and the holder does not know yet.
    let fence = next.acquire("k", ttl).await;
    let stepped = now();
    assert!(fence > held.fence().get());
    let end = timeout(SOON, held.guard().ended()).await.expect("it is told");
    assert_eq!(end, End::Lost(LossReason::Taken));
    figure(30, "clock stepped forward to told", span(from, now()));
    assert!(!held.check());
    assert_eq!(held.release().await.expect_err("it is lost").kind(), ErrorKind::Lost(LossReason::Taken));
    assert!(next.tell("check").await.starts_with("check held"), "its release touched nobody");
    assert_eq!(next.tell("release").await, "released");
    // Back again: the counter leads the clock by an hour, and goes on from there.
    clock.set(0);
    let back = client.acquire("k", ttl, |request| request).await.expect("the key is free");
    assert!(back.fence().get() > fence, "{:?} after {fence}", back.fence());
    assert_eq!(server.last_fence().await, Some(back.fence().get()));
    back.release().await.expect("held");
    assert_eq!(server.call(&["PTTL", RedisServer::COUNTER]).await.integer(), Some(-1), "the counter never expires");
    run.settle(&server).await;
    judged_by(&run, Checker::new().mark(Mark { key: None, from, to: stepped }));
}
#[tokio::test]
async fn fault_31_server_clock_that_steps_back_ends_no_lease_and_is_not_slept_on() {
    let Some(clock) = wall_clock("fault_31") else { return };
    let (server, run) = (server_by(&clock).await, Run::new("fault-31"));
    let mut holder = actor!(run, server.url(), "holder").await;
    let mut waiter = actor!(run, server.url(), "waiter").await;
    let ttl = LASTS;
    holder.acquire("k", ttl).await;
    waiter.begin("k", LONG, LONG).await;
    has_places(&server, 1).await;
    let pttl = async || server.call(&["PTTL", "k"]).await.integer().expect("a number");
    clock.set(-HOUR_MS);
    let since = now();
    sleep(ttl).await;
    let left = pttl().await;
    assert!(left > HOUR_MS - 60_000, "{left} ms: a renewal shortens nothing, as documented");
    assert!(holder.tell("check").await.starts_with("check held"), "no lease is lost by it");
    run.broken_since(since);
    assert_eq!(holder.tell("release").await, "released");
    waiter.held(SOON).await;
    give_back(&mut waiter).await;

    // A holder that crashes then: the key is stuck until somebody forces it. A waiter looks again all the same, rather than sleep for
    // an hour.
    let mut next = actor!(run, server.url(), "next").await;
    holder.process.send("fixed k 60000 60000").await;
    holder.held(SOON).await;
    let since = now();
    clock.set(-2 * HOUR_MS);
    next.begin("k", LONG, LONG).await;
    holder.kill(&run).await;
    has_places(&server, 1).await;
    sleep(TTL + TTL / 2).await;
    let left = pttl().await;
    assert!(left > HOUR_MS - 60_000, "{left} ms: stuck, as documented");
    let freed = Instant::now();
    server.call(&["DEL", "k"]).await; // which calls nobody
    next.held(SOON).await;
    run.broken_since(since);
    figure(31, "stuck key removed to next grant", freed.elapsed());
    assert_eq!(next.tell("release").await, "released");
    // The time until when somebody may wait was written before the steps, and was hours ahead. A request has set it right.
    let left = server.call(&["PTTL", RedisServer::WAITING]).await.integer().expect("a number");
    assert!(left <= 60_000, "every request looks at the queue for {left} ms more");
    server.call(&["DEL", RedisServer::WAITING]).await;
    run.settle(&server).await;
    judged(&run);
}
