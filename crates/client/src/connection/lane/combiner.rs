//! The combiner of a lane: the thread that writes and reads for all threads.

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use super::{Lane, MAX_UNREAD, Pending, take_first};
use crate::connection::Command;
use crate::connection::limit::Limit;
use crate::connection::link::{Link, Outgoing};
use crate::connection::outcome::{Failure, Outcome, ReplyReceiver};
use crate::sync::Waker;

/// A thread's role as the combiner of a lane, with the lane's link. The drop passes the role and
/// the link to the next thread, even after a panic.
pub(super) struct Combiner<'a> {
    lane: &'a Lane,
    /// The link is boxed, because each call moves it out of the lane and back.
    link: Option<Box<Link>>,
    /// The time that opening a link may take.
    within: Duration,
    /// The limit of the combining thread.
    limit: Option<&'a Limit>,
    /// Whether the thread was panicking when it began to combine.
    was_panicking: bool,
}

impl<'a> Combiner<'a> {
    pub(super) fn new(lane: &'a Lane, mut link: Option<Box<Link>>, within: Duration) -> Self {
        // Withdraw unwritten commands whose threads have left, before any byte is written.
        if let Some(link) = &mut link {
            link.withdraw_late();
        }
        Self { lane, link, within, limit: None, was_panicking: thread::panicking() }
    }

    /// Sets a limit. When the limit is over, the combiner leaves, and passes the link on in its
    /// present state.
    pub(super) fn with_limit(mut self, limit: &'a Limit) -> Self {
        self.limit = Some(limit);
        self
    }

    pub(super) fn exchange(&mut self, command: &Command) -> Outcome {
        let outcome = match self.link() {
            Ok(link) => link.exchange(command),
            Err(failure) => Err(failure),
        };
        if outcome.as_ref().is_err_and(Failure::is_the_links) {
            self.link = None;
        }
        outcome
    }

    /// Writes to the link or reads from it, if there is one. A link that breaks is dropped.
    pub(super) fn on_link(&mut self, act: impl FnOnce(&mut Link) -> Result<(), Failure>) {
        if let Some(link) = &mut self.link
            && act(link).is_err()
        {
            self.link = None;
        }
    }

