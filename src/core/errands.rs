//! In a cluster: which server's renewer does what. It has no connection of its own and waits for
//! nobody, so that a server that does not answer delays what is due at the others by nothing.
//!
//! A server that has no slot any more may be gone for good. Its renewer ends, and hands back what
//! it has; so does its subscriber's thread, and its lanes are closed, once nothing is on its way
//! over them.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use log::Level;

use super::Core;
use super::renewer::{AFTER_A_PANIC, Renewer};
use crate::connection::{Cluster, Node, slot_of};
use crate::pubsub::HEARTBEAT;
use crate::sync::own_thread;
use crate::watchdog::{Job, Renewal};

pub(super) struct Errands {
    core: Arc<Core>,
    cluster: Arc<Cluster>,
    /// Kept by each renewer until it ends.
    alive: Sender<()>,
    /// By the number of the server, from its first errand on.
    renewers: HashMap<usize, Sender<Job>>,
}

impl Errands {
    pub(super) fn new(core: Arc<Core>, cluster: Arc<Cluster>, alive: Sender<()>) -> Self {
        Self { core, cluster, alive, renewers: HashMap::new() }
    }

    /// The thread's whole life: until the client's end and the last job.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            match jobs.recv_timeout(HEARTBEAT) {
                Ok(Job::End) => {
                    self.give_all(|| Job::End);
                    return;
                }
                Ok(job) => self.give(job),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.core.heartbeat() {
                self.let_go();
            }
        }
    }

    /// Ends what is left at servers without slots.
    fn let_go(&mut self) {
        for node in self.cluster.nodes() {
            if !self.cluster.is_master(&node) {
                // Its thread does what it has been given, and finds that there is nobody any more.
                self.renewers.remove(&node.number());
                self.core.pubsub.let_go(&node);
                node.endpoint.health().give_up("it has no slot of the cluster any more");
                node.lanes().iter().for_each(|lane| lane.hang_up());
            }
        }
    }

    fn give(&mut self, job: Job) {
        match job {
            Job::Renew(renewals) => self.renew(renewals),
            Job::Moved(slots) => {
                // The new server may know nothing of what is held.
                let members = self.core.members.in_slots(&slots);
                let homes = members.iter().map(|member| self.home(member.name()));
                let homes: HashMap<_, _> = homes.map(|node| (node.number(), node)).collect();
                let renewals =
                    members.into_iter().filter_map(|member| self.try_to(|| member.renew_now()));
                self.renew(renewals.flatten().collect());
                // Or know of what nobody holds any more.
                for node in homes.values() {
                    self.give_to(node, Job::Moved(slots.clone()));
                }
            }
            Job::Adopt(orphan) => {
                let node = match orphan.server() {
                    Some(number) => self.cluster.numbered(number),
                    None => self.home(orphan.name()),
                };
                self.give_to(&node, Job::Adopt(orphan));
            }
            Job::Chores(chores) => {
                for chore in chores {
                    // It is asked again there.
                    match self.try_to(|| chore.command()) {
                        Some(Some(command)) => {
                            let slot = slot_of(command.key().unwrap_or_default());
                            self.give_to(&self.cluster.node(slot), Job::Chores(vec![chore]));
                        }
                        Some(None) => {}
                        None => self.core.watchdog.schedule(&chore, AFTER_A_PANIC),
                    }
                }
            }
            Job::TellSubscriber(node) => {
                self.give_to(&Arc::clone(&node), Job::TellSubscriber(node));
            }
            Job::LookAt(node) => self.give_to(&Arc::clone(&node), Job::LookAt(node)),
            Job::Look(lanes) => {
                for lane in lanes {
                    let number = lane.endpoint().number();
                    let node = self.cluster.numbered(number);
                    self.give_to(&node, Job::Look(vec![lane]));
                }
            }
            Job::RenewAll => {
                // Each asks for what is in its own slots.
                for node in self.cluster.masters() {
                    self.give_to(&node, Job::RenewAll);
                }
            }
            Job::Connected => self.give_all(|| Job::Connected),
            Job::End => {}
        }
    }

    /// No panic of a synchronizer's may end the errands of all others.
    fn try_to<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(work)).ok();
        if done.is_none() {
            self.core.watchdog.tell_panic();
        }
        done
    }

    fn renew(&mut self, renewals: Vec<Renewal>) {
        let mut shares: HashMap<usize, (Arc<Node>, Vec<Renewal>)> = HashMap::new();
        for due in renewals {
            let node = self.home(&due.key);
            shares.entry(node.number()).or_insert_with(|| (node, Vec::new())).1.push(due);
        }
        for (node, share) in shares.into_values() {
            self.give_to(&node, Job::Renew(share));
        }
    }

    fn home(&self, key: &str) -> Arc<Node> {
        self.cluster.node(slot_of(key.as_bytes()))
    }

    fn give_all(&self, job: impl Fn() -> Job) {
        for renewer in self.renewers.values() {
            // The other end goes away after the end only.
            let _ = renewer.send(job());
        }
    }

    fn give_to(&mut self, node: &Arc<Node>, job: Job) {
        let (core, alive) = (&self.core, &self.alive);
        let renewer = self.renewers.entry(node.number()).or_insert_with(|| {
            let (sender, jobs) = crossbeam_channel::unbounded();
            let renewer = Renewer::new(Arc::clone(core), node);
            if let Err(error) =
                own_thread("redlatch-renew", Some(alive.clone()), move || renewer.run(&jobs))
            {
                core.watchdog.log(Level::Error, || {
                    format!("nothing is renewed: a background thread cannot be started: {error}")
                });
            }
            sender
        });
        let _ = renewer.send(job);
    }
}

#[cfg(all(test, testkit, not(shuttle)))]
mod tests;
