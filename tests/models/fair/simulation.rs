//! One random history: events in the order of simulated time. Most events run a script. After each
//! event, the rules are checked.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use redis::Value;

use super::clients::{Client, FAIR_WAIT, JITTER, PERIOD, Phase, REDISSON_WAIT, Run, World};
use super::rules::{Blocked, Step, check_blocked, check_heard, check_step};
use super::store::{CHANNEL, DATABASE, KEYS, LOCK, Message, PLACE, State, channel_of, keys};
use crate::simulated::client::Rule;
use crate::simulated::random::Random;
use crate::simulated::rules::Broken;
use crate::simulated::scripts::{Call, Script};
use crate::simulated::specification::Played;
use crate::simulated::store::{Store, is_ours};
use crate::simulated::summary::Summary;

const START: i64 = 1_763_692_800_000;
const HOUR: i64 = 3_600_000;
/// The maximum time until a waiting process has sent a request.
const ASKED_WITHIN: i64 = PERIOD + JITTER + 50;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Arrive(usize),
    Ask(usize),
    /// The waiter sends a request, unless it has sent one since this event was planned.
    AskAfter(usize, u64),
    GiveUp(usize),
    /// A message for the waiter has reached its redlatch client.
    Told(usize, Message),
    /// The waiter's subscription to the channel on which Redisson wakes it is confirmed.
    Listens(usize),
    /// A request arrives from a waiter that has given up.
    Late(usize),
    /// The waiter gives up again, because one of its requests may be late.
    Undo(usize),
    /// The waiter releases the lock.
    Done(usize),
    Renew(usize),
    /// A hold that was granted by a message is old enough to be raised.
    Raise(usize),
    /// A redlatch hold may have reached its end.
    Lost(usize),
    Interrupt(usize),
    Try(usize),
    KeepAlive(usize),
    Stop(usize, i64),
    Die(usize),
    Deaf(usize, i64),
    HearAgain(usize),
    ForceUnlock,
    DeleteKeys,
}

pub(crate) fn play(store: &mut Store, seed: u64, broken: Option<Rule>, traced: bool) -> Played {
    let mut simulation = Simulation::new(store, seed, broken);
    simulation.keeps_trace = traced;
    let outcome = simulation.run();
    let Simulation { summary, trace, .. } = simulation;
    Played { outcome, summary, trace: trace.join("\n") }
}

pub(crate) struct Simulation<'a> {
    pub(crate) store: &'a mut Store,
    pub(crate) random: Random,
    pub(crate) now: i64,
    pub(crate) world: World,
    /// The state after the last step.
    pub(crate) state: State,
    pub(crate) summary: Summary,
    serial: u64,
    events: BinaryHeap<Reverse<(i64, u64, Event)>>,
    blocked: Option<Blocked>,
    /// The time at which a client last ended a hold of another owner.
    pub(crate) forced: i64,
    /// The time since which the lock is free because its lease ended.
    unclaimed: Option<i64>,
    pub(crate) broken: Option<Rule>,
    keeps_trace: bool,
    trace: Vec<String>,
}

impl<'a> Simulation<'a> {
    pub(crate) fn new(store: &'a mut Store, seed: u64, broken: Option<Rule>) -> Self {
        store.clear();
        let mut simulation = Self {
            store,
            random: Random::new(seed),
            now: START,
            world: World::default(),
            state: State::default(),
            summary: Summary::default(),
            serial: 0,
            events: BinaryHeap::new(),
            blocked: None,
            forced: 0,
            unclaimed: None,
            broken,
            keeps_trace: false,
            trace: Vec::new(),
        };
        simulation.plan();
        simulation
    }

