//! A command whose reply its thread waits for: it combines, or sleeps until the combiner has it.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{Combiner, Lane, LaneState, Pending, take_first};
use crate::connection::Command;
use crate::connection::limit::{self, Limit, deadline_in};
use crate::connection::link::{Link, ReplyReceiver};
use crate::connection::outcome::{Cause, Failure, Outcome};
use crate::connection::reply::is_wrong_server_error;
use crate::sync::{Mutex, Waker, clock, own_thread};

/// A command whose thread sleeps until it has the reply, or until it must combine.
pub(super) struct Call {
    pub(super) waker: Waker,
    pub(super) state: Mutex<CallState>,
}

pub(super) enum CallState {
    /// It must be written, or is written and not answered.
    Queued,
    /// Its thread must combine. This is set under the lane's mutex, as is the `Done` of a thread
    /// that leaves. So no thread that has left is told to combine.
    Combines,
    /// It is answered, or its thread leaves with this outcome.
    Done(Outcome),
    /// Its thread has left.
    Gone,
}

impl Call {
    /// A queued call of the calling thread.
    fn queued() -> Arc<Self> {
        let state = Mutex::new(CallState::Queued);
        Arc::new(Self { waker: Waker::current(), state })
    }

    /// The state with which its thread goes on.
    fn told(&self) -> CallState {
        let mut state = self.state.lock();
        let told = std::mem::replace(&mut *state, CallState::Gone);
        if !matches!(told, CallState::Done(_)) {
            *state = CallState::Queued;
        }
        told
    }
}

impl Lane {
    /// The time at which a call that begins now should be over.
    pub fn deadline(&self) -> Instant {
        let connect_timeout = self.endpoint.connect_timeout();
        deadline_in(connect_timeout.saturating_add(self.endpoint.response_timeout()))
    }

    /// As [`call_once`](Self::call_once), but fails at once in an outage. So a thread that drops a
    /// hundred permits of a client that has ended waits for the outage once.
    pub fn call_unless_out(self: &Arc<Self>, command: &Command) -> Outcome {
        if self.endpoint.health().is_out() { Err(self.out()) } else { self.call_once(command) }
    }

    /// Sends a command once and waits for its reply. The command may have to wait for the other
    /// threads' packet that is on its way, and goes with the next one. Each packet connects, if it
    /// must, and waits for its replies.
    ///
    /// If the calling thread has a [`Limit`], it does not wait for longer than that: see
    /// [`follow`](Self::follow).
    pub fn call_once(self: &Arc<Self>, command: &Command) -> Outcome {
        match Limit::current() {
            None => self.call_within(command, None),
            limit => self.follow(&self.queue(command.clone()), limit.as_ref()),
        }
    }

