//! Commands that are sent in the background until they are done.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use log::Level;
use redis::Value;

use super::Watchdog;
use crate::connection::{Command, Outcome};
use crate::script::{Requests, Ticket, WINDOW};
use crate::sync::clock;

const FIRST_RETRY: u64 = 50_000_000;
const LAST_RETRY: u64 = 10_000_000_000;
/// A request that is this late is not on its way any more, unless the server has stood still.
const LATEST: Duration = Duration::from_secs(600);
/// A command that only matters now is tried for so long.
const BRIEF: Duration = Duration::from_secs(3);

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
            until: clock::now().saturating_add(clock::nanos(BRIEF)),
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

    /// Due now.
    fn new(name: &Arc<str>, ends: Ends) -> Self {
        Self { name: Arc::clone(name), until: u64::MAX, due: 0, tried: 0, retry: FIRST_RETRY, ends }
    }

    pub(crate) fn due(&self) -> u64 {
        self.due
    }

    /// What to send now; `None`: nothing any more.
    pub(crate) fn command(&self) -> Option<Command> {
        match &self.ends {
            Ends::Late { release: command, .. }
            | Ends::Answered(command)
            | Ends::Applied(command, ..) => Some(command.clone()),
            Ends::Paid(debtor) => debtor.command(),
        }
    }

    /// What is left of it after this outcome, to be sent again. `ended`: the client has, and only what
    /// was answered goes on.
    pub(crate) fn after(
        mut self,
        outcome: &Outcome,
        resent: bool,
        now: u64,
        watchdog: &Watchdog,
        ended: bool,
    ) -> Option<Self> {
        if self.is_done(outcome, resent, now, watchdog) {
            return None;
        }
        let goes_on = is_answered(outcome) && matches!(self.ends, Ends::Paid(_));
        if goes_on {
            // More may be owed by now, which waits for no back-off and for no other errand.
            self.retry = FIRST_RETRY;
        }
        if goes_on || !ended {
            self.back_off(now);
            return Some(self);
        }
        if !is_answered(outcome) {
            self.give_up(watchdog);
        }
        None
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
    pub(crate) fn hurry(&mut self) {
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
            Ends::Answered(_) => return,
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
