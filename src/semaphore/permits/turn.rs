//! Turns: the limits within which one process may keep permits that other processes want, too.
//!
//! Without turns, one process could keep permits for ever, and the other processes would starve:
//! the process may send a release and its next request in one packet, and its threads can pass
//! permits to each other without a request. A *turn* is a limited number of grants (passed permits
//! and new requests) in a limited time. After its turn, a process gives its permits back to the
//! server. If other processes listen to the semaphore's channel, the process then pauses: it sends
//! no request, even after the message of its own release.
//!
//! A permit turn differs from a lock's turn, the `Cohort`. Each grant of a lock says how many
//! processes wait. A permit turn estimates this number from the number of listeners that received a
//! release's message. A lock's turn ends with the release that hands the lock to the next process.
//! A permit turn includes many grants and releases. If no other process used the pause after a
//! permit turn, the limits of the next turn are doubled. After the turn, the server would still
//! accept requests, so [`PermitTurn`] also computes how long the process must pause. A lock's turn
//! also gives Redisson's waiters their share, by its chain. A permit turn does not.

use std::time::Duration;

use redlatch_client::sync::{clock, jitter};

/// The maximum number of grants of a turn whose limits are not doubled.
const GRANTS: u32 = 512;
const MAX_DOUBLINGS: u32 = 6;
/// The longest turn, and so the longest time from the server's grant to the last pass of permits.
const LONGEST_TURN: u64 = 10_000_000;
/// The time in which each listening process has one turn, if no turn's limits are doubled. The more
/// processes listen, the shorter each turn is. So the last of sixteen processes waits for less than
/// a second.
const ROUND: u64 = 20_000_000;
const SHORTEST_TURN: u64 = 1_000_000;
/// The pause of a process after its turn. `PermitTurn::new` adds two round trips: one for the
/// message of the release, and one for another process's request. In a shorter pause, no other
/// process could ask.
const PAUSE_AFTER: u64 = 1_000_000;
const LONGEST_PAUSE_AFTER: u64 = 100_000_000;
/// The longest time for which a process lets other processes have their turns.
const LONGEST_OTHER_TURNS: u64 = 60_000_000;
const SHORTEST_PAUSE: u64 = 500_000;

/// One process's turn at one name. Times are nanoseconds on [`clock`].
#[derive(Debug)]
pub(crate) struct PermitTurn {
    /// The time at which the server granted the turn's first permits.
    began: Option<u64>,
    /// Whether permits were ever granted or given back through this site.
    is_used: bool,
    grants: u32,
    /// How many times the limits were doubled, because no other process used the last pauses.
    doublings: u32,
    /// The number of listeners that received the message of the last release, and the time at which
    /// the reply to this release was read. The number shows, without another request, whether other
    /// processes want permits.
    listeners: Option<(i64, u64)>,
    /// The last release, if no permits were granted since then.
    last_release: Option<TurnEnd>,
    /// How long the process pauses after a turn.
    pause_after: u64,
    /// The time until which other processes have their turns.
    other_turns_until: u64,
}

/// The end of a turn, if no further grant follows: the time of the turn's last release.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnEnd {
    pub(crate) at: u64,
}

/// What a thread must do before it sends a request for permits.
#[derive(Debug)]
pub(crate) enum NextStep {
    /// The thread may send the request at once.
    Ask,
    /// The turn is over. If other processes received the message of its last release, the thread
    /// must pause.
    Pause(TurnEnd),
}

impl PermitTurn {
    /// `round_trip`: the time between a command and its reply.
    pub(crate) fn new(round_trip: Duration) -> Self {
        let pause_after = PAUSE_AFTER.saturating_add(clock::nanos(round_trip).saturating_mul(2));
        Self {
            pause_after: pause_after.min(LONGEST_PAUSE_AFTER),
            began: None,
            is_used: false,
            grants: 0,
            doublings: 0,
            listeners: None,
            last_release: None,
            other_turns_until: 0,
        }
    }

    /// Returns the next step of a thread that wants to ask for permits at `now`.
    pub(crate) fn next_step(&mut self, now: u64) -> NextStep {
        let Some(last_release) = self.last_release else { return NextStep::Ask };
        if now.saturating_sub(last_release.at) >= self.pause_after {
            // The pause is over, so other processes have had time to send their requests.
            self.reset();
            return NextStep::Ask;
        }
        // If `began` is `None`, an earlier call of `end` has ended the turn, and no further pause
        // is due.
        if self.began.is_some() && self.is_over(now) {
            NextStep::Pause(last_release)
        } else {
            NextStep::Ask
        }
    }

