//! What a manager tells of itself without asking anybody.

mod support;

use std::time::Duration;

use lock_core::{LockManager, backend::Backend};
use tokio::time::sleep;

use support::{Fate, ms, secs};

#[tokio::test(start_paused = true)]
async fn a_manager_counts_its_leases_and_is_up_until_it_is_shut_down() {
    let manager = LockManager::in_memory();
    assert!(manager.health().is_up());
    assert_eq!((manager.health().held(), manager.health().renewal_slack()), (0, None));
    let one = manager.lock("a").await.unwrap();
    let _two = manager.lock("b").await.unwrap();
    assert_eq!(manager.health().held(), 2);
    one.release().await.unwrap();
    assert_eq!(manager.health().held(), 1);
    assert_eq!(manager.health().nodes()[0].address(), "memory");
    manager.shutdown(Duration::ZERO).await;
    assert!(!manager.health().is_up());
    assert_eq!(manager.health().held(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_slack_is_what_renewals_left_and_zero_when_a_lease_was_not_renewed_in_time() {
    let (manager, backend) = support::counted();
    let _guard = manager.lock("a").ttl(secs(3)).await.unwrap();
    sleep(ms(1_100)).await;
    let slack = manager.health().renewal_slack().unwrap();
    assert!((ms(1_900)..=secs(2)).contains(&slack), "{slack:?}");
    backend.always(Fate::Fail);
    sleep(secs(4)).await;
    assert_eq!((manager.health().renewal_slack(), manager.health().held()), (Some(Duration::ZERO), 0));
    backend.always(Fate::Answer);
    sleep(secs(61)).await;
    assert_eq!(manager.health().renewal_slack(), None, "it was long ago");
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_that_expires_is_no_renewal_that_failed() {
    let manager = LockManager::in_memory();
    let _guard = manager.lock("a").ttl(ms(50)).fixed().await.unwrap();
    sleep(secs(1)).await;
    assert_eq!((manager.health().renewal_slack(), manager.health().held()), (None, 0));
}

#[test]
fn a_manager_without_a_runtime_is_not_up_and_asking_does_not_panic() {
    assert!(!LockManager::in_memory().health().is_up());
}

#[test]
fn a_backend_that_says_nothing_more_is_one_node() {
    let (_, backend) = support::counted();
    assert_eq!(backend.health().len(), 1);
}
