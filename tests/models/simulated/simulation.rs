//! One random history: events in the order of simulated time. The real scripts act as the server,
//! and the library's state machine acts as the redlatch processes. After each event the rules are
//! checked.

use std::collections::{BTreeMap, HashMap, HashSet};

use redis::Value;

use super::client::{Input, LEASE, MS, Output, Process, Rule, SECOND, Time, Timer};
use super::kind::Kind;
use super::plan::Plan;
use super::random::Random;
use super::redisson::{Java, JavaEvent};
use super::rules::{self, Broken, Claim, Step};
use super::scripts::{Call, Script, call, force};
use super::site::Site;
use super::specification::Played;
use super::state::State;
use super::store::{Store, uuid};
use super::summary::Summary;
use super::waits::Waits;
use super::wire::{Message, Released, Reply, Request, own_channel};

/// Plays a history of this kind of lock.
pub(crate) fn play(
    store: &mut Store,
    kind: &'static dyn Kind,
    seed: u64,
    plan: Plan,
    broken: Option<Rule>,
    traced: bool,
) -> Played {
    let mut simulation = Simulation::new(store, kind, seed, plan, broken);
    simulation.keeps_trace = traced;
    let outcome = simulation.run();
    let Simulation { summary, trace, .. } = simulation;
    Played { outcome, summary, trace: trace.join("\n") }
}

/// The server's clock at the beginning, in µs.
const START: Time = 1_763_692_800_000_000;
/// The maximum time that a history may take after its end.
const AFTERMATH: Time = 100 * SECOND;
/// After a loss of keys, some owners may lack their entries for this time.
const LOST: Time = 12 * SECOND;
/// A waiter that has sent no request for this time may be skipped.
const SILENT: Time = 2 * SECOND;
/// The maximum delay of a copy of a request.
const LATE: Time = 6 * SECOND;

#[derive(Debug)]
pub(crate) enum Event {
    Process(usize, ForProcess),
    /// The server runs a request. If `None`, the reply is lost.
    Request {
        process: usize,
        request: Request,
        sent: Option<Time>,
    },
    Deliver {
        connection: usize,
        channel: String,
        text: String,
    },
    /// A subscriber has a new connection.
    Subscribe(usize),
    /// The server notices that a connection is dead.
    Forget(usize),
    Listen(usize),
    Unlisten(usize),
    /// A process sends a user's script, if it still has the lock for this wait.
    Eval(usize, u64),
    /// The server runs a user's script that was sent at this time under the hold of this owner.
    Evaluate {
        lock: usize,
        owner: String,
        sent: Time,
    },
    Java(usize, JavaEvent),
    Fault,
    Resume(usize),
    MemoryIsBack,
    Over,
}

/// The inputs that a paused process finds when it continues.
#[derive(Debug)]
pub(crate) enum ForProcess {
    Input(Input),
    Begin,
    /// The time limit of the wait with this number has passed.
    Limit(u64),
    /// The work during the hold with this number is done.
    Done(u64),
}

/// A subscriber's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    who: Who,
    channels: Vec<String>,
    /// Whether nothing arrives over the connection, although the server may count it as open.
    is_cut: bool,
    is_known: bool,
    last: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Ours(usize),
    Java(usize),
}

#[derive(Debug)]
pub(crate) struct Ours {
    pub(crate) machine: Process,
    pub(crate) uuid: String,
    pub(crate) site: usize,
    pub(crate) is_dead: bool,
    pub(crate) is_stopped: bool,
    inbox: Vec<ForProcess>,
    connection: Option<usize>,
    listens: bool,
    lane: Time,
    replies: Time,
    /// The time until which the process waits for a reply that was lost.
    troubled: Time,
    /// The number of the process's waits so far.
    serial: u64,
    /// The time at which the last wait began.
    began: Time,
    pub(crate) claim: Option<usize>,
    /// The owners for which a copy of a request may still take the lock.
    in_doubt: HashSet<String>,
    pub(crate) grants: u64,
    pub(crate) longest: Time,
}

