//! What the log warns of when a manager is built, or of its requests.

use futures_util::FutureExt;
use lock_core::{LeaseOptions, LockManager};

use crate::support::{log::Log, ms, secs};

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
    assert_eq!(log.count("key="), 0, "it is the default of all keys: {}", log.text());
}

#[tokio::test]
async fn a_ttl_of_a_request_below_the_command_timeout_is_warned_of_once() {
    let (log, _logging) = Log::begin();
    let said = || {
        log.text().lines().filter(|line| line.contains("below the command timeout") && line.contains("key=")).count()
    };
    // Nobody serves there, and nobody waits for it: the warning comes before anything is sent.
    let builder = || LockManager::builder().url("redis://127.0.0.1:1").command_timeout(secs(5));
    let begin = |manager: &LockManager, key: &str, ttl| {
        assert!(manager.lock(key).ttl(ttl).acquire().now_or_never().is_none());
    };
    let manager = builder().build().unwrap();
    begin(&manager, "goods:1", secs(5));
    assert_eq!(said(), 0);
    begin(&manager, "goods:2", ms(500));
    assert!(said() == 1 && log.count(r#"key="goods:2" ttl=500ms command_timeout=5s"#) == 1, "{}", log.text());
    begin(&manager, "goods:3", ms(500));
    assert_eq!(said(), 1);
    let other = builder().build().unwrap();
    assert!(other.lock_all(["goods:4", "goods:5"]).ttl(ms(500)).acquire().now_or_never().is_none());
    assert!(said() == 2 && log.count(r#"key="goods:4" "#) == 1, "each manager once: {}", log.text());

    // The default of this one was warned of already.
    let short = builder().defaults(LeaseOptions::new().ttl(ms(500))).build().unwrap();
    begin(&short, "goods:6", ms(500));
    assert_eq!(said(), 2);
    let _guard = LockManager::in_memory().lock("goods:7").ttl(ms(500)).await.unwrap();
    assert_eq!(said(), 2, "a store in memory answers at once");
}
