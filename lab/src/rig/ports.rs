//! Ports that a process can be given, and given again after it was killed.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

// Below the ports that systems give to outgoing connections (from 32768 on Linux, 49152 elsewhere): one of
// those must not sit on the port of a killed process when it is started again.
const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;

/// A loopback address that nothing listens on now, and that this process gives out only once.
pub fn free() -> io::Result<SocketAddr> {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    // Processes that run at the same time begin at different places.
    let next = NEXT.get_or_init(|| AtomicU16::new((std::process::id() % 97) as u16 * 103));
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..COUNT {
        let offset = next.fetch_add(1, Ordering::Relaxed) % COUNT;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, FIRST + offset));
        match TcpListener::bind(address) {
            Ok(_) => return Ok(address),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_free_and_given_once() {
        let first = free().unwrap();
        let second = free().unwrap();
        assert_ne!(first, second);
        TcpListener::bind(first).unwrap();
        TcpListener::bind(second).unwrap();
    }
}
