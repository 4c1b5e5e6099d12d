//! Many leases, hand-overs and dropped guards at once: nothing costs more for each, the more there are. Memory backend.

use std::time::Instant;

use lock_core::{ErrorKind, LockGuard, LockManager};

use crate::support::{self, Fate, ms, secs};

async fn hold(manager: &LockManager, count: usize) -> Vec<LockGuard> {
    let mut guards = Vec::with_capacity(count);
    for index in 0..count {
        guards.push(manager.lock(format!("k{index}")).ttl(secs(3_600)).await.expect("the key is free"));
    }
    guards
}

#[tokio::test]
async fn leases_are_handed_over_at_a_cost_that_does_not_grow_with_those_before() {
    const LEASES: usize = 20_000;
    let manager = LockManager::in_memory();
    let guards = hold(&manager, LEASES).await;
    // The machine is compared with itself: the fastest of the last rounds with the slowest of the first. A cost that grew with the
    // leases before would have grown a hundred times by then; a machine that is busy only makes single rounds slower.
    let mut rounds = Vec::new();
    let mut handed_over = Vec::with_capacity(LEASES);
    let mut guards = guards.into_iter();
    while guards.len() > 0 {
        let begun = Instant::now();
        handed_over.extend(guards.by_ref().take(LEASES / 100).map(|guard| guard.hand_over().unwrap()));
        rounds.push(begun.elapsed());
    }
    assert_eq!(handed_over.len(), LEASES);
    let (first, last) = (rounds[..3].iter().max().unwrap(), rounds[90..].iter().min().unwrap());
    assert!(*last < *first * 10, "{last:?} after {first:?}");
}

#[tokio::test(start_paused = true)]
async fn keys_are_released_by_force_in_a_few_calls() {
    let (manager, backend) = support::counted();
    let guards = hold(&manager, 1_000).await;
    let before = backend.forces();
    assert_eq!(manager.force_release_all("k").await.unwrap(), 1_000);
    assert_eq!(backend.forces() - before, 4);
    assert!(guards.iter().all(|guard| !guard.is_held()));
}

#[tokio::test(start_paused = true)]
async fn request_is_not_held_up_by_a_mass_of_dropped_guards() {
    let (manager, backend) = support::counted();
    let guards = hold(&manager, 10_000).await;
    backend.always(Fate::Hold);
    let before = backend.calls();
    drop(guards);
    while backend.calls() < before + 2 {
        tokio::time::sleep(ms(1)).await;
    }
    let request = tokio::spawn(manager.lock("mine").acquire());
    tokio::time::sleep(ms(1)).await;
    let sent = backend.calls();
    backend.always(Fate::Answer);
    backend.let_go();
    drop(request.await.unwrap().unwrap());
    // It is in the call that follows the two under way, and not behind the forty of the releases.
    let with_it = backend.log().iter().skip(sent).position(|names| names.contains(&"acquire")).unwrap();
    assert!(with_it <= 1, "{with_it} calls before it");
}

#[tokio::test(start_paused = true)]
async fn many_requests_share_more_calls_than_few() {
    let (manager, backend) = support::counted();
    drop(manager.lock("warm").await.unwrap());
    tokio::time::sleep(ms(1)).await;
    backend.always(Fate::Hold);
    let before = backend.calls();
    let ask = |count: usize, name: &str| -> Vec<_> {
        (0..count).map(|index| tokio::spawn(manager.lock(format!("{name}{index}")).acquire())).collect()
    };
    let few = ask(200, "few");
    tokio::time::sleep(ms(1)).await;
    assert_eq!(backend.calls() - before, 1, "they share a call");
    let many = ask(10_000, "many");
    tokio::time::sleep(ms(1)).await;
    assert_eq!(backend.calls() - before, 16, "over a long way, they would be out of time before they are sent");
    assert_eq!(backend.largest_batch(), 256);
    backend.always(Fate::Answer);
    backend.let_go();
    for request in few.into_iter().chain(many) {
        drop(request.await.unwrap().unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_stays_busy_is_said_to_be_so_for_the_whole_wait_for_several() {
    let manager = LockManager::in_memory();
    let (first, _second) = (manager.lock("a").await.unwrap(), manager.lock("b").await.unwrap());
    tokio::spawn(async move {
        tokio::time::sleep(ms(600)).await;
        drop(first);
    });
    let error = manager.lock_all(["a", "b"]).wait(secs(1)).await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Busy, Some("b")));
    assert!(error.to_string().contains("still held by someone else after 1s"), "{error}");
}

#[tokio::test]
async fn what_a_manager_shows_of_itself_does_not_grow_with_its_leases() {
    let manager = LockManager::in_memory();
    let before = format!("{:?}", manager.lock("x")).len();
    let _guards = hold(&manager, 1_000).await;
    let text = format!("{:?}", manager.lock("x"));
    assert!(text.len() < before + 100 && text.contains("1000"), "{text}");
}
