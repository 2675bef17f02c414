//! How threads wait for permits, whatever a semaphore's permits are: who of this process is next,
//! and for how long the process keeps them.
//!
//! While permits are free every thread asks by itself. After a refusal threads queue at the
//! [`gate`](PermitGate), and the first one leads: it asks for itself and those behind it, in one
//! request, and waits for other processes in the loop of `acquire`.

mod gate;
mod turn;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{Attempt, Contender, Signal, Try, Wait};
use crate::error::Error;
use crate::node::Core;
use crate::sync::{Thread, clock};

use self::gate::{PermitEntered, PermitWaiter, first_unmet};
use self::turn::Before;

pub(crate) use self::gate::PermitGate;

/// What a semaphore gives: so many permits, or some of which each is known by itself.
pub(crate) trait Permits: Sized + fmt::Debug {
    /// What one thread needs.
    type Need: Copy + fmt::Debug;

    /// So many can be asked for in one request.
    const MOST: usize;

    /// How many permits a need is.
    fn needed(need: Self::Need) -> u32;

    /// Whether one request may be for both.
    fn go_together(one: Self::Need, other: Self::Need) -> bool;

    /// How many there are.
    fn number(&self) -> u32;

    /// Takes what covers a need, if there is so much that suits it.
    fn take(&mut self, need: Self::Need) -> Option<Self>;
}

/// A number of permits, one like the other.
impl Permits for u32 {
    type Need = Self;

    const MOST: usize = Self::MAX as usize;

    fn needed(need: Self) -> u32 {
        need
    }

    fn go_together(_: Self, _: Self) -> bool {
        true
    }

    fn number(&self) -> u32 {
        *self
    }

    fn take(&mut self, need: Self) -> Option<Self> {
        *self = self.checked_sub(need)?;
        Some(need)
    }
}

/// One semaphore in one client, as those see it who wait for its permits.
pub(crate) trait Source: Sized {
    type Permits: Permits;

    fn core(&self) -> &Arc<Core>;

    fn name(&self) -> &Arc<str>;

    /// Where it is told that permits were given back.
    fn channel(&self) -> &Arc<str>;

    fn gate(&self) -> &PermitGate<Self::Permits>;

    /// Asks the server once: for the first of these needs, each as a whole, as far as there are
    /// enough for one of so many `clients`.
    fn request(
        self: &Arc<Self>,
        needs: &[NeedOf<Self>],
        clients: u64,
    ) -> Result<Reply<Self::Permits>, RequestFailed>;

    /// Gives back to the server what nobody here waits for. Does not wait; what fails is logged, and
    /// sent again.
    fn give_to_server(self: &Arc<Self>, permits: Self::Permits);

    /// Passes permits on within the process, and gives the rest back to the server.
    fn give_back(self: &Arc<Self>, permits: Self::Permits) {
        let rest = self.gate().pass(permits);
        if rest.number() > 0 {
            self.give_to_server(rest);
        }
    }
}

type NeedOf<S> = <<S as Source>::Permits as Permits>::Need;

/// What the server answered.
#[derive(Debug)]
pub(crate) enum Reply<P> {
    /// What some of the first needs are together.
    Given(P),
    /// Not enough for the first. Some more may be free after so long though no message comes.
    Refused(Option<Duration>),
}

/// There is no answer.
#[derive(Debug)]
pub(crate) struct RequestFailed {
    pub(crate) error: Error,
    /// It says nothing of other threads' requests.
    pub(crate) alone: bool,
}

/// Asks by itself while permits are free; after a refusal stands in the process's queue, and leads
/// when first. `None`: the wait was over first.
pub(crate) fn take<S: Source>(
    site: &Arc<S>,
    need: NeedOf<S>,
    wait: Wait<'_>,
) -> Result<Option<S::Permits>, Error> {
    let gate = site.gate();
    let thread = Thread::current();
    let mut entered = gate.enter(&thread, need, wait.blocks());
    // Who finds the gate open is first in line, and after the process's turn it stays away like
    // any other: its release and its next request, one behind the other, would win every race.
    // Not where nobody else listens: behind a gate that is closed each thread asks alone.
    let mut rest = Duration::ZERO;
    if matches!(entered, PermitEntered::Open) && wait.blocks() && is_turn_over(&**site) {
        rest = rest_of_yield(&**site);
        if !rest.is_zero() {
            entered = gate.refused(&thread, need);
        }
    }
    let asked = matches!(entered, PermitEntered::Open);
    if asked {
        if let Asked { own: Some(own), .. } = ask(site, &[need], 1)? {
            return Ok(Some(own));
        }
        if wait.is_over() {
            return Ok(None);
        }
        entered = gate.refused(&thread, need);
    }
    match entered {
        PermitEntered::Open | PermitEntered::Leads => {}
        PermitEntered::Occupied => return Ok(None),
        PermitEntered::Queued(waiter) => match stand_in_queue(site, &waiter, &wait)? {
            Some(Signal::Granted(granted)) => return Ok(Some(granted)),
            Some(Signal::Failed(error)) => return Err(error),
            Some(Signal::Baton) => {}
            None => return Ok(None),
        },
    }
    lead(site, &thread, need, wait, asked, rest)
}

