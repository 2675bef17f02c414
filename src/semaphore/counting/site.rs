//! The site of a semaphore in one client: its requests to the server, and their replies.

use std::convert::Infallible;
use std::sync::Arc;

use redlatch_client::sync::atomic::Ordering;
use redlatch_client::sync::{Mutex, clock, is_forked};
use redlatch_client::{Command, Lane, Outcome, ReplyReceiver, Route};

use crate::error::Error;
use crate::hold::Terms;
use crate::lease::{Cleanup, Debtor};
use crate::name::Name;
use crate::observe::Kind;
use crate::runtime::{Core, Member};
use crate::scripts::semaphore::{Marked, REFUSED, SemaphoreScripts, released};
use crate::scripts::{Mark, Replied, RequestId, Requests, SemaphoreKeys, Trouble};
use crate::semaphore::permits::{PermitGate, PermitReply, PermitSource, Permits, RequestFailed};
use crate::semaphore::size::Size;
use crate::waiting::QueueSite;

/// One semaphore in one client.
pub(crate) struct SemaphoreSite {
    pub(super) core: Arc<Core>,
    pub(super) name: Name,
    pub(super) route: Route,
    pub(super) channel: Arc<str>,
    /// The key of the semaphore's mark, a text that distinguishes this semaphore from earlier and
    /// later semaphores of the same name.
    mark: Box<str>,
    pub(super) requests: Arc<Requests>,
    debt: Mutex<Debt>,
    pub(super) size: Size,
    gate: PermitGate<Infallible>,
}

/// Permits that the client must give back, and for which no request is open. A release adds its
/// permits to the debt in three cases: too many releases have no reply yet, the server cannot be
/// reached, or the server refuses the release. One request gives all of these permits back.
#[derive(Debug, Default)]
struct Debt {
    permits: u64,
    /// The open request that pays a part of the debt, and the number of permits that it gives back.
    paying: Option<(RequestId, u64)>,
    /// Whether a cleanup that pays the debt is queued.
    has_cleanup: bool,
}

/// How the caller gives permits back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Giving {
    /// The caller does not wait for the reply. If the release fails, the client sends it again.
    Posted,
    /// The caller waits for the reply. If the release fails, the client sends it again only if the
    /// server may have applied it.
    Awaited,
    /// The caller waits for the reply. If the release fails, the client always sends it again,
    /// because no guard has the permits now.
    AwaitedAndRepeated,
}

/// The maximum number of a lane's releases that have no reply yet. (A lane is a shared connection.)
/// Above this number, dropped permits are added to the debt. So no drop of a permit waits for the
/// server, and the memory for releases is bounded in the client and in the server.
const MOST_POSTED: usize = 500;

impl SemaphoreSite {
    /// Returns the site of a name, which all handles of this name share.
    pub(crate) fn of(core: &Arc<Core>, name: &str) -> Arc<Self> {
        core.members.of::<Self>().get(&core.key(name), |key| Self {
            route: core.route(&key),
            channel: SemaphoreKeys::channel(&key).into(),
            mark: SemaphoreKeys::mark(&key).into(),
            requests: core.requests_of(&key),
            debt: Mutex::default(),
            size: Size::default(),
            gate: PermitGate::new(core.round_trip()),
            core: Arc::clone(core),
            name: core.name(key),
        })
    }