    /// Writes a queue and reads the replies for which threads sleep. On failure, the receivers of
    /// the failed commands have received the failure.
    pub(super) fn write_and_read(&mut self, mut queue: VecDeque<Pending>) -> Result<(), Failure> {
        while !queue.is_empty() {
            let packet = take_first(&mut queue, MAX_UNREAD);
            let mut done = self.write_packet(packet);
            // If more commands are left, read all replies before writing them, so that few replies
            // are unread.
            if let Some(link) = self.link.as_mut().filter(|_| done.is_ok() && !queue.is_empty()) {
                done = link.read_all(self.lane.endpoint.response_timeout());
            }
            if let Err(failure) = done {
                self.link = None;
                let unsent = Failure::Unsent(failure.cause().clone());
                queue.into_iter().for_each(|pending| pending.fail(&unsent));
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Reads the replies that a call must read before it writes. Returns how many commands may be
    /// written next. This number bounds the unread replies, even if many calls leave. Returns zero
    /// if the link broke or the limit is over: then the commands remain in the queue.
    pub(super) fn room(&mut self, limit: &Limit) -> usize {
        self.on_link(|link| if link.reads_first() { link.read_limited(limit, 1) } else { Ok(()) });
        match &self.link {
            Some(link) if !link.reads_first() && !limit.is_over() => {
                MAX_UNREAD.saturating_sub(link.owed())
            }
            _ => 0,
        }
    }

    /// Writes a packet over the present link, and reads the replies for which threads sleep, until
    /// the limit is over. On failure, the receivers of the failed commands have received the
    /// failure.
    pub(super) fn write_and_read_limited(&mut self, packet: VecDeque<Pending>, limit: &Limit) {
        let batch: Vec<_> = packet.into_iter().map(Pending::into_parts).collect();
        self.on_link(|link| {
            if !batch.is_empty() {
                link.send_limited(batch, limit)?;
            }
            link.read_limited(limit, MAX_UNREAD)
        });
    }

    /// Writes as many bytes as the link accepts without waiting: first the unwritten bytes, then
    /// `posts`. If there is no link, opens one. Returns the posts if the link accepts no bytes now.
    /// On failure, the receivers of the failed commands have received the failure.
    pub(super) fn write_posts(&mut self, posts: VecDeque<Pending>) -> VecDeque<Pending> {
        self.on_link(Link::write_rest);
        if posts.is_empty() || self.has_unwritten() {
            return posts;
        }
        if self.on_packet(posts, |link, posts| link.send_now(posts)).is_err() {
            self.link = None;
        }
        VecDeque::new()
    }

    /// Whether bytes are left unwritten.
    pub(super) fn has_unwritten(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.has_unwritten())
    }

    /// Writes commands in one packet and reads the replies for which threads sleep.
    fn write_packet(&mut self, packet: VecDeque<Pending>) -> Result<(), Failure> {
        self.on_packet(packet, |link, batch| link.send(batch).and_then(|()| link.read_awaited()))
    }

    fn on_packet(
        &mut self,
        packet: VecDeque<Pending>,
        write: impl FnOnce(&mut Link, &mut dyn Iterator<Item = Outgoing>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut batch = packet.into_iter().map(Pending::into_parts);
        match self.link() {
            Ok(link) => write(link, &mut batch),
            Err(failure) => {
                batch.for_each(|(_, receiver, _)| receiver.receive(Err(failure.clone())));
                // The calls that queued during the failed attempt fail, too, so that they do not
                // try one after the other. They do not fail if their own attempts may take longer
                // than this one.
                if self.within >= self.lane.endpoint.connect_timeout() {
                    let late = std::mem::take(&mut self.lane.state.lock().queue);
                    late.into_iter().for_each(|pending| pending.fail(&failure));
                }
                Err(failure)
            }
        }
    }

    /// Does the background thread's work: reads the replies to posts and handles queued posts.
    fn service(&mut self, queue: VecDeque<Pending>) {
        let patience = self.lane.endpoint.response_timeout();
        let patience = if self.limit.is_some() { Duration::ZERO } else { patience };
        self.on_link(|link| link.read_all(patience));
        if self.link.is_some() {
            // After a failure, the receivers have already received it.
            let _heard = self.write_and_read(queue);
        } else {
            let failure = self.lane.unreachable();
            queue.into_iter().for_each(|pending| pending.fail(&failure));
        }
    }

    /// See [`LaneState`](super::LaneState).
    pub(super) fn alive_at(&self) -> u64 {
        self.link.as_ref().map_or(0, |link| link.alive_at())
    }

    fn link(&mut self) -> Result<&mut Link, Failure> {
        self.link.take_if(|link| !link.check_alive());
        match &mut self.link {
            Some(link) => Ok(link),
            none => {
                let link = Link::open_within(&self.lane.endpoint, self.within)?;
                // Note now that the server has accepted the link, because a call's limit may end
                // before the combiner is done.
                self.lane.state.lock().alive_at = link.alive_at();
                Ok(none.insert(Box::new(link)))
            }
        }
    }
}

impl Drop for Combiner<'_> {
    fn drop(&mut self) {
        // A thread that panics while it combines may have read a reply without counting it. The
        // next caller would then get another command's reply, and would read a number as a grant.
        let panics = thread::panicking() && !self.was_panicking;
        loop {
            self.link.take_if(|link| panics || link.is_wrong_server());
            let alive_at = self.alive_at();
            let mut state = self.lane.state.lock();
            state.alive_at = alive_at;
            if panics {
                // The thread's own call may still be in the queue, and must not become the next
                // combiner.
                let own = Waker::current();
                state.queue.retain(|pending| !pending.is_of(&own));
            }
            let mut queued = state.queue.iter().filter_map(|pending| match pending {
                Pending::Call(_, call) => call.take_over(),
                Pending::Post(..) => None,
            });
            // The calls whose commands are written, and whose replies the leaving thread should
            // have read.
            let left = || self.link.as_ref()?.abandoned().find_map(|it| it.take_over());
            // Choose the next combiner while this thread holds the lane's mutex: see
            // `Lane::abandon`.
            let next = queued.next().or_else(left);
            if let Some(reader) = next {
                state.link = self.link.take();
                drop(state);
                reader.wake();
                return;
            }
            // The queue has only posts, because the first call would be the next combiner. Without
            // a connection, or with too many unread replies, posts wait for the background thread,
            // which was woken to call `service`.
            let owed = self.link.as_ref().map_or(MAX_UNREAD, |link| link.owed());
            if state.queue.is_empty() || owed >= MAX_UNREAD {
                let owes = self.link.is_some() && owed > 0;
                if state.closed && (owes || !state.queue.is_empty()) {
                    let queue = std::mem::take(&mut state.queue);
                    drop(state);
                    self.service(queue);
                    continue;
                }
                state.link = self.link.take();
                state.combining = false;
                return;
            }
            let queue = take_first(&mut state.queue, MAX_UNREAD);
            drop(state);
            // Only write. The thread may be dropping a guard, so it must not wait for the test of a
            // silent connection or for a new connection.
            self.on_link(|link| link.send_now(queue.into_iter().map(Pending::into_parts)));
        }
    }
}
