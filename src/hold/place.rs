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
//! grant may overtake its reply.
//!
//! Grant: a message grants only if it names an owner that waits here, this database and this key,
//! once, and within its deadline. Every other message is a hint.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Asked, Hold, Share, Site, Terms, clock};
use crate::acquire::Wait;
use crate::error::{Error, ErrorKind};
use crate::node::Core;
use crate::protocol::Owner;
use crate::pubsub::{Addressee, News, Standing, Subscription, confirmation_deadline};
use crate::script::Trouble;
use crate::script::lock::{Acquired, Chain, Refused, Start, Tokens};
use crate::sync::{Mutex, Thread, jitter};

const MS: u64 = 1_000_000;
/// How often a waiter asks that hears nothing: once at least while a hand-over lasts, and then it
/// knows the end of that. So where the process is stopped that was told, the others lose no more. (All
/// of them, not the first in line: each knows only where it stood when it asked.)
const POLL: Duration = Duration::from_secs(1);
/// So many from the head listen for Redisson's releases. A second one, in case the first is dead.
const FIRST: u32 = 2;
/// Behind the end that the server told: it cuts its times to whole milliseconds.
const PAST_END: u64 = MS;
/// And so much later for each place, so that not all come at once.
const PER_PLACE: u64 = 300_000;
/// So many grants in a row may arrive after their own end.
const MOST_LATE: u32 = 3;

/// See the module. Whoever has it uses it up: it becomes a hold, or is
/// [given up](Site::give_up).
#[derive(Debug)]
pub(crate) struct Place {
    pub(super) owner: Owner,
    mail: Arc<Mail>,
    expected: Arc<Expected>,
    /// When its first request was sent.
    began: Option<u64>,
    /// The last request, and what the reply of some request said of the server's clock.
    asked: Option<Asked>,
    anchor: Option<Anchor>,
    /// A request was sent twice, or its outcome is not known: a copy may arrive later.
    pub(super) in_doubt: bool,
    /// The server may know of it.
    pub(super) is_known: bool,
    /// Where it stood when it last asked. `None`: nowhere.
    at: Option<u32>,
    ask_at: u64,
    own: Heard,
    public: Heard,
    /// What only counts it as one of ours, while it listens in public.
    _companion: Option<Subscription>,
}

/// An exchange whose reply said what the server's clock showed: that was not before `sent`.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    sent: u64,
    server: u64,
}

/// A channel, and its version when the last request was sent.
#[derive(Debug, Default)]
struct Heard {
    subscription: Option<Subscription>,
    version: Option<u64>,
    /// Until when it must be confirmed; `None`: it was.
    latest: Option<Instant>,
}

impl Heard {
    /// Whether messages may have come, or been missed, since the last request.
    fn has_moved(&self) -> bool {
        self.subscription.as_ref().is_some_and(|subscription| {
            subscription.is_confirmed() && self.version != Some(subscription.version())
        })
    }

    fn catch_up(&mut self) {
        self.version = self.subscription.as_ref().map(Subscription::version);
    }

    /// Fails if it cannot be listened to.
    fn check(&mut self, name: &Arc<str>, core: &Core) -> Result<(), Error> {
        let (Some(subscription), Some(latest)) = (&self.subscription, self.latest) else {
            return Ok(());
        };
        match subscription.standing() {
            Standing::Confirmed => self.latest = None,
            Standing::Refused(error) => return Err(error.of(name)),
            Standing::Pending if Instant::now() >= latest => {
                let message = format!(
                    "no subscription could be had in time from the server at {}, so what ends the \
                     wait would not be heard; nothing is held",
                    core.address()
                );
                let error = Error::new(ErrorKind::Redis, message);
                return Err(error.transient(true).of(name));
            }
            Standing::Pending => {}
        }
        Ok(())
    }
}

/// An owner that messages may name, as long as it waits or holds. While it holds, too: the message
/// of a grant that was found by asking comes late, and must not be given back.
#[derive(Debug)]
pub(crate) struct Expected {
    core: Arc<Core>,
    owner: u64,
}

impl Expected {
    /// From here on messages that name this owner reach `who`.
    pub(crate) fn new(core: &Arc<Core>, owner: u64, who: Arc<dyn Addressee>) -> Arc<Self> {
        core.pubsub.expect(owner, who);
        Arc::new(Self { core: Arc::clone(core), owner })
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        if !self.core.is_forked() {
            self.core.pubsub.dismiss(self.owner);
        }
    }
}