    /// Returns the remaining pause after a release at `released_at`.
    pub(crate) fn remaining_pause(&self, released_at: u64, now: u64) -> Duration {
        Duration::from_nanos(self.pause_after.saturating_sub(now.saturating_sub(released_at)))
    }

    /// Whether the reply to a release of this turn has been read.
    pub(crate) fn knows_listeners(&self) -> bool {
        self.began.is_some_and(|began| self.listeners.is_some_and(|(_, at)| at >= began))
    }

    /// Returns the number of other processes that listen. `own`: the number of this process's
    /// listeners. Returns `None` if no reply to a release of this turn was read, or if the server
    /// refused to send the message.
    pub(crate) fn others(&self, own: i64) -> Option<u64> {
        let (listeners, _) =
            self.listeners.filter(|(listeners, _)| *listeners >= 0 && self.knows_listeners())?;
        Some(u64::try_from(listeners - own).unwrap_or(0))
    }

    /// Ends the turn. Returns the number of other processes that should have their turns now: all
    /// listeners except this process's `own`. The reply to the turn's last release may be unread,
    /// because a drop does not wait for the reply. In that case the method returns the number from
    /// an earlier release, but at least one, because a process may have begun to listen since then.
    /// (If the method then always returned one, this process would ask again before the slowest
    /// process had its turn.)
    pub(crate) fn end(&mut self, own: i64) -> u64 {
        let others = self.others(own).unwrap_or_else(|| {
            let earlier = self.listeners.map_or(0, |(listeners, _)| listeners.saturating_sub(own));
            u64::try_from(earlier).unwrap_or(0).max(1)
        });
        if let (Some(began), Some(last_release)) = (self.began, self.last_release) {
            let round = others.saturating_mul(last_release.at.saturating_sub(began));
            self.other_turns_until = last_release.at + round.min(LONGEST_OTHER_TURNS);
        }
        self.reset();
        others
    }

    /// Returns the pause between a message and the next request, while the other processes have
    /// their turns. Each other process has as much time as this process's last turn. The pause is
    /// only a quarter of the remaining time, because the other processes may want no more permits.
    /// There is no pause if only this process's `own` listeners received the message of its
    /// release. Without this pause, two fast processes would alternate, and slower processes would
    /// never get permits.
    pub(crate) fn pause(&self, own: i64, now: u64) -> Duration {
        let remaining = self.other_turns_until.saturating_sub(now);
        if remaining == 0 || self.only_own_listen(own) {
            return Duration::ZERO;
        }
        let pause = Duration::from_nanos((remaining / 4).max(SHORTEST_PAUSE).min(remaining));
        pause.mul_f64(0.75 + 0.5 * jitter(now))
    }

    /// Returns whether only this process's `own` listeners received the message of the last
    /// release. In that case no other process wants permits.
    pub(crate) fn only_own_listen(&self, own: i64) -> bool {
        self.listeners.is_some_and(|(listeners, _)| (0..=own).contains(&listeners))
    }

    /// Resets the turn. The next grant begins a new turn.
    fn reset(&mut self) {
        self.began = None;
        self.grants = 0;
    }

    /// Records the reply to a release. `listeners`: the number of listeners that received the
    /// release's message.
    pub(crate) fn record_listeners(&mut self, listeners: i64, now: u64) {
        self.listeners = Some((listeners, now));
    }

    /// Records a pause after a turn. If no other process `used` the pause, the next turn is longer.
    pub(crate) fn record_pause(&mut self, used: bool) {
        self.doublings = if used { 0 } else { (self.doublings + 1).min(MAX_DOUBLINGS) };
    }

    /// Records a grant by the server, or a pass of permits to another thread.
    pub(crate) fn record_grant(&mut self, at: u64) {
        self.is_used = true;
        self.began.get_or_insert(at);
        // These permits are not given back yet. So an earlier release is not the end of the turn.
        self.last_release = None;
        self.grants = self.grants.saturating_add(1);
    }

    /// Returns whether threads may pass permits to each other. They may do so only within a turn,
    /// and so only for a limited time after the server's grant.
    pub(crate) fn may_pass(&self, now: u64) -> bool {
        self.began.is_some() && !self.is_over(now)
    }

    /// Records that permits are given back to the server.
    pub(crate) fn record_release(&mut self, now: u64) {
        if !std::mem::replace(&mut self.is_used, true) {
            // This site has granted no permits. So these permits come from an earlier site of the
            // same name, which was dropped with its last handle. The process may have had the
            // permits for a long time, so the turn is taken as over.
            self.began = Some(now.saturating_sub(LONGEST_TURN + 1));
        }
        self.last_release = Some(TurnEnd { at: now });
    }

