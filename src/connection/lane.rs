//! A connection that threads share: the first in writes everybody's commands in one packet.
//!
//! One thread, the *combiner*, has the link. It writes its own command and those that queued
//! meanwhile, reads the replies, wakes the others, and hands that role to the first that came
//! since. So nothing is lost with one thread, and many threads cost few packets. There is no I/O thread:
//! with one caller it would cost a third of the rate.
//!
//! Order: what callers send for a name goes over the one lane of that name, so a release posted by
//! `Drop` runs before the next acquire. (Renewals and orphans go over the renewer's connection.)

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::link::{Cause, Failure, Link, Outcome, ReplyReceiver};
use super::reply::is_wrong_server_error;
use super::{Command, Endpoint};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, Thread};

mod begun;
mod combiner;
#[cfg(test)]
#[cfg(shuttle)]
mod model_tests;

pub(crate) use self::begun::Begun;
use self::begun::ReplyCell;
use self::combiner::Combiner;

/// So many replies of a link may be unread; what is posted then waits in the queue until some are
/// read, by a thread that waits for the server anyway. (Few in a model, so that it meets this.)
const MOST_UNREAD: usize = if cfg!(all(test, shuttle)) { 2 } else { 1_000 };

/// A shared connection. Opened when first needed, and again after any error.
pub(crate) struct Lane {
    endpoint: Arc<Endpoint>,
    state: Mutex<State>,
    /// Whether the background thread has been asked to look at unread replies.
    look_requested: AtomicBool,
    /// How many releases of permits are written to it, or about to be, that nobody waits for. They
    /// must stay well below [`MOST_UNREAD`].
    pub(crate) permits_posted: AtomicUsize,
}

struct State {
    /// The link, while nobody combines.
    link: Option<Link>,
    combining: bool,
    /// Commands not yet written. Invariants: while there is a call among them, somebody combines or
    /// has been told to; while nobody combines and there are posts, there is no link or it owes too
    /// much.
    queue: VecDeque<Pending>,
    /// Whether the background thread has ended: whoever combines sees to what is posted, too.
    closed: bool,
    /// How many threads the last packet served.
    served: usize,
    round_trip: Duration,
}

enum Pending {
    Call(Command, Arc<Call>),
    Post(Command, Arc<dyn ReplyReceiver>),
}

/// Takes the first commands of a queue: so many as may be owed at once.
fn next_packet(queue: &mut VecDeque<Pending>) -> VecDeque<Pending> {
    let rest = queue.split_off(queue.len().min(MOST_UNREAD));
    std::mem::replace(queue, rest)
}

impl Pending {
    fn is(&self, call: &Arc<Call>) -> bool {
        matches!(self, Self::Call(_, own) if Arc::ptr_eq(own, call))
    }

    fn fail(self, failure: &Failure) {
        match self {
            Self::Call(_, call) => call.receive(Err(failure.clone())),
            Self::Post(_, receiver) => receiver.receive(Err(failure.clone())),
        }
    }
}

/// Whose thread sleeps until it has the reply to its command, or is to combine.
struct Call {
    thread: Arc<Thread>,
    state: Mutex<CallState>,
}

enum CallState {
    Queued,
    Combines,
    Done(Outcome),
}

impl Call {
    /// The calling thread's.
    fn queued() -> Arc<Self> {
        let state = Mutex::new(CallState::Queued);
        Arc::new(Self { thread: Thread::current(), state })
    }
}

/// What became of a posted command so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    /// A reply is owed that nobody has been asked to read: ask the background thread.
    LookAfter,
    /// Somebody will read the reply in any case.
    LookedAfter,
}

impl Lane {
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Self {
        let state = State {
            link: None,
            combining: false,
            queue: VecDeque::new(),
            closed: false,
            served: 0,
            round_trip: Duration::ZERO,
        };
        Self {
            endpoint,
            state: Mutex::new(state),
            look_requested: AtomicBool::new(false),
            permits_posted: AtomicUsize::new(0),
        }
    }

    pub(crate) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Opens the link now, so that a wrong address is found out here.
    pub(crate) fn connect(&self) -> Result<(), Failure> {
        let link = Link::open(&self.endpoint)?;
        self.state.lock().link = Some(link);
        Ok(())
    }

    /// Sends a command whose reply nobody waits for. When this returns it is written, or stands
    /// in the queue of a combiner who will write it, or (no connection, or one that owes too much) of
    /// the background thread. No reply is waited for.
    pub(crate) fn post(&self, command: Command, receiver: Arc<dyn ReplyReceiver>) -> Posted {
        self.write(command, receiver);
        self.look_after()
    }

