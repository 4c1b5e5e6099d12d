//! The three ways in, on one manager: one connection, one engine, however much uses them.

use lock_core::{Lease, LeaseOptions, LockManager, distributed_lock};
use lock_tests::{LONG, RedisServer, SOON, eventually};
use lock_tower::LockLayer;
use tokio::{
    runtime::{Builder, Handle},
    sync::Semaphore,
    task::JoinSet,
};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};

use crate::patient;

#[derive(Debug)]
struct Refused(#[allow(dead_code, reason = "shown by Debug when the test fails")] lock_core::Error);

impl From<lock_core::Error> for Refused {
    fn from(error: lock_core::Error) -> Self {
        Self(error)
    }
}

/// Opened when everybody has been counted.
static GATE: Semaphore = Semaphore::const_new(0);

async fn at_the_gate() {
    GATE.acquire().await.expect("the gate is never closed").forget();
}

#[distributed_lock(key = "macro:<id>", manager = manager, lease = lease)]
async fn annotated(manager: &LockManager, id: u32) -> Result<u64, Refused> {
    at_the_gate().await;
    Ok(lease.fencing_token().get())
}

#[tokio::test]
async fn core_macro_and_layer_share_one_connection_and_one_engine() {
    const EACH: usize = 20;
    let server = RedisServer::start().await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let manager = patient::builder().url(server.url()).client_name("ours").connect().await.expect("connects");
    let engine = tasks() - before;
    assert_eq!(engine, 1, "the engine's task, which carries the connection");

    let mut users = JoinSet::new();
    for id in 0..EACH {
        let manager = manager.clone();
        users.spawn({
            let manager = manager.clone();
            async move {
                let run = manager.lock(format!("core:{id}")).run(async |_: Lease| at_the_gate().await);
                run.await.expect("nothing is lost");
            }
        });
        users.spawn({
            let manager = manager.clone();
            async move {
                let fence = annotated(&manager, u32::try_from(id).expect("small")).await.expect("nothing is lost");
                assert!(fence > 0);
            }
        });
        users.spawn(async move {
            // A layer of its own for each, as in a service with many routes.
            let inner = tower::service_fn(async |_: usize| {
                at_the_gate().await;
                Ok::<_, BoxError>(())
            });
            let layer = LockLayer::new(manager, |id: &usize| format!("layer:{id}"));
            let mut service = ServiceBuilder::new().layer(layer).service(inner);
            service.ready().await.expect("ready").call(id).await.expect("nothing is lost");
        });
    }
    eventually(SOON, "every key is held", async || server.keys("*:*").await.len() >= 3 * EACH).await;
    let ours = async || server.client_list().await.into_iter().filter(|client| client.name() == "ours").count();
    // One that was not answered soon may still be about to be closed.
    eventually(SOON, format!("one connection for {} holders", 3 * EACH), async || ours().await == 1).await;
    assert_eq!(tasks() - before - 3 * EACH, engine, "no task of ours per lock, function or layer");

    GATE.add_permits(3 * EACH);
    users.join_all().await;
    assert_eq!(server.left().await, Vec::<String>::new(), "every way in waits for the release");
}

/// As many `#[tokio::test]`s do with a manager in a `static`.
#[test]
fn manager_with_a_runtime_of_its_own_serves_runtimes_that_begin_and_end() {
    const THREADS: usize = 6;
    const RUNTIMES: usize = 20;
    let home = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let server = home.block_on(RedisServer::start());
    let manager =
        patient::builder().url(server.url()).defaults(LeaseOptions::new().wait(LONG)).runtime(home.handle().clone());
    let manager = manager.build().expect("the options are in range");
    let test = async |key: &str| {
        let guard = manager.lock(key).await?;
        tokio::task::yield_now().await;
        assert!(guard.is_held());
        guard.release().await
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for number in 0..RUNTIMES {
                    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
                    let outcome = runtime.block_on(test(&format!("goods:{}", number % 3)));
                    outcome.unwrap_or_else(|error| panic!("thread {thread}, runtime {number}: {error}"));
                }
            });
        }
    });
}