/// A lock, in its last known state at the server.
#[derive(Debug)]
pub(crate) struct Lock {
    pub(crate) site: Site,
    state: State,
    /// The server's clock at the time of this state, in ms.
    at: i64,
    pub(crate) claims: Vec<Claim>,
    /// For each owner: the time at which the server was last seen without its hold.
    pub(crate) ended: HashMap<String, Time>,
    /// The times at which leases were cut without a fault of a client.
    pub(crate) disturbed: Vec<Time>,
    /// The last fencing token with which a holder entered.
    pub(crate) token: i64,
    /// For each owner with an entry: the time since which it reports to wait (in ms on the server's
    /// clock), and the time of its last request.
    heard: HashMap<String, (i64, Time)>,
    waits: Waits,
}

pub(crate) struct Simulation<'a> {
    pub(crate) store: &'a mut Store,
    pub(crate) random: Random,
    /// A separate generator for users' scripts, so that histories without users' scripts stay the
    /// same.
    evals: Random,
    pub(crate) now: Time,
    pub(crate) plan: Plan,
    pub(crate) ours: Vec<Ours>,
    pub(crate) java: Vec<Java>,
    pub(crate) locks: Vec<Lock>,
    pub(crate) summary: Summary,
    pub(crate) is_over: bool,
    pub(crate) is_full: bool,
    connections: Vec<Connection>,
    offset: Time,
    serial: u64,
    events: BTreeMap<(Time, u64), Event>,
    keeps_trace: bool,
    trace: Vec<String>,
}

impl<'a> Simulation<'a> {
    pub(crate) fn new(
        store: &'a mut Store,
        kind: &'static dyn Kind,
        seed: u64,
        plan: Plan,
        broken: Option<Rule>,
    ) -> Self {
        store.clear();
        let mut random = Random::new(seed ^ 0x5eed);
        if plan.is_monitored {
            store.set_monitored();
        }
        let site = |database, name| {
            let site = Site::new(kind, database, name);
            if plan.is_fenced { site.fenced() } else { site }
        };
        let locks = plan.sites.iter().map(|(database, name)| Lock {
            site: site(*database, name),
            state: State::none(),
            at: 0,
            claims: Vec::new(),
            ended: HashMap::new(),
            disturbed: Vec::new(),
            token: 0,
            heard: HashMap::new(),
            waits: Waits::default(),
        });
        let locks: Vec<_> = locks.collect();
        let ours = (0..plan.ours).map(|number| Ours {
            machine: Process::new(
                locks[number % locks.len()].site.clone(),
                broken,
                random.between(0, i64::MAX - 1) as u64,
            ),
            uuid: uuid(true, number + 1),
            site: number % locks.len(),
            is_dead: false,
            is_stopped: false,
            inbox: Vec::new(),
            connection: None,
            listens: false,
            lane: 0,
            replies: 0,
            troubled: 0,
            serial: 0,
            began: 0,
            claim: None,
            in_doubt: HashSet::new(),
            grants: 0,
            longest: 0,
        });
        let ours = ours.collect();
        let java = (0..plan.java).map(|number| Java::new(number, number % locks.len())).collect();
        let mut simulation = Self {
            store,
            random,
            evals: Random::new(seed ^ 0xe7a1),
            now: 0,
            plan,
            ours,
            java,
            locks,
            summary: Summary::default(),
            is_over: false,
            is_full: false,
            connections: Vec::new(),
            offset: START,
            serial: 0,
            events: BTreeMap::new(),
            keeps_trace: false,
            trace: Vec::new(),
        };
        for process in 0..simulation.ours.len() {
            simulation.soon(Event::Subscribe(process));
            simulation.think(process);
        }
        for java in 0..simulation.java.len() {
            simulation.at(0, Event::Java(java, JavaEvent::Begin));
        }
        if !simulation.plan.faults.is_empty() {
            let first = simulation.random.between(0, SECOND);
            simulation.at(first, Event::Fault);
        }
        simulation.at(simulation.plan.length, Event::Over);
        simulation
    }

