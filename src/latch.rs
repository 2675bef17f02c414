//! The count-down latch: Redisson's `RCountDownLatch`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::{Mutex, Thread, clock};
use redlatch_client::{CancelToken, Route, was_cut, was_cut_while_answering};

#[cfg(doc)]
use crate::client::Client;
use crate::config::{check_expiry, check_time_to_live};
use crate::error::{Error, ErrorKind};
use crate::lease::Cleanup;
use crate::name::Name;
use crate::observe::Kind;
use crate::runtime::{Core, Member, Session};
use crate::scripts::latch::{LatchScripts, LatchState};
use crate::scripts::{LatchKeys, RequestId, Requests, Trouble};
use crate::waiting::{
    Claim, Enter, EnterOf, Lead, Queue, QueueLeadership, QueueSite, Signal, Synchronizer, Try,
    Wait, Waited, acquire, slow_poll_or,
};

/// A count in Redis. Threads wait until threads of any process have counted it down to zero. This
/// type is like `CountDownLatch` of java.util.concurrent, and compatible with Redisson's
/// `RCountDownLatch`. [`Client::count_down_latch`] returns a `CountDownLatch`.
///
/// All clones, and all handles of the same name, are the same latch. A latch without a count is
/// open. After the count has become zero, a program may set a new count.
///
/// ```no_run
/// use std::time::Duration;
///
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let ready = client.count_down_latch("workers-ready");
/// ready.try_set_count(3)?; // three workers
///
/// ready.count_down()?; // each worker, once
///
/// if ready.wait_for(Duration::from_secs(60))?.timed_out() {
///     println!("{} are missing", ready.count()?);
/// }
/// # Ok(()) }
/// ```
///
/// # After a failover
///
/// A replica that becomes the master may lack the latest count-downs, or the count that was set.
/// The client does not repeat these changes: compare [`count`](Self::count) with the count that you
/// expect.
///
/// # In Redis
///
/// The count is a string under the latch's name. When the count is zero, there is no key. A message
/// on `redisson_countdownlatch__channel__{name}` says that the count has become zero (`0`) or was
/// set (`1`). Keys that begin with `redlatch_request:{name}:…` record applied requests for five
/// minutes, so that no count-down is applied twice.
/// [Operations](crate::guide::operations#access-rights) lists the rights that a user needs.
#[derive(Clone)]
pub struct CountDownLatch {
    site: Arc<LatchSite>,
    session: Session,
}

impl CountDownLatch {
    /// Sets the count if the latch is open. If the latch has a count, changes nothing and returns
    /// `false`. A count of zero leaves the latch open.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if the count is above `i64::MAX`. [Server
    /// trouble](ErrorKind#server-trouble) if the server refuses the request or does not answer; the
    /// message says whether the count may have been set. The other errors are those of
    /// [`count`](Self::count).
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: it had a count before, and none was set"]
    pub fn try_set_count(&self, count: u64) -> Result<bool, Error> {
        self.set_count(count, None)
    }

    /// Sets the count as [`try_set_count`](Self::try_set_count) does, with a `time_to_live`. With a
    /// time to live, a latch whose name is used only once leaves no key behind. Threads that still
    /// wait at the end of this time get an error of kind [`Expired`](ErrorKind::Expired).
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if `time_to_live` is not from 1 ms to 10¹³ ms: nothing is
    /// changed. The other errors are those of [`try_set_count`](Self::try_set_count).
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: it had a count before, and none was set"]
    pub fn try_set_count_for(&self, count: u64, time_to_live: Duration) -> Result<bool, Error> {
        check_time_to_live(time_to_live).map_err(|error| error.of(&self.site.name))?;
        self.set_count(count, Some(time_to_live))
    }

