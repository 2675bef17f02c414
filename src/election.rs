//! Leader election over a fenced lock: the leader is the process that has the lock. The election
//! also has a record of the leader, and messages about changes of the leader. If the leader's lease
//! is not renewed, the leader is deposed some time (the grace) before the lease ends. During the
//! grace, the leader can stop before another process leads.

// campaign: take the lock (in an owned guard) -> extend its lease -> record the leader, tell others
// lead:     the watchdog renews the lease; an alarm is set at the lease's end less the grace, and a
//           renewal puts off the alarm
// deposed:  when the alarm finds less of the lease than the grace, or when the lock is lost; at
//           most once for each leadership, which is over for good
// run:      campaign, lead in the program's closure, resign, pause, then campaign again

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use log::Level;
use redlatch_client::pubsub::Subscription;
use redlatch_client::sync::{Mutex, Waker, clock, is_forked, jitter};
use redlatch_client::{CancelToken, Linked, Outcome, host_name, was_cut, was_cut_while_answering};

#[cfg(doc)]
use crate::attempt::Attempt::NotTaken;
use crate::attempt::Attempt::{self, Taken};
#[cfg(doc)]
use crate::client::Client;
use crate::error::{Error, ErrorKind, LostReason};
use crate::hold::{HoldState, Tenancy};
use crate::lease::{LossCallback, Renewal, Task};
use crate::lock::fenced::{FencedLock, OwnedFencedLockGuard};
use crate::lock::{HeldLock, Part as _, evals};
use crate::owner::Owner;
use crate::runtime::Session;
use crate::scripts::election::{ElectionScripts, Recorded};
use crate::scripts::eval::{COMMAND, Script, ScriptCall, Value};
#[cfg(soak_mutants)]
use crate::scripts::mutants;
use crate::scripts::{ElectionKeys, FencingToken};
use crate::site::Site;
use crate::status::place;
use crate::waiting::{
    Endurance, Sleeper, Wait, await_confirmation, repeat_through_outage, slow_poll_or,
};

/// An election, in which processes choose one of them as the leader. [`Client::leader_election`]
/// returns a `LeaderElection`.
///
/// ```no_run
/// use std::time::Duration;
///
/// use redlatch::{CancelToken, Client, Error};
///
/// # fn write(_: redlatch::FencingToken) {}
/// # fn main() -> Result<(), Error> {
/// let client = Client::connect("redis://127.0.0.1:6379")?;
/// let election = client.leader_election("scheduler").with_watchdog(Duration::from_secs(5));
/// let ends = CancelToken::new(); // cancel a clone of it to end the program
/// election.run(&ends, |leadership, stop| {
///     while !stop.is_cancelled() && leadership.check(Duration::from_secs(1)).is_ok() {
///         write(leadership.token()); // a store that remembers the highest token refuses late writes
///     }
/// })
/// # }
/// ```
///
/// A leader has a [`FencedLock`] of the election's name. If the leader dies, the next candidate
/// leads when the dead leader's lease has ended. If the leader cannot renew its lease, it is
/// deposed some time before the lease ends (the [grace](Self::with_grace)), so that it can stop
/// before another process leads. [Elections](crate::guide::elections) says what can go wrong.
///
/// # In Redis
///
/// An election has the keys of its lock. The lock's token is never deleted, because the next token
/// must be higher. A hash `redlatch_leader:{name}` has the recorded leader. A resignation removes
/// the hash. The hash of a killed leader exists until the next leader is recorded. Messages go to
/// the channel `redlatch_leader:{name}`.
#[derive(Clone, Debug)]
pub struct LeaderElection {
    lock: FencedLock,
    grace: Option<Duration>,
    /// See [`with_value`](Self::with_value).
    value: Option<Arc<str>>,
    /// The term of each leadership that this handle and its clones have won.
    terms: Arc<Mutex<Vec<Weak<Term>>>>,
}

/// Whether a process leads, as [`LeaderElection::health`] returns it.
///
/// ```
/// use redlatch::election::Health;
///
/// fn text(health: Health) -> String {
///     match health {
///         Health::Leads => "leader".to_owned(),
///         Health::Follows => "standby".to_owned(),
///         Health::Overdue(since) => format!("deposed {since:?} ago, and still at work"),
///         _ => "unknown".to_owned(), // a later version may have more variants
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Health {
    /// This process leads.
    Leads,
    /// This process does not lead.
    Follows,
    /// This process was deposed this long ago and has not dropped its [`Leadership`], so its work
    /// may still be running. Another process may lead.
    Overdue(Duration),
}

