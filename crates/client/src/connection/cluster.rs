//! Which server of a cluster has which slot, and how a command finds it.
//!
//! ```text
//! call   to the slot's server, as far as known -> its reply
//!        MOVED: that server has the slot now, and is remembered -> call again
//!        ASK: this once, over there, behind ASKING -> its reply
//!        TRYAGAIN, CLUSTERDOWN, no server there: look for it, a moment later call again
//! ```
//!
//! All within the call's own time. A command refused in these ways was not run. A command whose
//! connection broke may have run: it is sent again only as its copy, as with one server.
//!
//! No thread looks at the slots while all is well. A thread that a server sends elsewhere, or that
//! reaches none, looks: one thread for all.
//!
//! View: a server that is cut off from the others goes on naming the old owners of slots. It knows
//! that it sees no majority of the masters (`cluster_state`), and when the others choose a new
//! master their epoch is a later one. So its answer counts only if no server has a better one, or
//! as one of a majority: a majority cannot be cut off.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use redis::{RedisError, RedisResult, Value};

use super::ConnectError;
use super::Settings;
use super::host_port::HostPort;
use super::limit::{self, Limit};
use super::reply::{Redirect, redirect, redirect_of};
use super::url::{Kind, Url};
use super::{
    Cause, Channels, Command, Endpoint, Failure, Lane, Node, Outcome, SLOTS, error_reply, slot_of,
};
use crate::sync::{Condvar, Mutex, own_thread};

mod slots;

use slots::{Range, Weight, ranges};

/// The time for a server's answer on its slots.
const SAYS_WITHIN: Duration = Duration::from_millis(500);
/// The shortest time between two questions to the servers.
const AGAIN: Duration = Duration::from_millis(50);
/// If the last look was so long ago, a thread looks at all slots when a server names another for
/// one slot: that one may have taken the place of a dead server.
const SEEN: Duration = Duration::from_secs(1);
/// How long a call waits before it is sent again: at first, and at last.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LAST_PAUSE: Duration = Duration::from_millis(50);
const NOBODY: u16 = u16::MAX;

/// The servers of a cluster that were met, and the slots.
pub struct Cluster {
    /// The pattern of the servers' endpoints.
    manner: Endpoint,
    lanes: OnceLock<usize>,
    state: Mutex<ClusterState>,
    /// A thread has looked at the slots.
    looked: Condvar,
    on_node: OnceLock<OnNode>,
    on_moved: OnceLock<OnMoved>,
    ended: AtomicBool,
}

type OnNode = Box<dyn Fn(&Arc<Node>) + Send + Sync>;
type OnMoved = Box<dyn Fn(&[u16]) + Send + Sync>;

struct ClusterState {
    /// By number. None is ever removed.
    nodes: Vec<(HostPort, Arc<Node>)>,
    /// The number of each slot's server.
    owners: Vec<u16>,
    /// The servers to ask: the last one that was believed comes first, silent ones come last.
    known: Vec<HostPort>,
    /// The servers of the URL.
    seeds: Vec<HostPort>,
    /// The servers that have not answered the last question.
    silent: Vec<HostPort>,
    /// The epoch of the last believed view.
    epoch: u64,
    looking: bool,
    looked_at: Option<Instant>,
}

impl Cluster {
    /// Finds the servers. `None`: the URL is of another kind.
    pub fn connect(url: &str, config: &Settings) -> Result<Option<Arc<Self>>, ConnectError> {
        let url = Url::parse(url).map_err(ConnectError::unusable)?;
        if !matches!(url.kind, Kind::Cluster) {
            return Ok(None);
        }
        Ok(Some(Arc::new(Self::open(&url, config)?)))
    }

