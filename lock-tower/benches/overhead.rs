//! What the layer adds to a call: the same service bare and locked, on the memory backend, without contention.
//!
//! `cargo bench -p lock-tower --bench overhead -- --json` prints one line of JSON. Rounds of both take turns, and the
//! median of each is compared: of a million calls in rounds that are shorter than the time for which a busy machine lets
//! a process go on.
#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first mistake")]

use std::{convert::Infallible, hint::black_box, time::Instant};

use lock_core::LockManager;
use lock_tower::{BoxError, LockLayer, key::fixed};
use tower::{Layer, Service, ServiceExt, service_fn};

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
    let mut locked = LockLayer::new(manager.clone(), fixed("goods:1")).layer(inner);
    // The same by hand, which tells what is the layer's own.
    let mut by_hand = service_fn(async |request: u64| {
        let guard = manager.lock("goods:1").await?;
        guard.protect(async { black_box(request) }).await
    });
    let (mut without, mut with, mut hand) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        without.push(round(&mut bare, calls).await);
        with.push(round(&mut locked, calls).await);
        hand.push(round(&mut by_hand, calls).await);
    }
    let (without, with, hand) = (median(without), median(with), median(hand));
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
