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
    first_free(is_free)
}

/// Picks a port as [`free_port`] does, for a node of a cluster: the port of its bus, [`BUS`] above, is free as well.
pub(crate) fn free_port_with_bus() -> u16 {
    first_free(|port| is_free(port) && is_free(port + BUS))
}

fn first_free(is_free: impl Fn(u16) -> bool) -> u16 {
    // Test binaries run at the same time: each begins somewhere else.
    let start = process::id().wrapping_mul(7_919);
    (0..u32::from(COUNT))
        .map(|_| start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % u32::from(COUNT))
        .filter_map(|offset| u16::try_from(offset).ok())
        .map(|offset| FIRST + offset)
        .find(|port| is_free(*port))
        .expect("one of ten thousand ports is free")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

static NEXT: AtomicU32 = AtomicU32::new(0);

const FIRST: u16 = 10_000;
const COUNT: u16 = 10_000;

/// How far the port of a node's bus lies above the node's own.
const BUS: u16 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_whose_bus_is_taken_is_passed_over() {
        let bus = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port + BUS)).ok();
        // Ports are tried in a row.
        let first = free_port_with_bus();
        let taken: Vec<_> = (first + 1..=first + 50).filter_map(bus).collect();
        let second = free_port_with_bus();
        assert!(!taken.is_empty());
        assert!(taken.iter().all(|listener| listener.local_addr().unwrap().port() != second + BUS));
    }
}