    pub(super) fn scripts(&self) -> SemaphoreScripts<'_> {
        SemaphoreScripts {
            route: &self.route,
            key: &self.name,
            channel: &self.channel,
            mark: &self.mark,
            requests: &self.requests,
            acks: self.core.config.replica_acks,
        }
    }

    /// If a handle has a size, makes the semaphore before the first request for permits.
    fn ensure_exists(&self) -> Result<(), RequestFailed> {
        let Self { core, name, .. } = self;
        // The server does not know how many permits are taken.
        let describe_difference =
            |free, wanted| (free > wanted).then(|| format!("{free} are free"));
        let try_set = |size| {
            self.requests.with_one(&core.id, |id| self.scripts().try_set_permits(id, size, None))
        };
        let read_size = || self.scripts().available_permits();
        self.size
            .ensure_exists((core, name), read_size, describe_difference, try_set)
            .map_err(|trouble| RequestFailed::of_size(trouble, name))
    }

    pub(super) fn open(&self) -> RequestId {
        self.requests.open_after(self.route.incarnation(), || self.core.id.next_number())
    }

    /// Records that the server has applied a request. `permits`: the change in the number of free
    /// permits. `mark`: the semaphore's mark, as the request's script read it.
    pub(super) fn record_applied(&self, request_id: RequestId, permits: i64, mark: Option<Mark>) {
        self.core.watchdog.record_applied(&self.name, &self.requests, request_id, permits, mark);
    }

    /// Handles a failed acquire: gives back any permits that the server may have granted.
    pub(super) fn fail_acquire(&self, request_id: RequestId, trouble: Trouble) -> Error {
        let state = match &trouble {
            Trouble::Unknown(_) => {
                self.repeat_in_background(self.scripts().abandon(request_id), request_id, 0);
                if self.core.is_shut_down() {
                    "no permit is taken; the client has ended, and perhaps has not given back \
                     permits that the server gave: look at available_permits"
                } else {
                    "no permit is taken; if the server gave permits, they are given back in the \
                     background, for up to four minutes"
                }
            }
            Trouble::Forgotten(_) => {
                self.requests.close(request_id);
                FORGOTTEN
            }
            Trouble::Refused(_) | Trouble::Unsent(_) => {
                self.requests.close(request_id);
                "no permit was taken"
            }
        };
        trouble.into_error().of(&self.name).now(state)
    }

    /// Gives back the permits that a request took, because too few replicas acknowledged the
    /// request (`unacknowledged`). `asked`: the server's incarnation before the request.
    pub(super) fn take_back(
        &self,
        request_id: RequestId,
        asked: u64,
        taken: i64,
        unacknowledged: Error,
    ) -> Error {
        let unacknowledged = unacknowledged.of(&self.name);
        let Ok(Replied { reply: was_remembered, in_doubt, .. }) =
            self.scripts().take_back(request_id)
        else {
            self.repeat_in_background(self.scripts().abandon(request_id), request_id, 0);
            return unacknowledged.unacknowledged(false);
        };
        if was_remembered {
            self.record_applied(request_id, 0, None);
            return unacknowledged.unacknowledged(true);
        }
        self.requests.close(request_id);
        if in_doubt || self.route.incarnation() != asked {
            // There are two possible reasons. The first copy of this release gave the permits back.
            // Or a new server has replied, which never received the request that took the permits.
            // In both cases another release would free too many permits.
            return unacknowledged.unknown(true).now(FORGOTTEN);
        }
        // The server has forgotten the request that took the permits, so a new request adds them.
        let request_id = self.open();
        self.repeat_in_background(
            self.scripts().add_permits_command(request_id, taken),
            request_id,
            taken,
        );
        unacknowledged.unacknowledged(false)
    }

    /// Gives permits back as [`PermitSource::give_back`] does, but may wait for the reply.
    pub(super) fn give_back_as(
        self: &Arc<Self>,
        permits: u32,
        giving: Giving,
    ) -> Result<(), Error> {
        match self.gate.pass(without_leases(permits)).number {
            0 => Ok(()),
            // Other threads have some of the permits, so the caller must not repeat the release.
            rest if rest < permits && giving == Giving::Awaited => {
                self.send_back(rest, Giving::AwaitedAndRepeated)
            }
            rest => self.send_back(rest, giving),
        }
    }

    fn send_back(self: &Arc<Self>, permits: u32, giving: Giving) -> Result<(), Error> {
        let posted = giving == Giving::Posted;
        if posted && self.route.lane().permits_posted.load(Ordering::Relaxed) >= MOST_POSTED {
            self.add_debt(permits.into());
            return Ok(());
        }
        let request_id = self.open();
        let release = Release { site: Arc::clone(self), request_id, permits };
        if posted {
            let lane = self.route.lane().into_owned();
            lane.permits_posted.fetch_add(1, Ordering::Relaxed);
            let release = PostedRelease { release, lane };
            let command = self.scripts().release_command(request_id, permits.into(), false);
            self.core.post(&self.route, command, Arc::new(release));
            return Ok(());
        }
        let outcome = self.scripts().release(request_id, permits, false);
        release.handle_outcome(outcome, giving != Giving::Awaited)
    }

    /// Adds permits to the debt, which a cleanup pays in the background.
    fn add_debt(self: &Arc<Self>, permits: u64) {
        let mut debt = self.debt.lock();
        debt.permits = debt.permits.saturating_add(permits);
        let had_cleanup = std::mem::replace(&mut debt.has_cleanup, true);
        drop(debt);
        if !had_cleanup {
            self.core.watchdog.clean_up(Cleanup::debt(&self.name, Arc::clone(self) as _));
        }
    }

    fn in_the_background(&self) -> &'static str {
        if self.core.is_shut_down() { NO_BACKGROUND } else { IN_THE_BACKGROUND }
    }

    /// Checks whether the reply says that the server lacks earlier requests, because it is a new
    /// master. If so, the renewer repeats the earlier requests and then sends the release again.
    fn check_behind(&self, request_id: RequestId, outcome: &Outcome) {
        if matches!(outcome, Ok(reply) if Requests::is_behind(reply)) {
            self.requests.must_be_mended(request_id, self.route.incarnation());
        }
    }

    /// Sends a numbered request in the background, and repeats it until the server has applied it.
    /// `permits`: the change in the number of free permits, as in [`Requests::record_applied`].
    fn repeat_in_background(&self, command: Command, request_id: RequestId, permits: i64) {
        let cleanup =
            Cleanup::numbered(&self.name, command, &self.requests, request_id, Some(permits));
        self.core.watchdog.clean_up(cleanup);
    }
}

