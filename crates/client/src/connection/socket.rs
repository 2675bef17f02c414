//! A socket that keeps its deadline, even if signals arrive.
//!
//! After a signal handler (even with `SA_RESTART`), or after the process was stopped and continued,
//! a read with a timeout fails with `Interrupted`. This must not break the connection, which all
//! threads share. The socket's own timeout also starts again with every byte. So this module
//! computes how much time is left, and reads again.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};

use super::limit::later;
use super::transport::{IoDirection, Transport};
use crate::sync::Spin;

/// The silence after which the system probes a connection. Firewalls forget connections that are
/// silent for minutes.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// If the other side has not confirmed bytes for this time, the system breaks the connection.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia"))]
const UNCONFIRMED_TIMEOUT: Duration = Duration::from_secs(15);
/// The time by which the socket's own timeout may exceed the deadline. This slack saves a system
/// call for each exchange.
const TIMEOUT_SLACK: Duration = Duration::from_millis(10);
/// The maximum number of reads after the deadline, for bytes that arrived before the deadline. A
/// TLS record needs two reads.
const MAX_LATE_READS: u32 = 16;
/// The shortest timeout of a write that may write only some of its bytes.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);
const BACKLOG_IS_FULL: Duration = Duration::from_millis(1);

pub(super) struct Socket {
    open: Arc<OpenSocket>,
    deadline: Instant,
    /// The time until the deadline, if the clock has just been read.
    left: Option<Duration>,
    /// The timeouts that the stream has now, for reads and for writes.
    armed: [Duration; 2],
    /// The number of reads after the deadline.
    late_reads: u32,
    /// Whether the reader or writer may leave at the deadline, so that another thread continues.
    may_leave: bool,
    /// Whether a write must not sleep.
    now: bool,
    busy_poll: BusyPoll,
}

/// Polling for a reply before the thread sleeps. A sleeping processor may take longer to wake up
/// than the server takes to reply.
#[derive(Default)]
struct BusyPoll {
    /// The longest time for which a thread polls. If this is zero, the thread sleeps at once.
    longest: Duration,
    /// The time that polling has saved on this connection.
    spin: Spin,
    /// Whether the next read is for a reply for which a caller waits.
    is_due: bool,
}

/// Whether a thread of this process polls. A second polling thread could take the processor that
/// the server or the first thread needs.
static POLLS: AtomicBool = AtomicBool::new(false);

struct OpenSocket {
    stream: Box<dyn Transport>,
    /// Whether a thread of this process has shut the stream down.
    closed: AtomicBool,
}

impl Socket {
    /// Connects to the first of the host's addresses that accepts a connection.
    pub(super) fn tcp(host: &str, port: u16, deadline: Instant) -> io::Result<Self> {
        Self::to_one_of(&look_up(host, port)?, deadline)
    }

