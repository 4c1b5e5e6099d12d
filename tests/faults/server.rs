//! A server that dies, stops, hangs or forgets.

use std::{fs, io, path::Path};

use lock_core::{End, ErrorKind, LossReason};
use lock_tests::{
    Dice, RedisServer, Reply, actor, eventually, eventually_some, figure,
    history::{Checker, Mark, Op, Outcome, Run, now},
    is_redis_7, team,
};
use tokio::time::{sleep, timeout};

use crate::{
    faults::*,
    patient,
    trust::{requests_of_a_handoff, requests_of_a_handoff_after},
};

/// Kills the server while a team contends, and starts it again at once; `between` is done while it is down. Returns
/// what the checker has to excuse if data was lost. The registers are elsewhere, and stay.
async fn killed_and_started(run: &Run, server: &mut RedisServer, fault: u32, between: impl AsyncFnOnce(&Path)) -> Mark {
    let registers = RedisServer::start().await;
    let (url, register) = (format!("url={}", server.url()), format!("register={}", registers.address()));
    let mut team = team!(run, "contend", 3, "p", [url, register, "tasks=4", "keys=2", "ttl=5000", "hold=10"]).await;
    team.go().await;
    sleep(ms(700)).await;
    each_has_another(&mut team).await;
    let killed = now();
    server.stop();
    between(server.folder()).await;
    server.start_again().await;
    let up = now();
    sleep(ms(3_000)).await;
    each_has_another(&mut team).await;
    run.broken_since(killed);
    let rounds = team.stop(LONG).await;
    run.settle(server).await;
    let history = run.history().expect("the files can be read");
    let recovered = span(up, first_grant(&history, up));
    figure(fault, "next grant after the server was up again", recovered);
    assert!(recovered < Duration::MAX, "nobody was granted anything");
    assert!(rounds.iter().all(|rounds| *rounds > 0), "{rounds:?}");
    // What a process had is passed on inside it for 100 ms, whether the server is up again or not: `lock-core/tests/turns.rs` holds it to that.
    // Here a process may not have its turn for a while after it has decided so.
    let stood_still = |process| history.stood_still(process, killed, now());
    let stalled = ["p0", "p1", "p2"].map(stood_still).into_iter().fold(0.0, f64::max);
    Mark { key: None, from: killed, to: up.max(killed + 100.0) + STALLED + stalled }
}

#[tokio::test]
async fn fault_07_server_killed_without_persistence() {
    let (mut server, run) = (RedisServer::start().await, Run::new("fault-07"));
    let mark = killed_and_started(&run, &mut server, 7, async |_: &Path| {}).await;
    // Two holders across the loss are documented. Whatever the server grants has a larger fencing token than before.
    judged_by(&run, Checker::new().mark(mark));
}

#[tokio::test]
async fn fault_08_server_killed_that_writes_everything_down_at_once() {
    let server = RedisServer::builder().option("--appendonly", "yes").option("--appendfsync", "always");
    let (mut server, run) = (server.start().await, Run::new("fault-08"));
    killed_and_started(&run, &mut server, 8, async |_: &Path| {}).await;
    judged(&run);
}

#[tokio::test]
async fn fault_08_lease_survives_a_server_that_writes_everything_down_at_once() {
    let server = RedisServer::builder().option("--appendonly", "yes").option("--appendfsync", "always");
    let (mut server, run) = (server.start().await, Run::new("fault-08-lease"));
    let (_manager, client) = client(&run, &server.url(), "p0").await;
    let mut held = client.acquire("k", LONG, |request| request).await.expect("the key is free");
    let before = now();
    server.restart().await;
    run.broken_since(before);
    let mut other = actor!(run, server.url(), "other").await;
    assert_eq!(other.tell("try k 1000").await, "busy");
    eventually(SOON, "it is renewed again", async || held.extend(LONG).await.is_ok()).await;
    assert!(held.check());
    held.release().await.expect("it was held all the time");
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test]
async fn fault_09_server_that_loses_the_last_second() {
    if !is_redis_7("fault_09, whose files are another one") {
        return;
    }
    let server = RedisServer::builder().option("--appendonly", "yes").option("--appendfsync", "everysec");
    let (mut server, run) = (server.start().await, Run::new("fault-09"));
    let saved = tempfile::tempdir().expect("a folder can be made");
    let copy = saved.path().join("files");
    // As after a power loss: what it had written when the team began is all that is there.
    let files = server.folder().join("appendonlydir");
    copied(&files, &copy).expect("files can be copied");
    let mark = killed_and_started(&run, &mut server, 9, async |folder: &Path| {
        let files = folder.join("appendonlydir");
        fs::remove_dir_all(&files).expect("files can be removed");
        copied(&copy, &files).expect("files can be copied");
    })
    .await;
    judged_by(&run, Checker::new().mark(mark));
}

