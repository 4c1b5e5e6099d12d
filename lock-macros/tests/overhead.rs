//! What `#[distributed_lock]` costs beside the same call written by hand, on the memory backend and without contention.
//!
//! By hand there are two ways: `run`, as most callers would write it, and a guard that protects the work, which is what
//! the attribute expands to. `cargo bench -p lock-macros-tests --bench overhead -- --json` prints a line of JSON for each.

use std::{
    future::Future,
    hint::black_box,
    time::{Duration, Instant},
};

use lock_core::{Error, LockManager, LockRequest, distributed_lock};

#[distributed_lock(key = "goods:<id>", ttl = "3s")]
async fn with_the_macro(id: u64) -> Result<u64, Error> {
    Ok(black_box(id))
}

async fn with_run(id: u64) -> Result<u64, Error> {
    request(id)?.run(async move |_lease| Ok(black_box(id))).await?
}

async fn with_protect(id: u64) -> Result<u64, Error> {
    request(id)?.await?.protect(async move { Ok(black_box(id)) }).await?
}

fn request(id: u64) -> Result<LockRequest, Error> {
    Ok(LockManager::current()?.lock(format!("goods:{id}")).label("goods:<id>").ttl(Duration::from_secs(3)))
}

fn main() -> Result<(), Error> {
    let json = std::env::args().any(|argument| argument == "--json");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let rounds = runtime.block_on(LockManager::in_memory().scope(measure()))?;
    let nanoseconds = [0, 1, 2].map(|side| median(rounds.iter().map(|round| round[side]).collect()));
    for (side, measure, by_hand) in [(1, "macro_overhead", "run"), (2, "macro_overhead_protect", "acquire and protect")]
    {
        let ratio = median(rounds.iter().map(|round| round[0] / round[side]).collect());
        if json {
            println!(
                r#"{{"measure":"{measure}","value":{ratio:.4},"unit":"ratio","ratio":{ratio:.4},"against":"{by_hand}"}}"#
            );
        } else {
            let [with_the_macro, by_hand_ns] = [nanoseconds[0], nanoseconds[side]];
            println!("with the macro {with_the_macro:.0} ns, with {by_hand} {by_hand_ns:.0} ns, ratio {ratio:.4}");
        }
    }
    Ok(())
}

/// Returns the nanoseconds of one call in each round: with the macro, with `run`, with `protect`.
///
/// They take turns in short rounds, and change which comes first, so that what else the machine does meets all.
async fn measure() -> Result<Vec<[f64; 3]>, Error> {
    let mut rounds = Vec::new();
    for round in 0..=ROUNDS {
        let mut times = [f64::NAN; 3];
        for turn in 0..3 {
            let side = (round + turn) % 3;
            times[side] = match side {
                0 => calls(with_the_macro).await?,
                1 => calls(with_run).await?,
                _ => calls(with_protect).await?,
            };
        }
        // The first one warms up.
        if round > 0 {
            rounds.push(times);
        }
    }
    Ok(rounds)
}

/// Returns the nanoseconds of one call.
async fn calls<F: Future<Output = Result<u64, Error>>>(sell: impl Fn(u64) -> F) -> Result<f64, Error> {
    let began = Instant::now();
    for _ in 0..CALLS {
        sell(black_box(7)).await?;
    }
    Ok(began.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

const ROUNDS: usize = 201;
const CALLS: u32 = 500;
