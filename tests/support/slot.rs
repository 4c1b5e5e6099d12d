//! When a test may begin to start servers.
//!
//! At most [`SLOTS`] tests have servers at a time on one machine, whichever processes they belong to: two runs of the tests at
//! once take turns. And where more wants to run than the processors bear, all but a few wait until there is room: tests that
//! starve one another meet limits that are none of their subject.

use std::{
    cell::RefCell,
    fs,
    io::ErrorKind,
    net::{Ipv4Addr, UdpSocket},
    ops::Range,
    sync::{Mutex, PoisonError},
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
        if own.is_none() {
            // One after the other, so that the next sees what the one before makes run.
            let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
            while own.is_none() {
                let slots = if is_crowded() { SLOTS.start..SLOTS.start + ALWAYS } else { SLOTS };
                *own = slots.into_iter().find_map(|port| match UdpSocket::bind((Ipv4Addr::LOCALHOST, port)) {
                    Ok(slot) => Some(slot),
                    Err(error) if error.kind() == ErrorKind::AddrInUse => None,
                    Err(error) => panic!("a test may not begin: {error}"),
                });
                thread::sleep(Duration::from_millis(20));
            }
        }
    });
}

/// Whether as much wants to run now as the processors bear. Only Linux can say.
fn is_crowded() -> bool {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    // "0.20 0.18 0.12 3/80 11206": 3 of 80 threads run, or would if there were a processor.
    let running = fs::read_to_string("/proc/loadavg").ok().and_then(|load| {
        let (running, _) = load.split_whitespace().nth(3)?.split_once('/')?;
        running.parse::<usize>().ok()
    });
    running.is_some_and(|running| running > MOST_OF_A_CORE * cores)
}

thread_local! {
    static OWN: RefCell<Option<UdpSocket>> = const { RefCell::new(None) };
}

static TURN: Mutex<()> = Mutex::new(());

/// As many as `RUST_TEST_THREADS` in `tests/run`.
const SLOTS: Range<u16> = 9_980..10_000;

/// How many of them are given however much runs.
const ALWAYS: u16 = 4;

/// How many threads that want to run one processor bears.
const MOST_OF_A_CORE: usize = 6;
