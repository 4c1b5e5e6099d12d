//! Clients that hang up: while they wait for the lock, while the handler works, in the middle of a body and after it.

use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt, combinators::BoxBody};
use hyper::StatusCode;
use lock_tests::{SOON, eventually};
use tokio::{
    sync::mpsc::unbounded_channel,
    task::{JoinHandle, JoinSet},
};

use crate::tower::shop::{BOTH, Client, Given, Shop, Version, nothing, soon};

/// How a client goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// The connection is closed.
    Closes(Version),
    /// The request alone is cancelled, and the connection goes on.
    Cancels,
}

const WAYS: [Way; 3] = [Way::Closes(Version::One), Way::Closes(Version::Two), Way::Cancels];

impl Way {
    fn version(self) -> Version {
        match self {
            Self::Closes(version) => version,
            Self::Cancels => Version::Two,
        }
    }

    /// Sends a request in the background; the client is there again when the request was cancelled.
    async fn send(self, shop: &Shop, path: &'static str, body: BoxBody<Bytes, std::convert::Infallible>) -> Request {
        let mut client = Client::connect(shop, self.version()).await;
        let (cancel, cancelled) = tokio::sync::oneshot::channel::<()>();
        let under_way = tokio::spawn(async move {
            tokio::select! {
                answer = client.post(path, body) => panic!("it was to get no answer: {answer:?}"),
                _ = cancelled => client,
            }
        });
        Request { way: self, cancel, under_way }
    }
}

/// A request under way.
struct Request {
    way: Way,
    cancel: tokio::sync::oneshot::Sender<()>,
    under_way: JoinHandle<Client>,
}

impl Request {
    /// Hangs up, and gives what is left of the client.
    async fn hang_up(self) -> Option<Client> {
        self.cancel.send(()).expect("it is under way");
        let client = soon(self.under_way).await.expect("it did not panic");
        (self.way == Way::Cancels).then_some(client)
    }
}

/// What must be so after a client has gone: nobody works, the key is free, and the next one is served, over the same
/// connection if that is still there.
async fn nothing_is_left(shop: &Shop, way: Way, client: Option<Client>) {
    shop.until_idle(&format!("{way:?}")).await;
    shop.until_free(&format!("{way:?}")).await;
    if let Some(mut client) = client {
        assert!(client.is_open(), "{way:?}: one cancelled request costs no connection");
        assert_eq!(client.post("/fence", nothing()).await.expect("an answer").status(), StatusCode::OK);
    }
    shop.serves_the_next(way.version()).await;
    shop.until_free("all are through").await;
}

#[tokio::test]
async fn bad_input_73_a_client_that_goes_while_it_waits_never_gets_the_key() {
    let shop = Shop::open().await;
    for way in WAYS {
        let guard = shop.manager.lock("goods:1").await.expect("it is free");
        let waits = way.send(&shop, "/work", nothing()).await;
        eventually(SOON, "the request came", async || shop.floor.arrived() == 1).await;
        let client = waits.hang_up().await;
        shop.until_idle("the waiter has gone").await;
        assert!(shop.is_locked().await, "{way:?}: the waiter had nothing to release");
        guard.release().await.expect("it is held");
        nothing_is_left(&shop, way, client).await;
    }
    assert_eq!(shop.floor.begun(), 0, "no handler was called");
}

#[tokio::test]
async fn of_many_that_wait_those_that_go_take_no_turn_and_those_that_stay_are_served() {
    let shop = Shop::open().await;
    let guard = shop.manager.lock("goods:1").await.expect("it is free");
    let mut go = Vec::new();
    let mut stay = JoinSet::new();
    for number in 0..30 {
        let way = WAYS[number % WAYS.len()];
        go.push(way.send(&shop, "/work", nothing()).await);
        let mut client = Client::connect(&shop, way.version()).await;
        stay.spawn(async move { client.post("/fence", nothing()).await.expect("an answer").status() });
    }
    eventually(SOON, "all came", async || shop.floor.arrived() == 60).await;
    let mut clients = Vec::new();
    for request in go {
        clients.push(request.hang_up().await);
    }
    eventually(SOON, "those who go have gone", async || shop.floor.arrived() == 30).await;
    guard.release().await.expect("it is held");
    let served = soon(stay.join_all()).await;
    assert_eq!(served, [StatusCode::OK; 30]);
    assert_eq!(shop.floor.begun(), 0, "none of those that went was served");
    nothing_is_left(&shop, Way::Cancels, None).await;
}