    fn is_over(&self, now: u64) -> bool {
        let listeners =
            self.listeners.map_or(0, |(listeners, _)| u64::try_from(listeners).unwrap_or(0));
        let length = (ROUND / (listeners + 1)).max(SHORTEST_TURN) << self.doublings;
        let length = length.min(LONGEST_TURN);
        self.grants >= GRANTS << self.doublings
            || self.began.is_none_or(|at| now.saturating_sub(at) > length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_after_its_grants() {
        let mut turn = PermitTurn::new(Duration::ZERO);
        for _ in 0..GRANTS {
            assert!(matches!(turn.next_step(5), NextStep::Ask));
            turn.record_grant(5);
            turn.record_release(5);
        }
        assert!(!turn.may_pass(5));
        assert!(matches!(turn.next_step(5), NextStep::Pause(_)));
        // After the pause, the process may ask again.
        assert!(matches!(turn.next_step(5 + PAUSE_AFTER), NextStep::Ask));
    }

    #[test]
    fn a_turn_ends_after_its_time() {
        let mut turn = PermitTurn::new(Duration::ZERO);
        assert!(!turn.may_pass(0));
        turn.record_grant(0);
        assert!(turn.may_pass(LONGEST_TURN));
        assert!(!turn.may_pass(LONGEST_TURN + 1));
    }

    #[test]
    fn a_new_site_gives_back_permits_of_the_turn_of_an_earlier_site() {
        let mut turn = PermitTurn::new(Duration::ZERO);
        let now = 2 * LONGEST_TURN;
        turn.record_release(now);
        assert!(!turn.may_pass(now));
        assert!(matches!(turn.next_step(now), NextStep::Pause(_)));
        turn.end(1);
        // A second release belongs to the same turn.
        turn.record_release(now);
        assert!(matches!(turn.next_step(now), NextStep::Ask));
    }

    #[test]
    fn the_more_listen_the_shorter_is_a_turn() {
        let mut turn = PermitTurn::new(Duration::ZERO);
        turn.record_listeners(15, 0);
        turn.record_grant(0);
        assert!(turn.may_pass(ROUND / 16));
        assert!(!turn.may_pass(ROUND / 16 + 1));
    }

    #[test]
    fn a_process_that_is_alone_does_not_pause() {
        let mut turn = PermitTurn::new(Duration::ZERO);
        // The permits are held for 150 ms. Only this process's subscriber gets the message.
        let released = 150_000_000;
        turn.record_grant(0);
        turn.record_release(released);
        assert_eq!(turn.others(0), None, "the reply was not read yet");
        turn.record_listeners(1, released);
        assert!(matches!(turn.next_step(released), NextStep::Pause(_)));
        assert_eq!((turn.others(1), turn.others(0)), (Some(0), Some(1)));
        turn.record_listeners(-1, released);
        assert_eq!(turn.others(0), None, "the message was refused");
        // The turn is over, so the process must pause.
        assert!(matches!(turn.next_step(released), NextStep::Pause(_)));
        turn.end(1);
        assert!(matches!(turn.next_step(released), NextStep::Ask));
    }

    #[test]
    fn all_others_get_their_turns_though_the_last_release_is_not_answered_yet() {
        let mut turn = PermitTurn::new(Duration::ZERO);
        let long = 2 * LONGEST_TURN;
        turn.record_grant(0);
        turn.record_release(long);
        turn.record_listeners(3, long);
        assert_eq!(turn.end(1), 2);
        turn.record_grant(2 * long);
        turn.record_release(3 * long);
        assert_eq!(turn.others(1), None, "the reply was not read yet");
        assert_eq!(turn.end(1), 2);
        assert!(turn.pause(1, 5 * long - 1) > Duration::ZERO);
        assert_eq!(turn.pause(1, 5 * long), Duration::ZERO);
    }

    #[test]
    fn an_unused_pause_makes_the_next_turn_longer() {
        let mut turn = PermitTurn::new(Duration::ZERO);
        turn.record_pause(false);
        turn.reset();
        for _ in 0..2 * GRANTS - 1 {
            turn.record_grant(0);
        }
        assert!(turn.may_pass(0));
        turn.record_grant(0);
        assert!(!turn.may_pass(0));
        turn.record_pause(true);
        assert_eq!(turn.doublings, 0);
    }
}