    /// Sets the latch's time to live, counted from now. [`Duration::MAX`] removes the time to live.
    /// Returns `false` if the latch has no count.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if `time_to_live` is out of range (1 ms to 10¹³ ms, or
    /// [`Duration::MAX`]): nothing was changed. [Server trouble](ErrorKind#server-trouble) if the
    /// server refuses the request or does not answer; the message says whether the time may have
    /// been set. The other errors are those of [`count`](Self::count).
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: the latch is open, and nothing was changed"]
    pub fn expire(&self, time_to_live: Duration) -> Result<bool, Error> {
        self.check(&Wait::FOREVER)?;
        check_expiry(time_to_live).map_err(|error| error.of(&self.site.name))?;
        self.site.once(|scripts, request_id| scripts.expiry().set(request_id, time_to_live))
    }

    /// Returns the latch's time to live. Returns `None` if the latch has no count, and
    /// [`Duration::MAX`] if its count has no time to live.
    ///
    /// # Errors
    ///
    /// The errors of [`count`](Self::count).
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`None`: the latch is open"]
    pub fn time_to_live(&self) -> Result<Option<Duration>, Error> {
        self.check(&Wait::FOREVER)?;
        let left = self.site.scripts().expiry().get();
        left.map_err(|trouble| trouble.into_error_of(&self.site.name))
    }

    fn set_count(&self, count: u64, time_to_live: Option<Duration>) -> Result<bool, Error> {
        self.check(&Wait::FOREVER)?;
        let site = &self.site;
        if i64::try_from(count).is_err() {
            let message = format!("a count of {count} is too large; it may be up to 2^63 - 1");
            return Err(Error::new(ErrorKind::Config, message).of(&site.name));
        }
        if count == 0 {
            return Ok(self.count()? == 0);
        }
        site.once(|scripts, request_id| scripts.try_set_count(request_id, count, time_to_live))
    }

    /// Lowers the count by one. The last count-down opens the latch and wakes the waiters on all
    /// machines. If the latch is already open, the call changes nothing.
    ///
    /// # Errors
    ///
    /// [Server trouble](ErrorKind#server-trouble) if the server refuses the request or does not
    /// answer. If the outcome is unknown, the client repeats the count-down in the background, and
    /// the server applies it once: do not count down again. The message says whether the client
    /// repeats the count-down. The other errors are those of [`count`](Self::count).
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn count_down(&self) -> Result<(), Error> {
        self.check(&Wait::FOREVER)?;
        let site = &self.site;
        let request_id = site.open();
        let Err(trouble) = site.scripts().count_down(request_id) else {
            site.requests.close(request_id);
            return Ok(());
        };
        let state = match &trouble {
            Trouble::Unknown(_) => {
                let command = site.scripts().count_down_copy(request_id);
                let cleanup =
                    Cleanup::numbered(&site.name, command, &site.requests, request_id, None);
                site.core.watchdog.clean_up(cleanup);
                if site.core.is_shut_down() {
                    "whether it was counted is not known, and the client has ended: look at the count"
                } else {
                    "the count-down is repeated in the background, for up to four minutes, and \
                     counts once: do not count down again"
                }
            }
            Trouble::Forgotten(_) => {
                site.requests.close(request_id);
                "whether it was counted is not known: look at the count"
            }
            Trouble::Refused(_) | Trouble::Unsent(_) => {
                site.requests.close(request_id);
                "nothing was counted"
            }
        };
        Err(trouble.into_error().of(&site.name).now(state))
    }

