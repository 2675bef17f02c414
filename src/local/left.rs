//! A hold that its holder leaves to its end: the server keeps it until its lease is over, even if
//! this client ends before.

use std::fmt;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redlatch_client::sync::clock;

use super::gate::Level;
use super::hold::Hold;
use super::release::Leaving;
use super::site::Site;
use super::tenancy::Tenancy;
use crate::error::{Error, ErrorKind, LostReason};
use crate::lease::{Cleanup, Renewal, Task};
use crate::scripts::Mode;
use crate::scripts::renewal::{Longer, RenewalKind, renew_command};

impl Site {
    /// Ends one level of a tenancy, and leaves its hold to its end: from here on this process
    /// neither releases it nor passes it on, not even when an outer level ends, a thread that
    /// shares it leaves, or the client ends; or not before `until`, if its end at the server is no
    /// earlier. After the last tenant has left, nothing renews it.
    ///
    /// # Blocking
    ///
    /// Not at all, except for a round trip if the hold does not have the lease of its terms yet.
    pub(crate) fn leave_to_expire(
        self: &Arc<Self>,
        tenancy: &Arc<Tenancy>,
        which: Option<Level>,
        until: Option<u64>,
    ) -> Result<(), Error> {
        let hold = &tenancy.hold();
        // A hold that another process has just handed on has a lease of 2 s, not that of its terms.
        self.raise(tenancy, Duration::ZERO);
        if !tenancy.is_held() {
            // Returns the error of a release, and cleans up as a release does.
            self.leave(tenancy, which, Leaving::Posted)?;
            // The server answered a renewal at this very moment, and `leave` released the hold.
            return Err(self.lost_error(tenancy, LostReason::LeaseExpired));
        }
        let is_short = hold.is_provisional();
        // Before the level ends: right after it, another tenant may be the last to leave the hold.
        let until = until.unwrap_or_else(|| hold.deadline());
        hold.leave_out(until);
        self.left_until.fetch_max(until, Ordering::SeqCst);
        self.leave(tenancy, which, Leaving::Posted)?;
        if is_short {
            let message = "another process has just handed it on, and its lease could not be made \
                           longer: it ends within 2 s";
            return Err(Error::new(ErrorKind::Redis, message.to_owned()).of(&self.name));
        }
        Ok(())
    }

    /// Whether the server still keeps a hold of this site that was left to its end.
    pub(crate) fn has_left_one(&self) -> bool {
        clock::now() < self.left_until.load(Ordering::SeqCst)
    }

    /// The server keeps no such hold any more: it was forced, or lost with the data.
    pub(crate) fn has_left_none(&self) {
        self.left_until.store(0, Ordering::SeqCst);
    }

    /// Ends a hold that no thread has any more, without a release.
    pub(super) fn let_expire(self: &Arc<Self>, hold: &Arc<Hold>) {
        if let Some(line) = &hold.line {
            line.left().into_iter().for_each(|command| self.undo(command, hold.longest_lease()));
        }
        if hold.outlasts_its_end() {
            // Another level had it renewed. The renewer sends this behind a renewal on its way.
            let left_until = hold.left_until.load(Ordering::SeqCst);
            let rest = Duration::from_nanos(left_until.saturating_sub(clock::now()));
            let (rest, one) = (rest + Duration::from_millis(1), (&*self.name, &hold.owner));
            let cut = Longer::IsCut(rest);
            let cut = renew_command(RenewalKind::Locks, iter::once(one), rest, cut, None);
            self.core.watchdog.clean_up(Cleanup::unclaimed(&self.name, cut));
        }
        // After this the server does not have the hold any more, even if a renewal is on its way.
        let over = clock::now().saturating_add(clock::nanos(hold.longest_lease()));
        let left = Arc::new(Left { site: Arc::clone(self), hold: Arc::clone(hold) });
        self.core.leave_out(hold.owner.number(), over, left);
    }
}

/// Keeps the owner of a hold live until its lease is over. Otherwise the client would take the hold
/// for a leftover at a failover, and release it.
struct Left {
    site: Arc<Site>,
    hold: Arc<Hold>,
}

impl Task for Left {
    fn due(self: Arc<Self>) -> Option<Renewal> {
        self.site.core.left_no_more(self.hold.owner.number());
        // A late copy of its request would take the lock anew; and a read-write lock's hold does
        // not end by itself while another hold keeps the lock.
        self.site.clean_up(&self.hold, self.site.mode != Mode::Lock);
        None
    }
}

impl fmt::Debug for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Left({})", self.site.name)
    }
}
