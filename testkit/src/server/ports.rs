//! Free ports below the range from which the system takes ports for outgoing connections.
//!
//! A server can bind such a port again after it was killed. The system never gives such a port to a
//! client that connects to it, which would then connect to itself. While a [`Port`] exists, no
//! other process that uses this kit can get the port. So a client never reaches the server of
//! another test.

use std::net::TcpListener;
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

const FIRST: u32 = 15_000;
const COUNT: u32 = 17_000;

/// A reserved port, with or without a server on it.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _reserved: Reserved,
}

impl Port {
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Reserves this port. Returns `None` if another test has reserved it, or if a program listens
    /// on it.
    pub(super) fn take(number: u16) -> Option<Self> {
        let reserved = reserve(number)?;
        TcpListener::bind(("127.0.0.1", number)).ok()?;
        Some(Self { number, _reserved: reserved })
    }
}

/// Returns a port that is free now. A program without this kit may still take the port before the
/// caller does.
pub(crate) fn free() -> Port {
    static TURN: AtomicU32 = AtomicU32::new(0);
    static START: OnceLock<u32> = OnceLock::new();
    // Test programs run at the same time, so each program begins its search at another port.
    let start = *START.get_or_init(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        process::id().wrapping_mul(7_919).wrapping_add(now.subsec_micros())
    });
    for _ in 0..200 {
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + start.wrapping_add(turn.wrapping_mul(101)) % COUNT;
        if let Some(port) = u16::try_from(port).ok().and_then(Port::take) {
            return port;
        }
    }
    for _ in 0..200 {
        match TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()) {
            Ok(address) => {
                if let Some(port) = Port::take(address.port()) {
                    return port;
                }
            }
            Err(error) => panic!("no port of 127.0.0.1 can be bound ({error}): is loopback up?"),
        }
    }
    panic!("all ports of 127.0.0.1 that were tried are in use")
}

/// A socket whose abstract name contains the port's number. While the socket is open, no other
/// process in the same network namespace can use this name. The system closes the socket when the
/// process ends.
#[cfg(target_os = "linux")]
type Reserved = Option<std::os::unix::net::UnixListener>;

#[cfg(target_os = "linux")]
fn reserve(port: u16) -> Option<Reserved> {
    use std::io::ErrorKind;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    let name = SocketAddr::from_abstract_name(format!("redlatch-testkit:{port}"));
    match name.and_then(|name| UnixListener::bind_addr(&name)) {
        Ok(socket) => Some(Some(socket)),
        Err(error) if error.kind() == ErrorKind::AddrInUse => None,
        // On a system without abstract socket names, the kit reserves nothing.
        Err(_) => Some(None),
    }
}

#[cfg(not(target_os = "linux"))]
type Reserved = ();

#[cfg(not(target_os = "linux"))]
fn reserve(_: u16) -> Option<Reserved> {
    Some(())
}
