//! Connections that were idle for a long time.

use super::*;

/// A firewall silently drops a connection that was idle for a long time. So the test leaves the
/// connection idle for that time.
#[test]
fn a_lane_that_was_idle_for_long_is_looked_at_before_it_is_trusted_but_not_by_a_drop() {
    let server = server();
    let mut drops = IdleDrops::of(&server);
    let proxy = Proxy::before(&server);
    let client = impatient(&proxy.url()).connections(1).connect().unwrap();
    let lock = client.reentrant_lock("idle");
    lock.lock().unwrap().unlock().unwrap();
    thread::sleep(Duration::from_secs(11));
    proxy.on(Direction::Request, 1, Action::Silence, |_| true);
    lock.lock().unwrap().unlock().unwrap();
    assert_eq!(proxy.fired(), 1, "the connection was still alive");
    server.pause();
    let longest = drops.drop_all();
    server.resume();
    // A call would try for a minute to open a new connection.
    assert!(longest < TIMEOUT, "{longest:?}");
}

/// While the client holds nothing, it sends no renewals, and the connection is idle.
#[test]
fn the_connection_of_renewals_is_looked_at_after_it_was_idle_for_long() {
    let server = server();
    let proxy = Proxy::before(&server);
    let lease = SHORT_LEASE;
    // The client sends nothing but renewals.
    let client = Client::builder(&proxy.url()).watchdog_timeout(lease).client_tracking(false);
    let client = client.connect().unwrap();
    let lock = client.reentrant_lock("idle");
    let held_and_renewed = |guard: &LockGuard| {
        wait_until("a third has gone", TIMEOUT, || guard.remaining() < lease * 3 / 4);
        wait_until("it is renewed", TIMEOUT, || {
            assert_eq!(guard.state(), HoldState::Held, "each renewal succeeds");
            guard.remaining() > lease * 3 / 4
        });
    };
    let guard = lock.lock().unwrap();
    held_and_renewed(&guard);
    guard.unlock().unwrap();
    thread::sleep(Duration::from_secs(11));
    let guard = lock.lock().unwrap();
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    proxy.on(Direction::Request, 1, Action::Silence, move |bytes| {
        heard.lock().unwrap().extend_from_slice(bytes);
        true
    });
    held_and_renewed(&guard);
    assert_eq!(proxy.fired(), 1, "the connection was still alive");
    assert_eq!(String::from_utf8_lossy(&said.lock().unwrap()), "*1\r\n$4\r\nPING\r\n");
    guard.unlock().unwrap();
}

/// Threads with guards that share an idle lane.
struct IdleDrops {
    /// A barrier that the threads pass when all have begun, and again when they may drop their
    /// guards.
    gate: Arc<Barrier>,
    threads: Vec<Running<Duration>>,
    /// The client, whose end waits for the server.
    _client: Client,
}

impl IdleDrops {
    const THREADS: usize = 48;

    fn of(server: &Server) -> Self {
        let client = Client::builder(&server.url()).response_timeout(TIMEOUT / 4);
        let client = client
            .connect_timeout(LONG_LEASE)
            .watchdog_timeout(LONG_LEASE)
            .connections(1)
            .connect()
            .unwrap();
        let gate = Arc::new(Barrier::new(Self::THREADS + 1));
        let start = |thread| {
            let (client, gate) = (client.clone(), Arc::clone(&gate));
            spawn(move || {
                let take = |at| client.reentrant_lock(&format!("{thread}:{at}")).lock().unwrap();
                let guards: Vec<_> = (0..20).map(take).collect();
                gate.wait();
                gate.wait();
                let drop_one = |guard| {
                    let begun = Instant::now();
                    drop(guard);
                    begun.elapsed()
                };
                guards.into_iter().map(drop_one).max().unwrap()
            })
        };
        let threads = (0..Self::THREADS).map(start).collect();
        gate.wait();
        Self { gate, threads, _client: client }
    }

    /// Drops all guards. Returns the longest time of a single drop.
    fn drop_all(&mut self) -> Duration {
        self.gate.wait();
        self.threads.drain(..).map(Running::join).max().unwrap()
    }
}
