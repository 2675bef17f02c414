//! The path of an entry in Redis's queue, from its first request to the seat: the requests, the
//! messages, the grant, and the admission of the granted hold.

use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::{Mutex, Waker, clock, jitter};
use redlatch_client::{Command, Limit, numbers};

use super::gate::GateQueue;
use super::site::{Leaving, Site};
use crate::ask::{
    AfterReply, Asked, By, Collector, EntryMachine, EntryReply, Listens, Messages, POLL,
    ReceivedGrant, Then, Undo, ValidGrant,
};
use crate::error::{Error, LostReason};
use crate::hold::{GrantDetails, Hold, KeepsLive, Leaseholder, Tenancy, Terms};
use crate::lease::Cleanup;
use crate::name::Name;
use crate::order::{Admission, LockNeed};
use crate::runtime::{Message, Recipient, Registered};
use crate::scripts::lock::{Acquired, Tokens};
use crate::scripts::{self, Chain, Mode, Owner, Replied, Trouble};
use crate::waiting::{Claim, Lead, Listening, QueueLeadership, QueueSite, Try};

/// A queue entry. The thread that has it must turn it into a hold or give it up
/// (`Site::give_up_entry`).
///
/// `D` is the type of a grant's details. `R` is the recipient of messages to the owner.
#[derive(Debug)]
pub(crate) struct QueueEntry<D = GrantDetails, R = Mailbox> {
    pub(crate) owner: Owner,
    /// Keeps the owner live. The entry's hold takes this value over ([`Hold::of_live`]).
    pub(crate) live: Option<KeepsLive>,
    pub(crate) machine: EntryMachine<D>,
    /// The recipient of messages to the owner. `None` before the first request that may add an
    /// entry. The entry's hold may keep the registration (`Hold::_registered`).
    pub(crate) mailbox: Option<Arc<Registered<R>>>,
}

/// The mailbox of an owner. It receives messages while the owner is in the queue, and later while
/// the owner has the lock.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pub(crate) name: Name,
    pub(crate) database: i64,
    pub(crate) is_fenced: bool,
    pub(crate) state: Mutex<MailboxState>,
}

#[derive(Debug)]
pub(crate) struct MailboxState {
    pub(crate) waker: Waker,
    pub(crate) messages: Messages<GrantDetails>,
}

/// The subscriber thread calls this when a message on the client's own channel names this owner.
/// Scripts send such messages (`lua/lock/hand_over.lua`, or `send_message` in `lua/hand_off.lua`).
/// If a grant names an owner without a mailbox, the client gives the grant back
/// (`site/unclaimed.rs`).
impl Recipient for Mailbox {
    fn receive(&self, message: &Message<'_>) -> bool {
        let now = clock::now();
        let is_this = |database, lock: &str| database == self.database && lock == &**self.name;
        let state = match *message {
            Message::Grant { server_time, lease, details, database, lock }
                if is_this(database, lock) =>
            {
                let Some((_, details)) = parse_details(details) else { return true };
                let mut state = self.state.lock();
                if self.is_fenced && details.tokens.is_none() {
                    // The process that released the lock used the re-entrant lock of this name, so
                    // the grant has no tokens. The owner sends a request, and the reply has tokens.
                    state.messages.must_ask = true;
                } else {
                    let grant = ReceivedGrant { server_time, received_at: now, lease, details };
                    state.messages.grant.get_or_insert(grant);
                }
                state
            }
            Message::Open { left, database, lock } if is_this(database, lock) => {
                let mut state = self.state.lock();
                state.messages.open_until = Some(now.saturating_add(clock::nanos(left)));
                state
            }
            // A message for a holder, which need not be registered.
            Message::Wanted { .. } => return false,
            _ => return true,
        };
        let waker = state.waker.clone();
        drop(state);
        waker.wake();
        true
    }
}