impl PermitSource for SemaphoreSite {
    type Lease = Infallible;
    const KIND: Kind = Kind::Semaphore;
    const HAS_LEASES: bool = false;
    const MAX_PERMITS: u32 = u32::MAX;

    fn core(&self) -> &Arc<Core> {
        &self.core
    }

    fn name(&self) -> &Name {
        &self.name
    }

    fn channel(&self) -> &Arc<str> {
        &self.channel
    }

    fn gate(&self) -> &PermitGate<Infallible> {
        &self.gate
    }

    fn request(
        self: &Arc<Self>,
        needs: &[u32],
        _: Option<Terms>,
        clients: u64,
    ) -> Result<PermitReply<Infallible>, RequestFailed> {
        self.ensure_exists()?;
        let (request_id, asked) = (self.open(), self.route.incarnation());
        let outcome = self.scripts().try_acquire(request_id, clients, needs);
        if let Ok(Replied { reply: (Some(taken), _), in_doubt, .. }) = &outcome
            // The reply to a second copy does not distinguish a missing semaphore from a semaphore
            // without free permits.
            && (*taken > 0 || !in_doubt)
        {
            self.size.record_found();
        }
        match outcome {
            Ok(Replied {
                reply: (Some(taken @ 1..), _),
                unacknowledged: Some(unacknowledged),
                ..
            }) => {
                let error = self.take_back(request_id, asked, taken.into(), unacknowledged);
                Err(RequestFailed { error, only_this_request: false })
            }
            Ok(Replied { reply: (Some(taken @ 1..), mark), .. }) => {
                self.record_applied(request_id, -i64::from(taken), mark);
                Ok(PermitReply::Granted(without_leases(taken)))
            }
            Ok(Replied { reply: (taken, _), .. }) => {
                self.requests.close(request_id);
                if taken.is_none() {
                    self.core.log_no_permits(&self.name, needs);
                }
                Ok(PermitReply::Refused(None))
            }
            Err(trouble) => {
                let only_this_request =
                    matches!(trouble, Trouble::Refused(_) | Trouble::Forgotten(_));
                Err(RequestFailed {
                    error: self.fail_acquire(request_id, trouble),
                    only_this_request,
                })
            }
        }
    }

