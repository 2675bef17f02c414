//! How a command reaches the server that has its key's slot.
//!
//! ```text
//! call   sends the command to the slot's server, as far as the client knows it. If the reply is
//!        MOVED: stores the slot's new server, and calls again
//!        ASK: sends ASKING and the command to the other server, this once, and takes its reply
//!        TRYAGAIN, CLUSTERDOWN, or no server answers: asks for the slots, pauses, calls again
//! ```
//!
//! All these steps end within the call's timeout. A server that refuses a command in one of these
//! ways has not run the command. If the connection broke, the command may have run: then the client
//! sends the copy that the caller provides, as with a single server.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use redis::RedisError;

use super::{ANSWER_TIMEOUT, Cluster};
use crate::connection::limit::{self, Limit};
use crate::connection::reply::{Redirect, redirect, redirect_of};
use crate::connection::{Cause, Command, Failure, Lane, Outcome, error_reply, slot_of};
use crate::sync::own_thread;

/// The first and the longest pause before a call is sent again.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LAST_PAUSE: Duration = Duration::from_millis(50);

/// One slot of a cluster, with the hash of a name in it.
#[derive(Clone, Debug)]
pub struct Slot {
    cluster: Arc<Cluster>,
    pub(super) number: u16,
    hash: u32,
}

impl Slot {
    pub(in crate::connection) fn of(cluster: &Arc<Cluster>, key: &[u8], hash: u32) -> Self {
        Self { cluster: Arc::clone(cluster), number: slot_of(key), hash }
    }

    /// Whether `self` and `other` are the same slot of the same cluster.
    pub(in crate::connection) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cluster, &other.cluster) && self.number == other.number
    }

    pub(in crate::connection) fn lane(&self) -> Arc<Lane> {
        Arc::clone(self.cluster.node(self.number).lane(self.hash))
    }

    /// Like [`Lane::call_once`], but sends a redirected command again, because it was not run.
    pub(in crate::connection) fn call_once(&self, command: &Command) -> Outcome {
        let lane = self.lane();
        let until = lane.deadline();
        let outcome = lane.call_once(command);
        self.follow(lane, outcome, false, command, None::<fn() -> Command>, until).0
    }

    /// Follows redirects and retries until `until`. The first redirect is `outcome`, the reply of
    /// the server `asked`. If the command may have run, sends `copy` in its place. The `bool` is
    /// `true` if the copy was sent, or if the command was already `in_doubt`.
    pub(in crate::connection) fn follow(
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
        // Whether `until` is the end of the caller's limit. Otherwise it is the call's timeout.
        let is_its_end = until < latest;
        let is_past_limit = || limit.as_ref().is_some_and(Limit::is_over);
        let ended = || {
            // If the client has ended, the end of the wait is not an effect of the limit.
            if is_past_limit() || is_its_end && !self.cluster.is_ended() {
                // A server that only redirected the call has not answered it.
                limit::record_cut(false);
            }
        };
        let mut copied = None;
        let mut pause = Duration::ZERO;
        loop {
            outcome = halfway(outcome);
            let is_over = Instant::now() >= until || is_past_limit();
            if redirect(&outcome).is_none() && outcome.is_err() && is_over {
                return (outcome, in_doubt);
            }
            match &outcome {
                Ok(_) => return (outcome, in_doubt),
                Err(Failure::Refused(cause)) => match redirect_of(&cause.error) {
                    None => return (outcome, in_doubt),
                    Some(Redirect::Moved { slot, named }) => {
                        self.find_out(limit.as_ref(), move |cluster| {
                            cluster.apply_redirect(slot, &named);
                        });
                    }
                    Some(Redirect::Ask { .. }) if self.is_over(until) || is_past_limit() => {
                        ended();
                        return (outcome.map_err(Self::nobody), in_doubt);
                    }
                    Some(Redirect::Ask { named }) => {
                        if let Some(node) = self.cluster.named(&named) {
                            let lane = node.lane(self.hash);
                            outcome = halfway(lane.call_asking(copied.as_ref().unwrap_or(command)));
                            if redirect(&outcome).is_none() {
                                continue;
                            }
                        }
                    }
                    Some(Redirect::Later | Redirect::Halfway) => {
                        self.find_out(limit.as_ref(), Cluster::refresh);
                    }
                },
                Err(Failure::Unsent(_)) => self.find_out(limit.as_ref(), Cluster::refresh),
                // The command has run.
                Err(Failure::Unacknowledged(..)) => return (outcome, in_doubt),
                // The command may have run.
                Err(Failure::Reset(_) | Failure::TimedOut(_)) => {
                    self.find_out(limit.as_ref(), Cluster::refresh);
                    let is_slow = matches!(outcome, Err(Failure::TimedOut(_)));
                    // If the server was silent, send the copy only to another server, which another
                    // thread may have found in the meantime.
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
            if self.is_over(until.checked_sub(pause).unwrap_or(until)) || is_past_limit() {
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

    /// Calls `ask` to find the slot's server. `ask` may open connections, which takes time. So if
    /// the caller has a limit, another thread calls `ask`, and the caller waits only until the
    /// limit is over.
    fn find_out(&self, limit: Option<&Limit>, ask: impl FnOnce(&Cluster) + Send + 'static) {
        let Some(limit) = limit else { return ask(&self.cluster) };
        let (done, ended) = mpsc::channel::<()>();
        let cluster = Arc::clone(&self.cluster);
        let asks = own_thread("redlatch-asker", None, move || {
            ask(&cluster);
            drop(done);
        });
        let latest = Instant::now() + ANSWER_TIMEOUT.saturating_mul(4);
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

    /// Returns the failure of a command that servers redirected to each other until its time was
    /// over.
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

/// Converts the outcome of a script that was stopped before its end. The script may have changed
/// data, as after a broken connection.
fn halfway(outcome: Outcome) -> Outcome {
    outcome.map_err(|failure| match failure {
        Failure::Refused(cause) if redirect_of(&cause.error) == Some(Redirect::Halfway) => {
            Failure::Reset(cause)
        }
        failure => failure,
    })
}

impl Cluster {
    /// Follows a redirect of a command that a background thread has sent, until `until`. Returns
    /// the reply of the server that has the slot. A `MOVED` means that the command was not run.
    /// After a `MOVED`, this function only stores the slot's new server, and the background thread
    /// of the new server sends the command. So this thread does not wait for the new server. After
    /// the client's end this function sends the command itself, because no other thread does.
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
        if let Redirect::Moved { slot, named } = &sent {
            self.apply_redirect(*slot, named);
        } else if Instant::now() < until {
            let slot = Slot::of(self, key, 0);
            let asked = slot.lane();
            return slot.follow(asked, outcome, false, command, None::<fn() -> Command>, until).0;
        }
        unfollowed(outcome)
    }

    /// Like [`resend`](Self::resend), but sends the command even after a `MOVED`: the client has
    /// ended, and no other thread sends the command later.
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
            if let Redirect::Moved { slot, named } = &sent {
                self.apply_redirect(*slot, named);
            }
            outcome = match sent {
                Redirect::Ask { named } => match self.named(&named) {
                    Some(node) => node.any_lane().call_asking(command),
                    None => outcome,
                },
                _ => slot.lane().call_unless_out(command),
            };
        }
        unfollowed(outcome)
    }
}

/// Returns the outcome of a command that is not sent to another server: a redirect becomes the
/// failure of an unreachable server, or of a broken connection.
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
