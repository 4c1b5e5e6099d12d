//! What the layer adds to a call: the same service bare and locked, on the memory backend, without contention.
//!
//! `cargo bench -p lock-tower-benches --bench overhead -- --json` prints a line of JSON. With `--features axum` there is a second
//! one, of a route of axum whose key is a path parameter, and of the same with text as its key: the difference is what the
//! parameter costs. The requests have extensions, as behind other layers. Rounds of all sides take turns, and the median of each is
//! compared: of a million calls in rounds that are shorter than the time for which a busy machine lets a process go on.
//!
//! With `--check` the two ratios that a machine changes least are held against [`KEPT`], and the program fails if one has grown by more than
//! [`MARGIN`]: the layer beside the same by hand, and a pair of acquire and release beside two round trips to a task, which is the least that an engine
//! in a task of its own could cost. `.ci/run` does so, in a build without link-time optimization.
#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first mistake")]

use std::{convert::Infallible, hint::black_box, time::Instant};

use lock_core::LockManager;
use lock_tower::{BoxError, LockLayer};
use tokio::sync::{mpsc, oneshot};
use tower::{Layer, Service, ServiceExt, service_fn};

/// The ratios when they were last looked at, in the build of `.ci/run`, on the machine where they were largest. A pair touches more memory than
/// two round trips: one commit had 3.0 on a quiet machine, and 4.0 on one whose neighbours took half of its speed.
const KEPT: [(&str, f64); 2] = [("layer", 1.05), ("memory pair", 4.0)];
/// By how much a ratio may grow.
const MARGIN: f64 = 1.25;

const ROUNDS: usize = 2_001;
const CALLS: u32 = 500;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let json = std::env::args().any(|argument| argument == "--json");
    // `cargo test --benches` only wants to see that it runs.
    let (rounds, calls) =
        if std::env::args().any(|argument| argument == "--bench") { (ROUNDS, CALLS) } else { (1, 10) };

    let mut bare = service_fn(async |request: u64| Ok::<_, Infallible>(black_box(request)));
    let inner = service_fn(async |request: u64| Ok::<_, BoxError>(black_box(request)));
    let manager = LockManager::in_memory();
    let mut locked = LockLayer::new(manager.clone(), "goods:1").layer(inner);
    // The same by hand, which tells what is the layer's own.
    let mut by_hand = service_fn(async |request: u64| {
        let guard = manager.lock("goods:1").await?;
        guard.protect(async { black_box(request) }).await
    });
    let round_trips = RoundTrips::start();
    let mut two_round_trips = service_fn(async |request: u64| {
        round_trips.one().await;
        round_trips.one().await;
        Ok::<_, Infallible>(black_box(request))
    });
    let (mut without, mut with, mut hand, mut trips) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for number in 0..rounds {
        // Another side begins in each round.
        for turn in 0..4 {
            match (number + turn) % 4 {
                0 => without.push(round(&mut bare, calls).await),
                1 => with.push(round(&mut locked, calls).await),
                2 => hand.push(round(&mut by_hand, calls).await),
                _ => trips.push(round(&mut two_round_trips, calls).await),
            }
        }
    }
    let (without, with, hand, trips) = (median(without), median(with), median(hand), median(trips));
    if std::env::args().any(|argument| argument == "--check") {
        return check([with / hand, hand / trips]);
    }
    let value = with - without;
    if json {
        println!(
            r#"{{"measure":"layer_overhead","value":{value:.0},"unit":"ns","bare":{without:.1},"locked":{with:.1},"by_hand":{hand:.1},"calls":{}}}"#,
            rounds * calls as usize,
        );
    } else {
        println!(
            "the layer adds {value:.0} ns to a call: {without:.1} ns bare, {with:.1} ns locked, {hand:.1} ns by hand"
        );
    }
    #[cfg(feature = "axum")]
    route::measure(manager, rounds, calls, json).await;
}

/// Fails if a ratio is not what it was.
fn check(ratios: [f64; 2]) {
    for ((name, kept), ratio) in KEPT.into_iter().zip(ratios) {
        println!("{name}: {ratio:.3}, kept {kept:.3}");
        assert!(ratio <= kept * MARGIN, "{name}: the ratio was {kept:.3} and is {ratio:.3}");
    }
}

/// A task that answers.
struct RoundTrips(mpsc::UnboundedSender<oneshot::Sender<()>>);

impl RoundTrips {
    fn start() -> Self {
        let (sender, mut requests) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
        tokio::spawn(async move {
            while let Some(answer) = requests.recv().await {
                let _ = answer.send(());
            }
        });
        Self(sender)
    }

    async fn one(&self) {
        let (answer, answered) = oneshot::channel();
        self.0.send(answer).unwrap();
        answered.await.unwrap();
    }
}

/// A POST to `/goods/{id}` through a router, with and without a lock on its `id`.
#[cfg(feature = "axum")]
mod route {
    use axum::{Router, body::Body, extract::Request, routing::post};
    use lock_core::LockManager;
    use lock_tower::{
        LockLayer,
        key::{path_param, scoped},
    };
    use tower::ServiceExt;

    /// What a layer further out has put into the request.
    #[derive(Clone, Debug)]
    #[allow(dead_code, reason = "it is only carried along")]
    struct Account(String);

    pub(super) async fn measure(manager: LockManager, rounds: usize, calls: u32, json: bool) {
        let bare = || Router::new().route("/goods/{id}", post(async || "sold"));
        let text = LockLayer::http(manager.clone(), scoped("goods", "7"));
        let sides = [
            bare(),
            bare().layer(text),
            bare().layer(LockLayer::http(manager, scoped("goods", path_param::<String>("id")))),
        ];
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for round in 0..rounds {
            // Another side begins in each round.
            for turn in 0..3 {
                let side = (round + turn) % 3;
                times[side].push(nanoseconds(&sides[side], calls).await);
            }
        }
        let [without, text, with] = times.map(super::median);
        let (value, param) = (with - without, with - text);
        if json {
            println!(
                r#"{{"measure":"layer_overhead_http","value":{value:.0},"unit":"ns","bare":{without:.1},"locked":{with:.1},"path_param":{param:.1}}}"#
            );
        } else {
            println!(
                "and {value:.0} ns to a route with a path parameter: {without:.1} ns bare, {with:.1} ns locked, of which \
                 the parameter costs {param:.1} ns"
            );
        }
    }

    /// Returns the nanoseconds of one call.
    async fn nanoseconds(router: &Router, calls: u32) -> f64 {
        let begin = std::time::Instant::now();
        for _ in 0..calls {
            let mut request = Request::post("/goods/7").body(Body::empty()).unwrap();
            request.extensions_mut().insert(Account("somebody who was authenticated".to_owned()));
            request.extensions_mut().insert(std::time::Instant::now());
            let response = router.clone().oneshot(request).await.unwrap();
            assert!(response.status().is_success());
        }
        begin.elapsed().as_nanos() as f64 / f64::from(calls)
    }
}

/// Returns the nanoseconds of one call.
async fn round<S: Service<u64, Response = u64, Error: std::fmt::Debug>>(service: &mut S, calls: u32) -> f64 {
    let begin = Instant::now();
    for call in 0..calls {
        service.ready().await.unwrap().call(u64::from(call)).await.unwrap();
    }
    begin.elapsed().as_nanos() as f64 / f64::from(calls)
}

fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}
