//! What the user of a test reads.

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use lock_core::LockManager;
use lock_test::__private::test;
use tokio::task::yield_now;

use crate::losing::shop::{Shop, round_trip};

/// What a test that fails says.
fn message<F: Future<Output = ()>>(body: impl Fn(LockManager) -> F) -> String {
    let panic = catch_unwind(AssertUnwindSafe(|| test("name", body))).expect_err("the test fails");
    panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap()
}

#[test]
fn failure_names_the_point_the_key_the_problem_and_how_to_run_it_alone() {
    let message = message(async |locks| {
        let shop = Shop::default();
        let _ = shop.pay_in_two_steps(&locks).await;
        assert!(shop.is_consistent(), "charged but not shipped");
    });
    let (first, last) = message.split_once('\n').unwrap();
    assert!(first.starts_with("lease lost at await 2 of 2 of the work that holds \"order:7\" ("), "{first}");
    assert!(first.ends_with("): charged but not shipped"), "{first}");
    assert_eq!(last, "to run this point alone: LOCK_TEST_POINT=2 cargo test name");
}

#[test]
fn failure_names_the_line_of_the_await_or_else_that_of_the_request() {
    let message = message(async |locks| {
        let done = locks.lock("k").run(async |_| round_trip().await).await;
        done.unwrap();
    });
    let line = line!() - 3;
    assert!(message.contains(&format!("tests/losing/messages.rs:{line})")), "{message}");
    // Without debug information a backtrace shows no lines.
    if format!("{}", std::backtrace::Backtrace::force_capture()).contains("losing/messages.rs:") {
        assert!(!message.contains("asked for"), "{message}");
    } else {
        assert!(message.contains("(the lock was asked for at "), "{message}");
    }
}

#[test]
fn test_without_work_under_a_lock_is_refused() {
    assert!(message(async |_| round_trip().await).contains("the test has no await in work under a lock"));
    let ready_at_once = async |locks: LockManager| locks.lock("k").run(async |_| ()).await.unwrap();
    assert!(message(ready_at_once).contains("the test has no await in work under a lock"));
}

#[test]
fn test_that_fails_undisturbed_fails_as_any_other() {
    assert_eq!(message(async |_| panic!("two is not three")), "two is not three");
}

#[test]
fn test_that_does_something_else_each_time_is_refused() {
    let runs = AtomicU32::new(0);
    let fewer = message(async |locks| {
        let awaits = if runs.fetch_add(1, Ordering::SeqCst) == 0 { 2 } else { 1 };
        let work = async |_| {
            for _ in 0..awaits {
                yield_now().await;
            }
        };
        let _ = locks.lock("k").run(work).await;
    });
    assert!(fewer.contains("await 2 of 2 of the work that holds \"k\": this point did not come"), "{fewer}");

    let runs = AtomicU32::new(0);
    let other = message(async |locks| {
        let key = format!("k:{}", runs.fetch_add(1, Ordering::SeqCst));
        let _ = locks.lock(key).run(async |_| yield_now().await).await;
    });
    assert!(other.contains("holds \"k:0\": this point came at another lock"), "{other}");
}

#[test]
fn test_with_too_many_awaits_is_refused() {
    let message = message(async |locks| {
        let work = async |_| {
            for _ in 0..=1_000 {
                yield_now().await;
            }
        };
        let _ = locks.lock("k").run(work).await;
    });
    assert!(message.contains("there are more than 1000 places"), "{message}");
}

/// Run by the test below, in a process of its own.
#[lock_test::test]
#[ignore = "fails, as it should"]
async fn three_awaits(locks: LockManager) {
    let work = async |_| {
        for _ in 0..3 {
            yield_now().await;
        }
    };
    let done = locks.lock("k").run(work).await;
    println!("run: {:?}", done.as_ref().err().map(|error| error.kind()));
    done.unwrap();
}

#[test]
fn one_point_can_be_run_alone() {
    let output = |point: &str| {
        let mut test = Command::new(env::current_exe().unwrap());
        let (_, module) = module_path!().split_once("::").unwrap();
        test.args(["--ignored", "--exact", &format!("{module}::three_awaits"), "--nocapture"]);
        let output = test.env("LOCK_TEST_POINT", point).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let third = output("3");
    assert_eq!(third.matches("run: ").count(), 2, "the calm run and the one point: {third}");
    assert!(third.contains("lease lost at await 3 of 3"), "{third}");
    assert!(output("pause:1").contains("holder paused past its ttl (pause 1 of 4) at the beginning"));
    let none =
        "LOCK_TEST_POINT=4 names no point of this test, which has 1 to 3, acquire:1 to 1, release:1 to 1, pause:1 to 4";
    let fourth = output("4");
    assert!(fourth.contains(none), "{fourth}");
    assert!(output("last").contains("LOCK_TEST_POINT=last: a point is a number as in `3`"));
}