    /// Runs until all clients are done with the lock, and then checks that no keys are left.
    pub(crate) fn run(&mut self) -> Result<(), Broken> {
        let end = self.plan.length + AFTERMATH;
        while let Some(((time, _), event)) = self.events.pop_first() {
            if time > end {
                break;
            }
            self.now = time;
            self.happen(event)?;
            self.look_at_waits()?;
        }
        self.check_end()
    }

    fn happen(&mut self, event: Event) -> Result<(), Broken> {
        match event {
            Event::Process(process, what) => self.give(process, what),
            Event::Request { process, request, sent } => self.serve(process, &request, sent),
            Event::Deliver { connection, channel, text } => {
                self.deliver(connection, &channel, text)
            }
            Event::Subscribe(process) => {
                self.subscribe(process);
                Ok(())
            }
            Event::Forget(connection) => {
                self.change(connection, |connection| connection.is_known = false);
                Ok(())
            }
            Event::Listen(process) => {
                self.listen(process);
                Ok(())
            }
            Event::Unlisten(process) => {
                self.ours[process].listens = false;
                if let Some(connection) = self.ours[process].connection {
                    self.change(connection, |connection| connection.channels.truncate(1));
                }
                Ok(())
            }
            Event::Eval(process, serial) => {
                self.send_script(process, serial);
                Ok(())
            }
            Event::Evaluate { lock, owner, sent } => self.evaluate(lock, &owner, sent),
            Event::Java(java, event) => self.java_event(java, event),
            Event::Fault => self.fault(),
            Event::Resume(process) => self.resume(process),
            Event::MemoryIsBack => {
                self.set_full(false);
                Ok(())
            }
            Event::Over => {
                self.is_over = true;
                self.set_full(false);
                Ok(())
            }
        }
    }

    // ---- time and the network -------------------------------------------------------------

    pub(crate) fn at(&mut self, time: Time, event: Event) {
        self.serial += 1;
        self.events.insert((time.max(self.now), self.serial), event);
    }

    pub(crate) fn latency(&mut self) -> Time {
        self.random.between(50, 300)
    }

    fn soon(&mut self, event: Event) {
        let at = self.now + self.latency();
        self.at(at, event);
    }

