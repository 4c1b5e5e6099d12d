//! Several processes that want the same keys of one Redis, judged by what each of them wrote down.
//!
//! `HISTORY_DIR` keeps the histories. No test measures how quick something is: what is granted to whom is read from the key, since a
//! release that finds a waiter grants it the key in the same step. (Not from the fencing tokens: a check of the waiter may draw another.)

use std::{
    collections::BTreeMap,
    mem,
    time::{Duration, Instant},
};

use lock_tests::{
    Actor, HANDOFF, LONG, RedisServer, SOON, Team, actor, eventually, figure, has_places,
    history::{Checker, ForeignClient, History, Manners, Op, Outcome, Rule, Run, judged, now},
    ms, team,
};
use tokio::time::sleep;

use crate::modes::{
    no_update_is_lost,
    state::{State, all_look, comes, give_back, next_holder, release, serve_all},
};

/// How long teams contend at least.
const WHILE: Duration = ms(2_000);

/// The ttl of teams whose leases are released: if a release is missing, its key is still there when the run has settled.
const TTL: &str = "ttl=600000";

/// Lets teams contend for a while, and on a slow machine for longer: until the server has done as much as it usually does in
/// much less time.
pub(crate) async fn contend(server: &RedisServer) {
    let commands = async || server.info("total_commands_processed").await.parse::<u64>().expect("a number");
    let (before, start) = (commands().await, Instant::now());
    sleep(WHILE).await;
    while commands().await < before + 4_000 && start.elapsed() < SOON {
        sleep(ms(50)).await;
    }
}

/// Lets a team contend until each of its members has had a lease so often.
async fn until_each_had(team: &mut Team, leases: u64) {
    for member in &mut team.members {
        eventually(LONG, "it has its turns", async || {
            member.send("report").await;
            let report = member.expect("report ", LONG).await;
            let had = report.split(' ').find_map(|count| count.strip_prefix("had=")?.parse::<u64>().ok());
            had.expect("it is counted") >= leases
        })
        .await;
    }
}

/// Has actors wait for the key behind each other and a holder, each for its time; returns the holder, them, and their tokens.
async fn line_up(run: &Run, server: &RedisServer, waits: &[Duration]) -> (Actor, Vec<Actor>, Vec<String>) {
    let mut holder = actor!(run, server.url(), "holder").await;
    let (mut waiters, mut tokens) = (Vec::new(), Vec::new());
    for index in 0..waits.len() {
        waiters.push(actor!(run, server.url(), &format!("w{index}")).await);
    }
    holder.acquire("k", LONG).await;
    for (waiter, wait) in waiters.iter_mut().zip(waits) {
        let (before, after) = comes(server, waiter.begin("k", LONG, *wait), &mut tokens).await;
        // One that gives up leaves its place.
        if waits.iter().all(|wait| *wait == LONG) {
            after.follows(&before);
        }
    }
    (holder, waiters, tokens)
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
    let mut team =
        team!(run, "contend", 4, "p", [options[0], options[1], TTL, "tasks=8", "keys=3", "extends=20"]).await;
    team.go().await;
    contend(&server).await;
    until_each_had(&mut team, 20).await;
    let rounds = team.stop(LONG).await;
    let settled = run.settle(&server).await;
    let history = judged(&run);
    println!("{rounds:?} rounds, {} events, nothing left after {settled:?}", history.events().len());
    // A write of a holder that has lost its lease is refused, and does not count.
    no_update_is_lost(&server, 3, history.events()).await;
}

#[tokio::test]
async fn fault_05_killed_waiters_cost_the_others_nothing() {
    let (server, run) = (RedisServer::start().await, Run::new("contention-killed-waiters"));
    let (mut holder, mut waiters, tokens) = line_up(&run, &server, &[LONG; 5]).await;
    // The head, and one in the middle.
    for index in [2, 0] {
        waiters.remove(index).kill(&run).await;
    }
    let dead = [0, 2].map(|index: usize| tokens[index].clone());
    let mut served = Vec::new();
    while !waiters.is_empty() {
        // The release passes over the dead: it grants the key to the next that lives, with no check of a waiter between.
        let (granted, _) = release(&mut holder, &server, &dead).await;
        assert!(!dead.iter().any(|token| granted.has(token)), "the key was granted to a dead waiter first");
        let (next, _, took) = next_holder(&mut waiters).await;
        served.push(took);
        holder = next;
    }
    give_back(&mut holder).await;
    figure(5, "longest handoff, two of five waiters killed", served.into_iter().max().unwrap_or_default());
    run.settle(&server).await;
    judged(&run);
}

