//! What the tests of the whole system stand on: real redis-servers, second processes, a network that can be made to
//! fail, and waiting that has a deadline.
//!
//! Nothing here uses lock-core, so that a test never asserts with the code that it tests; but for `history::Recorded`,
//! which writes down what lock-core does, and judges nothing, and for `sim`, which runs its engine.

#![allow(clippy::must_use_candidate, reason = "these are helpers of tests")]

pub mod actor;
pub mod cluster;
pub mod dice;
pub mod figures;
pub mod history;
pub mod namespace;
pub mod process;
pub mod proxy;
pub mod python;
pub mod resp;
pub mod sentinel;
pub mod server;
pub mod sim;
pub mod text;
pub mod wait;
pub mod wall_clock;

mod launch;
mod ports;
mod replication;
mod signals;
mod slot;

pub use actor::{Actor, Team, has_places};
pub use cluster::Cluster;
pub use dice::Dice;
pub use figures::{figure, for_seconds, left_out};
pub use launch::{ServerBuilder, is_redis_7, server_version, speaks_tls};
pub use namespace::Namespace;
pub use ports::free_port;
pub use process::Process;
pub use proxy::FaultProxy;
pub use python::python;
pub use resp::{RawClient, Reply};
pub use sentinel::Sentinels;
pub use server::RedisServer;
pub use wait::{HANDOFF, LONG, SOON, eventually, eventually_some, ms, until_free, within};
pub use wall_clock::WallClock;
