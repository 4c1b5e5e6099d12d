//! The core: `lock_core`.

use std::time::Duration;

use lock_core::{
    ErrorKind, FencingToken, Handover, LeaseOptions, LockManager, LossReason, OnLost, Replicas, exclusive, key,
    permits, redis, shared,
};

use crate::tour::Result;

async fn connect() -> Result {
    let manager = LockManager::connect("redis://127.0.0.1").await?;

    drop(manager);
    let manager = LockManager::builder()
        .url("rediss://:secret@redis.example.com/2")
        .prefix("shop:")
        .defaults(LeaseOptions::new().ttl(Duration::from_secs(5)).wait(Duration::from_secs(2)))
        .command_timeout(Duration::from_millis(500))
        .client_name("shop-1")
        .connect()
        .await?;

    drop(manager);
    let manager =
        LockManager::builder().quorum(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]).connect().await?;

    drop(manager);
    let client = redis::Client::open("redis://shop:secret@127.0.0.1/3")?;
    let manager = LockManager::builder().client(&client).connect().await?;

    drop(manager);
    let builder = LockManager::builder().url("redis://redis.example.com");
    let manager = builder.username("shop").password(std::env::var("REDIS_PASSWORD")?).database(3).connect().await?;

    let builder = LockManager::builder().url("redis+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/shop");
    let builder = builder.sentinel_username("watch").sentinel_password(std::env::var("SENTINEL_PASSWORD")?);

    drop((manager, builder));
    Ok(())
}

async fn sell() -> Result {
    Ok(())
}

#[tokio::test]
async fn acquire() -> Result {
    let manager = LockManager::in_memory();
    let guard = manager.lock("goods:1").ttl(Duration::from_secs(3)).await?;
    sell().await?;
    guard.release().await?;

    if let Some(guard) = manager.lock("goods:1").try_acquire().await? {
        sell().await?;
        guard.release().await?;
    }

    let patient = manager.lock("goods:1").wait(Duration::from_secs(60)).await?;
    patient.release().await?;
    let very_patient = manager.lock("goods:1").wait_forever().await?; // for its turn, also while Redis is down, once the key was busy
    very_patient.release().await?;
    assert!(!manager.is_locked("goods:1").await?);
    Ok(())
}

#[tokio::test]
async fn run() -> Result {
    let manager = LockManager::in_memory();
    let mut stock = 10;
    let fence = manager
        .lock("goods:1")
        .run(async |lease| {
            stock -= 1;
            lease.fencing_token()
        })
        .await?;

    assert!(fence.get() > 0 && stock == 9);
    let guard = manager.lock("goods:1").await?;
    guard.protect(sell()).await??;

    let guard = manager.lock("goods:1").await?;
    guard.protect(sell()).on_lost(OnLost::Finish).await??;

    manager
        .lock("goods:1")
        .run(async |lease| {
            let lease = lease.clone();
            let thumbnails = tokio::task::spawn_blocking(move || (0..100).take_while(|_| lease.is_held()).count());
            thumbnails.await
        })
        .await??;

    Ok(())
}

/// A job of the worker.
async fn sell_under(fence: FencingToken, job: &str) -> Result {
    println!("{job} under {fence}");
    crate::tour::sell(fence.get()).await
}

#[tokio::test]
async fn jobs() -> Result {
    let guard = LockManager::in_memory().lock("worker:3").await?;
    let mut jobs = vec!["goods:1", "goods:3"];
    while let Some(job) = jobs.pop() {
        if guard.lease().is_in_danger() {
            jobs.push(job); // for the next worker
            break;
        }
        sell_under(guard.fencing_token(), job).await?;
    }

    assert!(jobs.is_empty());
    Ok(())
}

#[test]
fn told_of_losses() -> Result {
    let builder = LockManager::builder().url("redis://127.0.0.1");
    let manager = builder.on_lost(|lease| eprintln!("{}: {lease}", lease.label())).build()?;

    drop(manager);
    Ok(())
}

#[tokio::test]
async fn several() -> Result {
    let manager = LockManager::in_memory();
    let order = manager.lock_all(["goods:2", "goods:1"]).await?;
    sell().await?;
    order.release().await?;

    let sale = manager.lock_all([shared("price:1"), exclusive("goods:1"), permits("till", 3)]).await?;

    assert!(manager.lock("price:1").shared().try_acquire().await?.is_some());
    assert!(manager.lock("goods:1").shared().try_acquire().await?.is_none());
    sale.release().await?;
    Ok(())
}

async fn set_price(price: u64) -> Result {
    if price == 0 { Err("for nothing".into()) } else { Ok(()) }
}

#[tokio::test]
async fn readers() -> Result {
    let manager = LockManager::in_memory();
    let one = manager.lock("price:1").shared().await?;
    let another = manager.lock("price:1").shared().await?; // at the same time

    assert_eq!(one.fencing_token(), another.fencing_token());
    one.release().await?;
    another.release().await?;
    let writer = manager.lock("price:1").await?;
    set_price(120).await?;
    let reader = writer.downgrade().await?; // other readers may come in now

    assert!(manager.lock("price:1").shared().try_acquire().await?.is_some());
    reader.release().await?;
    Ok(())
}

#[tokio::test]
async fn counted() -> Result {
    let manager = LockManager::in_memory();
    let import = manager.lock("tenant:7:imports").permits(3).await?;
    let archive = manager.lock("tenant:7:imports").permits(3).take(2).await?;

    assert!(manager.lock("tenant:7:imports").permits(3).try_acquire().await?.is_none());
    import.release().await?;
    archive.release().await?;
    Ok(())
}