/// The recorded leader of an election.
///
/// ```no_run
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// match client.leader_election("scheduler").leader()? {
///     Some(leader) if leader.is(&client) => println!("this process leads"),
///     Some(leader) => println!("{} on {} leads, token {}", leader.who, leader.host, leader.token),
///     None => println!("nobody leads"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Leader {
    /// The name of the leader's connections: the program, host and process, and the client's id.
    pub who: String,
    /// The name of the leader's host.
    pub host: String,
    /// The server's time at which the leader began to lead.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "since_ms", serialize_with = "crate::json::unix_millis")
    )]
    pub since: SystemTime,
    /// The token of this leadership.
    pub token: FencingToken,
    /// The leader's own [value](LeaderElection::with_value), such as its address.
    pub value: Option<String>,
}

impl Leader {
    /// Returns the number of the leader's process on its host. Returns `None` unless the leader's
    /// client has the default [`name`](crate::ClientBuilder::name).
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        let (name, _) = self.who.rsplit_once('#')?;
        place(name).map(|(_, pid)| pid)
    }
}

impl From<Recorded> for Leader {
    fn from(Recorded { token, who, host, since, value }: Recorded) -> Self {
        let since = SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH);
        Self { who, host, since, token: FencingToken::from_number(token), value }
    }
}

impl LeaderElection {
    /// Campaigns again and again, and calls `work` each time that this process leads, until `ends`
    /// is cancelled. When `work` returns, the call resigns, pauses for half a second to one and a
    /// half seconds, and campaigns again. During the pause other candidates can become the leader.
    ///
    /// `work` gets a token. The token is cancelled when `work` should return, because
    ///
    /// - this process was deposed (see [`on_deposed`](Leadership::on_deposed)), or its client was
    ///   shut down; or
    /// - `ends` was cancelled.
    ///
    /// The token also ends blocking calls, such as
    /// [`lock_cancellable`](crate::Lock::lock_cancellable). The token is also cancelled when `work`
    /// has returned, so threads that `work` has started can notice the end by a clone of the token.
    /// To end the call, `work` may cancel a clone of `ends`.
    ///
    /// If `work` panics, the client logs the panic, and the call continues as if `work` had
    /// returned: it resigns, pauses and campaigns again. The data that `work` changes must stay
    /// usable after a panic.
    ///
    /// ```no_run
    /// # fn example(client: &redlatch::Client) -> Result<(), redlatch::Error> {
    /// use std::time::Duration;
    ///
    /// let ends = redlatch::CancelToken::new();
    /// let election = client.leader_election("reports").with_value("10.0.0.7:8080");
    /// election.run(&ends, |leadership, stop| {
    ///     for report in 0..100 {
    ///         if stop.is_cancelled() || leadership.check(Duration::from_secs(1)).is_err() {
    ///             return; // another process may lead soon
    ///         }
    ///         println!("report {report} is made, under token {}", leadership.token());
    ///     }
    ///     ends.cancel(); // all is done
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If `ends` was cancelled, the call returns `Ok`. If an error may pass without a change of the
    /// program (for example an outage), the client logs the error, and the call continues.
    /// [`LoginRefused`](ErrorKind::LoginRefused) is such an error, because passwords may be changed
    /// while programs run. The call returns these errors:
    ///
    /// - [`Config`](ErrorKind::Config), [`Denied`](ErrorKind::Denied) and
    ///   [`WrongType`](ErrorKind::WrongType), which need a change of the program or the server.
    /// - [`ShutDown`](ErrorKind::ShutDown) after [`Client::shutdown`],
    ///   [`Forked`](ErrorKind::Forked) in a forked child.
    ///
    /// # Blocking
    ///
    /// Blocks until `ends` is cancelled or an error ends the call. The cancellation of `ends` ends
    /// a campaign or a pause at once, but the call returns only after `work` has returned.
    pub fn run(
        &self,
        ends: &CancelToken,
        mut work: impl FnMut(&Leadership, &CancelToken),
    ) -> Result<(), Error> {
        let Site { core, name, .. } = &**self.site();
        let (wait, mut endured) = (Wait::from(ends), None);
        let sleeper = Sleeper::new((core, name), Waker::current(), &wait);
        loop {
            match self.campaign_cancellable(ends) {
                Ok(leadership) => {
                    endured = None;
                    self.lead(leadership, ends, &mut work);
                }
                Err(error) if error.kind() == ErrorKind::Cancelled => return Ok(()),
                Err(error) if ends_a_run(error.kind()) => return Err(error),
                Err(error) => {
                    // Log one line for each kind of error, because an error may last for hours.
                    if endured.replace(error.kind()) != Some(error.kind()) {
                        core.watchdog.log_error(error.now("the campaign is repeated"));
                    }
                }
            }
            match sleeper.pause(PAUSE.mul_f64(0.5 + jitter(clock::now()))) {
                Err(error) if error.kind() == ErrorKind::Cancelled => return Ok(()),
                paused => paused?,
            }
        }
    }