fn copied(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

#[tokio::test]
async fn fault_10_server_stopped_for_less_than_the_ttl() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-10-short"));
    let mut holder = actor!(run, server.url(), "holder").await;
    // Of what is left at worst, two thirds, half is for what else the machine does.
    let ttl = 20 * TTL;
    holder.acquire("k", ttl).await;
    let since = now();
    server.pause();
    sleep(4 * TTL).await;
    server.resume();
    run.broken_since(since);
    eventually(SOON, "it has more left than before the stop", async || {
        let checked = holder.tell("check").await;
        let left = checked.strip_prefix("check held ").unwrap_or_else(|| panic!("a false loss: {checked}"));
        left.parse::<u128>().expect("a number") > (ttl - 4 * TTL).as_millis()
    })
    .await;
    assert_eq!(holder.tell("release").await, "released");
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test]
async fn fault_10_server_stopped_for_longer_than_the_ttl() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-10-long"));
    let mut holder = actor!(run, server.url(), "holder").await;
    let mut waiter = actor!(run, server.url(), "waiter").await;
    let (_manager, client) = client(&run, &server.url(), "p0").await;
    let ttl = LASTS;
    holder.acquire("k", ttl).await;
    waiter.begin("k", LONG, LONG).await;
    has_places(&server, 1).await;
    let since = now();
    server.pause();
    let asked = Instant::now();
    let error = client.acquire("other", LONG, |request| request).await.expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::Backend);
    figure(10, "time to error, limit 15 s", asked.elapsed());
    // Its deadline was before that, as the history shows; it says so as soon as its process has its turn.
    let (reason, _) = holder.lost(SOON).await;
    assert_eq!(reason, "Expired");
    sleep((ttl + TTL).saturating_sub(span(since, now()))).await;
    let resumed = now();
    server.resume();
    // The waiter may have gone through failed requests meanwhile: then it says so, and one of the next is served, as soon as the server is
    // known to be back.
    let mut got = waiter.process.line(SOON).await.unwrap_or_default();
    while got == "refused Backend" && span(resumed, now()) < SOON {
        waiter.begin("k", LONG, LONG).await;
        got = waiter.process.line(SOON).await.unwrap_or_default();
    }
    assert!(got.starts_with("held "), "{got}");
    run.broken_since(since);
    assert_eq!(waiter.tell("release").await, "released");
    assert_eq!(holder.tell("release").await, "failed Lost(Expired)");
    // The server has carried out the request that got no answer; the clean-up tries once a second at least.
    run.settle(&server).await;
    let history = judged(&run);
    assert!(first_grant(&history, since) >= resumed, "a lease was granted by a server that stood still");
    figure(10, "next grant after CONT", span(resumed, first_grant(&history, since)));
}

#[tokio::test]
async fn fault_11_server_that_hangs_costs_the_limit_of_a_request() {
    let hangs: [&[&str]; 3] =
        [&["DEBUG", "SLEEP", "4"], &["CLIENT", "PAUSE", "4000", "ALL"], &["CLIENT", "PAUSE", "4000", "WRITE"]];
    let (server, run) = (RedisServer::start().await, Run::new("fault-11"));
    let (_patient, client) = client(&run, &server.url(), "p0").await;
    let mut held = client.acquire("held", LONG, |request| request.renew_every(OFTEN)).await.expect("the key is free");
    let (_manager, other) = client_within(TTL, &run, &server.url(), "p1").await;
    eventually(SOON, "the connection is used", async || other.acquire("k", TTL, |request| request).await.is_ok()).await;
    let mut longest = Duration::ZERO;
    for hang in hangs {
        let since = now();
        // A busy machine may send the request when the hang is over: then once more.
        let mut error = None;
        for _ in 0..20 {
            let mut nemesis = server.connect().await.expect("connects");
            nemesis.send(hang).await.expect("is sent");
            if hang[0] == "CLIENT" {
                let answer = nemesis.read().await.expect("is answered, and hangs from then on");
                assert_eq!(answer.text().as_deref(), Some("OK"));
            }
            let asked = Instant::now();
            error = other.acquire("k", TTL, |request| request).await.err();
            if error.is_some() {
                longest = longest.max(asked.elapsed());
                break;
            }
        }
        let error = error.expect("nobody answers");
        assert_eq!(error.kind(), ErrorKind::Backend, "{hang:?}: {error}");
        eventually(SOON, "it answers again", async || match other.acquire("k", TTL, |request| request).await {
            Ok(held) => held.release().await.is_ok(),
            Err(_) => false,
        })
        .await;
        run.broken_since(since);
        assert!(held.check(), "{hang:?}");
    }
    figure(11, "longest time to error, limit 1 s", longest);
    held.release().await.expect("it was held all the time");
    run.settle(&server).await;
    let history = judged(&run);
    // None was acquired with nothing left.
    let acquired = history.events().iter().filter(|event| event.op == Op::Acquire && event.succeeded());
    assert!(acquired.into_iter().all(|event| event.deadline > event.t_return));
}

