//! A process's place in the queue of a lock: from its first request to the hold, or the end of its
//! wait.
//!
//! ```text
//! register the owner; ask: taken? no: asleep in the queue
//! woken by: the grant          -> the lock is ours, until the deadline that the grant implies
//!           a window's end, a public release, a new subscription, the time read last, a poll
//!                              -> ask
//! ```
//!
//! One for each process and name, however many threads wait: it is the leader's, who hands it to the
//! next leader with the lead. The owner is registered before the first request is sent, since the
//! grant may overtake its reply. (Not for one that takes the lock now or not at all: it has no place
//! in the queue, and no message names it.)
//!
//! Grant: a message grants only if it names an owner that waits here, this database and this key,
//! once, and within its deadline. Every other message is a hint.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{Asked, Hold, Share, Site, Tenancy, Terms, clock};
use crate::acquire::{Claim, Listening, Queued, Try};
use crate::error::Error;
use crate::node::Core;
use crate::protocol::Owner;
use crate::pubsub::{Addressee, News, Subscription};
use crate::script::lock::{Acquired, Chain, LockScripts, Refused, Start, Tokens};
use crate::script::{Replied, Trouble};
use crate::sync::{Mutex, Thread, jitter};
use crate::watchdog::renewal::PROVISIONAL;

const MS: u64 = 1_000_000;
/// How often a waiter asks that hears nothing: once at least while a hand-over lasts, and then it
/// knows the end of that. So where the process is stopped that was told, the others lose no more. (All
/// of them, not the first in line: each knows only where it stood when it asked.)
const POLL: Duration = Duration::from_secs(1);
const _: () = assert!(POLL.as_millis() * 12 / 10 < PROVISIONAL as u128 / 1_000_000);
/// So many from the head listen for Redisson's releases. A second one, in case the first is dead.
const FIRST: u32 = 2;
/// Behind the end that the server told: it cuts its times to whole milliseconds.
const PAST_END: Duration = Duration::from_millis(1);
/// And so much later for each place, so that not all come at once.
const PER_PLACE: Duration = Duration::from_micros(300);
/// So many grants in a row may arrive after their own end.
const MOST_LATE: u32 = 3;

/// See the module. Whoever has it uses it up: it becomes a hold, or is
/// [given up](Site::give_up).
#[derive(Debug)]
pub(crate) struct Place {
    pub(super) owner: Owner,
    /// What messages say that name it, from before its first request for a place on.
    mail: Option<Arc<Expected<Mail>>>,
    /// When its first request was sent.
    began: Option<u64>,
    /// The last request, and what the reply of some request said of the server's clock.
    asked: Option<Asked>,
    anchor: Option<Anchor>,
    /// A request was sent twice, or its outcome is not known: a copy may arrive later.
    pub(super) in_doubt: bool,
    /// The server may know of it.
    pub(super) is_known: bool,
    /// The longest lease that was asked for.
    pub(super) longest: Duration,
    /// Where it stood when it last asked. `None`: nowhere.
    at: Option<u32>,
    /// So many grants in a row were read after their own end.
    late: u32,
    /// What only counts it as one of ours, while it listens in public.
    _companion: Option<Subscription>,
}

/// An exchange whose reply said what the server's clock showed: that was not before `sent`.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    sent: u64,
    server: u64,
}

/// An owner that messages may name, as long as it waits or holds, and who reads them. While it holds,
/// too: the message of a grant that was found by asking comes late, and must not be given back.
pub(crate) struct Expected<A: ?Sized = dyn Addressee> {
    core: Arc<Core>,
    owner: u64,
    who: A,
}

impl<A: Addressee + 'static> Expected<A> {
    /// From here on messages that name this owner reach `who`.
    pub(crate) fn new(core: &Arc<Core>, owner: u64, who: A) -> Arc<Self> {
        let expected = Arc::new(Self { core: Arc::clone(core), owner, who });
        let addressee: Weak<dyn Addressee> = Arc::<Self>::downgrade(&expected);
        core.pubsub.expect(owner, addressee);
        expected
    }
}

impl<A: Addressee + ?Sized> Addressee for Expected<A> {
    fn told(&self, news: &News<'_>) {
        self.who.told(news);
    }
}

