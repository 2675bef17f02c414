//! Free ports below the range from which the system takes the ports of outgoing connections.
//!
//! Such a port can be bound again after a server's death: a client that keeps trying to connect
//! never gets it as its own port by chance (and then talks to itself).

use std::net::TcpListener;
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

const FIRST: u32 = 15_000;
const COUNT: u32 = 17_000;

/// A port that is free now. Somebody may take it first, so the caller must be ready for that.
pub(crate) fn free() -> u16 {
    static TURN: AtomicU32 = AtomicU32::new(0);
    static START: OnceLock<u32> = OnceLock::new();
    // Test binaries run side by side: each starts somewhere else, and then does not come back soon
    // to a port that it may have in mind for a restart.
    let start = *START.get_or_init(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        process::id().wrapping_mul(7_919).wrapping_add(now.subsec_micros())
    });
    for _ in 0..200 {
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + start.wrapping_add(turn.wrapping_mul(101)) % COUNT;
        let Ok(port) = u16::try_from(port) else {
            continue;
        };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    match TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()) {
        Ok(address) => address.port(),
        Err(error) => panic!("no port of 127.0.0.1 can be bound ({error}): is loopback up?"),
    }
}