    /// Calls `work` with a leadership, and ends the leadership.
    fn lead(
        &self,
        leadership: Leadership,
        ends: &CancelToken,
        work: &mut impl FnMut(&Leadership, &CancelToken),
    ) {
        let stop = leadership.resigns.0.stop.clone();
        let _linked = Linked::of(ends, &stop);
        let worked = catch_unwind(AssertUnwindSafe(|| work(&leadership, &stop)));
        // Resigns, which also cancels `stop`.
        drop(leadership);
        if worked.is_err() && !is_forked() {
            let Site { core, name, .. } = &**self.site();
            let line = || format!("the work of the leader of {name:?} panicked, so it resigned");
            core.watchdog.log(Level::Error, line);
        }
    }

    /// Returns whether this process leads, for the probe of a supervisor. No I/O.
    ///
    /// The result covers the leaderships that this handle and its clones have won, by
    /// [`run`](Self::run) or by another method that campaigns. A process that
    /// [`Follows`](Health::Follows) is healthy. The work of a deposed process should stop within
    /// the [grace](Self::with_grace). If a process is [`Overdue`](Health::Overdue) for longer, its
    /// work hangs, and the process does not campaign: restart the process.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use redlatch::election::{Health, LeaderElection};
    ///
    /// /// The status of the answer to `GET /healthz`.
    /// fn probe(election: &LeaderElection) -> u16 {
    ///     match election.health() {
    ///         Health::Overdue(since) if since > Duration::from_secs(20) => 503,
    ///         _ => 200,
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn health(&self) -> Health {
        // A forked child does not lead, and must not lock a mutex.
        if is_forked() {
            return Health::Follows;
        }
        let terms: Vec<_> = self.terms.lock().iter().filter_map(Weak::upgrade).collect();
        let (mut leads, mut overdue) = (false, None);
        for term in terms {
            leads |= !term.left().is_zero();
            if let TermState::Deposed(_, at) = &*term.state.lock() {
                overdue = overdue.max(Some(clock::now().saturating_sub(*at)));
            }
        }
        match overdue {
            Some(since) => Health::Overdue(Duration::from_nanos(since)),
            None if leads => Health::Leads,
            None => Health::Follows,
        }
    }

    /// Blocks until this process leads.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if the grace is not less than half of the lease.
    /// [`LeaseLost`](ErrorKind::LeaseLost) if the lock was lost right after its grant.
    /// [`EndsTooSoon`](ErrorKind::EndsTooSoon) if the grant took so long that less than half of the
    /// lease was left. The call returns `LeaseLost` or `EndsTooSoon` only after three such grants,
    /// or if the wait is over.
    ///
    /// All methods that campaign can return these errors.
    ///
    /// # Blocking
    ///
    /// Blocks as [`Lock::lock`](crate::Lock::lock) does, and then for one more round trip. If
    /// another process handed over the leadership, blocks for two more round trips.
    pub fn campaign(&self) -> Result<Leadership, Error> {
        self.take(Wait::FOREVER)?.ok_or_else(|| Error::shut_down(&self.site().name))
    }

    /// Leads if no other process leads. If another process leads, returns [`NotTaken`].
    ///
    /// # Errors
    ///
    /// The errors of [`campaign`](Self::campaign): this process does not lead.
    ///
    /// # Blocking
    ///
    /// One round trip, and two more if this process leads afterwards.
    pub fn try_campaign(&self) -> Result<Attempt<Leadership>, Error> {
        self.take(Wait::NONE).map(Attempt::of)
    }

    /// Blocks until this process leads, or returns [`NotTaken`] after `wait`. If `wait` is zero,
    /// the call tries once.
    ///
    /// # Errors
    ///
    /// The errors of [`campaign`](Self::campaign): this process does not lead.
    ///
    /// # Blocking
    ///
    /// Blocks for at most `wait`: see [`Lock::try_lock_for`](crate::Lock::try_lock_for).
    pub fn try_campaign_for(&self, wait: Duration) -> Result<Attempt<Leadership>, Error> {
        self.take(wait.into()).map(Attempt::of)
    }

