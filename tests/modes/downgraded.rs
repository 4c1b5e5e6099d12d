//! Exclusive leases that become shared ones, beside readers and writers that wait.

use lock_tests::{eventually, eventually_some, history::Recorded};

use crate::modes::*;
use crate::patient;

#[tokio::test]
async fn a_writer_that_lets_others_share_is_followed_by_readers_and_by_no_writer() {
    let (server, run) = (RedisServer::start().await, Run::new("downgraded"));
    let manager = patient::connect(&server.url()).await.expect("connects");
    let other = patient::connect(&server.url()).await.expect("connects");
    let client = Recorded::new(&manager, &run.recorder("p0"), "");
    let recorder = run.recorder("p1");
    let (mut rounds, mut told) = (0, 0);
    while told < 3 {
        assert!(rounds < 60, "the machine stands still all the time");
        let writer = client.acquire("k", LONG, |request| request).await.expect("the key is free");
        let number = writer.fence();
        let waits = |task: String, mode| {
            let client = Recorded::new(&other, &recorder, &task);
            tokio::spawn(async move {
                let held = client.acquire_in(mode, "k", LONG, |request| request.wait(LONG)).await.expect("its turn");
                let number = held.fence();
                held.release().await.expect("held");
                number
            })
        };
        let reader = waits(format!("reads-{rounds}"), Mode::Shared);
        places(&server, 1).await;
        let next = waits(format!("writes-{rounds}"), Mode::Exclusive);
        places(&server, 2).await;
        let shared = writer.downgrade().await.expect("held");
        assert!(shared.fence() > number);
        rounds += 1;
        // A process that stands still for a second loses its turn, and comes behind the writer: then a round says nothing.
        let is_behind = async || {
            eventually_some(SOON, "the reader comes in, or later", async || {
                if reader.is_finished() { Some(false) } else { is_reader_behind(&server).await.then_some(true) }
            })
            .await
        };
        let (number, is_behind) = (shared.fence(), is_behind().await);
        if is_behind {
            shared.release().await.expect("held");
            reader.await.expect("no panic");
            next.await.expect("no panic");
            continue;
        }
        assert_eq!(reader.await.expect("no panic"), number);
        assert!(!next.is_finished(), "it waits for the reader that was a writer");
        shared.release().await.expect("held");
        assert!(next.await.expect("no panic") > number);
        told += 1;
    }
    run.settle(&server).await;
    let history = judged(&run);
    let downgrades = history.events().iter().filter(|event| event.from.is_some()).count();
    assert_eq!(downgrades, rounds, "the judge has seen them");
}

/// Whether the reader has a place behind that of the writer.
async fn is_reader_behind(server: &RedisServer) -> bool {
    let fields = server.call(&["HGETALL", "{0}lock-core:queue:k"]).await;
    let texts: Vec<_> = fields.items().iter().filter_map(Reply::text).collect();
    let mut places: Vec<(u64, bool)> = texts
        .chunks_exact(2)
        .filter_map(|pair| {
            let ticket = pair[0].strip_prefix('#')?.parse().ok()?;
            Some((ticket, pair[1].split(' ').next()?.ends_with(":shared")))
        })
        .collect();
    places.sort_unstable();
    places.last().is_some_and(|(_, is_reader)| *is_reader) && places.len() == 2
}

/// Waits until so many have a place.
async fn places(server: &RedisServer, count: usize) {
    eventually(SOON, format!("{count} places"), async || {
        let fields = server.call(&["HKEYS", "{0}lock-core:queue:k"]).await;
        fields.items().iter().filter_map(Reply::text).filter(|field| field.starts_with('#')).count() == count
    })
    .await;
}
