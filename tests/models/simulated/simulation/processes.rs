//! The redlatch processes: their waits, claims and requests.

use redis::Value;

use super::{Event, ForProcess, Simulation};
use crate::simulated::client::{Input, MS, Output, SECOND, Time, Timer};
use crate::simulated::rules::{Broken, Claim};
use crate::simulated::scripts::{Call, Script, call};
use crate::simulated::wire::{Released, Reply, Request};

/// The maximum delay of a copy of a request.
const LATE: Time = 6 * SECOND;

impl Simulation<'_> {
    pub(crate) fn think(&mut self, process: usize) {
        if !self.is_over {
            let pause = self.plan.think.sample(&mut self.random);
            let begin = Event::Process(process, ForProcess::Begin);
            self.at(self.now + pause, begin);
        }
    }

    pub(super) fn give(&mut self, process: usize, what: ForProcess) -> Result<(), Broken> {
        let own = &mut self.ours[process];
        if own.is_dead {
            return Ok(());
        }
        if own.is_stopped {
            own.inbox.push(what);
            return Ok(());
        }
        let input = match what {
            ForProcess::Input(input) => input,
            ForProcess::Begin if self.is_over || !own.machine.is_idle() => return Ok(()),
            ForProcess::Begin => {
                own.serial += 1;
                own.began = self.now;
                if self.random.percent(self.plan.tries) {
                    Input::TryLock
                } else {
                    let serial = own.serial;
                    if let Some(limit) = self.plan.limit.sample_some(&mut self.random) {
                        let event = Event::Process(process, ForProcess::Limit(serial));
                        self.at(self.now + limit, event);
                    }
                    Input::Lock
                }
            }
            ForProcess::Limit(serial) if own.serial == serial && own.machine.is_waiting() => {
                self.summary.add("gave up", 1);
                self.think(process);
                Input::GiveUp
            }
            ForProcess::Done(serial) if own.serial == serial && own.claim.is_some() => {
                self.end_claim(process);
                self.think(process);
                Input::Unlock
            }
            ForProcess::Limit(_) | ForProcess::Done(_) => return Ok(()),
        };
        if let Input::Timer(Timer::Raise(_)) = input {
            self.summary.add("raises", 1);
        }
        if self.keeps_trace && !matches!(input, Input::Timer(_)) {
            self.note(|| format!("process {} hears {input:?}", process + 1));
        }
        for output in self.ours[process].machine.on(self.now, input) {
            self.put_out(process, output)?;
        }
        Ok(())
    }

    pub(super) fn put_out(&mut self, process: usize, output: Output) -> Result<(), Broken> {
        match output {
            Output::Send(request) => self.send(process, request),
            Output::At(time, timer) => {
                let input = ForProcess::Input(Input::Timer(timer));
                self.at(time, Event::Process(process, input));
            }
            Output::Listen => self.soon(Event::Listen(process)),
            Output::Unlisten => self.soon(Event::Unlisten(process)),
            Output::Resubscribe => {
                self.summary.add("subscriptions renewed", 1);
                self.soon(Event::Subscribe(process));
            }
            Output::Entered(number, until, token) => {
                let own = &mut self.ours[process];
                own.grants += 1;
                own.longest = own.longest.max(self.now - own.began);
                let (lock, began, serial) = (own.site, own.began, own.serial);
                let owner = self.locks[lock].site.kind.owner(&own.uuid, number);
                let claim = self.claim(lock, &owner, began, until)?;
                self.locks[lock].check_token(token)?;
                self.summary.add("fencing tokens", i64::from(token.is_some()));
                self.ours[process].claim = Some(claim);
                let work = self.plan.hold.sample(&mut self.random);
                self.at(self.now + work, Event::Process(process, ForProcess::Done(serial)));
                if self.plan.evals > 0 && self.evals.percent(self.plan.evals) {
                    let during = self.evals.between(0, work);
                    self.at(self.now + during, Event::Eval(process, serial));
                }
            }
            Output::Extended(until) => {
                let own = &self.ours[process];
                if let Some(claim) = own.claim {
                    self.locks[own.site].claims[claim].until = until;
                }
            }
            Output::Lost => {
                self.summary.add("lost", 1);
                self.end_claim(process);
                self.think(process);
            }
            Output::Refused => {
                self.summary.add("refused", 1);
                self.think(process);
            }
        }
        Ok(())
    }

    /// Records that a process claims the lock until `until`, and checks that no other claim that it
    /// excludes overlaps.
    pub(crate) fn claim(
        &mut self,
        lock: usize,
        owner: &str,
        began: Time,
        until: Time,
    ) -> Result<usize, Broken> {
        self.note(|| format!("entered until {:.3}", until as f64 / 1_000.0));
        let claim = Claim { owner: owner.to_owned(), began, from: self.now, until };
        self.locks[lock].check_claim(&claim)?;
        self.locks[lock].claims.push(claim);
        Ok(self.locks[lock].claims.len() - 1)
    }

    pub(super) fn end_claim(&mut self, process: usize) {
        let own = &mut self.ours[process];
        if let Some(claim) = own.claim.take() {
            let claim = &mut self.locks[own.site].claims[claim];
            claim.until = claim.until.min(self.now);
        }
    }

    /// Sends a request after all earlier requests. If the connection breaks, the request runs
    /// without a reply, late, or never.
    pub(super) fn send(&mut self, process: usize, request: Request) {
        let at = self.now + self.latency();
        let own = &mut self.ours[process];
        own.lane = (own.lane + 1).max(at);
        let (lane, sent) = (own.lane, Some(self.now));
        if self.random.between(1, 1_000) > self.plan.breaks {
            return self.at(lane, Event::Request { process, request, sent });
        }
        let fate = self.random.between(0, 2);
        self.note(|| format!("process {} loses its connection: fate {fate}", process + 1));
        if fate > 0 {
            let late = if fate == 2 { self.random.between(0, LATE) } else { 0 };
            self.summary.add(if fate == 2 { "late copies" } else { "lost replies" }, 1);
            let request = request.clone();
            self.at(lane + late, Event::Request { process, request, sent: None });
        }
        let noticed =
            self.now + self.random.one_of(&[(MS, MS), (MS, MS), (MS, MS), (SECOND, SECOND)]);
        let own = &mut self.ours[process];
        own.troubled = own.troubled.max(noticed + MS);
        if let Request::Acquire { number, .. } | Request::Try { number, .. } = request {
            own.in_doubt.insert(self.locks[own.site].site.kind.owner(&own.uuid, number));
        }
        self.at(noticed, Event::Process(process, ForProcess::Input(Input::InDoubt(request))));
    }

    /// Sends a user's script. If the call reaches its limit or its connection breaks, the script
    /// may arrive late.
    pub(super) fn send_script(&mut self, process: usize, serial: u64) {
        let own = &self.ours[process];
        let may_send = !own.is_dead && !own.is_stopped && own.serial == serial;
        let number = own.machine.may_eval(self.now).filter(|_| may_send);
        let Some(number) = number else { return };
        let (lock, sent) = (own.site, self.now);
        let owner = self.locks[lock].site.kind.owner(&own.uuid, number);
        let is_late = self.evals.percent(50);
        let late = if is_late { self.evals.between(0, LATE) } else { 0 };
        let at = self.now + late + self.evals.between(50, 300);
        self.at(at, Event::Evaluate { lock, owner, sent });
    }

    pub(super) fn evaluate(&mut self, lock: usize, owner: &str, sent: Time) -> Result<(), Broken> {
        let keys = vec![self.locks[lock].site.lock.clone()];
        let call = Call { script: Script::Eval, keys, args: vec![owner.to_owned()] };
        match self.execute(lock, &call)? {
            Value::ServerError(error) if error.code() == "NOTHELD" => {
                self.summary.add("scripts after their hold", 1);
            }
            Value::Int(1) => {
                self.summary.add("scripts under a hold", 1);
                self.locks[lock].check_eval(owner, sent)?;
            }
            other => return Err(format!("a script returns {other:?}")),
        }
        Ok(())
    }

    pub(super) fn serve(
        &mut self,
        process: usize,
        request: &Request,
        sent: Option<Time>,
    ) -> Result<(), Broken> {
        let own = &self.ours[process];
        let lock = own.site;
        let call = call(&self.locks[lock].site, &own.uuid, request);
        let reply = self.execute(lock, &call)?;
        let reply = match (call.script, reply) {
            (Script::Renew, Value::Array(mut held)) => held.remove(0),
            (_, reply) => reply,
        };
        let reply = Reply::new(request, &reply);
        match &reply {
            Reply::Error(error) if !self.is_full => return Err(format!("{request:?}: {error}")),
            Reply::Error(_) => self.summary.add("errors", 1),
            Reply::Released(Released::HandedOn) => self.summary.add("handed on", 1),
            Reply::Released(Released::Window) => self.summary.add("windows", 1),
            _ => {}
        }
        if let Some(sent) = sent {
            let at = self.now + self.latency();
            let own = &mut self.ours[process];
            own.replies = (own.replies + 1).max(at);
            let input = Input::Reply { sent, request: request.clone(), reply };
            let at = own.replies;
            self.at(at, Event::Process(process, ForProcess::Input(input)));
        }
        Ok(())
    }
}
