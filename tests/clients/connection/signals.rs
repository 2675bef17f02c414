//! Calls during which signals arrive.

use super::*;

/// Sends a thousand signals a second to every thread of this process, until the value is dropped.
#[cfg(target_os = "linux")]
struct Signals {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[cfg(target_os = "linux")]
impl Signals {
    fn start() -> Self {
        use rustix::process::{Pid, Signal, kill_process};

        // As in most programs, the system restarts interrupted system calls after the signal
        // handler.
        let noticed = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGUSR1, noticed).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
                    let thread = task.file_name().to_str().unwrap().parse().unwrap();
                    // The signal goes to the thread with this id, which may have ended.
                    let _ = kill_process(Pid::from_raw(thread).unwrap(), Signal::USR1);
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

#[cfg(target_os = "linux")]
impl Drop for Signals {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Signals only make a call slower: they cause no error and no new connection. The test has its own
/// process, because all threads of the process receive the signals.
#[cfg(target_os = "linux")]
#[test]
fn signals_interrupt_no_call() {
    const ROUNDS: usize = 50;
    if !has_own_process() {
        return;
    }
    let server = server();
    let clients = [client(&server), client(&server)];
    clients[0].semaphore("permits").try_set_permits(2).unwrap();
    clients[0].expirable_semaphore("leased").try_set_permits(2).unwrap();
    let inside = Arc::new(AtomicU64::new(0));
    let work = |client: &Client, own: String| {
        let (client, inside) = (client.clone(), Arc::clone(&inside));
        move |rounds: usize| {
            let own = client.reentrant_lock(&own);
            let (shared, fair) = (client.reentrant_lock("shared"), client.fair_lock("fair"));
            let (permits, latch) = (client.semaphore("permits"), client.count_down_latch("open"));
            let (prices, leased) =
                (client.read_write_lock("prices"), client.expirable_semaphore("leased"));
            let several = MultiLock::new([
                &client.fenced_lock("one") as &dyn Lock,
                &client.reentrant_lock("two"),
            ]);
            let (several, changed) = (several.unwrap(), shared.condition("changed"));
            for _ in 0..rounds {
                drop(prices.reader().lock().unwrap());
                drop(prices.writer().lock().unwrap());
                drop(leased.acquire().unwrap());
                several.lock().unwrap().unlock().unwrap();
                own.lock().unwrap().unlock().unwrap();
                drop(own.lock().unwrap());
                let guard = shared.lock().unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                inside.fetch_sub(1, Ordering::SeqCst);
                // The wait on the condition has released the lock, so this thread can notify it.
                changed.notify_all().unwrap();
                let _ = changed.wait_for(&guard, TIME_UNIT / 50).unwrap();
                drop(guard);
                fair.lock().unwrap().unlock().unwrap();
                drop(permits.acquire().unwrap());
                latch.wait().unwrap();
            }
        }
    };
    let run = |rounds| {
        let threads: Vec<_> = (0..4)
            .map(|at| {
                let work = work(&clients[at % 2], format!("own {at}"));
                spawn(move || work(rounds))
            })
            .collect();
        threads.into_iter().for_each(Running::join);
    };
    // This call opens the connections that a client opens only when it needs them. The connection
    // for messages opens when a thread waits. The connection for renewals opens when a lock that
    // was granted by a message gets its full lease.
    run(20);
    for (one, other) in [(0, 1), (1, 0)] {
        let guard = clients[one].reentrant_lock("waited for").lock().unwrap();
        let lock = clients[other].reentrant_lock("waited for");
        let mut redis = server.connection();
        let waiter = spawn(move || {
            let guard = lock.lock().unwrap();
            wait_until("it has its lease", TIMEOUT, || pttl(&mut redis, "waited for") > 2_000);
            guard.unlock().unwrap();
        });
        wait_in_line(&server, "waited for", 1);
        guard.unlock().unwrap();
        waiter.join();
    }
    // If the machine stands still, a connection may break, too. Then the test tries again.
    wait_until("connections are kept", TIMEOUT, || {
        let before = opened(&server);
        let signals = Signals::start();
        run(ROUNDS);
        drop(signals);
        // The only new connection is that of the second `opened` call.
        opened(&server) - before == 1
    });
}
