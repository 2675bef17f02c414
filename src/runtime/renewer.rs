//! The thread that does all background I/O.

mod own_link;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use log::Level;
use redis::Value;
use redlatch_client::pubsub::HEARTBEAT;
use redlatch_client::sync::clock;
use redlatch_client::{
    Cause, Command, Failure, Lane, Node, Outcome, Posted, is_redirect, is_transient, reply_code,
    slot_of,
};

use self::own_link::OwnLink;
pub(super) use self::own_link::RESENT_WITHIN;
use super::todo::Todo;
use super::{Core, Member};
use crate::lease::{Cleanup, Job, Renewal, renewal};
use crate::scripts::renewal::{Held, Longer, RenewalKind, Renewed};
use crate::scripts::{self, Place, RequestId, Requests, Trouble};

/// How many names one script call renews. More would block the server's other clients for longer.
const NAMES_A_CALL: usize = 128;
/// How many names' renewals are written before a reply is read.
const NAMES_A_PACKET: usize = 16 * NAMES_A_CALL;
/// How long a reply without a waiting caller may take, on top of some round trips; then its lane is
/// thrown away.
const PATIENCE: Duration = Duration::from_millis(100);
/// How many names' changes of semaphores are looked at each time.
const NAMES_A_TICK: usize = 2_000;
const ASK_AGAIN: u64 = 1_000_000_000;
/// When to ask again if the server only forbids to repeat some changes.
const ASK_FOR_RIGHTS: u64 = 5_000_000_000;
/// When a keep-alive that panicked is due again.
const AFTER_A_PANIC: Duration = Duration::from_secs(1);

/// A server's thread with its own connection.
pub(crate) struct Renewer {
    core: Arc<Core>,
    /// The number of the server.
    server: usize,
    /// See [`NAMES_A_CALL`]. In a cluster a call is for one name: two names are in two slots, or,
    /// while their slot is on its way to another server, at two servers.
    names_a_call: usize,
    /// Renewals neither wait for the callers' commands nor delay them.
    own: OwnLink,
    /// Cleanups that are not done yet.
    cleanups: Vec<Cleanup>,
    /// When to ask once more for the holds, since the server did not answer.
    ask_again: Option<u64>,
    /// The last run of the server to which earlier releases were repeated.
    last_run: u64,
    /// Changes of semaphores to repeat at another run of the server, or in moved slots.
    mending: VecDeque<Mending>,
    /// Some of them were forbidden, which the log says once.
    is_forbidden: bool,
    /// Set while the server refuses renewals.
    refusing: Option<Refusing>,
}

/// The repeating of changes of semaphores, some names a turn: there may be 100,000, and renewals go
/// between.
#[derive(Default)]
struct Mending {
    place: Place,
    /// The server's run.
    run: u64,
    /// In these slots of a cluster. `None`: of all names, at another run of the server.
    slots: Option<Vec<u16>>,
    mended: Mended,
}

#[derive(Default)]
struct Mended {
    taken: i64,
    given: i64,
    /// The user lacks a right to repeat some.
    is_forbidden: bool,
}

/// Renewals that a server answers and refuses, from the first one on until it takes them again.
struct Refusing {
    since: u64,
    /// The holds refused last, and until when each is certainly held: later no renewal is made.
    holds: HashMap<Arc<str>, u64>,
}

impl Renewer {
    pub(crate) fn new(core: Arc<Core>, node: &Arc<Node>) -> Self {
        let (server, in_cluster) = (node.number(), core.servers.cluster().is_some());
        let names_a_call = if in_cluster { 1 } else { NAMES_A_CALL };
        let own = OwnLink::new(&core, node);
        let last_run = own.endpoint.incarnation();
        Self {
            core,
            server,
            names_a_call,
            own,
            cleanups: Vec::new(),
            ask_again: None,
            last_run,
            mending: VecDeque::new(),
            is_forbidden: false,
            refusing: None,
        }
    }

    /// Opens the connection now. At the first renewal the server may be full, or its password
    /// another one, and refuse a new connection.
    pub(crate) fn connect(mut self) -> Self {
        // The server's health has logged a failure. Until there is a connection the lanes are used.
        let _none_now = self.own.opens();
        self
    }

