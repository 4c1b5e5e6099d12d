//! Holders that are killed: what they had ends with their own ttl.

use lock_tests::eventually;
use tokio::time::sleep;

use crate::modes::{state::next_holder, *};

/// A reader is killed while a writer waits and others go on for a while. Returns when its share ended and when the writer was
/// granted the key, in ms by the server's clock, and how long the writer waited for the last release.
async fn reader_killed(name: &str, others_stay: Duration) -> (u64, u64, Duration) {
    let (server, run) = (RedisServer::start().await, Run::new(name));
    let mut dead = actor!(run, server.url(), "dead").await;
    let mut others = [actor!(run, server.url(), "long").await, actor!(run, server.url(), "renewing").await];
    let mut writer = actor!(run, server.url(), "writer").await;
    let fence = dead.acquire_in(Mode::Shared, "k", KEPT).await;
    let token = shares(&server, "k").await.into_keys().next().expect("it shares the key");
    for (other, ttl) in others.iter_mut().zip([LONG, KEPT]) {
        assert_eq!(other.acquire_in(Mode::Shared, "k", ttl).await, fence);
    }
    writer.begin("k", LONG, LONG).await;
    has_places(&server, 1).await;
    renewed(&server, &token).await;
    dead.kill(&run).await;
    let ends = shares(&server, "k").await[&token];
    sleep(others_stay).await;
    let left = shares(&server, "k").await.get(&token).copied();
    assert!(left.is_none_or(|left| left == ends), "{left:?} instead of {ends}: others renewed it");
    for other in &mut others {
        releases(other).await;
    }
    let released = Instant::now();
    let fence = holds(&mut writer, Mode::Exclusive, LONG).await;
    let took = released.elapsed();
    releases(&mut writer).await;
    run.settle(&server).await;
    judged(&run);
    (ends, granted_at(fence), took)
}

#[tokio::test]
async fn fault_47_share_of_a_killed_reader_ends_with_its_own_ttl_whatever_others_renewed() {
    let (ends, granted, _) = reader_killed("fault-47-dead-is-last", TTL).await;
    assert!(granted >= ends, "{} ms too early", ends - granted);
    figure(47, "end of the share of a killed reader to the writer", ms(granted - ends));
}

#[tokio::test]
async fn fault_47_readers_that_outlive_a_killed_one_keep_their_shares_and_the_writer_waits_for_them() {
    let (ends, granted, took) = reader_killed("fault-47-dead-is-first", KEPT + TTL).await;
    assert!(granted > ends + 500, "the others held for longer");
    figure(47, "release of the last reader to the writer, a dead one before", took);
}

#[tokio::test]
async fn fault_50_permits_of_a_killed_holder_come_back_with_its_ttl_and_no_others() {
    let of_three = |take| Mode::Permits { total: 3, take };
    let (server, run) = (RedisServer::start().await, Run::new("fault-50"));
    let mut dead = actor!(run, server.url(), "dead").await;
    let mut other = actor!(run, server.url(), "other").await;
    dead.acquire_in(of_three(2), "k", KEPT).await;
    let token = shares(&server, "k").await.into_keys().next().expect("it has permits");
    other.acquire_in(of_three(1), "k", KEPT).await;
    let mut waiters = Vec::new();
    for index in 0..3 {
        waiters.push(actor!(run, server.url(), &format!("w{index}")).await);
        waiters[index].begin_in(of_three(1), "k", KEPT, LONG).await;
        has_places(&server, index + 1).await;
    }
    renewed(&server, &token).await;
    dead.kill(&run).await;
    let ends = shares(&server, "k").await[&token];
    // The first two, unless the machine has let one stand still when it was its turn.
    let mut held = Vec::new();
    while held.len() < 2 {
        let (mut next, fence, _) = next_holder(&mut waiters).await;
        if !keeps(&mut next).await {
            next.begin_in(of_three(1), "k", KEPT, LONG).await;
            waiters.push(next);
            continue;
        }
        let granted = granted_at(fence);
        assert!(granted >= ends, "{} ms too early", ends - granted);
        figure(50, "end of the permits of a killed holder to the next", ms(granted - ends));
        held.push(next);
    }
    // Three are taken, and renewed for longer than their ttl.
    let before = shares(&server, "k").await;
    assert_eq!(before.len(), 3);
    let renewed = async || {
        let now = shares(&server, "k").await;
        let is_renewed =
            |(token, was): (&String, &u64)| now.get(token).is_some_and(|end| u128::from(end - was) > KEPT.as_millis());
        before.iter().all(is_renewed)
    };
    eventually(SOON, "each is renewed", renewed).await;
    let mut third = waiters.pop().expect("there are three");
    let before = server.clock().await;
    releases(&mut other).await;
    let granted = granted_at(holds(&mut third, of_three(1), KEPT).await);
    assert!(granted >= before, "it came {} ms before a permit was given back", before - granted);
    held.push(third);
    for holder in &mut held {
        releases(holder).await;
    }
    run.settle(&server).await;
    judged(&run);
}