    fn open(url: &Url, config: &Settings) -> Result<Self, ConnectError> {
        let mut refusal = None;
        for address in &url.hosts {
            let manner = Endpoint::of_cluster(address, &url.settings, config)?;
            let asked = match ask(&manner, config.connect_timeout) {
                Ok(asked) => asked,
                Err(error) => {
                    let cause = Cause::new(error, manner.health());
                    refusal.get_or_insert(ConnectError::Unreachable(cause));
                    continue;
                }
            };
            let from = manner.host_port();
            let ranges = match ranges(&asked.slots, &from) {
                Ok(ranges) => ranges,
                Err(why) => {
                    let why = format!("{why}; it is at {}", manner.address());
                    return Err(ConnectError::unusable(why));
                }
            };
            if ranges.is_empty() {
                // A server that was removed from its cluster says the same.
                let message = format!(
                    "no server of the cluster at {} has a slot yet: create the cluster first",
                    manner.address()
                );
                refusal.get_or_insert(ConnectError::NotReady(message));
                continue;
            }
            let channels =
                if config.sharded_channels { Channels::Sharded } else { Channels::Cluster };
            let seeds: Vec<_> = url.hosts.iter().map(HostPort::of).collect();
            let state = ClusterState {
                nodes: Vec::new(),
                owners: vec![NOBODY; SLOTS.into()],
                known: seeds.clone(),
                seeds,
                silent: Vec::new(),
                epoch: 0,
                looking: false,
                looked_at: None,
            };
            let cluster = Self {
                manner: manner.with_channels(channels),
                lanes: OnceLock::new(),
                state: Mutex::new(state),
                looked: Condvar::new(),
                on_node: OnceLock::new(),
                on_moved: OnceLock::new(),
                ended: AtomicBool::new(false),
            };
            let view = View { from, ranges, weight: asked.weight };
            let _everything_is_new = cluster.learn(&view);
            return Ok(cluster);
        }
        Err(refusal.unwrap_or_else(|| ConnectError::unusable("no host")))
    }

    /// How many lanes lead to each server, from here on.
    pub fn set_lanes(&self, lanes: usize) {
        let _only_once = self.lanes.set(lanes);
        let mut state = self.state.lock();
        for (_, node) in &mut state.nodes {
            *node = Arc::new(Node::new(Arc::clone(node.any_lane()), lanes));
        }
    }

    /// From here on `tell` is called for each server that is met, and now for those that are known.
    pub fn on_node(&self, tell: impl Fn(&Arc<Node>) + Send + Sync + 'static) {
        self.nodes().iter().for_each(&tell);
        let _only_once = self.on_node.set(Box::new(tell));
    }

    /// From here on `tell` is called when slots, in their order, have another server. It must not
    /// block.
    pub fn on_moved(&self, tell: impl Fn(&[u16]) + Send + Sync + 'static) {
        let _only_once = self.on_moved.set(Box::new(tell));
    }

