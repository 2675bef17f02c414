//! The slots of a cluster and their servers.
//!
//! A thread queries the owners of the slots only if a server redirects its command, or if it
//! reaches no server. If several threads need the slots at the same time, one thread sends the
//! query for all of them.
//!
//! A server's reply is its *view*. A server that is cut off from the other servers reports the old
//! owners of slots. Such a server shows this in two ways: it reports that it reaches no majority of
//! the masters (`cluster_state`), and its epoch is older than the epoch of a master that was
//! elected in the meantime. So the client accepts a view at once only if its server reaches a
//! majority and its epoch is not older than the epoch of the last accepted view. Otherwise the
//! client queries a majority of the masters, which cannot all be cut off, and accepts the best
//! view.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use redis::{RedisError, Value};

use super::ConnectError;
use super::Settings;
use super::address_map::{AddressMap, NamedAddress};
use super::host_port::HostPort;
use super::reply::{Redirect, redirect_of};
use super::url::{Topology, Url};
use super::{Ask, Cause, Channels, Command, Endpoint, Failure, Lane, Node, SLOTS, reply_code};
use crate::sync::{Condvar, Mutex};

mod slot;
mod view;

pub(super) use slot::Slot;
pub use slot::unfollowed;
use view::{NO_CLUSTER_INFO, Range, View, Weight, ask, no_slots, ranges};

/// The longest time that a server may take to report its slots.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// The shortest time between two rounds of queries.
const MIN_ROUND_INTERVAL: Duration = Duration::from_millis(50);
/// After a redirect, a thread queries all slots if the last round of queries is older than this:
/// the server in the redirect may have replaced a dead server.
const RECENT_ROUND: Duration = Duration::from_secs(1);
const NO_OWNER: u16 = u16::MAX;

/// The servers of a cluster that the client knows, and the owner of each slot.
pub struct Cluster {
    /// The template for the endpoints of the cluster's servers.
    template: Endpoint,
    map: AddressMap,
    lanes: OnceLock<usize>,
    state: Mutex<ClusterState>,
    /// Signals that the thread with the [`Refreshing`] role has finished.
    refreshed: Condvar,
    on_node: OnceLock<OnNode>,
    on_moved: OnceLock<OnMoved>,
    ended: AtomicBool,
}

type OnNode = Box<dyn Fn(&Arc<Node>) + Send + Sync>;
type OnMoved = Box<dyn Fn(&[u16]) + Send + Sync>;

#[derive(Default)]
struct ClusterState {
    /// The servers that the client has ever known, by their numbers. No server is ever removed.
    nodes: Vec<(HostPort, Arc<Node>)>,
    /// The number of each slot's server.
    owners: Vec<u16>,
    /// The servers to query. The server whose last view was accepted comes first, and the silent
    /// servers come last.
    known: Vec<HostPort>,
    /// The servers of the URL.
    seeds: Vec<HostPort>,
    /// The servers that did not answer the last query.
    silent: Vec<HostPort>,
    /// The epoch of the last accepted view.
    epoch: u64,
    refreshing: bool,
    refreshed_at: Option<Instant>,
}

impl Cluster {
    /// Finds the servers. Returns `None` if the URL is not a cluster's URL.
    pub fn connect(url: &str, config: &Settings) -> Result<Option<Arc<Self>>, ConnectError> {
        let url = Url::parse(url).map_err(ConnectError::unusable)?;
        if !matches!(url.kind, Topology::Cluster) {
            return Ok(None);
        }
        Ok(Some(Arc::new(Self::open(&url, config)?)))
    }

