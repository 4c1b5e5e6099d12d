//! What `#[distributed_lock]` costs beside the same call written by hand, on the memory backend and without contention.
//!
//! `cargo bench -p lock-macros --bench overhead -- --json` prints one line of JSON.

use std::{
    future::Future,
    hint::black_box,
    time::{Duration, Instant},
};

use lock_core::{Error, LockManager, distributed_lock};

#[distributed_lock(key = "goods:<id>", ttl = "3s")]
async fn with_the_macro(id: u64) -> Result<u64, Error> {
    Ok(black_box(id))
}

async fn by_hand(id: u64) -> Result<u64, Error> {
    LockManager::current()?
        .lock(format!("goods:{id}"))
        .label("goods:<id>")
        .ttl(Duration::from_secs(3))
        .run(async move |_lease| Ok(black_box(id)))
        .await?
}

fn main() -> Result<(), Error> {
    let json = std::env::args().any(|argument| argument == "--json");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (macro_ns, hand_ns, ratio) = runtime.block_on(LockManager::in_memory().scope(measure()))?;
    if json {
        println!(r#"{{"measure":"macro_overhead","value":{ratio:.4},"unit":"ratio","ratio":{ratio:.4}}}"#);
    } else {
        println!("with the macro {macro_ns:.0} ns, by hand {hand_ns:.0} ns, ratio {ratio:.4}");
    }
    Ok(())
}

/// Returns the medians of both sides in nanoseconds per call, and the median of their ratios.
///
/// The two take turns in short rounds, and change which comes first, so that what else the machine does meets both.
async fn measure() -> Result<(f64, f64, f64), Error> {
    rounds(with_the_macro, CALLS).await?;
    rounds(by_hand, CALLS).await?;
    let (mut macros, mut hands, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (macro_ns, hand_ns) = if round % 2 == 0 {
            let first = rounds(with_the_macro, CALLS).await?;
            (first, rounds(by_hand, CALLS).await?)
        } else {
            let first = rounds(by_hand, CALLS).await?;
            (rounds(with_the_macro, CALLS).await?, first)
        };
        macros.push(macro_ns);
        hands.push(hand_ns);
        ratios.push(macro_ns / hand_ns);
    }
    Ok((median(macros), median(hands), median(ratios)))
}

/// Returns the nanoseconds of one call, of which it makes `calls`.
async fn rounds<F: Future<Output = Result<u64, Error>>>(sell: impl Fn(u64) -> F, calls: u32) -> Result<f64, Error> {
    let began = Instant::now();
    for _ in 0..calls {
        sell(black_box(7)).await?;
    }
    Ok(began.elapsed().as_secs_f64() * 1e9 / f64::from(calls))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

const ROUNDS: u32 = 201;
const CALLS: u32 = 500;
