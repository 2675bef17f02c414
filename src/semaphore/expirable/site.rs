//! The site of an expirable semaphore in one client: its requests, and this process's permit
//! leases.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use redlatch_client::pubsub::{HoldQuery, Tracked};
use redlatch_client::sync::{Mutex, clock};
use redlatch_client::{Outcome, ReplyReceiver, Route};

use super::permit_lease::PermitLease;
use crate::ask::Asked;
use crate::error::{Error, ErrorKind, LostReason};
use crate::hold::{Leaseholder, Terms};
use crate::lease::{Cleanup, Renewal};
use crate::name::Name;
use crate::observe::Kind;
use crate::runtime::{Core, Member};
use crate::scripts::expirable_semaphore::{
    ExpirableScripts, PermitCounts, ReturnedPermits, TakenPermit, released,
};
use crate::scripts::semaphore::REFUSED;
use crate::scripts::{
    ExpirableKeys, PermitId, Replied, RequestId, Requests, SemaphoreKeys, Trouble,
};
use crate::semaphore::permits::{PermitGate, PermitReply, PermitSource, Permits, RequestFailed};
use crate::semaphore::size::Size;
use crate::snapshot::Held;
use crate::waiting::QueueSite;

/// One expirable semaphore in one client.
pub(crate) struct ExpirableSite {
    pub(super) core: Arc<Core>,
    pub(super) name: Name,
    /// The key of the sorted set of leases.
    pub(super) timeouts: Arc<str>,
    /// The name of an earlier semaphore of this client that stores its leases under the same key.
    pub(super) twin: Option<Name>,
    pub(super) route: Route,
    channel: Arc<str>,
    requests: Arc<Requests>,
    pub(super) size: Size,
    gate: PermitGate<Arc<PermitLease>>,
    /// This process's permit leases. A thread that holds this mutex takes no other mutex.
    held: Mutex<HashMap<PermitId, Arc<PermitLease>>>,
}

impl ExpirableSite {
    /// Returns the site of a name, which all handles of this name share.
    pub(crate) fn of(core: &Arc<Core>, name: &str) -> Arc<Self> {
        let sites = core.members.of::<Self>();
        let key = core.key(name);
        let twin = ExpirableKeys::twin(&key);
        let twin = twin.and_then(|twin| sites.known(&twin)).filter(|site| site.twin.is_none());
        let twin = twin.map(|site| site.name.clone());
        sites.get(&key, |key| Self {
            twin,
            route: core.route(&key),
            timeouts: ExpirableKeys::timeouts(&key).into(),
            channel: SemaphoreKeys::channel(&key).into(),
            requests: core.requests_of(&key),
            size: Size::default(),
            gate: PermitGate::new(core.round_trip()),
            held: Mutex::default(),
            core: Arc::clone(core),
            name: core.name(key),
        })
    }

