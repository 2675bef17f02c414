//! A connection that threads share: one thread writes the commands of all threads in one packet.
//!
//! One thread, the *combiner*, has the link. The combiner writes its own command and the commands
//! in the queue, reads the replies, and wakes the other threads. Then the first call that has
//! queued in the meantime becomes the next combiner. So many threads need few packets, and a single
//! thread loses no time. An I/O thread would cost a single caller a third of its rate.
//!
//! A *post* is a command for whose reply no thread waits. All callers' commands for a name use the
//! name's lane, so a release that `Drop` posts runs before the next acquire. Renewals and cleanups
//! use another connection. If the connection accepts no bytes, commands wait in the link in their
//! order.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::link::{Link, Outgoing};
use super::outcome::{Cause, Failure, ReplyReceiver};
use super::{Command, Endpoint, Limit};
use crate::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{IS_MODEL, Mutex, Waker};

mod call;
mod combiner;

use self::call::Call;
use self::combiner::Combiner;

/// The maximum number of unread replies that a link may have. More posts wait in the queue until
/// some replies are read. The thread that reads them is one that waits for the server anyway. A
/// model has a small number, so that it reaches the limit.
const MAX_UNREAD: usize = if IS_MODEL { 2 } else { 1_000 };

/// A shared connection. The first command, and the first command after an error, opens it.
pub struct Lane {
    endpoint: Arc<Endpoint>,
    state: Mutex<LaneState>,
    /// Whether the background thread must call [`service`](Self::service) and has not begun this
    /// call: [`NOT_REQUESTED`], [`REQUESTED`] or [`REQUESTED_AGAIN`].
    service_requests: AtomicU8,
    /// The number of posted releases of permits without a reply. This number must be well below
    /// [`MAX_UNREAD`].
    pub permits_posted: AtomicUsize,
    /// The time of the last reply to a change of a semaphore over this lane.
    pub permits_answered: AtomicU64,
}

/// The values of [`Lane::service_requests`]. `REQUESTED_AGAIN` means that there was a post since
/// the last [check](Lane::check).
const NOT_REQUESTED: u8 = 0;
const REQUESTED: u8 = 1;
const REQUESTED_AGAIN: u8 = 2;

#[derive(Default)]
struct LaneState {
    /// The link, while no thread combines.
    link: Option<Box<Link>>,
    combining: bool,
    /// Commands that are not yet written. Two invariants hold. If the queue has a call, a thread
    /// combines or was woken to combine. If the queue has only posts and no thread combines, there
    /// is no link, or the link has too many unread replies.
    queue: VecDeque<Pending>,
    /// Whether the background thread has ended. If so, the combiner also handles posts.
    closed: bool,
    /// The number of threads that the last packet served.
    served: usize,
    round_trip: Duration,
    /// The value of [`Link::alive_at`] when the last combiner finished. Zero after a link broke.
    alive_at: u64,
}

enum Pending {
    Call(Command, Arc<Call>),
    Post(Command, Arc<dyn ReplyReceiver>),
}

/// Takes at most `most` commands from the head of a queue.
fn take_first(queue: &mut VecDeque<Pending>, most: usize) -> VecDeque<Pending> {
    let rest = queue.split_off(queue.len().min(most));
    std::mem::replace(queue, rest)
}

impl Pending {
    fn is(&self, call: &Arc<Call>) -> bool {
        matches!(self, Self::Call(_, own) if Arc::ptr_eq(own, call))
    }

    fn is_of(&self, waker: &Waker) -> bool {
        matches!(self, Self::Call(_, call) if call.waker.will_wake(waker))
    }

    fn into_parts(self) -> Outgoing {
        match self {
            Self::Call(command, call) => (command, call, true),
            Self::Post(command, receiver) => (command, receiver, false),
        }
    }

    fn fail(self, failure: &Failure) {
        let (_, receiver, _) = self.into_parts();
        receiver.receive(Err(failure.clone()));
    }
}

/// The work that is left in a lane. Only the models of lanes read it.
#[cfg(models)]
#[derive(Debug)]
pub struct LaneWork {
    /// Whether a thread has the link.
    pub combines: bool,
    /// The number of replies that are not read.
    pub owed: usize,
    /// The number of commands that are not written.
    pub queued: usize,
    /// Whether a command could be written now.
    pub has_room: bool,
}

/// What a thread that has [checked](Lane::check) a lane does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneCheck {
    /// The background thread must call [`service`](Lane::service).
    Service,
    /// Check again soon, because a reply may be missing or there was another post.
    Again,
    /// Nothing. The next post requests a service again.
    Done,
}

