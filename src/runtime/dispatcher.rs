//! The dispatcher of a cluster's client. It gives each job to the renewer of the job's server. The
//! dispatcher's thread does no I/O, so a server that does not answer never delays the jobs of other
//! servers.
//!
//! A server that has lost all its slots may never come back. So the server's renewer and subscriber
//! thread end, and the renewer returns its jobs to the dispatcher. The server's shared connections
//! are closed when all commands are answered.

use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use log::Level;
use redlatch_client::pubsub::HEARTBEAT;
use redlatch_client::sync::own_thread;
use redlatch_client::{Cluster, Node, slot_of};

use super::Core;
use super::renewer::Renewer;
use crate::lease::{Job, Renewal};

pub(super) struct Dispatcher {
    core: Arc<Core>,
    cluster: Arc<Cluster>,
    /// Each renewer's thread keeps a clone of this sender until the thread ends.
    alive: Sender<()>,
    /// The renewers, by the numbers of their servers. The first job for a server creates its
    /// renewer.
    renewers: HashMap<usize, ServerRenewer>,
}

/// A server's renewer.
struct ServerRenewer {
    node: Arc<Node>,
    jobs: Sender<Job>,
    /// The receiver of the jobs, while the system cannot start the renewer's thread.
    unstarted: Option<Receiver<Job>>,
}

/// The time between two attempts to start a renewer's thread.
const START_RETRY: Duration = Duration::from_millis(100);

impl Dispatcher {
    pub(super) fn new(core: Arc<Core>, cluster: Arc<Cluster>, alive: Sender<()>) -> Self {
        Self { core, cluster, alive, renewers: HashMap::new() }
    }

    /// Runs the thread until the client has ended and the last job is done.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            let any_unstarted = self.renewers.values().any(|renewer| renewer.unstarted.is_some());
            match jobs.recv_timeout(if any_unstarted { START_RETRY } else { HEARTBEAT }) {
                Ok(Job::End) => {
                    self.send_to_all(|| Job::End);
                    return;
                }
                Ok(job) => self.dispatch(job),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if any_unstarted {
                for renewer in self.renewers.values_mut() {
                    // The first failure has already been logged.
                    let _again = renewer.start(&self.core, &self.alive);
                }
            }
            if self.core.heartbeat() {
                self.drop_unused();
            }
        }
    }

    /// Drops the renewers of servers without slots.
    fn drop_unused(&mut self) {
        for node in self.cluster.nodes() {
            if !self.cluster.is_master(&node) {
                // The renewer's thread does its remaining jobs, and ends when it finds the channel
                // disconnected.
                let number = node.number();
                self.renewers
                    .retain(|server, renewer| *server != number || renewer.unstarted.is_some());
                self.core.pubsub.let_go(&node);
                node.endpoint.health().give_up("it has no slot of the cluster any more");
                node.lanes().iter().for_each(|lane| lane.hang_up());
            }
        }
    }

    fn dispatch(&mut self, job: Job) {
        match job {
            Job::Renew(renewals) => self.renew(renewals),
            Job::Moved(slots) => {
                // The new server of a slot may lack the slot's holds.
                let members = self.core.members.in_slots(&slots);
                let homes = members.iter().map(|member| self.home(member.name()));
                let homes: HashMap<_, _> = homes.map(|node| (node.number(), node)).collect();
                let renewals = members
                    .into_iter()
                    .filter_map(|member| self.catch_panic(|| member.renew_now()));
                self.renew(renewals.flatten().collect());
                // The new server may also have holds of owners that no thread uses.
                for node in homes.values() {
                    self.send_to(node, Job::Moved(slots.clone()));
                }
            }
            Job::CleanUp(cleanup) => {
                let node = match cleanup.server() {
                    Some(number) => self.cluster.numbered(number),
                    None => self.home(cleanup.name()),
                };
                self.send_to(&node, Job::CleanUp(cleanup));
            }
            Job::Mend(name, requests, request_id) => {
                let node = self.home(&name);
                self.send_to(&node, Job::Mend(name, requests, request_id));
            }
            Job::WakeSubscriber(node) => {
                self.send_to(&Arc::clone(&node), Job::WakeSubscriber(node));
            }
            Job::Reconnect(node) => self.send_to(&Arc::clone(&node), Job::Reconnect(node)),
            Job::Service(lanes) => {
                for lane in lanes {
                    let number = lane.endpoint().number();
                    let node = self.cluster.numbered(number);
                    self.send_to(&node, Job::Service(vec![lane]));
                }
            }
            Job::RenewAll => {
                // Each renewer renews the names in its server's slots.
                for node in self.cluster.masters() {
                    self.send_to(&node, Job::RenewAll);
                }
            }
            Job::Connected => self.send_to_all(|| Job::Connected),
            Job::End => {}
        }
    }

    /// Runs `work`. A panic in `work` does not stop the dispatcher.
    fn catch_panic<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(work)).ok();
        if done.is_none() {
            self.core.watchdog.log_panic();
        }
        done
    }

    fn renew(&mut self, renewals: Vec<Renewal>) {
        let mut by_server: HashMap<usize, (Arc<Node>, Vec<Renewal>)> = HashMap::new();
        for due in renewals {
            let node = self.home(&due.key);
            by_server.entry(node.number()).or_insert_with(|| (node, Vec::new())).1.push(due);
        }
        for (node, share) in by_server.into_values() {
            self.send_to(&node, Job::Renew(share));
        }
    }

    fn home(&self, key: &str) -> Arc<Node> {
        self.cluster.node(slot_of(key.as_bytes()))
    }

    fn send_to_all(&self, job: impl Fn() -> Job) {
        for renewer in self.renewers.values() {
            // The channel is closed only after the renewer has ended.
            let _ = renewer.jobs.send(job());
        }
    }

    fn send_to(&mut self, node: &Arc<Node>, job: Job) {
        if let Some(renewer) = self.renewers.get(&node.number()) {
            let _ = renewer.jobs.send(job);
            return;
        }
        let (jobs, unstarted) = crossbeam_channel::unbounded();
        let _ = jobs.send(job);
        let mut renewer =
            ServerRenewer { node: Arc::clone(node), jobs, unstarted: Some(unstarted) };
        if let Err(error) = renewer.start(&self.core, &self.alive) {
            self.core.watchdog.log(Level::Error, || {
                format!(
                    "nothing is renewed at the server at {} until a background thread can be started: \
                     {error}",
                    node.endpoint.address()
                )
            });
        }
        self.renewers.insert(node.number(), renewer);
    }
}

impl ServerRenewer {
    /// Starts the renewer's thread if it has not been started.
    fn start(&mut self, core: &Arc<Core>, alive: &Sender<()>) -> io::Result<()> {
        let Some(jobs) = self.unstarted.clone() else { return Ok(()) };
        let renewer = Renewer::new(Arc::clone(core), &self.node);
        own_thread("redlatch-renew", Some(alive.clone()), move || renewer.run(&jobs))?;
        self.unstarted = None;
        Ok(())
    }
}

#[cfg(all(test, testkit))]
mod tests;