/// What a place was told and has not read.
#[derive(Debug)]
struct Mail {
    name: Arc<str>,
    database: i64,
    state: Mutex<Letters>,
}

#[derive(Debug, Default)]
struct Letters {
    /// Who waits for them.
    reader: Option<Arc<Thread>>,
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
        let reader = state.reader.clone();
        drop(state);
        if let Some(reader) = reader {
            reader.parker().unpark();
        }
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
        let core = &site.core;
        let owner = core.id.next_owner();
        let mail = Arc::new(Mail {
            name: Arc::clone(&site.name),
            database: core.database(),
            state: Mutex::default(),
        });
        let expected = Expected::new(core, owner.number(), Arc::clone(&mail) as _);
        Self {
            owner,
            mail,
            expected,
            began: None,
            asked: None,
            anchor: None,
            in_doubt: false,
            is_known: false,
            at: None,
            ask_at: 0,
            own: Heard::default(),
            public: Heard::default(),
            _companion: None,
        }
    }

    /// The chain of a grant that nobody has read.
    pub(super) fn unread_chain(&self) -> Chain {
        self.mail.state.lock().grant.map_or_else(Chain::default, |granted| granted.share.chain)
    }

    /// The next thing it does is to ask: what it was granted was perhaps taken away.
    pub(crate) fn ask_again(&mut self) {
        self.ask_at = 0;
    }

    /// Asks, and sleeps until the lock is granted to this place. `None`: the wait is over first.
    pub(crate) fn await_grant(
        &mut self,
        site: &Arc<Site>,
        thread: &Arc<Thread>,
        terms: Terms,
        wait: &Wait<'_>,
    ) -> Result<Option<Hold>, Error> {
        self.mail.state.lock().reader = Some(Arc::clone(thread));
        let mut late = 0;
        loop {
            if let Some(hold) = self.take_grant(site, terms) {
                return Ok(Some(hold));
            }
            if self.is_time_to_ask() {
                match self.ask(site, terms)? {
                    Acquired::Refused(refused) => self.refused(site, &refused),
                    Acquired::NotTaken => self.ask_at = 0,
                    Acquired::Granted { already, places, tokens } => {
                        if already {
                            // The message of that is on its way, or was lost.
                            site.core.pubsub.suspect();
                        }
                        let hold = self.granted_by_reply(site, terms, places, tokens);
                        if clock::now() < hold.deadline() {
                            return Ok(Some(hold));
                        }
                        // Read after its own deadline. Whether it is still ours the server knows.
                        late += 1;
                        if late == MOST_LATE {
                            return Err(Error::late_grant(&site.name));
                        }
                        self.ask_at = 0;
                    }
                }
            } else {
                self.sleep(site, thread, wait)?;
            }
            // A grant that came before the end of the wait wins.
            if wait.is_over() {
                return Ok(self.take_grant(site, terms));
            }
        }
    }

    fn is_time_to_ask(&mut self) -> bool {
        let now = clock::now();
        if self.own.has_moved() {
            return true;
        }
        if let Some(until) = self.mail.state.lock().open_until.take() {
            self.ask_at = self.ask_at.min(until);
        }
        if self.public.has_moved() {
            self.public.catch_up();
            // The first one asks at once, the second in case the first one is dead.
            let place = u64::from(self.at.unwrap_or(0));
            if place < u64::from(FIRST) {
                self.ask_at = self.ask_at.min(now + place * MS);
            }
        }
        self.ask_at <= now
    }

    /// One request: the first one, a poll, and the one after a reconnect are the same.
    fn ask(&mut self, site: &Arc<Site>, terms: Terms) -> Result<Acquired, Error> {
        let arrivals = site.gate.arrivals();
        self.own.version = Some(site.core.pubsub.own_version());
        self.public.catch_up();
        let asked = Asked::now(site);
        self.began.get_or_insert(asked.at);
        if self.asked.is_some_and(|before| before.incarnation != asked.incarnation) {
            // Another server, with another clock.
            self.anchor = None;
        }
        self.asked = Some(asked);
        let acquired = site.scripts().acquire(&self.owner, terms.lease(&site.core));
        let trouble = match acquired {
            Ok(replied) => {
                self.in_doubt |= replied.twice;
                self.is_known = true;
                return Ok(replied.reply);
            }
            Err(trouble) => trouble,
        };
        if let Trouble::Unknown(_) = trouble {
            self.in_doubt = true;
            self.is_known = true;
        }
        Err(site.not_taken(trouble, arrivals))
    }

    fn refused(&mut self, site: &Site, refused: &Refused) {
        let asked = self.asked.map_or(0, |asked| asked.at);
        if self.anchor.is_none_or(|anchor| anchor.server < refused.now) {
            self.anchor = Some(Anchor { sent: asked, server: refused.now });
        }
        // Void: the server refused it after it had granted it. It was taken away again, or the server's
        // clock was set back between the two: it is asked.
        let mut letters = self.mail.state.lock();
        let void = letters.grant.take_if(|granted| granted.now < refused.now).is_some();
        drop(letters);
        if refused.is_new && self.at.is_some() {
            // Its place was used up by a grant of which nothing was heard.
            site.core.pubsub.suspect();
        }
        self.at = refused.place;
        let place = refused.place.unwrap_or(0);
        let confirmed_by = confirmation_deadline(site.core.response_timeout());
        self.own.subscription.get_or_insert_with(|| {
            self.own.latest = confirmed_by;
            site.core.pubsub.listen_to_own()
        });
        if refused.place.is_none() || refused.by_redisson && place < FIRST {
            let keys = site.keys();
            if refused.place.is_some() {
                // First: it must never look as if there were one more of Redisson's.
                self._companion.get_or_insert_with(|| site.core.listen(&keys.companion));
            } else {
                site.no_place(refused.refusal.as_deref());
            }
            self.public.subscription.get_or_insert_with(|| {
                // Only who has no place depends on it.
                self.public.latest = confirmed_by.filter(|_| refused.place.is_none());
                // What was said before it was asked again counts as missed.
                self.public.version = None;
                site.core.listen(&keys.channel)
            });
        }
        let poll = clock::nanos(POLL.mul_f64(0.8 + 0.4 * jitter(clock::now())));
        let later = PAST_END + u64::from(place) * PER_PLACE;
        let end = clock::nanos(refused.left).saturating_add(later);
        self.ask_at = if void { 0 } else { clock::now().saturating_add(poll.min(end)) };
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
            .shared(share, Some(Arc::clone(&self.expected)))
    }

    /// The lock, if a message said that it is ours and that is still so. If it may be, the next thing
    /// to do is to ask.
    fn take_grant(&mut self, site: &Site, terms: Terms) -> Option<Hold> {
        let granted = self.mail.state.lock().grant.take()?;
        self.ask_at = 0;
        if site.keys().tokens.is_some() && granted.share.tokens.is_none() {
            // Who released it knows of no tokens: a re-entrant lock of this name.
            return None;
        }
        let asked = self.asked.filter(|asked| asked.incarnation == site.core.incarnation())?;
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
        let expected = Some(Arc::clone(&self.expected));
        let hold = Hold::handed(self.owner, terms, granted.lease, asked, self.in_doubt)
            .shared(granted.share, expected);
        (clock::now() < hold.deadline()).then_some(hold)
    }

    fn sleep(&mut self, site: &Site, thread: &Arc<Thread>, wait: &Wait<'_>) -> Result<(), Error> {
        let (core, name) = (&site.core, &site.name);
        let rest = Duration::from_nanos(self.ask_at.saturating_sub(clock::now()));
        let until = wait.sleep_until(rest);
        self.own.check(name, core)?;
        self.public.check(name, core)?;
        wait.wakeable(thread, || {
            let [own, public] = [&self.own, &self.public]
                .map(|heard| heard.subscription.as_ref().map(|channel| channel.wake(thread)));
            let slept = loop {
                if let Err(error) = wait.check(core, name) {
                    break Err(error);
                }
                let news = {
                    let letters = self.mail.state.lock();
                    letters.grant.is_some() || letters.open_until.is_some()
                };
                if news
                    || self.own.has_moved()
                    || self.public.has_moved()
                    || until.is_some_and(|until| Instant::now() >= until)
                {
                    break Ok(());
                }
                let latest = [self.own.latest, self.public.latest];
                if latest.iter().flatten().any(|latest| Instant::now() >= *latest)
                    || self.is_refused()
                {
                    break Ok(());
                }
                let until = latest.into_iter().chain([until]).flatten().min();
                thread.parker().park_until(until);
            };
            drop((own, public));
            slept
        })?;
        self.own.check(name, core)?;
        self.public.check(name, core)
    }

    /// Whether a channel that must be listened to is refused.
    fn is_refused(&self) -> bool {
        [&self.own, &self.public].into_iter().any(|heard| {
            heard.latest.is_some()
                && heard
                    .subscription
                    .as_ref()
                    .is_some_and(|channel| matches!(channel.standing(), Standing::Refused(_)))
        })
    }
}
