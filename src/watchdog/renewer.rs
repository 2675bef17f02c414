//! The thread that does all background I/O.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use log::Level;
use redis::Value;

use super::todo::Todo;
use super::{Chore, Job, Watchdog};
use crate::client::Core;
use crate::connection::{Command, Endpoint, Failure, Lane, Link, Outcome, Posted};
use crate::hold::{Hold, Site, clock};
use crate::pubsub::HEARTBEAT;
use crate::script::{self, Requests, Ticket, WINDOW, lock::Renewed};
use crate::sync::Mutex;

/// Names a script call renews. More would keep the server from its other clients for longer.
const NAMES_A_CALL: usize = 128;
/// Script calls written before a reply is read.
const CALLS_A_PACKET: usize = 16;
/// How long a reply that nobody waits for may take, on top of some round trips; then its lane is
/// thrown away.
const PATIENCE: Duration = Duration::from_millis(100);
const FIRST_RETRY: u64 = 50_000_000;
const LAST_RETRY: u64 = 10_000_000_000;
const ASK_AGAIN: u64 = 1_000_000_000;
/// A request that is this late is not on its way any more, unless the server has stood still.
const LATEST: Duration = Duration::from_secs(600);

/// A hold whose renewal is due.
#[derive(Debug)]
pub(crate) struct Renewal {
    pub(crate) site: Arc<Site>,
    pub(crate) hold: Arc<Hold>,
    /// What its lease is to be raised to. `None`: the server is only asked whether it knows the hold.
    pub(crate) lease: Option<Duration>,
}

/// A command that is sent in the background, again and again with back-off, and as soon as a
/// connection is opened.
pub(crate) struct Errand {
    name: Arc<str>,
    until: u64,
    due: u64,
    /// When it was sent last.
    tried: u64,
    retry: u64,
    ends: Ends,
}

/// When an errand is done.
enum Ends {
    /// At its time only, or at an answer after `enough`. The release of a hold that nobody has any
    /// more, or perhaps never had: once is not enough, since a server that stalls may read it before
    /// the acquire that an old connection still has.
    Late { release: Command, enough: u64 },
    /// At whatever the server answers.
    Answered(Command),
    /// Once the server has applied it, or says that it is too late to.
    Applied(Command, Arc<Requests>, Ticket),
    /// Once nothing is owed any more.
    Paid(Arc<dyn Debtor>),
    /// At once, whatever comes of it: those who wait ask for themselves some time.
    Looked(Arc<Site>),
}

/// Who owes the server something, and says how much when it can be sent.
pub(crate) trait Debtor: Send + Sync {
    /// `None`: nothing any more. Else [`paid`](Self::paid) is called before the next one.
    fn command(&self) -> Option<Command>;

    /// What became of it. `resent`: it went twice, the first time without an outcome.
    fn paid(&self, outcome: &Outcome, resent: bool);
}

impl Errand {
    /// Sends an owner-checked release again and again, for as long as one lease.
    pub(crate) fn repeat(name: &Arc<str>, release: Command, lease: Duration) -> Self {
        let after = |time| clock::now().saturating_add(clock::nanos(time));
        Self {
            until: after(lease),
            ..Self::new(name, Ends::Late { release, enough: after(lease.min(LATEST)) })
        }
    }

    /// Undoes what a late request of an owner may do: as [`repeat`](Self::repeat), but for as long as
    /// one may be on its way. A place in a queue has no lease.
    pub(crate) fn undo(name: &Arc<str>, give_up: Command, lease: Duration) -> Self {
        Self::repeat(name, give_up, lease.max(LATEST))
    }

    /// Sends a command until it is answered, but not for long.
    pub(crate) fn brief(name: &Arc<str>, command: Command) -> Self {
        Self {
            until: clock::now().saturating_add(clock::nanos(HEARTBEAT)),
            ..Self::new(name, Ends::Answered(command))
        }
    }

    /// Sends a numbered request until it is answered.
    pub(crate) fn request(
        name: &Arc<str>,
        command: Command,
        requests: &Arc<Requests>,
        ticket: Ticket,
    ) -> Self {
        Self {
            until: clock::now().saturating_add(clock::nanos(WINDOW)),
            ..Self::new(name, Ends::Applied(command, Arc::clone(requests), ticket))
        }
    }

    /// Sends what somebody owes until nothing is owed any more.
    pub(crate) fn pay(name: &Arc<str>, debtor: Arc<dyn Debtor>) -> Self {
        Self::new(name, Ends::Paid(debtor))
    }

    /// Looks, after a while, whether a lock that was handed on is waited for in vain.
    pub(crate) fn look(site: &Arc<Site>, after: Duration) -> Self {
        let due = clock::now().saturating_add(clock::nanos(after));
        Self { due, ..Self::new(&site.name, Ends::Looked(Arc::clone(site))) }
    }