    fn server_ms(&self) -> i64 {
        (self.now + self.offset).div_euclid(MS)
    }

    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if self.keeps_trace {
            self.trace.push(format!("{:>12.3} {}", self.now as f64 / 1_000.0, line()));
        }
    }

    /// Returns a lock in its present state, without expired keys and fields.
    fn now_of(&self, lock: usize) -> State {
        let Lock { state, at, .. } = &self.locks[lock];
        State { messages: Vec::new(), ..state.clone() }.after(self.server_ms() - at)
    }

    /// Runs a script, checks its changes against the rules, and delivers its messages.
    pub(crate) fn execute(&mut self, lock: usize, call: &Call) -> Result<Value, Broken> {
        let Call { script, args, .. } = call;
        let script = *script;
        let site = self.locks[lock].site.clone();
        let before = self.now_of(lock);
        let server = self.now + self.offset;
        let (reply, after) = self.store.run(server, site.place(), call);
        self.summary.add("scripts", 1);
        self.note(|| format!("{script:?} {args:?} -> {reply:?}"));
        self.note(|| format!("    {}", after.short()));
        self.send_messages(&after);
        let has_jumped =
            self.plan.faults.iter().any(|it| matches!(it, Fault::ClockBack | Fault::ClockForward));
        let heard = &self.locks[lock].heard;
        // The argument of an owner that asks again.
        let came = args.get(3).filter(|_| script == Script::Acquire);
        let came = came.and_then(|came| came.parse::<i64>().ok());
        let step = Step {
            came,
            is_old: came.is_some_and(|came| server / MS - came >= SILENT / MS),
            has_jumped,
            others: &|owner| heard.get(owner).map(|(came, _)| *came),
            is_silent: &|owner| heard.get(owner).is_none_or(|(_, last)| self.now - last >= SILENT),
            script,
            owner: args.iter().find(|arg| arg.len() > 37 && arg.as_bytes()[36] == b':'),
            before: &before,
            after: &after,
        };
        let seen = rules::check(&step, &site, |channel| self.listeners(channel))?;
        for what in seen {
            self.summary.add(what, 1);
        }
        if let (Script::Acquire, Some(owner)) = (script, args.get(1))
            && after.queue.contains(owner)
        {
            let heard = &mut self.locks[lock].heard;
            let first = (server / MS, self.now);
            let (since, last) = heard.entry(owner.clone()).or_insert(first);
            if let Some(came) = came {
                (*since, *last) = (came, self.now);
            }
        }
        self.keep(lock, after);
        Ok(reply)
    }

    fn keep(&mut self, lock: usize, state: State) {
        let at = self.server_ms();
        let Self { locks, now, .. } = self;
        let lock = &mut locks[lock];
        let ends = lock.state.holders.iter().filter(|owner| !state.holders.contains(owner));
        lock.ended.extend(ends.map(|owner| (owner.clone(), *now)));
        (lock.at, lock.state) = (at, state);
    }

    /// Sends the messages to waiters. (The rules check the messages to holders.)
    fn send_messages(&mut self, state: &State) {
        let is_for_waiter = |(_, text): &&(String, String)| !text.starts_with("want ");
        for (channel, text) in state.messages.iter().filter(is_for_waiter) {
            for connection in 0..self.connections.len() {
                let latency = self.latency();
                let there = &mut self.connections[connection];
                if there.is_known && !there.is_cut && there.channels.contains(channel) {
                    there.last = (there.last + 1).max(self.now + latency);
                    let (at, channel, text) = (there.last, channel.clone(), text.clone());
                    self.at(at, Event::Deliver { connection, channel, text });
                }
            }
        }
    }

    fn deliver(&mut self, connection: usize, channel: &str, text: String) -> Result<(), Broken> {
        let Connection { who, is_cut, .. } = self.connections[connection];
        if is_cut {
            return Ok(());
        }
        let process = match who {
            Who::Ours(process) => process,
            Who::Java(java) => return self.java_event(java, JavaEvent::Message),
        };
        let site = &self.locks[self.ours[process].site].site;
        let input = if channel == site.public {
            Input::Public
        } else {
            let message =
                Message::parse(site.kind, &text).ok_or_else(|| format!("cannot read {text:?}"))?;
            if (message.database, &message.lock) != (site.database, &site.lock) {
                return Err(format!("{text:?} is for another lock than {site:?}"));
            }
            Input::Message(message)
        };
        self.give(process, ForProcess::Input(input))
    }

    // ---- subscribers ----------------------------------------------------------------------

    /// Returns the number of listeners that the server counts on a channel.
    fn listeners(&self, channel: &str) -> usize {
        let hears =
            |there: &&Connection| there.is_known && there.channels.iter().any(|own| own == channel);
        self.connections.iter().filter(hears).count()
    }

    pub(crate) fn connect(&mut self, who: Who, channels: Vec<String>) -> usize {
        self.connections.push(Connection {
            who,
            channels,
            is_cut: false,
            is_known: false,
            last: 0,
        });
        let connection = self.connections.len() - 1;
        self.change(connection, |connection| connection.is_known = true);
        connection
    }

    pub(crate) fn disconnect(&mut self, connection: usize) {
        self.change(connection, |connection| {
            connection.is_cut = true;
            connection.is_known = false;
        });
    }

    fn change(&mut self, connection: usize, change: impl FnOnce(&mut Connection)) {
        let mut channels = self.connections[connection].channels.clone();
        change(&mut self.connections[connection]);
        channels.extend(self.connections[connection].channels.clone());
        channels.sort();
        channels.dedup();
        for channel in channels {
            let count = self.listeners(&channel);
            self.store.set_subscribers(&channel, count);
        }
    }

    fn subscribe(&mut self, process: usize) {
        let Ours { is_dead, site, listens, ref uuid, connection, .. } = self.ours[process];
        if is_dead {
            return;
        }
        let mut channels = vec![own_channel(uuid)];
        if listens {
            channels.extend(self.public_channels(site));
        }
        if let Some(old) = connection.filter(|old| !self.connections[*old].is_cut) {
            self.disconnect(old);
        }
        let connection = self.connect(Who::Ours(process), channels);
        self.ours[process].connection = Some(connection);
        self.soon(Event::Process(process, ForProcess::Input(Input::Subscribed)));
    }

    fn public_channels(&self, lock: usize) -> [String; 2] {
        let site = &self.locks[lock].site;
        [site.public.clone(), site.companion.clone()]
    }

    fn listen(&mut self, process: usize) {
        let own = &mut self.ours[process];
        own.listens = true;
        let (lock, connection) = (own.site, own.connection);
        let channels = self.public_channels(lock);
        if let Some(connection) = connection.filter(|there| !self.connections[*there].is_cut) {
            self.change(connection, |connection| {
                connection.channels.truncate(1);
                connection.channels.extend(channels);
            });
            self.soon(Event::Process(process, ForProcess::Input(Input::Listening)));
        }
    }

    // ---- redlatch processes ---------------------------------------------------------------

    pub(crate) fn think(&mut self, process: usize) {
        if !self.is_over {
            let pause = self.plan.think.sample(&mut self.random);
            let begin = Event::Process(process, ForProcess::Begin);
            self.at(self.now + pause, begin);
        }
    }

    fn give(&mut self, process: usize, what: ForProcess) -> Result<(), Broken> {
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

    fn put_out(&mut self, process: usize, output: Output) -> Result<(), Broken> {
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

    /// Records that a process claims the lock until `until`. No excluded claim may overlap.
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

    fn end_claim(&mut self, process: usize) {
        let own = &mut self.ours[process];
        if let Some(claim) = own.claim.take() {
            let claim = &mut self.locks[own.site].claims[claim];
            claim.until = claim.until.min(self.now);
        }
    }

    /// Sends a request after all earlier requests. If the connection breaks, the request runs
    /// without a reply, late, or never.
    fn send(&mut self, process: usize, request: Request) {
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

    /// Sends a user's script. If its call is cut or its connection breaks, the script may come
    /// late.
    fn send_script(&mut self, process: usize, serial: u64) {
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

    fn evaluate(&mut self, lock: usize, owner: &str, sent: Time) -> Result<(), Broken> {
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

    fn serve(
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

    // ---- faults ---------------------------------------------------------------------------

    fn stop(&mut self, process: usize, time: Time) {
        if !self.ours[process].is_stopped {
            self.ours[process].is_stopped = true;
            self.at(self.now + time, Event::Resume(process));
        }
    }

    fn fault(&mut self) -> Result<(), Broken> {
        if self.is_over {
            return Ok(());
        }
        let next = self.now + self.random.between(0, 3 * SECOND);
        self.at(next, Event::Fault);
        let which = self.random.between(0, self.plan.faults.len() as i64 - 1) as usize;
        let process = self.random.between(0, self.ours.len() as i64 - 1) as usize;
        let lock = self.random.between(0, self.locks.len() as i64 - 1) as usize;
        let fault = self.plan.faults[which];
        self.note(|| format!("fault: {fault:?}, process {}", process + 1));
        self.summary.add(fault.name(), 1);
        match fault {
            Fault::Stop if !self.ours[process].is_stopped => {
                let time = self.random.one_of(&[
                    (20 * MS, 20 * MS),
                    (300 * MS, 300 * MS),
                    (3 * SECOND, 3 * SECOND),
                    (12 * SECOND, 12 * SECOND),
                ]);
                self.stop(process, time);
            }
            Fault::StopWaiting if self.ours[process].machine.is_waiting() => {
                self.stop(process, 3 * SECOND);
            }
            Fault::Cut | Fault::HalfOpen => self.cut(process, fault == Fault::HalfOpen),
            Fault::Kill if self.ours.iter().filter(|own| !own.is_dead).count() > 2 => {
                self.ours[process].is_dead = true;
                if let Some(connection) = self.ours[process].connection {
                    self.disconnect(connection);
                }
            }
            Fault::KillJava if !self.java.is_empty() => {
                let java = self.random.between(0, self.java.len() as i64 - 1) as usize;
                self.kill_java(java);
            }
            Fault::ClockForward | Fault::ClockBack => {
                let step = self.random.one_of(&[(50, 50), (1_500, 1_500), (9_000, 9_000)]) * MS;
                self.offset += if fault == Fault::ClockBack { -step } else { step };
                for lock in 0..self.locks.len() {
                    self.locks[lock].disturbed.push(self.now);
                    let state =
                        self.store.look(self.now + self.offset, self.locks[lock].site.place());
                    self.keep(lock, state);
                }
            }
            Fault::Flush => {
                let keys = self.locks[lock].site.keys();
                // `x` and `{x}` have the same token key.
                let tokens = self.locks[lock].site.tokens.clone();
                for other in self.locks.iter_mut().filter(|other| other.site.tokens == tokens) {
                    other.token = 0;
                }
                self.lose_keys(lock, &keys);
            }
            Fault::Evict => {
                let keys = [self.locks[lock].site.queue.clone()];
                self.lose_keys(lock, &keys);
            }
            Fault::Force => {
                self.locks[lock].disturbed.push(self.now);
                let Lock { site, state, .. } = &self.locks[lock];
                let call = force(site, state, true);
                self.execute(lock, &call)?;
            }
            Fault::JavaForce => {
                self.locks[lock].disturbed.push(self.now);
                let Lock { site, state, .. } = &self.locks[lock];
                let call = force(site, state, false);
                self.execute(lock, &call)?;
            }
            Fault::Full => {
                self.set_full(true);
                let time = self.random.between(100 * MS, 3 * SECOND);
                self.at(self.now + time, Event::MemoryIsBack);
            }
            Fault::Stop | Fault::StopWaiting | Fault::Kill | Fault::KillJava => {}
        }
        Ok(())
    }

    fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
        self.store.set_full(is_full);
    }

    fn lose_keys(&mut self, lock: usize, keys: &[String]) {
        self.locks[lock].disturbed.push(self.now);
        let state = self.store.delete(self.now + self.offset, self.locks[lock].site.place(), keys);
        self.keep(lock, state);
    }

    fn cut(&mut self, process: usize, half_open: bool) {
        let Some(connection) = self.ours[process].connection else { return };
        if self.ours[process].is_dead || self.connections[connection].is_cut {
            return;
        }
        let (gone, back) = if half_open {
            let gone = self.random.between(3 * SECOND, 20 * SECOND);
            (gone, self.random.between(3 * SECOND, 10 * SECOND))
        } else {
            (0, self.random.between(MS, 100 * MS))
        };
        self.connections[connection].is_cut = true;
        if gone == 0 {
            self.disconnect(connection);
        } else {
            self.at(self.now + gone, Event::Forget(connection));
        }
        self.at(self.now + back, Event::Subscribe(process));
    }

    fn resume(&mut self, process: usize) -> Result<(), Broken> {
        self.note(|| format!("process {} goes on", process + 1));
        let own = &mut self.ours[process];
        own.is_stopped = false;
        let mut inbox = std::mem::take(&mut own.inbox);
        if self.random.percent(50) {
            // A process may notice a timer and a message in any order.
            for i in (1..inbox.len()).rev() {
                inbox.swap(i, self.random.between(0, i as i64) as usize);
            }
        }
        for what in inbox {
            self.give(process, what)?;
        }
        Ok(())
    }

    // ---- the rules that need to see all processes -----------------------------------------

    /// Whether the process could take a free lock.
    fn is_well(&self, own: &Ours) -> bool {
        let hears = own.connection.is_some_and(|there| !self.connections[there].is_cut);
        !own.is_dead
            && !own.is_stopped
            && own.machine.is_waiting()
            && hears
            && own.troubled < self.now
    }

    fn look_at_waits(&mut self) -> Result<(), Broken> {
        for lock in 0..self.locks.len() {
            let state = self.now_of(lock);
            let is_awaited = self.ours.iter().any(|own| own.site == lock && self.is_well(own));
            let is_free = state.is_open() && !self.is_full;
            let unclaimed = state.holders.iter().filter_map(|holder| {
                let own = self.ours.iter().find(|own| holder.starts_with(&own.uuid))?;
                let is_ended =
                    own.claim.is_none_or(|claim| self.locks[lock].claims[claim].until <= self.now);
                let could_say = !own.is_dead && !own.is_stopped && own.troubled < self.now;
                (is_ended && could_say).then(|| (holder.as_str(), own.in_doubt.contains(holder)))
            });
            let now = self.now;
            let are_lost = self.locks[lock].disturbed.last().is_some_and(|at| now - at < LOST);
            // If a clock was set back, every lease becomes longer.
            let unclaimed: Vec<_> = unclaimed.filter(|_| !are_lost && is_awaited).collect();
            let waits = &mut self.locks[lock].waits;
            let free = waits.free(now, is_awaited && is_free)?;
            let unclaimed = waits.unclaimed(now, &unclaimed)?;
            self.summary.most("longest free (ms)", free / MS);
            self.summary.most("longest unclaimed (ms)", unclaimed / MS);
        }
        Ok(())
    }

    fn check_end(&mut self) -> Result<(), Broken> {
        for own in &self.ours {
            self.summary.add("grants to ours", own.grants as i64);
            self.summary.most("longest wait of ours (ms)", own.longest / MS);
            if !own.is_dead && !own.machine.is_idle() {
                return Err(format!("{} is not done: {:?}", own.uuid, own.machine));
            }
        }
        for java in &self.java {
            self.summary.add("grants to Redisson", java.grants as i64);
        }
        for lock in 0..self.locks.len() {
            let state = self.now_of(lock);
            let lives = |owner: &&String| {
                self.ours.iter().any(|own| !own.is_dead && owner.starts_with(&own.uuid))
            };
            if let Some(owner) = state.queue.iter().chain(&state.holders).find(lives) {
                return Err(format!("a place or the hold of {owner} is left behind"));
            }
            let later = self.now + self.offset + 61 * SECOND + LEASE * MS;
            let state = self.store.look(later, self.locks[lock].site.place());
            if !state.is_clean() {
                return Err(format!("left for ever: {:?}: {state:?}", self.locks[lock].site));
            }
        }
        Ok(())
    }
}

/// The faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Stop,
    /// Pauses a waiting process for longer than a provisional lease.
    StopWaiting,
    Cut,
    HalfOpen,
    Kill,
    KillJava,
    ClockForward,
    ClockBack,
    Flush,
    Evict,
    Force,
    JavaForce,
    Full,
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Stop => "stops",
            Self::StopWaiting => "stops of those who wait",
            Self::Cut => "cuts",
            Self::HalfOpen => "half-open subscribers",
            Self::Kill => "kills",
            Self::KillJava => "kills of Redisson",
            Self::ClockForward => "clock forward",
            Self::ClockBack => "clock back",
            Self::Flush => "keys deleted",
            Self::Evict => "queue evicted",
            Self::Force => "forced",
            Self::JavaForce => "forced by Redisson",
            Self::Full => "memory full",
        }
    }
}