/// The steps that the entries of all kinds of locks share.
impl<D, R: Recipient + 'static> QueueEntry<D, R> {
    /// Returns a new entry for a thread with these terms.
    pub(crate) fn new(site: &Site, terms: Terms) -> Self {
        let (owner, live) = site.core.next_owner_to(site.mode, terms.hears);
        let live = Some(KeepsLive::Owner(live));
        Self { owner, live, machine: EntryMachine::new(), mailbox: None }
    }

    /// Records that the request failed. `trouble` is `None` if the server answered the request but
    /// the owner may not use the answer.
    pub(crate) fn request_failed(&mut self, trouble: Option<&Trouble>) {
        self.machine.unanswered(matches!(trouble, Some(Trouble::Unknown(_)) | None));
    }

    /// Handles the server's answer to the request.
    pub(crate) fn request_answered(
        &mut self,
        site: &Site,
        now: u64,
        reply: EntryReply<D>,
        in_doubt: bool,
    ) -> Result<(Listens, Try<ValidGrant<D>>), Error> {
        let AfterReply { listens, suspects, then } = self.machine.answered(now, reply, in_doubt);
        if suspects {
            site.core.pubsub.suspect(&site.name);
        }
        let tried = match then {
            Then::Granted(granted) => Try::Granted(granted),
            Then::Fail => return Err(Error::late_grant(&site.name)),
            // The owner's entry is in the queue now, or the owner will ask again later. Until then,
            // the owner's thread sleeps in the driver.
            Then::Sleep { until } => Try::Busy(Duration::from_nanos(until.saturating_sub(now))),
        };
        Ok((listens, tried))
    }

    /// Returns the owner's registration, for a hold whose owner may still get messages.
    pub(crate) fn registered(&self) -> Option<Arc<Registered>> {
        self.mailbox.clone().map(|mailbox| mailbox as Arc<Registered>)
    }

    /// Ends the entry. Returns what the server may still have of the owner. `command` makes the
    /// command that removes the owner from the queue and from the lock.
    pub(crate) fn end_owner(
        &mut self,
        messages: Messages<D>,
        command: impl FnOnce(&[u8], Option<D>) -> Command,
    ) -> Leftover {
        let (undo, details) = self.machine.end(messages);
        let longest = self.machine.longest();
        Leftover { undo, longest, command: command(&self.owner.text(), details) }
    }
}

impl QueueSite for Arc<Site> {
    type Need = LockNeed;
    type Grant = Arc<Tenancy>;
    /// An entry in the lock's queue. `None` before the leader's first request.
    type RequestState = Option<QueueEntry>;

    fn with_queue<R>(&self, act: impl FnOnce(&mut GateQueue) -> R) -> R {
        self.gate.with_queue(act)
    }

    /// Collects the messages of the entry's mailbox. Returns the tenancy if a message granted the
    /// lock and the grant is still valid. From here on, messages wake this thread.
    fn collect(
        &self,
        lead: &mut Lead<Option<QueueEntry>>,
        claim: &Claim<'_, LockNeed>,
    ) -> Option<Arc<Tenancy>> {
        let Lead { listening, request_state } = lead;
        let entry = request_state.as_mut()?;
        let mut state = entry.mailbox.as_ref()?.recipient.state.lock();
        state.waker = claim.waker();
        let mut messages = state.messages.take();
        drop(state);
        messages.has_public_release |= listening.public.take_news();
        messages.must_ask |= listening.own.take_news();
        if messages.is_empty() {
            return None;
        }
        let (now, collector) = (clock::now(), Collector::now(self, claim.need.terms));
        let granted = entry.machine.collect(now, messages, collector);
        listening.ask_by(entry.machine.ask_at());
        Some(entry.make_tenancy(self, claim, granted?, now))
    }

    /// Whether the entry's mailbox has messages that no thread has collected.
    fn may_collect(&self, entry: &Option<QueueEntry>) -> bool {
        let mailbox = entry.as_ref().and_then(|entry| entry.mailbox.as_ref());
        mailbox.is_some_and(|mailbox| !mailbox.recipient.state.lock().messages.is_empty())
    }

