//! Commands that must reach the server although no caller waits for them. Most of them release
//! holds that no thread has, or are keep-alives. [`Cleanup`] has a constructor for each purpose.
//! The constructor's comment says how long the command is repeated.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use log::Level;
use redlatch_client::sync::clock;
use redlatch_client::{Command, Failure, Outcome};

use super::{Watchdog, schedule};
use crate::name::Name;
use crate::scripts::{Mark, RequestId, Requests, VALID_FOR, is_transient};

const FIRST_RETRY: u64 = 50_000_000;
const LAST_RETRY: u64 = 10_000_000_000;
/// The time after which no request can still be in transit, unless the server was paused.
const MAX_TRANSIT: Duration = Duration::from_secs(600);
/// The time for which a command is repeated if it soon becomes useless. The time is longer than the
/// lease of a grant by message.
const SHORT_REPEAT: Duration = Duration::from_secs(3);
const _: () = assert!(SHORT_REPEAT.as_nanos() > schedule::PROVISIONAL as u128);

/// A command that the renewer sends repeatedly, with back-off, until the command is done. A new
/// connection makes the next attempt come sooner.
pub(crate) struct Cleanup {
    name: Name,
    /// In a cluster, the number of the server that gets the command. `None`: the server that serves
    /// the name's slot.
    server: Option<usize>,
    kind: CleanupKind,
    /// The time at which the cleanup ends even without an answer.
    until: u64,
    due: u64,
    /// The time at which the command was last sent.
    last_sent_at: u64,
    /// The delay before the next attempt.
    next_delay: u64,
    /// Whether the server has answered an [undo](CleanupKind::Undo). After an answer, the undo is
    /// repeated only because the request that it undoes may still arrive.
    was_answered: bool,
    /// Whether an answer to the last command may complete the cleanup.
    may_complete: bool,
}

/// A command, and whether its answer may complete the cleanup.
type NextCommand = (Command, bool);

enum CleanupKind {
    /// Undoes an earlier request. Ends at `until`, or when an answer at `answer_counts_from` or
    /// later [settles](is_settled) the undo. An earlier answer does not end the undo: the earlier
    /// request may still be in an old connection, and a stalled server may run it after the undo.
    /// After an answer, the command is not repeated before `repeat_from`. From `repeat_from` on,
    /// `next` may return another command, even if the earlier command has no answer yet.
    Undo { next: Box<dyn Fn() -> NextCommand + Send>, repeat_from: u64, answer_counts_from: u64 },
    /// Ends at `until`, or when an answer [settles](is_settled) the command.
    UntilAnswered(Command),
    /// Ends when the server has applied the request, or has refused it as too late.
    Request(Command, Arc<Requests>, RequestId, Option<i64>),
    /// Ends when no debt is left.
    Debt(Arc<dyn Debtor>),
    /// Ends when no waiter needs the keep-alive.
    KeepAlive(Weak<dyn KeepAlive>),
}

/// An object with changes that the server must still receive. It computes the next command only
/// when a command can be sent.
pub(crate) trait Debtor: Send + Sync {
    /// Returns the command to send, or `None` if no debt is left. After `Some`, the caller must
    /// call [`handle_outcome`](Self::handle_outcome) before it calls this method again.
    fn command(&self) -> Option<Command>;

    /// Handles the command's outcome. `resent` is true if the command was sent twice because the
    /// first copy got no reply.
    fn handle_outcome(&self, outcome: &Outcome, resent: bool);
}

/// A command that is sent regularly, for as long as it is needed.
pub(crate) trait KeepAlive: Send + Sync {
    /// Returns the command to send, or `None` if there is nothing to send until the keep-alive is
    /// scheduled again.
    fn command(&self) -> Option<Command>;

    /// Takes the command's outcome, and returns the time until the next keep-alive.
    fn handle_outcome(&self, outcome: Outcome) -> Duration;
}

impl Cleanup {
    /// Releases a hold that no thread has but that the server may still have. The server may still
    /// have the hold if the release got no answer, or if a renewal extended the lease after the
    /// hold was lost. The release is repeated for the length of `lease`. After 10 minutes, an
    /// answer also ends the cleanup.
    pub(crate) fn released(name: &Name, release: Command, lease: Duration) -> Self {
        Self::undo(name, release, lease, lease.min(MAX_TRANSIT))
    }

    /// Releases a hold that a new master may still have. The first release may have reached only
    /// the old master. The release is repeated until an answer, for at most the length of `lease`.
    pub(crate) fn left_over(name: &Name, release: Command, lease: Duration) -> Self {
        Self::new(name, CleanupKind::UntilAnswered(release), lease)
    }

