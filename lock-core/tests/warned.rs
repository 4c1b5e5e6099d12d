//! What the log warns of when a manager is built.

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
}
