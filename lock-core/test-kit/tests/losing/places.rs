//! Which places there are, and how the lock fails at each.

use std::{collections::BTreeSet, sync::Mutex, time::Duration};

use lock_core::{Error, ErrorKind, LockManager, LossReason, OnLost};
use lock_test::__private::test;
use tokio::{task::yield_now, time::sleep};

use crate::losing::shop::round_trip;

/// The kinds of the errors of all runs.
fn kinds(ends: Mutex<Vec<Result<(), Error>>>) -> Vec<Option<ErrorKind>> {
    ends.into_inner().unwrap().into_iter().map(|end| end.err().map(|error| error.kind())).collect()
}

const TAKEN: Option<ErrorKind> = Some(ErrorKind::Lost(LossReason::Taken));
const EXPIRED: Option<ErrorKind> = Some(ErrorKind::Lost(LossReason::Expired));

#[test]
fn a_test_runs_undisturbed_then_once_for_each_place() {
    let ends = Mutex::new(Vec::new());
    test("name", async |locks: LockManager| {
        let work = async |_| {
            round_trip().await;
            yield_now().await;
        };
        let end = locks.lock("k").run(work).await;
        ends.lock().unwrap().push(end);
    });
    let acquire_lost = Some(ErrorKind::Backend);
    // After the last pause the work ends before anybody looks.
    assert_eq!(kinds(ends), [None, TAKEN, TAKEN, acquire_lost, None, EXPIRED, EXPIRED, None]);
}

#[test]
fn work_that_goes_on_without_its_lease_is_told_in_the_end() {
    let ends = Mutex::new(Vec::new());
    test("name", async |locks: LockManager| {
        let end = locks.lock("k").on_lost(OnLost::Finish).run(async |_| round_trip().await).await;
        ends.lock().unwrap().push(end);
    });
    assert_eq!(kinds(ends), [None, TAKEN, Some(ErrorKind::Backend), None, EXPIRED, None]);
}

#[test]
fn lost_key_is_held_by_another_for_a_second() {
    let held = Mutex::new(Vec::new());
    test("name", async |locks: LockManager| {
        let _ = locks.lock("k").run(async |_| round_trip().await).await;
        let info = locks.inspect("k").await.unwrap();
        held.lock().unwrap().push(info.is_locked());
        // And can be had after that, unless this is the answer that gets lost.
        let next = locks.lock("k").await.map(drop).map_err(|error| error.kind());
        assert!(matches!(next, Ok(()) | Err(ErrorKind::Backend)), "{next:?}");
    });
    // The calm run, an await, two acquires, two releases, and two pauses.
    let (lost, paused) = (true, true);
    assert_eq!(held.into_inner().unwrap(), [false, lost, false, false, false, false, paused, paused]);
}

#[test]
fn all_of_several_keys_are_lost_with_one() {
    let ends = Mutex::new(Vec::new());
    test("name", async |locks: LockManager| {
        let end = locks.lock_all(["a", "b"]).run(async |_| round_trip().await).await;
        ends.lock().unwrap().push(end);
    });
    // One call acquires both keys.
    assert_eq!(kinds(ends), [None, TAKEN, Some(ErrorKind::Backend), None, None, EXPIRED, None]);
}

#[test]
fn nested_work_can_lose_the_inner_lease_and_the_outer_one() {
    let ends = Mutex::new(BTreeSet::new());
    test("name", async |locks: LockManager| {
        let inner = || locks.lock("inner").run(async |_| round_trip().await);
        let end = locks.lock("outer").run(async |_| inner().await.is_ok()).await;
        ends.lock().unwrap().insert(format!("{:?}", end.map_err(|error| error.kind())));
    });
    let ends = ends.into_inner().unwrap();
    for end in ["Ok(true)", "Ok(false)", "Err(Lost(Taken))", "Err(Lost(Expired))"] {
        assert!(ends.contains(end), "{end} is not among {ends:?}");
    }
}

#[test]
fn works_in_parallel_and_in_other_tasks_are_counted_together() {
    let ends = Mutex::new(Vec::new());
    test("name", async |locks: LockManager| {
        let other = locks.clone();
        let spawned = tokio::spawn(async move { other.lock("a").run(async |_| round_trip().await).await });
        let (a, b) = tokio::join!(spawned, locks.lock("b").run(async |_| round_trip().await));
        ends.lock().unwrap().push((a.unwrap().is_ok(), b.is_ok()));
    });
    let ends = ends.into_inner().unwrap();
    // The calm run; two awaits; two acquires; two releases, which scoped work only logs; four pauses.
    assert_eq!(ends.len(), 1 + 2 + 2 + 2 + 4);
    let lost: Vec<_> = ends[1..3].to_vec();
    assert!(lost.contains(&(false, true)) && lost.contains(&(true, false)), "{lost:?}");
}

#[test]
fn waiter_in_the_process_gets_the_key_that_the_holder_lost() {
    let most = Mutex::new(0);
    test("name", async |locks: LockManager| {
        let holders = Mutex::new((0, 0));
        let work = async |_| {
            {
                let mut now = holders.lock().unwrap();
                *now = (now.0 + 1, now.1.max(now.0 + 1));
            }
            // The other holder of the lost key is silent for a second.
            sleep(Duration::from_secs(2)).await;
            holders.lock().unwrap().0 -= 1;
        };
        let request = || locks.lock("k").on_lost(OnLost::Finish).run(work);
        let _ = tokio::join!(request(), request());
        let mut most = most.lock().unwrap();
        *most = holders.lock().unwrap().1.max(*most);
    });
    assert_eq!(most.into_inner().unwrap(), 2, "work that goes on without its lease overlaps with the next holder's");
}

#[test]
fn work_of_other_managers_is_left_alone() {
    let ends = Mutex::new(Vec::new());
    test("name", async |locks: LockManager| {
        let _ = locks.lock("k").run(async |_| round_trip().await).await;
        let end = LockManager::in_memory().lock("k").run(async |_| round_trip().await).await;
        ends.lock().unwrap().push(end);
    });
    assert!(kinds(ends).iter().all(Option::is_none));
}

#[test]
fn pause_longer_than_a_day_is_not_taken_for_a_wait_without_an_end() {
    let day = Duration::from_secs(24 * 60 * 60);
    let ends = Mutex::new(Vec::new());
    test("name", async |locks: LockManager| {
        let end = locks.lock("k").ttl(day * 2).run(async |_| round_trip().await).await;
        // The test goes on after the pause.
        round_trip().await;
        ends.lock().unwrap().push(end);
    });
    assert_eq!(kinds(ends), [None, TAKEN, Some(ErrorKind::Backend), None, EXPIRED, None]);
}
