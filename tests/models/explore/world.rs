//! The server, the processes and the messages in flight between them. This file computes the steps
//! that may come next, and checks the rules that each state must keep.
//!
//! All steps that need no fault happen before time advances: messages arrive and threads run, in
//! any order. After these steps, time advances by one tick. A fault delays, loses or doubles a
//! message, pauses or kills a process, or sets the server's clock. A late copy of a request arrives
//! before its owner is given up for the last time, because the library waits long enough.

use std::time::Duration;

use super::process::{Channel, Flaw, Heard, MS, Outcome, Process, Sent, State, Terms};
use super::server::{Bug, Chain, Client, Kind, Message, Mode, Owner, Reply, Request, Server};

/// The beginnings of the ranges of numbers. The ranges are so far apart that each number shows its
/// kind (see `identity.rs`).
pub(crate) const OWN: u64 = 1 << 44;
pub(crate) const SERVER: u64 = 1 << 48;
pub(crate) const TOKENS: u64 = 1 << 56;

/// The number of ms by which a fault sets the server's clock.
const JUMP: i64 = 3_003;
/// A chain of grants that is old enough for a window, in which only Redisson's clients take the
/// lock.
const OLD: Chain = Chain { since: -20, count: 9 };

/// The participants, the faults and the times of an exploration.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) kind: Kind,
    /// The processes. `true` stands for a process that writes.
    pub(crate) processes: &'static [bool],
    pub(crate) acquisitions: u8,
    /// Whether the processes have a subscription from the beginning, as if they had waited before.
    pub(crate) listen: bool,
    pub(crate) faults: u8,
    pub(crate) allowed: &'static [Fault],
    /// The time of one tick, in ms. It is slightly more than a whole fraction of 2 s, so that a
    /// lease of 2 s has ended after a whole number of ticks.
    pub(crate) tick: u64,
    pub(crate) lease: u64,
    pub(crate) gives_up: bool,
    pub(crate) java: bool,
    pub(crate) bug: Option<Bug>,
    pub(crate) flaw: Option<Flaw>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Fault {
    /// The connection breaks before the server runs the request.
    LoseRequest,
    /// The connection breaks, and the server runs the request later.
    LateRequest,
    /// The connection breaks after the server has run the request.
    LoseReply,
    SlowRequest,
    SlowReply,
    LoseMessage,
    DoubleMessage,
    SlowMessage,
    /// The subscriber's connection breaks.
    Cut,
    Stop,
    /// The process dies. A new process with another client replaces it.
    Kill,
    ClockForward,
    ClockBack,
}