#[tokio::test]
async fn fault_12_busy_script_is_an_error_that_can_be_retried() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-12"));
    server.call(&["CONFIG", "SET", "busy-reply-threshold", "100"]).await;
    let (_manager, client) = client(&run, &server.url(), "p0").await;
    client.acquire("k", LONG, |request| request).await.expect("free").release().await.expect("held");
    let mut nemesis = server.connect().await.expect("connects");
    let since = now();
    nemesis.send(&["EVAL", "while true do end", "0"]).await.expect("is sent");
    let mut killer = server.connect().await; // may itself be answered with BUSY
    eventually(SOON, "the server says that it is busy", async || {
        if killer.is_err() {
            killer = server.connect().await;
        }
        match &mut killer {
            Ok(killer) => matches!(killer.call(&["PING"]).await, Ok(Reply::Error(error)) if error.starts_with("BUSY")),
            Err(_) => false,
        }
    })
    .await;
    let error = client.acquire("k", TTL, |request| request.wait(TTL)).await.expect_err("the server is busy");
    assert!(error.retry_after().is_some(), "{error}");
    println!("{error}");
    let killed = Instant::now();
    let answer = killer.expect("connected").call(&["SCRIPT", "KILL"]).await.expect("is answered");
    assert_eq!(answer.text().as_deref(), Some("OK"));
    // The server says OK before the script has ended, and BUSY until then.
    let held = eventually_some(SOON, "the server has time again", async || {
        client.acquire("k", LONG, |request| request).await.ok()
    })
    .await;
    figure(12, "next grant after SCRIPT KILL", killed.elapsed());
    run.broken_since(since);
    held.release().await.expect("held");
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_28_connections_killed_again_and_again_cost_no_lease_and_no_wake_up() {
    let (server, registers, run) = (RedisServer::start().await, RedisServer::start().await, Run::new("fault-28"));
    let (one, two) = (patient::connect(server.url()).await.expect("connects"), patient::connect(server.url()).await);
    let two = two.expect("connects");
    let (url, register) = (format!("url={}", server.url()), format!("register={}", registers.address()));
    let mut team = team!(run, "contend", 3, "p", [url, register, "tasks=4", "keys=2", "hold=5"]).await;
    team.go().await;
    let start = Instant::now();
    let since = now();
    let mut kills = 0;
    while start.elapsed() < for_seconds(2) {
        kills += server.kill_clients().await;
        sleep(ms(100)).await;
    }
    run.broken_since(since);
    // Then, without kills, everybody goes on.
    let calm = now();
    // One of each manager; while they are made there may be others.
    let few = async || Some(server.client_list().await.len()).filter(|clients| *clients <= 2 * 5);
    let clients = eventually_some(SOON, "connections do not add up", few).await;
    for _ in 0..3 {
        each_has_another(&mut team).await;
    }
    let rounds = team.stop(LONG).await;
    run.settle(&server).await;
    let history = judged(&run);
    let lost = lost_for_nothing(&history);
    println!("{kills} connections killed, {clients} at the end, {rounds:?} rounds, {lost} leases lost");
    assert_eq!(lost, 0);
    let handoffs = handoffs(&history, calm);
    println!("{} handoffs in {:?}", handoffs.len(), handoffs.iter().sum::<Duration>());
    assert!(!handoffs.is_empty(), "nobody was served");
    // A check finds a free key, too, but takes a request. So a waiter was called if the handoff takes none: after all these kills,
    // and after one more while it waits.
    let managers = [&one, &two];
    assert_eq!(requests_of_a_handoff(&server, "0", managers, 2).await, 2, "the two releases");
    let killed = async || {
        server.kill_clients().await;
        let is_back = async || server.client_list().await.len() >= 2;
        eventually(SOON, "both are connected again", is_back).await;
        sleep(ms(100)).await; // what a new connection asks for is not counted; if it is, the next round counts
    };
    let requests = requests_of_a_handoff_after(killed, &server, "0", managers, 2).await;
    assert_eq!(requests, 2, "a waiter is called over its new connection");
    drop((one, two));
    assert!(rounds.iter().all(|rounds| *rounds > 0), "{rounds:?}");
    eventually(SOON, "no connection is left", async || server.client_list().await.is_empty()).await;
}