    pub(super) fn scripts(&self) -> ExpirableScripts<'_> {
        ExpirableScripts {
            route: &self.route,
            key: &self.name,
            timeouts: &self.timeouts,
            channel: &self.channel,
            requests: &self.requests,
            acks: self.core.config.replica_acks,
        }
    }

    /// If a handle has a size, makes the semaphore before the first request for permits.
    fn ensure_exists(&self) -> Result<(), RequestFailed> {
        let Self { core, name, .. } = self;
        let read_size = || {
            let PermitCounts { free, taken } = self.scripts().counts()?;
            Ok(Some(free.saturating_add(taken)).filter(|size| *size != 0))
        };
        let describe_difference = |size, wanted| (size != wanted).then(|| format!("it has {size}"));
        let try_set = |size| {
            self.requests.with_one(&core.id, |id| self.scripts().try_set_permits(id, size, None))
        };
        self.size
            .ensure_exists((core, name), read_size, describe_difference, try_set)
            .map_err(|trouble| RequestFailed::of_size(trouble, name))
    }

    /// Sends a request that the server applies once, even if it receives two copies.
    pub(super) fn once<T>(
        &self,
        send: impl FnOnce(ExpirableScripts<'_>, RequestId) -> Result<T, Trouble>,
    ) -> Result<T, Error> {
        let outcome = self.requests.with_one(&self.core.id, |id| send(self.scripts(), id));
        outcome.map_err(|trouble| trouble.into_error_of(&self.name))
    }

    /// Returns this process's permit lease with this id.
    pub(super) fn held(&self, id: &PermitId) -> Option<Arc<PermitLease>> {
        self.held.lock().get(id).cloned()
    }

    pub(super) fn forget(&self, id: &PermitId) {
        let forgotten = self.held.lock().remove(id);
        drop(forgotten);
    }

    /// Gives back permits in the background. No guard of this process has these permits, but at the
    /// server they may still be taken, or a late copy of the acquire may still take them.
    pub(super) fn release_later(&self, ids: &[PermitId], lease: Duration) {
        let command = self.scripts().release_command(ids, false);
        self.core.watchdog.clean_up(Cleanup::released(&self.name, command, lease));
    }

    /// Passes a guard's permit to a waiting thread, or gives it back and waits for the reply.
    pub(super) fn release(self: &Arc<Self>, permit_lease: &Arc<PermitLease>) -> Result<(), Error> {
        if permit_lease.may_pass() {
            let rest = self.gate.pass(permits_of(vec![Arc::clone(permit_lease)]));
            if rest.number == 0 {
                return Ok(());
            }
        }
        let release = PermitRelease::begin(self, vec![Arc::clone(permit_lease)]);
        let command = self.scripts().release_command(&[permit_lease.id], false);
        release.handle_outcome(self.scripts().release(&command))
    }

    /// Gives back permits of any process by their ids. If one of these permits does not exist,
    /// gives back only this process's permits, and returns `false`.
    pub(super) fn release_ids(self: &Arc<Self>, ids: &[PermitId]) -> Result<bool, Error> {
        // This process's permits are given back even if other permits of `ids` do not exist.
        let ours: Vec<_> = ids.iter().filter_map(|id| self.held(id)).collect();
        ours.iter().for_each(|permit_lease| permit_lease.end());
        // The turn must record the release before the release is sent, because a thread of this
        // process may ask for permits before the reply arrives. If the turn is over, that thread
        // must let other processes go first.
        self.gate.with_turn(|turn| turn.record_release(clock::now()));
        let command = self.scripts().release_command(ids, true);
        let longest = ours.iter().map(|permit_lease| permit_lease.hold.longest_lease()).max();
        let longest = longest.unwrap_or_default().max(self.core.config.watchdog_timeout);
        let asked = ours.iter().map(|permit_lease| permit_lease.hold.asked.incarnation).min();
        let asked = asked.unwrap_or_else(|| self.route.incarnation());
        match self.scripts().release(&command) {
            Ok(Replied { reply, in_doubt, .. }) => {
                self.record_listeners(&reply);
                if reply.live == ids.len() {
                    self.record_returned(asked, ids, longest);
                    return Ok(true);
                }
                if !ours.is_empty() {
                    let ours: Vec<_> = ours.iter().map(|permit_lease| permit_lease.id).collect();
                    self.release_later(&ours, longest);
                }
                if in_doubt { Err(self.unclear_outcome()) } else { Ok(false) }
            }
            Err(trouble) => {
                let again = matches!(trouble, Trouble::Unknown(_)) || !ours.is_empty();
                let state = if again {
                    self.core.watchdog.clean_up(Cleanup::released(&self.name, command, longest));
                    IN_THE_BACKGROUND
                } else {
                    "nothing was changed"
                };
                Err(trouble.into_error().of(&self.name).now(state))
            }
        }
    }

    /// Records that the server has confirmed the release of these permits. `asked`: the server's
    /// incarnation when this client acquired the permits.
    ///
    /// A new master may lack the release. This thread first stores the ids, and then reads the
    /// incarnation. When the client connects to a new master, it first raises the incarnation, and
    /// then the renewer reads the stored ids. So either the renewer finds the ids, or this thread
    /// reads a new incarnation and sends the release again.
    fn record_returned(&self, asked: u64, ids: &[PermitId], lease: Duration) {
        self.core.released_permits.record(&self.name, ids, lease);
        if self.route.incarnation() != asked {
            let release = self.scripts().release_command(ids, false);
            self.core.watchdog.clean_up(Cleanup::left_over(&self.name, release, lease));
        }
    }

    fn unclear_outcome(&self) -> Error {
        let message = "the connection broke, and the server, asked once more, no longer knew the \
                       permit: it was most likely given back just now, but its lease may have \
                       ended before";
        Error::new(ErrorKind::Unavailable, message.to_owned())
            .transient(false)
            .unknown(true)
            .of(&self.name)
    }

    /// Records in the turn how many subscribers received the message of a release.
    fn record_listeners(&self, released: &ReturnedPermits) {
        if let Some(listeners) = released.listeners {
            if listeners == REFUSED {
                self.route.lane().endpoint().health().report_publish_missing();
            }
            self.gate.with_turn(|turn| turn.record_listeners(listeners, clock::now()));
        }
    }

    fn asked(&self) -> Asked {
        Asked { forced_unlocks: 0, incarnation: self.route.incarnation(), at: clock::now() }
    }

    /// Stores granted permit leases, so that the watchdog renews them or notices their end.
    fn store(&self, permit_leases: &[Arc<PermitLease>], asked: Asked) {
        let mut held = self.held.lock();
        held.extend(
            permit_leases.iter().map(|permit_lease| (permit_lease.id, Arc::clone(permit_lease))),
        );
        drop(held);
        permit_leases.iter().for_each(|permit_lease| permit_lease.arm());
        // When the incarnation changes, the renewer renews all permit leases in the map. These
        // permit leases may have entered the map later, so this thread renews them now.
        if self.route.incarnation() != asked.incarnation {
            let renewals =
                permit_leases.iter().filter_map(|permit_lease| permit_lease.early_renewal());
            self.core.watchdog.renew_now(renewals.collect());
        }
    }

    /// Gives back permits, because too few replicas acknowledged the acquire (`unacknowledged`).
    fn take_back(
        &self,
        ids: &[PermitId],
        lease: Duration,
        asked: Asked,
        in_doubt: bool,
        unacknowledged: Error,
    ) -> Error {
        let released = self.scripts().release(&self.scripts().release_command(ids, false));
        if let Ok(Replied { reply, .. }) = &released {
            self.record_listeners(reply);
            self.record_returned(asked.incarnation, ids, lease);
        }
        // A late copy of the acquire may still take the permits.
        if in_doubt || released.is_err() {
            self.release_later(ids, lease);
        }
        unacknowledged.of(&self.name).unacknowledged(released.is_ok())
    }

    /// Handles a failed acquire: gives back any permits that the server may have granted.
    fn fail_acquire(&self, trouble: Trouble, ids: &[PermitId], lease: Duration) -> Error {
        let state = match trouble {
            Trouble::Unknown(_) | Trouble::Forgotten(_) => {
                self.release_later(ids, lease);
                "no permit is held; if the server gave permits, they are given back in the \
                 background, or return when their leases end"
            }
            Trouble::Refused(_) | Trouble::Unsent(_) => "no permit was taken",
        };
        trouble.into_error().of(&self.name).now(state)
    }
}

