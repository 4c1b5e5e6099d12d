//! At most so many tests with servers at a time on one machine, whichever processes they belong to: two runs of the tests at once
//! take turns, where each of them alone has the machine for as many tests as it bears.

use std::{
    cell::RefCell,
    net::{Ipv4Addr, UdpSocket},
    ops::Range,
    thread,
    time::Duration,
};

/// Waits until this test may have servers. It may until its thread ends.
///
/// Each slot is a port that is bound for UDP, so that the system frees those of a process that dies.
pub(crate) fn take() {
    // A worker of a runtime, or another process, belongs to a test that has its slot.
    if matches!(thread::current().name(), Some("tokio-rt-worker" | "main")) {
        return;
    }
    OWN.with_borrow_mut(|own| {
        while own.is_none() {
            *own = SLOTS.clone().find_map(|port| UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).ok());
            if own.is_none() {
                thread::sleep(Duration::from_millis(50));
            }
        }
    });
}

thread_local! {
    static OWN: RefCell<Option<UdpSocket>> = const { RefCell::new(None) };
}

/// As many as `RUST_TEST_THREADS` in `tests/run`.
const SLOTS: Range<u16> = 9_980..10_000;
