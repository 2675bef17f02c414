//! One semaphore of one client: its requests to the server, and what comes back.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{Before, PermitGate};
use crate::client::Core;
use crate::connection::{Lane, Outcome, Receiver};
use crate::error::Error;
use crate::hold::clock;
use crate::protocol::{self, SemaphoreKeys};
use crate::script::semaphore::{SemaphoreScripts, released};
use crate::script::{Requests, Ticket, Trouble};
use crate::watchdog::Errand;

/// One semaphore's place in a client.
pub(crate) struct SemaphoreSite {
    pub(super) core: Arc<Core>,
    pub(super) name: Arc<str>,
    pub(super) lane: Arc<Lane>,
    pub(super) channel: Arc<str>,
    requests_key: String,
    pub(super) requests: Arc<Requests>,
    pub(crate) gate: PermitGate,
}

/// How permits are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Giving {
    /// Written, not waited for; sent again if it fails.
    Posted,
    /// Waited for; sent again only if it may have been applied.
    Awaited,
    /// Waited for, and sent again if it fails: nobody has the permits any more.
    AwaitedForGood,
}

/// Past so many unanswered releases, whoever drops a permit waits: the server remembers each.
const MOST_OPEN: usize = 256;

impl SemaphoreSite {
    /// The site of a name: one for all its handles.
    pub(crate) fn of(core: &Arc<Core>, name: &str) -> Arc<Self> {
        core.semaphores.get(name, |name| {
            // Two names may share it, as `x` and `{x}` do: then they share the numbers as well.
            let requests_key = protocol::requests(&name, core.id.as_str());
            Self {
                lane: core.lane(&name),
                channel: SemaphoreKeys::channel(&name).into(),
                requests: core.requests.get(&requests_key, |_| Requests::default()),
                requests_key,
                gate: PermitGate::new(core.round_trip),
                core: Arc::clone(core),
                name,
            }
        })
    }

    pub(super) fn scripts(&self) -> SemaphoreScripts<'_> {
        SemaphoreScripts {
            lane: &self.lane,
            key: &self.name,
            channel: &self.channel,
            requests: &self.requests_key,
        }
    }

    pub(super) fn open(&self) -> Ticket {
        self.requests.open(|| self.core.id.next_number())
    }

    pub(super) fn error(&self, trouble: Trouble) -> Error {
        let state = match trouble {
            Trouble::Unknown(_) => "whether it was applied is not known",
            Trouble::Refused(_) | Trouble::Unsent(_) => "nothing was changed",
        };
        trouble.into_error().of(&self.name).now(state)
    }

    /// Asks the server for permits, once.
    pub(super) fn ask(&self, permits: u32) -> Result<bool, Error> {
        let arrivals = self.gate.arrivals();
        let ticket = self.open();
        let trouble = match self.scripts().try_acquire(ticket, permits) {
            Ok(granted) => {
                self.requests.close(ticket);
                if granted {
                    self.gate.granted();
                }
                return Ok(granted);
            }
            Err(trouble) => trouble,
        };
        let alone = matches!(trouble, Trouble::Refused(_));
        let state = if let Trouble::Unknown(_) = trouble {
            let command = self.scripts().abandon(ticket, permits);
            self.run(command, ticket);
            "no permit is taken; what the server may have given is given back in the background"
        } else {
            self.requests.close(ticket);
            "no permit was taken"
        };
        let error = trouble.into_error().of(&self.name).now(state);
        if !alone {
            self.gate.fail_before(arrivals, &error);
        }
        Err(error)
    }

    /// Passes permits on within the process, and gives the rest back to the server.
    pub(super) fn give_back(self: &Arc<Self>, permits: u32, giving: Giving) -> Result<(), Error> {
        let rest = self.gate.pass(permits);
        if rest == 0 {
            return Ok(());
        }
        let ticket = self.open();
        let release = Release { site: Arc::clone(self), ticket, permits: rest };
        if giving == Giving::Posted && self.requests.count() < MOST_OPEN {
            let command = self.scripts().release_command(ticket, rest, false);
            self.core.post(&self.lane, command, Arc::new(release));
            return Ok(());
        }
        let outcome = self.scripts().release(ticket, rest, false);
        // A part was passed on: the caller must not give all of it back again.
        release.settle(outcome, giving != Giving::Awaited || rest < permits)
    }

    /// How long the leader stays away from the race after it was woken.
    pub(super) fn stay_away(&self, waited: Duration) -> Duration {
        let rest = self.rest_of_yield();
        if rest.is_zero() { self.gate.pause(self.own_listeners(), waited) } else { rest }
    }

    fn own_listeners(&self) -> i64 {
        i64::from(self.core.pubsub.listening(&self.channel).is_some())
    }

    pub(super) fn is_turn_over(&self) -> bool {
        let now = clock::now();
        self.gate.with_turn(|turn| matches!(turn.before(now), Before::Yield(_)))
    }

    /// After the process's turn, if others listen: for how long they go first.
    pub(super) fn rest_of_yield(&self) -> Duration {
        let now = clock::now();
        let own = self.own_listeners();
        self.gate.with_turn(|turn| match turn.before(now) {
            Before::Yield(last) => {
                let others = turn.others(own).unwrap_or(1);
                let stays = others > 0;
                turn.end(others);
                turn.yielded(stays);
                if stays { turn.rest(last.at, now) } else { Duration::ZERO }
            }
            Before::Ask => Duration::ZERO,
        })
    }

    fn run(&self, command: crate::connection::Command, ticket: Ticket) {
        let errand = Errand::request(&self.name, command, &self.requests, ticket);
        self.core.watchdog.run_errand(errand);
    }
}

impl Drop for SemaphoreSite {
    fn drop(&mut self) {
        self.core.semaphores.forget(&self.name);
    }
}

/// The right to ask the server first. Handed on when dropped, on every path.
pub(super) struct Baton<'a> {
    pub(super) site: &'a Arc<SemaphoreSite>,
}

impl Drop for Baton<'_> {
    fn drop(&mut self) {
        // It got permits from the server, or gave up, and was passed some at the same moment.
        let left = self.site.gate.hand_on();
        if left > 0 {
            let _ = self.site.give_back(left, Giving::Posted);
        }
    }
}

/// Permits on their way back.
struct Release {
    site: Arc<SemaphoreSite>,
    ticket: Ticket,
    permits: u32,
}

impl Release {
    fn settle(&self, outcome: Result<Option<i64>, Trouble>, for_good: bool) -> Result<(), Error> {
        let site = &self.site;
        let trouble = match outcome {
            Ok(heard) => {
                site.requests.close(self.ticket);
                let heard = heard.unwrap_or(0);
                site.gate.with_turn(|turn| turn.heard(heard, clock::now()));
                return Ok(());
            }
            Err(trouble) => trouble,
        };
        let state = if for_good || matches!(trouble, Trouble::Unknown(_)) {
            site.run(site.scripts().release_command(self.ticket, self.permits, true), self.ticket);
            "the permits are given back in the background, once: do not release them again"
        } else {
            site.requests.close(self.ticket);
            "no permit was given back"
        };
        Err(trouble.into_error().of(&site.name).now(state))
    }
}

impl Receiver for Release {
    fn receive(&self, outcome: Outcome) {
        if let Err(error) = self.settle(released(outcome), true) {
            self.site.core.watchdog.tell(error);
        }
    }
}