impl PermitSource for ExpirableSite {
    type Lease = Arc<PermitLease>;
    const KIND: Kind = Kind::ExpirableSemaphore;
    const HAS_LEASES: bool = true;
    // A greater number would exceed the limit of Lua's `unpack`. The limit also bounds the server's
    // work for one call.
    const MAX_PERMITS: u32 = 1_024;

    fn core(&self) -> &Arc<Core> {
        &self.core
    }

    fn name(&self) -> &Name {
        &self.name
    }

    fn channel(&self) -> &Arc<str> {
        &self.channel
    }

    fn gate(&self) -> &PermitGate<Arc<PermitLease>> {
        &self.gate
    }

    fn request(
        self: &Arc<Self>,
        needs: &[u32],
        terms: Option<Terms>,
        clients: u64,
    ) -> Result<PermitReply<Arc<PermitLease>>, RequestFailed> {
        // A request for expirable permits always has terms, because it says how long the lease is.
        let Some(terms) = terms else { return Ok(PermitReply::Refused(None)) };
        self.ensure_exists()?;
        let total = needs.iter().fold(0_u32, |sum, more| sum.saturating_add(*more));
        // The client chooses the ids, so that a second copy of the request finds the permits of the
        // first copy.
        let ids: Vec<PermitId> = (0..total).map(|_| self.core.id.next_permit()).collect();
        let (asked, lease) = (self.asked(), terms.lease());
        let Replied { reply, in_doubt, unacknowledged } =
            self.scripts().try_acquire(lease, clients, needs, &ids).map_err(|trouble| {
                let only_this_request =
                    matches!(trouble, Trouble::Refused(_) | Trouble::Forgotten(_));
                RequestFailed { error: self.fail_acquire(trouble, &ids, lease), only_this_request }
            })?;
        if reply != TakenPermit::Missing {
            self.size.record_found();
        }
        let taken = match reply {
            TakenPermit::Taken(taken) => taken.min(ids.len()),
            TakenPermit::Refused(_) | TakenPermit::Missing => 0,
        };
        let (given, others) = ids.split_at(taken);
        if in_doubt && !others.is_empty() {
            // The first copy of the request may still reach the server and take these permits.
            self.release_later(others, lease);
        }
        match reply {
            TakenPermit::Taken(_) => {}
            TakenPermit::Refused(retry_after) => return Ok(PermitReply::Refused(retry_after)),
            TakenPermit::Missing => {
                self.core.log_no_permits(&self.name, needs);
                return Ok(PermitReply::Refused(None));
            }
        }
        if let Some(unacknowledged) = unacknowledged {
            return Err(RequestFailed {
                error: self.take_back(given, lease, asked, in_doubt, unacknowledged),
                only_this_request: false,
            });
        }
        let given: Vec<_> =
            given.iter().map(|id| PermitLease::new(self, *id, terms, asked, in_doubt)).collect();
        if given.iter().any(|permit_lease| clock::now() >= permit_lease.hold.deadline()) {
            self.release_later(&ids, lease);
            return Err(RequestFailed {
                error: Error::late_grant(&self.name),
                only_this_request: true,
            });
        }
        self.store(&given, asked);
        Ok(PermitReply::Granted(permits_of(given)))
    }

