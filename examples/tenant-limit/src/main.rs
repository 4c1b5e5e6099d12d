//! At most three requests of a tenant are served at the same time, over all instances of a service.
//!
//! ```text
//! cargo run -p example-tenant-limit
//! cargo run -p example-tenant-limit -- redis://127.0.0.1:6379
//! ```
//!
//! The limit is one line, a [`LockLayer`] with `permits`: a request takes one of the permits of its tenant, which the
//! header `x-tenant` names, and gives it back with the answer. An instance that dies gives its permits back when their
//! ttl is over.
//!
//! The example starts three instances, each with a port, a manager and a connection of its own, as three processes would
//! have. Each of three tenants sends twenty requests, spread over the instances: fourteen that wait for a permit, and six
//! that do not wait and are refused with 429 and `Retry-After`. As the instances are in one process, the handler can
//! count how many requests of a tenant are inside at all of them together.
//!
//! Nothing depends on luck: the first three requests of a tenant stay inside until the six are refused.
//!
//! Exits with 1 when more than three were inside, or never as many as three.

mod floor;
mod load;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use lock_core::{LeaseOptions, LockManager};
use lock_tower::LockLayer;
use lock_tower::key::{header, scoped};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;

use self::floor::Floor;
use self::load::Load;

/// Most requests of a tenant that are served at the same time.
const LIMIT: u32 = 3;
const INSTANCES: usize = 3;
const TENANTS: [&str; 3] = ["a", "b", "c"];

#[tokio::main]
async fn main() -> Result<()> {
    // In memory unless the argument names a server; the store has a name, or each instance would have one of its own.
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://tenants".into());
    run(vec![url; INSTANCES]).await
}

/// Starts an instance for each of these stores, and serves a load of all tenants.
async fn run(stores: Vec<String>) -> Result<()> {
    let floors = TENANTS.map(|tenant| Arc::new(Floor::new(tenant)));
    let mut managers = Vec::new();
    let mut instances = Vec::new();
    let mut servers = JoinSet::new();
    for store in stores {
        let manager = LockManager::connect(store).await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("there is no free port")?;
        instances.push(format!("http://{}", listener.local_addr()?));
        servers.spawn(axum::serve(listener, service(manager.clone(), floors.clone())).into_future());
        managers.push(manager);
    }

    let loads = floors.map(|floor| (floor.tenant, tokio::spawn(Load::new(&instances, floor).run())));
    let mut mistakes = Vec::new();
    for (tenant, load) in loads {
        match load.await? {
            Ok(line) => println!("tenant {tenant}: {line}"),
            Err(error) => mistakes.push(format!("tenant {tenant}: {error:#}")),
        }
    }
    for manager in managers {
        manager.shutdown(Duration::from_secs(5)).await;
    }
    ensure!(mistakes.is_empty(), mistakes.join("\n"));
    Ok(())
}

/// The service of one instance.
fn service(manager: LockManager, floors: [Arc<Floor>; 3]) -> Router {
    let limit = LockLayer::http(manager, scoped("tenant", header::<String>("x-tenant"))).permits(LIMIT);
    Router::new()
        .route("/wait", get(work).route_layer(limit.clone().options(LeaseOptions::new().wait(load::PATIENCE))))
        .route("/try", get(work).route_layer(limit.try_only()))
        .with_state(floors)
}

/// The handler, which does not know about the limit, except that it counts.
async fn work(State(floors): State<[Arc<Floor>; 3]>, headers: HeaderMap) -> Result<&'static str, StatusCode> {
    let tenant = headers.get("x-tenant").ok_or(StatusCode::BAD_REQUEST)?;
    let floor = floors.iter().find(|floor| tenant == floor.tenant).ok_or(StatusCode::NOT_FOUND)?;
    let inside = floor.enter();
    inside.until_doors_open().await;
    sleep(Duration::from_millis(10)).await;
    Ok("done")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn instances_that_do_not_share_a_store_exceed_the_limit() {
        let error = run(vec!["memory://".to_owned(); INSTANCES]).await.unwrap_err().to_string();
        assert!(error.contains("inside at once, and the limit is 3"), "{error}");
    }
}