    /// Gives the leadership to the next thread in the queue. If this thread needs the same mode, it
    /// also gets the entry. Otherwise the entry is given up.
    fn transfer_leadership(
        &self,
        leadership: QueueLeadership,
        lead: Option<Box<Lead<Option<QueueEntry>>>>,
    ) {
        let left = self.gate.transfer_leadership(leadership, lead);
        if let Some(entry) = left.and_then(|lead| lead.request_state) {
            self.give_up_entry(entry);
        }
    }
}

impl QueueEntry {
    /// Sends one request. If the thread does not wait, the request adds no entry to the queue, and
    /// takes the lock only if the lock is free, even if others are in the queue. `beside` is the
    /// owner of the write hold under which the thread wants to read.
    pub(crate) fn ask(
        &mut self,
        listening: &mut Listening,
        site: &Arc<Site>,
        claim: &Claim<'_, LockNeed>,
        beside: Option<&Owner>,
    ) -> Result<Try<Arc<Tenancy>>, Error> {
        let (waits, lease) = (claim.wait.blocks(), claim.need.terms.lease());
        if waits && self.mailbox.is_none() {
            let waker = claim.waker();
            let mailbox = Mailbox {
                name: site.name.clone(),
                database: site.core.database(),
                is_fenced: site.keys().is_fenced,
                state: Mutex::new(MailboxState { waker, messages: Messages::new() }),
            };
            // From here on, messages to this owner reach `Mailbox::receive`.
            self.mailbox = Some(site.core.recipients.register(self.owner.number(), mailbox));
        }
        listening.own.note_version(site.core.pubsub.own_version(&site.name));
        // If the thread wants to read under its own write hold (`beside`), a failure of its request
        // does not concern other threads.
        let arrivals = if beside.is_none() { site.arrivals() } else { 0 };
        let (scripts, asked) = (site.scripts(), Asked::now(site));
        let Some(again) = self.machine.begin_request(asked, lease, waits) else {
            return Ok(Try::Busy(Duration::ZERO));
        };
        let replied = match beside {
            Some(writing) => scripts.read_beside(&self.owner, lease, writing),
            None if waits => {
                let probably_held = again.is_some() || site.gate.has_just_relayed(asked.at);
                scripts.acquire(&self.owner, lease, again, probably_held)
            }
            None => scripts.try_acquire(&self.owner, lease),
        };
        let Replied { reply, in_doubt, unacknowledged } = match replied {
            Ok(replied) => replied,
            Err(trouble) => {
                self.request_failed(Some(&trouble));
                return Err(site.not_taken(trouble, arrivals));
            }
        };
        if let (Acquired::Granted { .. }, Some(unacknowledged)) = (&reply, unacknowledged) {
            let error = self.give_back(site, claim.need.terms, in_doubt, unacknowledged);
            site.fail_before(arrivals, &error);
            return Err(error);
        }
        let now = clock::now();
        let reply = match reply {
            Acquired::Granted { already, places, tokens } => {
                let details = GrantDetails { places, tokens, ..GrantDetails::default() };
                EntryReply::Granted { already, lease, waits, details }
            }
            Acquired::Queued(queued) => EntryReply::Queued {
                now: queued.now,
                left: queued.left,
                place: queued.place,
                by_redisson: queued.by_redisson,
                is_new: queued.is_new,
                poll: next_poll(now),
            },
            Acquired::NotTaken => EntryReply::NotTaken,
        };
        let (listens, tried) = self.request_answered(site, now, reply, in_doubt)?;
        if listens != Listens::AsBefore {
            Self::subscribe(listening, site, listens);
        }
        Ok(tried.map(|granted| self.make_tenancy(site, claim, granted, now)))
    }

