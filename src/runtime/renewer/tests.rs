//! Tests that after a panic a background thread goes on, and each waiter gets an outcome.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use redlatch_client::sync::Mutex;
use redlatch_client::{Command, Outcome};
use redlatch_testkit::{Server, wait_until};

use super::*;
use crate::config::ClientBuilder;
use crate::lease::{Debtor, KeepAlive, Renewal, RenewalOutcome, Task};
use crate::runtime::{Message, Session};
use crate::scripts::renewal::{Longer, RenewalKind};

const TIMEOUT: Duration = Duration::from_secs(20);
const LEASE: Duration = Duration::from_secs(60);

fn session(server: &Server, unclaimed: fn(&Arc<Core>, u64, &Message<'_>)) -> Session {
    Session::open(&server.url(), ClientBuilder::new(&server.url()).config, unclaimed).unwrap()
}

fn ignore(_: &Arc<Core>, _: u64, _: &Message<'_>) {}

/// Panics on its first call.
#[derive(Debug, Default)]
struct Clumsy(AtomicUsize);

impl Clumsy {
    fn stumble(&self) {
        assert!(self.0.fetch_add(1, Ordering::SeqCst) > 0, "the panic of this test");
    }

    fn wait_called(&self, times: usize) {
        wait_until("it is called again", TIMEOUT, || self.0.load(Ordering::SeqCst) >= times);
    }
}

#[test]
fn a_renewal_whose_answer_was_lost_in_a_panic_has_failed() {
    let server = Server::start().unwrap();
    let session = session(&server, ignore);
    let core = session.core();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let clumsy = Arc::new(Clumsy::default());
    let renewals = ["first", "second"].map(|key| {
        let (heard, clumsy) = (Arc::clone(&heard), Arc::clone(&clumsy));
        let renewed = Box::new(move |_, renewed: RenewalOutcome<'_>, _| {
            clumsy.stumble();
            heard.lock().push((key, renewed.is_err()));
        });
        let (kind, owner) = (RenewalKind::Locks, core.id.next_owner());
        let (lease, longer) = (Some(LEASE), Longer::Kept);
        Renewal {
            kind,
            key: key.into(),
            owner,
            lease,
            longer,
            is_raise: false,
            deadline: 0,
            renewed,
            asks_if_wanted: false,
        }
    });
    core.watchdog.renew_now(renewals.into());
    wait_until("both have heard of it", TIMEOUT, || heard.lock().len() == 2);
    assert_eq!(*heard.lock(), [("first", true), ("second", true)]);
}

#[derive(Debug, Default)]
struct Diligent(Clumsy);

impl KeepAlive for Diligent {
    fn command(&self) -> Option<Command> {
        Some(Command::plain(&[b"PING"]))
    }

    fn handle_outcome(&self, _: Outcome) -> Duration {
        self.0.stumble();
        Duration::from_millis(1)
    }
}

#[test]
fn a_keep_alive_that_panicked_is_done_again() {
    let server = Server::start().unwrap();
    let session = session(&server, ignore);
    let diligent = Arc::new(Diligent::default());
    let keep_alive = Arc::clone(&diligent) as _;
    session.core().watchdog.schedule(&"diligent".into(), &keep_alive, Duration::ZERO);
    diligent.0.wait_called(3);
}

/// Panics at each outcome.
#[derive(Debug)]
struct Hopeless;

impl KeepAlive for Hopeless {
    fn command(&self) -> Option<Command> {
        Some(Command::plain(&[b"PING"]))
    }

    fn handle_outcome(&self, _: Outcome) -> Duration {
        panic!("the panic of this test")
    }
}

#[test]
fn a_keep_alive_that_panics_ends_with_the_client() {
    let server = Server::start().unwrap();
    let config = ClientBuilder::new(&server.url()).response_timeout(TIMEOUT / 100).config;
    let session = Session::open(&server.url(), config, ignore).unwrap();
    let core = Arc::downgrade(session.core());
    let hopeless = Arc::new(Hopeless) as _;
    session.core().watchdog.schedule(&"hopeless".into(), &hopeless, LEASE);
    drop(session);
    // The renewer keeps a reference to the core until it ends.
    wait_until("all threads have ended", TIMEOUT, || core.strong_count() == 0);
}

#[derive(Default)]
struct Poor(Clumsy);

impl Debtor for Poor {
    fn command(&self) -> Option<Command> {
        let owes = self.0.0.load(Ordering::SeqCst) < 3;
        owes.then(|| Command::plain(&[b"PING"]))
    }

    fn handle_outcome(&self, _: &Outcome, _: bool) {
        self.0.stumble();
    }
}

#[test]
fn a_cleanup_that_panicked_is_sent_again() {
    let server = Server::start().unwrap();
    let session = session(&server, ignore);
    let poor = Arc::new(Poor::default());
    let cleanup = Cleanup::debt(&"poor".into(), Arc::clone(&poor) as _);
    session.core().watchdog.clean_up(cleanup);
    // The second call reports that the connection broke.
    poor.0.wait_called(3);
}

/// A cleanup that calls a function when its command is answered, and then ends.
struct Settles<F>(AtomicBool, F);

impl<F: Fn() + Send + Sync + 'static> Settles<F> {
    fn adopted_by(core: &Core, paid: F) {
        let debtor = Arc::new(Self(AtomicBool::new(false), paid));
        core.watchdog.clean_up(Cleanup::debt(&"settles".into(), debtor as _));
    }
}