    /// Runs until every waiter is served, has left or is dead, and then checks that no keys are
    /// left.
    pub(crate) fn run(&mut self) -> Result<(), Broken> {
        let end = self.now + 100 * HOUR;
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            self.pass_time(time)?;
            if self.now > end {
                return Err(format!("it never ends: {:?}", self.state));
            }
            self.happen(event)?;
        }
        if let Some(waiter) = self.world.waiters.iter().find(|waiter| {
            waiter.phase == Phase::Waiting && !self.world.is_dead(waiter) && !waiter.sleeps
        }) {
            return Err(format!("{} waits for ever: {:?}", waiter.owner, self.state));
        }
        // Only dead waiters can be in the queue now, and the next waiter removes them.
        self.pass_time(self.now + 24 * HOUR)?;
        let last = self.add_last();
        let taken = if self.random.percent(50) {
            self.try_lock(last)?
        } else {
            matches!(self.request(last)?, Value::Array(parts) if parts[0] == Value::Int(1))
        };
        if !taken {
            return Err(format!("the dead keep the last one out: {:?}", self.state));
        }
        let owner = self.world.waiters[last].owner.clone();
        self.send(Some(last), Script::Release, &self.args(&[&owner]))?;
        let State { holders, queue, scores, .. } = &self.state;
        if !(holders.is_empty() && queue.is_empty() && scores.is_empty()) {
            return Err(format!("left behind: {:?}", self.state));
        }
        Ok(())
    }

    pub(crate) fn at(&mut self, time: i64, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((time, self.serial, event)));
    }

    /// Schedules an event after a network delay.
    pub(crate) fn soon(&mut self, event: Event) {
        let at = self.now + self.random.between(1, 15);
        self.at(at, event);
    }

    /// Advances the time to `time`, and ends the leases that end by then.
    fn pass_time(&mut self, time: i64) -> Result<(), Broken> {
        let time = time.max(self.now);
        while let Some(ends) = self.state.lease_ends.filter(|ends| *ends <= time) {
            check_blocked(self.blocked.as_ref(), ends, &self.state, &self.world)?;
            self.now = ends;
            let after = self.store.delete(ends * 1_000, PLACE, &[LOCK]);
            let after = State::of(ends, after);
            self.summary.add("lapses", 1);
            self.note(|| "the lease ends".to_owned());
            self.unclaimed = Some(ends);
            self.step(None, None, &[], after)?;
        }
        self.check_unclaimed(time)?;
        check_blocked(self.blocked.as_ref(), time, &self.state, &self.world)?;
        self.now = time;
        Ok(())
    }

    /// If a hold ends with its lease while a healthy redlatch process waits, the lock must not stay
    /// free after that.
    fn check_unclaimed(&mut self, now: i64) -> Result<(), Broken> {
        let head = self.state.head();
        if !self.state.holders.is_empty() || !head.is_some_and(is_ours) {
            self.unclaimed = None;
        }
        let Some(since) = self.unclaimed else { return Ok(()) };
        let is_asked_for = self.state.queue.iter().any(|id| {
            let waiter = self.world.waiter(id);
            let client = &self.world.clients[waiter.client];
            let begun = waiter.registered.zip(client.well_since);
            client.is_ours
                && waiter.phase == Phase::Waiting
                && begun.is_some_and(|(registered, well)| registered.max(well) <= since)
        });
        if is_asked_for && now - since > ASKED_WITHIN {
            return Err(format!("{head:?} is not granted what nobody claims"));
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<(), Broken> {
        if let Some(client) = self.whose(&event) {
            match self.world.clients[client].state {
                Run::Dead => return Ok(()),
                Run::StoppedUntil(until) if until > self.now => {
                    let late = self.random.between(1, 40);
                    self.at(until + late, event);
                    return Ok(());
                }
                _ => {}
            }
        }
        match event {
            Event::Arrive(w) => self.arrive(w),
            Event::Ask(w) => self.ask(w),
            Event::AskAfter(w, asked) if self.world.waiters[w].asked == asked => self.ask(w),
            Event::AskAfter(..) => Ok(()),
            Event::GiveUp(w) => self.give_up(w),
            Event::Told(w, message) => self.told(w, message),
            Event::Listens(w) => {
                self.listen_to_redisson(w);
                self.soon(Event::Ask(w));
                Ok(())
            }
            Event::Late(w) => self.late(w),
            Event::Undo(w) => self.undo(w),
            Event::Done(w) => self.done(w),
            Event::Renew(w) => self.renew(w),
            Event::Raise(w) => self.raise(w),
            Event::Lost(w) => self.lost(w),
            Event::Interrupt(w) => self.interrupt(w),
            Event::Try(w) => {
                self.name(w);
                self.try_lock(w).map(|_| ())
            }
            Event::KeepAlive(c) => self.keep_alive(c),
            Event::Stop(c, time) => {
                self.summary.add("stops", 1);
                self.note(|| format!("client {c} stops for {time}"));
                self.world.clients[c].state = Run::StoppedUntil(self.now + time);
                self.world.clients[c].well_since = None;
                Ok(())
            }
            Event::Die(c) => {
                self.summary.add("kills", 1);
                self.note(|| format!("client {c} dies"));
                self.world.clients[c].state = Run::Dead;
                self.world.clients[c].well_since = None;
                self.set_deaf(c, true);
                Ok(())
            }
            Event::Deaf(c, time) => {
                self.set_deaf(c, true);
                self.at(self.now + time, Event::HearAgain(c));
                Ok(())
            }
            Event::HearAgain(c) => {
                self.set_deaf(c, false);
                for w in self.world.waiting_of(c) {
                    self.soon(Event::Ask(w));
                }
                Ok(())
            }
            Event::ForceUnlock => {
                self.forced = self.now;
                self.send(None, Script::ForceUnlock, &self.args(&[])).map(|_| ())
            }
            Event::DeleteKeys => {
                self.summary.add("keys deleted", 1);
                self.note(|| "all keys are deleted".to_owned());
                self.forced = self.now;
                for waiter in &mut self.world.waiters {
                    waiter.place_lost |= waiter.rank.is_some() && !waiter.served;
                }
                let after = self.store.delete(self.now * 1_000, PLACE, &KEYS);
                let after = State::of(self.now, after);
                self.state = State::default();
                self.step(None, None, &[], after)
            }
        }
    }

    fn whose(&self, event: &Event) -> Option<usize> {
        match *event {
            Event::Arrive(w)
            | Event::Ask(w)
            | Event::AskAfter(w, _)
            | Event::GiveUp(w)
            | Event::Told(w, _)
            | Event::Listens(w)
            | Event::Undo(w)
            | Event::Done(w)
            | Event::Renew(w)
            | Event::Raise(w)
            | Event::Lost(w)
            | Event::Interrupt(w)
            | Event::Try(w) => Some(self.world.waiters[w].client),
            Event::KeepAlive(c)
            | Event::Stop(c, _)
            | Event::Die(c)
            | Event::Deaf(c, _)
            | Event::HearAgain(c) => Some(c),
            // These events need no living client. For example, a late request is already in flight.
            Event::Late(_) | Event::ForceUnlock | Event::DeleteKeys => None,
        }
    }

    /// Gives an arriving waiter its owner id.
    pub(crate) fn name(&mut self, w: usize) {
        let client = self.world.waiters[w].client;
        let owner = self.world.clients[client].next_owner();
        self.world.by_owner.insert(owner.clone(), w);
        self.world.waiters[w].owner = owner;
    }

    fn add_last(&mut self) -> usize {
        let client = Client::new("last", true, 0);
        self.world.clients.push(client);
        let last = self.add_waiter(self.world.clients.len() - 1, &[(0, 0)]);
        self.name(last);
        last
    }

    /// Returns the arguments: those of all redlatch's scripts, and then this script's own.
    pub(crate) fn args(&self, own: &[&str]) -> Vec<String> {
        let common = [&format!("{FAIR_WAIT},{REDISSON_WAIT}"), CHANNEL, DATABASE];
        common.iter().chain(own).map(|arg| (*arg).to_owned()).collect()
    }

    /// Sets whether a client is deaf: it has lost the connection for messages.
    fn set_deaf(&mut self, client: usize, deaf: bool) {
        self.world.clients[client].deaf = deaf;
        let Client { is_ours, listens, .. } = self.world.clients[client];
        if is_ours && listens {
            let own = channel_of(&format!("{}:0", self.world.clients[client].uuid()));
            self.store.set_subscribers(&own, usize::from(!deaf));
        }
        for w in self.world.waiting_of(client) {
            let waiter = &self.world.waiters[w];
            let owner = &waiter.owner;
            if !is_ours {
                self.store.set_subscribers(&channel_of(owner), usize::from(!deaf));
            }
            if waiter.listens {
                self.store.set_subscribers(&format!("{CHANNEL}{owner}"), usize::from(!deaf));
            }
        }
    }

    /// Subscribes the waiter's client to its own channel.
    pub(crate) fn listen(&mut self, w: usize) {
        let client = self.world.waiters[w].client;
        self.world.clients[client].listens = true;
        if !self.world.client_of(w).deaf {
            self.store.set_subscribers(&channel_of(&self.world.waiters[w].owner), 1);
        }
    }

    fn listen_to_redisson(&mut self, w: usize) {
        self.world.waiters[w].listens = true;
        self.world.waiters[w].asks_soon = true;
        if !self.world.client_of(w).deaf {
            self.store.set_subscribers(&format!("{CHANNEL}{}", self.world.waiters[w].owner), 1);
        }
    }

    pub(crate) fn forget(&mut self, w: usize) {
        self.store.set_subscribers(&format!("{CHANNEL}{}", self.world.waiters[w].owner), 0);
    }

    /// Runs a script for a waiter, or for no waiter.
    pub(crate) fn send(
        &mut self,
        actor: Option<usize>,
        script: Script,
        args: &[String],
    ) -> Result<Value, Broken> {
        self.summary.add("scripts", 1);
        let own = |all: &[&str]| all.iter().map(|key| (*key).to_owned()).collect();
        let call = Call { script, keys: own(keys(script)), args: args.to_vec() };
        let (reply, after) = self.store.run(self.now * 1_000, PLACE, &call);
        let after = State::of(self.now, after);
        self.note(|| format!("{script:?} {args:?} -> {reply:?}"));
        let now = self.now;
        self.note(|| format!("    {}", after.short(now)));
        if let Value::ServerError(error) = &reply {
            return Err(format!("{script:?} {args:?} fails: {error:?}"));
        }
        check_heard(script, &after, &self.world)?;
        for told in &after.told {
            let w = self.world.by_owner[&told.owner];
            let is_ours = self.world.is_ours(w);
            let listens = match (is_ours, told.is_by_ours()) {
                (true, true) => self.world.client_of(w).listens,
                (true, false) => self.world.waiters[w].listens,
                (false, _) => true,
            };
            // Some messages are lost.
            if self.world.client_of(w).deaf || !listens || self.random.percent(3) {
                continue;
            }
            if is_ours && !told.is_by_ours() {
                self.summary.add("told by Redisson", 1);
            }
            self.soon(match &told.what {
                Message::Alone => Event::Ask(w),
                message => Event::Told(w, message.clone()),
            });
        }
        self.step(actor, Some(script), args, after)?;
        Ok(reply)
    }

    pub(crate) fn step(
        &mut self,
        actor: Option<usize>,
        script: Option<Script>,
        args: &[String],
        after: State,
    ) -> Result<(), Broken> {
        let before = std::mem::replace(&mut self.state, after);
        let step = Step { now: self.now, actor, script, args, before: &before, after: &self.state };
        let seen = check_step(&step, &mut self.world, &mut self.serial)?;
        for what in seen {
            self.summary.add(what, 1);
        }
        self.blocked = Blocked::next(self.blocked.take(), self.now, &self.state);
        Ok(())
    }

    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if self.keeps_trace {
            self.trace.push(format!("{:>10} {}", self.now - START, line()));
        }
    }
}
