//! Turns while Redisson's clients also want the permits.

use super::*;
use redlatch_testkit::PlainClient;

/// A way to take permits and give them back.
#[derive(Clone, Copy, Debug)]
struct Way {
    expirable: bool,
    /// Whether the guard gives the permit back. If this is false, the test gives the permit back by
    /// its id or by a number.
    guarded: bool,
    /// Whether one handle serves all calls. If this is false, each call has a new handle, and the
    /// process also uses other names in between.
    kept: bool,
}

impl Way {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for expirable in [false, true] {
            for guarded in [false, true] {
                for kept in [false, true] {
                    all.push(Self { expirable, guarded, kept });
                }
            }
        }
        all
    }

    fn name(self) -> String {
        format!("{self:?}")
    }

    /// Holds a permit once.
    fn hold(self, client: &Client, kept: Option<&Handles>, hold: impl FnOnce()) {
        let name = self.name();
        let numbers = || kept.map_or_else(|| client.semaphore(&name), |kept| kept.0.clone());
        let leases =
            || kept.map_or_else(|| client.expirable_semaphore(&name), |kept| kept.1.clone());
        match (self.expirable, self.guarded) {
            (false, true) => {
                let permit = numbers().acquire().unwrap();
                hold();
                permit.release().unwrap();
            }
            (false, false) => {
                numbers().acquire().unwrap().forget();
                hold();
                numbers().release_forgotten(1).unwrap();
            }
            (true, true) => {
                let permit = leases().acquire().unwrap();
                hold();
                permit.release().unwrap();
            }
            (true, false) => {
                let id = leases().acquire().unwrap().into_id();
                hold();
                leases().release(&id).unwrap();
            }
        }
    }
}

type Handles = (Semaphore, ExpirableSemaphore);

/// How long each client holds the permit.
const HOLD: Duration = Duration::from_millis(TIME_UNIT.as_millis() as u64 / 10);
const TURNS: u64 = 200;
/// The number of other names. A busy process uses fewer names during one hold.
const OTHER_NAMES: u32 = 100;
/// The minimum time from a reply to the next request in Redisson's event loop and the JVM.
const THREAD_HOP: Duration = Duration::from_micros(500);

/// A Redisson client and two redlatch clients hold the only permit alternately, until there were a
/// certain number of holds. Returns the number of each client's holds.
fn turns(server: &Server, way: Way) -> [u64; 3] {
    let name = way.name();
    let plain = PlainClient::connect(&server.url()).unwrap();
    plain.semaphore(&name).handle().unwrap().try_set_permits(1).unwrap();
    let counts: [Arc<AtomicU64>; 3] = Default::default();
    let sum = |counts: &[Arc<AtomicU64>; 3]| -> u64 {
        counts.iter().map(|count| count.load(Ordering::SeqCst)).sum()
    };
    let [redissons, ours @ ..] = counts.clone();
    let all = counts.clone();
    let redisson = spawn(move || {
        let mut numbers = plain.semaphore(&way.name()).handle().unwrap();
        let mut leases = plain.expirable_semaphore(&way.name()).handle().unwrap();
        while sum(&all) < TURNS {
            if way.expirable {
                let id = leases.acquire().unwrap();
                thread::sleep(HOLD);
                assert!(leases.release(&id).unwrap());
            } else {
                numbers.acquire().unwrap();
                thread::sleep(HOLD);
                numbers.release().unwrap();
            }
            redissons.fetch_add(1, Ordering::SeqCst);
            thread::sleep(THREAD_HOP);
        }
    });
    let threads = ours.map(|count| {
        let client = client(server);
        let all = counts.clone();
        spawn(move || {
            let kept = || (client.semaphore(&way.name()), client.expirable_semaphore(&way.name()));
            let kept = way.kept.then(kept);
            let others = || {
                for other in 0..if way.kept { 0 } else { OTHER_NAMES } {
                    drop(client.semaphore(&format!("other {other}")));
                    drop(client.expirable_semaphore(&format!("other {other}")));
                }
            };
            while sum(&all) < TURNS {
                let hold = || {
                    thread::sleep(HOLD);
                    others();
                };
                way.hold(&client, kept.as_ref(), hold);
                count.fetch_add(1, Ordering::SeqCst);
            }
        })
    });
    threads.into_iter().for_each(Running::join);
    redisson.join();
    counts.map(|count| count.load(Ordering::SeqCst))
}

#[test]
fn no_client_has_less_than_half_of_an_even_share_beside_redisson() {
    let server = server();
    let server = &server;
    let has_share = |turns: &[u64; 3]| turns.iter().all(|it| *it >= TURNS / 3 / 2);
    let mut ways = Way::all();
    // On a busy machine a thread is sometimes late, but not three times in a row.
    for round in 0..3 {
        ways = thread::scope(|scope| {
            let of = |way| (way, scope.spawn(move || turns(server, way)));
            let running: Vec<_> = ways.into_iter().map(of).collect();
            let shares = running.into_iter().map(|(way, turns)| (way, turns.join().unwrap()));
            let lacking = shares.filter(|(way, turns)| {
                println!("{round}: {turns:?} {way:?}");
                !has_share(turns)
            });
            lacking.map(|(way, _)| way).collect()
        });
    }
    assert!(ways.is_empty(), "somebody starves: {ways:?}");
}