    /// Returns the count, or zero if the latch is open. The result may be out of date when the call
    /// returns.
    ///
    /// # Errors
    ///
    /// [Server trouble](ErrorKind#server-trouble) if the server refuses or does not answer, or if
    /// the key holds other data. [`Protocol`](ErrorKind::Protocol) if the server's reply is
    /// malformed. [`Config`](ErrorKind::Config) if the name is empty.
    /// [`ShutDown`](ErrorKind::ShutDown) after [`Client::shutdown`]. [`Forked`](ErrorKind::Forked)
    /// in a forked child.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn count(&self) -> Result<u64, Error> {
        self.check(&Wait::FOREVER)?;
        let count = self
            .site
            .scripts()
            .count()
            .map_err(|trouble| trouble.into_error_of(&self.site.name))?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Blocks until the latch is open.
    ///
    /// If the latch is open, the call needs one round trip. If the latch is closed, the thread
    /// sleeps until the message of the last count-down arrives, and then asks the server. (If the
    /// message is lost, the thread asks after about 5 s.) One thread asks for all waiting threads
    /// of this process. If a program sets a new count before the thread has asked, the wait may
    /// continue until the new count is zero, as in Redisson.
    ///
    /// # Errors
    ///
    /// The errors of [`count`](Self::count). [`ShutDown`](ErrorKind::ShutDown) if
    /// [`Client::shutdown`] ends the wait. [`Expired`](ErrorKind::Expired) if the latch's [time to
    /// live](Self::try_set_count_for) has ended and this process did not receive the message of the
    /// last count-down.
    ///
    /// All methods that wait can return these errors.
    ///
    /// # Blocking
    ///
    /// Blocks until the latch is open, or an error ends the wait. Each request lasts for at most
    /// [`response_timeout`](crate::ClientBuilder::response_timeout), even in an outage.
    pub fn wait(&self) -> Result<(), Error> {
        self.await_open(Wait::FOREVER).map(drop)
    }

    /// Blocks until the latch is open, or returns [`TimedOut`](Waited::TimedOut) after `wait`.
    ///
    /// # Errors
    ///
    /// A failed request is an error, never `TimedOut`.
    ///
    /// # Blocking
    ///
    /// Blocks for at most `wait`. (If `wait` is very short, the call may still take 50 ms, or three
    /// round trips to a distant server.) If `wait` ends during a request, the call returns
    /// `TimedOut` only if the server was answering: it has answered an earlier request of this
    /// call, or any request over the same connection within the last second. Otherwise the call
    /// returns an error.
    pub fn wait_for(&self, wait: Duration) -> Result<Waited, Error> {
        self.await_open(Wait::at_most(wait))
    }

    /// Blocks until the latch is open, or fails when `token` is cancelled.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if `token` was cancelled. The other errors are those of
    /// [`wait`](Self::wait).
    ///
    /// # Blocking
    ///
    /// Blocks until the latch is open, or an error or the cancellation ends the wait. The
    /// cancellation ends the wait at once, even during a request.
    pub fn wait_cancellable(&self, token: &CancelToken) -> Result<(), Error> {
        self.await_open(Wait::from(token)).map(drop)
    }

    /// Blocks until the latch is open, or returns [`TimedOut`](Waited::TimedOut) at the end of
    /// `wait`. All other methods that wait are short forms of this method.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if the token of `wait` was cancelled. The other errors
    /// are those of [`wait`](Self::wait).
    ///
    /// # Blocking
    ///
    /// Blocks for as long as `wait` allows: see [`wait_for`](Self::wait_for) and
    /// [`wait_cancellable`](Self::wait_cancellable). If a deadline of `wait` has already passed,
    /// the call asks once.
    pub fn wait_within<'a>(&self, wait: impl Into<Wait<'a>>) -> Result<Waited, Error> {
        self.await_open(wait.into())
    }

    /// Removes the latch, which opens it and wakes the waiters. Returns `false` if the latch had no
    /// count.
    ///
    /// # Errors
    ///
    /// [Server trouble](ErrorKind#server-trouble) if the server refuses or does not answer (the
    /// message says whether the latch may have been removed), or if the key holds other data, which
    /// is not changed. The other errors are those of [`count`](Self::count).
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn delete(&self) -> Result<bool, Error> {
        self.check(&Wait::FOREVER)?;
        let site = &self.site;
        site.once(|scripts, request_id| scripts.delete(request_id))
    }

    /// Returns the latch's name: its key in Redis without the client's
    /// [`prefix`](crate::ClientBuilder::prefix).
    #[must_use]
    pub fn name(&self) -> &str {
        self.site.name.given()
    }

    pub(crate) fn new(session: &Session, name: &str) -> Self {
        Self { site: LatchSite::of(session.core(), name), session: session.clone() }
    }

    fn check(&self, wait: &Wait<'_>) -> Result<(), Error> {
        wait.check(self.session.core(), &self.site.name)?;
        if self.site.name.is_empty() {
            return Err(Error::nameless("a latch"));
        }
        if self.site.core.is_cluster() && self.site.name.contains('{') {
            // Redisson always puts braces around the name to make the name of the channel.
            let message =
                "in a cluster, a latch's name must not have braces: its channel would be in \
                 another slot than its key"
                    .to_owned();
            return Err(Error::new(ErrorKind::Config, message).of(&self.site.name));
        }
        Ok(())
    }

    fn await_open(&self, wait: Wait<'_>) -> Result<Waited, Error> {
        self.check(&wait)?;
        if wait.is_over() {
            // Ask the server with `count`: a leader may have sent its request long ago, and may
            // sleep now.
            let _limited = wait.limits(self.session.core());
            let waited = self.count().map(|count| Waited::of((count == 0).then_some(())));
            if was_cut() {
                wait.check_cancelled(&self.site.name)?;
                if was_cut_while_answering() {
                    return Ok(Waited::TimedOut);
                }
            }
            return waited;
        }
        let LatchSite { core, name, .. } = &*self.site;
        let claim = Claim { thread: &Thread::current(), need: (), wait };
        acquire(self, (core, name), &claim).map(Waited::of)
    }
}