    /// Due now.
    fn new(name: &Arc<str>, ends: Ends) -> Self {
        Self { name: Arc::clone(name), until: u64::MAX, due: 0, tried: 0, retry: FIRST_RETRY, ends }
    }

    /// What to send now; `None`: nothing any more.
    fn command(&self) -> Option<Command> {
        match &self.ends {
            Ends::Late { release: command, .. }
            | Ends::Answered(command)
            | Ends::Applied(command, ..) => Some(command.clone()),
            Ends::Paid(debtor) => debtor.command(),
            Ends::Looked(site) => site.look_command(),
        }
    }

    /// Whether it is done with this outcome.
    fn is_done(&self, outcome: &Outcome, resent: bool, now: u64, watchdog: &Watchdog) -> bool {
        match &self.ends {
            Ends::Late { enough, .. } => now >= self.until || outcome.is_ok() && now >= *enough,
            Ends::Answered(_) => outcome.is_ok() || now >= self.until,
            Ends::Applied(_, requests, ticket) => {
                let late = matches!(outcome, Ok(reply) if requests.is_late(reply));
                let lost = late || !is_answered(outcome) && now >= self.until;
                if lost {
                    watchdog.log(Level::Error, || format!(
                        "whether permits of {0:?} were given back, or {0:?} was counted down, is not \
                         known: the server did not say so for {WINDOW:?}, and has forgotten it",
                        self.name
                    ));
                }
                let done = lost || is_answered(outcome);
                if done {
                    requests.close(*ticket);
                }
                done
            }
            Ends::Looked(_) => true,
            // It says so when it is asked for the next command.
            Ends::Paid(debtor) => {
                debtor.paid(outcome, resent);
                false
            }
        }
    }

    /// Puts it off, later and later.
    fn back_off(&mut self, now: u64) {
        self.tried = now;
        self.due = now.saturating_add(self.retry).min(self.until);
        self.retry = self.retry.saturating_mul(2).min(LAST_RETRY);
    }

    /// A connection works: what waits need not wait longer. But not at once, or a connection that
    /// breaks again and again would be a reason to send again and again.
    fn hurry(&mut self) {
        self.retry = FIRST_RETRY;
        self.due = self.due.min(self.tried.saturating_add(FIRST_RETRY));
    }
}

fn is_answered(outcome: &Outcome) -> bool {
    matches!(outcome, Ok(reply) if !matches!(reply, Value::ServerError(_)))
}

impl Errand {
    /// Says what becomes of it: the client has ended first.
    pub(super) fn give_up(&self, watchdog: &Watchdog) {
        let name = &self.name;
        let (level, what) = match &self.ends {
            Ends::Late { .. } => (
                Level::Warn,
                "could not be released before the client ended; it ends with its lease, a place in a \
                 queue when it lapses",
            ),
            Ends::Answered(_) | Ends::Looked(_) => return,
            Ends::Applied(..) => (
                Level::Error,
                "what was given back or counted down before the client ended may not have been \
                 applied: look at it",
            ),
            Ends::Paid(_) => (
                Level::Error,
                "dropped permits were not given back before the client ended: add them with \
                 add_permits",
            ),
        };
        watchdog.log(level, || format!("{name:?}: {what}"));
    }
}

impl fmt::Debug for Errand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errand({:?})", self.name)
    }
}

/// The thread's own connection: renewals neither wait for the callers' commands nor delay them.
pub(crate) struct Renewer {
    core: Arc<Core>,
    endpoint: Endpoint,
    link: Option<Link>,
    /// Errands that are not done yet.
    waiting: Vec<Errand>,
    /// When to ask once more for what is held, since the server did not answer.
    ask_again: Option<u64>,
}

impl Renewer {
    pub(crate) fn new(core: Arc<Core>, endpoint: &Endpoint) -> Self {
        // A renewal that takes longer than this is better tried again on a new connection.
        let patience = core.config.watchdog_timeout / 6;
        let patience = patience.max(Duration::from_millis(10)).min(endpoint.response_timeout());
        let endpoint = endpoint.with_response_timeout(patience);
        Self { core, endpoint, link: None, waiting: Vec::new(), ask_again: None }
    }

    /// The thread's whole life: until the client's end and the last job.
    pub(crate) fn run(mut self, jobs: &Receiver<Job>) {
        let mut todo = Todo::default();
        loop {
            jobs.try_iter().for_each(|job| todo.put(job));
            match todo.next() {
                Some(Job::End) => {
                    // What is left after a turn is only who paid, and may owe more.
                    while !self.waiting.is_empty() {
                        self.try_to(|renewer| renewer.run_errands(u64::MAX));
                    }
                    return;
                }
                Some(job) => self.try_to(|renewer| renewer.work(job)),
                None => match jobs.recv_timeout(self.pause()) {
                    Ok(job) => todo.put(job),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                },
            }
            let now = clock::now();
            if self.ask_again.is_some_and(|at| at <= now) {
                self.try_to(|renewer| renewer.work(Job::RenewAll));
            }
            // Together, and behind what is urgent: while the server is away a packet takes its time.
            if !todo.is_urgent() {
                self.try_to(|renewer| renewer.run_errands(now));
            }
            self.core.heartbeat();
        }
    }

