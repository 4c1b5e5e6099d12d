//! Several processes that want the same keys of one Redis, judged by what each of them wrote down.
//!
//! `HISTORY_DIR` keeps the histories. Times are generous: these tests share a machine with others.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use lock_tests::{
    Actor, HANDOFF, LONG, PASSED_OVER, RedisServer, SETTLED, SOON, actor, eventually, figure,
    history::{Checker, ForeignClient, History, Manners, Op, Outcome, Rule, Run, now},
    team, were_called,
};
use tokio::time::sleep;

/// How long teams contend.
const WHILE: Duration = Duration::from_millis(2_000);

fn judged(run: &Run) -> History {
    let history = run.history().expect("the files can be read");
    Checker::new().bound(HANDOFF).assert_clean(&history);
    history
}

fn url(server: &RedisServer) -> String {
    format!("url={}", server.url())
}

fn register(server: &RedisServer) -> String {
    format!("register={}", server.address())
}

#[tokio::test]
async fn processes_that_contend_keep_every_rule_and_lose_no_update() {
    let (server, run) = (RedisServer::start().await, Run::new("contention-plain"));
    let options = [url(&server), register(&server)];
    let mut team = team!(run, "contend", 4, "p", [options[0], options[1], "tasks=8", "keys=3", "extends=20"]).await;
    team.go().await;
    sleep(WHILE).await;
    let rounds = team.stop(SOON).await;
    let settled = run.settle(&server, SETTLED).await;
    let history = judged(&run);
    let total: u64 = rounds.iter().sum();
    let mut counted = 0;
    for key in 0..3 {
        let value = server.call(&["HGET", &format!("register:k{key}"), "value"]).await.text();
        counted += value.map_or(0, |value| value.parse::<u64>().expect("a number"));
    }
    assert_eq!(counted, total, "no update is lost");
    assert!(total > 50, "{rounds:?}");
    println!("{rounds:?} rounds, {} events, nothing left after {settled:?}", history.events().len());
}

#[tokio::test]
async fn fault_05_killed_waiters_cost_the_others_nothing() {
    let (server, run) = (RedisServer::start().await, Run::new("contention-killed-waiters"));
    let mut holder = actor!(run, server.url(), "holder").await;
    holder.acquire("k", LONG).await;
    let mut waiters = Vec::new();
    for index in 0..5 {
        let mut waiter = actor!(run, server.url(), &format!("w{index}")).await;
        waiter.begin("k", LONG, LONG).await;
        waiter.surely_waits(&server).await;
        waiters.push(waiter);
    }
    // The head, and one in the middle.
    for index in [2, 0] {
        waiters.remove(index).kill(&run).await;
    }
    let start = Instant::now();
    assert_eq!(holder.tell("release").await, "released");
    let mut served = Vec::new();
    for _ in 0..3 {
        served.push(next_holder(&mut waiters, HANDOFF).await);
    }
    were_called(&served);
    figure(5, "longest handoff, two of five waiters killed", served.into_iter().max().unwrap_or_default());
    println!("three waiters were served within {:?}", start.elapsed());
    drop(waiters);
    run.settle(&server, SETTLED).await;
    judged(&run);
}

/// Waits until one of them holds, and lets it release; returns how long that took.
async fn next_holder(waiters: &mut Vec<Actor>, within: Duration) -> Duration {
    let start = Instant::now();
    let held = waiters.iter_mut().map(|waiter| Box::pin(waiter.held(SOON)));
    let (_, index, others) = futures_util::future::select_all(held).await;
    drop(others);
    let took = start.elapsed();
    assert!(took < within, "the next one was served after {took:?}");
    let mut waiter = waiters.remove(index);
    assert_eq!(waiter.tell("release").await, "released");
    took
}

#[tokio::test]
async fn fault_06_stopped_waiter_at_the_head_costs_a_check_and_its_call_window() {
    let (server, run) = (RedisServer::start().await, Run::new("contention-stopped-waiter"));
    let mut holder = actor!(run, server.url(), "holder").await;
    holder.acquire("k", LONG).await;
    let mut waiters = Vec::new();
    for index in 0..4 {
        let mut waiter = actor!(run, server.url(), &format!("w{index}")).await;
        waiter.begin("k", LONG, LONG).await;
        waiter.surely_waits(&server).await;
        waiters.push(waiter);
    }
    let mut head = waiters.remove(0);
    let since = now();
    head.process.pause();
    assert_eq!(holder.tell("release").await, "released");
    let first = next_holder(&mut waiters, PASSED_OVER).await;
    let others = [next_holder(&mut waiters, HANDOFF).await, next_holder(&mut waiters, HANDOFF).await];
    were_called(&others);
    head.process.resume();
    run.broken_since(since);
    head.held(HANDOFF).await;
    assert_eq!(head.tell("release").await, "released");
    figure(6, "next grant after the release, the head stopped", first);
    println!("then {others:?}");
    run.settle(&server, SETTLED).await;
    judged(&run);
}

