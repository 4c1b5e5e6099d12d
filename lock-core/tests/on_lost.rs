//! The function of the application that is told of lost leases; memory backend, virtual time.

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use futures_util::FutureExt;
use lock_core::{LockManager, LockManagerBuilder, LossReason, LostLease};
use tokio::{
    runtime,
    time::{advance, sleep},
};

use crate::support::{ms, secs};

type Told = Arc<Mutex<Vec<LostLease>>>;

/// A manager that keeps what it tells.
fn telling(builder: LockManagerBuilder) -> (LockManager, Told) {
    let told = Told::default();
    let kept = Arc::clone(&told);
    let manager =
        builder.url("memory://").on_lost(move |lease| kept.lock().expect("no panic").push(lease.clone())).build();
    (manager.expect("the options are in range"), told)
}

#[tokio::test(start_paused = true)]
async fn each_loss_is_told_once_and_an_end_by_the_holder_is_not() {
    let (manager, told) = telling(LockManager::builder());
    manager.lock("released").await.unwrap().release().await.unwrap();
    drop(manager.lock("dropped").await.unwrap());
    let handover = manager.lock("handed").await.unwrap().hand_over().unwrap();
    manager.take_up(handover).await.unwrap().release().await.unwrap();
    manager.lock("run").run(async |_| sleep(secs(60)).await).await.unwrap();
    assert!(manager.lock("run").wait(Duration::ZERO).acquire().now_or_never().is_some_and(|guard| guard.is_ok()));
    assert!(told.lock().unwrap().is_empty(), "{told:?}");

    let expired = manager.lock("expired").ttl(secs(1)).fixed().label("cron").await.unwrap();
    let bounded = manager.lock("bounded").max_hold(secs(2)).await.unwrap();
    let forced = manager.lock("forced").await.unwrap();
    sleep(secs(3)).await;
    manager.force_release("forced").await.unwrap();
    let cut = manager.lock("cut").await.unwrap();
    assert_eq!(manager.shutdown(Duration::ZERO).await, 1);
    let seen = told.lock().unwrap().clone();
    let reasons: Vec<_> = seen.iter().map(|lease| (lease.key(), lease.reason())).collect();
    assert_eq!(
        reasons,
        [
            ("expired", LossReason::Expired),
            ("bounded", LossReason::MaxHold),
            ("forced", LossReason::Forced),
            ("cut", LossReason::ShutDown)
        ]
    );
    for (lease, guard) in seen.iter().zip([&expired, &bounded, &forced, &cut]) {
        assert_eq!(lease.fencing_token(), guard.fencing_token());
    }
    assert_eq!((seen[0].label(), seen[1].label()), ("cron", ""));
    assert!((ms(985)..ms(1_250)).contains(&seen[0].held()), "{:?}", seen[0].held());
    let line = seen[0].to_string();
    let begin = format!("lost the lease of \"expired\" with fencing token {}", expired.fencing_token());
    assert!(line.starts_with(&begin) && line.contains(&LossReason::Expired.to_string()), "{line}");
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_the_holder_notices_first_is_told_by_then_and_only_once() {
    let (manager, told) = telling(LockManager::builder());
    let noticed = manager.lock("noticed").ttl(secs(1)).fixed().await.unwrap();
    let released = manager.lock("released").ttl(secs(1)).fixed().await.unwrap();
    // Polled only once, it leaves the engine no turn in which to notice.
    let _ = advance(secs(2)).now_or_never();
    assert!(!noticed.is_held());
    assert_eq!(told.lock().unwrap().len(), 1);
    released.release().await.unwrap_err();
    sleep(secs(60)).await;
    drop(noticed);
    let keys: Vec<_> = told.lock().unwrap().iter().map(|lease| lease.key().to_owned()).collect();
    assert_eq!(keys, ["noticed", "released"]);
}

static MANAGER: OnceLock<LockManager> = OnceLock::new();

#[test]
fn the_function_may_ask_the_manager_and_its_panic_ends_no_other_lease() {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let builder = LockManager::builder().url("memory://").on_lost(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            let manager = MANAGER.get().unwrap();
            // Under a lock of the engine's, this would wait for itself.
            let asked = manager.lock("mine").wait(Duration::ZERO).acquire().now_or_never();
            panic!("a bug of the application's: {asked:?}; {:?}", manager.health());
        });
        let runtime = runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let manager = MANAGER.get_or_init(|| builder.build().unwrap());
            let stays = manager.lock("stays").await.unwrap();
            let mut guards = Vec::new();
            for index in 0..10 {
                guards.push(manager.lock(format!("k{index}")).fixed().ttl(secs(3)).await.unwrap());
            }
            sleep(secs(60)).await;
            assert!(stays.is_held(), "each call has panicked");
            assert!(guards.iter().all(|guard| !guard.is_held()));
            assert!(manager.is_locked("k0").await.is_ok(), "the engine goes on");
        });
        done.send(calls.load(Ordering::Relaxed))
    });
    assert_eq!(is_done.recv_timeout(secs(60)), Ok(10), "it waits for itself, or has panicked");
}