#[tokio::test]
async fn options_of_renewal_are_taken_and_an_extend_counts_from_now_or_adds() -> Result {
    let manager = LockManager::in_memory();
    let once = manager.lock("report").ttl(Duration::from_secs(30)).fixed().await?;
    once.release().await?;
    let often = manager.lock("report").ttl(Duration::from_secs(30)).renew_every(Duration::from_secs(2)).await?;
    often.release().await?;
    let bounded = manager.lock("report").max_hold(Duration::from_secs(300)).await?;
    bounded.release().await?;

    let mut guard = manager.lock("report").ttl(Duration::from_secs(3)).fixed().await?;
    guard.extend(Duration::from_secs(30)).await?; // thirty seconds from now
    guard.extend_by(Duration::from_secs(30)).await?; // and thirty more
    assert!(guard.remaining() > Duration::from_secs(50));

    guard.release().await?;
    Ok(())
}

#[tokio::test]
async fn at_least() -> Result {
    let manager = LockManager::in_memory();
    let run = "2026-11-24"; // the night for which it was scheduled, in UTC
    let job = manager.lock(format!("jobs:nightly:{run}")).at_least(Duration::from_secs(7 * 24 * 3600));
    match job.try_run(async |_| sell().await).await? {
        Some(done) => done?,
        None => println!("another machine has begun it"),
    }

    assert!(manager.is_locked("jobs:nightly:2026-11-24").await?);
    Ok(())
}

async fn replicas(manager: LockManager) -> Result {
    let replicated = Replicas::new(1, Duration::from_millis(300));
    match manager.lock("payout").durability(replicated).run(async |_| sell().await).await {
        Ok(sold) => sold?,
        Err(error) if error.kind() == ErrorKind::NotReplicated => println!("released, and nothing was sold: {error}"),
        Err(error) => return Err(error.into()),
    }
    let manager = LockManager::builder()
        .url("redis://127.0.0.1")
        .defaults(LeaseOptions::new().durability(Replicas::new(1, Duration::from_millis(300))))
        .connect()
        .await?;

    drop(manager);
    Ok(())
}

#[tokio::test]
async fn losses() -> Result {
    let manager = LockManager::in_memory();
    let guard = manager.lock("goods:1").await?;
    tokio::select! {
        biased;
        end = guard.ended() => println!("stop everything: {end}"),
        sold = sell() => sold?,
    }
    assert!(guard.is_held());

    manager.force_release("goods:1").await?;
    let error = guard.release().await.err().ok_or("released")?;
    assert_eq!(error.kind(), ErrorKind::Lost(LossReason::Forced));
    Ok(())
}

#[tokio::test]
async fn fencing() -> Result {
    let manager = LockManager::in_memory();
    let guard = manager.lock("goods:1").await?;
    let fence: i64 = guard.fencing_token().as_i64(); // for a column of type BIGINT

    crate::tour::sell(fence.unsigned_abs()).await?;
    Ok(())
}

#[tokio::test]
async fn handover() -> Result {
    let manager = LockManager::in_memory();
    let guard = manager.lock("import:7").ttl(Duration::from_secs(30)).await?;
    let text = guard.hand_over()?.reveal();

    let handover: Handover = text.parse()?;
    let guard = manager.take_up(handover).await?;

    assert!(guard.is_held());
    Ok(())
}

#[tokio::test]
async fn looking_in() -> Result {
    let manager = LockManager::in_memory();
    let guard = manager.lock("goods:1").await?;
    let info = manager.inspect("goods:1").await?;
    println!("locked: {}, for another {:?}", info.is_locked(), info.remaining());
    if let Some(holder) = info.holder() {
        println!("{} has held it for {:?}, {} wait", holder.party(), holder.held(), info.waiters().len());
    }
    for key in manager.list("goods:").await? {
        println!("{}: {:?}", key.key(), key.holder());
    }
    manager.force_release("goods:1").await?;
    manager.force_release_all("goods:").await?;

    assert!(!manager.is_locked("goods:1").await? && info.is_locked());
    drop(guard);
    Ok(())
}

#[tokio::test]
async fn errors() -> Result {
    let manager = LockManager::in_memory();
    match manager.lock("goods:1").await {
        Ok(guard) => guard.release().await?,
        Err(error) if error.is_busy() => println!("busy, try again in {:?}", error.retry_after()),
        Err(error) if error.nothing_was_done() => println!("{}: {}", error.code(), error.public_message()),
        Err(error) => return Err(error.into()), // lost: part of the work may be done
    }

    Ok(())
}

#[tokio::test]
async fn joined() -> Result {
    let (manager, id, order, line) = (LockManager::in_memory(), "a:b", 7, 1);
    let guard = manager.lock(key::join(["goods", id])).await?; // "goods:7" for 7, "goods:a%3Ab" for a:b
    let line = manager.lock(format!("order:{}:line:{}", key::part(order), key::part(line))).await?;

    assert_eq!((guard.key(), line.key()), ("goods:a%3Ab", "order:7:line:1"));
    Ok(())
}

#[tokio::test]
async fn readiness() -> Result {
    let manager = LockManager::in_memory();
    let health = manager.health();
    println!("up: {}, for {:?}, slack {:?}", health.is_up(), health.age(), health.renewal_slack());

    assert!(health.is_up());
    Ok(())
}

#[tokio::test]
async fn shutdown() -> Result {
    let manager = LockManager::in_memory();
    manager.stop_waiting();
    // let the server finish the requests that it works on
    let held = manager.shutdown(Duration::from_secs(5)).await;
    println!("ended, {held} leases were still held");

    assert_eq!(held, 0);
    Ok(())
}

#[tokio::test]
async fn label() -> Result {
    let (manager, id) = (LockManager::in_memory(), 7);
    let guard = manager.lock(format!("goods:{id}")).label("goods:<id>").await?;

    drop(guard);
    Ok(())
}