#[tokio::test]
async fn fault_01_killed_holder_blocks_for_its_ttl_and_no_longer() {
    let ttl = Duration::from_secs(1);
    let (server, run) = (RedisServer::start().await, Run::new("contention-killed-holder"));
    let mut holder = actor!(run, server.url(), "holder").await;
    let mut waiters = Vec::new();
    let first = holder.acquire("k", ttl).await;
    for index in 0..3 {
        let mut waiter = actor!(run, server.url(), &format!("w{index}")).await;
        waiter.begin("k", ttl, LONG).await;
        waiter.surely_waits(&server).await;
        waiters.push(waiter);
    }
    sleep(ttl).await; // it is renewed at least once
    assert!(holder.tell("check").await.starts_with("check held"));
    holder.kill(&run).await;
    let waited = next_holder(&mut waiters, ttl + HANDOFF).await;
    figure(1, "next grant after the holder of a ttl of 1 s was killed", waited);
    while !waiters.is_empty() {
        next_holder(&mut waiters, HANDOFF).await;
    }
    run.settle(&server, SETTLED).await;
    let history = judged(&run);
    assert!(history.events().iter().filter_map(|event| event.fence).all(|fence| fence >= first));
}

#[tokio::test]
async fn futures_and_guards_dropped_at_random_moments_leave_nothing() {
    let (server, run) = (RedisServer::start().await, Run::new("contention-drops"));
    let options = [url(&server), register(&server)];
    let drops = ["drops=40", "drop_within=15", "wait=25", "ttl=30000"];
    let mut team = team!(
        run,
        "contend",
        3,
        "p",
        [options[0], options[1], "tasks=8", "keys=2", drops[0], drops[1], drops[2], drops[3]]
    )
    .await;
    team.go().await;
    sleep(WHILE).await;
    let rounds = team.stop(SOON).await;
    // The ttl is far longer than this: nothing is left to expire.
    let settled = run.settle(&server, Duration::from_secs(3)).await;
    let history = judged(&run);
    let dropped = history.events().iter().filter(|event| event.result == Outcome::Info).count();
    assert!(dropped > 20, "{dropped} dropped, {rounds:?}");
    println!("{rounds:?} rounds, {dropped} dropped, nothing left after {settled:?}");
}

#[tokio::test]
async fn clients_of_another_library_are_excluded_and_exclude() {
    let (server, run) = (RedisServer::start().await, Run::new("contention-foreign"));
    let address = format!("address={}", server.address());
    let options = [url(&server), register(&server)];
    let mut ours = team!(run, "contend", 2, "p", [options[0], options[1], "tasks=4", "keys=2", "pause=5"]).await;
    let mut theirs = team!(run, "foreign", 1, "f", [address, "tasks=4", "keys=2"]).await;
    ours.go().await;
    theirs.go().await;
    sleep(WHILE).await;
    let rounds = [ours.stop(SOON).await, theirs.stop(SOON).await];
    run.settle(&server, SETTLED).await;
    judged(&run);
    println!("{rounds:?} rounds, ours and theirs");
    assert!(rounds.iter().all(|rounds| rounds.iter().sum::<u64>() > 10), "{rounds:?}");
}

#[tokio::test]
async fn foreign_key_without_ttl_is_waited_for_without_a_busy_loop() {
    const WAITERS: usize = 4;
    let (server, run) = (RedisServer::start().await, Run::new("contention-foreign-no-ttl"));
    let recorder = run.recorder("foreign");
    let mut foreign =
        ForeignClient::connect(&server.address(), &recorder, "t0", Manners::Good).await.expect("connects");
    let token = foreign.acquire("k", None, Duration::ZERO).await.expect("is answered").expect("the key is free");
    let mut waiters = Vec::new();
    for index in 0..WAITERS {
        let mut waiter = actor!(run, server.url(), &format!("w{index}")).await;
        waiter.begin("k", LONG, LONG).await;
        waiter.surely_waits(&server).await;
        waiters.push(waiter);
    }
    sleep(Duration::from_millis(500)).await; // the first tries may be quick
    let (before, start) = (server.script_calls().await, Instant::now());
    sleep(WHILE).await;
    let calls = server.script_calls().await - before;
    let rate = calls as f64 / start.elapsed().as_secs_f64() / WAITERS as f64;
    println!("{rate:.1} calls a second for each waiter");
    assert!(rate <= 20.0, "{rate} calls a second for each waiter");
    assert!(foreign.release("k", &token).await.expect("is answered"));
    let first = next_holder(&mut waiters, HANDOFF).await;
    println!("served {first:?} after it was removed");
    while !waiters.is_empty() {
        next_holder(&mut waiters, HANDOFF).await;
    }
    run.settle(&server, SETTLED).await;
    judged(&run);
}