    /// Blocks until this process leads, or returns [`NotTaken`] at `deadline`. If `deadline` has
    /// passed, the call tries once.
    ///
    /// # Errors
    ///
    /// The errors of [`campaign`](Self::campaign): this process does not lead.
    ///
    /// # Blocking
    ///
    /// Blocks at most until `deadline`: see [`try_campaign_for`](Self::try_campaign_for).
    pub fn try_campaign_until(&self, deadline: Instant) -> Result<Attempt<Leadership>, Error> {
        self.take(deadline.into()).map(Attempt::of)
    }

    /// Blocks until this process leads, or fails when `token` is cancelled.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if `token` was cancelled: this process does not lead.
    /// The other errors are those of [`campaign`](Self::campaign).
    ///
    /// # Blocking
    ///
    /// Blocks until this process leads, an error occurs, or `token` is cancelled. The cancellation
    /// ends the wait at once, even during a request.
    pub fn campaign_cancellable(&self, token: &CancelToken) -> Result<Leadership, Error> {
        self.take(token.into())?.ok_or_else(|| Error::shut_down(&self.site().name))
    }

    /// Blocks until this process leads, or returns [`NotTaken`] at the end of `wait`. All other
    /// methods that campaign are short forms of this method.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if the token of `wait` was cancelled: this process does
    /// not lead. The other errors are those of [`campaign`](Self::campaign).
    ///
    /// # Blocking
    ///
    /// Blocks for as long as `wait` allows: see [`try_campaign_for`](Self::try_campaign_for) and
    /// [`campaign_cancellable`](Self::campaign_cancellable).
    pub fn campaign_within<'a>(
        &self,
        wait: impl Into<Wait<'a>>,
    ) -> Result<Attempt<Leadership>, Error> {
        self.take(wait.into()).map(Attempt::of)
    }

    /// Returns the recorded leader, which may be any process. Returns `None` if no process leads,
    /// or if a new leader is not recorded yet. The result may be out of date when the call returns.
    ///
    /// # Errors
    ///
    /// [Server trouble](ErrorKind#server-trouble) if the server refuses or does not answer, or if a
    /// key of the election has data of another kind. [`Protocol`](ErrorKind::Protocol) if the
    /// server's reply is malformed. [`Config`](ErrorKind::Config) if the name is empty.
    /// [`ShutDown`](ErrorKind::ShutDown) after [`Client::shutdown`], [`Forked`](ErrorKind::Forked)
    /// in a forked child.
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`None`: nobody leads"]
    pub fn leader(&self) -> Result<Option<Leader>, Error> {
        self.check()?;
        self.look().map(|(leader, _)| leader)
    }

    /// Returns an iterator over the present leader and each later change, for as long as `wait`
    /// allows. The iterator's `next` blocks. The iterator may skip a leadership that was very
    /// short.
    ///
    /// Messages announce new leaders and resignations. If a leader dies, the iterator notices when
    /// the leader's lease ends. The iterator ends with an error if the server does not answer for
    /// [`failover_timeout`](crate::ClientBuilder::failover_timeout), or with another error of
    /// [`leader`](Self::leader).
    pub fn changes<'a>(&self, wait: impl Into<Wait<'a>>) -> Changes<'a> {
        Changes { election: self.clone(), wait: Some(wait.into()), channel: None, last: None }
    }

    /// Returns a handle of this election with leases of this length. If a leader dies, another
    /// process can lead after this time.
    #[must_use]
    pub fn with_watchdog(&self, timeout: Duration) -> Self {
        Self { lock: self.lock.with_watchdog(timeout), ..self.clone() }
    }

    /// Returns a handle of this election. The leader of this handle is notified within milliseconds
    /// when another process campaigns: see [`Leadership::on_wanted`].
    #[must_use]
    pub fn with_wanted(&self) -> Self {
        Self { lock: self.lock.with_wanted(), ..self.clone() }
    }

    /// Returns a handle of this election with this grace. If no renewal succeeds, the leader is
    /// deposed this long before its lease ends, and can stop in this time. The grace must be less
    /// than half of the lease. By default it is a tenth of the lease.
    #[must_use]
    pub fn with_grace(&self, grace: Duration) -> Self {
        Self { grace: Some(grace), ..self.clone() }
    }

    /// Returns a handle of this election with a value for this process, such as its address. While
    /// the process leads, all processes can read the value ([`Leader::value`]). The server stores
    /// the value in the leader's record.
    ///
    /// ```no_run
    /// # fn example(client: &redlatch::Client) -> Result<(), redlatch::Error> {
    /// let election = client.leader_election("scheduler").with_value("10.0.0.7:8080");
    /// let address = election.leader()?.and_then(|leader| leader.value);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_value(&self, value: &str) -> Self {
        Self { value: Some(value.into()), ..self.clone() }
    }

    /// Returns the election's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    pub(crate) fn new(session: &Session, name: &str) -> Self {
        let (lock, terms) = (FencedLock::new(session, name), Arc::default());
        Self { lock, grace: None, value: None, terms }
    }

    /// The site of the election's lock.
    fn site(&self) -> &Arc<Site> {
        &self.lock.handle().site
    }

    fn check(&self) -> Result<(), Error> {
        if self.name().is_empty() {
            return Err(Error::nameless("an election"));
        }
        self.lock.handle().check_usable()
    }

    /// Returns the leader, and the remaining lease of the lock.
    fn look(&self) -> Result<(Option<Leader>, Option<Duration>), Error> {
        let looked = scripts(self.site()).leader();
        let (leader, left) =
            looked.map_err(|trouble| trouble.into_error().of(&self.site().name))?;
        Ok((leader.map(Leader::from), left))
    }

    fn take(&self, wait: Wait<'_>) -> Result<Option<Leadership>, Error> {
        self.check()?;
        let lease = self.lock.handle().terms().lease();
        let grace = self.grace.unwrap_or(lease / 10);
        if grace >= lease / 2 {
            let message = format!(
                "a grace of {grace:?} is not less than half of the lease, {lease:?}: the leader \
                 would be deposed between two renewals"
            );
            return Err(Error::new(ErrorKind::Config, message).of(&self.site().name));
        }
        let mut tries = 1..MOST_TRIES;
        loop {
            let Taken(guard) = self.lock.lock_owned_within(wait.usual())? else { return Ok(None) };
            match self.begin(guard, grace, &wait) {
                Err(error) if is_short(&error) && !wait.is_over() && tries.next().is_some() => {}
                begun => return begun,
            }
        }
    }

    /// Begins to lead with the lock of this guard. Returns `None` if the wait ended before this
    /// process led.
    fn begin(
        &self,
        guard: OwnedFencedLockGuard,
        grace: Duration,
        wait: &Wait<'_>,
    ) -> Result<Option<Leadership>, Error> {
        let (site, least) = (self.site(), self.lock.handle().terms().lease() / 2);
        let _limited = wait.limits(&site.core);
        // If another process handed over the lock, the lease of this process is only 2 s at first.
        let checked = guard.check(least);
        wait.check_cancelled(&site.name)?;
        checked?;
        let Some(held) = guard.one() else { return Err(Error::late_grant(&site.name)) };
        let (tenancy, token) = (Arc::clone(held.site_and_tenancy().1), guard.token().get());
        let (site, stop) = (Arc::clone(site), CancelToken::new());
        let state = Mutex::new(TermState::Leads(Vec::new()));
        let term = Arc::new(Term { site, tenancy, token, grace, stop, state });
        // If this process does not become the leader, the drop of `resigns` removes the record.
        let resigns = Resigns(Arc::clone(&term));
        if !self.record(&term, wait)? {
            return Ok(None);
        }
        // If the reply came late, the remaining lease may be too short now.
        guard.check(least)?;
        let deposed = Arc::downgrade(&term);
        term.tenancy.at_loss(Box::new(move |reason| {
            deposed.upgrade().inspect(|term| term.depose(reason));
        }));
        let mut terms = self.terms.lock();
        terms.retain(|term| term.strong_count() > 0);
        terms.push(Arc::downgrade(&term));
        drop(terms);
        // If the lock was lost before the call of `at_loss`, `due` deposes the leader.
        term.due();
        Ok(Some(Leadership { resigns, guard }))
    }

    /// Records the leader. Returns `false` if the wait ended before the record was made.
    fn record(&self, term: &Term, wait: &Wait<'_>) -> Result<bool, Error> {
        let Term { site, tenancy, token, .. } = term;
        let Site { core, name, .. } = &**site;
        let who = [&*core.config.connection.name, &host_name()];
        let led = repeat_through_outage(core, name, wait, || {
            let value = self.value.as_deref();
            let led = scripts(site).lead(&tenancy.hold().owner, *token, who, value);
            led.map_err(|trouble| trouble.into_error().of(name).now("nobody was made the leader"))
        });
        match led {
            Ok(true) => Ok(true),
            Ok(false) => Err(Error::lost(name, &tenancy.hold().why_gone())),
            // The limit of the wait ended the request. This is no error: the process just does not
            // lead.
            Err(_) if was_cut() => wait.check_cancelled(name).map(|()| false),
            Err(error) => Err(error),
        }
    }
}

