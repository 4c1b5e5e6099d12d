//! Histories: what processes did with locks, one JSON object a line, and a checker that judges them.
//!
//! Lines may come in any order, in one file for each process or all in one. Times are milliseconds on CLOCK_MONOTONIC of
//! the machine ([`now`]), never the wall clock and never a clock under test. A process has at most one operation under
//! way; tasks are processes of their own, `p3/t7`.
//!
//! | line | says besides who, when and on which key |
//! | --- | --- |
//! | `acquire` | `token`, `fence`, `ttl`; `deadline`: until when the guard says that it is valid; `mode`, `from`, `try`, `foreign` |
//! | `extend` | `deadline` and `ttl` where they change; a renewal that was noticed is one, from its sending, or the last look if that was before, to this one |
//! | `release` | ok: the lease was there, and I removed it |
//! | `lost` | the holder was told |
//! | `check` | `valid`: what the guard answered |
//! | `write`, `read` | the fenced register that the lock guards: `fence`, `value`, `prev`; fail: refused as stale |
//! | `crash` | killed at `t_invoke`; `p3` takes `p3/t7` along |
//! | `fault` | a window in which slow wake-ups are excused, and nothing else |
//! | `standstill` | nothing shows that the process ran from `t_invoke` to `t_return` |
//! | `leftover` | a key found after the run: `allowed`, or its `pttl` below `max_pttl` |
//! | `vanished` | a window in which leases of the key, or of all, may have been lost at the servers: a [`Mark`] |
//!
//! `result` is `ok` where it is left out, `fail` for what surely did nothing, `info` where nobody knows. A line without
//! `t_return` is a call that never came back. A token reads `<tenure>/<hold>`: one process's possession of a key, and one
//! local holder's part of it. A hand-over inside a process counts as release and acquire.
//!
//! # Standstills
//!
//! A machine that has more to do than it has cores lets a process stand still for hundreds of milliseconds at a time, and no
//! promise of a lock says otherwise. So that a busy machine neither breaks a rule nor loosens it, each recorded process has a
//! pulse: a thread that notes every 15 ms that it runs. Two beats that are further apart are a *standstill*, from the one to the other.
//! So is the time in which Linux let a thread of the recorder wait though it was ready: that counts from the beat at which it is
//! found, backwards. The recorders of the process write it down, before anything that comes later. [`History::events`] leaves
//! standstills out; the [`Checker`] knows them.
//!
//! The bound of the checker counts time in which a process ran. What a waiter waits is excused for as long as its own process
//! stood still, exactly, and for as long as the process of the test did, whose proxies its requests may go through
//! ([`Run`] writes it down as the process `nemesis`), or the servers that the test has started; the standstills of other
//! processes excuse nothing of it. Deadlines
//! need no excuse: [`Recorded`] reads both clocks again until nothing came between the two.

mod check;
mod clock;
mod delay;
mod downgrade;
mod event;
mod exclusion;
mod foreign;
mod leases;
mod mode;
mod order;
mod pulse;
mod read;
mod record;
mod recorded;
mod register;
mod standstill;
mod store;
mod undone;
mod waiting;

pub use check::{Checker, Mark, Rule, Violation, judged, judged_by};
pub use clock::now;
pub(crate) use delay::serves;
pub use event::{Event, Op, Outcome};
pub use foreign::{ForeignClient, Manners};
pub use mode::Mode;
pub use read::History;
pub use record::{Call, Recorder, Run};
pub(crate) use recorded::outcome;
pub use recorded::{Held, Recorded, validity};
pub use store::Register;
pub use undone::{TakenAgain, Undone};
