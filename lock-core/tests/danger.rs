//! The warning before a lease is lost; memory backend, virtual time.

use std::time::Duration;

use lock_core::{Lease, LockManager};
use tokio::time::sleep;

use crate::support::{self, Fate, ms, secs};

/// Waits until the lease is in danger, and returns what it has left then.
async fn left_in_danger(lease: &Lease) -> Duration {
    while !lease.is_in_danger() {
        sleep(ms(10)).await;
    }
    lease.remaining()
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_renewed_is_never_in_danger_and_one_that_is_not_is_from_half_of_its_slack_on() {
    let (manager, backend) = support::counted();
    let guard = manager.lock("k").ttl(secs(30)).await.unwrap();
    let lease = guard.lease();
    for _ in 0..1_200 {
        assert!(!lease.is_in_danger(), "{:?} are left", lease.remaining());
        sleep(ms(100)).await;
    }
    backend.always(Fate::Fail);
    let half = (secs(30) - ms(302) - secs(10)) / 2;
    let left = left_in_danger(lease).await;
    // Renewals that lie close together are due together, up to a 64th of the interval sooner.
    assert!((half - ms(20)..half + ms(100)).contains(&left), "{left:?}");
    sleep(secs(2)).await;
    assert!(lease.is_held() && lease.is_in_danger());
    backend.always(Fate::Answer);
    sleep(ms(500)).await;
    assert!(!lease.is_in_danger(), "a renewal has succeeded");

    backend.always(Fate::Fail);
    left_in_danger(lease).await;
    assert!(lease.is_held());
    lease.ended().await;
    assert!(lease.is_in_danger(), "it is lost");
}

#[tokio::test(start_paused = true)]
async fn an_extension_ends_the_danger_when_it_has_succeeded_and_not_before() {
    let (manager, backend) = support::counted();
    let mut guard = manager.lock("k").ttl(secs(30)).await.unwrap();
    let lease = guard.lease().clone();
    backend.always(Fate::Fail);
    left_in_danger(&lease).await;
    guard.extend(secs(30)).await.unwrap_err();
    assert!(lease.is_in_danger(), "nothing was extended");
    // One success, and no renewal beside it.
    backend.next([Fate::Answer]);
    guard.extend(secs(3)).await.unwrap();
    assert!(!lease.is_in_danger(), "shorter, and safe for now");
    let left = left_in_danger(&lease).await;
    assert!((ms(650)..ms(850)).contains(&left), "it was due after half of the 3 s, not {left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_passed_on_in_the_process_is_warned_of_too() {
    let (manager, backend) = support::counted();
    let first = manager.lock("k").ttl(secs(30)).await.unwrap();
    let waiter = || tokio::spawn(manager.lock("k").ttl(secs(30)).acquire());
    let (second, third) = (waiter(), waiter());
    sleep(ms(10)).await;
    // The second asks for fencing tokens for both.
    first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    backend.always(Fate::Fail);
    second.release().await.unwrap();
    let next = third.await.unwrap().expect("it needs no request");
    assert!(!next.lease().is_in_danger());
    let left = left_in_danger(next.lease()).await;
    assert!((secs(9)..secs(10)).contains(&left), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn an_end_that_is_known_before_is_no_danger() {
    let manager = LockManager::in_memory();
    let fixed = manager.lock("fixed").ttl(secs(10)).fixed().await.unwrap();
    let bounded = manager.lock("bounded").ttl(secs(3)).max_hold(secs(9)).await.unwrap();
    sleep(ms(8_900)).await;
    for guard in [&fixed, &bounded] {
        assert!(guard.is_held() && !guard.lease().is_in_danger(), "{guard:?}");
    }
    sleep(secs(2)).await;
    for guard in [fixed, bounded] {
        assert!(guard.lease().is_in_danger(), "it is over");
    }
}

#[tokio::test(start_paused = true)]
async fn an_extension_by_less_that_fails_brings_the_danger_forward() {
    let (manager, backend) = support::counted();
    let mut guard = manager.lock("k").ttl(secs(30)).await.unwrap();
    sleep(secs(1)).await;
    backend.always(Fate::Fail);
    guard.extend(secs(3)).await.unwrap_err();
    let left = left_in_danger(guard.lease()).await;
    assert!((ms(650)..ms(850)).contains(&left), "its renewal was due after half of the 3 s, not {left:?}");
}