#[tokio::test]
async fn bad_input_73_a_client_that_goes_before_the_answer_stops_the_handler_and_frees_the_key() {
    let shop = Shop::open().await;
    for way in WAYS {
        let works = way.send(&shop, "/work", nothing()).await;
        eventually(SOON, "the handler works", async || shop.floor.inside() == 1).await;
        assert!(shop.is_locked().await);
        let client = works.hang_up().await;
        nothing_is_left(&shop, way, client).await;
    }
}

#[tokio::test]
async fn bad_input_72_and_73_a_client_that_goes_in_the_middle_of_its_upload_frees_the_key() {
    let shop = Shop::open().await;
    for way in WAYS {
        let (frames, given) = unbounded_channel();
        frames.send(Frame::data(Bytes::from_static(b"half of it"))).expect("it is open");
        let uploads = way.send(&shop, "/upload", BoxBody::new(Given(given))).await;
        eventually(SOON, "the handler reads", async || shop.floor.inside() == 1).await;
        assert!(shop.is_locked().await);
        let client = uploads.hang_up().await;
        nothing_is_left(&shop, way, client).await;
    }
}

#[tokio::test]
async fn bad_input_73_and_76_a_client_that_goes_in_the_middle_of_the_body_frees_the_key() {
    for way in WAYS {
        let shop = Shop::open().await;
        let mut client = Client::connect(&shop, way.version()).await;
        let mut body = client.post("/stream", nothing()).await.expect("an answer").into_body();
        shop.give("one");
        let frame = soon(body.frame()).await.expect("a frame").expect("no error");
        assert_eq!(frame.into_data().expect("data"), "one");
        assert!(shop.is_locked().await);
        let client = if way == Way::Cancels {
            drop(body);
            Some(client)
        } else {
            drop((client, body));
            None
        };
        nothing_is_left(&shop, way, client).await;
    }
}

#[tokio::test]
async fn bad_input_73_a_client_that_goes_after_the_body_leaves_a_free_key() {
    for version in BOTH {
        let mut shop = Shop::open().await;
        let mut client = Client::connect(&shop, version).await;
        let body = client.post("/stream", nothing()).await.expect("an answer").into_body();
        shop.give("all of it");
        shop.frames = None;
        let body = soon(body.collect()).await.expect("all of it").to_bytes();
        assert_eq!(body, "all of it");
        assert!(!shop.is_locked().await, "{version:?}: the end of the body waits for the release");
        drop(client);
        nothing_is_left(&shop, Way::Closes(version), None).await;
    }
}

#[tokio::test]
async fn clients_that_come_and_go_at_any_moment_leave_nothing_behind() {
    let shop = Shop::open().await;
    let mut clients = JoinSet::new();
    for number in 0..120_u64 {
        let version = BOTH[usize::from(number % 2 == 1)];
        let path = ["/work", "/fence", "/flood"][usize::try_from(number % 3).expect("small")];
        let mut client = Client::connect(&shop, version).await;
        clients.spawn(async move {
            let request = async {
                if let Ok(answer) = client.post(path, nothing()).await {
                    let _ = answer.into_body().collect().await;
                }
            };
            // From at once to long after the lease was acquired, were it free.
            let _ = tokio::time::timeout(Duration::from_micros(number * 701 % 30_000), request).await;
        });
    }
    soon(clients.join_all()).await;
    nothing_is_left(&shop, Way::Cancels, None).await;
}
