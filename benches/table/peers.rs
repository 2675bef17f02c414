//! The compared peers.

use std::time::Duration;

use redlatch::Client;
use redlatch_testkit::PlainClient;

use crate::raw::RawPair;

const BUSY_POLL: Duration = Duration::from_micros(50);

/// A way to take something and release it. A new peer needs a name and an arm in `connect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The two scripts of a lock, with a connection for each thread.
    Raw,
    /// A plain implementation of Redisson's algorithm.
    Plain,
    /// `lock()` and `unlock()`.
    Unlock,
    /// `lock()` and `drop`.
    Drop,
    /// `lock()` and `unlock()`, or `lock()` and `drop`, with a client that polls for its replies.
    UnlockPolled,
    DropPolled,
    /// The fenced lock, with a token for each grant.
    Fenced,
    /// A plain implementation of Redisson's fair lock.
    PlainFair,
    Fair,
    /// A plain implementation of Redisson's semaphore.
    PlainSemaphore,
    Semaphore,
    /// A plain implementation of Redisson's permit-expirable semaphore.
    PlainExpirable,
    Expirable,
}

/// One thread's work: takes, calls the function that works inside, and releases.
pub(crate) type Turn = Box<dyn FnMut(&mut dyn FnMut()) + Send>;

/// The connection of one process: a function that returns a thread's work for a name.
pub(crate) type Connected = Box<dyn Fn(&str) -> Turn>;

impl Peer {
    const ALL: [Self; 13] = [
        Self::Raw,
        Self::Plain,
        Self::Unlock,
        Self::Drop,
        Self::UnlockPolled,
        Self::DropPolled,
        Self::Fenced,
        Self::PlainFair,
        Self::Fair,
        Self::PlainSemaphore,
        Self::Semaphore,
        Self::PlainExpirable,
        Self::Expirable,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw pair",
            Self::Plain => "plain",
            Self::Unlock => "lock + unlock",
            Self::Drop => "lock + drop",
            Self::UnlockPolled => "lock + unlock, polled",
            Self::DropPolled => "lock + drop, polled",
            Self::Fenced => "fenced lock",
            Self::PlainFair => "plain fair lock",
            Self::Fair => "fair lock",
            Self::PlainSemaphore => "plain semaphore",
            Self::Semaphore => "semaphore",
            Self::PlainExpirable => "plain expirable semaphore",
            Self::Expirable => "expirable semaphore",
        }
    }

    /// Returns how many threads may be inside at a time.
    pub(crate) fn places(self) -> usize {
        match self {
            Self::PlainSemaphore | Self::Semaphore | Self::PlainExpirable | Self::Expirable => 3,
            _ => 1,
        }
    }

    pub(crate) fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|peer| peer.name() == name).unwrap()
    }

    fn client(self, url: &str) -> Client {
        let polled = matches!(self, Self::UnlockPolled | Self::DropPolled);
        let limit = if polled { BUSY_POLL } else { Duration::ZERO };
        Client::builder(url).busy_poll(limit).connect().unwrap()
    }

    /// Connects this process.
    pub(crate) fn connect(self, url: &str) -> Connected {
        match self {
            Self::Raw => {
                let url = url.to_owned();
                Box::new(move |name| {
                    let mut pair = RawPair::connect(&url, name);
                    Box::new(move |inside| {
                        pair.acquire();
                        inside();
                        pair.release();
                    })
                })
            }
            Self::Plain => {
                let client = PlainClient::connect(url).unwrap();
                Box::new(move |name| {
                    let mut lock = client.lock(name).handle().unwrap();
                    Box::new(move |inside| {
                        lock.lock().unwrap();
                        inside();
                        assert!(lock.unlock().unwrap(), "held until now");
                    })
                })
            }
            Self::Unlock | Self::UnlockPolled => {
                let client = self.client(url);
                Box::new(move |name| {
                    let lock = client.reentrant_lock(name);
                    Box::new(move |inside| {
                        let guard = lock.lock().unwrap();
                        inside();
                        guard.unlock().unwrap();
                    })
                })
            }
            Self::Drop | Self::DropPolled => {
                let client = self.client(url);
                Box::new(move |name| {
                    let lock = client.reentrant_lock(name);
                    Box::new(move |inside| {
                        let guard = lock.lock().unwrap();
                        inside();
                        drop(guard);
                    })
                })
            }
            Self::Fenced => {
                let client = Client::connect(url).unwrap();
                Box::new(move |name| {
                    let lock = client.fenced_lock(name);
                    let mut last = None;
                    Box::new(move |inside| {
                        let guard = lock.lock().unwrap();
                        let token = Some(guard.token());
                        assert!(last < token, "tokens grow");
                        last = token;
                        inside();
                        guard.unlock().unwrap();
                    })
                })
            }
            Self::PlainFair => {
                let client = PlainClient::connect(url).unwrap();
                Box::new(move |name| {
                    let mut lock = client.fair_lock(name).handle().unwrap();
                    Box::new(move |inside| {
                        lock.lock().unwrap();
                        inside();
                        assert!(lock.unlock().unwrap(), "held until now");
                    })
                })
            }
            Self::Fair => {
                let client = Client::connect(url).unwrap();
                Box::new(move |name| {
                    let lock = client.fair_lock(name);
                    Box::new(move |inside| {
                        let guard = lock.lock().unwrap();
                        inside();
                        guard.unlock().unwrap();
                    })
                })
            }
            Self::PlainSemaphore => {
                let client = PlainClient::connect(url).unwrap();
                Box::new(move |name| {
                    let mut semaphore = client.semaphore(name).handle().unwrap();
                    semaphore.try_set_permits(self.places()).unwrap();
                    Box::new(move |inside| {
                        semaphore.acquire().unwrap();
                        inside();
                        semaphore.release().unwrap();
                    })
                })
            }
            Self::Semaphore => {
                let client = Client::connect(url).unwrap();
                Box::new(move |name| {
                    let semaphore = client.semaphore(name);
                    semaphore.try_set_permits(self.places() as u32).unwrap();
                    Box::new(move |inside| {
                        let permit = semaphore.acquire().unwrap();
                        inside();
                        permit.release().unwrap();
                    })
                })
            }
            Self::PlainExpirable => {
                let client = PlainClient::connect(url).unwrap();
                Box::new(move |name| {
                    let mut semaphore = client.expirable_semaphore(name).handle().unwrap();
                    semaphore.try_set_permits(self.places()).unwrap();
                    Box::new(move |inside| {
                        let id = semaphore.acquire().unwrap();
                        inside();
                        assert!(semaphore.release(&id).unwrap(), "held until now");
                    })
                })
            }
            Self::Expirable => {
                let client = Client::connect(url).unwrap();
                Box::new(move |name| {
                    let semaphore = client.expirable_semaphore(name);
                    semaphore.try_set_permits(self.places() as u32).unwrap();
                    Box::new(move |inside| {
                        let permit = semaphore.acquire().unwrap();
                        inside();
                        permit.release().unwrap();
                    })
                })
            }
        }
    }
}