impl<F: Fn() + Send + Sync> Debtor for Settles<F> {
    fn command(&self) -> Option<Command> {
        (!self.0.load(Ordering::SeqCst)).then(|| Command::plain(&[b"PING"]))
    }

    fn handle_outcome(&self, _: &Outcome, _: bool) {
        self.0.store(true, Ordering::SeqCst);
        (self.1)();
    }
}

#[test]
fn a_renewal_waits_for_one_packet_of_cleanups_and_no_more() {
    const MANY: usize = 10 * NAMES_PER_CALL;
    let server = Server::start().unwrap();
    let session = session(&server, ignore);
    let core = session.core();
    let (settled, renewed_after) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
    // This cleanup blocks the renewer until all the other cleanups are in its queue.
    let (go_on, all_are_there) = crossbeam_channel::bounded::<()>(0);
    Settles::adopted_by(core, move || assert!(all_are_there.recv().is_err()));
    for _ in 0..MANY {
        let (settled, renewed_after) = (Arc::clone(&settled), Arc::clone(&renewed_after));
        let to = Arc::clone(core);
        Settles::adopted_by(core, move || {
            if settled.fetch_add(1, Ordering::SeqCst) > 0 {
                return;
            }
            // The renewal falls due while the first packet is processed.
            let (settled, heard) = (Arc::clone(&settled), Arc::clone(&renewed_after));
            let renewed = Box::new(move |_, _: RenewalOutcome<'_>, _| {
                *heard.lock() = Some(settled.load(Ordering::SeqCst));
            });
            let owner = to.id.next_owner();
            let (kind, key, lease) = (RenewalKind::Locks, "kept".into(), Some(LEASE));
            let longer = Longer::Kept;
            let renewal = Renewal {
                kind,
                key,
                owner,
                lease,
                longer,
                is_raise: false,
                deadline: 0,
                renewed,
                asks_if_wanted: false,
            };
            to.watchdog.renew_now(vec![renewal]);
        });
    }
    drop(go_on);
    wait_until("all are sent", TIMEOUT, || settled.load(Ordering::SeqCst) == MANY);
    let first = *renewed_after.lock();
    assert!(first.is_some_and(|after| after <= NAMES_PER_CALL), "after {first:?} of {MANY}");
}

impl Task for Clumsy {
    fn due(self: Arc<Self>) -> Option<Renewal> {
        self.stumble();
        None
    }
}

#[test]
fn a_task_that_panicked_is_called_again_and_so_are_the_others() {
    let server = Server::start().unwrap();
    let session = session(&server, ignore);
    let watchdog = &session.core().watchdog;
    let clumsy = Arc::new(Clumsy::default());
    let task = Arc::downgrade(&clumsy);
    watchdog.alarm(clock::now(), task.clone());
    clumsy.wait_called(2);
    watchdog.alarm(clock::now(), task);
    clumsy.wait_called(3);
}

#[test]
fn a_panic_of_the_subscribers_is_an_outage_and_ends_nothing() {
    static CLUMSY: Clumsy = Clumsy(AtomicUsize::new(0));
    let server = Server::start().unwrap();
    let session = session(&server, |_, _, _| CLUMSY.stumble());
    let core = session.core();
    let own = core.pubsub.listen_to_own("name");
    let mut redis = server.connection();
    let channel = format!("redisson_lock__channel:{{redlatch:{}}}", core.id.as_str());
    wait_until("it hears again", TIMEOUT, || {
        let heard: u64 =
            redis::cmd("PUBLISH").arg(&channel).arg("ask 1 lock").query(&mut redis).unwrap();
        heard > 0 && CLUMSY.0.load(Ordering::SeqCst) > 1
    });
    wait_until("it is confirmed again", TIMEOUT, || own.is_confirmed());
    assert!(own.version() > 1, "messages missed meanwhile are not asked for");
}
