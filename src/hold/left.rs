//! A hold that is left to its end: the server keeps it until its lease is over, whatever becomes of
//! this client.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Hold, Leaving, Level, Site, Tenancy, clock};
use crate::error::{Error, ErrorKind, LostReason};
use crate::protocol::Mode;
use crate::watchdog::{Renewal, Task};

impl Site {
    /// Ends one level of a tenancy, and leaves its hold to its end: from here on nobody of this
    /// process gives it back or passes it on, neither who leaves it later (an outer level, a thread
    /// that shares it) nor the end of the client. Nobody renews it when the last one has left.
    ///
    /// # Blocking
    ///
    /// Not at all, but for a round trip if the hold has not the lease of its terms yet.
    pub(crate) fn leave_to_expire(
        self: &Arc<Self>,
        tenancy: &Arc<Tenancy>,
        which: Option<Level>,
    ) -> Result<(), Error> {
        let hold = &tenancy.hold;
        // What another process handed on is the server's for 2 s, whatever its terms say.
        self.raise(tenancy, Duration::ZERO);
        if !tenancy.is_held() {
            // As whoever releases it would hear it; what is to be undone is.
            self.leave(tenancy, which, Leaving::Posted)?;
            // A renewal was answered at this very moment: it was given back.
            return Err(self.lost_error(tenancy, LostReason::LeaseExpired));
        }
        let is_short = hold.is_provisional();
        // Before the level ends: whoever shares the hold may be the last to leave it right then.
        hold.leave_out();
        self.left_until.fetch_max(hold.deadline(), Ordering::SeqCst);
        self.leave(tenancy, which, Leaving::Posted)?;
        if is_short {
            let message = "another process has just handed it on, and its lease could not be made \
                           longer: it ends within 2 s";
            return Err(Error::new(ErrorKind::Redis, message.to_owned()).of(&self.name));
        }
        Ok(())
    }

    /// Whether a hold of this site that nobody here has any more lasts on the server.
    pub(crate) fn has_left_one(&self) -> bool {
        clock::now() < self.left_until.load(Ordering::SeqCst)
    }

    /// Nobody has this hold any more, and it is not given back.
    pub(super) fn let_expire(self: &Arc<Self>, hold: &Arc<Hold>) {
        if let Some(line) = &hold.line {
            line.left().into_iter().for_each(|command| self.undo(command, hold.longest_lease()));
        }
        // By then the server has it no more, even if a renewal is on its way.
        let over = clock::now().saturating_add(clock::nanos(hold.longest_lease()));
        let left = Arc::new(Left { site: Arc::clone(self), hold: Arc::clone(hold) });
        self.core.leave_out(hold.owner.number(), over, left);
    }
}

/// Keeps the owner of a hold live until its lease is over: else it would be taken for one that the
/// server should have forgotten, and be given back at a failover.
struct Left {
    site: Arc<Site>,
    hold: Arc<Hold>,
}

impl Task for Left {
    fn due(self: Arc<Self>) -> Option<Renewal> {
        self.site.core.left_no_more(self.hold.owner.number());
        // A late copy of its request would take the lock anew, and what a read-write lock knows of a
        // hold does not end by itself while another one keeps the lock.
        self.site.orphan(&self.hold, self.site.mode != Mode::Lock);
        None
    }
}

impl fmt::Debug for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Left({})", self.site.name)
    }
}