/// After this number of attempts, a campaign fails. In each of these attempts the campaign took the
/// lock, and then lost it or found that too little of the lease was left. More attempts would hide
/// that the server is too slow for the lease.
const MOST_TRIES: u32 = 3;

/// The average pause of a [run](LeaderElection::run) between two campaigns.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether an error of this kind lasts until the program or the server is changed, or for ever.
fn ends_a_run(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Config
            | ErrorKind::Denied
            | ErrorKind::WrongType
            | ErrorKind::ShutDown
            | ErrorKind::Forked
    )
}

fn is_short(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::LeaseLost | ErrorKind::EndsTooSoon)
}

fn scripts(site: &Site) -> ElectionScripts<'_> {
    ElectionScripts { route: &site.route, name: &site.name }
}

/// The guard of a process that leads. A drop resigns, so that the next candidate leads. The guard
/// can be sent to another thread.
///
/// ```no_run
/// use std::time::Duration;
///
/// # fn schedule(_: redlatch::FencingToken) {}
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let leadership = client.leader_election("scheduler").campaign()?;
/// leadership.on_deposed(|why| eprintln!("stop the work: {why}"));
/// while leadership.check(Duration::from_secs(2)).is_ok() {
///     schedule(leadership.token()); // takes less than 2 s
/// }
/// leadership.resign()
/// # }
/// ```
#[must_use = "dropping it resigns at once"]
pub struct Leadership {
    // This field comes before the guard, so that the record is removed before the lock is released.
    resigns: Resigns,
    guard: OwnedFencedLockGuard,
}

