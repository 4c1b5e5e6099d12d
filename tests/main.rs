//! The whole system: real servers, second processes, a network that fails. One program, since each is linked with the whole
//! tree.

#[path = "../lock-core/tests/support/log.rs"]
mod log;

mod bad_input;
mod client;
mod connection;
mod contention;
mod credentials;
mod durability;
mod faults;
mod fenced;
mod free;
mod grpc;
mod guarantees;
mod harness;
mod harness_cluster;
mod harness_sentinel;
mod health;
mod histories;
mod history;
mod hostile_ids;
mod in_part;
mod leftovers;
mod modes;
mod network;
mod observe;
mod one_manager;
mod patient;
mod processes;
mod proxy;
mod quorum;
mod replica_lacks;
mod rights;
mod said_of_clusters;
mod said_once;
mod secrets;
mod shares;
mod standalone;
mod status;
mod tls;
mod topologies;
mod tour;
mod tower;
mod trust;
