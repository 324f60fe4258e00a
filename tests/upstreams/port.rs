//! Addresses for servers that are killed and started again at the same place.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// First port, below the range that Linux assigns by itself (from 32768 on): a program that binds to port 0 could
/// receive that of a server that is down for a moment.
const FIRST: u32 = 20_000;
const PORTS: u32 = 10_000;

static TAKEN: AtomicU32 = AtomicU32::new(0);

/// Returns an address of this machine without a listener, each only once.
pub(crate) fn free_address() -> SocketAddr {
    // Concurrent runs begin at different ports.
    let begin = process::id().wrapping_mul(997);
    for _ in 0..PORTS {
        let port = FIRST + begin.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, u16::try_from(port).unwrap()));
        // Does not listen there: a child process that is forked meanwhile would inherit the socket until it executes its program.
        if TcpStream::connect(address).is_err() {
            return address;
        }
    }
    panic!("no port is free from {FIRST} on");
}
