//! Ports for servers that are stopped and started again.

use std::{
    net::{Ipv4Addr, TcpListener, UdpSocket},
    ops::Range,
    process,
    sync::{Mutex, PoisonError},
};

/// Picks a port of the loopback interface on which nothing listens, and which no other process of tests picks. The port that a node
/// of a cluster would have its bus on, 10,000 above, is free as well.
///
/// The ports lie below those that the system gives to outgoing connections. So a server that is down does not lose its
/// port to one of them, and a client that keeps knocking at a closed port can't be connected to itself.
///
/// Another program may take the port before the caller does; who starts a server has to look whether it came up.
pub fn free_port() -> u16 {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut ports = (0..COUNT).map(|_| own.next());
    ports.find(|port| is_free(*port) && is_free(*port + BUS)).expect("a port of this process is free")
}

/// The ports of this process.
///
/// Tests of another checkout may run at the same time. If they took the port of a server that is down for a moment, a
/// sentinel or a node of a cluster would find a stranger that speaks its language. So ports are taken in blocks, and a
/// block belongs to the process that has bound its first port for UDP: the system lets go of it when the process ends.
struct Own {
    /// The first port of each block, and what shows whose it is.
    claims: Vec<(u16, UdpSocket)>,
    /// How many ports have been handed out.
    handed_out: u16,
}

impl Own {
    /// The next port of the last block; of a new one if that is used up; of the first one again after [`ENOUGH`].
    fn next(&mut self) -> u16 {
        if self.handed_out == BLOCK * ENOUGH {
            self.handed_out = 0;
        }
        let (block, port) = (usize::from(self.handed_out / BLOCK), self.handed_out % BLOCK);
        if block == self.claims.len() {
            match claim() {
                Some(claim) => self.claims.push(claim),
                None if self.claims.is_empty() => panic!("other processes have all ports for tests, {PORTS:?}"),
                None => {
                    self.handed_out = 0;
                    return self.next();
                }
            }
        }
        self.handed_out += 1;
        self.claims[block].0 + port
    }
}

fn claim() -> Option<(u16, UdpSocket)> {
    // Processes that begin together do not all try the same ones.
    let start = u16::try_from(process::id() % u32::from(BLOCKS)).expect("it is below the number of blocks");
    let mut firsts = (0..BLOCKS).map(|offset| PORTS.start + (start + offset) % BLOCKS * BLOCK);
    firsts.find_map(|first| Some((first, UdpSocket::bind((Ipv4Addr::LOCALHOST, first)).ok()?)))
}

static OWN: Mutex<Own> = Mutex::new(Own { claims: Vec::new(), handed_out: 0 });

const PORTS: Range<u16> = 10_000..20_000;
const COUNT: u16 = PORTS.end - PORTS.start;
const BLOCK: u16 = 100;
const BLOCKS: u16 = COUNT / BLOCK;

/// As many blocks as one process takes, more ports than the tests of the whole system need. Three runs at once find room.
const ENOUGH: u16 = BLOCKS / 3;

/// How far the port of a node's bus lies above the node's own.
const BUS: u16 = 10_000;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn port_whose_bus_is_taken_is_passed_over() {
        let bus = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port + BUS)).ok();
        // Ports are tried in a row.
        let first = free_port();
        let taken: Vec<_> = (first + 1..=first + 50).filter_map(bus).collect();
        let second = free_port();
        assert!(!taken.is_empty());
        assert!(taken.iter().all(|listener| listener.local_addr().unwrap().port() != second + BUS));
    }

    #[test]
    fn no_two_processes_have_a_port_in_common() {
        // Each has claims of its own, as two processes would.
        let mut processes = [const { Own { claims: Vec::new(), handed_out: 0 } }; 2];
        let few = usize::from(BLOCK) + 1;
        let [one, other] = processes.each_mut().map(|own| (0..few).map(|_| own.next()).collect::<HashSet<_>>());
        assert_eq!((one.len(), other.len()), (few, few));
        assert!(one.is_disjoint(&other));
    }
}