    /// The client ends: no thread waits for a server any more.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// All servers that were met.
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.state.lock().nodes.iter().map(|(_, node)| Arc::clone(node)).collect()
    }

    /// The server of this [number](Node::number).
    pub fn numbered(&self, number: usize) -> Arc<Node> {
        Arc::clone(&self.state.lock().nodes[number].1)
    }

    /// The servers that have slots, as far as this client knows.
    pub fn masters(&self) -> Vec<Arc<Node>> {
        self.state.lock().masters().map(|(_, node)| Arc::clone(node)).collect()
    }

    /// Whether a server has slots, as far as this client knows. One without slots may be gone for
    /// good.
    pub fn is_master(&self, node: &Node) -> bool {
        self.state.lock().has_slots(node)
    }

    /// The server of a slot, as far as this client knows; otherwise any one, which tells better.
    pub fn node(&self, slot: u16) -> Arc<Node> {
        let state = self.state.lock();
        let owner = usize::from(state.owners[usize::from(slot)]);
        let (_, node) = state.nodes.get(owner).unwrap_or(&state.nodes[0]);
        Arc::clone(node)
    }

    /// Follows, until `until`, a server's answer to a command of this slot that a background thread
    /// sent. Returns the reply of the server that has the slot. If another server has it from now
    /// on, that one's renewer sends the command, and waits for it alone: it was not run. (At the
    /// client's end there is none that could.)
    pub fn resend(
        self: &Arc<Self>,
        command: &Command,
        outcome: Outcome,
        until: Instant,
    ) -> Outcome {
        let (Some(key), Some(sent)) = (command.key(), redirect(&outcome)) else { return outcome };
        if self.is_ended() {
            return self.resend_at_the_end(command, key, outcome, until);
        }
        if let Redirect::Moved { slot, host_port } = &sent {
            self.learn_one(*slot, host_port);
        } else if Instant::now() < until {
            let slot = Slot::of(self, key, 0);
            let asked = slot.lane();
            return slot.follow(asked, outcome, false, command, None::<fn() -> Command>, until).0;
        }
        unfollowed(outcome)
    }

    /// As [`resend`](Self::resend), of a client that has ended: no other renewer sends the command
    /// after this.
    fn resend_at_the_end(
        self: &Arc<Self>,
        command: &Command,
        key: &[u8],
        mut outcome: Outcome,
        until: Instant,
    ) -> Outcome {
        let slot = Slot::of(self, key, 0);
        let mut pause = Duration::ZERO;
        while let Some(sent) = redirect(&outcome)
            && sent != Redirect::Halfway
            && Instant::now() < until
        {
            thread::sleep(pause);
            pause = Slot::longer(pause);
            if let Redirect::Moved { slot, host_port } = &sent {
                self.learn_one(*slot, host_port);
            }
            outcome = match sent {
                Redirect::Ask { host_port } => {
                    let node = self.numbered(self.number(&host_port).into());
                    node.any_lane().call_asking(command)
                }
                _ => slot.lane().call_unless_out(command),
            };
        }
        unfollowed(outcome)
    }

    /// Whether a server refuses a command because another one is to be asked, now or soon.
    pub(crate) fn sends_elsewhere(&self, error: &RedisError) -> bool {
        match redirect_of(error) {
            None => return false,
            Some(Redirect::Moved { slot, host_port }) => self.learn_one(slot, &host_port),
            Some(Redirect::Ask { .. } | Redirect::Later | Redirect::Halfway) => {}
        }
        true
    }

    fn learn_one(&self, slot: u16, host_port: &HostPort) {
        let number = self.number(host_port);
        let mut state = self.state.lock();
        let owner = &mut state.owners[usize::from(slot)];
        let is_new = std::mem::replace(owner, number) != number;
        let seen = state.looked_at.is_some_and(|at| at.elapsed() < SEEN);
        drop(state);
        if is_new {
            self.tell_moved(&[slot]);
            if !seen {
                self.look_at(Some(host_port));
            }
        }
    }

    /// Looks which server has which slot. If another thread looks just now, or did a moment ago, it
    /// does so for this one, too.
    pub fn look(&self) {
        self.look_at(None);
    }

    fn look_at(&self, first: Option<&HostPort>) {
        let mut state = self.state.lock();
        if state.looking {
            // As long as it takes, and no longer than a call may.
            let until = Instant::now() + SAYS_WITHIN.saturating_mul(4);
            while state.looking && Instant::now() < until {
                self.looked.wait_for(&mut state, SAYS_WITHIN);
            }
            return;
        }
        if state.looked_at.is_some_and(|at| at.elapsed() < AGAIN) || self.is_ended() {
            return;
        }
        state.looking = true;
        let known = state.known.clone();
        drop(state);
        let _looking = Looking(self);
        let others = known.iter().filter(|host_port| Some(*host_port) != first);
        let host_ports: Vec<_> = first.into_iter().chain(others).collect();
        let Some(view) = self.find_view(&host_ports) else { return };
        let changed = self.learn(&view);
        if !changed.is_empty() {
            self.tell_moved(&changed);
        }
    }

    /// Asks one server after the other. View: the first one that sees a majority of the masters and
    /// is not behind the last view; otherwise the best one of a majority of the masters, or of all
    /// that answer.
    fn find_view(&self, host_ports: &[&HostPort]) -> Option<View> {
        let (masters, epoch) = {
            let state = self.state.lock();
            (
                state.masters().map(|(host_port, _)| host_port.clone()).collect::<Vec<_>>(),
                state.epoch,
            )
        };
        let (mut best, mut heard) = (None::<View>, 0);
        for &host_port in host_ports {
            let asked = ask(&self.manner.of_same_cluster(host_port, 0), SAYS_WITHIN);
            self.state.lock().answered(host_port, asked.is_ok());
            // A server that names none was removed from the cluster.
            let Ok(asked) = asked else { continue };
            let Ok(ranges) = ranges(&asked.slots, host_port) else { continue };
            if ranges.is_empty() {
                continue;
            }
            let weight = asked.weight;
            heard += usize::from(masters.contains(host_port));
            if best.as_ref().is_none_or(|best| weight > best.weight) {
                best = Some(View { from: host_port.clone(), ranges, weight });
            }
            if weight.is_up && weight.epoch >= epoch || 2 * heard > masters.len() {
                break;
            }
        }
        best
    }

    /// Learns a server's view. Returns the slots that have another server now.
    fn learn(&self, View { from, ranges, weight }: &View) -> Vec<u16> {
        let mut owners = vec![NOBODY; SLOTS.into()];
        for Range { slots, master, .. } in ranges {
            let number = self.number(master);
            slots.clone().for_each(|slot| owners[usize::from(slot)] = number);
        }
        let mut state = self.state.lock();
        let masters = ranges.iter().map(|range| &range.master);
        let replicas = ranges.iter().flat_map(|range| &range.replicas);
        // Vanished servers are not asked for ever: addresses may change for months.
        let mut known = vec![from.clone()];
        for host_port in masters.chain(replicas).chain(&state.seeds) {
            if !known.contains(host_port) {
                known.push(host_port.clone());
            }
        }
        state.silent.retain(|host_port| known.contains(host_port));
        // Each silent server keeps the look waiting.
        known.sort_by_key(|host_port| state.silent.contains(host_port));
        state.known = known;
        state.epoch = weight.epoch;
        let unsaid = (!weight.is_said).then(|| Arc::clone(&state.nodes[0].1));
        let changed = (0..SLOTS).filter(|slot| {
            let slot = usize::from(*slot);
            // If no server has the slot now, its old one may have it again.
            owners[slot] != NOBODY && owners[slot] != state.owners[slot]
        });
        let changed: Vec<_> = changed.collect();
        for slot in &changed {
            state.owners[usize::from(*slot)] = owners[usize::from(*slot)];
        }
        drop(state);
        // Not under the mutex: this may call foreign code.
        if let Some(node) = unsaid {
            node.endpoint.health().does_without(NO_CLUSTER_INFO);
        }
        changed
    }

    /// The number of the server there, which may be a new one.
    fn number(&self, host_port: &HostPort) -> u16 {
        let mut state = self.state.lock();
        if let Some(at) = state.nodes.iter().position(|(known, _)| known == host_port) {
            return at as u16;
        }
        let number = state.nodes.len();
        let endpoint = Arc::new(self.manner.of_same_cluster(host_port, number));
        let lanes = self.lanes.get().copied().unwrap_or(1);
        let node = Arc::new(Node::new(Arc::new(Lane::new(endpoint)), lanes));
        state.nodes.push((host_port.clone(), Arc::clone(&node)));
        drop(state);
        if let Some(tell) = self.on_node.get() {
            tell(&node);
        }
        number as u16
    }

    fn tell_moved(&self, slots: &[u16]) {
        if let Some(tell) = self.on_moved.get() {
            tell(slots);
        }
    }

    fn is_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

