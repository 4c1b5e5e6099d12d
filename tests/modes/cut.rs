//! Readers that are stopped or cut off: their shares end while others renew theirs, and they know before the writer begins.

use lock_tests::{FaultProxy, eventually};
use tokio::time::{sleep, timeout};

use crate::modes::*;

/// A reader is stopped for longer than its ttl, while another one goes on. It is continued before the other has gone, or
/// after the writer has come.
async fn reader_stopped(name: &str, while_shared: bool) {
    let (server, run) = (RedisServer::start().await, Run::new(name));
    let mut stopped = actor!(run, server.url(), "stopped").await;
    let mut other = actor!(run, server.url(), "other").await;
    let mut writer = actor!(run, server.url(), "writer").await;
    stopped.acquire_in(Mode::Shared, "k", TTL).await;
    other.acquire_in(Mode::Shared, "k", KEPT).await;
    writer.begin("k", LONG, LONG).await;
    has_places(&server, 1).await;
    let since = now();
    stopped.process.pause();
    let last = async || shares(&server, "k").await.into_values().max();
    let before = last().await;
    eventually(SOON, "the other one is renewed", async || last().await > before).await;
    eventually(SOON, "its share is over", async || shares(&server, "k").await.len() == 1).await;
    if !while_shared {
        releases(&mut other).await;
        holds(&mut writer, Mode::Exclusive, LONG).await;
    }
    let resumed = now();
    stopped.process.resume();
    run.broken_since(since);
    let (reason, at) = stopped.lost(SOON).await;
    assert_eq!(reason, "Expired");
    figure(48, "CONT to lost, of a reader", span(resumed, at));
    assert_eq!(stopped.tell("check").await, "check lost");
    // What it sent late, and what it sends to give its share back, leaves the others alone.
    assert_eq!(stopped.tell("release").await, "failed Lost(Expired)");
    sleep(TTL / 2).await;
    if while_shared {
        assert_eq!(shares(&server, "k").await.len(), 1, "no renewal revives the share");
        releases(&mut other).await;
        holds(&mut writer, Mode::Exclusive, LONG).await;
    }
    assert!(!server.call(&["GET", "k"]).await.is_nil(), "the key is the writer's alone");
    for reader in [&mut stopped, &mut other] {
        assert_eq!(reader.tell(r#"try k 1000 "shared""#).await, "busy");
    }
    releases(&mut writer).await;
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test]
async fn fault_48_stopped_reader_has_lost_its_share_when_it_goes_on_beside_a_writer() {
    reader_stopped("fault-48-writer", false).await;
}

#[tokio::test]
async fn fault_48_stopped_reader_has_lost_its_share_when_it_goes_on_beside_readers() {
    reader_stopped("fault-48-readers", true).await;
}

/// When a reader that was cut off did the last step of its work, when that was cancelled, and when the writer behind it began,
/// on the clock of histories.
async fn reader_cut_off(name: &str) -> (f64, f64, f64) {
    let (server, run) = (RedisServer::start().await, Run::new(name));
    let proxy = FaultProxy::start(server.address()).await;
    let mut cut = actor!(run, server.url_at(&proxy.address()), "cut").await;
    let mut other = actor!(run, server.url(), "other").await;
    let mut writer = actor!(run, server.url(), "writer").await;
    cut.process.send(&format!(r#"work k {} 600000 "shared""#, KEPT.as_millis())).await;
    cut.held(SOON).await;
    let token = shares(&server, "k").await.into_keys().next().expect("it shares the key");
    other.acquire_in(Mode::Shared, "k", KEPT).await;
    writer.begin("k", LONG, LONG).await;
    has_places(&server, 1).await;
    renewed(&server, &token).await;
    let since = now();
    proxy.hole();
    sleep(TTL / 4).await; // what was under way has arrived
    let ends = shares(&server, "k").await[&token];
    releases(&mut other).await;
    let granted = granted_at(holds(&mut writer, Mode::Exclusive, LONG).await);
    assert!(granted >= ends, "{} ms too early", ends - granted);
    figure(49, "end of the share of a reader that is cut off to the writer", ms(granted - ends));
    let cancelled = cut.process.expect("cancelled ", SOON).await;
    let (last, at) = cancelled.split_once(' ').expect("two times");
    let [last, at] = [last, at].map(|time| time.parse().expect("a time is a number"));
    proxy.pass();
    run.broken_since(since);
    cut.process.expect("failed Lost(Expired)", SOON).await;
    sleep(TTL / 2).await; // what it sent meanwhile arrives
    releases(&mut writer).await;
    run.settle(&server).await;
    let history = judged(&run);
    let began = history.events().iter().find(|event| event.process == "writer").and_then(|event| event.t_return);
    (last, at, began.expect("the writer began"))
}

#[tokio::test]
async fn fault_49_work_of_a_reader_that_is_cut_off_is_cancelled_before_the_writer_begins() {
    let mut tried = Vec::new();
    for attempt in 0..20 {
        let (last, cancelled, began) = reader_cut_off(&format!("fault-49-{attempt}")).await;
        assert!(last < began, "it works {} ms beside the writer", last - began);
        figure(49, "last step of a reader that is cut off to the writer", span(last, began));
        if cancelled < began {
            figure(49, "its work cancelled to the writer", span(cancelled, began));
            return;
        }
        // A busy machine may wake it late once, but not each time. It does nothing until then.
        tried.push(cancelled - began);
    }
    panic!("it was cancelled {tried:?} ms after the writer began");
}

#[tokio::test]
async fn fault_49_late_renewal_of_a_share_that_is_over_does_not_keep_the_writer_out() {
    for attempt in 0..20 {
        if renewal_is_late(&format!("fault-49-late-{attempt}")).await {
            return;
        }
    }
    panic!("no renewal was on its way when the reader was stopped");
}

/// Whether a renewal of a reader arrived after its share was over. On a busy machine the reader may be stopped too early, or so
/// late that it has given the connection up with what was on its way.
async fn renewal_is_late(name: &str) -> bool {
    // It renews after a third of that, and gives the connection up when another third has passed.
    let ttl = KEPT;
    let (server, run) = (RedisServer::start().await, Run::new(name));
    let proxy = FaultProxy::start(server.address()).await;
    let mut cut = actor!(run, server.url_at(&proxy.address()), "cut").await;
    let mut other = actor!(run, server.url(), "other").await;
    let mut writer = actor!(run, server.url(), "writer").await;
    cut.acquire_in(Mode::Shared, "k", ttl).await;
    let token = shares(&server, "k").await.into_keys().next().expect("it shares the key");
    other.acquire_in(Mode::Shared, "k", KEPT).await;
    writer.begin("k", LONG, LONG).await;
    has_places(&server, 1).await;
    // Right after a renewal: the next one is sent three seconds later, and given up three seconds after that.
    renewed(&server, &token).await;
    let since = now();
    proxy.hole(); // what is sent now is kept, and arrives when the network is whole again
    sleep(ttl / 2).await;
    cut.process.pause(); // so that it does not clean up
    eventually(SOON, "its share is over", async || !shares(&server, "k").await.contains_key(&token)).await;
    let mut monitor = server.connect().await.expect("the server answers");
    monitor.call(&["MONITOR"]).await.expect("it is told of each command");
    proxy.pass();
    let mut renewal = async || {
        loop {
            let told = monitor.read().await.expect("it goes on").text().unwrap_or_default();
            if told.contains("\"renew\"") && told.contains(&token) {
                return;
            }
        }
    };
    if timeout(ms(10_000), renewal()).await.is_err() {
        return false;
    }
    assert!(!shares(&server, "k").await.contains_key(&token), "the share is revived");
    let released = Instant::now();
    releases(&mut other).await;
    holds(&mut writer, Mode::Exclusive, LONG).await;
    figure(49, "release of the last reader to the writer, after a late renewal", released.elapsed());
    cut.process.resume();
    run.broken_since(since);
    cut.lost(SOON).await;
    releases(&mut writer).await;
    run.settle(&server).await;
    judged(&run);
    true
}
