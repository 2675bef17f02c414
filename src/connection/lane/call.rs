//! A command whose reply its thread waits for: it combines, or sleeps until the combiner has it.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{Combiner, Lane, Pending};
use crate::connection::Command;
use crate::connection::link::{Cause, Failure, Outcome, ReplyReceiver};
use crate::connection::reply::is_wrong_server_error;
use crate::sync::{Mutex, Thread};

/// Whose thread sleeps until it has the reply to its command, or is to combine.
pub(super) struct Call {
    pub(super) thread: Arc<Thread>,
    pub(super) state: Mutex<CallState>,
    /// It only waits for what was written before it, until then: see [`Lane::await_combiner`].
    pub(super) waits_until: Option<Instant>,
}

pub(super) enum CallState {
    Queued,
    Combines,
    Done(Outcome),
}

impl Call {
    /// The calling thread's.
    fn queued(waits_until: Option<Instant>) -> Arc<Self> {
        let state = Mutex::new(CallState::Queued);
        Arc::new(Self { thread: Thread::current(), state, waits_until })
    }
}

impl Lane {
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

    /// As [`call_once`](Self::call_once), of a server to which the command's slot is on its way:
    /// the word that says so goes before it, and the script's text with it. (The word is good for
    /// one command, and a script that is not known yet would be a second one.)
    pub(crate) fn call_asking(&self, command: &Command) -> Outcome {
        let command = command.by_text(self.endpoint.channels());
        let call = Call::queued(None);
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
    pub(super) fn call_until(&self, command: &Command, deadline: Option<Instant>) -> Outcome {
        let mut state = self.state.lock();
        if state.combining {
            let call = Call::queued(None);
            state.queue.push_back(Pending::Call(command.clone(), Arc::clone(&call)));
            drop(state);
            return self.follow(&call, deadline);
        }
        state.combining = true;
        let link = state.link.take();
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        // Opens a link where there is none. First what others have posted, then the own command;
        // those who call meanwhile queue. Its drop makes the first call the combiner, which
        // writes all that is queued by then in one packet (`combine_queue`).
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

    /// While somebody combines, sleeps until what was written so far is read, or until `until`. If
    /// it is told to combine, it reads until there is `enough`, as [`look_until`](Self::look_until)
    /// does. It must not merely hand the role on: of two that wait, each would hand it to the
    /// other's next PING for as long as they have time, and nobody would write or read. But calls
    /// go first: they may have more time to open a connection.
    pub(super) fn await_combiner(&self, until: Instant, enough: impl Fn() -> bool) {
        let call = Call::queued(Some(until));
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
        let rest = until.saturating_duration_since(Instant::now());
        let leaves = rest.is_zero() || enough();
        let mut state = self.state.lock();
        state.queue.retain(|pending| !pending.is(&call));
        if leaves || state.queue.iter().any(Pending::is_call) {
            let link = state.link.take();
            drop(state);
            drop(Combiner::new(self, link, Duration::ZERO));
            return;
        }
        let patience = rest.min(self.endpoint.response_timeout());
        let to_open = rest.min(self.endpoint.connect_timeout());
        self.combine(state, to_open, patience, |link| link.read_until(until, enough));
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

impl ReplyReceiver for Call {
    fn receive(&self, outcome: Outcome) {
        *self.state.lock() = CallState::Done(outcome);
        self.thread.parker().unpark();
    }
}