impl Leadership {
    evals!();

    /// Returns the token of this leadership, which is higher than the tokens of all earlier
    /// leaderships.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.guard.token()
    }

    /// Returns the election's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.guard.name()
    }

    /// Returns the owner under which the server stores the leadership, as
    /// [`LockGuard::owner`](crate::LockGuard::owner) does for a lock. No I/O.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::of(&self.resigns.0.tenancy.hold().owner)
    }

    /// Returns the state of the leadership, as far as this process knows it. The state is
    /// [`Lost`](HoldState::Lost) as soon as this process is deposed, which may be one grace before
    /// the lease ends. No I/O.
    #[must_use]
    pub fn state(&self) -> HoldState {
        let term = &self.resigns.0;
        if self.is_leader() || is_forked() {
            return self.guard.state();
        }
        match *term.state.lock() {
            TermState::Deposed(reason, _) => HoldState::Lost(reason),
            TermState::Leads(_) | TermState::Resigned => self.guard.state(),
        }
    }

    /// Returns for how long this process certainly leads even if no renewal succeeds: the remaining
    /// lease minus the grace. Returns zero if this process was deposed. No I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.resigns.0.left()
    }

    /// Returns whether this process leads and its remaining lease is longer than the grace. After
    /// the method has returned `false`, it never returns `true` again. No I/O.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        // `left` reads the clock, because the alarm may be late.
        !self.resigns.0.left().is_zero()
    }

    /// Returns an error unless this process certainly leads for at least `slack` from now. Call
    /// this before each step that only a leader may do, with a `slack` that is longer than the
    /// step.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost) if this leader was deposed,
    /// [`EndsTooSoon`](ErrorKind::EndsTooSoon) if it leads but may be deposed within `slack`,
    /// [`Forked`](ErrorKind::Forked) in a forked child.
    ///
    /// # Blocking
    ///
    /// Blocks as [`LockGuard::check`](crate::LockGuard::check) does: usually not at all.
    pub fn check(&self, slack: Duration) -> Result<(), Error> {
        if self.is_leader() {
            return self.guard.check(slack.saturating_add(self.resigns.0.grace));
        }
        self.guard.check(Duration::ZERO)?;
        let message = "this process was deposed, because its lease was about to end; resign, and \
                       campaign anew";
        Err(Error::new(ErrorKind::LeaseLost, message.to_owned()).of(&self.resigns.0.site.name))
    }

    /// Registers `callback`. The client calls `callback` once, with the reason, if this process is
    /// deposed before it resigns. If the lease was not renewed
    /// ([`LeaseExpired`](LostReason::LeaseExpired)), the client calls `callback` one
    /// [grace](LeaderElection::with_grace) before the lease ends, by the clock of this process. At
    /// that moment no other process leads yet, unless this process was paused. For any other
    /// reason, another process may already lead. If the leadership has already ended, the client
    /// calls `callback` soon.
    ///
    /// Callbacks run on a thread of the client, one after the other, so a callback should be short.
    /// Drop a deposed leadership, because it may still keep the lock.
    pub fn on_deposed(&self, callback: impl FnOnce(LostReason) + Send + 'static) {
        if is_forked() {
            return;
        }
        let (term, callback): (_, LossCallback) = (&self.resigns.0, Box::new(callback));
        let reason = match &mut *term.state.lock() {
            TermState::Leads(callbacks) => return callbacks.push(callback),
            TermState::Deposed(reason, _) => *reason,
            // `resign` and the drop consume the `Leadership`, so no caller gets here after them.
            TermState::Resigned => return,
        };
        term.call(reason, vec![callback]);
    }

    /// Registers `callback`. The client calls `callback` when another process begins to campaign,
    /// and no other process was campaigning before: see
    /// [`LockGuard::on_wanted`](crate::LockGuard::on_wanted). For example, when a newer version of
    /// the program starts, the leader can finish its work and resign. If others already campaign,
    /// the client calls `callback` soon.
    pub fn on_wanted(&self, callback: impl Fn() + Send + Sync + 'static) {
        self.guard.on_wanted(callback);
    }

    /// Returns whether other processes campaign, as far as this process knows: see
    /// [`LockGuard::is_wanted`](crate::LockGuard::is_wanted). No I/O.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.guard.is_wanted()
    }

    /// A script runs even between the deposition and the end of the lease, because nobody else
    /// leads in that time.
    fn held(&self) -> Result<&HeldLock, Error> {
        self.guard.held()
    }

    /// Ends the leadership. The next candidate leads.
    ///
    /// # Errors
    ///
    /// The errors of [`LockGuard::unlock`](crate::LockGuard::unlock). The call also returns them if
    /// the leadership was lost before.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn resign(self) -> Result<(), Error> {
        let Self { guard, resigns } = self;
        drop(resigns);
        guard.unlock()
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership").field("guard", &self.guard).finish_non_exhaustive()
    }
}