    fn give_to_server(self: &Arc<Self>, permits: Permits<Infallible>) {
        // If the release fails, the client logs the error and sends the release again.
        let _ = self.send_back(permits.number, Giving::Posted);
    }
}

fn without_leases(number: u32) -> Permits<Infallible> {
    Permits { number, terms: None, leases: Vec::new() }
}

impl Debtor for SemaphoreSite {
    fn command(&self) -> Option<Command> {
        let permits = {
            let mut debt = self.debt.lock();
            // `has_cleanup` is reset under the mutex that guards `permits`. So if a thread adds to
            // the debt afterwards, it queues a new cleanup.
            debt.has_cleanup = debt.permits > 0;
            std::mem::take(&mut debt.permits)
        };
        if permits == 0 {
            return None;
        }
        let request_id = self.open();
        self.debt.lock().paying = Some((request_id, permits));
        Some(self.scripts().release_command(request_id, permits, false))
    }

    fn handle_outcome(&self, outcome: &Outcome, resent: bool) {
        let Some((request_id, permits)) = self.debt.lock().paying.take() else { return };
        self.check_behind(request_id, outcome);
        let given = i64::try_from(permits).unwrap_or(i64::MAX);
        let unpaid = match released(outcome.clone(), &self.requests) {
            Ok((_, mark)) => {
                self.record_applied(request_id, given, mark);
                0
            }
            Err(trouble) if resent || matches!(trouble, Trouble::Unknown(_)) => {
                // The server may have applied the release, so it is repeated as the same request.
                self.repeat_in_background(
                    self.scripts().release_command(request_id, permits, true),
                    request_id,
                    given,
                );
                return;
            }
            Err(trouble) => {
                let error = trouble.into_error().of(&self.name);
                self.core.watchdog.log(log::Level::Debug, || format!("{error:#}"));
                permits
            }
        };
        self.requests.close(request_id);
        let mut debt = self.debt.lock();
        debt.permits = debt.permits.saturating_add(unpaid);
    }
}

impl Member for SemaphoreSite {
    fn name(&self) -> &Name {
        &self.name
    }

    fn counts_permits(&self) -> bool {
        true
    }

    fn end(self: Arc<Self>) {
        self.nudge();
    }
}

impl Drop for SemaphoreSite {
    fn drop(&mut self) {
        self.core.members.of::<Self>().forget(&self.name);
        // In a forked child, a thread of the parent may have left the mutex of `requests` locked.
        if !is_forked() {
            self.requests.free_sequences();
        }
    }
}

/// A release of permits that has no reply yet.
struct Release {
    site: Arc<SemaphoreSite>,
    request_id: RequestId,
    permits: u32,
}