    /// Sends a command whose reply its caller reads later, by [`Begun::finish`]: so several are on
    /// their way at once. It is written as by [`post`](Self::post), and nobody is asked to read the
    /// reply.
    pub(crate) fn begin(self: &Arc<Self>, command: &Command) -> Begun {
        let reply = Arc::new(ReplyCell::default());
        self.write(command.clone(), Arc::clone(&reply) as _);
        Begun { lane: Arc::clone(self), command: command.clone(), reply }
    }

    fn write(&self, command: Command, receiver: Arc<dyn ReplyReceiver>) {
        let mut state = self.state.lock();
        let room = state.link.as_ref().is_some_and(|link| link.owed() < MOST_UNREAD);
        if state.combining || !room {
            state.queue.push_back(Pending::Post(command, receiver));
            return;
        }
        state.combining = true;
        let link = state.link.take();
        drop(state);
        Combiner::new(self, link, self.endpoint.connect_timeout())
            .on_link(|link| link.send_one(command, receiver));
    }

    /// Reads what is owed and writes what is queued, if nobody else is about to. For the
    /// background thread, and for a caller who wants to know of a post's outcome. Opening a
    /// connection may take as long as `to_open`: the background thread has renewals to send. Where
    /// that is too short, what is queued fails and its receivers see to it; where it is zero, that
    /// is at once, and not even the host's name is looked up. Of a long queue it writes the first
    /// packet.
    ///
    /// `false`: somebody combines, or more is left. Whom a post has asked to look asks to
    /// [look again](Self::look_after).
    pub(crate) fn look(&self, patience: Duration, to_open: Duration) -> bool {
        // Who has asked the server to wait for replicas reads that itself, or nobody does when it is
        // over.
        let is_time = |link: &Link| patience.is_zero() || link.waits() <= patience;
        self.look_with(to_open, is_time, |link| link.read_all(patience))
    }

    /// As [`look`](Self::look), for one caller: until there is `enough`, and not after `until`.
    fn look_until(&self, until: Instant, to_open: Duration, enough: impl Fn() -> bool) -> bool {
        self.look_with(to_open, |_| true, |link| link.read_until(until, enough))
    }

    /// For a caller whose time is over: reads what has come until there is `enough`. Nothing is opened
    /// or written, and no command of others fails for want of the time that they may have.
    fn read_late(&self, until: Instant, enough: impl Fn() -> bool) {
        let mut state = self.state.lock();
        if state.combining {
            return;
        }
        let Some(link) = state.link.take() else { return };
        state.combining = true;
        drop(state);
        Combiner::new(self, Some(link), Duration::ZERO)
            .on_link(|link| link.read_until(until, enough));
    }

    /// Takes what was begun out of the queue. `false`: some combiner has it, and has written it or is
    /// about to.
    fn withdraw(&self, reply: &Arc<ReplyCell>) -> bool {
        let mut state = self.state.lock();
        let is_it = |pending: &Pending| {
            matches!(pending, Pending::Post(_, receiver)
                if ptr::addr_eq(Arc::as_ptr(receiver), Arc::as_ptr(reply)))
        };
        let at = state.queue.iter().position(is_it);
        at.is_some_and(|at| state.queue.remove(at).is_some())
    }

    fn look_with(
        &self,
        to_open: Duration,
        is_time: impl FnOnce(&Link) -> bool,
        read: impl FnOnce(&mut Link) -> Result<(), Failure>,
    ) -> bool {
        let mut state = self.state.lock();
        // Before the reading: a post that comes after it asks again.
        self.look_requested.store(false, Ordering::Release);
        if state.combining || !state.link.as_ref().is_none_or(is_time) {
            return false;
        }
        if state.queue.is_empty() && state.link.as_ref().is_none_or(|link| link.owed() == 0) {
            return true;
        }
        if state.link.is_none() && to_open.is_zero() {
            let queue = std::mem::take(&mut state.queue);
            drop(state);
            let failure = self.out();
            queue.into_iter().for_each(|pending| pending.fail(&failure));
            return true;
        }
        state.combining = true;
        let mut combiner = Combiner::new(self, state.link.take(), to_open);
        let packet = next_packet(&mut state.queue);
        // Nobody may come back for it.
        let rest =
            if to_open.is_zero() { std::mem::take(&mut state.queue) } else { VecDeque::new() };
        drop(state);
        let _heard = combiner.write_and_read(packet);
        combiner.on_link(read);
        drop(combiner);
        if !rest.is_empty() {
            let failure = self.out();
            rest.into_iter().for_each(|pending| pending.fail(&failure));
        }
        // What was left of the queue is written by now, or not.
        !self.owes()
    }