/// The leader asks the server on behalf of all waiting threads of this process.
impl Synchronizer for CountDownLatch {
    type Site = LatchSite;

    fn site(&self) -> &LatchSite {
        &self.site
    }

    fn what(&self, (): &()) -> (Kind, u32) {
        (Kind::CountDownLatch, 1)
    }

    fn enter(&self, claim: &Claim<'_, ()>) -> Result<EnterOf<Self>, Error> {
        Ok(self.site.with_queue(|queue| match queue.try_lead() {
            Some(leadership) => Enter::Leads(Some(leadership), None),
            None => Enter::Queued(queue.push(claim.thread, ())),
        }))
    }

    fn request_state(
        &self,
        _: &Claim<'_, ()>,
        _: &mut Option<QueueLeadership>,
    ) -> LatchRequestState {
        LatchRequestState::default()
    }

    /// Asks the server whether the latch is open, for all threads that arrived before the request.
    /// (A message is only a hint, because it may come from another database or from an earlier
    /// count.)
    fn ask(
        &self,
        lead: &mut Lead<LatchRequestState>,
        claim: &Claim<'_, ()>,
    ) -> Result<Try<()>, Error> {
        let (site, core) = (&self.site, &self.site.core);
        let Lead { listening, request_state } = lead;
        // The reply is valid only for threads that have arrived by now: a later thread may wait for
        // a newer count.
        request_state.arrivals = site.arrivals();
        let (asked_at, version) = (clock::now(), listening.public.version());
        let state = site.scripts().state();
        let may_have_ended = request_state.may_end_at.is_some_and(|it| it <= clock::now());
        // Whether the last count-down opened the latch. (The end of the time to live also opens the
        // latch, but sends no message.) The last message shows this, if a message has arrived since
        // the last query that found a count.
        let was_opened = || {
            let has_news = version != request_state.version || listening.public.has_news();
            has_news && listening.public.message() == OPENED
        };
        match state {
            Ok(LatchState::Open) if may_have_ended && !was_opened() => {
                let message = "its time to live ended before the last count-down; it has no count";
                let error = Error::new(ErrorKind::Expired, message.to_owned()).of(&site.name);
                request_state.may_end_at = None;
                site.fail_before(request_state.arrivals, &error);
                Err(error)
            }
            Ok(LatchState::Open) => {
                request_state.may_end_at = None;
                site.signal_until(request_state.arrivals, || Signal::Passed(()));
                Ok(Try::Granted(()))
            }
            Ok(LatchState::Closed(left)) => {
                if !claim.wait.is_over() {
                    listening.public.listen(core, &site.channel);
                }
                // Redis counts whole milliseconds, so `left` may be up to a millisecond too long.
                let rest = |it: Duration| it.saturating_sub(Duration::from_millis(1));
                request_state.version = version;
                request_state.may_end_at =
                    left.map(|it| asked_at.saturating_add(clock::nanos(rest(it))));
                Ok(Try::Busy(slow_poll_or(left)))
            }
            Err(trouble) => {
                // A query changes nothing, so its outcome is never unknown.
                let error = trouble.into_error().unknown(false).of(&site.name);
                let error = error.now("waiting has ended");
                site.fail_before(request_state.arrivals, &error);
                Err(error)
            }
        }
    }
}