impl Release {
    /// Handles the outcome of the release. `repeats`: if the server refused the release or the
    /// client could not send it, the permits are added to the debt.
    fn handle_outcome(
        &self,
        outcome: Result<Replied<Marked<Option<i64>>>, Trouble>,
        repeats: bool,
    ) -> Result<(), Error> {
        let site = &self.site;
        let trouble = match outcome {
            Ok(Replied { reply: (listeners, mark), unacknowledged, .. }) => {
                site.record_applied(self.request_id, self.permits.into(), mark);
                let listeners = listeners.unwrap_or(0);
                if listeners == REFUSED {
                    site.route.lane().endpoint().health().report_publish_missing();
                }
                site.gate.with_turn(|turn| turn.record_listeners(listeners, clock::now()));
                return match unacknowledged {
                    Some(unacknowledged) => Err(unacknowledged.of(&site.name).now(GIVEN_BACK_HERE)),
                    None => Ok(()),
                };
            }
            Err(trouble) => trouble,
        };
        let state = match &trouble {
            Trouble::Unknown(_) => {
                let copy =
                    site.scripts().release_command(self.request_id, self.permits.into(), true);
                site.repeat_in_background(copy, self.request_id, self.permits.into());
                if site.core.is_shut_down() { NO_BACKGROUND } else { FOR_FOUR_MINUTES }
            }
            Trouble::Forgotten(_) => {
                site.requests.close(self.request_id);
                "whether the permits were given back is not known: look at available_permits"
            }
            Trouble::Refused(_) | Trouble::Unsent(_) => {
                site.requests.close(self.request_id);
                if repeats {
                    site.add_debt(self.permits.into());
                    site.in_the_background()
                } else {
                    "no permit was given back"
                }
            }
        };
        Err(trouble.into_error().of(&site.name).now(state))
    }
}

const FORGOTTEN: &str =
    "no permit is taken; if some are missing for good, add them with add_permits";
pub(super) const GIVEN_BACK_HERE: &str =
    "the permits are given back, do not release them again; a later master may not know this";
const IN_THE_BACKGROUND: &str =
    "the permits are given back in the background: do not release them again";
/// The text that an error contains if the client repeats the release as a [numbered
/// request](Cleanup::numbered).
const FOR_FOUR_MINUTES: &str = "the permits are given back in the background, for up to four \
                                minutes: do not release them again";
const NO_BACKGROUND: &str =
    "the client has ended, and perhaps has not given the permits back: look at available_permits";

/// A posted release, and its lane, which counts the releases that have no reply yet.
struct PostedRelease {
    release: Release,
    lane: Arc<Lane>,
}

impl ReplyReceiver for PostedRelease {
    fn receive(&self, outcome: Outcome) {
        let Self { release, lane } = self;
        lane.permits_posted.fetch_sub(1, Ordering::Relaxed);
        release.site.check_behind(release.request_id, &outcome);
        let outcome = released(outcome, &release.site.requests);
        let outcome = outcome.map(|reply| Replied::acknowledged(reply, false));
        if let Err(error) = release.handle_outcome(outcome, true) {
            release.site.core.watchdog.log_error(error);
        }
    }
}