pub(crate) const ALL: &[Fault] = &[
    Fault::LoseRequest,
    Fault::LateRequest,
    Fault::LoseReply,
    Fault::SlowRequest,
    Fault::SlowReply,
    Fault::LoseMessage,
    Fault::DoubleMessage,
    Fault::SlowMessage,
    Fault::Cut,
    Fault::Stop,
    Fault::Kill,
    Fault::ClockForward,
    Fault::ClockBack,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Step {
    /// A thread of this process wants the lock.
    Lock(usize),
    GivesUp(usize),
    Unlock(usize),
    /// The thread releases a lock that the threads of its process have passed to each other for
    /// long.
    UnlockOld(usize),
    Reads(usize),
    Asks(usize),
    Renews(usize),
    Lapses(usize),
    Undoes(usize),
    /// The server runs the process's next request.
    Serves(usize),
    GetsReply(usize),
    Hears(usize),
    /// The process's subscription is confirmed.
    Confirmed(usize),
    /// The server runs a late copy of a request.
    Late(usize),
    Resumes(usize),
    Time,
    JavaWaits,
    JavaTakes,
    JavaLeaves,
    Fault(Fault, usize),
}

impl Step {
    pub(crate) fn is_fault(self) -> bool {
        matches!(self, Self::Fault(..))
    }
}

/// The steps of a Redisson client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Java {
    Idle,
    Waits,
    Holds,
    Done,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct World {
    /// The processes' clock.
    pub(crate) now: u64,
    pub(crate) server: Server,
    pub(crate) processes: Vec<Process>,
    /// Copies of requests whose senders no longer wait for a reply.
    pub(crate) late: Vec<Sent>,
    pub(crate) faults: u8,
    pub(crate) java: Java,
    /// The token of the last holder.
    pub(crate) last: u64,
    pub(crate) broken: Option<&'static str>,
}

impl Setting {
    pub(crate) fn start(&self) -> World {
        let processes = self.processes.iter().enumerate();
        let mut processes: Vec<_> =
            processes.map(|(at, writes)| Process::new(Client(at as u16), *writes)).collect();
        let kept = 4 * self.tick as i64;
        let mut server = Server::new(self.kind, self.bug, SERVER as i64, kept, TOKENS);
        for process in processes.iter_mut().filter(|_| self.listen) {
            process.channel = Channel::On;
            server.listens |= 1 << process.client.0;
        }
        World {
            now: OWN,
            server,
            processes,
            late: Vec::new(),
            faults: self.faults,
            java: if self.java { Java::Idle } else { Java::Done },
            last: TOKENS,
            broken: None,
        }
    }

    fn terms(&self) -> Terms {
        Terms { lease: Duration::from_millis(self.lease), flaw: self.flaw }
    }

    /// Returns all steps that may come next.
    pub(crate) fn steps(&self, world: &World, steps: &mut Vec<Step>) {
        if world.broken.is_some() {
            return;
        }
        let mut is_due = false;
        for (at, process) in world.processes.iter().enumerate() {
            if process.requests.is_due() || process.channel == Channel::Opening {
                is_due = true;
            }
            if !process.requests.there.is_empty() {
                steps.push(Step::Serves(at));
            }
            if matches!(process.channel, Channel::Opening | Channel::Broken) {
                steps.push(Step::Confirmed(at));
            }
            if process.is_stopped {
                steps.push(Step::Resumes(at));
                continue;
            }
            is_due |= self.own_steps(world, at, process, steps);
        }
        steps.extend((0..world.late.len()).map(Step::Late));
        if !is_due {
            steps.push(Step::Time);
        }
        match world.java {
            Java::Idle => steps.push(Step::JavaWaits),
            Java::Waits if world.server.mode.is_none() => steps.push(Step::JavaTakes),
            Java::Holds => steps.push(Step::JavaLeaves),
            Java::Waits | Java::Done => {}
        }
        if world.faults > 0 {
            self.faults(world, steps);
        }
    }

    /// Adds the steps of a running process. Returns whether some of them must come before time
    /// advances.
    fn own_steps(
        &self,
        world: &World,
        at: usize,
        process: &Process,
        steps: &mut Vec<Step>,
    ) -> bool {
        let (now, before) = (world.now, steps.len());
        let mut is_due = process.replies.is_due() || process.messages.is_due();
        let due = [
            (process.can_read(self.flaw), Step::Reads(at)),
            (process.can_ask(now, self.flaw), Step::Asks(at)),
            (process.can_renew(now), Step::Renews(at)),
            (process.has_lapsed(now, self.flaw), Step::Lapses(at)),
            (process.undoes, Step::Undoes(at)),
        ];
        steps.extend(due.into_iter().filter(|(is_so, _)| *is_so).map(|(_, step)| step));
        is_due |= steps.len() > before;
        if !process.replies.there.is_empty() {
            steps.push(Step::GetsReply(at));
        }
        if !process.messages.there.is_empty() {
            steps.push(Step::Hears(at));
        }
        match &process.state {
            State::Idle if process.numbers < self.acquisitions => steps.push(Step::Lock(at)),
            State::Waiting(_) if self.gives_up => steps.push(Step::GivesUp(at)),
            State::Holding(_) => {
                steps.push(Step::Unlock(at));
                if self.java {
                    steps.push(Step::UnlockOld(at));
                }
            }
            State::Idle | State::Waiting(_) => {}
        }
        is_due
    }

    fn faults(&self, world: &World, steps: &mut Vec<Step>) {
        for (at, process) in world.processes.iter().enumerate() {
            let asks = !process.requests.there.is_empty();
            let hears = !process.messages.there.is_empty();
            let may = |fault: Fault| match fault {
                Fault::LoseRequest | Fault::LateRequest => asks && !process.is_stopped,
                Fault::LoseReply => !process.replies.there.is_empty() && !process.is_stopped,
                Fault::SlowRequest => process.requests.is_due(),
                Fault::SlowReply => process.replies.is_due(),
                Fault::LoseMessage | Fault::DoubleMessage => hears,
                Fault::SlowMessage => process.messages.is_due(),
                Fault::Cut => process.channel == Channel::On && process.present().is_some(),
                Fault::Stop => !process.is_stopped && process.present().is_some(),
                Fault::Kill => process.present().is_some(),
                Fault::ClockForward | Fault::ClockBack => at == 0,
            };
            let allowed = self.allowed.iter().copied().filter(|fault| may(*fault));
            steps.extend(allowed.map(|fault| Step::Fault(fault, at)));
        }
    }

    /// Returns the state after this step, and whether the step has given a process the lock.
    pub(crate) fn after(&self, world: &World, step: Step) -> (World, bool) {
        let mut world = world.clone();
        let entered = world.take(step, self);
        world.server.expire();
        world.server.told.clear();
        world.late.sort_unstable();
        if world.broken.is_none() {
            world.broken = world.rule_broken(self);
        }
        (world, entered)
    }
}

impl World {
    fn take(&mut self, step: Step, setting: &Setting) -> bool {
        let (now, terms) = (self.now, setting.terms());
        if step.is_fault() {
            self.faults -= 1;
        }
        match step {
            Step::Lock(at) => self.processes[at].begin(),
            Step::GivesUp(at) => self.processes[at].end_wait(now, terms),
            Step::Unlock(at) => self.processes[at].unlock(now, Chain::default(), terms),
            Step::UnlockOld(at) => self.processes[at].unlock(now, OLD, terms),
            Step::Reads(at) => {
                let outcome = self.processes[at].reads(now, terms);
                return self.entered(at, outcome);
            }
            Step::Asks(at) => self.processes[at].asks(now, terms),
            Step::Renews(at) => self.processes[at].renew(now),
            Step::Lapses(at) => self.processes[at].lose(now, terms),
            Step::Undoes(at) => {
                self.processes[at].undo(now, &self.late);
            }
            Step::Serves(at) => {
                let Some(sent) = self.processes[at].requests.take() else { return false };
                let reply = self.serve(sent, setting);
                if !matches!(reply, Reply::Released(_)) {
                    self.processes[at].replies.there.push_back((sent, reply));
                }
            }
            Step::GetsReply(at) => {
                let Some((sent, reply)) = self.processes[at].replies.take() else { return false };
                let outcome = self.processes[at].answered(now, sent, reply, terms);
                return self.entered(at, outcome);
            }
            Step::Hears(at) => {
                if let Some(heard) = self.processes[at].messages.take() {
                    self.processes[at].told(now, heard, terms);
                }
            }
            Step::Confirmed(at) => {
                let process = &mut self.processes[at];
                process.channel = Channel::On;
                process.messages.there.push_back(Heard::Confirmed);
                self.server.listens |= 1 << process.client.0;
            }
            Step::Late(at) => {
                let sent = self.late.remove(at);
                self.serve(sent, setting);
                // No thread reads this reply. The owner notices the grant by its next request.
                let mut all = self.processes.iter_mut();
                if let Some(process) = all.find(|it| it.present() == Some(sent.owner)) {
                    process.is_deaf = true;
                }
            }
            Step::Resumes(at) => self.processes[at].is_stopped = false,
            Step::Time => self.pass(setting),
            Step::JavaWaits => (self.java, self.server.others) = (Java::Waits, 1),
            Step::JavaTakes => {
                if self.server.java_takes(setting.lease as i64) {
                    (self.java, self.server.others) = (Java::Holds, 0);
                }
            }
            Step::JavaLeaves => {
                self.server.java_leaves();
                self.java = Java::Done;
                self.deliver();
            }
            Step::Fault(fault, at) => self.fail(fault, at),
        }
        false
    }

    fn entered(&mut self, at: usize, outcome: Outcome) -> bool {
        match outcome {
            Outcome::Entered(token) => {
                let is_disturbed = self.processes[at].is_disturbed;
                if token.is_some_and(|token| token <= self.last) && !is_disturbed {
                    self.broken = Some("a token is not above the one before");
                }
                self.last = self.last.max(token.unwrap_or(0));
                true
            }
            Outcome::Failed => {
                self.broken = Some("a wait fails");
                false
            }
            Outcome::Nothing => false,
        }
    }

    fn pass(&mut self, setting: &Setting) {
        let runs = |process: &&Process| process.runs() && process.has_lapsed(self.now, None);
        if self.processes.iter().any(|process| runs(&process)) {
            self.broken = Some("a loss is not told");
        }
        self.now += setting.tick * MS;
        self.server.now += setting.tick as i64;
        for process in &mut self.processes {
            process.undoes = !process.undone.is_empty();
        }
        if self.java == Java::Holds && self.server.ends < self.server.now {
            self.java = Java::Done;
        }
    }

    fn serve(&mut self, sent: Sent, setting: &Setting) -> Reply {
        let Sent { owner, request, .. } = sent;
        let before = self.server.queue.clone();
        let reply = self.server.run(owner, request, setting.lease as i64);
        self.broken = self.broken.or_else(|| self.script_broken(&before, owner, request));
        if reply == Reply::Renewed(true) {
            // The renewal starts the lease again, by the server's present clock.
            let mut all = self.processes.iter_mut();
            if let Some(process) = all.find(|it| it.present() == Some(owner)) {
                process.is_disturbed = false;
            }
        }
        self.deliver();
        reply
    }

    /// Sends the server's messages to the clients that have subscribed.
    fn deliver(&mut self) {
        for mut message in std::mem::take(&mut self.server.told) {
            // Remove the parts of a message that no process reads, because they would only increase
            // the number of states.
            if let Message::Grant { places, chain, .. } = &mut message {
                (*places, *chain) = (0, Chain::default());
            }
            for process in &mut self.processes {
                let hears = match message {
                    Message::Grant { owner, .. } | Message::Open { owner, .. } => {
                        owner.client == process.client
                    }
                    Message::Public { .. } => process.hears_public,
                };
                if hears && process.channel == Channel::On {
                    process.messages.there.push_back(Heard::Message(message));
                }
            }
        }
    }

    fn fail(&mut self, fault: Fault, at: usize) {
        let now = self.now;
        let process = &mut self.processes[at];
        match fault {
            Fault::LoseRequest => {
                if let Some(sent) = process.requests.take() {
                    process.in_doubt(now, sent);
                }
            }
            Fault::LateRequest => {
                if let Some(sent) = process.requests.take() {
                    process.in_doubt(now, sent);
                    self.late.push(sent);
                }
            }
            Fault::LoseReply => {
                if let Some((sent, _)) = process.replies.take() {
                    process.in_doubt(now, sent);
                }
            }
            Fault::SlowRequest => process.requests.is_slow = true,
            Fault::SlowReply => process.replies.is_slow = true,
            Fault::SlowMessage => process.messages.is_slow = true,
            Fault::LoseMessage => {
                process.is_deaf = true;
                process.messages.take();
            }
            Fault::DoubleMessage => {
                if let Some(first) = process.messages.there.front().copied() {
                    process.messages.there.push_front(first);
                }
            }
            Fault::Cut => {
                process.is_deaf = true;
                process.channel = Channel::Broken;
                process.messages.clear();
                self.server.listens &= !(1 << process.client.0);
            }
            Fault::Stop => process.is_stopped = true,
            Fault::Kill => self.kill(at),
            Fault::ClockForward => {
                self.server.now += JUMP;
                for process in self.processes.iter_mut().filter(|it| it.present().is_some()) {
                    process.is_disturbed = true;
                }
            }
            Fault::ClockBack => self.server.now -= JUMP,
        }
    }

    /// Replaces the process by a process with another client. The old client's entries and holds at
    /// the server get the name of a client that no process has.
    fn kill(&mut self, at: usize) {
        let old = &self.processes[at];
        let (client, numbers) = (old.client, old.numbers);
        let mut new = Process::new(client, old.writes);
        new.numbers = numbers;
        let dead = |owner: &mut Owner| {
            if owner.client == client {
                owner.client = Client(client.0 + 8);
            }
        };
        self.late.extend(old.requests.there.iter().copied());
        self.processes[at] = new;
        self.late.iter_mut().for_each(|sent| dead(&mut sent.owner));
        let server = &mut self.server;
        server.listens &= !(1 << client.0);
        server.holders.iter_mut().chain(&mut server.queue).for_each(dead);
        server.timeouts.iter_mut().for_each(|(owner, _)| dead(owner));
        server.asked.iter_mut().for_each(|(owner, ..)| dead(owner));
    }

    // ---- the rules ------------------------------------------------------------------------

    /// Returns the rule that a script has broken, if the state after it shows this. `before` is the
    /// queue before the script.
    fn script_broken(
        &self,
        before: &[Owner],
        owner: Owner,
        request: Request,
    ) -> Option<&'static str> {
        let server = &self.server;
        let first = server.queue.first();
        let may_enter = match server.mode {
            None => server.window.is_none(),
            Some(mode) => mode == Mode::Read && first.is_some_and(|first| !first.writes),
        };
        if first.is_some() && may_enter && request != Request::Renew {
            return Some("a script leaves the lock free, and an owner waiting for it");
        }
        let gives_up = matches!(request, Request::GiveUp { .. });
        let passes_silent =
            matches!(request, Request::Acquire { again: Some(again) } if again.sent.is_some());
        let is_dropped = |other: &&Owner| {
            let is_there = server.queue.contains(other) || server.holders.contains(other);
            !is_there && server.hears(other.client) && !(gives_up && **other == owner)
        };
        if !passes_silent && before.iter().any(|other| is_dropped(&other)) {
            return Some("a script drops an owner that listens");
        }
        None
    }

    fn rule_broken(&self, setting: &Setting) -> Option<&'static str> {
        let claims = |process: &&Process| process.claims(self.now) && !process.is_disturbed;
        let claimants: Vec<_> = self.processes.iter().filter(claims).collect();
        let is_alone = claimants.len() < 2 || claimants.iter().all(|it| !it.writes);
        if !is_alone {
            return Some("two claim the lock");
        }
        let held = |owner: Owner| self.server.holders.contains(&owner);
        if claimants.iter().any(|it| !it.present().is_some_and(held)) {
            return Some("a process claims a lock that it does not have");
        }
        let mut waiting: Vec<_> = self.server.queue.clone();
        waiting.sort_unstable();
        waiting.dedup();
        if waiting.len() < self.server.queue.len() {
            return Some("an owner has two places");
        }
        if !self.server.queue.iter().all(|owner| self.is_known(*owner)) {
            return Some("a place without a process that knows of it");
        }
        if !self.server.holders.iter().all(|owner| self.is_told(*owner)) {
            return Some("a grant of which nobody is told");
        }
        let mut all = self.processes.iter().filter(|process| process.is_waiting()).peekable();
        let is_free = self.server.mode.is_none() && all.peek().is_some();
        if is_free && !all.any(|process| process.will_ask(self.now, setting.flaw)) {
            return Some("a free lock for which nobody will ask");
        }
        None
    }

    /// Returns the process of this owner, or `None` if the process is dead or a Redisson client.
    fn process_of(&self, owner: Owner) -> Option<&Process> {
        self.processes.iter().find(|process| process.client == owner.client)
    }

    /// Whether a message or a request of this owner is in flight, or may be sent later.
    fn is_left(&self, process: &Process, owner: Owner) -> bool {
        process.undone.contains(&owner)
            || process.requests.there.iter().chain(&self.late).any(|sent| sent.owner == owner)
    }

    fn is_known(&self, owner: Owner) -> bool {
        self.process_of(owner)
            .is_none_or(|it| it.present() == Some(owner) || self.is_left(it, owner))
    }

    fn is_told(&self, owner: Owner) -> bool {
        let Some(process) = self.process_of(owner) else { return true };
        let is_grant = |heard: &Heard| matches!(heard, Heard::Message(Message::Grant { owner: other, .. }) if *other == owner);
        let knows = match &process.state {
            State::Holding(hold) => hold.number == owner.number,
            State::Waiting(_) if process.present() == Some(owner) => {
                let is_busy = process.is_asking() || process.can_read(None);
                is_busy || process.is_deaf || process.can_ask(self.now, None)
            }
            _ => false,
        };
        knows || self.is_left(process, owner) || process.messages.there.iter().any(is_grant)
    }
}