impl ClusterState {
    /// The servers that have slots.
    fn masters(&self) -> impl Iterator<Item = &(HostPort, Arc<Node>)> {
        self.nodes.iter().filter(|(_, node)| self.has_slots(node))
    }

    fn has_slots(&self, node: &Node) -> bool {
        self.owners.contains(&(node.number() as u16))
    }

    fn answered(&mut self, host_port: &HostPort, answers: bool) {
        self.silent.retain(|silent| silent != host_port);
        if !answers {
            self.silent.push(host_port.clone());
        }
    }
}

/// The thread that looks for all. However its look ends, the next thread may look.
struct Looking<'a>(&'a Cluster);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.looking = false;
        state.looked_at = Some(Instant::now());
        drop(state);
        self.0.looked.notify_all();
    }
}

/// The outcome of a command that is not sent on from here: its sender takes a redirect for an
/// unreachable server, or for a broken connection.
pub fn unfollowed(outcome: Outcome) -> Outcome {
    outcome.map_err(|failure| match failure {
        Failure::Refused(cause) => match redirect_of(&cause.error) {
            None => Failure::Refused(cause),
            Some(Redirect::Halfway) => Failure::Reset(cause),
            Some(_) => {
                let what = "the key's slot has moved, or is on its way";
                let error = Arc::new(RedisError::from((redis::ErrorKind::Io, what)));
                Failure::Unsent(Cause::said(error, cause.address))
            }
        },
        failure => failure,
    })
}