    /// Listens to the channels whose messages tell the owner when to ask again.
    #[inline(never)]
    fn subscribe(listening: &mut Listening, site: &Site, listens: Listens) {
        let latest = Listening::latest(&site.core);
        listening.own.subscribe(latest, || site.core.pubsub.listen_to_own(&site.name));
        if listens == Listens::ToPublic {
            let (keys, pubsub) = (site.keys(), &site.core.pubsub);
            // The companion is a second channel of the lock, by which scripts tell redlatch's
            // listeners from Redisson's (`LockKeys::companion`). The client listens to it before it
            // listens to the public channel. In the other order, the scripts could briefly take
            // this process for a Redisson client.
            listening.companion.get_or_insert_with(|| pubsub.listen(&keys.companion().into()));
            listening.public.subscribe(None, || pubsub.listen(&keys.public().to_string().into()));
        }
    }

    /// Makes a hold from the entry, because the owner now has the lock. The thread becomes the
    /// hold's first tenant.
    pub(super) fn make_tenancy(
        &mut self,
        site: &Site,
        claim: &Claim<'_, LockNeed>,
        granted: ValidGrant<GrantDetails>,
        now: u64,
    ) -> Arc<Tenancy> {
        let ValidGrant { asked, lease, in_doubt, by } = granted;
        let hold = Hold::granted(self.owner, claim.need.terms, lease, asked, in_doubt);
        let (details, may_be_named) = match by {
            By::Reply { message, details, may_be_named, .. } => {
                // The message says when the chain began. The gate can only estimate this time.
                let chain =
                    message.map_or_else(|| site.gate.chain(asked.at), |message| message.chain);
                (GrantDetails { by_message: message.is_some(), chain, ..details }, may_be_named)
            }
            By::Message { details, .. } => (details, true),
        };
        let registered = if may_be_named { self.registered() } else { None };
        let hold = hold.with_details(details, registered).of_live(&mut self.live);
        Arc::new(Tenancy::since(hold, Arc::clone(claim.thread), now))
    }

    /// Gives back a grant that too few replicas have. The entry gets a new owner for the next
    /// leader's request.
    #[inline(never)]
    fn give_back(
        &mut self,
        site: &Arc<Site>,
        terms: Terms,
        in_doubt: bool,
        unacknowledged: Error,
    ) -> Error {
        let mut used = std::mem::replace(self, Self::new(site, terms));
        used.machine.unacknowledged(in_doubt);
        let left = used.ends(site);
        // The owner stays live until its grant has been given back.
        site.give_back(left, Cleanup::requested, unacknowledged)
    }

    /// Ends the entry, because no thread of the process wants the lock now. Returns what the server
    /// may still have of the entry's owner.
    pub(super) fn ends(&mut self, site: &Site) -> Leftover {
        let messages = match &self.mailbox {
            Some(mailbox) => mailbox.recipient.state.lock().messages.take(),
            None => Messages::new(),
        };
        self.end_owner(messages, |owner, details| {
            let chain = details.map_or_else(Chain::default, |details| details.chain);
            site.scripts().give_up_command(owner, chain)
        })
    }
}

/// The end of a grant's path.
impl Site {
    /// Begins the tenancy of a granted hold, ends the leadership of its thread, and sets the hold's
    /// alarm. Returns `false` if the process no longer has the hold: the thread then still leads.
    ///
    /// # Blocking
    ///
    /// One round trip if another hold has the seat, otherwise none.
    ///
    /// # Errors
    ///
    /// Returns an error if another hold has the seat and the server does not answer the query
    /// whether the new hold still exists. The caller must then undo the new hold. Also returns an
    /// error if the client was shut down in the meantime: then the new hold is released.
    pub(crate) fn admit(
        self: &Arc<Self>,
        tenancy: &Arc<Tenancy>,
        leadership: &mut Option<QueueLeadership>,
    ) -> Result<bool, Error> {
        let mut gone = None;
        loop {
            let admission = self
                .gate
                .at(|order, now| order.admit(self.mode, tenancy, leadership, gone.as_ref(), now));
            match admission {
                Admission::Admitted(stale) => {
                    self.watch(tenancy);
                    if let Some(seat) = stale {
                        let hold = &seat.tenancy.hold();
                        let reason = hold.lose(hold.why_gone());
                        self.declare_all_lost(&seat, reason);
                        self.clean_up(hold, true);
                    }
                    return self.release_if_shut_down(&tenancy.hold()).map(|()| true);
                }
                // Each thread of a fair lock sends its own requests, and a ticket is adopted beside
                // the leader, so two threads may have two holds. A forced unlock has ended one of
                // them. Only the server knows which one,
                // because threads do not always read grants in the server's order.
                Admission::OtherHold(other) => {
                    if !self.has_granted(&tenancy.hold())? {
                        return Ok(false);
                    }
                    gone = Some(other);
                }
                Admission::NotHeld => return Ok(false),
            }
        }
    }