/// A value whose drop removes the record of the leader, without a wait for the reply. A record that
/// remains does no harm: without the lock it is not valid, and the next leader overwrites it.
struct Resigns(Arc<Term>);

impl Drop for Resigns {
    fn drop(&mut self) {
        let Term { site, tenancy, token, .. } = &*self.0;
        if is_forked() {
            return;
        }
        // The callbacks are dropped here, with no mutex held. If they stayed in the term, the
        // watchdog could become the thread that drops them, because it may be using the term now.
        let _unheard = self.0.end(TermState::Resigned);
        let command = scripts(site).resign_command(&tenancy.hold().owner, *token);
        site.core.post(&site.route, command, Arc::new(|_: Outcome| {}));
    }
}

/// A term: the time for which a process leads.
struct Term {
    site: Arc<Site>,
    tenancy: Arc<Tenancy>,
    token: u64,
    grace: Duration,
    /// The token that tells the work of a [run](LeaderElection::run) to stop. The token is
    /// cancelled at the latest at the end of the term.
    stop: CancelToken,
    state: Mutex<TermState>,
}

enum TermState {
    /// The term has not ended. The callbacks run when the leader is deposed.
    Leads(Vec<LossCallback>),
    /// The leader was deposed for this reason, at this time on [`clock`].
    Deposed(LostReason, u64),
    Resigned,
}

impl Term {
    /// Returns how long the term lasts if no renewal succeeds, or zero if the term is over.
    fn left(&self) -> Duration {
        // A forked child does not lead. The child must not lock a mutex or call a callback.
        if is_forked() {
            return Duration::ZERO;
        }
        #[cfg(soak_mutants)]
        if mutants::is("a leader that is not deposed") {
            return Duration::from_secs(1);
        }
        let left = self.tenancy.remaining().saturating_sub(self.grace);
        if left.is_zero() {
            // This thread may notice the loss before the thread that reports the loss.
            self.depose(match self.tenancy.state() {
                HoldState::Lost(reason) => reason,
                _ => LostReason::LeaseExpired,
            });
        }
        if matches!(*self.state.lock(), TermState::Leads(_)) { left } else { Duration::ZERO }
    }