    fn give_to_server(self: &Arc<Self>, permits: Permits<Arc<PermitLease>>) {
        let permit_leases = permits.leases;
        let ids: Vec<_> = permit_leases.iter().map(|permit_lease| permit_lease.id).collect();
        let command = self.scripts().release_command(&ids, false);
        let release = PermitRelease::begin(self, permit_leases);
        self.core.post(&self.route, command, Arc::new(release));
    }

    fn give_back(self: &Arc<Self>, permits: Permits<Arc<PermitLease>>) {
        let (passable, mut rest): (Vec<_>, Vec<_>) =
            permits.leases.into_iter().partition(|permit_lease| permit_lease.may_pass());
        rest.extend(self.gate.pass(permits_of(passable)).leases);
        if !rest.is_empty() {
            self.give_to_server(permits_of(rest));
        }
    }
}

/// Makes one `Permits` of permit leases, which must all have the same terms.
pub(super) fn permits_of(leases: Vec<Arc<PermitLease>>) -> Permits<Arc<PermitLease>> {
    let number = u32::try_from(leases.len()).unwrap_or(u32::MAX);
    Permits { number, terms: leases.first().map(|permit_lease| permit_lease.hold.terms), leases }
}

impl Member for ExpirableSite {
    fn name(&self) -> &Name {
        &self.name
    }

    fn end(self: Arc<Self>) {
        self.nudge();
        let held: Vec<_> = self.held.lock().values().cloned().collect();
        for permit_leases in held.chunks(Self::MAX_PERMITS as usize) {
            permit_leases.iter().for_each(|permit_lease| permit_lease.lose(LostReason::ShutDown));
            // If this fails, the client logs it, and the permits are free when their leases end.
            self.give_to_server(permits_of(permit_leases.to_vec()));
        }
    }

    fn renew_now(self: Arc<Self>) -> Vec<Renewal> {
        let held: Vec<_> = self.held.lock().values().cloned().collect();
        held.iter().filter_map(|permit_lease| permit_lease.early_renewal()).collect()
    }

    #[cfg(feature = "in-memory")]
    fn age(self: Arc<Self>, by: u64) -> Vec<Renewal> {
        let held: Vec<_> = self.held.lock().values().cloned().collect();
        held.iter().filter_map(|permit_lease| Leaseholder::age(permit_lease, by)).collect()
    }

    fn held(&self) -> Vec<Held> {
        let held: Vec<_> = self.held.lock().values().cloned().collect();
        held.iter().filter_map(|permit_lease| permit_lease.snapshot()).collect()
    }
}