    /// Releases a granted or passed hold, and returns an error, if the client was shut down in the
    /// meantime. (The end of the client released only the holds that existed at that time.)
    pub(crate) fn release_if_shut_down(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<(), Error> {
        if !self.core.is_shut_down() {
            return Ok(());
        }
        self.lose_hold(hold, LostReason::ShutDown);
        // No thread would repeat the release later. So the request must have no limit.
        let _unlimited = Limit::set(None);
        let _ = self.release(hold, Leaving::Awaited);
        Err(Error::shut_down(&self.name))
    }

    /// Asks the server whether it still has this hold. Called if the server has granted another
    /// hold as well.
    ///
    /// # Errors
    ///
    /// The errors of [`admit`](Self::admit).
    pub(crate) fn has_granted(&self, hold: &Hold) -> Result<bool, Error> {
        scripts::lock::is_held_by(&self.route, &self.name, &hold.owner).map_err(|trouble| {
            let state =
                "nothing is held; if the server granted the lock, it is released in the background";
            trouble.into_error().of(&self.name).now(state)
        })
    }
}

impl Collector {
    /// The conditions of a thread with these terms.
    pub(crate) fn now(site: &Site, terms: Terms) -> Self {
        Self {
            lease: terms.lease(),
            incarnation: site.route.incarnation(),
            needs_reply: site.core.config.replica_acks.is_some() || terms.leaves_to_expire(),
        }
    }
}

/// Parses the details of a grant message.
pub(super) fn parse_details(details: &[u8]) -> Option<(Mode, GrantDetails)> {
    let modes = [(&b"lock,"[..], Mode::Lock), (b"read,", Mode::Read), (b"write,", Mode::Write)];
    let of_mode = |(word, mode)| Some((mode, details.strip_prefix(word)?));
    let (mode, rest) = modes.into_iter().find_map(of_mode)?;
    let mut numbers = numbers(rest, b',');
    let (places, start, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let places = u32::try_from(places).unwrap_or(u32::MAX);
    let tokens = match numbers.next() {
        Some(last) => Some(Tokens::up_to(last?)?),
        None => None,
    };
    let chain = Chain::received(start, count);
    Some((mode, GrantDetails { places, by_message: true, chain, tokens }))
}

/// What the server may still have of an owner that no longer wants the lock.
#[derive(Debug)]
pub(crate) struct Leftover {
    pub(crate) undo: Undo,
    /// The longest lease that a request of the owner named.
    pub(crate) longest: Duration,
    /// The command that removes the owner from queue and lock.
    pub(crate) command: Command,
}

/// Polls are due at multiples of this time, in nanoseconds.
const POLL_TICK: u64 = 20_000_000;

/// Returns how long a waiter sleeps before it polls. The time is random within a range, so that
/// processes do not poll together. Each poll falls on a multiple of [`POLL_TICK`]. So if a process
/// waits for many names, it sends several polls in one packet. (Each packet wakes the server.)
fn next_poll(now: u64) -> u64 {
    let (least, most) = POLL;
    let chance = (most - least - POLL_TICK) as f64 * jitter(now);
    (now + least + chance as u64).next_multiple_of(POLL_TICK) - now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_due_at_ticks_and_in_time() {
        for now in (0..50_000).map(|at| at * 1_234_567) {
            let poll = next_poll(now);
            assert!((POLL.0..=POLL.1).contains(&poll), "at {now} after {poll}");
            assert_eq!((now + poll) % POLL_TICK, 0, "at {now} after {poll}");
        }
    }
}
