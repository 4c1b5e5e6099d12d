//! What the log warns of, and how often.

use lock_core::{LeaseOptions, LockManager, OnLost};

use crate::support::{log::Log, ms, secs};

#[tokio::test(start_paused = true)]
async fn work_whose_lease_cannot_be_released_is_warned_of_once_a_second() {
    let (log, _logging) = Log::begin();
    let manager = LockManager::in_memory();
    for _ in 0..100 {
        let guard = manager.lock("k").await.unwrap();
        let work = async { manager.force_release("k").await.unwrap() };
        guard.protect(work).on_lost(OnLost::Ignore).await.unwrap();
    }
    // Another test of this program may have had the line of this second.
    let lines = log.count("could not be released");
    assert!(lines <= 1, "{lines} lines");
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_default_ttl_below_the_command_timeout_is_warned_of() {
    let (log, _logging) = Log::begin();
    let builder = || LockManager::builder().url("redis://127.0.0.1").command_timeout(secs(5));
    builder().defaults(LeaseOptions::new().ttl(secs(5))).build().unwrap();
    LockManager::builder()
        .url("memory://")
        .command_timeout(secs(5))
        .defaults(LeaseOptions::new().ttl(ms(500)))
        .build()
        .unwrap();
    assert_eq!(log.count("command_timeout"), 0);
    builder().defaults(LeaseOptions::new().ttl(ms(500))).build().unwrap();
    assert!(log.count("ttl=500ms command_timeout=5s") == 1 && log.count("raise the ttl") == 1, "{}", log.text());
}