    fn depose(&self, reason: LostReason) {
        let deposed = TermState::Deposed(reason, clock::now());
        #[cfg(soak_mutants)]
        if mutants::is("a leader that is deposed in silence") {
            self.end(deposed);
            return;
        }
        self.call(reason, self.end(deposed));
    }

    /// Ends the term. Returns the term's callbacks, or none if the term had already ended.
    fn end(&self, how: TermState) -> Vec<LossCallback> {
        let mut state = self.state.lock();
        let callbacks = match &mut *state {
            TermState::Leads(callbacks) => std::mem::take(callbacks),
            // A leader is deposed at most once, and may resign afterwards.
            _ if matches!(how, TermState::Deposed(..)) => return Vec::new(),
            _ => Vec::new(),
        };
        *state = how;
        // The token is cancelled under the mutex. If it were cancelled later, a callback that
        // `on_deposed` registers could run before the cancellation. If it were cancelled earlier,
        // the work could stop and resign at once, and the callbacks would be dropped without a
        // call.
        self.stop.cancel();
        callbacks
    }

    fn call(&self, reason: LostReason, callbacks: Vec<LossCallback>) {
        let Site { core, name, .. } = &*self.site;
        core.watchdog.queue_loss_callbacks(name, reason, callbacks);
    }
}

/// The alarm is due: the lease ends soon, or the lease was renewed in the meantime.
impl Task for Term {
    fn due(self: Arc<Self>) -> Option<Renewal> {
        let left = self.left();
        if !left.is_zero() {
            let due = clock::now().saturating_add(clock::nanos(left));
            let weak: Weak<dyn Task> = Arc::downgrade(&(Arc::clone(&self) as Arc<dyn Task>));
            // The alarm is never cancelled. After the drop of the term, the alarm does nothing.
            let _alarm = self.site.core.watchdog.alarm(due, weak);
        }
        None
    }
}

/// The leaders of an election, one after the other: see [`LeaderElection::changes`].
#[derive(Debug)]
#[must_use = "it is an iterator, and does nothing by itself"]
pub struct Changes<'a> {
    election: LeaderElection,
    /// `None` after the iterator has ended.
    wait: Option<Wait<'a>>,
    /// `None` before the first call of `next`.
    channel: Option<Subscription>,
    last: Option<Option<Leader>>,
}

impl Changes<'_> {
    /// Returns the next change, or `None` if the wait ended before a change.
    fn change(&mut self, wait: &Wait<'_>) -> Result<Option<Option<Leader>>, Error> {
        let Self { election, channel, last, .. } = self;
        let Site { core, name, .. } = &**election.site();
        election.check()?;
        let listen = || core.pubsub.listen(&ElectionKeys::leader(name).into());
        let channel = channel.get_or_insert_with(listen);
        let mut endurance = Endurance::new([&core.config]);
        let sleeper = Sleeper::new((core, name), Waker::current(), wait);
        // Redis does not store messages, so the iterator subscribes before it asks for the leader.
        loop {
            match await_confirmation(channel, &sleeper) {
                Ok(true) => break,
                Ok(false) => return Ok(None),
                Err(error) => {
                    let limit = core.config.failover_timeout;
                    let pause = endurance.failed(&error, limit).ok_or(error)?;
                    sleeper.pause(pause)?;
                }
            }
        }
        let _limited = wait.limits(core);
        loop {
            let version = channel.version();
            let pause = match election.look() {
                Ok((leader, _)) if last.as_ref() != Some(&leader) => {
                    *last = Some(leader.clone());
                    return Ok(Some(leader));
                }
                Ok((_, left)) => {
                    endurance.answered(Instant::now());
                    slow_poll_or(left)
                }
                Err(error) if was_cut() => {
                    wait.check_cancelled(name)?;
                    let answered = last.is_some() || was_cut_while_answering();
                    return if answered { Ok(None) } else { Err(error) };
                }
                Err(error) => {
                    endurance.failed(&error, core.config.failover_timeout).ok_or(error)?
                }
            };
            let until = wait.end_of_sleep(pause);
            {
                let _waking = sleeper.woken_by(channel);
                sleeper.sleep_until(until, || channel.version() != version)?;
            }
            if wait.is_over() {
                return Ok(None);
            }
        }
    }
}

impl Iterator for Changes<'_> {
    type Item = Result<Option<Leader>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let wait = self.wait.take()?;
        let change = self.change(&wait).transpose()?;
        self.wait = change.is_ok().then_some(wait);
        Some(change)
    }
}