/// That the waiter behind looks again as soon as the window is over is proven in `lock-core/src/engine/queues/candidate.rs`.
#[tokio::test]
async fn fault_06_stopped_waiter_at_the_head_costs_a_check_and_its_call_window() {
    let (server, run) = (RedisServer::start().await, Run::new("contention-stopped-waiter"));
    let (mut holder, mut waiters, tokens) = line_up(&run, &server, &[LONG; 4]).await;
    let (mut head, stopped) = (waiters.remove(0), &*tokens[0]);
    let since = now();
    head.process.pause();
    let (granted, _) = release(&mut holder, &server, &[]).await;
    // A second, or two where answers are slow.
    let kept = granted.left(stopped);
    assert!(kept <= Some(2_000), "the key is kept for the head for {kept:?} ms");
    let (mut next, _, first) = next_holder(&mut waiters).await;
    assert!(!State::of(&server).await.has(stopped), "the key was granted to the head, and then again");
    // It costs the others nothing more.
    while !waiters.is_empty() {
        let (granted, is_seen) = release(&mut next, &server, &[]).await;
        assert!(!is_seen || !granted.has(stopped), "the key was granted to the head again");
        next = next_holder(&mut waiters).await.0;
    }
    give_back(&mut next).await;
    head.process.resume();
    run.broken_since(since);
    head.held(SOON).await;
    give_back(&mut head).await;
    figure(6, "next grant after the release, the head stopped", first);
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test]
async fn fault_01_killed_holder_blocks_for_its_ttl_and_no_longer() {
    // It is renewed every three seconds, and survives a machine that stands still for six.
    let ttl = Duration::from_secs(9);
    let (server, run) = (RedisServer::start().await, Run::new("contention-killed-holder"));
    let mut holder = actor!(run, server.url(), "holder").await;
    let mut waiters = Vec::new();
    for index in 0..3 {
        waiters.push(actor!(run, server.url(), &format!("w{index}")).await);
    }
    let first = holder.acquire("k", ttl).await;
    for waiter in &mut waiters {
        waiter.begin("k", LONG, LONG).await;
    }
    has_places(&server, 3).await;
    let mut left = i64::MAX;
    eventually(SOON, "it is renewed", async || {
        let now = server.call(&["PTTL", "k"]).await.integer().expect("a number");
        mem::replace(&mut left, now) < now
    })
    .await;
    assert!(holder.tell("check").await.starts_with("check held"));
    holder.kill(&run).await;
    let before = server.info("expired_keys").await;
    let (mut next, fence, waited) = next_holder(&mut waiters).await;
    assert!(fence > first);
    assert_ne!(server.info("expired_keys").await, before, "the key expired, and nobody released it");
    figure(1, "next grant after the holder of a ttl of 9 s was killed", waited);
    give_back(&mut next).await;
    serve_all(&mut waiters).await;
    run.settle(&server).await;
    let history = judged(&run);
    assert!(history.events().iter().filter_map(|event| event.fence).all(|fence| fence >= first));
}

#[tokio::test]
async fn futures_and_guards_dropped_at_random_moments_leave_nothing() {
    let (server, run) = (RedisServer::start().await, Run::new("contention-drops"));
    let options = [url(&server), register(&server)];
    let drops = ["drops=40", "drop_within=15", "wait=25", TTL];
    let mut team = team!(
        run,
        "contend",
        3,
        "p",
        [options[0], options[1], "tasks=8", "keys=2", drops[0], drops[1], drops[2], drops[3]]
    )
    .await;
    team.go().await;
    contend(&server).await;
    let rounds = team.stop(LONG).await;
    // The ttl is far longer than this: nothing is left to expire.
    let settled = run.settle(&server).await;
    let history = judged(&run);
    let dropped = history.events().iter().filter(|event| event.result == Outcome::Info).count();
    assert!(dropped > 20, "{dropped} dropped, {rounds:?}");
    println!("{rounds:?} rounds, {dropped} dropped, nothing left after {settled:?}");
}