fn stand_in_queue<S: Source>(
    site: &Arc<S>,
    waiter: &Arc<PermitWaiter<S::Permits>>,
    wait: &Wait<'_>,
) -> Result<Option<Signal<S::Permits>>, Error> {
    let give_up = |waiter: &Arc<PermitWaiter<S::Permits>>| site.gate().give_up(waiter);
    waiter.stand(site.core(), site.name(), wait, give_up, || {})
}

/// Asks Redis, and waits for other processes, or for what this one's threads give back.
/// `asked`: the server has just refused the thread. `rest`: how long it stays away first, if
/// that is known already.
fn lead<S: Source>(
    site: &Arc<S>,
    thread: &Arc<Thread>,
    need: NeedOf<S>,
    wait: Wait<'_>,
    asked: bool,
    rest: Duration,
) -> Result<Option<S::Permits>, Error> {
    let gate = site.gate();
    let _baton = Baton { site };
    let contender = Contender {
        core: site.core(),
        name: site.name(),
        channel: site.channel(),
        thread,
        wait,
        news: &|| gate.is_given(),
    };
    // After the process's turn others go first, unless somebody here gives permits back.
    let rest = if rest.is_zero() { rest_of_yield(&**site) } else { rest };
    if !rest.is_zero() {
        contender.sleep(None, wait.sleep_until(rest), |_| false)?;
    }
    contender.acquire(
        |Attempt { tries, listening }| {
            if let Some(given) = gate.take_given() {
                return Ok(Try::Granted(given));
            }
            let version = listening.map(|(_, version)| version);
            if version.is_none() && asked {
                return Ok(Try::Busy(None));
            }
            if let Some(left) = gate.refusal(version, need) {
                return Ok(Try::Busy(left));
            }
            let needs = gate.needs(need);
            let clients = clients(&**site);
            let Asked { own, number, left } = ask(site, &needs, clients)?;
            // What is left for other processes was not refused: they may not want it.
            let unmet =
                first_unmet::<S::Permits>(&needs, number).filter(|_| number == 0 || clients == 1);
            if let Some((version, need)) = version.zip(unmet) {
                gate.refused_at(version, need, left);
            }
            if let Some(own) = own {
                gate.with_backoff(|backoff| backoff.won());
                return Ok(Try::Granted(own));
            }
            if tries > 1 {
                gate.with_backoff(|backoff| backoff.lost());
            }
            Ok(Try::Busy(left))
        },
        |waited| stay_away(&**site, waited),
    )
}

/// What became of a request.
struct Asked<P> {
    /// What the asking thread has now.
    own: Option<P>,
    /// How many permits the server gave for it and those behind it. They have theirs, and what
    /// nobody waits for any more is on its way back.
    number: u32,
    left: Option<Duration>,
}

/// Asks the server once: for the thread's own need, which is the first, and those of the others
/// behind it.
fn ask<S: Source>(
    site: &Arc<S>,
    needs: &[NeedOf<S>],
    clients: u64,
) -> Result<Asked<S::Permits>, Error> {
    let gate = site.gate();
    let arrivals = gate.arrivals();
    let mut given = match site.request(needs, clients) {
        Ok(Reply::Given(given)) => given,
        Ok(Reply::Refused(left)) => return Ok(Asked { own: None, number: 0, left }),
        Err(RequestFailed { error, alone }) => {
            if !alone {
                gate.fail_before(arrivals, &error);
            }
            return Err(error);
        }
    };
    let number = given.number();
    let own = needs.first().and_then(|own| given.take(*own));
    let rest = gate.granted(given);
    if rest.number() > 0 {
        site.give_to_server(rest);
    }
    Ok(Asked { own, number, left: None })
}

/// How long the leader stays away from the race after it was woken.
fn stay_away<S: Source>(site: &S, waited: Duration) -> Duration {
    let rest = rest_of_yield(site);
    if rest.is_zero() { site.gate().pause(own_listeners(site), waited) } else { rest }
}

fn own_listeners<S: Source>(site: &S) -> i64 {
    i64::from(site.core().pubsub.listening(site.channel()).is_some())
}

fn is_turn_over<S: Source>(site: &S) -> bool {
    let now = clock::now();
    site.gate().with_turn(|turn| matches!(turn.before(now), Before::Yield(_)))
}

/// How many processes want permits, as far as the answers to releases tell. Where they tell
/// nothing, there may be one besides this.
fn clients<S: Source>(site: &S) -> u64 {
    let own = own_listeners(site);
    site.gate().with_turn(|turn| match turn.others(own) {
        Some(others) => others.saturating_add(1),
        None if turn.is_alone(own) => 1,
        None => 2,
    })
}

/// After the process's turn, if others listen: for how long they go first.
fn rest_of_yield<S: Source>(site: &S) -> Duration {
    let now = clock::now();
    let own = own_listeners(site);
    site.gate().with_turn(|turn| match turn.before(now) {
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

/// The right to ask the server first. Handed on when dropped, on every path.
struct Baton<'a, S: Source> {
    site: &'a Arc<S>,
}

impl<S: Source> Drop for Baton<'_, S> {
    fn drop(&mut self) {
        // It got permits from the server, or gave up, and was passed some at the same moment.
        if let Some(left) = self.site.gate().hand_on() {
            self.site.give_back(left);
        }
    }
}
