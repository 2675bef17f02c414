//! The clients' actions. redlatch's clients act as the library does, and the other clients act as
//! Redisson does.

use std::collections::VecDeque;

use redis::Value;

use super::clients::{
    DRIFT, FAIR_WAIT, Hold, JITTER, PERIOD, Phase, RAISE, RAISE_AGAIN, SILENT, TURN, WATCHDOG,
};
use super::rules::check_order;
use super::simulation::{Event, Simulation};
use super::store::{CHANNEL, Grant, LOCK, Message, PLACE, State, numbers};
use crate::simulated::client::Rule;
use crate::simulated::rules::Broken;
use crate::simulated::scripts::Script;

/// The minimum and the maximum time until a client notices a lost reply.
const NO_ANSWER: (i64, i64) = (300, 2_000);
/// The pause between two requests of a Redisson client. A real client may have no pause.
const REDISSON_PAUSE: i64 = 200;

impl Simulation<'_> {
    // ---- both kinds -----------------------------------------------------------------------

    pub(crate) fn arrive(&mut self, w: usize) -> Result<(), Broken> {
        if self.world.waiters[w].is_company || self.world.waiters[w].phase == Phase::Gone {
            return Ok(());
        }
        if self.world.waiters[w].owner.is_empty() {
            self.come(w);
            if self.world.is_ours(w) && self.random.percent(40) {
                self.bring_others(w);
            }
        }
        let company = self.world.waiters[w].company.clone();
        self.set_asking(w, false);
        if !self.world.is_ours(w) {
            self.world.waiters[w].phase = Phase::Waiting;
            self.ask_redisson(w)?;
            return self.listen_and_ask_again(w);
        }
        // Subscribe the client before the waiter's first request, because the reply may take long.
        let client = self.world.waiters[w].client;
        if !self.world.clients[client].keeps_alive {
            self.world.clients[client].keeps_alive = true;
            self.at(self.now + PERIOD, Event::KeepAlive(client));
        }
        let subscribed_before = self.world.clients[client].listens || self.random.percent(50);
        if subscribed_before {
            self.listen(w);
        }
        if self.random.percent(4) {
            // The reply is lost, and the request is sent again.
            self.request(w)?;
            self.set_asking(w, true);
            let at = self.now + self.random.one_of(&[NO_ANSWER]);
            self.at(at, Event::Arrive(w));
            return Ok(());
        }
        self.ask(w)?;
        if subscribed_before {
            return Ok(());
        }
        for w in std::iter::once(w).chain(company) {
            self.listen_and_ask_again(w)?;
        }
        Ok(())
    }

    /// The waiter arrives, and has not sent a request yet.
    fn come(&mut self, w: usize) {
        self.name(w);
        self.world.waiters[w].phase = Phase::Waiting;
        if let Some(wait) = self.world.waiters[w].deadline {
            self.at(self.now + wait, Event::GiveUp(w));
        }
        if !self.world.is_ours(w) && self.random.percent(6) {
            let at = self.now + self.random.between(0, 60_000);
            self.at(at, Event::Interrupt(w));
        }
    }

    /// Adds other waiters of the same client to this waiter's request, earlier than planned.
    fn bring_others(&mut self, w: usize) {
        for other in 0..self.world.waiters.len() {
            let waiter = &self.world.waiters[other];
            let comes = waiter.client == self.world.waiters[w].client
                && waiter.phase == Phase::Coming
                && waiter.owner.is_empty()
                && !waiter.tries;
            if comes && self.random.percent(50) {
                self.come(other);
                self.summary.add("came together", 1);
                self.world.waiters[other].is_company = true;
                self.world.waiters[w].company.push(other);
            }
        }
    }

    fn set_asking(&mut self, w: usize, is_asking: bool) {
        let company = self.world.waiters[w].company.clone();
        for w in std::iter::once(w).chain(company) {
            self.world.waiters[w].is_asking = is_asking;
        }
    }

    fn listen_and_ask_again(&mut self, w: usize) -> Result<(), Broken> {
        if self.world.waiters[w].phase == Phase::Waiting {
            self.listen(w);
            self.soon(Event::Ask(w));
        }
        Ok(())
    }

    pub(crate) fn ask(&mut self, w: usize) -> Result<(), Broken> {
        if self.world.waiters[w].phase != Phase::Waiting || self.world.waiters[w].is_asking {
            return Ok(());
        }
        self.world.waiters[w].asked += 1;
        self.world.waiters[w].asks_soon = false;
        if self.world.is_ours(w) { self.ask_ours(w) } else { self.ask_redisson(w) }
    }

    /// Gives the waiter a hold. `provisional` is the end of a hold that was granted by a message.
    fn hold(&mut self, w: usize, followers: VecDeque<usize>, provisional: Option<i64>) {
        let waiter = &self.world.waiters[w];
        self.world.holds.push(Hold {
            owner: waiter.owner.clone(),
            begun: self.now,
            ends: provisional.unwrap_or(self.now + waiter.lease),
            is_provisional: provisional.is_some(),
            followers,
            passed: Vec::new(),
        });
        if provisional.is_some() {
            self.at(self.now + RAISE, Event::Raise(w));
        }
        self.work(w, self.world.holds.len() - 1);
    }

    fn work(&mut self, w: usize, hold: usize) {
        let waiter = &mut self.world.waiters[w];
        waiter.phase = Phase::Holding(hold);
        let (done, watched) = (self.now + waiter.work, waiter.watched);
        self.at(done, Event::Done(w));
        if watched {
            self.at(self.now + WATCHDOG / 3, Event::Renew(w));
        }
        if self.world.is_ours(w) {
            self.at(self.world.holds[hold].ends, Event::Lost(w));
        }
    }

    pub(crate) fn renew(&mut self, w: usize) -> Result<(), Broken> {
        let Phase::Holding(hold) = self.world.waiters[w].phase else {
            return Ok(());
        };
        if self.state.holders != [self.world.holds[hold].owner.as_str()] {
            return Ok(());
        }
        self.world.holds[hold].ends = self.now + WATCHDOG;
        self.world.holds[hold].is_provisional = false;
        let after = self.store.expire(self.now * 1_000, PLACE, LOCK, WATCHDOG);
        let after = State::of(self.now, after);
        self.at(self.now + WATCHDOG / 3, Event::Renew(w));
        self.step(None, None, &[], after)
    }

    /// Replaces the short lease of a grant by message by the full lease, counted from the grant.
    pub(crate) fn raise(&mut self, w: usize) -> Result<(), Broken> {
        let Phase::Holding(number) = self.world.waiters[w].phase else {
            return Ok(());
        };
        let waiter = &self.world.waiters[w];
        let hold = &mut self.world.holds[number];
        if !hold.is_provisional || self.state.holders != [hold.owner.as_str()] {
            return Ok(());
        }
        let ends = hold.begun + waiter.lease;
        let is_late = self.now >= ends;
        if self.random.percent(20) || is_late {
            // The renewal that raises the lease gets no reply, so the client repeats it.
            self.at(self.now + RAISE_AGAIN, Event::Raise(w));
            return Ok(());
        }
        self.summary.add("raises", 1);
        hold.is_provisional = false;
        if ends <= hold.ends {
            return Ok(());
        }
        hold.ends = ends;
        let after = self.store.expire(self.now * 1_000, PLACE, LOCK, ends - self.now);
        let after = State::of(self.now, after);
        self.step(None, None, &[], after)
    }

    pub(crate) fn done(&mut self, w: usize) -> Result<(), Broken> {
        let Phase::Holding(hold) = self.world.waiters[w].phase else {
            return Ok(());
        };
        self.world.waiters[w].phase = Phase::Gone;
        self.forget(w);
        if self.world.is_ours(w) { self.pass_or_release(w, hold) } else { self.unlock_redisson(w) }
    }

    pub(crate) fn give_up(&mut self, w: usize) -> Result<(), Broken> {
        if self.world.waiters[w].phase != Phase::Waiting {
            return Ok(());
        }
        if self.world.waiters[w].is_asking {
            self.soon(Event::GiveUp(w));
            return Ok(());
        }
        self.summary.add("gave up", 1);
        self.world.waiters[w].phase = Phase::Gone;
        self.forget(w);
        let owner = self.world.waiters[w].owner.clone();
        if !self.world.is_ours(w) {
            let args = [owner, self.world.waiters[w].wait.to_string()];
            return self.send(Some(w), Script::RedissonGiveUp, &args).map(|_| ());
        }
        if self.leave(w, false)? == Value::Int(2) {
            self.summary.add("gave up when granted", 1);
        }
        if self.random.percent(15) {
            let (late, again) = (self.random.between(1, 2_000), self.random.between(1, 20_000));
            self.at(self.now + late, Event::Late(w));
            self.at(self.now + again, Event::Undo(w));
        }
        Ok(())
    }

    // ---- redlatch's clients ---------------------------------------------------------------

    /// Sends a request of a queued owner, at first only for itself. If the owner has lost its
    /// entry, sends a request for all waiters of its client.
    pub(crate) fn request(&mut self, w: usize) -> Result<Value, Broken> {
        if self.world.waiters[w].registered.is_some() {
            let reply = self.request_as(w, "2")?;
            if !matches!(&reply, Value::Array(parts) if parts[0] == Value::Int(3)) {
                return Ok(reply);
            }
            let reply = self.request_as(w, "1")?;
            if !matches!(&reply, Value::Array(parts) if parts.get(3) == Some(&Value::Int(1))) {
                return Ok(reply);
            }
            // The owners that got entries by this request do not know yet that Redisson may wake
            // them.
            for other in self.world.waiting_of(self.world.waiters[w].client) {
                if other != w && self.world.waiters[other].registered.is_some() {
                    self.world.waiters[other].asks_soon = true;
                    self.soon(Event::Ask(other));
                }
            }
            return Ok(reply);
        }
        let client = self.world.waiters[w].client;
        let mut others = self.world.waiting_of(client).into_iter();
        let has_queued = others.any(|other| self.world.waiters[other].registered.is_some());
        let just_come = !self.world.clients[client].is_heard() && !has_queued;
        self.request_as(w, if just_come { "3" } else { "0" })
    }

    fn request_as(&mut self, w: usize, was_queued: &str) -> Result<Value, Broken> {
        let waiter = &self.world.waiters[w];
        let mut args = self.args(&[&waiter.lease.to_string(), &waiter.owner, was_queued]);
        if was_queued == "1" {
            let mut others = self.world.waiting_of(waiter.client);
            others.retain(|other| *other != w && self.world.waiters[*other].registered.is_some());
            args.extend(others.into_iter().map(|other| self.world.waiters[other].owner.clone()));
        } else if matches!(was_queued, "0" | "3") {
            let owners = waiter.company.iter().map(|w| self.world.waiters[*w].owner.clone());
            args.extend(owners);
        }
        self.send(Some(w), Script::Acquire, &args)
    }

    fn ask_ours(&mut self, w: usize) -> Result<(), Broken> {
        let reply = self.request(w)?;
        let waiter = &self.world.waiters[w];
        if waiter.registered.is_some() && self.random.percent(8) {
            // The reply is lost. The waiter sends another request after some time, unless its wait
            // ends before.
            if waiter.deadline.is_some() && self.random.percent(50) {
                self.soon(Event::GiveUp(w));
            }
            let at = self.now + self.random.one_of(&[NO_ANSWER]);
            self.at(at, Event::Ask(w));
            self.world.waiters[w].asks_soon = true;
            return Ok(());
        }
        let Value::Array(parts) = reply else {
            return Err(format!("acquire answers {reply:?}"));
        };
        let company = match waiter.registered {
            None => waiter.company.clone(),
            Some(_) => Vec::new(),
        };
        match parts[..] {
            [Value::Int(taken @ (1 | 2)), ref followers, Value::Int(server)] => {
                let uuid = self.world.client_of(w).uuid();
                let behind = text(followers);
                let owners = numbers(&behind).map(|number| format!("{uuid}:{number}"));
                let followers = self.find(owners)?;
                let lease = self.world.waiters[w].lease;
                for (at, other) in company.into_iter().enumerate() {
                    self.queued(other, server, false)?;
                    let asked = self.world.waiters[other].asked;
                    if taken == 2 {
                        self.soon(Event::Ask(other));
                    } else if at == 0 {
                        self.at(self.now + lease + 1, Event::AskAfter(other, asked));
                    }
                }
                self.hold(w, followers, None);
            }
            [
                Value::Int(0),
                Value::Int(server),
                Value::Int(again),
                Value::Int(redisson),
                Value::Int(_),
            ] => {
                let owner = &waiter.owner;
                let is_next = self.state.head() == Some(owner) && !self.state.holders.is_empty();
                if is_next && again < 0 {
                    return Err(format!("{owner} is not told when the lease ends"));
                }
                if again >= 0 {
                    let asked = waiter.asked;
                    self.at(self.now + again + 1, Event::AskAfter(w, asked));
                }
                for w in std::iter::once(w).chain(company) {
                    self.queued(w, server, redisson == 1)?;
                }
            }
            _ => return Err(format!("acquire answers {parts:?}")),
        }
        Ok(())
    }

    /// Handles the reply that the waiter is in the queue. `server` is the server's time of the
    /// reply.
    fn queued(&mut self, w: usize, server: i64, by_redisson: bool) -> Result<(), Broken> {
        let now = self.now;
        let waiter = &mut self.world.waiters[w];
        waiter.refused = server;
        waiter.by_redisson |= by_redisson;
        waiter.registered.get_or_insert(now);
        if by_redisson && !waiter.listens {
            waiter.asks_soon = true;
            self.soon(Event::Listens(w));
        }
        let owner = &self.world.waiters[w].owner;
        if self.state.place(owner).is_none() && !self.state.holders.contains(owner) {
            return Err(format!("{owner} is told that it stands in the queue"));
        }
        Ok(())
    }

    fn find(&self, owners: impl Iterator<Item = String>) -> Result<VecDeque<usize>, Broken> {
        let find = |owner: String| {
            let found = self.world.by_owner.get(&owner).copied();
            found.ok_or_else(|| format!("{owner} is nobody"))
        };
        owners.map(find).collect()
    }

    fn leave(&mut self, w: usize, only_place: bool) -> Result<Value, Broken> {
        let owner = self.world.waiters[w].owner.clone();
        let only_place = u8::from(only_place).to_string();
        self.send(Some(w), Script::GiveUp, &self.args(&[&owner, &only_place]))
    }

    /// A message to the waiter's owner has reached its client.
    pub(crate) fn told(&mut self, w: usize, message: Message) -> Result<(), Broken> {
        if self.world.waiters[w].is_asking {
            self.soon(Event::Told(w, message));
            return Ok(());
        }
        match (self.world.waiters[w].phase, message) {
            (Phase::Waiting, Message::Grant(grant)) => self.granted(w, &grant),
            (Phase::Waiting, _) => self.ask(w),
            // The reply came before the message.
            (Phase::Holding(hold), Message::Grant(_))
                if self.world.holds[hold].owner == self.world.waiters[w].owner =>
            {
                Ok(())
            }
            // No thread waits under this owner.
            (_, Message::Grant(_)) => {
                if self.leave(w, false)? == Value::Int(2) {
                    self.summary.add("given back", 1);
                }
                Ok(())
            }
            _ => self.leave(w, true).map(|_| ()),
        }
    }

    fn granted(&mut self, w: usize, grant: &Grant) -> Result<(), Broken> {
        let ends = grant.now + grant.lease - DRIFT;
        let is_late = self.now >= ends || self.world.waiters[w].refused > grant.now;
        if is_late && self.broken != Some(Rule::Deadline) {
            self.summary.add("read late", 1);
            return self.ask(w);
        }
        let owner = &self.world.waiters[w].owner;
        if self.state.holders != [owner.as_str()] && self.forced < grant.now {
            let holders = &self.state.holders;
            return Err(format!("{owner} enters, and the lock is {holders:?}'s"));
        }
        self.summary.add("taken up", 1);
        let followers = self.find(grant.followers.iter().cloned())?;
        self.hold(w, followers, Some(ends));
        Ok(())
    }

    /// Runs a request that was in flight when its waiter gave up.
    pub(crate) fn late(&mut self, w: usize) -> Result<(), Broken> {
        self.summary.add("late requests", 1);
        self.request(w).map(|_| ())
    }

    pub(crate) fn undo(&mut self, w: usize) -> Result<(), Broken> {
        self.leave(w, false).map(|_| ())
    }

    fn pass_or_release(&mut self, w: usize, hold: usize) -> Result<(), Broken> {
        let in_turn = self.now - self.world.holds[hold].begun <= TURN;
        while let Some(next) = self.world.holds[hold].followers.pop_front() {
            if self.world.waiters[next].phase != Phase::Waiting {
                continue;
            }
            if in_turn && self.random.percent(90) {
                return self.pass(next, hold);
            }
            break;
        }
        self.release(w, hold)?;
        // The reply to the release may also be lost.
        if self.random.percent(5) && self.release(w, hold)? != Value::Nil {
            return Err("a second release finds the lock".to_owned());
        }
        Ok(())
    }

    /// Passes the hold to `next`, which is directly behind the holder, without a request to the
    /// server.
    fn pass(&mut self, next: usize, hold: usize) -> Result<(), Broken> {
        self.summary.add("passed on", 1);
        let owner = self.world.waiters[next].owner.clone();
        self.note(|| format!("passed on to {owner}"));
        if self.state.holders == [self.world.holds[hold].owner.as_str()] {
            check_order(next, true, &self.world)?;
        }
        self.world.waiters[next].served = true;
        self.world.holds[hold].passed.push(owner);
        self.work(next, hold);
        Ok(())
    }

    fn release(&mut self, w: usize, hold: usize) -> Result<Value, Broken> {
        let hold = &self.world.holds[hold];
        let mut args = self.args(&[&hold.owner]);
        args.extend(hold.passed.iter().cloned());
        self.send(Some(w), Script::Release, &args)
    }

    /// Ends a lost hold. If it was passed on, the owners to which it was passed must not stay at
    /// the head of the queue.
    pub(crate) fn lost(&mut self, w: usize) -> Result<(), Broken> {
        let Phase::Holding(hold) = self.world.waiters[w].phase else {
            return Ok(());
        };
        if self.world.holds[hold].ends > self.now {
            self.at(self.world.holds[hold].ends, Event::Lost(w));
            return Ok(());
        }
        self.release(w, hold).map(|_| ())
    }

    pub(crate) fn try_lock(&mut self, w: usize) -> Result<bool, Broken> {
        let waiter = &self.world.waiters[w];
        let args = self.args(&[&waiter.lease.to_string(), &waiter.owner]);
        let taken = self.send(Some(w), Script::Try, &args)? == Value::Int(1);
        if taken {
            self.summary.add("tries that took", 1);
            self.hold(w, VecDeque::new(), None);
        } else {
            self.world.waiters[w].phase = Phase::Gone;
        }
        Ok(taken)
    }

    pub(crate) fn keep_alive(&mut self, client: usize) -> Result<(), Broken> {
        let now = self.now;
        let is_steady = |since: i64| now - since >= SILENT;
        let steady = self.world.clients[client].well_since.is_some_and(is_steady);
        let mut args = self.args(&[if steady { "1" } else { "0" }]);
        let none = args.len();
        for waiter in &self.world.waiters {
            let stands_in_queue = match waiter.phase {
                Phase::Waiting => true,
                Phase::Holding(hold) => self.world.holds[hold].passed.contains(&waiter.owner),
                _ => false,
            };
            if waiter.client == client && stands_in_queue {
                args.push(waiter.owner.clone());
            }
        }
        if args.len() == none {
            self.world.clients[client].keeps_alive = false;
            return Ok(());
        }
        let reply = self.send(None, Script::KeepAlive, &args)?;
        self.world.clients[client].last_sign = now;
        self.world.clients[client].well_since.get_or_insert(now);
        let Value::Array(parts) = reply else {
            return Err(format!("keep_alive answers {reply:?}"));
        };
        let [Value::Int(again), ref owners @ ..] = parts[..] else {
            return Err(format!("keep_alive answers {parts:?}"));
        };
        for owner in owners.iter().map(text).filter(|owner| !owner.is_empty()) {
            let w = self.world.by_owner[&owner];
            if let Phase::Holding(hold) = self.world.waiters[w].phase {
                // The hold that was passed to the waiter no longer exists in Redis.
                self.world.holds[hold].ends = now;
                self.soon(Event::Lost(w));
            }
            self.world.waiters[w].asks_soon = true;
            self.soon(Event::Ask(w));
        }
        let late = self.random.between(0, JITTER);
        let period = if self.broken == Some(Rule::Poll) { FAIR_WAIT / 3 } else { PERIOD };
        let pause = if again < 0 { period } else { period.min(again + 1) };
        self.at(now + pause + late, Event::KeepAlive(client));
        Ok(())
    }

    // ---- Redisson's clients ---------------------------------------------------------------

    fn clock_of(&self, w: usize) -> i64 {
        self.now + self.world.client_of(w).clock_offset
    }

    fn ask_redisson(&mut self, w: usize) -> Result<(), Broken> {
        let waiter = &self.world.waiters[w];
        let args = [
            waiter.lease.to_string(),
            waiter.owner.clone(),
            waiter.wait.to_string(),
            self.clock_of(w).to_string(),
        ];
        let old = self.world.client_of(w).is_old;
        let script = if old { Script::RedissonAcquire3 } else { Script::RedissonAcquire };
        let reply = self.send(Some(w), script, &args)?;
        // A Redisson waiter without remaining time waits only for a message. This happens if the
        // last waiter in the queue has used up its time when the waiter comes.
        self.world.waiters[w].sleeps = matches!(reply, Value::Int(left) if left < 0);
        match reply {
            Value::Nil => self.hold(w, VecDeque::new(), None),
            Value::Int(left) if left >= 0 => {
                let asked = self.world.waiters[w].asked;
                let at = self.now + left.max(REDISSON_PAUSE);
                self.at(at, Event::AskAfter(w, asked));
            }
            Value::Int(_) => {}
            other => return Err(format!("Redisson's acquire answers {other:?}")),
        }
        Ok(())
    }

    fn unlock_redisson(&mut self, w: usize) -> Result<(), Broken> {
        let waiter = &self.world.waiters[w];
        let args = [
            waiter.owner.clone(),
            waiter.lease.to_string(),
            self.clock_of(w).to_string(),
            CHANNEL.trim_end_matches(':').to_owned(),
        ];
        self.send(Some(w), Script::RedissonUnlock, &args).map(|_| ())
    }

    /// Interrupts the waiter, which does not remove its entries.
    pub(crate) fn interrupt(&mut self, w: usize) -> Result<(), Broken> {
        if self.world.waiters[w].phase == Phase::Waiting {
            self.note(|| format!("waiter {w} is interrupted"));
            self.world.waiters[w].interrupted = true;
            self.world.waiters[w].phase = Phase::Gone;
            self.forget(w);
        }
        Ok(())
    }
}

fn text(value: &Value) -> String {
    redis::from_redis_value(value.clone()).unwrap()
}
