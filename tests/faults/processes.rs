//! Processes that stop and go on.

use lock_tests::{
    Dice, RedisServer, actor, eventually, figure,
    history::{Op, Outcome, Run, now},
    team,
};
use tokio::time::sleep;

use crate::{
    faults::*,
    modes::state::{comes, give_back, next_holder, release, serve_all},
};

#[tokio::test]
async fn fault_02_holder_stopped_for_longer_than_its_ttl_knows_at_once_and_harms_nobody() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-02"));
    let mut stopped = actor!(run, server.url(), "stopped").await;
    let mut next = actor!(run, server.url(), "next").await;
    let ttl = LASTS;
    let old = stopped.acquire("k", ttl).await;
    next.begin("k", LONG, LONG).await;
    has_places(&server, 1).await;
    let since = now();
    stopped.process.pause();
    let fence = next.held(SOON).await;
    assert!(fence > old);
    assert_eq!(next.tell(&format!("count {}", server.address())).await, "counted");
    sleep((ttl + TTL).saturating_sub(span(since, now()))).await;

    let resumed = now();
    stopped.process.resume();
    run.broken_since(since);
    let (reason, at) = stopped.lost(SOON).await;
    assert_eq!(reason, "Expired");
    figure(2, "CONT to lost", span(resumed, at));
    assert_eq!(stopped.tell("check").await, "check lost");
    let why = stopped.tell("why").await;
    assert!(why.contains("this process stood still for ") && !why.contains("check the backend"), "{why}");
    assert_eq!(stopped.tell(&format!("count {}", server.address())).await, "stale");
    assert_eq!(stopped.tell("release").await, "failed Lost(Expired)");
    assert!(next.tell("check").await.starts_with("check held"));
    assert_eq!(next.tell("release").await, "released");
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test]
async fn fault_03_holder_stopped_for_half_its_ttl_keeps_its_lease() {
    let ttl = 20 * TTL;
    let (server, run) = (RedisServer::start().await, Run::new("fault-03"));
    let mut holder = actor!(run, server.url(), "holder").await;
    let fence = holder.acquire("k", ttl).await;
    for _ in 0..2 {
        // The other half of the ttl is for what else the machine does.
        assert_eq!(holder.tell("extend 20000").await, "extended");
        holder.process.pause();
        sleep(ttl / 2).await;
        holder.process.resume();
        eventually(SOON, "it has more left than an extend before the stop could leave", async || {
            let checked = holder.tell("check").await;
            let left = checked.strip_prefix("check held ").unwrap_or_else(|| panic!("a false loss: {checked}"));
            left.parse::<u128>().expect("a number") > (ttl / 2).as_millis()
        })
        .await;
    }
    assert_eq!(holder.tell("release").await, "released");
    run.settle(&server).await;
    let history = judged(&run);
    assert!(history.events().iter().all(|event| event.fence.is_none_or(|found| found == fence)));
    let renewals = history.events().iter().filter(|event| event.op == Op::Extend).count();
    assert!(renewals >= 2, "{renewals} renewals were noticed");
}