    fn to_one_of(addresses: &[SocketAddr], deadline: Instant) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host's name has no address");
        for (at, address) in addresses.iter().enumerate() {
            // If this address does not answer, there must be time left for the next addresses.
            let others = u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
            let share = time_left(deadline)? / others;
            match TcpStream::connect_timeout(address, share.max(Duration::from_nanos(1))) {
                Ok(stream) => return Self::with_options(stream, deadline),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn with_options(stream: TcpStream, deadline: Instant) -> io::Result<Self> {
        // Without this option a shared connection over a slow network loses half its rate.
        stream.set_nodelay(true)?;
        let options = SockRef::from(&stream);
        // If a socket is dropped, its undelivered bytes must not arrive later.
        options.set_linger(Some(Duration::ZERO))?;
        let keep_alive =
            TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE_INTERVAL);
        options.set_tcp_keepalive(&keep_alive)?;
        #[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia"))]
        options.set_tcp_user_timeout(Some(UNCONFIRMED_TIMEOUT))?;
        Ok(Self::over(Box::new(stream), deadline))
    }

    pub(super) fn unix(path: &std::path::Path, deadline: Instant) -> io::Result<Self> {
        use socket2::{Domain, SockAddr, Type};

        let address = SockAddr::unix(path)?;
        loop {
            let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
            time_left(deadline)?;
            // Do not use `connect_timeout`, which would treat `WouldBlock` as a connection in
            // progress and wait. On a unix socket a non-blocking connect succeeds or fails at once.
            socket.set_nonblocking(true)?;
            let connected = socket.connect(&address);
            socket.set_nonblocking(false)?;
            match connected {
                Ok(()) => return Ok(Self::over(Box::new(TcpStream::from(socket)), deadline)),
                // The server's queue of new connections is full. A non-blocking connect does not
                // wait until there is room.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(BACKLOG_IS_FULL.min(time_left(deadline)?));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A socket over a stream that is already open.
    pub(super) fn over(stream: Box<dyn Transport>, deadline: Instant) -> Self {
        let open = Arc::new(OpenSocket { stream, closed: AtomicBool::new(false) });
        let armed = [Duration::MAX; 2];
        let busy_poll = BusyPoll::default();
        Self {
            open,
            deadline,
            left: None,
            armed,
            late_reads: 0,
            may_leave: false,
            now: false,
            busy_poll,
        }
    }

    /// Sets how long a thread may poll after [`poll_first`](Self::poll_first).
    pub(super) fn with_busy_poll(mut self, longest: Duration) -> Self {
        self.busy_poll.longest = longest;
        self
    }

    /// Lets the next read poll before it sleeps. If a deadline is set before this read, the read
    /// does not poll.
    pub(super) fn poll_first(&mut self) {
        self.busy_poll.is_due = !self.busy_poll.longest.is_zero();
    }

    /// Polls for bytes for a moment, if polling has saved time so far.
    fn poll(&mut self) {
        let BusyPoll { longest, spin, is_due } = &mut self.busy_poll;
        if std::mem::take(is_due) && spin.has_paid() && !POLLS.swap(true, Ordering::Relaxed) {
            // An error ends the polling, and the next read returns that error.
            let arrived = || {
                !matches!(self.open.stream.is_ready(IoDirection::Read, Duration::ZERO), Ok(false))
            };
            spin.spin_for(*longest, arrived);
            POLLS.store(false, Ordering::Relaxed);
        }
    }

    /// Sets the deadline of later reads and writes.
    pub(super) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
        self.left = None;
        self.late_reads = 0;
        self.may_leave = false;
        self.now = false;
        self.busy_poll.is_due = false;
    }

    /// Like [`set_deadline`](Self::set_deadline), for a thread that leaves at the deadline and lets
    /// another thread continue. At the deadline, reads and writes fail with `WouldBlock`, so that
    /// TLS can continue, too. They end as precisely as the system's timers, while a socket's own
    /// timeout may be late by several ticks.
    pub(super) fn set_deadline_in_part(&mut self, deadline: Instant) {
        self.set_deadline(deadline);
        self.may_leave = true;
    }

    /// Like [`set_deadline_in_part`](Self::set_deadline_in_part), for a thread that must not sleep:
    /// it writes only as many bytes as the socket accepts.
    pub(super) fn set_now(&mut self, now: Instant) {
        self.set_deadline_in_part(now);
        self.now = true;
    }

    /// Sleeps until the socket is readable or writable, or until the deadline.
    fn await_ready(&self, way: IoDirection) -> io::Result<()> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            match self.open.stream.is_ready(way, left) {
                // Even with no time left, `is_ready` finds bytes that arrived before the deadline.
                Ok(false) => return Err(io::ErrorKind::WouldBlock.into()),
                Ok(true) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sets the deadline to `time` from `now` on.
    pub(super) fn set_time(&mut self, now: Instant, time: Duration) {
        // A timeout is at most a year, and never zero.
        self.set_deadline(later(now, time));
        self.left = Some(time).filter(|time| !time.is_zero());
    }

    pub(super) fn closer(&self) -> Closer {
        Closer(Arc::downgrade(&self.open))
    }

    /// Whether a [`Closer`] has ended the connection.
    pub(super) fn is_closed(&self) -> bool {
        self.open.closed.load(Ordering::Acquire)
    }

    /// Makes the next read or write end at the deadline, or at most [`TIMEOUT_SLACK`] after it.
    /// `anew` says whether the last read or write ended before the deadline.
    fn arm(&mut self, way: IoDirection, anew: bool) -> io::Result<()> {
        let left = match self.left.take().map_or_else(|| time_left(self.deadline), Ok) {
            // If the process was stopped during a read until after the deadline, let it read a
            // reply that has arrived.
            Err(_) if matches!(way, IoDirection::Read) && self.late_reads < MAX_LATE_READS => {
                self.late_reads += 1;
                Duration::from_micros(1)
            }
            left => left?,
        };
        self.set_timeout(way, left, anew)
    }

    fn set_timeout(&mut self, way: IoDirection, left: Duration, anew: bool) -> io::Result<()> {
        let armed = &mut self.armed[way as usize];
        if anew || *armed > left.saturating_add(TIMEOUT_SLACK) {
            self.open.stream.set_timeout(way, left)?;
            *armed = left;
        }
        Ok(())
    }

    /// Repeats `attempt` until it succeeds or the deadline has passed.
    fn until_deadline(
        &mut self,
        way: IoDirection,
        mut attempt: impl FnMut(&dyn Transport) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut anew = false;
        loop {
            match (self.may_leave, way) {
                (false, _) => self.arm(way, anew)?,
                (true, IoDirection::Read) => self.await_ready(way)?,
                // The socket accepts some bytes, but perhaps not all.
                (true, IoDirection::Write) => {
                    self.await_ready(way)?;
                    let left = self.deadline.saturating_duration_since(Instant::now());
                    self.set_timeout(way, left.max(MIN_TIMEOUT), anew)?;
                }
            }
            match attempt(&*self.open.stream) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.may_leave {
                        return Err(error);
                    }
                    // No bytes have arrived before the deadline.
                    if self.late_reads > 0 {
                        return Err(late());
                    }
                    // The socket's own timeout was still set for an earlier deadline.
                    anew = true;
                }
                done => return done.map_err(given_up),
            }
        }
    }
}

/// Ends a socket's connection from another thread, even while a thread sleeps in a read.
pub(crate) struct Closer(Weak<OpenSocket>);

impl Closer {
    pub(crate) fn close(&self) {
        let Some(open) = self.0.upgrade() else { return };
        open.closed.store(true, Ordering::Release);
        // The other side may already have closed the socket.
        let _ = open.stream.shut_down();
    }

    /// Returns the address of the other side, or `None` if the other side has no address or the
    /// socket is closed.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.0.upgrade()?.stream.peer()
    }

    /// Whether the socket is gone, so that there is nothing to close.
    pub(super) fn is_done(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// The addresses of a host. The system's look-up has no deadline.
pub(super) fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    #[cfg(feature = "testing")]
    if let Some(addresses) = crate::testing::led(host) {
        return Ok(addresses);
    }
    Ok((host, port).to_socket_addrs()?.collect())
}

/// Returns the time until the deadline, or an error if the deadline has passed. The time is never
/// zero, because a socket treats zero as "no timeout".
fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(late());
    }
    Ok(left)
}