#[tokio::test]
async fn clients_of_another_library_are_excluded_and_exclude() {
    let (server, registers, run) =
        (RedisServer::start().await, RedisServer::start().await, Run::new("contention-foreign"));
    let address = format!("address={}", server.address());
    let options = [url(&server), register(&registers)];
    let mut ours = team!(run, "contend", 2, "p", [options[0], options[1], TTL, "tasks=4", "keys=2", "pause=5"]).await;
    let mut theirs = team!(run, "foreign", 1, "f", [address, "tasks=4", "keys=2"]).await;
    ours.go().await;
    theirs.go().await;
    contend(&server).await;
    // They poll, so they have the key less often. Each of their rounds ends with an `EVAL`; ours are a few when they connect.
    eventually(LONG, "they have had the key", async || server.calls_of("eval").await > 30).await;
    until_each_had(&mut ours, 10).await;
    let rounds = [ours.stop(LONG).await, theirs.stop(LONG).await];
    run.settle(&server).await;
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
        has_places(&server, index + 1).await;
        waiters.push(waiter);
    }
    sleep(ms(500)).await; // the first tries may be quick
    // The time is measured around all that is counted, so that a slow machine only makes the rate seem smaller.
    let (start, before) = (Instant::now(), server.script_calls().await);
    sleep(WHILE).await;
    let calls = server.script_calls().await - before;
    let rate = calls as f64 / start.elapsed().as_secs_f64() / WAITERS as f64;
    println!("{rate:.1} calls a second for each waiter");
    assert!(rate <= 20.0, "{rate} calls a second for each waiter");
    assert!(foreign.release("k", &token).await.expect("is answered"));
    serve_all(&mut waiters).await;
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test]
async fn processes_are_served_in_the_order_in_which_they_came() {
    const HANDOFFS: usize = 8;
    let (server, run) = (RedisServer::start().await, Run::new("contention-order"));
    let (mut holder, mut waiters, _) = line_up(&run, &server, &[LONG; 7]).await;
    all_look(&server).await;
    // Each holder comes again, until enough handoffs were seen. On a busy machine many are not.
    let (mut seen, mut called, mut took) = (0, 0, Vec::new());
    while seen < HANDOFFS || called == 0 {
        assert!(took.len() < 100, "{seen} handoffs of {} were seen, {called} waiters were called", took.len());
        let (granted, is_seen) = release(&mut holder, &server, &[]).await;
        let (next, fence, time) = next_holder(&mut waiters).await;
        took.push(time);
        seen += usize::from(is_seen);
        // A waiter that is called has the number that was drawn for it. One that finds the grant at a check of its own draws another.
        called += usize::from(is_seen && granted.granted == Some(fence));
        let mut former = mem::replace(&mut holder, next);
        former.begin("k", LONG, LONG).await;
        waiters.push(former);
    }
    give_back(&mut holder).await;
    serve_all(&mut waiters).await;
    println!("{} handoffs, {called} of {seen} by a call: {took:?}", took.len());
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test]
async fn waiter_that_gives_up_leaves_its_place_to_the_next() {
    // Long enough for its place to be seen on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(10);
    let (server, run) = (RedisServer::start().await, Run::new("contention-giving-up"));
    let (mut holder, mut waiters, tokens) = line_up(&run, &server, &[PATIENCE, LONG, LONG, LONG]).await;
    // One whose wait runs out, and one whose future is dropped.
    waiters[0].process.expect("refused Busy", SOON).await;
    assert_eq!(waiters[1].tell("cancel").await, "cancelled");
    let gone = &tokens[..2];
    eventually(SOON, "their places are gone", async || {
        let state = State::of(&server).await;
        !gone.iter().any(|token| state.has_place(token))
    })
    .await;
    let _gave_up: Vec<_> = waiters.drain(..2).collect();
    while !waiters.is_empty() {
        let (granted, _) = release(&mut holder, &server, &[]).await;
        assert!(!gone.iter().any(|token| granted.has(token)), "the place of another is before its own");
        holder = next_holder(&mut waiters).await.0;
    }
    give_back(&mut holder).await;
    run.settle(&server).await;
    judged(&run);
}

