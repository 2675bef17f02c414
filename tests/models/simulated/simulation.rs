//! One random history: events in the order of simulated time. The real scripts act as the server,
//! and the library's state machine acts as the redlatch processes. After each event the rules are
//! checked.

mod checks;
mod faults;
mod processes;
mod subscribers;

use std::collections::{BTreeMap, HashMap, HashSet};

use redis::Value;

use super::client::{Input, MS, Process, Rule, SECOND, Time};
use super::kind::Kind;
use super::plan::Plan;
use super::random::Random;
use super::redisson::{Java, JavaEvent};
use super::rules::{self, Broken, Claim, Step};
use super::scripts::{Call, Script};
use super::site::Site;
use super::specification::Played;
use super::state::State;
use super::store::{Store, uuid};
use super::summary::Summary;
use super::waits::Waits;
use super::wire::Request;
pub(crate) use faults::Fault;

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
/// A waiter that has sent no request for this time may be skipped.
const SILENT: Time = 2 * SECOND;

#[derive(Debug)]
pub(crate) enum Event {
    Process(usize, ForProcess),
    /// The server runs a request. If `sent` is `None`, the reply is lost.
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
    /// Whether nothing arrives over the connection, although the server may treat it as open.
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
    /// The times at which leases were shortened without a fault of a client.
    pub(crate) disturbed: Vec<Time>,
    /// The last fencing token with which a holder entered.
    pub(crate) token: i64,
    /// For each owner with an entry: the beginning of its wait according to its requests (in ms on
    /// the server's clock), and the time of its last request.
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
        // An argument of the second and later requests of an owner.
        let waiting_since = args.get(3).filter(|_| script == Script::Acquire);
        let waiting_since = waiting_since.and_then(|since| since.parse::<i64>().ok());
        let step = Step {
            waiting_since,
            is_old: waiting_since.is_some_and(|since| server / MS - since >= SILENT / MS),
            has_jumped,
            others: &|owner| heard.get(owner).map(|(since, _)| *since),
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
            if let Some(waiting_since) = waiting_since {
                (*since, *last) = (waiting_since, self.now);
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
}
