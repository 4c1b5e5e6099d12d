//! The layer between real clients, real sockets and a real Redis.

mod bodies;
mod hang_up;
mod idempotent;
mod mistakes;
mod processes;
mod shop;