    /// How long there is nothing to do by itself.
    fn pause(&self) -> Duration {
        let next = self.waiting.iter().map(|errand| errand.due).chain(self.ask_again).min();
        let pause = next.map(|at| Duration::from_nanos(at.saturating_sub(clock::now())));
        pause.unwrap_or(HEARTBEAT).min(HEARTBEAT)
    }

    /// No job's panic may end the renewals of all others.
    fn try_to(&mut self, work: impl FnOnce(&mut Self)) {
        if catch_unwind(AssertUnwindSafe(|| work(self))).is_err() {
            let line = || "a background job panicked; please report it".to_owned();
            self.core.watchdog.log(Level::Error, line);
            self.link = None;
        }
    }

    fn work(&mut self, job: Job) {
        match job {
            Job::Renew(renewals) => self.renew_each(renewals),
            Job::RenewAll => {
                self.ask_again = None;
                // The old one may lead to a server that is none any more, and answers.
                self.link = None;
                let sites = self.core.sites.all();
                let renewals = sites.iter().filter_map(Site::renew_now);
                self.renew_each(renewals.collect());
            }
            Job::Run(errand) => self.waiting.push(errand),
            Job::Connected => self.waiting.iter_mut().for_each(Errand::hurry),
            Job::Chores(chores) => self.do_chores(chores),
            Job::Look(lanes) => lanes.iter().for_each(|lane| self.look(lane)),
            Job::End => {}
        }
    }

    /// Renews what is due, and asks for what is not: a packet for each lease, the longest first.
    fn renew_each(&mut self, mut renewals: Vec<Renewal>) {
        renewals.sort_by_key(|due| std::cmp::Reverse(due.lease));
        for same in renewals.chunk_by(|one, other| one.lease == other.lease) {
            for packet in same.chunks(NAMES_A_CALL * CALLS_A_PACKET) {
                self.renew(packet);
            }
        }
    }

    fn renew(&mut self, packet: &[Renewal]) {
        let sent_at = clock::now();
        let lease = packet.first().and_then(|due| due.lease);
        let raises = lease.is_some();
        // Zero changes nothing.
        let lease = lease.unwrap_or_default();
        let calls: Vec<_> = packet.chunks(NAMES_A_CALL).collect();
        let commands: Vec<_> = calls
            .iter()
            .map(|call| {
                let holds = call.iter().map(|due| (&*due.site.name, &due.hold.owner));
                script::lock::renew_command(holds, lease)
            })
            .collect();
        let outcomes = self.exchange(&commands);
        let (mut unanswered, mut refused) = (false, false);
        let mut tell = |due: &Renewal, renewed: Result<bool, &Arc<str>>| {
            if raises || renewed == Ok(false) {
                due.site.renewed(&due.hold, sent_at, lease, renewed);
            }
            unanswered |= renewed.is_err();
        };
        for (call, outcome) in calls.iter().zip(outcomes) {
            match script::lock::renewed(outcome) {
                Ok(replies) if replies.len() == call.len() => {
                    for (due, reply) in call.iter().zip(replies) {
                        match reply {
                            Renewed::Done => tell(due, Ok(true)),
                            Renewed::NotHeld => tell(due, Ok(false)),
                            Renewed::Failed(refusal) => {
                                refused = true;
                                tell(due, Err(&refusal.into()));
                            }
                        }
                    }
                }
                Ok(_) => {
                    let cause = "the server answered for other names than were asked for".into();
                    call.iter().for_each(|due| tell(due, Err(&cause)));
                }
                Err(trouble) => {
                    let cause = format!("{:#}", trouble.into_error()).into();
                    call.iter().for_each(|due| tell(due, Err(&cause)));
                }
            }
        }
        if refused {
            // It may lead to a server that became a replica.
            self.link = None;
        }
        // What is renewed is tried again by its own alarm.
        if unanswered && !raises {
            self.ask_again = Some(clock::now().saturating_add(ASK_AGAIN));
        }
    }