#[tokio::test]
async fn processes_are_served_in_the_order_in_which_they_came() {
    let (server, run) = (RedisServer::start().await, Run::new("contention-order"));
    let mut holder = actor!(run, server.url(), "holder").await;
    holder.acquire("k", LONG).await;
    let mut waiters = Vec::new();
    for index in 0..8 {
        let mut waiter = actor!(run, server.url(), &format!("w{index}")).await;
        waiter.begin("k", LONG, LONG).await;
        waiter.surely_waits(&server).await;
        waiters.push(waiter);
    }
    assert_eq!(holder.tell("release").await, "released");
    let (mut last, mut took) = (0, Vec::new());
    for waiter in &mut waiters {
        let start = Instant::now();
        // Nobody else is told to release: if it were another one's turn, this one would wait for ever.
        let fence = waiter.held(HANDOFF).await;
        took.push(start.elapsed());
        assert!(fence > last);
        last = fence;
        assert_eq!(waiter.tell("release").await, "released");
    }
    println!("eight handoffs: {took:?}");
    were_called(&took);
    run.settle(&server, SETTLED).await;
    judged(&run);
}

#[tokio::test]
async fn waiter_that_gives_up_leaves_its_place_to_the_next() {
    let (server, run) = (RedisServer::start().await, Run::new("contention-giving-up"));
    let mut holder = actor!(run, server.url(), "holder").await;
    holder.acquire("k", LONG).await;
    let mut waiters = Vec::new();
    for index in 0..4 {
        let mut waiter = actor!(run, server.url(), &format!("w{index}")).await;
        waiter.begin("k", LONG, if index == 0 { HANDOFF } else { LONG }).await;
        waiter.surely_waits(&server).await;
        waiters.push(waiter);
    }
    // One whose wait runs out, and one whose future is dropped.
    waiters[0].process.expect("refused Busy", SOON).await;
    assert_eq!(waiters[1].tell("cancel").await, "cancelled");
    assert_eq!(holder.tell("release").await, "released");
    for waiter in &mut waiters[2..] {
        waiter.held(HANDOFF).await;
        assert_eq!(waiter.tell("release").await, "released");
    }
    run.settle(&server, SETTLED).await;
    judged(&run);
}

#[tokio::test]
async fn processes_that_contend_have_fair_shares() {
    let (server, run) = (RedisServer::start().await, Run::new("contention-fairness"));
    let mut team = team!(run, "contend", 4, "p", [url(&server), "tasks=4", "keys=1", "hold=1"]).await;
    team.go().await;
    sleep(2 * WHILE).await;
    let rounds = team.stop(SOON).await;
    run.settle(&server, SETTLED).await;
    let turns = turns(&judged(&run));
    let share = |counts: &mut dyn Iterator<Item = u64>| {
        let counts: Vec<_> = counts.collect();
        let (min, max) = (counts.iter().min().copied(), counts.iter().max().copied());
        min.unwrap_or(0) as f64 / max.unwrap_or(1) as f64
    };
    let of_turns = share(&mut turns.values().copied());
    let of_holds = share(&mut rounds.iter().copied());
    println!("smallest to largest: {of_turns:.2} of turns, {of_holds:.2} of holds; {turns:?}, {rounds:?}");
    assert_eq!(turns.len(), 4);
    assert!(of_turns >= 0.8, "{turns:?}");
    // How many holds there are in a turn of up to 100 ms depends on who is back in line in time.
    assert!(of_holds >= 0.25, "{rounds:?}");
}

#[tokio::test]
async fn nobody_waits_longer_than_the_place_in_line_times_the_hold_and_the_budget() {
    const PROCESSES: u32 = 4;
    const HOLD: Duration = Duration::from_millis(20);
    const BUDGET: Duration = Duration::from_millis(100);
    // With three tasks each, all who wait in a process are served in one turn of it.
    let (server, run) = (RedisServer::start().await, Run::new("contention-longest-wait"));
    let mut team = team!(run, "contend", 4, "p", [url(&server), "tasks=3", "keys=1", "hold=20"]).await;
    team.go().await;
    sleep(2 * WHILE).await;
    let rounds = team.stop(SOON).await;
    run.settle(&server, SETTLED).await;
    let history = judged(&run);
    let asked = history.events().iter().filter(|event| event.op == Op::Acquire);
    let waits = asked.map(|event| event.t_return.unwrap_or(f64::INFINITY) - event.t_invoke);
    let longest = waits.fold(0.0, f64::max);
    println!("the longest wait was {longest:.0} ms; {rounds:?} rounds");
    // Half a second is what a busy machine may add to one handoff.
    let most = PROCESSES * (HOLD + BUDGET) + Duration::from_millis(500);
    assert!(longest < most.as_secs_f64() * 1_000.0, "{longest:.0} ms; {rounds:?}");
    assert!(rounds.iter().all(|rounds| *rounds > 5), "{rounds:?}");
}