impl Tracked for ExpirableSite {
    fn hold_query(self: Arc<Self>) -> Option<HoldQuery> {
        let held = self.held.lock();
        let tracked = held.values().filter(|permit_lease| permit_lease.hold.is_tracked());
        let ids: Vec<_> = tracked.map(|permit_lease| permit_lease.id).collect();
        drop(held);
        if ids.is_empty() {
            return None;
        }
        let command = self.scripts().are_held_command(&ids);
        let answered = Box::new(move |reply: &Value| {
            let lease_ends: &[Value] = match reply {
                Value::Array(ends) if ends.len() == ids.len() => ends,
                _ => &[],
            };
            // The reply is only a hint: the renewal of a permit shows whether the permit is lost. A
            // permit that was given back in the meantime is not renewed.
            let gone = ids
                .iter()
                .enumerate()
                .filter(|(at, _)| lease_ends.get(*at).is_none_or(|ends| *ends == Value::Nil));
            let permit_leases = gone.filter_map(|(_, id)| self.held(id));
            let renewals: Vec<_> =
                permit_leases.filter_map(|permit_lease| permit_lease.early_renewal()).collect();
            if !renewals.is_empty() {
                self.core.watchdog.renew_now(renewals);
            }
        });
        Some(HoldQuery { command, answered })
    }
}

impl Drop for ExpirableSite {
    fn drop(&mut self) {
        self.core.members.of::<Self>().forget(&self.name);
    }
}

/// A release of permits that has no reply yet.
struct PermitRelease {
    site: Arc<ExpirableSite>,
    permit_leases: Vec<Arc<PermitLease>>,
}

const IN_THE_BACKGROUND: &str = "it is given back in the background, or returns when its lease \
                                 ends: do not release it again";

impl PermitRelease {
    /// Ends these permit leases, so that no guard has them and the watchdog no longer renews them.
    /// The caller then sends the release.
    fn begin(site: &Arc<ExpirableSite>, permit_leases: Vec<Arc<PermitLease>>) -> Self {
        permit_leases.iter().for_each(|permit_lease| permit_lease.end());
        Self { site: Arc::clone(site), permit_leases }
    }

    /// Handles the outcome of the release.
    fn handle_outcome(
        &self,
        outcome: Result<Replied<ReturnedPermits>, Trouble>,
    ) -> Result<(), Error> {
        let site = &self.site;
        let release_later = |permit_leases: &mut dyn Iterator<Item = &Arc<PermitLease>>| {
            let (ids, leases): (Vec<_>, Vec<_>) = permit_leases
                .map(|permit_lease| (permit_lease.id, permit_lease.hold.longest_lease()))
                .unzip();
            if let Some(longest) = leases.into_iter().max() {
                site.release_later(&ids, longest);
            }
        };
        match outcome {
            Ok(Replied { reply, in_doubt, .. }) => {
                site.record_listeners(&reply);
                // If a late copy of the acquire may still arrive, a second release must follow. The
                // client sends the second release after the reply to the first release. If the
                // second release ran first, the first release would find nothing to give back.
                release_later(
                    &mut self
                        .permit_leases
                        .iter()
                        .filter(|permit_lease| permit_lease.hold.in_doubt),
                );
                for permit_lease in &self.permit_leases {
                    let asked = permit_lease.hold.asked.incarnation;
                    site.record_returned(
                        asked,
                        &[permit_lease.id],
                        permit_lease.hold.longest_lease(),
                    );
                }
                if reply.live >= self.permit_leases.len() {
                    Ok(())
                } else if in_doubt {
                    Err(site.unclear_outcome())
                } else {
                    // The reply does not say which permits are missing. The leases of the missing
                    // permits have probably ended.
                    let reasons = self.permit_leases.iter().map(|it| it.hold.why_gone());
                    let reason =
                        reasons.reduce(
                            |one, other| {
                                if one == LostReason::LeaseExpired { one } else { other }
                            },
                        );
                    Err(Error::lost(&site.name, &reason.unwrap_or(LostReason::Revoked)))
                }
            }
            Err(trouble) => {
                release_later(&mut self.permit_leases.iter());
                Err(trouble.into_error().of(&site.name).now(IN_THE_BACKGROUND))
            }
        }
    }
}

impl ReplyReceiver for PermitRelease {
    fn receive(&self, outcome: Outcome) {
        let outcome = released(outcome).map(|reply| Replied::acknowledged(reply, false));
        if let Err(error) = self.handle_outcome(outcome) {
            self.site.core.watchdog.log_error(error);
        }
    }
}