#[cfg(all(test, testkit))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use redlatch_testkit::{Action, Proxy, Server, wait_until};

    use super::*;
    use crate::config::ClientBuilder;
    use crate::error::ErrorKind;
    use crate::runtime::Session;
    use crate::scripts;

    const VALID_FOR: Duration = Duration::from_millis(500);
    const MEMORY: Duration = Duration::from_secs(2);
    const TIMEOUT: Duration = Duration::from_secs(20);

    fn too_few() -> Error {
        Error::new(ErrorKind::TooFewReplicas, "too few replicas".to_owned())
    }

    fn session(url: &str) -> Session {
        let config = ClientBuilder::new(url).response_timeout(TIMEOUT).config;
        Session::open(url, config, |_, _, _| {}).unwrap()
    }

    /// Returns a semaphore whose requests the server remembers for only a short time.
    fn pool(session: &Session) -> SemaphoreSite {
        let core = session.core();
        let key = scripts::requests("pool", core.id.as_str());
        let requests = Requests::new(key, &Arc::default()).with_validity(VALID_FOR, MEMORY);
        SemaphoreSite {
            route: core.route("pool"),
            channel: SemaphoreKeys::channel("pool").into(),
            mark: SemaphoreKeys::mark("pool").into(),
            requests: Arc::new(requests),
            debt: Mutex::default(),
            size: Size::default(),
            gate: PermitGate::new(core.round_trip()),
            core: Arc::clone(core),
            name: "pool".into(),
        }
    }

    /// Takes three of five permits. Returns the request, and the server's incarnation before it.
    fn take(site: &SemaphoreSite) -> (RequestId, u64) {
        assert!(site.scripts().set_permits(site.open(), 5).unwrap());
        let (request_id, asked) = (site.open(), site.route.incarnation());
        assert_eq!(site.scripts().try_acquire(request_id, 1, &[3]).unwrap().reply.0, Some(3));
        (request_id, asked)
    }

    fn free(site: &SemaphoreSite) -> i64 {
        site.scripts().available_permits().unwrap().unwrap_or(0)
    }

    struct Pays(mpsc::Sender<()>);

    impl Debtor for Pays {
        fn command(&self) -> Option<Command> {
            self.0.send(()).is_ok().then(|| Command::plain(&[b"PING"]))
        }

        fn handle_outcome(&self, _: &Outcome, _: bool) {}
    }

    /// Waits until the renewer has done all cleanups that are queued now.
    fn wait_for_cleanups(site: &SemaphoreSite) {
        let (sender, paid) = mpsc::channel();
        site.core.watchdog.clean_up(Cleanup::debt(&site.name, Arc::new(Pays(sender))));
        // At the second call of `command`, all replies to the first packet have been read.
        for _ in 0..2 {
            paid.recv_timeout(TIMEOUT).unwrap();
        }
    }

    /// The server may forget a request while the client waits for replicas.
    #[test]
    fn permits_that_too_few_replicas_have_are_given_back_though_the_server_has_forgotten_the_request()
     {
        let server = Server::start().unwrap();
        let session = session(&server.url());
        let site = pool(&session);
        let (request_id, asked) = take(&site);
        thread::sleep(MEMORY + VALID_FOR);
        assert!(site.take_back(request_id, asked, 3, too_few()).outcome_unknown());
        wait_until("they are given back", TIMEOUT, || free(&site) == 5);
    }

    /// The new server never received the request that took the permits.
    #[test]
    fn permits_of_another_server_are_not_given_back_to_this_one() {
        let (old, new) = (Server::start().unwrap(), Server::start().unwrap());
        let proxy = Proxy::before(&old);
        let session = session(&proxy.url());
        let site = pool(&session);
        let (request_id, asked) = take(&site);
        let () = redis::Commands::set(&mut new.connection(), "pool", 5).unwrap();
        thread::sleep(MEMORY + VALID_FOR);
        proxy.lead_to(&new);
        old.kill();
        let error = site.take_back(request_id, asked, 3, too_few());
        assert!(error.outcome_unknown() && error.to_string().contains("add_permits"), "{error}");
        wait_for_cleanups(&site);
        assert_eq!(free(&site), 5);
    }

    /// The first copy of the release gave the permits back, but its reply was lost. When the second
    /// copy arrives, the server has forgotten the first copy.
    #[test]
    fn permits_are_not_given_back_again_by_a_late_copy() {
        let server = Server::start().unwrap();
        let proxy = Proxy::before(&server);
        let session = session(&proxy.url());
        let site = pool(&session);
        let (request_id, asked) = take(&site);
        // After this call, the server has the script in its cache.
        assert!(site.scripts().take_back(site.open()).unwrap().reply);
        proxy.on_request("redisson_sc", Action::Silence);
        let error = thread::scope(|scope| {
            let error = scope.spawn(|| site.take_back(request_id, asked, 3, too_few()));
            proxy.wait_fired(1, TIMEOUT);
            thread::sleep(MEMORY + VALID_FOR);
            proxy.cut_all();
            error.join().unwrap()
        });
        assert!(error.outcome_unknown() && error.to_string().contains("add_permits"), "{error}");
        wait_for_cleanups(&site);
        assert_eq!(free(&site), 5);
    }
}