    /// The thread's whole life: until the client's end and the last job, or until the channel is
    /// disconnected.
    pub(crate) fn run(mut self, jobs: &Receiver<Job>) {
        let mut todo = Todo::default();
        loop {
            jobs.try_iter().for_each(|job| todo.put(job));
            match todo.next() {
                Some(Job::End) => {
                    // Cleanups left after a turn have paid, and may owe more.
                    while !self.mending.is_empty() {
                        self.try_to(Self::mend_some);
                    }
                    while !self.cleanups.is_empty() {
                        self.try_to(|renewer| renewer.send_due_cleanups(u64::MAX));
                    }
                    return;
                }
                Some(job) => {
                    self.try_to(|renewer| renewer.work(job));
                }
                None => match jobs.recv_timeout(self.pause()) {
                    Ok(job) => todo.put(job),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        self.cleanups.into_iter().for_each(|it| self.core.watchdog.clean_up(it));
                        return;
                    }
                },
            }
            let now = clock::now();
            if self.ask_again.is_some_and(|at| at <= now) {
                self.try_to(|renewer| renewer.work(Job::RenewAll));
            }
            self.try_to(Self::mend_some);
            // One packet, after the urgent jobs: while the server is away a packet takes its time.
            if !todo.is_urgent() {
                self.try_to(|renewer| renewer.send_due_cleanups(now));
            }
            if self.core.servers.cluster().is_none() {
                self.core.heartbeat();
            }
        }
    }

    /// How long the thread may sleep if no job comes.
    fn pause(&self) -> Duration {
        if !self.mending.is_empty() {
            return Duration::ZERO;
        }
        let next = self.cleanups.iter().map(Cleanup::due).chain(self.ask_again).min();
        let pause = next.map(|at| Duration::from_nanos(at.saturating_sub(clock::now())));
        pause.unwrap_or(HEARTBEAT).min(HEARTBEAT)
    }

    /// A job's panic must not end the renewals of all others. `false`: it panicked.
    fn try_to(&mut self, work: impl FnOnce(&mut Self)) -> bool {
        let done = catch_unwind(AssertUnwindSafe(|| work(self))).is_ok();
        if !done {
            self.core.watchdog.tell_panic();
            self.own.close();
        }
        done
    }

    /// The outcome for the receivers of a job that panicked: as if the connection had broken.
    fn panicked(&self) -> Failure {
        let error = io::Error::other("a background job panicked");
        Failure::Reset(Cause::new(error, self.own.endpoint.health()))
    }

    fn work(&mut self, job: Job) {
        match job {
            Job::Renew(renewals) => self.renew_each(renewals),
            Job::RenewAll => {
                self.ask_again = None;
                // The old connection may lead to a server that is master no more, and still
                // answers.
                self.own.close();
                self.cleanups.iter_mut().for_each(Cleanup::start_anew);
                let mut members = self.core.members.all();
                members.retain(|member| self.is_home(member.name()));
                let mut renewals = Vec::new();
                for member in members.iter().cloned() {
                    self.try_to(|_| renewals.extend(member.renew_now()));
                }
                self.renew_each(renewals);
                self.try_to(|renewer| renewer.give_back_leftovers(members));
                self.try_to(Self::meet_the_server);
            }
            Job::CleanUp(cleanup) => self.cleanups.push(cleanup),
            Job::Mend(name, requests, request_id) => {
                self.try_to(|renewer| renewer.mend_late(&name, &requests, request_id));
            }
            Job::Connected => self.cleanups.iter_mut().for_each(Cleanup::hurry),
            Job::TellSubscriber(node) => self.core.tell_subscriber(&node),
            Job::Look(lanes) => lanes.iter().for_each(|lane| self.look(lane)),
            Job::LookAt(node) => {
                // A renewal may have reached the server since.
                if node.endpoint.health().is_to_be_looked_at() {
                    self.own.look();
                }
            }
            Job::Moved(slots) => {
                let mut members = self.core.members.in_slots(&slots);
                members.retain(|member| self.is_home(member.name()));
                self.log_moved(&members);
                self.try_to(|renewer| renewer.give_back_leftovers(members));
                let is_meant = |renewer: &Self, name: &str| {
                    slots.binary_search(&slot_of(name.as_bytes())).is_ok() && renewer.is_home(name)
                };
                self.return_again(is_meant);
                self.mending.push_back(Mending { slots: Some(slots), ..Mending::default() });
            }
            Job::End => {}
        }
    }

    /// Logs that this server now has these names of a cluster.
    fn log_moved(&self, members: &[Arc<dyn Member>]) {
        let Some(first) = members.first() else { return };
        let address = self.own.endpoint.health().address();
        let names: HashSet<_> = members.iter().map(|member| member.name()).collect();
        let others = match names.len() - 1 {
            0 => String::new(),
            others => format!(" (and of {others} other names)"),
        };
        self.core.watchdog.log(Level::Warn, || {
            format!(
                "the slot of {:?}{others} is now at the server at {address}, after a failover or a \
                 move: this client checks its locks there",
                first.name()
            )
        });
    }

    /// Whether this server has the key of a name, as far as this client knows.
    fn is_home(&self, name: &str) -> bool {
        self.core.servers.home(name.as_bytes()).number() == self.server
    }

    /// Renews the due holds, and asks for the others. Each one's `Renewal` gets an outcome, or it
    /// would never be renewed again: after a panic all of them do, since it is not known which had
    /// theirs.
    fn renew_each(&mut self, mut renewals: Vec<Renewal>) {
        if !self.try_to(|renewer| renewer.send_renewals(&mut renewals)) {
            let (now, cause) = (clock::now(), self.panicked().cause().error.to_string().into());
            for due in &renewals {
                if due.lease.is_some() {
                    self.try_to(|_| (due.renewed)(now, Err(&cause), false));
                }
            }
            self.ask_again = Some(now.saturating_add(ASK_AGAIN));
        }
    }

    /// The longest lease first. Each lease has a call of its own, but no packet of its own: fixed
    /// leases may all differ.
    fn send_renewals(&mut self, renewals: &mut [Renewal]) {
        let sort = |due: &Renewal| (std::cmp::Reverse(due.lease), due.kind, due.longer);
        renewals.sort_by_key(sort);
        let names_a_call = self.names_a_call;
        let same = renewals.chunk_by(|one, other| sort(one) == sort(other));
        let (mut packet, mut names) = (Vec::new(), 0);
        for call in same.flat_map(|same| same.chunks(names_a_call)) {
            if names + call.len() > NAMES_A_PACKET {
                self.renew(&packet);
                packet.clear();
                names = 0;
            }
            packet.push(call);
            names += call.len();
        }
        if !packet.is_empty() {
            self.renew(&packet);
        }
    }

    fn renew(&mut self, calls: &[&[Renewal]]) {
        let sent_at = clock::now();
        // A lease of zero changes nothing.
        let lease = |call: &[Renewal]| call.first().and_then(|due| due.lease).unwrap_or_default();
        let longer = |call: &[Renewal]| call.first().map_or(Longer::Stays, |due| due.longer);
        let kind = |call: &[Renewal]| call.first().map_or(RenewalKind::Locks, |due| due.kind);
        let acks = renewal::acks(&self.core.config);
        let commands: Vec<_> = calls
            .iter()
            .map(|call| {
                let holds = call.iter().map(|due| (&*due.key, &due.owner));
                // A query writes nothing.
                let acks = acks.filter(|_| !lease(call).is_zero());
                scripts::renewal::renew_command(kind(call), holds, lease(call), longer(call), acks)
            })
            .collect();
        let raises = calls.iter().copied().flatten().any(|due| due.urgent);
        let (outcomes, resent) =
            self.own.exchange(&commands, raises.then_some(renewal::RAISED_WITHIN));
        let address = self.own.endpoint.health().address();
        let (mut unanswered, mut refused) = (false, false);
        let (mut accepted, mut refusals) = (Vec::new(), Vec::new());
        let mut tell = |due: &Renewal, renewed: Result<Held, &Arc<str>>| {
            if due.lease.is_some() || renewed == Ok(Held::No) {
                (due.renewed)(sent_at, renewed, resent);
            }
            // A renewal's own alarm tries it again.
            unanswered |= due.lease.is_none() && renewed.is_err();
        };
        for (call, outcome) in calls.iter().zip(outcomes) {
            let is_refused =
                matches!(outcome, Err(Failure::Refused(_) | Failure::Unacknowledged(..)));
            let mut refuse = |due: &Renewal, cause: &Arc<str>| {
                if due.lease.is_some() {
                    refusals.push((Arc::clone(&due.key), due.until, Arc::clone(cause)));
                }
            };
            let replies = scripts::renewal::renewed(kind(call), outcome, &address)
                .map_err(Trouble::into_error);
            let cause = match replies {
                Ok(replies) if replies.len() == call.len() => {
                    for (due, reply) in call.iter().zip(replies) {
                        match reply {
                            Renewed::Done(held) => {
                                if due.lease.is_some() {
                                    accepted.push(Arc::clone(&due.key));
                                }
                                tell(due, Ok(held));
                            }
                            Renewed::Failed(refusal) => {
                                refused = true;
                                let cause = format!("{refusal:#}").into();
                                refuse(due, &cause);
                                tell(due, Err(&cause));
                            }
                            Renewed::Unacknowledged(unacknowledged) => {
                                let cause = format!("{unacknowledged:#}").into();
                                refuse(due, &cause);
                                tell(due, Err(&cause));
                            }
                        }
                    }
                    continue;
                }
                Ok(_) => "the server answered for other names than were asked for".into(),
                Err(error) => format!("{error:#}").into(),
            };
            for due in *call {
                if is_refused {
                    refuse(due, &cause);
                }
                tell(due, Err(&cause));
            }
        }
        self.log_refusals(&address, &accepted, refusals);
        if refused {
            // The connection may lead to a server that became a replica.
            self.own.close();
        }
        if unanswered {
            self.ask_again = Some(clock::now().saturating_add(ASK_AGAIN));
        }
    }

    /// Logs the first refused renewal, and when all are accepted again.
    fn log_refusals(
        &mut self,
        address: &str,
        accepted: &[Arc<str>],
        refusals: Vec<(Arc<str>, u64, Arc<str>)>,
    ) {
        let now = clock::now();
        if let Some((name, until, cause)) = refusals.iter().min_by_key(|(_, until, _)| *until)
            && self.refusing.is_none()
        {
            let left = Duration::from_nanos(until.saturating_sub(now)).as_secs_f64();
            let others = match refusals.len() - 1 {
                0 => String::new(),
                others => format!(" and {others} others"),
            };
            self.core.watchdog.log(Level::Warn, || {
                format!(
                    "the server at {address} refuses to renew {name:?}{others}: {cause}; if that \
                     goes on, the lease ends in {left:.1} s"
                )
            });
            self.refusing = Some(Refusing { since: now, holds: HashMap::new() });
        }
        let Some(refusing) = &mut self.refusing else { return };
        for name in accepted {
            refusing.holds.remove(name);
        }
        refusing.holds.extend(refusals.into_iter().map(|(name, until, _)| (name, until)));
        // Ended holds are not renewed any more.
        refusing.holds.retain(|_, until| *until > now);
        if refusing.holds.is_empty() && !accepted.is_empty() {
            let after = Duration::from_nanos(now.saturating_sub(refusing.since)).as_secs_f64();
            self.core.watchdog.log(Level::Info, || {
                format!("the server at {address} accepts renewals again, after {after:.1} s")
            });
            self.refusing = None;
        }
    }

    /// Another server may have become the master, or this one may have come back with older data: a
    /// hold released shortly before may exist there again, under an owner that no thread uses. Its
    /// waiters would wait for the end of its lease. (A list of all released holds would have no
    /// end. So the renewer asks for the owners of the locks that this client knows.)
    fn give_back_leftovers(&mut self, mut members: Vec<Arc<dyn Member>>) {
        members.retain(|member| member.has_owners());
        // The last member of a name: a fair lock's queue knows more than its site, and is made
        // after it.
        let by_name: HashMap<_, _> =
            members.iter().map(|member| (Arc::clone(member.name()), member)).collect();
        let members: Vec<_> = by_name.into_iter().collect();
        for members in members.chunks(NAMES_A_PACKET) {
            let calls: Vec<_> = members.chunks(self.names_a_call).collect();
            let command = |call: &&[(Arc<str>, _)]| {
                let names: Vec<_> = call.iter().map(|(name, _)| &**name).collect();
                scripts::lock::owners_command(&names, self.core.id.as_str())
            };
            let commands: Vec<_> = calls.iter().map(command).collect();
            let outcomes = self.own.exchange(&commands, None).0;
            for (call, outcome) in calls.into_iter().zip(outcomes) {
                if outcome.as_ref().is_err_and(may_pass) {
                    self.ask_again = Some(clock::now().saturating_add(ASK_AGAIN));
                }
                // Without the right to ask, they end with their leases.
                let Ok(owners) = scripts::lock::owners(outcome) else { continue };
                for ((_, member), owners) in call.iter().zip(owners) {
                    let left_over = owners.iter().filter(|owner| self.core.is_left_over(owner));
                    left_over.for_each(|owner| member.give_up_owner(owner));
                }
            }
        }
    }

    /// Finds out whether this is another run of the server, or another server, and if so repeats
    /// the releases made at the one before.
    fn meet_the_server(&mut self) {
        let mut members = self.core.members.all();
        members.retain(|member| member.is_a_count() && self.is_home(member.name()));
        if members.is_empty() && self.core.returned.is_empty() && self.core.changes.is_empty() {
            return;
        }
        let met = self.own.opens();
        let run = self.own.endpoint.incarnation();
        if self.last_run != run {
            self.return_again(|renewer, name| renewer.is_home(name));
            self.mending.retain(|it| it.slots.is_some());
            self.mending.push_back(Mending { run, ..Mending::default() });
        } else if !met {
            self.ask_again = Some(clock::now().saturating_add(ASK_AGAIN));
        }
    }

    /// Repeats the changes of some semaphores that this server does not know.
    fn mend_some(&mut self) {
        let Some(mut mending) = self.mending.pop_front() else { return };
        let names = self.core.changes.next(&mut mending.place, NAMES_A_CALL);
        let (run, asked) = (self.own.endpoint.incarnation(), clock::now());
        let mut mends: Vec<_> = names.iter().flat_map(|requests| requests.mends(None)).collect();
        mends.retain(|(name, _)| mending.is_meant(self, name));
        let Some(mended) = self.send_mends(&mends) else {
            // The server is asked again, and then for all.
            if mending.slots.is_some() {
                self.last_run = u64::MAX;
            }
            return;
        };
        if !mended.is_forbidden {
            for requests in &names {
                requests.told(run, asked, |name| mending.is_meant(self, name));
            }
        }
        mending.mended.taken += mended.taken;
        mending.mended.given += mended.given;
        mending.mended.is_forbidden |= mended.is_forbidden;
        if !names.is_empty() {
            self.mending.push_front(mending);
            return;
        }
        let Mended { taken, given, is_forbidden } = mending.mended;
        self.is_forbidden = is_forbidden;
        if is_forbidden {
            self.mend_again();
        } else if mending.slots.is_none() {
            self.last_run = mending.run;
        }
        // A regular move of a slot loses nothing. A server that does not tell its run may be the
        // same one: then only a mended count shows that it is another.
        let is_another =
            mending.slots.is_none() && !is_forbidden && self.own.endpoint.says_its_run();
        if is_another || (taken, given) != (0, 0) {
            let mut members = self.core.members.all();
            members.retain(|member| member.is_a_count() && mending.is_meant(self, member.name()));
            self.warn_of_counts(&members, [taken, given]);
        }
    }

    /// A right may be given back as long as the changes are known, and until then each later request
    /// in their slots is refused (`lua/once.lua`). All changes are repeated: those made change
    /// nothing.
    fn mend_again(&mut self) {
        self.last_run = u64::MAX;
        let at = clock::now().saturating_add(ASK_FOR_RIGHTS);
        self.ask_again = Some(self.ask_again.map_or(at, |earlier| earlier.min(at)));
    }

    /// The same for one slot, if the reply to its last change came after this server had been told
    /// the earlier ones.
    fn mend_late(&mut self, name: &Arc<str>, requests: &Requests, request_id: RequestId) {
        match self.send_mends(&requests.mends_of(request_id)) {
            // The next `RenewAll` repeats all changes.
            None => self.last_run = u64::MAX,
            Some(Mended { is_forbidden: true, .. }) => {
                self.is_forbidden = true;
                self.mend_again();
            }
            // This server has applied it, or the renewer has told the server.
            Some(Mended { taken: 0, given: 0, .. }) => {}
            Some(Mended { taken, given, .. }) => {
                let mut members = self.core.members.all();
                members.retain(|member| member.is_a_count() && member.name() == name);
                self.warn_of_counts(&members, [taken, given]);
            }
        }
    }

    /// `None`: the server may take them later.
    fn send_mends(&mut self, mends: &[(Arc<str>, Command)]) -> Option<Mended> {
        let mut mended = Mended::default();
        for part in mends.chunks(NAMES_A_CALL) {
            let commands: Vec<_> = part.iter().map(|(_, command)| command.clone()).collect();
            let outcomes = self.own.exchange(&commands, None).0;
            for ((name, _), outcome) in part.iter().zip(outcomes) {
                match outcome {
                    Ok(Value::Int(permits)) if permits < 0 => mended.taken -= permits,
                    Ok(Value::Int(permits)) => mended.given += permits,
                    Err(failure) if may_pass(&failure) => {
                        self.ask_again = Some(clock::now().saturating_add(ASK_AGAIN));
                        return None;
                    }
                    Err(Failure::Refused(cause)) if reply_code(&cause.error) == "NOPERM" => {
                        mended.is_forbidden = true;
                        if !self.is_forbidden {
                            self.core.watchdog.log(Level::Error, || {
                                format!(
                                    "the permits of {name:?} cannot be restored after a failover \
                                     without the access rights of a semaphore; tried again for two \
                                     minutes"
                                )
                            });
                        }
                    }
                    _ => self.core.watchdog.log(Level::Error, || {
                        format!("the permits of {name:?} could not be restored after a failover")
                    }),
                }
            }
        }
        Some(mended)
    }

    /// Logs the counts that cannot be mended.
    fn warn_of_counts(&self, members: &[Arc<dyn Member>], [taken, given]: [i64; 2]) {
        let mut names: Vec<_> = members.iter().map(|member| Arc::clone(member.name())).collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return;
        }
        let address = self.own.endpoint.address();
        self.core.watchdog.log(Level::Warn, || {
            let some: Vec<_> = names.iter().take(10).map(|name| format!("{name:?}")).collect();
            let more = names.len().saturating_sub(some.len());
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!(
                "another server is the master at {address}, or it was started anew; semaphores in \
                 use: {}{more}. It had not heard of {taken} permits that this client had taken and \
                 of {given} that it had given back, which was put right. What clients did that \
                 ended since, or Redisson's, was not: compare available_permits with what is out",
                some.join(", ")
            )
        });
    }

    /// Likewise, repeats the latest releases of permits of expirable semaphores.
    fn return_again(&mut self, is_meant: impl Fn(&Self, &str) -> bool) {
        for (name, returned) in self.core.returned.to(|name| is_meant(self, name)) {
            for ids in returned.ids.chunks(NAMES_A_CALL) {
                let release = scripts::expirable_semaphore::release_again_command(&name, ids);
                self.cleanups.push(Cleanup::left_over(&name, release, returned.lease));
            }
        }
    }

    /// Sends due cleanups, as many as fit in one packet, and keeps unfinished ones for later. The
    /// others wait for their next turn: there may be thousands, each packet takes a round trip, and
    /// a renewal that falls due meanwhile goes before the next one.
    fn send_due_cleanups(&mut self, now: u64) {
        let is_due = |cleanup: &Cleanup| cleanup.due() <= now;
        let regular = self.cleanups.extract_if(.., |it| it.is_regular() && is_due(it));
        let mut due: VecDeque<_> = regular.collect();
        due.extend(self.cleanups.extract_if(.., |it| is_due(it)).take(NAMES_A_CALL));
        if self.core.servers.cluster().is_some() && !self.core.is_shut_down() {
            // The server may be gone for good, and the slot another server's.
            let (here, elsewhere) = due.into_iter().partition(|cleanup| match cleanup.server() {
                Some(number) => number == self.server,
                None => self.is_home(cleanup.name()),
            });
            due = here;
            let elsewhere: VecDeque<_> = elsewhere;
            elsewhere.into_iter().for_each(|cleanup| self.core.watchdog.clean_up(cleanup));
        }
        self.try_to(|renewer| renewer.send_cleanups(&mut due));
        // None, unless a job panicked.
        while !due.is_empty() {
            let outcome = Err(self.panicked());
            if !self.try_to(|renewer| renewer.cleanup_heard(&mut due, &outcome, true)) {
                let cleanup = due.pop_front();
                // The client's end would send it again and again: it waits for no time there.
                let goes_on = |it: &Cleanup| it.is_regular() && !self.core.is_shut_down();
                let regular = cleanup.filter(goes_on);
                self.cleanups.extend(regular.map(|it| it.after(AFTER_A_PANIC)));
            }
        }
    }

    /// Sends the cleanups in one packet.
    fn send_cleanups(&mut self, due: &mut VecDeque<Cleanup>) {
        let mut commands = Vec::new();
        due.retain(|cleanup| wants(cleanup.command(), &mut commands));
        if commands.is_empty() {
            return;
        }
        let (outcomes, resent) = self.own.exchange(&commands, None);
        for outcome in &outcomes {
            self.cleanup_heard(due, outcome, resent);
        }
    }

    /// Takes the outcome of the first cleanup's command. The cleanup is taken out afterwards: a
    /// panic loses none.
    fn cleanup_heard(&mut self, due: &mut VecDeque<Cleanup>, outcome: &Outcome, resent: bool) {
        let (watchdog, ended) = (&self.core.watchdog, self.core.is_shut_down());
        let goes_on = due
            .front_mut()
            .is_some_and(|cleanup| cleanup.goes_on(outcome, resent, clock::now(), watchdog, ended));
        let cleanup = due.pop_front();
        self.cleanups.extend(cleanup.filter(|_| goes_on));
    }

    fn look(&self, lane: &Arc<Lane>) {
        let patience = PATIENCE + self.core.round_trip.saturating_mul(4);
        // Renewals wait meanwhile. In an outage no connection is opened: a posted command fails,
        // and is sent as a cleanup.
        let to_open = if self.own.endpoint.health().is_out() {
            Duration::ZERO
        } else {
            patience.saturating_mul(10).min(self.own.endpoint.connect_timeout())
        };
        // A combiner is at work, which reads, but perhaps not the replies of later posts; or there
        // is more to read.
        if !lane.look(patience, to_open) && lane.look_after() == Posted::LookAfter {
            self.core.watchdog.look_after(lane);
        }
    }
}

