//! Ports for servers that are stopped and started again.

use std::{
    net::{Ipv4Addr, TcpListener},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// Picks a port of the loopback interface on which nothing listens.
///
/// The ports lie below those that the system gives to outgoing connections. So a server that is down does not lose its
/// port to one of them, and a client that keeps knocking at a closed port can't be connected to itself.
///
/// Somebody else may take the port before the caller does; who starts a server has to look whether it came up.
#[must_use]
pub fn free_port() -> u16 {
    // Test binaries run at the same time: each begins somewhere else.
    let start = process::id().wrapping_mul(7_919);
    (0..u32::from(COUNT))
        .map(|_| start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % u32::from(COUNT))
        .filter_map(|offset| u16::try_from(offset).ok())
        .map(|offset| FIRST + offset)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("one of ten thousand ports is free")
}

static NEXT: AtomicU32 = AtomicU32::new(0);

const FIRST: u16 = 10_000;
const COUNT: u16 = 10_000;