#[tokio::test]
async fn fault_04_processes_stopped_at_random_keep_every_rule() {
    let ttl = ms(500);
    let (server, run) = (RedisServer::start().await, Run::new("fault-04"));
    let (url, register) = (format!("url={}", server.url()), format!("register={}", server.address()));
    let control = format!("unfenced={}", server.address());
    let options = [url, register, control];
    let mut team =
        team!(run, "contend", 4, "p", [options[0], options[1], options[2], "tasks=3", "keys=2", "ttl=500", "hold=20"])
            .await;
    team.go().await;
    let mut dice = Dice::named("fault_04");
    let (start, since) = (Instant::now(), now());
    while start.elapsed() < for_seconds(3) {
        let victim = &team.members[usize::try_from(dice.below(4)).expect("small")];
        victim.pause();
        sleep(dice.between(Duration::ZERO, 2 * ttl)).await;
        victim.resume();
        sleep(ms(200)).await;
    }
    run.broken_since(since);
    each_has_another(&mut team).await;
    let rounds = team.stop(LONG).await;
    run.settle(&server).await;
    let history = judged(&run);
    let count = |op, result| history.events().iter().filter(|event| event.op == op && event.result == result).count();
    let written = count(Op::Write, Outcome::Ok);
    let (refused, lost) =
        (count(Op::Write, Outcome::Fail) + count(Op::Read, Outcome::Fail), count(Op::Lost, Outcome::Ok));
    println!("{rounds:?} rounds, {written} writes, {refused} refused as stale, {lost} leases lost");
    let mut counted = 0;
    for key in 0..2 {
        let value = server.call(&["HGET", &format!("register:k{key}"), "value"]).await.text();
        counted += value.map_or(0, |value| value.parse::<usize>().expect("a number"));
    }
    println!("{} of {written} updates with one", written.saturating_sub(counted));
    let number = async |name: String| {
        server.call(&["GET", &name]).await.text().map_or(0, |value| value.parse::<usize>().expect("a number"))
    };
    let (mut unfenced, mut writes) = (0, 0);
    for key in 0..2 {
        unfenced += number(format!("register:unfenced:k{key}")).await;
        writes += number(format!("register:writes:k{key}")).await;
    }
    // The control: what a lock alone cannot prevent.
    println!("{} of {writes} updates without a fencing token were lost", writes.saturating_sub(unfenced));
    assert!(rounds.iter().all(|rounds| *rounds > 0), "{rounds:?}");
    let unknown = count(Op::Write, Outcome::Info);
    assert!((written..=written + unknown).contains(&counted), "{counted} of {written} updates");
}

#[tokio::test]
async fn fault_05_one_five_and_twenty_killed_waiters_in_a_row_are_passed_over_at_once() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-05"));
    let mut holder = actor!(run, server.url(), "holder").await;
    holder.acquire("k", LONG).await;
    let (mut waiters, mut tokens, mut dead) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..30 {
        let mut waiter = actor!(run, server.url(), &format!("w{index}")).await;
        comes(&server, waiter.begin("k", LONG, LONG), &mut tokens).await;
        waiters.push(waiter);
    }
    for killed in [1, 5, 20] {
        for mut waiter in waiters.drain(..killed) {
            waiter.kill(&run).await;
            let index: usize = waiter.name[1..].parse().expect("a number");
            dead.push(tokens[index].clone());
        }
        // In the same step of the server as the release: it keeps the key for none of those that were killed, which nobody listens for.
        let (granted, _) = release(&mut holder, &server, &dead).await;
        assert!(!dead.iter().any(|token| granted.has(token)), "the key was granted to a waiter that was killed");
        let (next, _, took) = next_holder(&mut waiters).await;
        holder = next;
        figure(5, &format!("handoff past {killed} waiters that were killed"), took);
    }
    give_back(&mut holder).await;
    serve_all(&mut waiters).await;
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test]
async fn fault_04_update_of_a_stopped_holder_is_lost_without_a_fencing_token_and_refused_with_one() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-04-control"));
    let mut stopped = actor!(run, server.url(), "stopped").await;
    let mut next = actor!(run, server.url(), "next").await;
    let [read, write, count] = ["read", "write", "count"].map(|verb| format!("{verb} {}", server.address()));
    stopped.acquire("k", 2 * TTL).await;
    assert_eq!(stopped.tell(&read).await, "read 0");
    // It stops before it writes 1.
    let since = now();
    stopped.process.pause();
    stopped.process.send(&write).await;
    next.acquire("k", LONG).await;
    assert_eq!(next.tell(&read).await, "read 0");
    assert_eq!(next.tell(&write).await, "written");
    assert_eq!(next.tell(&count).await, "counted");
    stopped.process.resume();
    run.broken_since(since);
    // Its write arrives now, and one of the two updates of the unfenced number is lost; the register refuses its write.
    stopped.process.expect("written", SOON).await;
    assert_eq!(next.tell(&read).await, "read 1", "after two updates");
    assert_eq!(stopped.tell(&count).await, "stale");
    let value = server.call(&["HGET", "register:k", "value"]).await.text();
    assert_eq!(value.as_deref(), Some("1"), "after one");
    assert_eq!(next.tell("release").await, "released");
    run.settle(&server).await;
    judged(&run);
}
