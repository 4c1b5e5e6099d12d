//! The count of those who wait, which `max_waiters` limits.

use super::{line::WaiterId, *};
use crate::backend::BackendError;

/// How a wait ends.
type Way = fn(&mut Process, WaiterId);

/// A process that may have one waiter in all; it has one, for whom the key is busy.
fn full() -> (Process, WaiterId) {
    let mut process = Process::limited(usize::MAX, 1);
    let id = process.wait();
    process.answer(|_, _| Ok(BUSY));
    assert!(process.poll(id).is_pending() && process.queues.lines.waiting() == 1);
    (process, id)
}

/// Has another request find its own key busy. Returns whether it may wait.
fn may_wait(process: &mut Process) -> bool {
    let other = process.join(newcomer(&LockKey::new("other").unwrap(), terms(9_000), false));
    process.answer(|_, _| Ok(BUSY));
    let waits = process.poll(other).is_pending();
    if waits {
        process.leave(other);
    }
    waits
}

#[test]
fn a_waiter_is_no_longer_counted_however_its_wait_has_ended() {
    let ways: [(&str, Way); 6] = [
        ("its request fails", |process, id| {
            process.pass_time(700);
            process.answer(|_, _| Err(BackendError::new(ErrorKind::WrongType, "a list")));
            assert_eq!(process.error(id), ErrorKind::WrongType);
        }),
        ("it is shut down", |process, id| {
            process.queues.shut_down(at(0));
            assert_eq!(process.error(id), ErrorKind::ShutDown);
        }),
        ("its time is over", |process, id| {
            assert!(process.queues.give_up(id, at(0)).is_ready());
        }),
        ("its future is dropped", |process, id| process.leave(id)),
        ("it has its turn", |process, id| {
            process.pass_time(700);
            process.grant();
            let held = process.hold(id);
            process.release(held);
            process.grant();
        }),
        ("it misses its turn, and is dropped", |process, id| {
            process.pass_time(700);
            process.grant();
            process.pass_time(101);
            process.leave(id);
        }),
    ];
    for (way, ends) in ways {
        let (mut process, id) = full();
        assert!(!may_wait(&mut process), "one waits already");
        ends(&mut process, id);
        assert_eq!(process.queues.lines.waiting(), 0, "{way}");
        assert!(may_wait(&mut process), "{way}");
    }
}

#[test]
fn a_waiter_that_missed_its_turn_is_counted_again_while_it_stands_in_line() {
    let (mut process, id) = full();
    process.pass_time(700);
    process.grant();
    process.pass_time(101);
    assert_eq!(process.queues.lines.waiting(), 0);
    assert!(process.poll(id).is_pending());
    assert_eq!(process.queues.lines.waiting(), 1);
    process.leave(id);
}
