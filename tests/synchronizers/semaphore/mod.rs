//! The behaviour of the semaphore for its threads, for other clients, on the wire, and under
//! faults.
//!
//! Under every fault, the free and the taken permits together remain the number that was set.

mod contention;
mod end;
mod faults;
mod later;
mod marks;
mod meaning;
mod rights;
mod size;
mod turns;
mod wire;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use redis::Commands as _;
use redlatch::{
    CancelToken, Client, Error, ErrorKind, ExpirableSemaphore, NotTaken, Permit, Semaphore, Taken,
};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

/// The channel of a name without braces.
fn channel(name: &str) -> String {
    format!("redisson_sc:{{{name}}}")
}

fn semaphore(client: &Client, name: &str, permits: u32) -> Semaphore {
    let semaphore = client.semaphore(name);
    assert!(semaphore.try_set_permits(permits).unwrap());
    semaphore
}

/// Waits until this number of permits is free on the server.
#[track_caller]
fn wait_permits(server: &Server, name: &str, permits: i64) {
    let mut redis = server.connection();
    let mut free = None;
    let until = Instant::now() + TIMEOUT;
    while free != Some(permits) {
        assert!(Instant::now() < until, "{name:?} has {free:?} permits, not {permits}");
        free = redis.get(name).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
}

/// Like [`wait_permits`], but also asserts that the number does not change for some time.
#[track_caller]
fn stays(server: &Server, name: &str, permits: i64) {
    wait_permits(server, name, permits);
    // Time must pass here: a second release would come late.
    thread::sleep(TIME_UNIT * 2);
    assert_eq!(server.connection().get::<_, i64>(name).unwrap(), permits, "{name:?}, later");
}

/// The messages that the server publishes during `work`.
fn messages(server: &Server, pattern: &str, work: impl FnOnce()) -> Vec<(String, String)> {
    let mut connection = server.connection();
    let mut subscriber = connection.as_pubsub();
    subscriber.psubscribe(pattern).unwrap();
    subscriber.subscribe("end").unwrap();
    work();
    let () = server.connection().publish("end", "").unwrap();
    let mut messages = Vec::new();
    loop {
        let message = subscriber.get_message().unwrap();
        if message.get_channel_name() == "end" {
            return messages;
        }
        messages.push((message.get_channel_name().to_owned(), message.get_payload().unwrap()));
    }
}

/// Takes and gives back permits in all ways for some time. Counts the taken permits in Redis.
struct Contender {
    semaphore: Semaphore,
    count: Count,
    random: Random,
    permits: u32,
}

impl Contender {
    fn round(&mut self) -> Result<bool, Error> {
        let need = 1 + u32::try_from(self.random.below(u64::from(self.permits))).unwrap();
        let wait = Duration::from_micros(self.random.below(3_000));
        let permit = match self.random.below(6) {
            0 => self.semaphore.try_acquire_many(need)?,
            1 => self.semaphore.try_acquire_many_for(need, wait).or_else(unanswered)?,
            2 => {
                let token = CancelToken::new();
                let cancel = token.clone();
                let canceller = thread::spawn(move || {
                    thread::sleep(wait);
                    cancel.cancel();
                });
                let acquired = self.semaphore.acquire_cancellable(&token);
                canceller.join().unwrap();
                match acquired {
                    Err(error) if error.kind() == ErrorKind::Cancelled => NotTaken,
                    acquired => Taken(acquired?),
                }
            }
            _ => Taken(self.semaphore.acquire_many(need)?),
        };
        let Taken(mut permit) = permit else { return Ok(false) };
        let need = permit.permits();
        self.count.taken(need, self.permits);
        if self.random.below(8) == 0 {
            thread::sleep(Duration::from_micros(self.random.below(500)));
        }
        self.count.given(need);
        match self.random.below(4) {
            0 => drop(permit),
            1 => {
                let part = permit.split(need / 2).unwrap();
                drop(permit);
                part.release()?;
            }
            2 => {
                permit.forget();
                // The error says whether the caller must repeat the release.
                while let Err(error) = self.semaphore.release_forgotten(need) {
                    if !error.to_string().contains("no permit was given back") {
                        return Err(error);
                    }
                }
            }
            _ => permit.release()?,
        }
        Ok(true)
    }
}

/// The connection with which a contender counts the taken permits.
struct Count(redis::Connection);

impl Count {
    fn taken(&mut self, permits: u32, of: u32) {
        let out: i64 = self.0.incr("out", permits).unwrap();
        assert!(out <= i64::from(of), "{out} are out of {of}");
    }

    fn given(&mut self, permits: u32) {
        let () = self.0.decr("out", permits).unwrap();
    }
}

/// Makes threads of two clients contend while `trouble` runs. Ends when `trouble` has returned true
/// and there were some grants. The server may return errors.
fn contend(
    urls: [String; 2],
    server: &Server,
    mut trouble: impl FnMut(&mut Random) -> bool,
) -> (u64, u64) {
    let mut random = Random::new();
    let clients = urls.map(|url| impatient(&url).connect().unwrap());
    let _kept = semaphore(&clients[0], "most", 3);
    let stop = Arc::new(AtomicBool::new(false));
    let errors = Arc::new(AtomicU64::new(0));
    let grants = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..6_usize)
        .map(|at| {
            let mut contender = Contender {
                semaphore: clients[at % 2].semaphore("most"),
                count: Count(server.connection()),
                random: Random::of(random.next()),
                permits: 3,
            };
            let (stop, errors, grants) =
                (Arc::clone(&stop), Arc::clone(&errors), Arc::clone(&grants));
            spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    match contender.round() {
                        Ok(granted) => {
                            grants.fetch_add(u64::from(granted), Ordering::SeqCst);
                        }
                        Err(error) => {
                            assert!(error.kind().is_server_trouble(), "{error}");
                            errors.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                }
            })
        })
        .collect();
    wait_until("so many were granted", TIMEOUT * 2, || {
        trouble(&mut random) && grants.load(Ordering::SeqCst) > 20
    });
    stop.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(Running::join);
    (grants.load(Ordering::SeqCst), errors.load(Ordering::SeqCst))
}

/// Applies the action to the next requests that take permits of this name.
fn on_acquire(proxy: &Proxy, name: &'static str, times: usize, action: Action) {
    proxy.on(Direction::Request, times, action, move |bytes| {
        contains(bytes, "EVAL") && contains(bytes, name) && !contains(bytes, &channel(name))
    });
}

/// Applies the action to the next requests that return permits of this name.
fn on_release(proxy: &Proxy, name: &'static str, times: usize, action: Action) {
    proxy.on(Direction::Request, times, action, move |bytes| {
        contains(bytes, "EVAL") && contains(bytes, &channel(name))
    });
}

/// Returns a client that connects through a proxy. The client's connection is open, and the server
/// has its scripts.
fn behind(proxy: &Proxy) -> Client {
    crate::common::behind(proxy, |client| {
        let semaphore = semaphore(client, "warm", 1);
        drop(semaphore.acquire().unwrap());
        semaphore.release_forgotten(1).unwrap();
    })
}