/// How large the shares are, how long the longest wait is, and that a process that is alone is not slowed, is proven in virtual
/// time, in `lock-core/tests/turns.rs`: here a process may get no time from the machine when it is its turn.
#[tokio::test]
async fn processes_that_contend_all_have_their_turns() {
    // A process that the machine lets stand still all the time has none, but not each time.
    let mut turns = BTreeMap::new();
    for attempt in 0..5 {
        turns = turns_of(4, "tasks=4", &format!("contention-fairness-{attempt}")).await;
        if turns.values().all(|turns| *turns > 3) {
            return;
        }
    }
    panic!("{turns:?}");
}

/// Each comes late when it is its turn, as the machine has no time for it. What a turn costs then is shown in virtual time
/// (`a_key_goes_on_as_fast_as_its_waiters_read` in `tests/support/sim/tests.rs`).
#[tokio::test]
#[ignore = "starts sixty processes; run by .ci/nightly"]
async fn sixty_processes_that_wait_for_one_key_are_all_served() {
    turns_of(60, "tasks=1", "contention-crowd").await;
}

/// How often each of so many processes had a key between two others.
async fn turns_of(processes: usize, tasks: &str, name: &str) -> BTreeMap<String, u64> {
    let (server, run) = (RedisServer::start().await, Run::new(name));
    let mut team = team!(run, "contend", processes, "p", [url(&server), TTL, tasks, "keys=1", "hold=1"]).await;
    team.go().await;
    contend(&server).await;
    until_each_had(&mut team, 1).await;
    let rounds = team.stop(LONG).await;
    run.settle(&server).await;
    let turns = turns(&judged(&run));
    println!("{turns:?} turns, {rounds:?} rounds");
    assert_eq!(turns.len(), processes);
    turns
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

/// The rules that two processes of ours and a client of another library break together, as the checker sees it: its lease ends, one of
/// ours has the key, it gives the key back, and the other one of ours has it.
async fn broken_rules(manners: Manners, name: &str) -> Vec<Rule> {
    let (server, run) = (RedisServer::start().await, Run::new(name));
    let mut foreign =
        ForeignClient::connect(&server.address(), &run.recorder("foreign"), "t0", manners).await.expect("connects");
    let mut first = actor!(run, server.url(), "first").await;
    let mut second = actor!(run, server.url(), "second").await;
    let token = foreign.acquire("k", Some(ms(20)), Duration::ZERO).await.expect("is answered").expect("it is free");
    eventually(SOON, "the lease is over", async || server.keys("k").await.is_empty()).await;
    first.acquire("k", LONG).await;
    let again = foreign.acquire("k", Some(LONG), Duration::ZERO).await.expect("is answered");
    assert_eq!(again.is_some(), manners == Manners::IgnoresHolders);
    let was_there = foreign.release("k", again.as_ref().unwrap_or(&token)).await.expect("is answered");
    assert_eq!(was_there, matches!(manners, Manners::IgnoresHolders | Manners::DeletesBlindly));
    second.begin("k", LONG, LONG).await;
    if manners == Manners::DeletesBlindly {
        second.held(SOON).await;
        first.tell("release").await;
    } else {
        first.tell("release").await;
        second.held(SOON).await;
    }
    second.tell("release").await;
    run.settle(&server).await;
    let violations = Checker::new().bound(HANDOFF).check(&run.history().expect("the files can be read"));
    let mut rules: Vec<_> = violations.into_iter().map(|violation| violation.rule).collect();
    rules.dedup();
    rules
}

#[tokio::test]
async fn client_that_ignores_holders_is_caught() {
    let rules = broken_rules(Manners::IgnoresHolders, "caught-ignores-holders").await;
    assert!(rules.contains(&Rule::TwoHolders), "{rules:?}");
}

#[tokio::test]
async fn client_that_deletes_the_key_of_others_is_caught() {
    let rules = broken_rules(Manners::DeletesBlindly, "caught-deletes-blindly").await;
    assert!([Rule::TwoHolders, Rule::StaleSuccess].iter().all(|rule| rules.contains(rule)), "{rules:?}");
}

#[tokio::test]
async fn client_that_believes_in_its_lease_for_too_long_is_caught() {
    let rules = broken_rules(Manners::ForgetsTheTtl, "caught-forgets-the-ttl").await;
    assert!(rules.contains(&Rule::TwoHolders), "{rules:?}");
}

#[tokio::test]
async fn well_behaved_client_beside_them_is_not() {
    assert_eq!(broken_rules(Manners::Good, "caught-nobody").await, []);
}
