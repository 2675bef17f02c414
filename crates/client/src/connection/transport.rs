//! The byte streams of connections: over the network, or to a server in this process.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::ConnectionAddr;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};

/// The flags for a write that does not wait and raises no signal. Apple's sockets do not have the
/// second flag: std and socket2 set a socket option instead.
#[cfg(not(target_vendor = "apple"))]
const NOW: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
#[cfg(target_vendor = "apple")]
const NOW: SendFlags = SendFlags::DONTWAIT;

/// A stream of bytes to a server. One thread at a time reads and writes. Any thread may shut the
/// stream down.
pub trait Transport: Send + Sync {
    /// Reads the bytes that have arrived. If none have arrived, sleeps until some arrive, and fails
    /// with `WouldBlock` after the timeout. Returns zero if the other side has ended the stream.
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes some of the bytes. If the stream accepts none now, sleeps until it accepts some, at
    /// most for the timeout.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Writes as many of the bytes as the stream accepts now, and never sleeps. If it accepts none,
    /// fails with `WouldBlock`.
    fn write_now(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Sets the timeout of later reads or writes. The timeout must not be zero.
    fn set_timeout(&self, way: IoDirection, timeout: Duration) -> io::Result<()>;

    /// Sleeps until a read or write would not block. Returns `false` if the time ended first.
    fn is_ready(&self, way: IoDirection, within: Duration) -> io::Result<bool>;

    /// Ends the stream. Wakes a thread that sleeps in a read or write of the stream.
    fn shut_down(&self) -> io::Result<()>;

    /// The address of the other side, if it has one.
    fn peer(&self) -> Option<SocketAddr>;
}

/// The direction in which bytes move.
#[derive(Clone, Copy, Debug)]
pub enum IoDirection {
    /// Towards this process.
    Read,
    /// Away from this process.
    Write,
}

/// Unix sockets use this implementation, too: for the system, both are stream descriptors.
impl Transport for TcpStream {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut &*self, buffer)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(&mut &*self, bytes)
    }

    fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self, bytes, NOW)?)
    }

    fn set_timeout(&self, way: IoDirection, timeout: Duration) -> io::Result<()> {
        match way {
            IoDirection::Read => self.set_read_timeout(Some(timeout)),
            IoDirection::Write => self.set_write_timeout(Some(timeout)),
        }
    }

    fn is_ready(&self, way: IoDirection, within: Duration) -> io::Result<bool> {
        let flags = match way {
            IoDirection::Read => PollFlags::IN,
            IoDirection::Write => PollFlags::OUT,
        };
        let timeout = Timespec::try_from(within).ok();
        Ok(poll(&mut [PollFd::new(self, flags)], timeout.as_ref())? > 0)
    }

    fn shut_down(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Both)
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.peer_addr().ok()
    }
}

type Dial = dyn Fn(&ConnectionAddr, Instant) -> io::Result<Box<dyn Transport>> + Send + Sync;

/// Opens streams to a server in this process, for any address.
#[derive(Clone)]
pub struct Dialer(Arc<Dial>);

impl Dialer {
    /// Makes a dialer from `dial`, which gets the address and the deadline for opening the stream.
    pub fn new(
        dial: impl Fn(&ConnectionAddr, Instant) -> io::Result<Box<dyn Transport>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self(Arc::new(dial))
    }

    pub(super) fn dial(
        &self,
        address: &ConnectionAddr,
        deadline: Instant,
    ) -> io::Result<Box<dyn Transport>> {
        (self.0)(address, deadline)
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").finish_non_exhaustive()
    }
}
