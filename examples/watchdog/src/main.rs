//! Work that takes longer than the ttl of its lock: 5 s of work under a ttl of 3 s.
//!
//! ```text
//! cargo run -p example-watchdog
//! cargo run -p example-watchdog -- redis://127.0.0.1:6379
//! ```
//!
//! redis-py's `Lock(timeout=3)` is gone after three seconds, unless the work calls `extend` in time from a thread of
//! its own, a watchdog. Here the engine renews every lease, a third of the ttl after it was last renewed: what is
//! left jumps back to three seconds again and again, and nobody else gets in. The ttl only says for how long a
//! holder that *died* keeps others out.
//!
//! With `fixed()` there is no renewal. Then the lease ends after three seconds, and so does the work: it is
//! dropped where it stands, rather than go on next to somebody who holds the key by then.

use std::time::{Duration, Instant};

use lock_core::{Lease, LockManager};
use tokio::time::sleep;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // In memory unless the argument names a server.
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".into());
    let manager = LockManager::connect(&url).await?;
    let report = manager.lock("report").ttl(Duration::from_secs(3));

    println!("renewed, as is the default:");
    let outcome = report.clone().run(work).await?;
    println!("  {outcome}\n");

    println!("with fixed(), not renewed:");
    match report.fixed().run(work).await {
        Ok(outcome) => println!("  {outcome}"),
        Err(error) => println!("  {error}"),
    }
    Ok(())
}

/// Works for five seconds, and looks at the lease every half second.
async fn work(lease: Lease) -> &'static str {
    let begun = Instant::now();
    for _ in 0..10 {
        println!("  {:.1} s  {:.2} s left", begun.elapsed().as_secs_f64(), lease.remaining().as_secs_f64());
        sleep(Duration::from_millis(500)).await;
    }
    "done after 5 s"
}