    /// Makes the cluster without a connection to any of its servers. The cluster knows only the
    /// first server of the URL, and no slots. A thread that opens a connection calls
    /// [`meet`](Self::meet) before it sends commands. Returns `None` if the URL is not a cluster's
    /// URL.
    pub fn unmet(url: &str, config: &Settings) -> Result<Option<Arc<Self>>, ConnectError> {
        let url = Url::parse(url).map_err(ConnectError::unusable)?;
        if !matches!(url.kind, Topology::Cluster) {
            return Ok(None);
        }
        let Some(first) = url.hosts.first() else { return Err(ConnectError::unusable("no host")) };
        let template = Endpoint::of_cluster(first, &url.settings, config)?;
        let cluster = Self::new(&url, config, template);
        let _zero = cluster.number(&HostPort::of(first));
        Ok(Some(Arc::new(cluster)))
    }

    /// Queries the slots over a connection that is being opened. Does nothing if the client already
    /// knows the slots.
    pub fn meet(&self, endpoint: &Endpoint, ask: Ask<'_>) -> Result<(), ConnectError> {
        if self.state.lock().owners.iter().any(|owner| *owner != NO_OWNER) {
            return Ok(());
        }
        let slots = match ask(&Command::plain(&[b"CLUSTER", b"SLOTS"])) {
            Ok(slots) => ranges(&slots, &endpoint.host_port(), &self.map),
            Err(Failure::Refused(cause)) => Err(no_slots(reply_code(&cause.error))),
            Err(failure) => return Err(ConnectError::Unreachable(failure.cause().clone())),
        };
        let info = ask(&Command::plain(&[b"CLUSTER", b"INFO"])).unwrap_or(Value::Nil);
        let changed = self.apply_view(&View::first(slots, Weight::of(&info), endpoint)?);
        self.report_moved(&changed);
        Ok(())
    }

    fn open(url: &Url, config: &Settings) -> Result<Self, ConnectError> {
        let mut refusal = None;
        for address in &url.hosts {
            let template = Endpoint::of_cluster(address, &url.settings, config)?;
            let asked = match ask(&template, config.connect_timeout) {
                Ok(asked) => asked,
                Err(error) => {
                    let cause = Cause::new(error, template.health());
                    refusal.get_or_insert(ConnectError::Unreachable(cause));
                    continue;
                }
            };
            let ranges = ranges(&asked.slots, &template.host_port(), &config.address_map);
            match View::first(ranges, asked.weight, &template) {
                Ok(view) => {
                    let cluster = Self::new(url, config, template);
                    let _everything_is_new = cluster.apply_view(&view);
                    return Ok(cluster);
                }
                Err(not_ready @ ConnectError::NotReady(_)) => {
                    refusal.get_or_insert(not_ready);
                }
                Err(unusable) => return Err(unusable),
            }
        }
        Err(refusal.unwrap_or_else(|| ConnectError::unusable("no host")))
    }

    fn new(url: &Url, config: &Settings, template: Endpoint) -> Self {
        let channels = if config.sharded_channels { Channels::Sharded } else { Channels::Cluster };
        let seeds: Vec<_> = url.hosts.iter().map(HostPort::of).collect();
        let state = ClusterState {
            owners: vec![NO_OWNER; SLOTS.into()],
            known: seeds.clone(),
            seeds,
            ..ClusterState::default()
        };
        Self {
            template: template.with_channels(channels),
            map: config.address_map.clone(),
            lanes: OnceLock::new(),
            state: Mutex::new(state),
            refreshed: Condvar::new(),
            on_node: OnceLock::new(),
            on_moved: OnceLock::new(),
            ended: AtomicBool::new(false),
        }
    }

    /// Sets the number of lanes to each server.
    pub fn set_lanes(&self, lanes: usize) {
        let _only_once = self.lanes.set(lanes);
        let mut state = self.state.lock();
        for (_, node) in &mut state.nodes {
            *node = Arc::new(Node::new(Arc::clone(node.any_lane()), lanes));
        }
    }

    /// Calls `callback` for each server that the client knows now or finds later.
    pub fn on_node(&self, callback: impl Fn(&Arc<Node>) + Send + Sync + 'static) {
        self.nodes().iter().for_each(&callback);
        let _only_once = self.on_node.set(Box::new(callback));
    }