/// A script that was stopped in its middle may have changed something, as may one whose connection
/// broke.
fn halfway(outcome: Outcome) -> Outcome {
    outcome.map_err(|failure| match failure {
        Failure::Refused(cause) if redirect_of(&cause.error) == Some(Redirect::Halfway) => {
            Failure::Reset(cause)
        }
        failure => failure,
    })
}

/// A server's answers on the cluster.
struct ClusterAnswer {
    slots: Value,
    weight: Weight,
}

fn ask(endpoint: &Endpoint, within: Duration) -> RedisResult<ClusterAnswer> {
    let now = Instant::now();
    let until = now.checked_add(within).unwrap_or(now);
    let mut connection = endpoint.open_within(within)?;
    let slots = Command::plain(&[b"CLUSTER", b"SLOTS"]);
    let info = Command::plain(&[b"CLUSTER", b"INFO"]);
    connection.send_packed_command(&[slots.bytes(), info.bytes()].concat(), now)?;
    let slots = connection.receive_until(until)?;
    let weight = Weight::of(&connection.receive_until(until)?);
    Ok(ClusterAnswer { slots, weight })
}

/// The owners of the slots, by the word of one server.
struct View {
    from: HostPort,
    ranges: Vec<Range>,
    weight: Weight,
}

const NO_CLUSTER_INFO: &str = "it refuses CLUSTER INFO: if a server is cut off from its cluster, \
                               the client may believe that server's old slots until it is back";

/// One slot of a cluster, for a name with this hash.
#[derive(Clone, Debug)]
pub struct Slot {
    cluster: Arc<Cluster>,
    number: u16,
    hash: u32,
}

impl Slot {
    pub(super) fn of(cluster: &Arc<Cluster>, key: &[u8], hash: u32) -> Self {
        Self { cluster: Arc::clone(cluster), number: slot_of(key), hash }
    }

    pub(super) fn lane(&self) -> Arc<Lane> {
        Arc::clone(self.cluster.node(self.number).lane(self.hash))
    }

    /// As [`Lane::call_once`]. A command that was redirected was not run, and is sent again.
    pub(super) fn call_once(&self, command: &Command) -> Outcome {
        let lane = self.lane();
        let until = lane.deadline();
        let outcome = lane.call_once(command);
        self.follow(lane, outcome, false, command, None::<fn() -> Command>, until).0
    }

    pub(super) fn call_twice(
        &self,
        command: &Command,
        copy: impl FnOnce() -> Command,
    ) -> (Outcome, bool) {
        let lane = self.lane();
        let until = lane.deadline();
        let outcome = lane.call_once(command);
        self.follow(lane, outcome, false, command, Some(copy), until)
    }

