//! Attack 17: calls of gRPC, over a real channel.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use lock_core::LockManager;
use lock_tower::{
    BoxError, Grpc,
    idempotency::{Answers, IdempotencyLayer, MemoryAnswers},
    key::{Header, header, scoped},
};
use tokio::{
    net::TcpListener,
    sync::watch,
    time::{Instant, sleep},
};
use tokio_stream::StreamExt;
use tonic::{
    Code, Status,
    body::Body,
    transport::{Channel, Server, server::TcpIncoming},
};
use tonic_types::StatusExt;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{limit, soon, until};

fn layer<A: Answers>(answers: &A) -> IdempotencyLayer<Header<String>, A, Grpc> {
    let whose = scoped("payments", header::<String>("x-account"));
    IdempotencyLayer::grpc(LockManager::in_memory(), whose, answers.clone()).wait(Duration::from_secs(60))
}

/// A message, and trailers behind it.
struct Message(Option<Bytes>, Option<HeaderMap>);

impl http_body::Body for Message {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let data = self.0.take().map(Frame::data);
        Poll::Ready(data.or_else(|| self.1.take().map(Frame::trailers)).map(Ok))
    }
}

/// A method that counts its runs. The path asks for its status.
async fn method(
    runs: Arc<AtomicUsize>,
    mut doors: watch::Receiver<bool>,
    call: Request<Body>,
) -> Result<Response<Body>, Infallible> {
    let run = runs.fetch_add(1, SeqCst) + 1;
    doors.wait_for(|open| *open).await.unwrap();
    let (head, body) = call.into_parts();
    let sent = body.collect().await.unwrap().to_bytes();
    let code: i32 = head.uri.path().rsplit('/').next().unwrap().parse().unwrap();
    let status = Status::new(Code::from_i32(code), format!("run {run}"));
    if code != 0 {
        let mut response = status.into_http();
        response.headers_mut().insert("x-run", run.into());
        response.headers_mut().insert("set-cookie", "session=secret".parse().unwrap());
        return Ok(response);
    }
    let mut trailers = HeaderMap::new();
    status.add_header(&mut trailers).unwrap();
    trailers.insert("x-run", run.into());
    trailers.insert("set-cookie", "session=secret".parse().unwrap());
    let response = Response::builder().header("content-type", "application/grpc").header("x-first", "1");
    Ok(response.body(Body::new(Message(Some(sent), Some(trailers)))).unwrap())
}