impl Mending {
    fn is_meant(&self, renewer: &Renewer, name: &str) -> bool {
        let is_in = |slots: &Vec<u16>| slots.binary_search(&slot_of(name.as_bytes())).is_ok();
        self.slots.as_ref().is_none_or(is_in) && renewer.is_home(name)
    }
}

/// Whether to ask the server again: it did not answer, or its refusal may be transient.
fn may_pass(failure: &Failure) -> bool {
    match failure {
        Failure::Refused(cause) => is_transient(&cause.error) || is_redirect(&cause.error),
        failure => failure.is_the_links(),
    }
}

/// Whether there is a command, which it adds to the others.
fn wants(command: Option<Command>, commands: &mut Vec<Command>) -> bool {
    let is_wanted = command.is_some();
    commands.extend(command);
    is_wanted
}

impl Core {
    /// Shows the subscriber that its connection is alive. `false`: not due yet.
    pub(super) fn heartbeat(&self) -> bool {
        let (now, last) = (clock::now(), self.last_heartbeat.load(Ordering::Relaxed));
        let is_due = now.saturating_sub(last) >= clock::nanos(HEARTBEAT);
        if is_due {
            self.last_heartbeat.store(now, Ordering::Relaxed);
            self.members.sweep();
            self.returned.sweep();
            self.changes.sweep(NAMES_A_TICK);
            self.tell_forgotten();
            for node in self.pubsub.heartbeats() {
                self.tell_subscriber(&node);
                self.compare_channels(&node);
            }
            self.look_after_unwritten();
            // A server without slots may be gone for good.
            let mut nodes =
                self.servers.cluster().map_or_else(|| self.servers.all(), |it| it.masters());
            nodes.retain(|node| node.endpoint.health().is_to_be_looked_at());
            nodes.into_iter().for_each(|node| self.watchdog.look_at(node));
        }
        is_due
    }

    /// Calls with a limit leave commands unwritten when the server takes none. No post may follow
    /// them, and the next call may come much later.
    fn look_after_unwritten(&self) {
        for node in self.servers.all() {
            for lane in node.lanes().iter().filter(|lane| lane.has_unwritten()) {
                if lane.look_after() == Posted::LookAfter {
                    self.watchdog.look_after(lane);
                }
            }
        }
    }
}

#[cfg(all(test, testkit))]
mod tests;