impl<A: ?Sized> Drop for Expected<A> {
    fn drop(&mut self) {
        if !self.core.is_forked() {
            self.core.pubsub.dismiss(self.owner);
        }
    }
}

impl<A: ?Sized> fmt::Debug for Expected<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expected({})", self.owner)
    }
}

/// What a place was told and has not read.
struct Mail {
    name: Arc<str>,
    database: i64,
    state: Mutex<Letters>,
}

struct Letters {
    /// Who waits for them.
    reader: Arc<Thread>,
    grant: Option<Granted>,
    /// When a window ends, after which it should ask.
    open_until: Option<u64>,
}

/// A grant by message.
#[derive(Clone, Copy, Debug)]
struct Granted {
    now: u64,
    received: u64,
    lease: Duration,
    share: Share,
}

impl Addressee for Mail {
    fn told(&self, news: &News<'_>) {
        let received = clock::now();
        let mut state = self.state.lock();
        match news {
            News::Grant(grant) if (grant.database, grant.lock) == (self.database, &*self.name) => {
                let Some(share) = share(grant.details) else { return };
                let granted = Granted { now: grant.now, received, lease: grant.lease, share };
                // A second copy says nothing new.
                state.grant.get_or_insert(granted);
            }
            News::Open { left, database, lock }
                if (*database, *lock) == (self.database, &*self.name) =>
            {
                state.open_until = Some(received.saturating_add(clock::nanos(*left)));
            }
            _ => return,
        }
        let reader = Arc::clone(&state.reader);
        drop(state);
        reader.parker().unpark();
    }
}