    /// Sends the errands that are due, and keeps those that are not done for later.
    fn run_errands(&mut self, now: u64) {
        let due: Vec<_> = self.waiting.extract_if(.., |errand| errand.due <= now).collect();
        let sent = due.into_iter().filter_map(|errand| Some((errand.command()?, errand)));
        let (commands, errands): (Vec<_>, Vec<_>) = sent.unzip();
        let mut errands = errands.into_iter();
        for commands in commands.chunks(NAMES_A_CALL) {
            let (outcomes, resent) = self.exchange_again(commands);
            let now = clock::now();
            // The outcomes first: `zip` asks the other one for its next, and would drop it, before it
            // finds that there are no more of these.
            for (outcome, mut errand) in outcomes.into_iter().zip(errands.by_ref()) {
                if errand.is_done(&outcome, resent, now, &self.core.watchdog) {
                    continue;
                }
                let goes_on = is_answered(&outcome) && matches!(errand.ends, Ends::Paid(_));
                if goes_on {
                    // More may be owed by now, which waits for no back-off and for no other errand.
                    errand.retry = FIRST_RETRY;
                }
                if goes_on || !self.core.is_shut_down() {
                    errand.back_off(now);
                    self.waiting.push(errand);
                } else if !is_answered(&outcome) {
                    errand.give_up(&self.core.watchdog);
                }
            }
        }
    }

    /// Sends what is to be sent regularly, all in one packet.
    fn do_chores(&mut self, chores: Vec<Arc<dyn Chore>>) {
        let due: Vec<_> = chores
            .into_iter()
            .filter_map(|chore| chore.command().map(|command| (chore, command)))
            .collect();
        let (chores, commands): (Vec<_>, Vec<_>) = due.into_iter().unzip();
        let outcomes = self.exchange(&commands);
        for (chore, outcome) in chores.into_iter().zip(outcomes) {
            let pause = chore.done(outcome);
            self.core.watchdog.schedule(&chore, pause);
        }
    }

    fn look(&self, lane: &Arc<Lane>) {
        let patience = PATIENCE + self.core.round_trip.saturating_mul(4);
        // Renewals wait meanwhile. In an outage nothing is opened: what is posted fails, and is sent
        // as an errand.
        let to_open = if self.endpoint.health().is_out() {
            Duration::ZERO
        } else {
            patience.saturating_mul(10).min(self.endpoint.connect_timeout())
        };
        // A leader is at work, which reads, but perhaps not what is posted behind it; or there is more.
        if !lane.look(patience, to_open) && lane.look_after() == Posted::LookAfter {
            self.core.watchdog.look_after(lane);
        }
    }

    /// Sends commands in one packet and reads their replies. Once more on a new connection, if there
    /// was none on the old one: it may have been dead for a while.
    fn exchange(&mut self, commands: &[Command]) -> Vec<Outcome> {
        self.exchange_again(commands).0
    }

    /// As [`exchange`](Self::exchange). Says, too, whether they were sent twice: then the first ones
    /// may have run, whatever became of the second ones.
    fn exchange_again(&mut self, commands: &[Command]) -> (Vec<Outcome>, bool) {
        let outcomes = self.exchange_once(commands);
        match outcomes.first() {
            Some(Err(Failure::Reset(_))) => (self.exchange_once(commands), true),
            _ => (outcomes, false),
        }
    }

    fn exchange_once(&mut self, commands: &[Command]) -> Vec<Outcome> {
        let replies: Vec<_> = commands.iter().map(|_| Arc::new(Reply::default())).collect();
        let batch = commands.iter().zip(&replies).map(|(command, reply)| {
            (command.clone(), Arc::clone(reply) as Arc<dyn crate::connection::Receiver>, true)
        });
        match self.link() {
            Ok(link) => {
                let done = link.send(batch).and_then(|()| link.read_awaited());
                if done.is_err() || link.is_wrong() {
                    self.link = None;
                }
                replies.iter().map(|reply| reply.take()).collect()
            }
            Err(failure) => replies.iter().map(|_| Err(failure.clone())).collect(),
        }
    }

    fn link(&mut self) -> Result<&mut Link, Failure> {
        self.link.take_if(|link| !link.is_alive());
        match &mut self.link {
            Some(link) => Ok(link),
            none => Ok(none.insert(Link::open(&self.endpoint)?)),
        }
    }
}

/// Where one command's outcome is put.
#[derive(Default)]
struct Reply(Mutex<Option<Outcome>>);

impl Reply {
    /// Every command sent has an outcome once its link was read or has failed.
    fn take(&self) -> Outcome {
        self.0.lock().take().unwrap_or(Ok(Value::Nil))
    }
}

impl crate::connection::Receiver for Reply {
    fn receive(&self, outcome: Outcome) {
        *self.0.lock() = Some(outcome);
    }
}

impl Core {
    /// Shows the subscriber that its connection is alive.
    fn heartbeat(&self) {
        if self.heartbeat_due() {
            self.sweep();
            if self.pubsub.wants_heartbeat() {
                self.tell_subscriber();
            }
        }
    }
}
