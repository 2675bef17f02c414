//! Models of the waiting loop and its messages. The models run many interleavings of waiters,
//! holders, the subscriber, and a network that breaks.

use std::sync::atomic::{AtomicBool, Ordering};

use redlatch_client::CancelToken;
use redlatch_client::sync::{Mutex, Thread, explore};
use shuttle::thread;

use super::*;
use crate::error::ErrorKind;
use crate::model::ModelServer;

const KEY: &str = "key";
const CHANNEL: &str = "channel";

/// A synchronizer without a queue in the process, so each thread leads.
struct Alone<'a, F> {
    site: AskingSite<'a>,
    channel: Arc<str>,
    attempt: F,
}

struct AskingSite<'a> {
    core: &'a Core,
    /// Always empty.
    queue: Mutex<Queue<(), (), ()>>,
}

impl QueueSite for AskingSite<'_> {
    type Need = ();
    type Grant = ();
    type RequestState = ();

    fn with_queue<R>(&self, act: impl FnOnce(&mut Queue<(), (), ()>) -> R) -> R {
        act(&mut self.queue.lock())
    }
}

impl<'a, F: Fn() -> bool> Synchronizer for Alone<'a, F> {
    type Site = AskingSite<'a>;

    fn site(&self) -> &AskingSite<'a> {
        &self.site
    }

    fn what(&self, (): &()) -> (Kind, u32) {
        (Kind::ReentrantLock, 1)
    }

    fn enter(&self, _: &Claim<'_, ()>) -> Result<EnterOf<Self>, Error> {
        Ok(Enter::Leads(None, None))
    }

    fn request_state(&self, _: &Claim<'_, ()>, _: &mut Option<QueueLeadership>) {}

    fn ask(&self, lead: &mut Lead<()>, _: &Claim<'_, ()>) -> Result<Try<()>, Error> {
        if (self.attempt)() {
            return Ok(Try::Granted(()));
        }
        lead.listening.public.listen(self.site.core, &self.channel);
        Ok(Try::Busy(Duration::from_secs(30)))
    }
}

/// Waits until `attempt` returns `true`. Returns `false` if the wait was cancelled.
fn wait(core: &Core, channel: &str, cancel: &CancelToken, attempt: impl Fn() -> bool) -> bool {
    let site = AskingSite { core, queue: Mutex::new(Queue::new()) };
    let alone = Alone { site, channel: channel.into(), attempt };
    let thread = Thread::current();
    let claim = Claim { thread: &thread, need: (), wait: Wait::from(cancel) };
    match acquire(&alone, (core, &KEY.into()), &claim) {
        Ok(granted) => granted.is_some(),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Cancelled);
            false
        }
    }
}

/// Runs `waiters` threads that each take and release the lock, and runs `trouble` at the same time.
fn play(waiters: u8, cancel: &CancelToken, trouble: impl FnOnce(&ModelServer) + Send + 'static) {
    let server = ModelServer::start();
    let core = Core::model(&server);
    let subscriber = core.connect();
    assert!(server.take(KEY, b"another process"));
    let trouble = {
        let server = Arc::clone(&server);
        thread::spawn(move || trouble(&server))
    };
    let waiters: Vec<_> = (0..waiters)
        .map(|waiter| {
            let (core, server, cancel) = (Arc::clone(&core), Arc::clone(&server), cancel.clone());
            thread::spawn(move || {
                let owner = [waiter];
                if wait(&core, CHANNEL, &cancel, || server.take(KEY, &owner)) {
                    thread::yield_now();
                    assert_eq!(server.owner(KEY).as_deref(), Some(&owner[..]));
                    server.free(KEY, CHANNEL);
                }
            })
        })
        .collect();
    server.free(KEY, CHANNEL);
    for waiter in waiters {
        waiter.join().unwrap();
    }
    trouble.join().unwrap();
    core.end_subscriber(subscriber);
    assert_eq!(server.owner(KEY), None);
}

/// Runs a thread for each of these channels. Each thread waits for a message that is sent once.
fn announce(channels: &'static [&'static str]) {
    let server = ModelServer::start();
    let core = Core::model(&server);
    let subscriber = core.connect();
    let happened = Arc::new(AtomicBool::new(false));
    let waiters: Vec<_> = channels
        .iter()
        .map(|channel| {
            let (core, happened) = (Arc::clone(&core), Arc::clone(&happened));
            thread::spawn(move || {
                let cancel = CancelToken::new();
                assert!(wait(&core, channel, &cancel, || happened.load(Ordering::SeqCst)));
            })
        })
        .collect();
    happened.store(true, Ordering::SeqCst);
    for channel in channels {
        server.free(KEY, channel);
    }
    for waiter in waiters {
        waiter.join().unwrap();
    }
    core.end_subscriber(subscriber);
}

#[test]
fn no_message_is_slept_through() {
    explore(800, || play(1, &CancelToken::new(), |_| {}));
}

#[test]
fn each_message_lets_the_next_one_in() {
    explore(500, || play(3, &CancelToken::new(), |_| {}));
}

#[test]
fn one_message_wakes_all_waiters() {
    explore(1_000, || announce(&[CHANNEL; 3]));
}

#[test]
fn a_channel_that_is_asked_for_at_any_moment_is_subscribed() {
    explore(1_000, || announce(&["one", "two", "three"]));
}

#[test]
fn messages_missed_while_the_subscriber_was_cut_off_are_made_up_for() {
    explore(800, || {
        play(2, &CancelToken::new(), |server| {
            for _ in 0..3 {
                server.break_subscribers();
                thread::yield_now();
            }
        });
    });
}

#[test]
fn a_cancel_races_with_a_message() {
    explore(500, || {
        let token = CancelToken::new();
        let cancel = token.clone();
        play(2, &token, move |_| cancel.cancel());
    });
}

#[test]
fn a_cancel_ends_a_wait_that_nothing_else_ends() {
    explore(1_000, || {
        let server = ModelServer::start();
        let core = Core::model(&server);
        let subscriber = core.connect();
        let token = CancelToken::new();
        let cancel = token.clone();
        let canceller = thread::spawn(move || cancel.cancel());
        assert!(!wait(&core, CHANNEL, &token, || false));
        canceller.join().unwrap();
        core.end_subscriber(subscriber);
    });
}