/// Serves, and returns a channel to the server.
async fn serve(answers: &MemoryAnswers, runs: &Arc<AtomicUsize>, doors: watch::Receiver<bool>) -> Channel {
    let runs = Arc::clone(runs);
    let service = layer(answers).layer(service_fn(move |call| method(Arc::clone(&runs), doors.clone(), call)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(Server::builder().serve_with_incoming(service, TcpIncoming::from(listener)));
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// What a client is told.
#[derive(Debug)]
struct Told {
    code: Code,
    reason: String,
    message: String,
    headers: HeaderMap,
    trailers: HeaderMap,
    data: Bytes,
}

async fn call(channel: &Channel, path: &str, key: Option<&str>, sent: &'static str) -> Told {
    let mut call = Request::post(path).header("content-type", "application/grpc").header("x-account", "a");
    if let Some(key) = key {
        call = call.header("idempotency-key", key);
    }
    let call = call.body(Body::new(http_body_util::Full::new(Bytes::from(sent)))).unwrap();
    let (head, body) = soon(channel.clone().oneshot(call)).await.unwrap().into_parts();
    let body = soon(body.collect()).await.unwrap();
    let trailers = body.trailers().cloned().unwrap_or_default();
    let status = Status::from_header_map(&trailers).or_else(|| Status::from_header_map(&head.headers)).unwrap();
    let details = status.get_error_details();
    Told {
        code: status.code(),
        reason: details.error_info().map_or_else(String::new, |info| info.reason.clone()),
        message: status.message().to_owned(),
        headers: head.headers,
        trailers,
        data: body.to_bytes(),
    }
}

#[tokio::test]
async fn attack_17_a_call_is_answered_once_with_its_trailers() {
    let _limit = limit();
    let (answers, runs) = (MemoryAnswers::new(), Arc::default());
    let channel = serve(&answers, &runs, watch::Sender::new(true).subscribe()).await;
    for is_replayed in [false, true] {
        let told = call(&channel, "/bank/0", Some("1"), "\0\0\0\0\u{2}42").await;
        assert_eq!((told.code, &*told.data), (Code::Ok, &b"\0\0\0\0\x0242"[..]), "{told:?}");
        assert_eq!((&told.trailers["x-run"], &told.trailers["grpc-status"]), (&1.into(), &0.into()));
        assert_eq!(told.headers.contains_key("idempotent-replayed"), is_replayed);
        assert_eq!(told.trailers.contains_key("set-cookie"), !is_replayed);
        assert_eq!(told.headers["content-type"], "application/grpc");
    }
    let told = call(&channel, "/bank/0", Some("1"), "\0\0\0\0\u{2}43").await;
    assert_eq!((told.code, &*told.reason), (Code::FailedPrecondition, "IDEMPOTENCY_KEY_REUSED"));
    let told = call(&channel, "/bank/0", None, "").await;
    assert_eq!((told.code, &*told.reason), (Code::InvalidArgument, "IDEMPOTENCY_KEY_MISSING"));
    let told = call(&channel, "/grpc.health.v1.Health/0", None, "").await;
    assert_eq!(told.code, Code::Ok, "health checks pass");
    assert_eq!(runs.load(SeqCst), 2);
}

#[tokio::test]
async fn attack_17_statuses_that_invite_a_retry_are_not_kept() {
    let _limit = limit();
    let (answers, runs) = (MemoryAnswers::new(), Arc::default());
    let channel = serve(&answers, &runs, watch::Sender::new(true).subscribe()).await;
    for code in 1..=16 {
        let is_kept = [3, 5, 6, 7, 9, 11, 12].contains(&code);
        let (path, key, before) = (format!("/bank/{code}"), code.to_string(), runs.load(SeqCst));
        let first = call(&channel, &path, Some(&key), "").await;
        let again = call(&channel, &path, Some(&key), "").await;
        assert_eq!((first.code as i32, again.code as i32), (code, code));
        assert_eq!((runs.load(SeqCst) - before == 1, first.message == again.message), (is_kept, is_kept), "{code}");
        // Its metadata are in the headers, since it has no message.
        assert_eq!(first.headers["x-run"] == again.headers["x-run"], is_kept, "{code}");
        assert!(!is_kept || !again.headers.contains_key("set-cookie"), "{code}");
    }
}

#[tokio::test]
async fn attack_17_a_call_that_is_running_is_aborted_within_the_time_of_its_caller() {
    let _limit = limit();
    let (runs, doors) = (Arc::<AtomicUsize>::default(), watch::Sender::new(false));
    let service = {
        let (runs, doors) = (Arc::clone(&runs), doors.subscribe());
        layer(&MemoryAnswers::new()).layer(service_fn(move |call| method(Arc::clone(&runs), doors.clone(), call)))
    };
    let call = || Request::post("/bank/0").header("x-account", "a").header("idempotency-key", "1");
    let first = tokio::spawn(service.clone().oneshot(call().body(Body::empty()).unwrap()));
    until("the method runs", || runs.load(SeqCst) == 1).await;
    let hasty = call().header("grpc-timeout", "100m").body(Body::empty()).unwrap();
    let response = tokio::time::timeout(Duration::from_secs(30), service.oneshot(hasty)).await;
    let response = response.expect("not after the minute of the layer").unwrap();
    let status = Status::from_header_map(response.headers()).unwrap();
    assert_eq!(status.code(), Code::Aborted);
    assert!(status.get_error_details().retry_info().is_some());
    doors.send_replace(true);
    let response = soon(first).await.unwrap().unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().trailers().unwrap()["x-run"], "1");
    assert_eq!(runs.load(SeqCst), 1);
}

/// A store whose looks take three seconds.
#[derive(Clone, Debug)]
struct Slow(MemoryAnswers);

impl Answers for Slow {
    async fn get(&self, key: &str) -> Result<Option<Bytes>, BoxError> {
        sleep(Duration::from_secs(3)).await;
        self.0.get(key).await
    }

    async fn put_if_absent(&self, key: &str, answer: Bytes, keep: Duration) -> Result<Bytes, BoxError> {
        self.0.put_if_absent(key, answer, keep).await
    }
}

#[tokio::test(start_paused = true)]
async fn attack_17_the_time_of_a_caller_begins_with_its_call() {
    let _limit = limit();
    let (doors, runs) = (watch::Sender::new(false), Arc::<AtomicUsize>::default());
    let method = {
        let (doors, runs) = (doors.subscribe(), Arc::clone(&runs));
        move |call: Request<Body>| {
            let (mut doors, run) = (doors.clone(), runs.fetch_add(1, SeqCst));
            async move {
                doors.wait_for(|open| *open).await.unwrap();
                let mut response = Status::ok(format!("run {run}")).into_http::<Body>();
                response.headers_mut().insert("x-left", call.headers()["grpc-timeout"].clone());
                Ok::<_, Infallible>(response)
            }
        }
    };
    let service = layer(&Slow(MemoryAnswers::new())).layer(service_fn(method));
    let call = |time: &str| {
        let upload = tokio_stream::once(()).then(|()| async {
            sleep(Duration::from_secs(4)).await;
            Ok::<_, Status>(Frame::data(Bytes::from("42")))
        });
        let call = Request::post("/bank/0").header("x-account", "a").header("idempotency-key", "1");
        let call = call.header("grpc-timeout", time).body(Body::new(StreamBody::new(upload))).unwrap();
        service.clone().oneshot(call)
    };
    let first = tokio::spawn(call("60S"));
    until("the method runs", || runs.load(SeqCst) == 1).await;

    let begun = Instant::now();
    let response = soon(call("20S")).await.unwrap();
    assert_eq!(Status::from_header_map(response.headers()).unwrap().code(), Code::Aborted);
    // The layer answers 50 ms before the end, and the clock of tokio counts milliseconds.
    let took = begun.elapsed();
    assert!((19_950..=19_960).contains(&took.as_millis()), "upload and first look are parts of the time: {took:?}");

    doors.send_replace(true);
    let response = soon(first).await.unwrap().unwrap();
    // An upload and two looks.
    assert_eq!(response.headers()["x-left"], "50000000u");
}