    /// Shortens the lease of a hold that is kept until `ends`, and then releases the hold. `next`
    /// returns the command to send now, and whether this command is the release. The release is
    /// repeated as for [`released`](Self::released). `in_doubt` says that a copy of the request for
    /// the hold may arrive late. In that case the release is repeated for at least 10 minutes.
    pub(crate) fn kept(
        name: &Name,
        next: impl Fn() -> NextCommand + Send + 'static,
        ends: u64,
        lease: Duration,
        in_doubt: bool,
    ) -> Self {
        let late = clock::nanos(if in_doubt { MAX_TRANSIT } else { Duration::ZERO });
        let until = ends.saturating_add(clock::nanos(lease).max(late));
        let (next, answer_counts_from) = (Box::new(next), ends.saturating_add(late));
        let undo = CleanupKind::Undo { next, repeat_from: ends, answer_counts_from };
        Self { until, ..Self::new(name, undo, Duration::ZERO) }
    }

    /// Undoes a request for which no caller waits. The outcome of the request is unknown, or a copy
    /// of the request may arrive late. `lease` is the lease of the hold that the request may take.
    /// The undo is repeated as for [`released`](Self::released). The request may also add an entry
    /// to a lock's queue. If the server grants the lock to this entry, the client releases the
    /// lock.
    pub(crate) fn requested(name: &Name, give_up: Command, lease: Duration) -> Self {
        Self::released(name, give_up, lease)
    }

    /// Undoes a request as [`requested`](Self::requested) does, but repeats the undo for at least
    /// 10 minutes. Use it for a queue entry that may have no lease and would block other waiters.
    pub(crate) fn queued(name: &Name, give_up: Command, lease: Duration) -> Self {
        Self::undo(name, give_up, lease.max(MAX_TRANSIT), MAX_TRANSIT)
    }

    /// Releases the hold or removes the queue entry of an owner for which no thread waits. The
    /// client calls this function after a grant or another message to such an owner. The command is
    /// repeated until an answer, or until the grant ends.
    pub(crate) fn unclaimed(name: &Name, give_up: Command) -> Self {
        Self::new(name, CleanupKind::UntilAnswered(give_up), SHORT_REPEAT)
    }

    /// Repeats a lost message of this client to itself, at the server where the client listens. The
    /// message is repeated until an answer, or until the next message is due.
    pub(crate) fn control_message(name: &Name, message: Command, server: usize) -> Self {
        Self {
            server: Some(server),
            ..Self::new(name, CleanupKind::UntilAnswered(message), SHORT_REPEAT)
        }
    }

    /// Repeats a numbered request whose outcome is unknown, until the server has applied the
    /// request, or has had the time to forget the request's number. `permits` is the number of
    /// permits that a semaphore's request gives back, as for [`Requests::record_applied`].
    pub(crate) fn numbered(
        name: &Name,
        copy: Command,
        requests: &Arc<Requests>,
        request_id: RequestId,
        permits: Option<i64>,
    ) -> Self {
        Self::new(
            name,
            CleanupKind::Request(copy, Arc::clone(requests), request_id, permits),
            VALID_FOR,
        )
    }

    /// Pays a debt for which no request is open. Ends when no debt is left.
    pub(crate) fn debt(name: &Name, debtor: Arc<dyn Debtor>) -> Self {
        Self::new(name, CleanupKind::Debt(debtor), Duration::MAX)
    }

    /// Sends a keep-alive after `pause`, and then at the intervals that
    /// [`KeepAlive::handle_outcome`] returns.
    pub(super) fn keep_alive(
        name: &Name,
        keep_alive: &Arc<dyn KeepAlive>,
        pause: Duration,
    ) -> Self {
        let kind = CleanupKind::KeepAlive(Arc::downgrade(keep_alive));
        Self::new(name, kind, Duration::MAX).delayed(pause)
    }

    /// Repeats a command for the length of `lasts`. An answer ends the cleanup only if it comes
    /// after `answer_counts_after`.
    fn undo(name: &Name, command: Command, lasts: Duration, answer_counts_after: Duration) -> Self {
        let answer_counts_from = clock::now().saturating_add(clock::nanos(answer_counts_after));
        let next = Box::new(move || (command.clone(), true));
        Self::new(name, CleanupKind::Undo { next, repeat_from: 0, answer_counts_from }, lasts)
    }

