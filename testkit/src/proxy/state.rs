//! The state that the proxy's threads share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::rules::{self, Action, Direction, Rule};

#[derive(Debug)]
pub(super) struct Shared {
    upstream: Mutex<SocketAddr>,
    commands: AtomicU64,
    delay_ns: AtomicU64,
    trickle: AtomicBool,
    /// A copy of a part of the state. Threads read it for each packet, without the mutex.
    frozen: AtomicBool,
    rules: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) stopping: bool,
    pub(super) refusing: bool,
    pub(super) listening: bool,
    pub(super) frozen: bool,
    pub(super) fired: usize,
    pub(super) releases: u64,
    pub(super) rules: Vec<Rule>,
    pub(super) connections: Vec<Arc<Connection>>,
    pub(super) threads: Vec<JoinHandle<()>>,
}

impl Shared {
    pub(super) fn new(upstream: SocketAddr) -> Self {
        Self {
            upstream: Mutex::new(upstream),
            commands: AtomicU64::new(0),
            delay_ns: AtomicU64::new(0),
            trickle: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
            rules: AtomicUsize::new(0),
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
        }
    }

    /// The address of the server for new connections.
    pub(super) fn upstream(&self) -> MutexGuard<'_, SocketAddr> {
        self.upstream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the threads that wait for a change.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let result = change(&mut state);
        self.frozen.store(state.frozen, Ordering::SeqCst);
        self.rules.store(state.rules.len(), Ordering::SeqCst);
        drop(state);
        self.changed.notify_all();
        result
    }

    /// Waits until `so` returns true, or until the time `until`. Returns the last result of `so`.
    pub(super) fn wait(&self, until: Option<Instant>, so: impl Fn(&State) -> bool) -> bool {
        let mut state = self.state();
        while !so(&state) {
            state = match until {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }

    pub(super) fn count_command(&self) {
        self.commands.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn commands(&self) -> u64 {
        self.commands.load(Ordering::Relaxed)
    }

    pub(super) fn count_fired(&self) {
        self.change(|state| state.fired += 1);
    }

    /// Fires the first rule whose predicate these bytes satisfy. Returns the rule's action.
    pub(super) fn rule_for(&self, direction: Direction, bytes: &[u8]) -> Option<Action> {
        if !self.has_rules() {
            return None;
        }
        self.change(|state| rules::fire(&mut state.rules, direction, bytes))
    }

    pub(super) fn has_rules(&self) -> bool {
        self.rules.load(Ordering::SeqCst) > 0
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::SeqCst)
    }

    pub(super) fn delay(&self) -> Duration {
        Duration::from_nanos(self.delay_ns.load(Ordering::Relaxed))
    }

    pub(super) fn set_delay(&self, delay: Duration) {
        let ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.delay_ns.store(ns, Ordering::Relaxed);
    }

    pub(super) fn trickles(&self) -> bool {
        self.trickle.load(Ordering::Relaxed)
    }

    pub(super) fn set_trickle(&self, on: bool) {
        self.trickle.store(on, Ordering::Relaxed);
    }
}