    /// As [`call_once`](Self::call_once), but after a reset it sends `copy`, if there is time left:
    /// a call whose connections break one after the other ends, too. `true`: it sent `copy`.
    pub(crate) fn call_twice(
        self: &Arc<Self>,
        command: &Command,
        copy: impl FnOnce() -> Command,
    ) -> (Outcome, bool) {
        let deadline = self.deadline();
        match self.call_once(command) {
            Err(Failure::Reset(_)) if Instant::now() < deadline => (self.call_once(&copy()), true),
            // The command changed nothing there, and the next connection leads to the master.
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

    /// As [`call_once`](Self::call_once), to a server to which the command's slot is moving.
    pub(crate) fn call_asking(self: &Arc<Self>, command: &Command) -> Outcome {
        self.follow(&self.queue(command.asking()), Limit::current().as_ref())
    }

    /// Queues a command. If no thread combines, the calling one must.
    fn queue(&self, command: Command) -> Arc<Call> {
        let call = Call::queued();
        let mut state = self.state.lock();
        state.queue.push_back(Pending::Call(command, Arc::clone(&call)));
        if !std::mem::replace(&mut state.combining, true) {
            *call.state.lock() = CallState::Combines;
        }
        call
    }

    /// As [`call_once`](Self::call_once), but it waits for other threads' packets only until
    /// `limit`. (Not all calls do: a sleep with an end costs a twentieth of the rate of many
    /// threads.)
    pub(super) fn call_within(
        self: &Arc<Self>,
        command: &Command,
        limit: Option<&Limit>,
    ) -> Outcome {
        let mut state = self.state.lock();
        if state.combining {
            let call = Call::queued();
            state.queue.push_back(Pending::Call(command.clone(), Arc::clone(&call)));
            drop(state);
            return self.follow(&call, limit);
        }
        state.combining = true;
        let link = state.link.take();
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        // This opens a link if there is none. Others' posts go first, then the own command. Calls
        // that come meanwhile queue. The combiner's drop makes the first of them the next combiner,
        // which writes the whole queue in one packet (`combine_queue`).
        let mut combiner = Combiner::new(self, link, self.endpoint.connect_timeout());
        match combiner.write_and_read(queue) {
            // No connection opens, and the caller need not wait for that twice.
            Err(unsent @ Failure::Unsent(_)) => Err(unsent),
            Ok(()) | Err(_) => combiner.exchange(command),
        }
    }

    /// Sleeps until another thread has the reply, or combines when told to. A thread with a limit
    /// leaves when that is over, wherever its command stands then, and never opens a connection
    /// itself.
    ///
    /// | its command when it leaves | its result | the command's end |
    /// |---|---|---|
    /// | in the queue | `Unsent` | taken out: it never runs |
    /// | about to be written, or written, by another combiner | `TimedOut` | it may run; the combiner reads and drops its reply |
    /// | written in part, or as a whole, by itself | `TimedOut` | it may run; the link keeps the rest of the bytes, and the part of a reply that was read |
    /// | in the link, not begun | `TimedOut` | it may run; a [take](crate::Script::takes) is taken back before the next write |
    ///
    /// If it combines, it hands the link on: to a call in the queue, or else to a call whose
    /// command is written and which becomes the reader. If no other call waits, the link stays with
    /// the lane, and the next caller, or the look at an idle link, reads the late reply before its
    /// own. The link is given up only when the server has answered nothing for as long as
    /// `response_timeout`, even if other threads wrote meanwhile. If there is no link, or one that
    /// was silent for long, a thread of its own combines in its place, with the whole time that
    /// opening a link may take: it serves all calls that wait then.
    ///
    /// The senders of a command that may run give back anything it takes, as after any other lost
    /// reply: they have its owner, ids or number (`lease/cleanup.rs`).
    fn follow(self: &Arc<Self>, call: &Arc<Call>, limit: Option<&Limit>) -> Outcome {
        loop {
            match (call.told(), limit) {
                (CallState::Done(outcome), _) => return outcome,
                (CallState::Combines, None) => self.combine_queue(),
                (CallState::Combines, Some(limit)) => self.combine_limited(call, limit),
                (CallState::Queued | CallState::Gone, None) => call.waker.sleep_until(None),
                (CallState::Queued | CallState::Gone, Some(limit)) => limit.sleep_on(&call.waker),
            }
            if limit.is_some_and(Limit::is_over)
                && let Some(failure) = self.abandon(call)
            {
                limit::cuts(self.state.lock().answers());
                return Err(failure);
            }
        }
    }

    /// Combines until its limit is over, for its own call and those in the queue.
    fn combine_limited(self: &Arc<Self>, call: &Arc<Call>, limit: &Limit) {
        let mut state = self.state.lock();
        if limit.is_over() {
            // It was told to combine when its time was over, so another thread must.
            self.leaves(&mut state, call);
            let link = state.link.take();
            drop(state);
            drop(Combiner::new(self, link, Duration::ZERO).with_limit(limit));
            return;
        }
        if !state.link.as_mut().is_some_and(|link| link.is_trusted()) {
            drop(state);
            let lane = Arc::clone(self);
            if let Err(error) = own_thread("redlatch-opener", None, move || lane.combine_queue()) {
                let mut state = self.state.lock();
                let failure = self.give_up(&mut state, call, error);
                let link = state.link.take();
                drop(state);
                call.receive(Err(failure));
                drop(Combiner::new(self, link, Duration::ZERO).with_limit(limit));
            }
            return;
        }
        drop(state);
        self.gather();
        let link = self.state.lock().link.take();
        let mut combiner = Combiner::new(self, link, Duration::ZERO).with_limit(limit);
        let room = combiner.room(limit);
        let mut state = self.state.lock();
        let packet = take_first(&mut state.queue, room);
        state.served = packet.len();
        drop(state);
        let begun = Instant::now();
        combiner.write_and_read_limited(packet, limit);
        let mut state = self.state.lock();
        state.round_trip = begun.elapsed();
        state.heard_at = combiner.heard_at();
        if limit.is_over() {
            self.leaves(&mut state, call);
        }
        drop(state);
        drop(combiner);
    }

    /// Ends a call whose time is over. It must come before its thread hands the link on, or the
    /// thread would be told to combine once more.
    fn leaves(&self, state: &mut LaneState, call: &Arc<Call>) {
        let mut own = call.state.lock();
        if matches!(*own, CallState::Queued) {
            *own = CallState::Done(Err(self.give_up(state, call, late())));
            limit::cuts(state.answers());
        }
    }

    /// Removes a call from the queue. Returns whether its command may run: [`Failure::Unsent`] only
    /// if it was still there.
    fn give_up(&self, state: &mut LaneState, call: &Arc<Call>, why: io::Error) -> Failure {
        let why = Cause::new(why, self.endpoint.health());
        match state.queue.iter().position(|pending| pending.is(call)) {
            Some(at) => {
                state.queue.remove(at);
                Failure::Unsent(why)
            }
            // A combiner has it, and has written it or is about to write it.
            None => Failure::TimedOut(why),
        }
    }

    /// Gives up a call whose time is over. `None`: it is answered, or its thread combines.
    fn abandon(&self, call: &Arc<Call>) -> Option<Failure> {
        // The next combiner is chosen under this mutex, so it cannot be a thread that has just
        // left.
        let mut state = self.state.lock();
        let mut own = call.state.lock();
        if !matches!(*own, CallState::Queued) {
            return None;
        }
        *own = CallState::Gone;
        Some(self.give_up(&mut state, call, late()))
    }

    /// Combines for the whole queue, in which the caller's own command is, too.
    fn combine_queue(&self) {
        self.gather();
        let mut state = self.state.lock();
        let link = state.link.take();
        let queue = std::mem::take(&mut state.queue);
        state.served = queue.len();
        drop(state);
        let mut combiner = Combiner::new(self, link, self.endpoint.connect_timeout());
        let begun = Instant::now();
        if queue.is_empty() {
            // Its own command is written, and the thread that should read the reply has left.
            combiner.on_link(Link::read_awaited);
        }
        let _heard = combiner.write_and_read(queue);
        self.state.lock().round_trip = begun.elapsed();
        drop(combiner);
    }

    /// Waits a moment, on a link with delay, for the threads that the last packet served. They are
    /// about to send again, and a thread that misses this packet waits for two round trips.
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

impl LaneState {
    /// Whether the server has answered over the link lately, as far as the threads have noticed.
    fn answers(&self) -> bool {
        clock::since(self.heard_at) < LATELY
    }
}

/// The longest silence after which a server still counts as answering. After a longer one it may be
/// away, and a call that it did not answer says so.
const LATELY: Duration = Duration::from_secs(1);

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the call's own time was over")
}

/// The shortest time to gather, for a round trip of a sixth of a millisecond: below that, gathering
/// costs more than it brings.
const SHORTEST_GATHER: Duration = Duration::from_micros(10);
const LONGEST_GATHER: Duration = Duration::from_micros(500);

impl ReplyReceiver for Call {
    fn receive(&self, outcome: Outcome) {
        let mut state = self.state.lock();
        // A thread that has left gets no reply: its verb undoes the command's effects.
        if matches!(*state, CallState::Queued | CallState::Combines) {
            *state = CallState::Done(outcome);
            drop(state);
            self.waker.wake();
        }
    }

    fn has_left(&self) -> bool {
        matches!(*self.state.lock(), CallState::Done(_) | CallState::Gone)
    }

    fn takes_over(&self) -> Option<Waker> {
        let mut state = self.state.lock();
        if !matches!(*state, CallState::Queued) {
            return None;
        }
        *state = CallState::Combines;
        Some(self.waker.clone())
    }
}