/// The state of a posted command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// No thread will read the reply yet: the caller must wake the background thread.
    NeedsService,
    /// Another thread will read the reply.
    ServiceRequested,
}

impl Lane {
    /// Returns a lane to this server. The lane opens its connection at the first command.
    pub fn new(endpoint: Arc<Endpoint>) -> Self {
        Self {
            endpoint,
            state: Mutex::default(),
            service_requests: AtomicU8::new(NOT_REQUESTED),
            permits_posted: AtomicUsize::new(0),
            permits_answered: AtomicU64::new(0),
        }
    }

    /// Returns the work that is left for the lane.
    #[cfg(models)]
    pub fn remaining_work(&self) -> LaneWork {
        let state = self.state.lock();
        let owed = state.link.as_ref().map(|link| link.owed());
        LaneWork {
            combines: state.combining,
            owed: owed.unwrap_or(0),
            queued: state.queue.len(),
            has_room: owed.is_some_and(|owed| owed < MAX_UNREAD),
        }
    }

    /// The server of the lane.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Opens the link now, so that this call fails if the address is wrong.
    pub fn connect(&self) -> Result<(), Failure> {
        let link = Link::open(&self.endpoint)?;
        let mut state = self.state.lock();
        state.alive_at = link.alive_at();
        state.link = Some(Box::new(link));
        Ok(())
    }

    /// Sends a command for whose reply no thread waits. Does not block. When `post` returns, the
    /// command has been written, or waits in the link or in the queue. A command in the link is
    /// written before all later commands, as soon as the connection accepts bytes. A command in the
    /// queue is written by the thread that combines now. If there is no connection, or too many
    /// replies are unread, the background thread writes the command.
    pub fn post(&self, command: Command, receiver: Arc<dyn ReplyReceiver>) -> Posted {
        let mut state = self.state.lock();
        let room = state.link.as_ref().is_some_and(|link| link.owed() < MAX_UNREAD);
        if state.combining || !room {
            state.queue.push_back(Pending::Post(command, receiver));
            drop(state);
            return self.request_service();
        }
        state.combining = true;
        let link = state.link.take();
        drop(state);
        Combiner::new(self, link, self.endpoint.connect_timeout())
            .on_link(|link| link.send_one(command, receiver));
        self.request_service()
    }

    /// Decides whether the background thread, which a post has woken, must call
    /// [`service`](Self::service) now. Usually a caller has already read the replies to all posts,
    /// together with its own reply. If there were more posts in the meantime, the background thread
    /// must call `check` again, so that a post need not wake it. Does no I/O.
    ///
    /// `patience` is the time for which a reply may be missing before the background thread reads
    /// it.
    pub fn check(&self, patience: Duration) -> LaneCheck {
        let state = self.state.lock();
        if state.combining {
            return LaneCheck::Again;
        }
        if !state.queue.is_empty() {
            return LaneCheck::Service;
        }
        match state.link.as_deref().filter(|link| link.owed() > 0) {
            Some(link) if link.silent_for() >= patience => LaneCheck::Service,
            Some(_) => LaneCheck::Again,
            // A post first writes its command and then changes `service_requests`. So if this
            // thread overwrites that change, the reply to the post has already been read.
            None if self.service_requests.load(Ordering::Acquire) == REQUESTED_AGAIN => {
                self.service_requests.store(REQUESTED, Ordering::Release);
                LaneCheck::Again
            }
            None => {
                self.service_requests.store(NOT_REQUESTED, Ordering::Release);
                LaneCheck::Done
            }
        }
    }

