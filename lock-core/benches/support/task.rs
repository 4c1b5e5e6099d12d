//! Where the work runs that is timed.

use std::{future::Future, pin::Pin};

/// One side's part of a round.
pub(crate) type Turn<'a> = Pin<Box<dyn Future<Output = f64> + Send + 'a>>;

/// Runs the work in a spawned task, as a service does.
///
/// A task mostly shares its thread with the connection. The future of `#[tokio::main]` never does: there each answer
/// wakes another thread, which takes longer than the round trip itself, and a ratio to such a round trip flatters.
pub(crate) async fn in_a_task<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    tokio::spawn(work).await.expect("no request fails")
}

/// Lets each side take its turn, and begins with another one in each round.
pub(crate) async fn in_turn<const N: usize>(round: usize, mut sides: [Turn<'_>; N]) -> [f64; N] {
    let mut values = [f64::NAN; N];
    for turn in 0..N {
        let side = (round + turn) % N;
        values[side] = sides[side].as_mut().await;
    }
    values
}