/// What a grant of this kind of lock says besides.
pub(super) fn share(details: &str) -> Option<Share> {
    let mut numbers = details.strip_prefix("lock,")?.split(',').map(str::parse);
    let (places, start, count) =
        (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
    let places = u32::try_from(places).unwrap_or(u32::MAX);
    let tokens = match numbers.next() {
        Some(last) => Some(Tokens::up_to(last.ok()?)?),
        None => None,
    };
    Some(Share { places, chain: Chain { start: Start::Server(start), count }, tokens })
}

impl Place {
    pub(crate) fn new(site: &Site) -> Self {
        Self {
            owner: site.core.id.next_owner(),
            mail: None,
            began: None,
            asked: None,
            anchor: None,
            in_doubt: false,
            is_known: false,
            longest: Duration::ZERO,
            at: None,
            late: 0,
            _companion: None,
        }
    }

    /// The chain of a grant that nobody has read.
    pub(super) fn unread_chain(&self) -> Chain {
        let grant = self.mail.as_ref().and_then(|mail| mail.who.state.lock().grant);
        grant.map_or_else(Chain::default, |granted| granted.share.chain)
    }

    /// Whether something was told and not read.
    pub(crate) fn has_news(&self) -> bool {
        self.mail.as_ref().is_some_and(|mail| {
            let letters = mail.who.state.lock();
            letters.grant.is_some() || letters.open_until.is_some()
        })
    }

    /// Reads what was told: the lock, if a message said that it is ours and that is still so. From
    /// here on the thread is woken for it.
    pub(crate) fn read(
        &self,
        listening: &mut Listening,
        site: &Site,
        claim: &Claim<'_, Terms>,
    ) -> Option<Arc<Tenancy>> {
        let mut letters = self.mail.as_ref()?.who.state.lock();
        if !Arc::ptr_eq(&letters.reader, claim.thread) {
            letters.reader = Arc::clone(claim.thread);
        }
        let (grant, open_until) = (letters.grant.take(), letters.open_until.take());
        drop(letters);
        if let Some(until) = open_until {
            listening.ask_at = listening.ask_at.min(until);
        }
        if listening.public.has_moved() {
            listening.public.catch_up();
            // The first one asks at once, the second in case the first one is dead.
            let place = u64::from(self.at.unwrap_or(0));
            if place < u64::from(FIRST) {
                listening.ask_at = listening.ask_at.min(clock::now() + place * MS);
            }
        }
        let granted = grant?;
        // If it may be ours, but that is not certain, the next thing to do is to ask.
        listening.ask_at = 0;
        self.granted_by_message(site, claim.need, granted).map(|hold| tenancy(hold, claim))
    }

    /// One request: the first one, a poll, and the one after a reconnect are the same. Who will not
    /// wait takes the lock if it is free, past the queue, and leaves no place behind.
    pub(crate) fn ask(
        &mut self,
        listening: &mut Listening,
        site: &Arc<Site>,
        claim: &Claim<'_, Terms>,
    ) -> Result<Try<Arc<Tenancy>>, Error> {
        let waits = claim.wait.blocks();
        if waits && self.mail.is_none() {
            let reader = Arc::clone(claim.thread);
            let state = Mutex::new(Letters { reader, grant: None, open_until: None });
            let (name, database) = (Arc::clone(&site.name), site.core.database());
            let mail = Mail { name, database, state };
            self.mail = Some(Expected::new(&site.core, self.owner.number(), mail));
        }
        listening.own.known(site.core.pubsub.own_version(&site.name));
        let (scripts, lease, arrivals) = self.asks(site, claim);
        let replied = if waits {
            scripts.acquire(&self.owner, lease)
        } else {
            scripts.try_acquire(&self.owner, lease)
        };
        self.answered(listening, site, claim, arrivals, replied)
    }

    /// As [`ask`](Self::ask) for who will not wait, in two steps: what is returned reads the reply,
    /// until a time, for [`answered`](Self::answered). The second is for that, too.
    pub(crate) fn begin_try<'a>(
        &mut self,
        site: &'a Arc<Site>,
        claim: &Claim<'_, Terms>,
    ) -> (impl FnOnce(Instant) -> Result<Replied<Acquired>, Trouble> + use<'a>, u64) {
        let (scripts, lease, arrivals) = self.asks(site, claim);
        (scripts.begin_try(&self.owner, lease), arrivals)
    }

    /// What became of a request.
    pub(crate) fn answered(
        &mut self,
        listening: &mut Listening,
        site: &Arc<Site>,
        claim: &Claim<'_, Terms>,
        arrivals: u64,
        replied: Result<Replied<Acquired>, Trouble>,
    ) -> Result<Try<Arc<Tenancy>>, Error> {
        let waits = claim.wait.blocks();
        match self.heard(site, arrivals, replied)? {
            Acquired::Refused(refused) => {
                self.late = 0;
                Ok(Try::Busy(self.refused(listening, site, &refused)))
            }
            Acquired::NotTaken => Ok(Try::Busy(Duration::ZERO)),
            Acquired::Granted { already, places, tokens } => {
                if already {
                    // The message of that is on its way, or was lost.
                    site.core.pubsub.suspect(&site.name);
                }
                let hold = self.granted_by_reply(site, claim.need, places, tokens);
                if clock::now() < hold.deadline() {
                    return Ok(Try::Granted(tenancy(hold, claim)));
                }
                // Read after its own deadline. Whether it is still ours the server knows.
                self.late += 1;
                if self.late == MOST_LATE || !waits {
                    return Err(Error::late_grant(&site.name));
                }
                Ok(Try::Busy(Duration::ZERO))
            }
        }
    }

    /// A request is about to be sent: with these scripts, for this lease, after so many have queued.
    fn asks<'a>(
        &mut self,
        site: &'a Arc<Site>,
        claim: &Claim<'_, Terms>,
    ) -> (LockScripts<'a>, Duration, u64) {
        let arrivals = site.arrivals();
        let asked = Asked::now(site);
        self.began.get_or_insert(asked.at);
        if self.asked.is_some_and(|before| before.incarnation != asked.incarnation) {
            // Another server, with another clock.
            self.anchor = None;
        }
        self.asked = Some(asked);
        let (scripts, lease) = (site.scripts(), claim.need.lease(&site.core));
        self.longest = self.longest.max(lease);
        (scripts, lease, arrivals)
    }

    fn heard(
        &mut self,
        site: &Arc<Site>,
        arrivals: u64,
        acquired: Result<Replied<Acquired>, Trouble>,
    ) -> Result<Acquired, Error> {
        let (in_doubt, is_known) = match &acquired {
            Ok(Replied { reply, twice }) => {
                let is_known = match reply {
                    Acquired::Granted { .. } => true,
                    Acquired::Refused(refused) => refused.place.is_some(),
                    Acquired::NotTaken => false,
                };
                (*twice, is_known)
            }
            Err(trouble) => (matches!(trouble, Trouble::Unknown(_)), false),
        };
        self.in_doubt |= in_doubt;
        self.is_known |= in_doubt || is_known;
        match acquired {
            Ok(replied) => Ok(replied.reply),
            Err(trouble) => Err(site.not_taken(trouble, arrivals)),
        }
    }

    /// Listens to what may change that. When to ask again though nothing is heard.
    fn refused(&mut self, listening: &mut Listening, site: &Site, refused: &Refused) -> Duration {
        let asked = self.asked.map_or(0, |asked| asked.at);
        if self.anchor.is_none_or(|anchor| anchor.server < refused.now) {
            self.anchor = Some(Anchor { sent: asked, server: refused.now });
        }
        // Void: the server refused it after it had granted it. It was taken away again, or the server's
        // clock was set back between the two: it is asked.
        let void = self.mail.as_ref().is_some_and(|mail| {
            let mut letters = mail.who.state.lock();
            letters.grant.take_if(|granted| granted.now < refused.now).is_some()
        });
        if refused.is_new && self.at.is_some() {
            // Its place was used up by a grant of which nothing was heard.
            site.core.pubsub.suspect(&site.name);
        }
        self.at = refused.place;
        let place = refused.place.unwrap_or(0);
        let latest = Listening::latest(&site.core);
        listening.own.subscribe(latest, || site.core.pubsub.listen_to_own(&site.name));
        if refused.place.is_none() || refused.by_redisson && place < FIRST {
            let keys = site.keys();
            if refused.place.is_some() {
                // First: it must never look as if there were one more of Redisson's.
                self._companion.get_or_insert_with(|| site.core.pubsub.listen(&keys.companion));
            } else {
                site.no_place(refused.refusal.as_deref());
            }
            // Only who has no place depends on it.
            let latest = latest.filter(|_| refused.place.is_none());
            listening.public.subscribe(latest, || site.core.pubsub.listen(&keys.channel));
        }
        let poll = POLL.mul_f64(0.8 + 0.4 * jitter(clock::now()));
        let end = refused.left.saturating_add(PAST_END + PER_PLACE * place);
        if void { Duration::ZERO } else { poll.min(end) }
    }

    fn granted_by_reply(
        &self,
        site: &Site,
        terms: Terms,
        places: u32,
        tokens: Option<Tokens>,
    ) -> Hold {
        // It has the whole lease: who asks is alive.
        let asked = self.asked.unwrap_or_else(|| Asked::now(site));
        let share = Share { places, chain: site.gate.chain(asked.at), tokens };
        let lease = terms.lease(&site.core);
        Hold::new(None, self.owner, terms, lease, asked, self.in_doubt)
            .shared(share, self.expected())
    }

    /// `None`: it is certain no more that it is ours.
    fn granted_by_message(&self, site: &Site, terms: Terms, granted: Granted) -> Option<Hold> {
        if site.keys().tokens.is_some() && granted.share.tokens.is_none() {
            // Who released it knows of no tokens: a re-entrant lock of this name.
            return None;
        }
        let asked = self.asked.filter(|asked| asked.incarnation == site.route.incarnation())?;
        // The server granted it not before this, whenever the message was read: the process may have
        // been stopped, and the lock be another's by now.
        let not_before = match self.anchor {
            // Void: see `refused`.
            Some(anchor) if anchor.server > granted.now => return None,
            // (Anybody may write anything on the channel.)
            Some(anchor) => {
                anchor.sent.saturating_add((granted.now - anchor.server).saturating_mul(MS))
            }
            None => self.began?,
        };
        let asked = Asked { at: not_before.min(granted.received), ..asked };
        let expected = self.expected();
        let hold = Hold::handed(self.owner, terms, granted.lease, asked, self.in_doubt)
            .shared(granted.share, expected);
        (clock::now() < hold.deadline()).then_some(hold)
    }

    fn expected(&self) -> Option<Arc<Expected>> {
        self.mail.clone().map(|mail| mail as Arc<Expected>)
    }
}

fn tenancy(hold: Hold, claim: &Claim<'_, Terms>) -> Arc<Tenancy> {
    Arc::new(Tenancy::new(Arc::new(hold), Arc::clone(claim.thread)))
}
