//! A call: a command whose thread waits for the reply. The thread combines, or sleeps until the
//! combiner has read the reply.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{Combiner, Lane, LaneState, Pending, take_first};
use crate::connection::Command;
use crate::connection::limit::{self, Limit, deadline_in};
use crate::connection::link::Link;
use crate::connection::outcome::{Cause, Failure, Outcome, ReplyReceiver};
use crate::connection::reply::is_wrong_server_error;
use crate::sync::{Mutex, Waker, clock, own_thread};

/// A call, with the waker of the thread that waits for its reply. The thread sleeps until there is
/// a reply, or until the thread must combine.
pub(super) struct Call {
    pub(super) waker: Waker,
    pub(super) state: Mutex<CallState>,
}

pub(super) enum CallState {
    /// The command is not yet written, or has no reply yet.
    Queued,
    /// The call's thread must combine. Two states are set under the lane's mutex: `Combines`, and
    /// the `Done` of a thread that leaves. So a thread that has left never becomes the combiner.
    Combines,
    /// The command has a reply, or the thread leaves with this outcome.
    Done(Outcome),
    /// The call's thread has left.
    Gone,
}

impl Call {
    /// Returns a new call of the calling thread.
    fn queued() -> Arc<Self> {
        let state = Mutex::new(CallState::Queued);
        Arc::new(Self { waker: Waker::current(), state })
    }

    /// Takes the state, which decides what the call's thread does next.
    fn take_state(&self) -> CallState {
        let mut state = self.state.lock();
        let taken = std::mem::replace(&mut *state, CallState::Gone);
        if !matches!(taken, CallState::Done(_)) {
            *state = CallState::Queued;
        }
        taken
    }
}

impl Lane {
    /// Returns the time at which a call that begins now should be over.
    pub fn deadline(&self) -> Instant {
        let connect_timeout = self.endpoint.connect_timeout();
        deadline_in(connect_timeout.saturating_add(self.endpoint.response_timeout()))
    }

    /// Like [`call_once`](Self::call_once), but fails at once if the server is known to be out of
    /// reach. So a thread that drops a hundred permits of an ended client waits only once for an
    /// unreachable server.
    pub fn call_unless_out(self: &Arc<Self>, command: &Command) -> Outcome {
        if self.endpoint.health().is_out() {
            Err(self.unreachable())
        } else {
            self.call_once(command)
        }
    }

    /// Sends a command once and waits for its reply. If another thread's packet is in flight, the
    /// command is sent in the next packet. If there is no connection, the thread that writes the
    /// packet opens a connection.
    ///
    /// If the calling thread has a [`Limit`], waits at most until the limit is over: see
    /// [`follow`](Self::follow).
    pub fn call_once(self: &Arc<Self>, command: &Command) -> Outcome {
        match Limit::current() {
            None => self.call_within(command, None),
            limit => self.follow(&self.queue(command.clone(), |_| ()), limit.as_ref()),
        }
    }

    /// Sends several commands in one packet, and waits for all replies. Returns what
    /// [`call_once`](Self::call_once) would return for each command.
    ///
    /// Only the last command is a call. The others are posts before it. A server replies in the
    /// order of the commands, so their replies have usually been read when the call has its reply.
    /// (If the server did not know the script of a post, the post was sent again behind the call.)
    pub(crate) fn call_each(self: &Arc<Self>, commands: &[Command]) -> Vec<Outcome> {
        let Some((last, posts)) = commands.split_last() else { return Vec::new() };
        let outcomes = Arc::new(Mutex::new(vec![None; posts.len()]));
        let call = self.queue(last.clone(), |queue| {
            for (at, command) in posts.iter().enumerate() {
                let outcomes = Arc::clone(&outcomes);
                let receiver = move |outcome| outcomes.lock()[at] = Some(outcome);
                queue.push_back(Pending::Post(command.clone(), Arc::new(receiver)));
            }
        });
        let last = self.follow(&call, Limit::current().as_ref());
        let is_on_link = !last.as_ref().is_err_and(Failure::is_the_links);
        if is_on_link && outcomes.lock().iter().any(Option::is_none) {
            let _ = self.call_once(&Command::plain(&[b"PING"]));
        }
        // A post still has no outcome if the limit of the thread is over. The post may run later,
        // even if the call was never sent.
        let late = || Err(Failure::TimedOut(Cause::new(late(), self.endpoint.health())));
        let mut outcomes = outcomes.lock();
        let posts = outcomes.iter_mut().map(|it| it.take().unwrap_or_else(late));
        posts.chain([last]).collect()
    }

