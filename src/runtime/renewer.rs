//! The renewer: the thread that does all background I/O with a server.

mod cleanups;
mod mending;
mod own_link;
mod renewals;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use log::Level;
use redlatch_client::pubsub::HEARTBEAT;
use redlatch_client::sync::clock;
use redlatch_client::{Cause, Failure, Lane, Node, Posted, is_redirect, slot_of};

use self::mending::Mending;
use self::own_link::OwnLink;
use self::renewals::RefusalPeriod;
use super::todo::Todo;
use super::{Core, Member};
use crate::lease::{Cleanup, Job};
use crate::scripts;

/// The maximum number of names that one script call renews. A longer call would block the server's
/// other clients for too long.
const NAMES_PER_CALL: usize = 128;
/// The maximum number of names whose renewals are written before a reply is read.
const NAMES_PER_PACKET: usize = 16 * NAMES_PER_CALL;
/// How long a reply may take if no caller waits for it, in addition to some round trips. If the
/// reply takes longer, its connection is closed.
const SERVICE_WAIT: Duration = Duration::from_millis(100);
const QUERY_RETRY: u64 = 1_000_000_000;

/// The renewer of one server, with its own connection.
pub(crate) struct Renewer {
    core: Arc<Core>,
    /// The number of the server.
    server: usize,
    /// The maximum number of names in one call: [`NAMES_PER_CALL`], or one in a cluster. In a
    /// cluster, two names are usually in two slots. Even two names of one slot may be at two
    /// servers while the slot moves.
    names_per_call: usize,
    /// A separate connection, so that renewals and callers' commands do not delay each other.
    own: OwnLink,
    /// Cleanups that are not done yet.
    cleanups: Vec<Cleanup>,
    /// The time at which to query the holds again, if the server did not answer the last query.
    query_again_at: Option<u64>,
    /// The last run of the server (a run lasts from its start to its end) at which the renewer
    /// repeated earlier releases.
    last_run: u64,
    /// Changes of semaphores to repeat at another run of the server, or in moved slots.
    mending: VecDeque<Mending>,
    /// Whether the server refused some of these changes because the user lacks a right. The refusal
    /// is logged once.
    is_forbidden: bool,
    /// Whether the client has not yet opened a connection to the server.
    is_unmet: bool,
    /// `Some` while the server refuses renewals.
    refusal_period: Option<RefusalPeriod>,
}

impl Renewer {
    pub(crate) fn new(core: Arc<Core>, node: &Arc<Node>) -> Self {
        let (server, in_cluster) = (node.number(), core.servers.cluster().is_some());
        let names_per_call = if in_cluster { 1 } else { NAMES_PER_CALL };
        let own = OwnLink::new(&core, node);
        let last_run = own.endpoint.incarnation();
        let is_unmet = !core.is_met();
        Self {
            core,
            server,
            names_per_call,
            own,
            cleanups: Vec::new(),
            query_again_at: None,
            last_run,
            mending: VecDeque::new(),
            is_forbidden: false,
            is_unmet,
            refusal_period: None,
        }
    }

    /// Opens the connection now. At the first renewal, the server might refuse a new connection,
    /// because it is full or its password has changed.
    pub(crate) fn connect(mut self) -> Self {
        // If this fails, the failure is logged, and the renewer uses the lanes.
        let _none_now = self.own.open();
        self
    }