/// Returns the error of a read or write. If the system has broken the connection because the other
/// side was silent, this is the error of a broken connection and not a timeout.
fn given_up(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::TimedOut => io::Error::new(io::ErrorKind::ConnectionAborted, error),
        _ => error,
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the server did not answer in time")
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.poll();
        self.until_deadline(IoDirection::Read, |stream| stream.read(buffer))
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.now {
            return self.until_deadline(IoDirection::Write, |stream| stream.write(bytes));
        }
        loop {
            match self.open.stream.write_now(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done.map_err(given_up),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::net::TcpListener;
    use std::sync::atomic::AtomicU32;

    use socket2::{Domain, Type};

    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    /// Returns an address that accepts no connection, and the connections that fill its queue.
    fn silent() -> (SocketAddr, Vec<socket2::Socket>) {
        let listener = socket2::Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut all = vec![listener];
        loop {
            let waiting = socket2::Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            if waiting.connect_timeout(&address, Duration::from_millis(200)).is_err() {
                return (address.as_socket().unwrap(), all);
            }
            all.push(waiting);
        }
    }

    /// The address among `addresses` that accepts a connection within a second.
    fn connect(addresses: &[SocketAddr]) -> io::Result<SocketAddr> {
        let socket = Socket::to_one_of(addresses, Instant::now() + Duration::from_secs(1))?;
        Ok(socket.open.stream.peer().unwrap())
    }

    #[test]
    fn addresses_that_are_silent_leave_time_for_the_one_that_answers() {
        let (silent, _waiting) = silent();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let answers = listener.local_addr().unwrap();
        for addresses in [&[answers][..], &[silent, answers], &[silent, silent, answers, silent]] {
            // A machine that stands still could leave no time for any address, so try several
            // times.
            let connected = (0..5).find_map(|_| connect(addresses).ok());
            assert_eq!(connected, Some(answers), "of {addresses:?}");
        }
        for addresses in [&[silent][..], &[silent, silent]] {
            assert_eq!(connect(addresses).unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
        assert_eq!(connect(&[]).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    /// A process that was stopped during a read can still read the reply afterwards. TLS needs
    /// several reads, because it reads the header of a record first.
    #[test]
    fn bytes_that_came_before_the_deadline_are_read_after_it_in_any_pieces() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let later = Instant::now() + LONG;
        let address = listener.local_addr().unwrap();
        let mut socket = Socket::to_one_of(&[address], later).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        other.write_all(b"abc").unwrap();
        let mut piece = [0];
        socket.read_exact(&mut piece).unwrap();
        socket.set_deadline(Instant::now());
        for expected in [b"b", b"c"] {
            socket.read_exact(&mut piece).unwrap();
            assert_eq!(&piece, expected);
        }
        assert_eq!(socket.read(&mut piece).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    /// If a server sends one byte after the other, the read still ends.
    #[test]
    fn a_read_ends_after_its_deadline_though_more_bytes_come_all_the_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let later = Instant::now() + LONG;
        let address = listener.local_addr().unwrap();
        let mut socket = Socket::to_one_of(&[address], later).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        other.write_all(&[0; 1_000]).unwrap();
        let mut piece = [0];
        socket.read_exact(&mut piece).unwrap();
        socket.set_deadline(Instant::now());
        let ends = (0..999).find_map(|_| socket.read(&mut piece).err());
        assert_eq!(ends.map(|error| error.kind()), Some(io::ErrorKind::TimedOut));
    }

    /// A stream with one byte for each read. Poll number `at` finds the byte.
    struct Polled {
        at: u32,
        looks: AtomicU32,
        reads: AtomicU32,
        on_look: Box<dyn Fn() + Send + Sync>,
    }

    impl Transport for Arc<Polled> {
        fn read(&self, _: &mut [u8]) -> io::Result<usize> {
            self.reads.fetch_add(1, Ordering::SeqCst);
            self.looks.store(0, Ordering::SeqCst);
            Ok(1)
        }
        fn write(&self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }
        fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
            self.write(bytes)
        }
        fn set_timeout(&self, _: IoDirection, _: Duration) -> io::Result<()> {
            Ok(())
        }
        fn is_ready(&self, _: IoDirection, within: Duration) -> io::Result<bool> {
            assert!(within.is_zero(), "a poll does not sleep");
            (self.on_look)();
            Ok(self.looks.fetch_add(1, Ordering::SeqCst) + 1 >= self.at)
        }
        fn shut_down(&self) -> io::Result<()> {
            Ok(())
        }
        fn peer(&self) -> Option<SocketAddr> {
            None
        }
    }

    fn polled(
        at: u32,
        longest: Duration,
        on_look: impl Fn() + Send + Sync + 'static,
    ) -> (Arc<Polled>, Socket) {
        let (looks, reads) = (AtomicU32::new(0), AtomicU32::new(0));
        let stream = Arc::new(Polled { at, looks, reads, on_look: Box::new(on_look) });
        let later = Instant::now() + LONG;
        let socket = Socket::over(Box::new(Arc::clone(&stream)), later).with_busy_poll(longest);
        (stream, socket)
    }

    /// All cases are in one test, because only one thread of a process polls at a time.
    #[test]
    fn a_reader_polls_where_that_pays_and_no_other_thread_does() {
        let looks = Arc::new(AtomicU32::new(0));
        let count = |looks: &Arc<AtomicU32>| {
            let looks = Arc::clone(looks);
            move || {
                looks.fetch_add(1, Ordering::SeqCst);
            }
        };
        // If replies arrive soon, reads for a reply poll. Other reads do not poll.
        let (_, mut socket) = polled(3, LONG, count(&looks));
        for _ in 0..10 {
            socket.poll_first();
            socket.read_exact(&mut [0; 2]).unwrap();
            socket.set_deadline(Instant::now() + LONG);
            socket.read_exact(&mut [0]).unwrap();
        }
        assert_eq!(looks.swap(0, Ordering::SeqCst), 30);
        // If replies arrive late, there is no second poll for a long time.
        let (late, mut socket) = polled(u32::MAX, Duration::from_millis(1), count(&looks));
        for read in 0..100 {
            socket.poll_first();
            socket.read_exact(&mut [0]).unwrap();
            let looked = looks.swap(0, Ordering::SeqCst);
            assert_eq!(looked > 0, read == 0, "{looked} looks before read {read}");
        }
        assert_eq!(late.reads.load(Ordering::SeqCst), 100);
        // Another thread polls while this thread reads.
        let (_, second) = polled(3, LONG, count(&looks));
        let second = std::sync::Mutex::new(second);
        let beside = move || {
            let mut second = second.lock().unwrap();
            second.poll_first();
            second.read_exact(&mut [0]).unwrap();
        };
        let (_, mut first) = polled(3, LONG, beside);
        first.poll_first();
        first.read_exact(&mut [0]).unwrap();
        assert_eq!(looks.load(Ordering::SeqCst), 0);
    }
}