    /// Writes the unwritten bytes and the queued commands, as far as the connection accepts them at
    /// once. Then reads the replies to written commands. The background thread calls this function,
    /// and so does a caller that needs a post's outcome. Closes a connection that has accepted no
    /// byte for `response_timeout`. If the queue is long, writes only the first packet.
    ///
    /// Opening a connection may take at most `to_open`, because the background thread has renewals
    /// to send. If `to_open` is too short, the queued commands fail, and their receivers get the
    /// failure. If `to_open` is zero, the commands fail at once, without a look-up of the host's
    /// name.
    ///
    /// Returns `false` if another thread combines, or if there is more to do. If so, the background
    /// thread must [request another call](Self::request_service).
    pub fn service(&self, patience: Duration, to_open: Duration) -> bool {
        // While the server waits for replicas, this call reads nothing, but it writes the unwritten
        // bytes. A thread that waits for the reply reads it. If there is no such thread, a later
        // call of `service` reads the reply when the wait for replicas is over.
        let is_time = |link: &Link| patience.is_zero() || link.wait_left() <= patience;
        let mut state = self.state.lock();
        // Clear the flag before the reads: a later post must request a new call.
        self.service_requests.store(NOT_REQUESTED, Ordering::Release);
        let reads = state.link.as_deref().is_none_or(is_time);
        let writes = reads || state.link.as_deref().is_some_and(Link::has_unwritten);
        if state.combining || !writes {
            return false;
        }
        if state.queue.is_empty() && state.link.as_ref().is_none_or(|link| link.owed() == 0) {
            return true;
        }
        if state.link.is_none() && to_open.is_zero() {
            let queue = std::mem::take(&mut state.queue);
            drop(state);
            let failure = self.unreachable();
            queue.into_iter().for_each(|pending| pending.fail(&failure));
            return true;
        }
        state.combining = true;
        let mut combiner = Combiner::new(self, state.link.take(), to_open);
        // The queue has only posts. If this call reads no reply, it must write no post: otherwise
        // the number of unread replies would grow without end.
        let packet = take_first(&mut state.queue, if reads { MAX_UNREAD } else { 0 });
        // If `to_open` is zero, no later call may come, so handle the remaining posts now.
        let mut rest =
            if to_open.is_zero() { std::mem::take(&mut state.queue) } else { VecDeque::new() };
        drop(state);
        let mut left = combiner.write_posts(packet);
        if to_open.is_zero() {
            left.append(&mut rest);
            rest = left;
        } else if !left.is_empty() {
            // The remaining posts go before the commands that have queued in the meantime.
            let mut state = self.state.lock();
            left.append(&mut state.queue);
            state.queue = left;
        }
        // If the server accepts no bytes now, do not wait. The next call writes them.
        if reads && (!combiner.has_unwritten() || patience.is_zero()) {
            combiner.on_link(|link| link.read_all(patience + link.wait_lateness()));
        }
        drop(combiner);
        if !rest.is_empty() {
            let failure = self.unreachable();
            rest.into_iter().for_each(|pending| pending.fail(&failure));
        }
        // The remaining posts have been written, or have failed.
        !self.has_work()
    }

    /// Blocks until the replies to all earlier posts are read or lost, but at most until
    /// `deadline`. Sends a PING after these posts, and waits for the reply.
    pub fn drain(self: &Arc<Self>, deadline: Instant) {
        if self.has_work() {
            let limit = Limit::new(Some(deadline), None);
            // This limit applies only to the drain. If it ends, the thread's other calls must not
            // see this.
            let _limited = Limit::set(limit.clone());
            // Any reply is enough, even an error.
            let _ = self.call_within(&Command::plain(&[b"PING"]), limit.as_ref());
        }
    }

    /// Whether a command is not yet written, or not yet answered.
    fn has_work(&self) -> bool {
        let state = self.state.lock();
        state.combining
            || !state.queue.is_empty()
            || state.link.as_ref().is_some_and(|link| link.owed() > 0)
    }

    /// Notes that no background thread calls `service` from now on. Each command without a reply
    /// gets its reply or fails: at once, or, if a thread combines, when that thread is done. If a
    /// release fails here, its receiver must get the failure.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.service(Duration::ZERO, Duration::ZERO);
    }

    /// Whether there is a connection, as far as the threads have noticed.
    pub fn is_open(&self) -> bool {
        let state = self.state.lock();
        state.combining || state.link.is_some()
    }

    /// Whether there are unwritten bytes that no thread is about to write. A post or a call with a
    /// limit may leave such bytes. The background thread must then call [`service`](Self::service).
    pub fn has_unwritten(&self) -> bool {
        self.state.lock().link.as_ref().is_some_and(|link| link.has_unwritten())
    }

    /// Closes the connection if no command is in flight. The next command opens a new connection.
    pub fn hang_up(&self) {
        let mut state = self.state.lock();
        let is_busy = state.combining || !state.queue.is_empty();
        let link = state.link.take_if(|link| !is_busy && link.owed() == 0);
        // Release the mutex before the drop of the link, which closes the connection.
        drop(state);
        drop(link);
    }

    /// Notes that a thread must call [`service`](Self::service). Returns whether the caller must
    /// wake that thread.
    pub fn request_service(&self) -> Posted {
        match self.service_requests.swap(REQUESTED_AGAIN, Ordering::AcqRel) {
            NOT_REQUESTED => Posted::NeedsService,
            _ => Posted::ServiceRequested,
        }
    }

    fn unreachable(&self) -> Failure {
        let out = io::Error::new(io::ErrorKind::NotConnected, "the server cannot be reached");
        Failure::Unsent(Cause::new(out, self.endpoint.health()))
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lane({})", self.endpoint.address())
    }
}

#[cfg(all(test, testkit))]
mod tests;