    /// Runs the thread until the client has ended and all jobs are done, or the channel is closed.
    pub(crate) fn run(mut self, jobs: &Receiver<Job>) {
        let mut todo = Todo::default();
        loop {
            jobs.try_iter().for_each(|job| todo.put(job));
            match todo.next() {
                Some(Job::End) => {
                    // Loop, because a cleanup may have more commands to send after its first reply.
                    while !self.mending.is_empty() {
                        self.catch_panic(Self::mend_some);
                    }
                    while !self.cleanups.is_empty() {
                        self.catch_panic(|renewer| renewer.send_due_cleanups(u64::MAX));
                    }
                    return;
                }
                Some(job) => {
                    self.catch_panic(|renewer| renewer.do_job(job));
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
            if self.query_again_at.is_some_and(|at| at <= now) {
                self.catch_panic(|renewer| renewer.do_job(Job::RenewAll));
            }
            self.catch_panic(Self::mend_some);
            // Do urgent jobs first, because a packet of cleanups takes long while the server is
            // unreachable.
            if !todo.is_urgent() {
                self.catch_panic(|renewer| renewer.send_due_cleanups(now));
            }
            if self.core.servers.cluster().is_none() {
                self.core.heartbeat();
            }
        }
    }

    /// The longest time for which the thread may sleep if no job comes.
    fn pause(&self) -> Duration {
        if !self.mending.is_empty() {
            return Duration::ZERO;
        }
        let next = self.cleanups.iter().map(Cleanup::due).chain(self.query_again_at).min();
        let pause = next.map(|at| Duration::from_nanos(at.saturating_sub(clock::now())));
        pause.unwrap_or(HEARTBEAT).min(HEARTBEAT)
    }

    /// Runs `work`. Returns `false` if `work` panicked: a panic must not end all later renewals.
    fn catch_panic(&mut self, work: impl FnOnce(&mut Self)) -> bool {
        let done = catch_unwind(AssertUnwindSafe(|| work(self))).is_ok();
        if !done {
            self.core.watchdog.log_panic();
            self.own.close();
        }
        done
    }

    /// Returns the outcome for the receivers of a job that panicked. The receivers get the same
    /// failure as after a broken connection.
    fn panicked(&self) -> Failure {
        let error = io::Error::other("a background job panicked");
        Failure::Reset(Cause::new(error, self.own.endpoint.health()))
    }

    fn do_job(&mut self, job: Job) {
        match job {
            Job::Renew(renewals) => self.renew_each(renewals),
            Job::RenewAll => {
                self.query_again_at = None;
                // Close the old connection: its server may still answer although it is no longer
                // the master.
                self.own.close();
                self.cleanups.iter_mut().for_each(Cleanup::retry_soon);
                let mut members = self.core.members.all();
                members.retain(|member| self.is_home(member.name()));
                let mut renewals = Vec::new();
                for member in members.iter().cloned() {
                    self.catch_panic(|_| renewals.extend(member.renew_now()));
                }
                self.renew_each(renewals);
                self.catch_panic(|renewer| renewer.release_leftovers(members));
                self.catch_panic(Self::check_run);
            }
            Job::CleanUp(cleanup) => self.cleanups.push(cleanup),
            Job::Mend(name, requests, request_id) => {
                self.catch_panic(|renewer| renewer.mend_late(&name, &requests, request_id));
            }
            Job::Connected => {
                self.cleanups.iter_mut().for_each(Cleanup::shorten_back_off);
                if std::mem::take(&mut self.is_unmet) {
                    // See `connect`.
                    self.own.open();
                }
            }
            Job::WakeSubscriber(node) => self.core.wake_subscriber(&node),
            Job::Service(lanes) => lanes.iter().for_each(|lane| self.service(lane)),
            Job::Reconnect(node) => {
                // No check is needed if a renewal has reached the server since this job was queued.
                if node.endpoint.health().needs_check() {
                    self.own.reconnect();
                }
            }
            Job::Moved(slots) => {
                let mut members = self.core.members.in_slots(&slots);
                members.retain(|member| self.is_home(member.name()));
                self.log_moved(&members);
                self.catch_panic(|renewer| renewer.release_leftovers(members));
                let is_meant = |renewer: &Self, name: &str| {
                    slots.binary_search(&slot_of(name.as_bytes())).is_ok() && renewer.is_home(name)
                };
                self.release_permits_again(is_meant);
                self.mending.push_back(Mending::in_slots(slots));
            }
            Job::End => {}
        }
    }

    /// Logs that these names of a cluster have moved to this server.
    fn log_moved(&self, members: &[Arc<dyn Member>]) {
        let Some(first) = members.first() else { return };
        let address = self.own.endpoint.health().address();
        let names: HashSet<_> = members.iter().map(|member| &**member.name()).collect();
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

    /// Releases holds that this client has already released. A released hold exists again if
    /// another server becomes the master, or if this server comes back with older data. Without a
    /// second release, waiters would wait until the lease ends. A list of all released holds would
    /// grow without limit. So the renewer queries which owners of this client hold the locks that
    /// the client knows.
    fn release_leftovers(&mut self, mut members: Vec<Arc<dyn Member>>) {
        members.retain(|member| member.has_owners());
        // If a name has two members, keep the second: the queue of a fair lock, which has more
        // owners.
        let by_name: HashMap<_, _> =
            members.iter().map(|member| (Arc::clone(member.name()), member)).collect();
        let members: Vec<_> = by_name.into_iter().collect();
        for members in members.chunks(NAMES_PER_PACKET) {
            let calls: Vec<_> = members.chunks(self.names_per_call).collect();
            let command = |call: &&[(Arc<str>, _)]| {
                let names: Vec<_> = call.iter().map(|(name, _)| &**name).collect();
                scripts::lock::owners_command(&names, self.core.id.as_str())
            };
            let commands: Vec<_> = calls.iter().map(command).collect();
            let outcomes = self.own.exchange(&commands, None).0;
            for (call, outcome) in calls.into_iter().zip(outcomes) {
                if outcome.as_ref().is_err_and(may_succeed_later) {
                    self.query_again_at = Some(clock::now().saturating_add(QUERY_RETRY));
                }
                // If the user may not run this script, leftover holds end with their leases.
                let Ok(owners) = scripts::lock::owners(outcome) else { continue };
                for ((_, member), owners) in call.iter().zip(owners) {
                    let left_over = owners.iter().filter(|owner| self.core.is_left_over(owner));
                    left_over.for_each(|owner| member.give_up_owner(owner));
                }
            }
        }
    }

    fn service(&self, lane: &Arc<Lane>) {
        let patience = SERVICE_WAIT + self.core.round_trip().saturating_mul(4);
        // No renewal is sent while this function runs. So the function opens no connection during
        // an outage. The commands for which no thread waits then fail, and are sent again as
        // cleanups.
        let to_open = if self.own.endpoint.health().is_out() {
            Duration::ZERO
        } else {
            patience.saturating_mul(10).min(self.own.endpoint.connect_timeout())
        };
        // `service` returns `false` if there is more to read, or if a combiner is at work, which
        // may not read the replies to later posts.
        if !lane.service(patience, to_open) && lane.request_service() == Posted::NeedsService {
            self.core.watchdog.service(lane);
        }
    }
}

/// Whether to send the command again, because the server did not answer or its refusal may be
/// transient.
fn may_succeed_later(failure: &Failure) -> bool {
    match failure {
        Failure::Refused(cause) => scripts::is_transient(&cause.error) || is_redirect(&cause.error),
        failure => failure.is_the_links(),
    }
}

#[cfg(all(test, testkit))]
mod tests;