    /// Sends `copy` in the place of a command that may have run, with this `outcome`. The `bool`
    /// says whether `copy` was sent.
    pub(crate) fn call_again(
        self: &Arc<Self>,
        outcome: Outcome,
        command: &Command,
        copy: impl FnOnce() -> Command,
        deadline: Instant,
    ) -> (Outcome, bool) {
        match outcome {
            Err(Failure::Reset(_)) if Instant::now() < deadline => (self.call_once(&copy()), true),
            // The wrong server has changed nothing. The next connection leads to the master.
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

    /// Like [`call_once`](Self::call_once), to a server to which the command's slot is moving.
    pub(crate) fn call_asking(self: &Arc<Self>, command: &Command) -> Outcome {
        self.follow(&self.queue(command.asking(), |_| ()), Limit::current().as_ref())
    }

    /// Queues a command behind the posts that `posts` adds. If no thread is the combiner, the
    /// calling thread becomes the combiner.
    fn queue(&self, command: Command, posts: impl FnOnce(&mut VecDeque<Pending>)) -> Arc<Call> {
        let call = Call::queued();
        let mut state = self.state.lock();
        posts(&mut state.queue);
        state.queue.push_back(Pending::Call(command, Arc::clone(&call)));
        if !std::mem::replace(&mut state.combining, true) {
            *call.state.lock() = CallState::Combines;
        }
        call
    }

    /// Like [`call_once`](Self::call_once), but waits for other threads' packets only until
    /// `limit`. A call without a limit sleeps without a deadline: with many threads, deadlines
    /// would cost a twentieth of the rate.
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
        // The combiner opens a link if there is none. The combiner writes the posts of other
        // threads first, then its own command. In the meantime other calls queue. The combiner's
        // drop makes the first call in the queue the next combiner, which writes the whole queue in
        // one packet (`combine_queue`).
        let mut combiner = Combiner::new(self, link, self.endpoint.connect_timeout());
        if !queue.is_empty()
            && let Err(unsent @ Failure::Unsent(_)) = combiner.write_and_read(queue)
        {
            // No connection could be opened, and the caller need not wait for a second attempt.
            return Err(unsent);
        }
        combiner.exchange(command)
    }

    /// Waits for the reply: sleeps until another thread has read it, or combines when this thread
    /// becomes the combiner. A thread with a limit leaves when the limit is over, and never opens a
    /// connection itself.
    ///
    /// | the command when the thread leaves | the call's result | the command's end |
    /// |---|---|---|
    /// | in the queue | `Unsent` | taken out: it never runs |
    /// | about to be written, or written, by another combiner | `TimedOut` | it may run; the combiner reads and drops its reply |
    /// | written in part, or as a whole, by the thread itself | `TimedOut` | it may run; the link keeps the rest of the bytes, and the part of a reply that was read |
    /// | in the link, not begun | `TimedOut` | it may run; a [take](crate::CachedScript::takes) is taken back before the next write |
    ///
    /// If a combiner leaves, it passes the link to a call in the queue, or else to a call whose
    /// command is written: the thread of that call becomes the reader. If no other call waits, the
    /// link goes back to the lane. Then the next caller, or the next `service`, reads the late
    /// reply before its own reply. The link is closed after the server has sent nothing for
    /// `response_timeout`. Commands that other threads write do not restart this time. If there is
    /// no link, or the link was silent for long, a new thread combines in place of the thread with
    /// the limit. The new thread may take the whole connect timeout to open a link, and handles all
    /// calls that wait then.
    ///
    /// If a call ends while its command may still run, the sender gives back everything that the
    /// command takes, as after any lost reply. The sender names the command's owner, ids or number
    /// for this (`lease/cleanup.rs`).
    fn follow(self: &Arc<Self>, call: &Arc<Call>, limit: Option<&Limit>) -> Outcome {
        loop {
            match (call.take_state(), limit) {
                (CallState::Done(outcome), _) => return outcome,
                (CallState::Combines, None) => self.combine_queue(),
                (CallState::Combines, Some(limit)) => self.combine_limited(call, limit),
                (CallState::Queued | CallState::Gone, None) => call.waker.sleep_until(None),
                (CallState::Queued | CallState::Gone, Some(limit)) => limit.sleep_on(&call.waker),
            }
            if limit.is_some_and(Limit::is_over)
                && let Some(failure) = self.abandon(call)
            {
                limit::record_cut(self.state.lock().answered_recently());
                return Err(failure);
            }
        }
    }

    /// Combines for this call and the calls in the queue, until the limit is over.
    fn combine_limited(self: &Arc<Self>, call: &Arc<Call>, limit: &Limit) {
        let mut state = self.state.lock();
        if limit.is_over() {
            // The limit was over before this thread combined, so another thread must combine.
            self.leave(&mut state, call);
            let link = state.link.take();
            drop(state);
            drop(Combiner::new(self, link, Duration::ZERO).with_limit(limit));
            return;
        }
        if !state.link.as_mut().is_some_and(|link| link.check_trusted()) {
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
        state.served = calls_in(&packet);
        drop(state);
        let begun = Instant::now();
        combiner.write_and_read_limited(packet, limit);
        let mut state = self.state.lock();
        state.round_trip = begun.elapsed();
        state.alive_at = combiner.alive_at();
        if limit.is_over() {
            self.leave(&mut state, call);
        }
        drop(state);
        drop(combiner);
    }

    /// Ends a call whose time is over. Must be called before the thread passes the link on:
    /// otherwise the thread could become the combiner again.
    fn leave(&self, state: &mut LaneState, call: &Arc<Call>) {
        let mut own = call.state.lock();
        if matches!(*own, CallState::Queued) {
            *own = CallState::Done(Err(self.give_up(state, call, late())));
            limit::record_cut(state.answered_recently());
        }
    }

    /// Removes a call from the queue. Returns [`Failure::Unsent`] if the call was still in the
    /// queue. If the command was written, it may run, and the result is [`Failure::TimedOut`].
    fn give_up(&self, state: &mut LaneState, call: &Arc<Call>, why: io::Error) -> Failure {
        let why = Cause::new(why, self.endpoint.health());
        match state.queue.iter().position(|pending| pending.is(call)) {
            Some(at) => {
                state.queue.remove(at);
                Failure::Unsent(why)
            }
            // A combiner has taken the command, and has written it or is about to write it.
            None => Failure::TimedOut(why),
        }
    }

    /// Gives up a call whose time is over. Returns `None` if the call has a reply, or if its thread
    /// must combine.
    fn abandon(&self, call: &Arc<Call>) -> Option<Failure> {
        // The next combiner is chosen under this mutex, so this thread cannot be chosen after it
        // has left.
        let mut state = self.state.lock();
        let mut own = call.state.lock();
        if !matches!(*own, CallState::Queued) {
            return None;
        }
        *own = CallState::Gone;
        Some(self.give_up(&mut state, call, late()))
    }

    /// Combines for the whole queue, which includes the caller's own command.
    fn combine_queue(&self) {
        self.gather();
        let mut state = self.state.lock();
        let link = state.link.take();
        let queue = std::mem::take(&mut state.queue);
        state.served = calls_in(&queue);
        drop(state);
        let mut combiner = Combiner::new(self, link, self.endpoint.connect_timeout());
        let begun = Instant::now();
        if queue.is_empty() {
            // The caller's command has been written, but the thread that should read the reply has
            // left.
            combiner.on_link(Link::read_awaited);
        }
        let _heard = combiner.write_and_read(queue);
        self.state.lock().round_trip = begun.elapsed();
        drop(combiner);
    }

    /// If the link has a long round trip, waits a moment for the threads whose replies came with
    /// the last packet. These threads will probably send again at once. A thread that misses this
    /// packet would wait for two round trips.
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

/// The number of threads whose calls are in this queue.
fn calls_in(queue: &VecDeque<Pending>) -> usize {
    queue.iter().filter(|pending| matches!(pending, Pending::Call(..))).count()
}

impl LaneState {
    /// Whether the server has replied over the lane within the time [`RECENTLY`].
    fn answered_recently(&self) -> bool {
        clock::since(self.alive_at) < RECENTLY
    }
}

/// The longest silence of a server that still counts as working. If a call times out after a longer
/// silence, its error says that the server may be out of reach.
const RECENTLY: Duration = Duration::from_secs(1);

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the call's own time was over")
}

/// The shortest time to gather, for a round trip of a sixth of a millisecond. A shorter time would
/// cost more than it saves.
const SHORTEST_GATHER: Duration = Duration::from_micros(10);
const LONGEST_GATHER: Duration = Duration::from_micros(500);

impl ReplyReceiver for Call {
    fn receive(&self, outcome: Outcome) {
        let mut state = self.state.lock();
        // A thread that has left gets no reply. Its caller undoes the effects of the command.
        if matches!(*state, CallState::Queued | CallState::Combines) {
            *state = CallState::Done(outcome);
            drop(state);
            self.waker.wake();
        }
    }

    fn has_left(&self) -> bool {
        matches!(*self.state.lock(), CallState::Done(_) | CallState::Gone)
    }

    fn take_over(&self) -> Option<Waker> {
        let mut state = self.state.lock();
        if !matches!(*state, CallState::Queued) {
            return None;
        }
        *state = CallState::Combines;
        Some(self.waker.clone())
    }
}