impl fmt::Debug for CountDownLatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountDownLatch").field("name", &self.site.name).finish_non_exhaustive()
    }
}

/// The leader's last query.
#[derive(Debug, Default)]
pub(crate) struct LatchRequestState {
    /// The number of threads that had arrived before the query.
    arrivals: u64,
    /// The earliest time on [`clock`] at which the latch's time to live may have ended.
    may_end_at: Option<u64>,
    /// The version of the latch's channel before the query.
    version: Option<u64>,
}

/// The message that a count has become zero.
const OPENED: &[u8] = b"0";

/// One latch in one client.
pub(crate) struct LatchSite {
    core: Arc<Core>,
    name: Name,
    route: Route,
    channel: Arc<str>,
    requests: Arc<Requests>,
    queue: Mutex<Queue<(), (), LatchRequestState>>,
}

impl LatchSite {
    /// Returns the site of a name, which all handles of this name share.
    pub(crate) fn of(core: &Arc<Core>, name: &str) -> Arc<Self> {
        core.members.of::<Self>().find(&core.key(name), |key| Self {
            route: core.route(&key),
            channel: LatchKeys::channel(&key).into(),
            requests: core.requests_of(&key),
            queue: Mutex::new(Queue::new()),
            core: Arc::clone(core),
            name: core.name(key),
        })
    }

    fn scripts(&self) -> LatchScripts<'_> {
        LatchScripts {
            route: &self.route,
            key: &self.name,
            channel: &self.channel,
            requests: &self.requests,
        }
    }

    fn open(&self) -> RequestId {
        self.requests.open(|| self.core.id.next_number())
    }

    /// Sends a request that the server applies once, even if it receives two copies.
    fn once<T>(
        &self,
        send: impl FnOnce(LatchScripts<'_>, RequestId) -> Result<T, Trouble>,
    ) -> Result<T, Error> {
        let outcome = self.requests.with_one(&self.core.id, |id| send(self.scripts(), id));
        outcome.map_err(|trouble| trouble.into_error_of(&self.name))
    }
}

impl QueueSite for LatchSite {
    type Need = ();
    type Grant = ();
    type RequestState = LatchRequestState;

    fn with_queue<R>(&self, look: impl FnOnce(&mut Queue<(), (), LatchRequestState>) -> R) -> R {
        look(&mut self.queue.lock())
    }

    fn transfer_leadership(
        &self,
        leadership: QueueLeadership,
        lead: Option<Box<Lead<LatchRequestState>>>,
    ) {
        // The next leader may wait for a newer count, so it asks at once. It needs this leader's
        // request state: otherwise it would mistake the end of the time to live for the last
        // count-down.
        let lead = lead.map(|lead| Box::new(Lead::new(lead.request_state)));
        let (wake, _left) = self.with_queue(|queue| queue.promote(leadership, lead));
        wake.now();
    }
}

impl Member for LatchSite {
    fn name(&self) -> &Name {
        &self.name
    }

    fn end(self: Arc<Self>) {
        self.nudge();
    }
}

impl Drop for LatchSite {
    fn drop(&mut self) {
        self.core.members.of::<Self>().forget(&self.name);
    }
}