    /// Returns a cleanup that is due now.
    fn new(name: &Name, kind: CleanupKind, lasts: Duration) -> Self {
        let until = clock::now().saturating_add(clock::nanos(lasts));
        let (name, server) = (name.clone(), None);
        Self {
            name,
            server,
            kind,
            until,
            due: 0,
            last_sent_at: 0,
            next_delay: FIRST_RETRY,
            was_answered: false,
            may_complete: true,
        }
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the number of the server that gets the command, if this may differ from the name's
    /// server.
    pub(crate) fn server(&self) -> Option<usize> {
        self.server
    }

    pub(crate) fn due(&self) -> u64 {
        self.due
    }

    /// Returns the command to send, or `None` if there is nothing to send.
    pub(crate) fn command(&mut self) -> Option<Command> {
        match &self.kind {
            CleanupKind::Undo { next, .. } => {
                let (command, may_complete) = next();
                self.may_complete = may_complete;
                Some(command)
            }
            CleanupKind::UntilAnswered(command) | CleanupKind::Request(command, ..) => {
                Some(command.clone())
            }
            CleanupKind::Debt(debtor) => debtor.command(),
            CleanupKind::KeepAlive(keep_alive) => keep_alive.upgrade()?.command(),
        }
    }

    /// Whether this cleanup is a keep-alive. Keep-alives are sent before all other cleanups,
    /// because a waiter without keep-alives loses its entry.
    pub(crate) fn is_keep_alive(&self) -> bool {
        matches!(self.kind, CleanupKind::KeepAlive(_))
    }

    /// Handles an outcome. Returns whether the cleanup goes on. `ended` is true after the client
    /// has ended. After the end of the client, a cleanup goes on only if it pays a debt and its
    /// command got an answer.
    pub(crate) fn handle_outcome(
        &mut self,
        outcome: &Outcome,
        resent: bool,
        now: u64,
        watchdog: &Watchdog,
        ended: bool,
    ) -> bool {
        if let CleanupKind::KeepAlive(keep_alive) = &self.kind {
            let Some(keep_alive) = keep_alive.upgrade() else { return false };
            self.due = now.saturating_add(clock::nanos(keep_alive.handle_outcome(outcome.clone())));
            self.last_sent_at = now;
            return !ended;
        }
        if self.complete_if_done(outcome, resent, now, watchdog) {
            return false;
        }
        self.was_answered = is_settled(outcome) && matches!(self.kind, CleanupKind::Undo { .. });
        let owes_more = is_answered(outcome) && matches!(self.kind, CleanupKind::Debt(_));
        if owes_more {
            // The debt may have grown, so the next command is sent without back-off.
            self.next_delay = FIRST_RETRY;
        }
        if owes_more || !ended {
            self.back_off(now);
            return true;
        }
        if !is_answered(outcome) {
            self.give_up(watchdog);
        }
        false
    }

    /// Returns whether the outcome completes the cleanup. Applies the outcome to the requests or to
    /// the debt.
    fn complete_if_done(
        &self,
        outcome: &Outcome,
        resent: bool,
        now: u64,
        watchdog: &Watchdog,
    ) -> bool {
        match &self.kind {
            CleanupKind::Undo { answer_counts_from, .. } => {
                now >= self.until
                    || is_settled(outcome) && self.may_complete && now >= *answer_counts_from
            }
            CleanupKind::UntilAnswered(_) => now >= self.until || is_settled(outcome),
            CleanupKind::Request(_, requests, request_id, permits) => {
                let late = matches!(outcome, Ok(reply) if requests.check_late(reply));
                // A "behind" reply does not end the cleanup: the renewer must first repeat earlier
                // changes at the new master.
                let behind = matches!(outcome, Ok(reply) if Requests::is_behind(reply));
                let answered = is_answered(outcome) && !behind;
                let lost = late || !answered && now >= self.until;
                if lost {
                    watchdog.log(Level::Error, || format!(
                        "whether permits of {0:?} were given back, or {0:?} was counted down, is not \
                         known: the server did not say so for {VALID_FOR:?}, and has forgotten it",
                        self.name
                    ));
                }
                match permits {
                    Some(permits) if answered && !late => {
                        let mark = outcome.as_ref().ok().and_then(Mark::of);
                        watchdog.record_applied(&self.name, requests, *request_id, *permits, mark);
                    }
                    _ if lost || answered => requests.close(*request_id),
                    _ => {}
                }
                lost || answered
            }
            // The next call of `command` returns `None` if no debt is left.
            CleanupKind::Debt(debtor) => {
                debtor.handle_outcome(outcome, resent);
                false
            }
            CleanupKind::KeepAlive(_) => false,
        }
    }

    /// Delays the next attempt. The delay doubles each time.
    fn back_off(&mut self, now: u64) {
        self.last_sent_at = now;
        self.due = now.saturating_add(self.next_delay).min(self.until);
        self.next_delay = self.next_delay.saturating_mul(2).min(LAST_RETRY);
        if let CleanupKind::Undo { repeat_from, .. } = self.kind
            && self.was_answered
        {
            self.due = self.due.max(repeat_from);
        }
    }

    pub(crate) fn delayed(self, pause: Duration) -> Self {
        Self { due: clock::now().saturating_add(clock::nanos(pause)), ..self }
    }

    /// Shortens the back-off of an unanswered cleanup after a connection was opened. The cleanup is
    /// not sent at once: if the connection broke often, the cleanup would be sent after each break.
    /// An answered undo keeps its back-off. Each call that reaches its time limit leaves an undo
    /// and opens a connection. Without the back-off, each such call would repeat the undos of all
    /// earlier calls.
    pub(crate) fn shorten_back_off(&mut self) {
        if !self.was_answered && !self.is_keep_alive() {
            self.retry_soon();
        }
    }

    /// Makes the cleanup due soon, even if it was answered. The server that answered may have been
    /// replaced by a server that lacks its changes.
    pub(crate) fn retry_soon(&mut self) {
        self.next_delay = FIRST_RETRY;
        self.due = self.due.min(self.last_sent_at.saturating_add(FIRST_RETRY));
    }
}

/// Whether the server has applied the command. The result is false after an error reply.
fn is_answered(outcome: &Outcome) -> bool {
    outcome.is_ok()
}

/// Whether another attempt is useless, because the command was applied or was refused for a lasting
/// reason such as access rights. After BUSY, LOADING, OOM and similar errors, a later attempt may
/// succeed.
fn is_settled(outcome: &Outcome) -> bool {
    match outcome {
        Err(Failure::Refused(cause)) => !is_transient(&cause.error),
        outcome => outcome.is_ok(),
    }
}

impl Cleanup {
    /// Logs the state of this cleanup at the client's end.
    pub(super) fn give_up(&self, watchdog: &Watchdog) {
        let name = &self.name;
        let (level, what) = match &self.kind {
            CleanupKind::Undo { .. } => (
                Level::Warn,
                "could not be released before the client ended; it ends with its lease, a place in a \
                 queue when it lapses",
            ),
            CleanupKind::UntilAnswered(_) | CleanupKind::KeepAlive(_) => return,
            CleanupKind::Request(..) => (
                Level::Error,
                "what was given back or counted down before the client ended may not have been \
                 applied: look at it",
            ),
            CleanupKind::Debt(_) => (
                Level::Error,
                "what was owed was not sent before the client ended: dropped permits were not given \
                 back (add them with add_permits), or a barrier that a party left is not broken \
                 (reset it)",
            ),
        };
        watchdog.log(level, || format!("{name:?}: {what}"));
    }
}

impl fmt::Debug for Cleanup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cleanup({:?})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};

    use redis::Value;

    use super::*;
    use redlatch_client::{Cause, error_reply};

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_cleanup_of_each_kind_is_sent_for_as_long_as_it_may_matter() {
        let name = Name::from("name");
        let command = || Command::plain(&[b"PING"]);
        let cause = || {
            let error = redis::RedisError::from(io::Error::other("no reply"));
            Cause::said(Arc::new(error), "a server".into())
        };
        let (short, long) = (Duration::from_secs(30), Duration::from_secs(3_600));
        let begun = clock::now();
        for (what, cleanup, answer_counts_after, lasts) in [
            ("released", Cleanup::released(&name, command(), short), 30, 30),
            ("released, long", Cleanup::released(&name, command(), long), 600, 3_600),
            ("requested", Cleanup::requested(&name, command(), short), 30, 30),
            ("requested, long", Cleanup::requested(&name, command(), long), 600, 3_600),
            ("queued", Cleanup::queued(&name, command(), short), 600, 600),
            ("queued, long", Cleanup::queued(&name, command(), long), 600, 3_600),
            ("left over", Cleanup::left_over(&name, command(), short), 0, 30),
            ("unclaimed", Cleanup::unclaimed(&name, command()), 0, 3),
            ("control message", Cleanup::control_message(&name, command(), 0), 0, 3),
        ] {
            let (watchdog, _jobs) = Watchdog::new("", crossbeam_channel::bounded(0).0);
            let is_done = |outcome: &Outcome, after: u64| {
                cleanup.complete_if_done(outcome, false, begun + after, &watchdog)
            };
            for settled in
                [Ok(Value::Okay), Ok(Value::Nil), refusal("NOPERM"), refusal("WRONGTYPE")]
            {
                if answer_counts_after > 0 {
                    assert!(
                        !is_done(&settled, (answer_counts_after - 1) * SECOND),
                        "{what}: early: {settled:?}"
                    );
                }
                assert!(
                    is_done(&settled, (answer_counts_after + 1) * SECOND),
                    "{what}: {settled:?}"
                );
            }
            let silent =
                [Failure::TimedOut, Failure::Reset, Failure::Unsent].map(|it| Err(it(cause())));
            for open in silent.into_iter().chain(PASSING.map(refusal)) {
                assert!(!is_done(&open, (lasts - 1) * SECOND), "{what}: not done yet: {open:?}");
                assert!(is_done(&open, (lasts + 1) * SECOND), "{what}: over: {open:?}");
            }
        }
    }

    /// A slow server answers the command that shortens a kept hold only after the hold should have
    /// ended. The release must still be sent.
    #[test]
    fn the_answer_to_an_earlier_command_does_not_end_the_cleanup_of_a_kept_hold() {
        let (name, ends) = (Name::from("name"), clock::now() + SECOND);
        let releases = Arc::new(AtomicBool::new(false));
        let next = {
            let releases = Arc::clone(&releases);
            move || (Command::plain(&[b"PING"]), releases.load(Ordering::Relaxed))
        };
        let mut cleanup = Cleanup::kept(&name, next, ends, Duration::from_secs(30), false);
        let (watchdog, _jobs) = Watchdog::new("", crossbeam_channel::bounded(0).0);
        for is_done in [false, true] {
            releases.store(is_done, Ordering::Relaxed);
            assert!(cleanup.command().is_some());
            let answered = cleanup.complete_if_done(&Ok(Value::Int(1)), false, ends + 1, &watchdog);
            assert_eq!(answered, is_done);
        }
    }

    /// The codes of transient error replies. After such a reply, the server has changed nothing,
    /// and may accept the command later.
    const PASSING: [&str; 7] =
        ["BUSY", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY"];

    fn refusal(code: &str) -> Outcome {
        let error = Arc::new(error_reply(&format!("{code} for a reason")));
        Err(Failure::Refused(Cause::said(error, "a server".into())))
    }

    #[test]
    fn a_new_connection_shortens_the_back_off_of_an_unanswered_cleanup() {
        let name = Name::from("name");
        let (watchdog, _jobs) = Watchdog::new("", crossbeam_channel::bounded(0).0);
        let lease = Duration::from_secs(30);
        let error = redis::RedisError::from(io::Error::other("no reply"));
        let lost = Err(Failure::TimedOut(Cause::said(Arc::new(error), "a server".into())));
        for (outcome, is_shortened) in [(lost, true), (Ok(Value::Okay), false)] {
            let mut cleanup = Cleanup::requested(&name, Command::plain(&[b"PING"]), lease);
            let now = clock::now();
            for _ in 0..3 {
                assert!(cleanup.handle_outcome(&outcome, false, now, &watchdog, false));
            }
            let (later, soon) = (now + 4 * FIRST_RETRY, now + FIRST_RETRY);
            assert_eq!(cleanup.due(), later);
            cleanup.shorten_back_off();
            assert_eq!(cleanup.due(), if is_shortened { soon } else { later }, "{outcome:?}");
            cleanup.retry_soon();
            assert_eq!(cleanup.due(), soon, "at another run of the server");
        }
    }

    #[test]
    fn a_numbered_request_is_sent_until_it_was_applied_or_is_too_late() {
        let name = Name::from("name");
        let requests = Arc::new(Requests::new("requests", &Arc::default()));
        let (watchdog, _jobs) = Watchdog::new("", crossbeam_channel::bounded(0).0);
        let begun = clock::now();
        let is_done = |outcome: Outcome, after: u64| {
            let request_id = requests.open(|| 1);
            let cleanup =
                Cleanup::numbered(&name, Command::plain(&[b"PING"]), &requests, request_id, None);
            cleanup.complete_if_done(&outcome, false, begun + after * SECOND, &watchdog)
        };
        for code in PASSING.into_iter().chain(["NOPERM", "WRONGTYPE"]) {
            assert!(!is_done(refusal(code), VALID_FOR.as_secs() - 1), "{code}: was not applied");
            assert!(is_done(refusal(code), VALID_FOR.as_secs() + 1), "{code}: nobody will know");
        }
        assert!(is_done(Ok(Value::Int(1)), 0), "applied");
        assert!(is_done(Ok(Value::Array(vec![Value::Int(7)])), 0), "too late");
    }
}
