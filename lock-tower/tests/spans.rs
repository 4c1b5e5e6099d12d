//! What `tracing` gets to see of a layer.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::support::Failing;
use http::{Request, Response};
use lock_core::{ErrorKind, LeaseOptions, LockManager, backend::TOKEN_MARK};
use lock_tower::{BoxError, LockLayer, OnBackendError};
use tower::{Layer, Service, ServiceExt, service_fn, util::BoxCloneService};
use tracing::{Instrument, Level};
use tracing_subscriber::fmt::format::FmtSpan;

/// Keeps what a subscriber writes.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().map_err(|_| io::ErrorKind::Other)?.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn shop() -> impl Service<Request<()>, Response = Response<String>, Error = BoxError, Future: Send> + Clone {
    service_fn(async |_: Request<()>| {
        tracing::info!("selling");
        Ok(Response::new(String::new()))
    })
}

fn goods(request: &Request<()>) -> String {
    request.uri().path().trim_start_matches('/').to_owned()
}

/// Runs `work`, and returns what a subscriber writes of it.
fn logged(level: Level, work: impl Future<Output = ()>) -> String {
    // With one subscriber alone in the process, the first thread to log decides for all of them whether that is of interest, and it may
    // be a thread of another test, which has no subscriber.
    let _other =
        tracing::Dispatch::new(tracing_subscriber::fmt().with_max_level(Level::TRACE).with_writer(io::sink).finish());
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work);
    });
    String::from_utf8(log.0.lock().unwrap().clone()).unwrap()
}

fn post(path: &str) -> Request<()> {
    Request::post(path).body(()).unwrap()
}

/// The first line of `log` that holds `text`.
fn line<'l>(log: &'l str, text: &str) -> &'l str {
    log.lines().find(|line| line.contains(text)).unwrap_or_else(|| panic!("{text}: {log}"))
}

#[test]
fn spans_and_lines_name_the_layer_and_the_key_and_no_token_is_logged() {
    let log = logged(Level::TRACE, async {
        let manager = LockManager::in_memory();
        let sell = LockLayer::http(manager.clone(), goods).name("sell");
        sell.layer(shop()).oneshot(post("/goods:1")).await.unwrap();
        let _guard = manager.lock("goods:2").await.unwrap();
        sell.clone().try_only().layer(shop()).oneshot(post("/goods:2")).await.unwrap();
        let _ = sell.options(LeaseOptions::new().ttl(Duration::ZERO)).name("never").layer(shop());

        let none = LockLayer::http(manager, |_: &Request<()>| Err::<String, _>("no goods"));
        none.layer(shop()).oneshot(post("/")).await.unwrap();

        let down = LockManager::builder().backend(Failing(ErrorKind::Backend, "down")).build().unwrap();
        let open = LockLayer::http(down, goods).name("open").on_backend_error(OnBackendError::LetThrough);
        open.layer(shop()).oneshot(post("/goods:3")).await.unwrap();
    });
    let line = |text| line(&log, text);
    assert!(line("lease acquired").contains(r#"lock.acquire{key="goods:1" lock="sell"}"#), "{log}");
    assert!(line("selling").contains(r#"lock.hold{key="goods:1" "#), "the handler's own lines, too: {log}");
    let refused = line("a request did not get its lock");
    assert!(refused.contains(r#"lock.refuse{lock="sell"}"#), "{refused}");
    assert!(
        refused.contains("DEBUG") && refused.contains("goods:2") && refused.contains("status_code=409"),
        "{refused}"
    );
    let open = line("without its lock");
    assert!(open.contains("WARN") && open.contains(r#"lock="open""#), "{open}");
    let never = line("every request will be refused");
    assert!(never.contains("ERROR") && never.contains(r#"lock layer "never" made at "#), "{never}");
    assert!(never.contains("spans.rs") && never.contains("a ttl of 0ns"), "{never}");
    let unnamed = line("a request has no usable key");
    assert!(unnamed.contains("lock.refuse") && !unnamed.contains("lock="), "{unnamed}");
    assert!(!log.contains(TOKEN_MARK), "a token in the log: {log}");
}

#[test]
fn detached_work_stays_in_the_span_of_its_request() {
    // The layer's own spans, which are children of the request's, do not show at this level.
    let log = logged(Level::INFO, async {
        let request = async |service: BoxCloneService<_, _, BoxError>, id: u32| {
            service.oneshot(post("/goods:1")).instrument(tracing::info_span!("request", id)).await.unwrap();
        };
        let sell = LockLayer::http(LockManager::in_memory(), goods);
        request(BoxCloneService::new(sell.clone().layer(shop())), 7).await;
        request(BoxCloneService::new(sell.detached().layer(shop())), 8).await;
    });
    let sold: Vec<_> = log.lines().filter(|line| line.contains("selling")).collect();
    assert!(sold[0].contains("request{id=7}"), "{log}");
    assert!(sold[1].contains("request{id=8}"), "{log}");
}
