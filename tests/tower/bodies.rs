//! Bodies under the lock: slow readers, readers that stop, and streams both ways.

use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt, combinators::BoxBody};
use hyper::{StatusCode, body::Incoming};
use lock_tests::{SOON, eventually};
use tokio::{
    sync::mpsc::unbounded_channel,
    time::{Duration, Instant, sleep},
};

use crate::tower::shop::{BOTH, Client, Given, KEY, Shop, nothing, soon};

/// Looks again and again for a while.
async fn stays_locked(shop: &Shop, why: &str) {
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        assert!(shop.is_locked().await, "{why}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Looks again and again until the lease was renewed twice.
async fn stays_renewed(shop: &Shop, why: &str) {
    let (mut left, mut renewals) = (i64::MAX, 0);
    eventually(SOON, format!("it is renewed {why}"), async || {
        let now = shop.redis.call(&["PTTL", KEY]).await.integer().expect("a number");
        assert!(now >= 0, "it is locked {why}");
        renewals += u32::from(std::mem::replace(&mut left, now) < now);
        renewals == 2
    })
    .await;
}

async fn next(body: &mut Incoming) -> Bytes {
    soon(body.frame()).await.expect("a frame").expect("no error").into_data().expect("data")
}

/// Reads to the end, where HTTP/2 may say so in an empty frame.
async fn ends(body: &mut Incoming) {
    while let Some(frame) = soon(body.frame()).await {
        assert_eq!(frame.expect("no error").into_data().expect("data"), "");
    }
}

#[tokio::test]
async fn a_slow_reader_keeps_the_key_to_the_end_of_the_body() {
    for version in BOTH {
        let mut shop = Shop::open().await;
        let mut client = Client::connect(&shop, version).await;
        let mut body = client.post("/renewed/stream", nothing()).await.expect("an answer").into_body();
        shop.give("one");
        assert_eq!(next(&mut body).await, "one");
        stays_renewed(&shop, "between two frames").await;
        shop.give("two");
        assert_eq!(next(&mut body).await, "two");
        shop.frames = None;
        ends(&mut body).await;
        assert!(!shop.is_locked().await, "{version:?}: the end of the body waits for the release");
    }
}

#[tokio::test]
async fn a_reader_that_stops_keeps_the_key_until_it_goes_and_the_server_does_not_fill_up() {
    for version in BOTH {
        let shop = Shop::open().await;
        let mut client = Client::connect(&shop, version).await;
        let answer = client.post("/flood", nothing()).await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::OK);
        stays_locked(&shop, "as long as the client is there").await;
        // What was sent is in the buffers of the sockets: 64 KiB a chunk.
        let chunks = shop.floor.chunks();
        assert!(chunks < 1_000, "{version:?}: the body is not asked for more than the client takes: {chunks}");
        assert_eq!(shop.floor.inside(), 1);
        drop((answer, client));
        shop.until_idle("the client has gone").await;
        shop.until_free("the client has gone").await;
        shop.serves_the_next(version).await;
    }
}

#[tokio::test]
async fn max_hold_frees_the_key_of_a_reader_that_stopped_and_it_sees_that_its_body_is_broken_off() {
    for version in BOTH {
        let shop = Shop::open().await;
        let mut client = Client::connect(&shop, version).await;
        let mut body = client.post("/flood/bounded", nothing()).await.expect("an answer").into_body();
        shop.until_free("max_hold has passed, and the client has not read a byte").await;
        shop.serves_the_next(version).await;
        assert!(client.is_open());

        let ended = soon(async {
            loop {
                match body.frame().await {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Some(error),
                    None => return None,
                }
            }
        });
        ended.await.unwrap_or_else(|| panic!("{version:?}: it ended as if all were there"));
        shop.until_idle("the body was dropped").await;
    }
}

/// Sends half of an upload and then nothing, and sees that another request is served while the client is still there.
async fn stalls(path: &str, answered: StatusCode) {
    for version in BOTH {
        let shop = Shop::open().await;
        let mut client = Client::connect(&shop, version).await;
        let (frames, given) = unbounded_channel();
        frames.send(Frame::data(Bytes::from_static(b"half of it"))).expect("it is open");
        let upload = client.post(path, BoxBody::new(Given(given)));
        let next = async {
            eventually(SOON, "the handler reads", async || shop.floor.inside() == 1).await;
            // It would wait for minutes.
            shop.serves_the_next(version).await;
        };
        let (answer, ()) = tokio::join!(upload, next);
        let answer = answer.expect("an answer");
        assert_eq!(answer.status(), answered, "{path}, {version:?}");
        assert!(!answer.headers().contains_key("retry-after"), "{path}, {version:?}: part of it may be done");
        shop.until_idle("the handler has ended").await;
        drop(frames);
    }
}

#[tokio::test]
async fn bad_input_72_max_hold_frees_the_key_of_an_upload_that_stalls() {
    stalls("/upload/bounded", StatusCode::INTERNAL_SERVER_ERROR).await;
}

#[tokio::test]
async fn bad_input_72_a_time_out_outside_or_one_of_the_body_frees_the_key_of_an_upload_that_stalls() {
    stalls("/upload/timed", StatusCode::REQUEST_TIMEOUT).await;
    stalls("/upload/no_pause", StatusCode::BAD_REQUEST).await;
}

#[tokio::test]
async fn streams_both_ways_are_under_one_lease_to_their_end() {
    for version in BOTH {
        let shop = Shop::open().await;
        let mut client = Client::connect(&shop, version).await;
        let (frames, given) = unbounded_channel();
        let send = |text: &'static str| frames.send(Frame::data(Bytes::from_static(text.as_bytes())));
        send("one").expect("it is open");
        let mut body = client.post("/renewed/echo", BoxBody::new(Given(given))).await.expect("an answer").into_body();
        assert_eq!(next(&mut body).await, "one");
        for text in ["two", "three"] {
            send(text).expect("it is open");
            assert_eq!(next(&mut body).await, text);
            assert!(shop.is_locked().await, "{version:?}");
        }
        stays_renewed(&shop, "while nobody says anything").await;
        send("four").expect("it is open");
        assert_eq!(next(&mut body).await, "four");
        drop(frames);
        ends(&mut body).await;
        assert!(!shop.is_locked().await, "{version:?}");
        shop.serves_the_next(version).await;
    }
}

#[tokio::test]
async fn bad_input_75_a_stream_both_ways_whose_lease_is_lost_is_broken_off() {
    for version in BOTH {
        let shop = Shop::open().await;
        let mut client = Client::connect(&shop, version).await;
        let (frames, given) = unbounded_channel();
        frames.send(Frame::data(Bytes::from_static(b"one"))).expect("it is open");
        let mut body = client.post("/renewed/echo", BoxBody::new(Given(given))).await.expect("an answer").into_body();
        assert_eq!(next(&mut body).await, "one");
        // Somebody takes the key away; the next renewal finds it.
        shop.redis.call(&["SET", "goods:1", "somebody"]).await;
        let broken = soon(body.frame()).await.expect("no end as if all were there");
        assert!(broken.is_err(), "{version:?}: {broken:?}");
        eventually(SOON, "the stream was dropped", async || frames.is_closed()).await;
        shop.until_idle("its lease was lost").await;
        assert!(shop.is_locked().await, "{version:?}: what is somebody's is left alone");
        shop.redis.call(&["DEL", "goods:1"]).await;
        shop.serves_the_next(version).await;
    }
}
