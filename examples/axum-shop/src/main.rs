//! An HTTP service with a real database: a lock taken by hand, by an attribute, and by a layer, all of one manager.
//!
//! ```text
//! cargo run -p example-axum-shop
//! cargo run -p example-axum-shop -- redis://127.0.0.1:6379
//! DATABASE_URL=mysql://shop:secret@127.0.0.1/shop cargo run -p example-axum-shop -F mariadb -- redis://127.0.0.1:6379
//! DATABASE_URL=postgres://shop:secret@127.0.0.1/shop cargo run -p example-axum-shop -F postgres -- redis://127.0.0.1:6379
//! ```
//!
//! Without `DATABASE_URL` the database is SQLite in memory; the drivers of the others are features, because they take
//! long to build. The service listens on port 3000, or on another one, so that a second instance
//! can run beside the first: `PORT=3001 cargo run …`; with `PORT=0` on one that is free, and it says which. There are
//! four goods, ten of each:
//!
//! ```text
//! curl localhost:3000/goods
//! ```
//!
//! One unit, with `#[distributed_lock]` on the method that sells; of twelve buyers two are told that it is sold out:
//!
//! ```text
//! for buyer in $(seq 12); do curl -s -X POST localhost:3000/goods/1/sell & done; wait
//! ```
//!
//! Several goods or none of them, with [`lock_all`](lock_core::LockManager::lock_all); the keys are those of the sales
//! above, so that neither comes between the other:
//!
//! ```text
//! curl -X POST localhost:3000/orders -H 'content-type: application/json' -d '{"2": 3, "3": 1}'
//! ```
//!
//! One good, behind a [`LockLayer`](lock_tower::LockLayer) with `shared_for([Method::GET, Method::HEAD])`, again with those
//! keys: readers share the good with one another, and a new count has it alone; neither meets a sale that is half done:
//!
//! ```text
//! curl localhost:3000/goods/1
//! curl -X PUT localhost:3000/goods/1 -H 'content-type: application/json' -d 10
//! ```
//!
//! A payment, behind a layer of its own; of two clicks at once the second is rejected:
//!
//! ```text
//! curl -i -X POST localhost:3000/orders/7/pay & curl -i -X POST localhost:3000/orders/7/pay; wait
//! ```
//!
//! Sales, refusals, and the metrics of the locks, for Prometheus. Locks go by the template of the attribute
//! (`goods:<good>`), by the name of the layer (`payment`, `stock`), or by the label of the request, and never by their keys:
//!
//! ```text
//! curl localhost:3000/metrics
//! ```
//!
//! Holders and waiters of all locks, at all instances: <http://localhost:3000/locks> in a browser, or
//!
//! ```text
//! curl 'localhost:3000/locks?format=json'
//! ```
//!
//! Ctrl-C or SIGTERM lets the requests in flight end, releases the leases that are still held, and closes the database.
//!
//! # The transaction stands inside the lock
//!
//! Lock, begin, read, write, commit, release: in this order. The other way round, *begin, lock, read, write, release,
//! commit*, is wrong: between release and commit the next holder reads what was there before, and a database that
//! gives a transaction one view of the data shows it an old one even when it has waited. `shop.rs` keeps to that order
//! by not taking a transaction from outside, and `tests/databases.rs` shows on MariaDB and PostgreSQL
//! what happens otherwise.
//!
//! Each row also has a version that is compared as it is written. Under the lock it never differs. It is for the day
//! when something writes without the lock, such as a script or an old service.

mod app;
mod metrics;
mod shop;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal as _, stdout};
use std::time::Duration;

use anyhow::{Context, Result};
use lock_core::LockManager;
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use tracing::info;

use self::app::App;
use self::shop::Shop;

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_ansi(stdout().is_terminal()).init();
    // The shop, lock-core and lock-tower (by their feature `metrics`) count through one facade, into one recorder.
    let metrics = metrics::builder()?.install_recorder().context("cannot count anything")?;
    let swept = metrics.clone();
    // Otherwise the samples would pile up in memory until somebody asks for them.
    tokio::spawn(async move {
        loop {
            sleep(Duration::from_secs(5)).await;
            swept.run_upkeep();
        }
    });

    // In memory unless the argument names a server.
    let locks = std::env::args().nth(1).unwrap_or_else(|| "memory://".into());
    let manager = LockManager::connect(&locks).await?;
    let database = std::env::var("DATABASE_URL").unwrap_or_else(|_| "sqlite::memory:".into());
    let shop = Shop::open(&database).await?;
    // Two instances that start at once do not lay out the tables at once.
    manager.lock("shop:layout").label("layout").run(async |_| shop.lay_out().await).await??;

    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse()).context("PORT is not a port")?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = listener.with_context(|| format!("port {port} is taken, try `PORT=3001 cargo run …`"))?;
    println!("listening on http://{}, Ctrl-C ends it", listener.local_addr()?);
    let service = App { manager: manager.clone(), shop: shop.clone(), metrics }.service();
    let stopped = manager.clone();
    let stop = async move {
        asked_to_end().await;
        // Requests that wait for a key fail now, so that the server waits only for those that hold one.
        stopped.stop_waiting();
    };
    axum::serve(listener, service).with_graceful_shutdown(stop).await?;

    info!("no more requests");
    let held = manager.shutdown(Duration::from_secs(5)).await;
    shop.close().await;
    println!("ended, {held} leases were still held");
    Ok(())
}

/// Returns when the process is asked to end: by Ctrl-C, or by SIGTERM, which an orchestrator sends. SIGTERM would otherwise end it at
/// once, and the keys of its requests would stay blocked for a ttl.
async fn asked_to_end() {
    #[cfg(unix)]
    let terminated = async {
        signal(SignalKind::terminate())?.recv().await;
        io::Result::Ok(())
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<io::Result<()>>();
    // Without a handler for a signal the service ends at once.
    let _ = tokio::select! {
        result = tokio::signal::ctrl_c() => result,
        result = terminated => result,
    };
}