    /// Sets the callback for slots with a new owner. The callback gets the sorted slots, and must
    /// not block.
    pub fn on_moved(&self, callback: impl Fn(&[u16]) + Send + Sync + 'static) {
        let _only_once = self.on_moved.set(Box::new(callback));
    }

    /// Notes that the client ends. After this call no thread waits for a server.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// Returns all servers that the client has ever known.
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.state.lock().nodes.iter().map(|(_, node)| Arc::clone(node)).collect()
    }

    /// Returns the server with this [number](Node::number).
    pub fn numbered(&self, number: usize) -> Arc<Node> {
        Arc::clone(&self.state.lock().nodes[number].1)
    }

    /// Returns the servers that have slots, as far as this client knows.
    pub fn masters(&self) -> Vec<Arc<Node>> {
        self.state.lock().masters().map(|(_, node)| Arc::clone(node)).collect()
    }

    /// Whether a server has slots, as far as this client knows. A server without slots may have
    /// been removed from the cluster.
    pub fn is_master(&self, node: &Node) -> bool {
        self.state.lock().has_slots(node)
    }

    /// Returns the server of a slot, as far as this client knows. If the client does not know this
    /// server, returns any server, whose redirect names the right one.
    pub fn node(&self, slot: u16) -> Arc<Node> {
        let state = self.state.lock();
        let owner = usize::from(state.owners[usize::from(slot)]);
        let (_, node) = state.nodes.get(owner).unwrap_or(&state.nodes[0]);
        Arc::clone(node)
    }

    /// Whether a server refused a command because another server has the slot, or soon will.
    pub(crate) fn follow_redirect(&self, error: &RedisError) -> bool {
        match redirect_of(error) {
            None => return false,
            Some(Redirect::Moved { slot, named }) => self.apply_redirect(slot, &named),
            Some(Redirect::Ask { .. } | Redirect::Later | Redirect::Halfway) => {}
        }
        true
    }

    fn apply_redirect(&self, slot: u16, named: &NamedAddress) {
        let Some(host_port) = self.map.reach(named) else { return };
        let number = self.number(&host_port);
        let mut state = self.state.lock();
        let owner = &mut state.owners[usize::from(slot)];
        let is_new = std::mem::replace(owner, number) != number;
        let seen = state.refreshed_at.is_some_and(|at| at.elapsed() < RECENT_ROUND);
        drop(state);
        if is_new {
            self.report_moved(&[slot]);
            if !seen {
                self.refresh_from(Some(&host_port));
            }
        }
    }

    /// Queries the owners of all slots. If another thread is doing so, waits for that thread. If a
    /// thread has done so a moment ago, does nothing.
    pub fn refresh(&self) {
        self.refresh_from(None);
    }

    fn refresh_from(&self, first: Option<&HostPort>) {
        let mut state = self.state.lock();
        if state.refreshing {
            // The wait ends with the other thread's round, or at this time.
            let until = Instant::now() + ANSWER_TIMEOUT.saturating_mul(4);
            while state.refreshing && Instant::now() < until {
                self.refreshed.wait_for(&mut state, ANSWER_TIMEOUT);
            }
            return;
        }
        if state.refreshed_at.is_some_and(|at| at.elapsed() < MIN_ROUND_INTERVAL) || self.is_ended()
        {
            return;
        }
        state.refreshing = true;
        let known = state.known.clone();
        drop(state);
        let _refreshing = Refreshing(self);
        let others = known.iter().filter(|host_port| Some(*host_port) != first);
        let host_ports: Vec<_> = first.into_iter().chain(others).collect();
        let Some(view) = self.find_view(&host_ports) else { return };
        let changed = self.apply_view(&view);
        if !changed.is_empty() {
            self.report_moved(&changed);
        }
    }

    /// Queries one server after the other. Returns the first view whose server reaches a majority
    /// of the masters and whose epoch is not older than the epoch of the last accepted view. If
    /// there is no such view, returns the best view of a majority of the masters, or of all servers
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
            let asked = ask(&self.template.of_same_cluster(host_port, 0), ANSWER_TIMEOUT);
            self.state.lock().record_answer(host_port, asked.is_ok());
            let Ok(asked) = asked else { continue };
            let Ok(ranges) = ranges(&asked.slots, host_port, &self.map) else { continue };
            // A server that knows no slots has been removed from the cluster.
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

    /// Stores a server's view. Returns the slots whose owner changed.
    fn apply_view(&self, View { from, ranges, weight }: &View) -> Vec<u16> {
        let mut owners = vec![NO_OWNER; SLOTS.into()];
        for Range { slots, master, .. } in ranges {
            let number = self.number(master);
            slots.clone().for_each(|slot| owners[usize::from(slot)] = number);
        }
        let mut state = self.state.lock();
        let masters = ranges.iter().map(|range| &range.master);
        let replicas = ranges.iter().flat_map(|range| &range.replicas);
        // Forget the servers that are not in the view. Otherwise each new address would lengthen
        // the list.
        let mut known = vec![from.clone()];
        for host_port in masters.chain(replicas).chain(&state.seeds) {
            if !known.contains(host_port) {
                known.push(host_port.clone());
            }
        }
        state.silent.retain(|host_port| known.contains(host_port));
        // Query silent servers last, because the other threads wait during the query.
        known.sort_by_key(|host_port| state.silent.contains(host_port));
        state.known = known;
        state.epoch = weight.epoch;
        let unsaid = (!weight.is_said).then(|| Arc::clone(&state.nodes[0].1));
        let changed = (0..SLOTS).filter(|slot| {
            let slot = usize::from(*slot);
            // If the view has no owner for a slot, the slot keeps its old owner, which may get the
            // slot back.
            owners[slot] != NO_OWNER && owners[slot] != state.owners[slot]
        });
        let changed: Vec<_> = changed.collect();
        for slot in &changed {
            state.owners[usize::from(*slot)] = owners[usize::from(*slot)];
        }
        drop(state);
        // The callback may run foreign code, so this thread must hold no mutex here.
        if let Some(node) = unsaid {
            node.endpoint.health().report_missing_option(NO_CLUSTER_INFO);
        }
        changed
    }

    /// Returns the server at an address that another server reported. Adds the server if it is new.
    fn named(&self, named: &NamedAddress) -> Option<Arc<Node>> {
        let host_port = self.map.reach(named)?;
        Some(self.numbered(self.number(&host_port).into()))
    }

    /// Returns the number of the server at this address. Adds the server if it is new.
    fn number(&self, host_port: &HostPort) -> u16 {
        let mut state = self.state.lock();
        if let Some(at) = state.nodes.iter().position(|(known, _)| known == host_port) {
            return at as u16;
        }
        let number = state.nodes.len();
        let endpoint = Arc::new(self.template.of_same_cluster(host_port, number));
        let lanes = self.lanes.get().copied().unwrap_or(1);
        let node = Arc::new(Node::new(Arc::new(Lane::new(endpoint)), lanes));
        state.nodes.push((host_port.clone(), Arc::clone(&node)));
        drop(state);
        if let Some(callback) = self.on_node.get() {
            callback(&node);
        }
        number as u16
    }

    fn report_moved(&self, slots: &[u16]) {
        if let Some(callback) = self.on_moved.get() {
            callback(slots);
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

    fn record_answer(&mut self, host_port: &HostPort, answers: bool) {
        self.silent.retain(|silent| silent != host_port);
        if !answers {
            self.silent.push(host_port.clone());
        }
    }
}

/// The role of the thread that queries the servers for all threads. The drop of this value lets the
/// next thread take the role, even after a panic.
struct Refreshing<'a>(&'a Cluster);

impl Drop for Refreshing<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.refreshing = false;
        state.refreshed_at = Some(Instant::now());
        drop(state);
        self.0.refreshed.notify_all();
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("nodes", &self.nodes()).finish_non_exhaustive()
    }
}

#[cfg(all(test, testkit))]
mod tests;
