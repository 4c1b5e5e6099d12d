//! What the benches share: a redis-server, the sides that are compared, processes, measures, and how figures are told.

#![allow(dead_code, reason = "each bench uses a part of it")]

pub(crate) mod clock;
pub(crate) mod contention;
pub(crate) mod handoff;
pub(crate) mod history;
pub(crate) mod holder;
pub(crate) mod pairs;
pub(crate) mod player;
pub(crate) mod plot;
pub(crate) mod relay;
pub(crate) mod report;
pub(crate) mod server;
pub(crate) mod sides;
pub(crate) mod stats;
pub(crate) mod task;
