//! Acquires that count only when replicas have the lease, on a real primary with real replicas.

mod failover;
mod forms;
mod group;
mod refusals;
mod stopped;