    /// Goes on from a first outcome, of the server that was `asked`, until `until`. `copy`: the
    /// command to send after one that may have run. `true`: it was sent, or `in_doubt` before.
    pub(super) fn follow(
        &self,
        mut asked: Arc<Lane>,
        mut outcome: Outcome,
        mut in_doubt: bool,
        command: &Command,
        mut copy: Option<impl FnOnce() -> Command>,
        until: Instant,
    ) -> (Outcome, bool) {
        let limit = Limit::current();
        let latest = until;
        let until = limit.as_ref().map_or(until, |limit| limit.earlier_of(until));
        // The limit's own end, and not that of the call's patience with the cluster.
        let is_its_end = until < latest;
        let is_cut = || limit.as_ref().is_some_and(Limit::is_over);
        let ended = || {
            // The client's end is not the limit's.
            if is_cut() || is_its_end && !self.cluster.is_ended() {
                // Servers that send a call to each other until its end are no answer.
                limit::cuts(false);
            }
        };
        let mut copied = None;
        let mut pause = Duration::ZERO;
        loop {
            outcome = halfway(outcome);
            let is_over = Instant::now() >= until || is_cut();
            if redirect(&outcome).is_none() && outcome.is_err() && is_over {
                return (outcome, in_doubt);
            }
            match &outcome {
                Ok(_) => return (outcome, in_doubt),
                Err(Failure::Refused(cause)) => match redirect_of(&cause.error) {
                    None => return (outcome, in_doubt),
                    Some(Redirect::Moved { slot, host_port }) => {
                        self.find_out(limit.as_ref(), move |cluster| {
                            cluster.learn_one(slot, &host_port);
                        });
                    }
                    Some(Redirect::Ask { .. }) if self.is_over(until) || is_cut() => {
                        ended();
                        return (outcome.map_err(Self::nobody), in_doubt);
                    }
                    Some(Redirect::Ask { host_port }) => {
                        let number = self.cluster.number(&host_port);
                        let node = self.cluster.numbered(number.into());
                        let lane = node.lane(self.hash);
                        outcome = halfway(lane.call_asking(copied.as_ref().unwrap_or(command)));
                        if redirect(&outcome).is_none() {
                            continue;
                        }
                    }
                    Some(Redirect::Later | Redirect::Halfway) => {
                        self.find_out(limit.as_ref(), Cluster::look);
                    }
                },
                Err(Failure::Unsent(_)) => self.find_out(limit.as_ref(), Cluster::look),
                // The command has run.
                Err(Failure::Unacknowledged(..)) => return (outcome, in_doubt),
                // The command may have run.
                Err(Failure::Reset(_) | Failure::TimedOut(_)) => {
                    self.find_out(limit.as_ref(), Cluster::look);
                    let is_slow = matches!(outcome, Err(Failure::TimedOut(_)));
                    // Another thread may know of the next server already.
                    if is_slow && Arc::ptr_eq(&asked, &self.lane()) {
                        return (outcome, in_doubt);
                    }
                    if copied.is_none() {
                        let Some(copy) = copy.take() else { return (outcome, in_doubt) };
                        copied = Some(copy());
                    }
                    in_doubt = true;
                }
            }
            if self.is_over(until.checked_sub(pause).unwrap_or(until)) || is_cut() {
                ended();
                return (outcome.map_err(Self::nobody), in_doubt);
            }
            match &limit {
                None => thread::sleep(pause),
                Some(limit) => limit.sleep(pause),
            }
            pause = Self::longer(pause);
            asked = self.lane();
            outcome = asked.call_once(copied.as_ref().unwrap_or(command));
        }
    }

    /// Asks for the server of the slot. That may open connections: for a caller with a limit
    /// another thread asks, and the caller waits for it only until the limit is over.
    fn find_out(&self, limit: Option<&Limit>, ask: impl FnOnce(&Cluster) + Send + 'static) {
        let Some(limit) = limit else { return ask(&self.cluster) };
        let (done, ended) = mpsc::channel::<()>();
        let cluster = Arc::clone(&self.cluster);
        let asks = own_thread("redlatch-asker", None, move || {
            ask(&cluster);
            drop(done);
        });
        let latest = Instant::now() + SAYS_WITHIN.saturating_mul(4);
        while asks.is_ok() && !limit.is_over() && Instant::now() < latest {
            let pause = limit.soon(latest).saturating_duration_since(Instant::now());
            if ended.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }

    fn is_over(&self, until: Instant) -> bool {
        Instant::now() >= until || self.cluster.is_ended()
    }

    /// The last word of servers that sent a command to each other until its time was over.
    fn nobody(failure: Failure) -> Failure {
        match failure {
            Failure::Refused(Cause { error, address, .. })
                if matches!(
                    redirect_of(&error),
                    Some(Redirect::Moved { .. } | Redirect::Ask { .. })
                ) =>
            {
                let word = "CLUSTERDOWN the servers do not agree whose the slot is";
                Failure::Refused(Cause::said(Arc::new(error_reply(word)), address))
            }
            failure => failure,
        }
    }

    fn longer(pause: Duration) -> Duration {
        pause.saturating_mul(2).clamp(FIRST_PAUSE, LAST_PAUSE)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("nodes", &self.nodes()).finish_non_exhaustive()
    }
}

#[cfg(all(test, testkit))]
mod tests;