    /// Waits until everything posted so far is written and its reply read, or lost: a command of
    /// its own stands behind all of it. As [`call_until`](Self::call_until) until `deadline`.
    pub(crate) fn drain(&self, deadline: Instant) {
        if self.owes() {
            // Whatever it is answered, an error too.
            let _ = self.call_until(&Command::plain(&[b"PING"]), Some(deadline));
        }
    }

    /// Whether something is written or to be written whose reply is not read.
    fn owes(&self) -> bool {
        let state = self.state.lock();
        state.combining
            || !state.queue.is_empty()
            || state.link.as_ref().is_some_and(|link| link.owed() > 0)
    }

    /// From here on nobody looks after it. What is queued or owed is answered or fails, now or, if
    /// somebody combines, when that thread is done: a release must not be forgotten here without a
    /// word.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.look(Duration::ZERO, Duration::ZERO);
    }

    /// Closes the connection if nothing is on its way over it. The next command opens another one.
    pub(crate) fn hang_up(&self) {
        let mut state = self.state.lock();
        let is_busy = state.combining || !state.queue.is_empty();
        let link = state.link.take_if(|link| !is_busy && link.owed() == 0);
        // Not under the mutex.
        drop(state);
        drop(link);
    }

    /// Says that [`look`](Self::look) has to be called, and whether somebody was asked to already.
    pub(crate) fn look_after(&self) -> Posted {
        if self.look_requested.swap(true, Ordering::AcqRel) {
            Posted::LookedAfter
        } else {
            Posted::LookAfter
        }
    }

    /// When a call that begins now should be over.
    pub(crate) fn deadline(&self) -> Instant {
        let now = Instant::now();
        let time = self.endpoint.connect_timeout().saturating_add(self.endpoint.response_timeout());
        // No timeout is longer than a year.
        now.checked_add(time).unwrap_or(now)
    }

    /// As [`call_once`](Self::call_once), but not in an outage: who drops a hundred permits of a
    /// client that has ended waits for that once.
    pub(crate) fn call_unless_out(&self, command: &Command) -> Outcome {
        if self.endpoint.health().is_out() { Err(self.out()) } else { self.call_once(command) }
    }

    fn out(&self) -> Failure {
        let out = io::Error::new(io::ErrorKind::NotConnected, "the server cannot be reached");
        Failure::Unsent(Cause::new(out, self.endpoint.health()))
    }

    /// Sends a command once and waits for its reply. It may wait for the packet of others that is
    /// on its way, and goes with the next one: each connects, if it must, and waits for its
    /// replies.
    pub(crate) fn call_once(&self, command: &Command) -> Outcome {
        self.call_until(command, None)
    }

    /// As [`call_once`](Self::call_once); after a reset it sends `copy`, if there is time left by
    /// then: a call whose connections break one after the other ends, too. `true`: it did.
    pub(crate) fn call_twice(
        &self,
        command: &Command,
        copy: impl FnOnce() -> Command,
    ) -> (Outcome, bool) {
        let deadline = self.deadline();
        match self.call_once(command) {
            Err(Failure::Reset(_)) if Instant::now() < deadline => (self.call_once(&copy()), true),
            // It changed nothing there. The next connection leads to the master.
            Err(Failure::Refused(cause))
                if self.endpoint.has_sentinels()
                    && is_wrong_server_error(&cause.error)
                    && Instant::now() < deadline =>
            {
                (self.call_once(command), false)
            }
            outcome => (outcome, false),
        }
    }

    /// As [`call_once`](Self::call_once), of a server to which the command's slot is on its way: the
    /// word that says so goes before it, and the script's text with it. (The word is good for one
    /// command, and a script that is not known yet would be a second one.)
    pub(crate) fn call_asking(&self, command: &Command) -> Outcome {
        let command = command.by_text(self.endpoint.channels());
        let call = Call::queued();
        let mut state = self.state.lock();
        // Both at once: nothing comes between.
        let asking = Command::plain(&[b"ASKING"]);
        state.queue.push_back(Pending::Post(asking, Arc::new(|_: Outcome| {})));
        state.queue.push_back(Pending::Call(command, Arc::clone(&call)));
        if !std::mem::replace(&mut state.combining, true) {
            *call.state.lock() = CallState::Combines;
        }
        drop(state);
        self.follow(&call, None)
    }

    /// As [`call_once`](Self::call_once), but other threads' packets are waited for until
    /// `deadline` only. (Not by all calls: a sleep with an end costs a twentieth of the rate of
    /// many threads.)
    fn call_until(&self, command: &Command, deadline: Option<Instant>) -> Outcome {
        let mut state = self.state.lock();
        if state.combining {
            let call = Call::queued();
            state.queue.push_back(Pending::Call(command.clone(), Arc::clone(&call)));
            drop(state);
            return self.follow(&call, deadline);
        }
        state.combining = true;
        let link = state.link.take();
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        // Opens a link where there is none. First what others have posted, then the own command; those
        // who call meanwhile queue. Its drop makes the first of them the combiner, which writes all
        // that is queued by then in one packet (`combine_queue`).
        let mut combiner = Combiner::new(self, link, self.endpoint.connect_timeout());
        match combiner.write_and_read(queue) {
            // No connection can be had: the caller need not wait for that twice.
            Err(unsent @ Failure::Unsent(_)) => Err(unsent),
            Ok(()) | Err(_) => combiner.exchange(command),
        }
    }

    /// Sleeps until somebody has the reply, or combines when told to.
    fn follow(&self, call: &Arc<Call>, deadline: Option<Instant>) -> Outcome {
        loop {
            let mut state = call.state.lock();
            match std::mem::replace(&mut *state, CallState::Queued) {
                CallState::Done(outcome) => return outcome,
                CallState::Combines => {
                    drop(state);
                    self.combine_queue();
                }
                CallState::Queued => {
                    drop(state);
                    call.thread.parker().park_until(deadline);
                    if deadline.is_some_and(|deadline| Instant::now() >= deadline)
                        && let Some(failure) = self.abandon(call)
                    {
                        return Err(failure);
                    }
                }
            }
        }
    }

    /// While somebody combines, sleeps until what was written so far is read, or until `until`. The
    /// role itself is for others, whose time may be longer: it goes on to them.
    fn await_combiner(&self, until: Instant) {
        let call = Call::queued();
        let ping = Command::plain(&[b"PING"]);
        let mut state = self.state.lock();
        if !state.combining {
            return;
        }
        state.queue.push_back(Pending::Call(ping, Arc::clone(&call)));
        drop(state);
        loop {
            let told = std::mem::replace(&mut *call.state.lock(), CallState::Queued);
            match told {
                CallState::Done(_) => return,
                CallState::Combines => break,
                CallState::Queued => {
                    call.thread.parker().park_until(Some(until));
                    if Instant::now() >= until && self.abandon(&call).is_some() {
                        return;
                    }
                }
            }
        }
        let mut state = self.state.lock();
        state.queue.retain(|pending| !pending.is(&call));
        let link = state.link.take();
        drop(state);
        drop(Combiner::new(self, link, Duration::ZERO));
    }

    /// Gives up a call whose time is over. `None`: it is answered, or its thread combines.
    fn abandon(&self, call: &Arc<Call>) -> Option<Failure> {
        let late = io::Error::new(io::ErrorKind::TimedOut, "too many threads wait for the server");
        let late = Cause::new(late, self.endpoint.health());
        // The next combiner is chosen under this mutex: it cannot be a thread that has just left.
        let mut state = self.state.lock();
        if !matches!(*call.state.lock(), CallState::Queued) {
            return None;
        }
        let Some(at) = state.queue.iter().position(|pending| pending.is(call)) else {
            // Some combiner has it, and has written it or is about to.
            return Some(Failure::TimedOut(late));
        };
        state.queue.remove(at);
        Some(Failure::Unsent(late))
    }

    /// Combines for the whole queue, in which the caller's own command stands too.
    fn combine_queue(&self) {
        self.gather();
        let mut state = self.state.lock();
        let link = state.link.take();
        let queue = std::mem::take(&mut state.queue);
        state.served = queue.len();
        drop(state);
        let mut combiner = Combiner::new(self, link, self.endpoint.connect_timeout());
        let begun = Instant::now();
        let _heard = combiner.write_and_read(queue);
        self.state.lock().round_trip = begun.elapsed();
        drop(combiner);
    }

    /// Where there is a delay, waits a moment for the threads that the last packet served: they
    /// are about to send again, and whoever misses this packet waits for two round trips.
    fn gather(&self) {
        let (served, patience) = {
            let state = self.state.lock();
            (state.served, state.round_trip / 16)
        };
        if served < 2 || patience < SHORTEST_GATHER {
            return;
        }
        let until = Instant::now() + patience.min(LONGEST_GATHER);
        while self.state.lock().queue.len() < served && Instant::now() < until {
            thread::yield_now();
        }
    }
}

