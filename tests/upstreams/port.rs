//! Addresses for what is killed and started again at the same place.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// Below what Linux gives out by itself (from 32768 on): whatever asks for any port, here or elsewhere on the machine, could be
/// given that of somebody who is dead for a moment.
const FIRST: u32 = 20_000;
const PORTS: u32 = 10_000;

static TAKEN: AtomicU32 = AtomicU32::new(0);

/// An address of this machine at which nobody listens, given out once.
pub(crate) fn free_address() -> SocketAddr {
    // Runs beside each other begin elsewhere.
    let begin = process::id().wrapping_mul(997);
    for _ in 0..PORTS {
        let port = FIRST + begin.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, u16::try_from(port).unwrap()));
        // Not by listening there: a process that is started meanwhile could have the socket too, until it is itself.
        if TcpStream::connect(address).is_err() {
            return address;
        }
    }
    panic!("no port is free from {FIRST} on");
}
