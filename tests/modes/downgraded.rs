//! Exclusive leases that become shared ones, beside readers and writers that wait.

use lock_tests::{eventually, history::Recorded};

use crate::modes::*;
use crate::patient;

#[tokio::test]
async fn a_writer_that_lets_others_share_is_followed_by_readers_and_by_no_writer() {
    let (server, run) = (RedisServer::start().await, Run::new("downgraded"));
    let manager = patient::connect(&server.url()).await.expect("connects");
    let other = patient::connect(&server.url()).await.expect("connects");
    let client = Recorded::new(&manager, &run.recorder("p0"), "");
    let recorder = run.recorder("p1");
    for round in 0..3 {
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
        let reader = waits(format!("reads-{round}"), Mode::Shared);
        places(&server, 1).await;
        let next = waits(format!("writes-{round}"), Mode::Exclusive);
        places(&server, 2).await;
        let shared = writer.downgrade().await.expect("held");
        assert!(shared.fence() > number);
        assert_eq!(reader.await.expect("no panic"), shared.fence());
        assert!(!next.is_finished(), "it waits for the reader that was a writer");
        let number = shared.fence();
        shared.release().await.expect("held");
        assert!(next.await.expect("no panic") > number);
    }
    run.settle(&server).await;
    let history = judged(&run);
    let downgrades = history.events().iter().filter(|event| event.from.is_some()).count();
    assert_eq!(downgrades, 3, "the judge has seen them");
}

/// Waits until so many have a place.
async fn places(server: &RedisServer, count: usize) {
    eventually(SOON, format!("{count} places"), async || {
        let fields = server.call(&["HKEYS", "{0}lock-core:queue:k"]).await;
        fields.items().iter().filter_map(Reply::text).filter(|field| field.starts_with('#')).count() == count
    })
    .await;
}