/// A round trip of a sixth of a millisecond: below that gathering costs more than it brings.
const SHORTEST_GATHER: Duration = Duration::from_micros(10);
const LONGEST_GATHER: Duration = Duration::from_micros(500);

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lane({})", self.endpoint.address())
    }
}

impl ReplyReceiver for Call {
    fn receive(&self, outcome: Outcome) {
        *self.state.lock() = CallState::Done(outcome);
        self.thread.parker().unpark();
    }
}

#[cfg(all(test, testkit, not(shuttle)))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::panic::{AssertUnwindSafe, catch_unwind};

    use redis::Value;
    use redlatch_testkit::{Server, wait_until};

    use super::*;
    use crate::config::ReplicaAcks;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(20);

    /// A lane without a connection, and two commands on it.
    fn waiting(server: &Server) -> (Arc<Lane>, [Begun; 2]) {
        let endpoint = Endpoint::new(&server.url(), LONG, LONG).unwrap();
        let lane = Arc::new(Lane::new(Arc::new(endpoint)));
        let commands = [b"hasty", b"other"].map(|text| Command::plain(&[b"ECHO", text]));
        let begun = commands.map(|command| lane.begin(&command));
        (lane, begun)
    }

    #[test]
    fn who_is_late_fails_no_others_command() {
        let server = Server::start().unwrap();
        let (lane, [hasty, other]) = waiting(&server);
        // Its command was not written, and never will be.
        assert!(matches!(hasty.finish(Instant::now()), (Err(Failure::Unsent(_)), false)));
        assert!(other.reply.take().is_none());
        assert!(lane.look(LONG, LONG));
        assert!(matches!(other.reply.take(), Some(Ok(Value::BulkString(_)))));
    }

    #[test]
    fn who_has_little_time_to_connect_fails_no_other_who_has_more() {
        let server = Server::start().unwrap();
        let (_lane, [hasty, other]) = waiting(&server);
        server.pause();
        let (outcome, _) = hasty.finish(Instant::now() + SHORT);
        server.resume();
        assert!(outcome.is_err());
        // Not in doubt: it was never written.
        let (outcome, in_doubt) = other.finish(Instant::now() + LONG);
        assert_eq!(outcome.unwrap(), Value::BulkString(b"other".to_vec()));
        assert!(!in_doubt);
    }

    struct Panics;

    impl ReplyReceiver for Panics {
        fn receive(&self, _: Outcome) {
            panic!("as a logger does whose output was closed");
        }
    }

    /// Whoever asked is gone, and the background thread leaves what it has asked for to it.
    #[test]
    fn what_replicas_were_asked_for_is_read_by_others_when_that_is_over() {
        const SHORT: Duration = Duration::from_millis(100);
        const LONG: Duration = Duration::from_secs(20);
        let server = Server::start().unwrap();
        if server.is_stand_in() {
            return;
        }
        let endpoint = Endpoint::new(&server.url(), LONG, LONG).unwrap();
        let lane = Arc::new(Lane::new(Arc::new(endpoint)));
        lane.connect().unwrap();
        let acks = ReplicaAcks { count: 1, within: SHORT * 5 };
        let reply = lane.begin(&Command::plain(&[b"ECHO", b"one"]).acknowledged(Some(acks))).reply;
        assert!(!lane.look(SHORT, LONG), "who asked may read it still");
        wait_until("it is read", LONG, || lane.look(SHORT, LONG));
        assert!(matches!(reply.take(), Some(Err(Failure::Unacknowledged(..)))));
    }

    /// One reply too few was counted: whoever comes next must not take another command's for its
    /// own.
    #[test]
    fn a_thread_that_panics_while_it_combines_takes_the_connection_along() {
        const TIMEOUT: Duration = Duration::from_secs(10);
        let server = Server::start().unwrap();
        let endpoint = Endpoint::new(&server.url(), TIMEOUT, TIMEOUT).unwrap();
        let lane = Lane::new(Arc::new(endpoint));
        let echo = |text: &[u8]| Command::plain(&[b"ECHO", text]);
        lane.connect().unwrap();
        let _look = lane.post(echo(b"first"), Arc::new(Panics));
        let second = catch_unwind(AssertUnwindSafe(|| lane.call_once(&echo(b"second"))));
        assert!(second.is_err());
        let third = thread::scope(|scope| scope.spawn(|| lane.call_once(&echo(b"third"))).join());
        assert_eq!(third.unwrap().unwrap(), Value::BulkString(b"third".to_vec()));
    }
}