#[tokio::test]
async fn fault_35_scripts_forgotten_all_the_time_are_not_noticed() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-35"));
    let url = format!("url={}", server.url());
    let mut team = team!(run, "contend", 2, "p", [url, "tasks=4", "keys=2", "hold=5", "extends=20"]).await;
    team.go().await;
    let mut nemesis = server.connect().await.expect("connects");
    let (start, mut flushes) = (Instant::now(), 0);
    while start.elapsed() < for_seconds(2) {
        nemesis.call(&["SCRIPT", "FLUSH"]).await.expect("is answered");
        flushes += 1;
        sleep(ms(10)).await;
    }
    each_has_another(&mut team).await;
    let rounds = team.stop(LONG).await;
    run.settle(&server).await;
    let history = judged(&run);
    // What fails of a lease that was lost is no error of its own.
    let unknown = history.events().iter().filter(|event| event.result == Outcome::Info).count();
    let errors = unknown + lost_for_nothing(&history);
    println!("{flushes} flushes, {rounds:?} rounds, {errors} errors");
    assert_eq!(errors, 0);
    assert!(rounds.iter().all(|rounds| *rounds > 0) && flushes > 0, "{flushes} flushes, {rounds:?} rounds");
}

/// Whatever is forgotten is asked for once more: in an order that leaves nothing of a future that was dropped meanwhile.
#[tokio::test]
async fn fault_35_futures_dropped_while_scripts_are_forgotten_leave_nothing() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-35-drops"));
    let url = format!("url={}", server.url());
    let drops = ["drops=50", "drop_within=6", "wait=10", "ttl=600000"];
    let mut team =
        team!(run, "contend", 2, "p", [url, "tasks=8", "keys=2", drops[0], drops[1], drops[2], drops[3]]).await;
    team.go().await;
    let mut nemesis = server.connect().await.expect("connects");
    let start = Instant::now();
    let written = |name: &str| fs::read_to_string(run.folder().join(name)).unwrap_or_default();
    let is_one_dropped = || ["p0.jsonl", "p1.jsonl"].into_iter().any(|name| written(name).contains(r#""info""#));
    while start.elapsed() < for_seconds(2) || start.elapsed() < SOON && !is_one_dropped() {
        nemesis.call(&["SCRIPT", "FLUSH"]).await.expect("is answered");
        sleep(ms(1)).await;
    }
    let rounds = team.stop(LONG).await;
    // The ttl is far longer than this: nothing is left to expire.
    let settled = run.settle(&server).await;
    let history = judged(&run);
    let dropped = history.events().iter().filter(|event| event.result == Outcome::Info).count();
    println!("{rounds:?} rounds, {dropped} dropped, nothing left after {settled:?}");
    assert!(dropped > 0, "{dropped} dropped, {rounds:?}");
}

#[tokio::test]
async fn fault_41_holder_whose_data_is_deleted_is_told() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-41"));
    let (manager, client) = client(&run, &server.url(), "p0").await;
    let mut checker = Checker::new();
    let mut longest = Duration::ZERO;
    let mut dice = Dice::named("fault_41");
    for round in 0..4 {
        let often = |request: lock_core::LockRequest| request.renew_every(TTL);
        let mut held = client.acquire("k", LONG, often).await.expect("the key is free");
        sleep(dice.between(Duration::ZERO, 2 * TTL)).await; // before or after some renewals
        let from = now();
        let deletes: &[&str] = if round % 2 == 0 { &["FLUSHALL"] } else { &["DEL", "k"] };
        server.call(deletes).await;
        let to = now();
        checker = checker.mark(Mark { key: Some("k".to_owned()), from, to });
        let end = timeout(SOON, held.guard().ended()).await.expect("it is told");
        longest = longest.max(span(to, now()));
        assert_eq!(end, End::Lost(LossReason::Taken));
        assert!(!held.check());
        // Somebody else's lease is not touched by what the former holder does.
        let other = lock_tests::history::Recorded::new(&manager, &run.recorder("p1"), "");
        let mut next = other.acquire("k", LONG, |request| request).await.expect("the key is free");
        let error = held.release().await.expect_err("it is lost");
        assert_eq!(error.kind(), ErrorKind::Lost(LossReason::Taken));
        assert!(next.check());
        next.release().await.expect("held");
    }
    figure(41, "deleted to told, renewed every second", longest);
    run.settle(&server).await;
    judged_by(&run, checker);
}

/// For how long a process of a team may be kept from its turn by others of the machine, in ms, beside what its history shows.
const STALLED: f64 = 1_500.0;
