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
//! | `leftover` | a key found after the run: `allowed`, or its `pttl` below `max_pttl` |
//! | `vanished` | a window in which leases of the key, or of all, may have been lost at the servers: a [`Mark`] |
//!
//! `result` is `ok` where it is left out, `fail` for what surely did nothing, `info` where nobody knows. A line without
//! `t_return` is a call that never came back. A token reads `<tenure>/<hold>`: one process's possession of a key, and one
//! local holder's part of it. A hand-over inside a process counts as release and acquire.

mod asked;
mod check;
mod clock;
mod downgrade;
mod event;
mod exclusion;
mod foreign;
mod leases;
mod mode;
mod order;
mod read;
mod record;
mod recorded;
mod register;
mod settle;
mod store;
mod taken_again;
mod undone;
mod waiting;

pub use check::{Checker, Mark, Rule, Violation, judged, judged_by};
pub use clock::now;
pub use event::{Event, Op, Outcome};
pub use foreign::{ForeignClient, Manners};
pub use mode::Mode;
pub use read::{History, Unreadable};
pub use record::{Call, Recorder, Run};
pub use recorded::{Held, Recorded, validity};
pub use store::Register;
pub use taken_again::TakenAgain;
pub use undone::Undone;