#[tokio::test]
async fn process_that_is_alone_on_a_key_is_not_slowed() {
    let (server, run) = (RedisServer::start().await, Run::new("contention-alone"));
    let mut team = team!(run, "contend", 1, "p", [url(&server), "tasks=4", "keys=1", "hold=1"]).await;
    team.go().await;
    sleep(WHILE).await;
    let rounds = team.stop(SOON).await;
    run.settle(&server, SETTLED).await;
    let history = judged(&run);
    let acquires = history.events().iter().filter(|event| event.op == Op::Acquire && event.succeeded());
    let mut times: Vec<_> = acquires.filter_map(|event| event.t_return).collect();
    times.sort_by(f64::total_cmp);
    // Whoever made room for others at the end of each budget of 100 ms would stand still for as long again.
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    let idle = gaps.filter(|gap| *gap > 40.0).sum::<f64>().max(0.0);
    let all = times.last().expect("it had the key") - times[0];
    println!("idle for {idle:.0} of {all:.0} ms, {rounds:?} rounds");
    assert!(idle < all / 4.0, "idle for {idle:.0} of {all:.0} ms");
    assert!(rounds[0] > 50, "{rounds:?}");
}

/// How often each process had the key between two others.
fn turns(history: &History) -> BTreeMap<String, u64> {
    let acquires = history.events().iter().filter(|event| event.op == Op::Acquire && event.succeeded());
    let mut owners: Vec<_> = acquires.map(|event| (event.t_return, event.process.split('/').next())).collect();
    owners.sort_by(|a, b| a.0.partial_cmp(&b.0).expect("times are numbers"));
    owners.dedup_by_key(|owner| owner.1);
    let mut turns = BTreeMap::new();
    for owner in owners.into_iter().filter_map(|(_, owner)| owner) {
        *turns.entry(owner.to_owned()).or_default() += 1;
    }
    turns
}

/// Runs our clients beside a client that breaks the rules, until the checker has found all of `expected`: on a slow machine
/// one run may show only some of them.
async fn catches(manners: &str, name: &str, expected: &[Rule]) {
    let mut found = Vec::new();
    for attempt in 0..5 {
        found.extend(broken_rules(manners, &format!("{name}-{attempt}")).await);
        if expected.iter().all(|rule| found.contains(rule)) {
            return;
        }
    }
    panic!("{manners}: expected {expected:?}, found {found:?}");
}

/// The rules that a team of ours and one of another library have broken in a real run, as the checker sees it.
async fn broken_rules(manners: &str, name: &str) -> Vec<Rule> {
    let (server, run) = (RedisServer::start().await, Run::new(name));
    let address = format!("address={}", server.address());
    let manners = format!("manners={manners}");
    let mut ours = team!(run, "contend", 2, "p", [url(&server), "tasks=2", "hold=20", "pause=40"]).await;
    let mut theirs = team!(run, "foreign", 1, "f", [address, manners, "tasks=2", "ttl=20", "hold=60"]).await;
    ours.go().await;
    theirs.go().await;
    sleep(WHILE / 2).await;
    ours.stop(SOON).await;
    theirs.stop(SOON).await;
    eventually(SOON, "nothing is left", async || server.keys("k*").await.is_empty()).await;
    let violations = Checker::new().bound(HANDOFF).check(&run.history().expect("the files can be read"));
    if let Some(violation) = violations.first() {
        println!("{manners}: {violation}");
    }
    let mut rules: Vec<_> = violations.into_iter().map(|violation| violation.rule).collect();
    rules.dedup();
    rules
}

#[tokio::test]
async fn client_that_ignores_holders_is_caught() {
    catches("ignore", "caught-ignores-holders", &[Rule::TwoHolders]).await;
}

#[tokio::test]
async fn client_that_deletes_the_key_of_others_is_caught() {
    catches("delete", "caught-deletes-blindly", &[Rule::TwoHolders, Rule::StaleSuccess]).await;
}

#[tokio::test]
async fn client_that_believes_in_its_lease_for_too_long_is_caught() {
    catches("forget", "caught-forgets-the-ttl", &[Rule::TwoHolders]).await;
}

#[tokio::test]
async fn well_behaved_client_beside_them_is_not() {
    assert_eq!(broken_rules("good", "caught-nobody").await, []);
}
