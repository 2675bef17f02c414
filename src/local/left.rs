//! A hold that its holder leaves to its end: the server keeps it until its lease is over, even if
//! this client ends before.

use std::fmt;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redlatch_client::sync::clock;

use super::hold::Hold;
use super::site::Site;
use super::tenancy::Tenancy;
use crate::error::{Error, ErrorKind};
use crate::lease::{Cleanup, Renewal, Task};
use crate::scripts::Mode;
use crate::scripts::renewal::{Longer, RenewalKind, renew_command};

impl Site {
    /// Makes a hold that another process has just handed on, for 2 s, last for the lease of its
    /// terms, before a thread leaves it to its end. If that fails the thread must not leave it so,
    /// and releases it.
    ///
    /// # Blocking
    ///
    /// Not at all, except for a round trip if the hold does not have the lease of its terms yet.
    pub(crate) fn raise_to_leave(self: &Arc<Self>, tenancy: &Arc<Tenancy>) -> Result<(), Error> {
        let error = match self.raise(tenancy, Duration::ZERO) {
            Ok(()) if !tenancy.hold().is_to_be_raised() => return Ok(()),
            Ok(()) => {
                let message = "another process has just handed it on, and its lease cannot be made \
                               longer";
                Error::new(ErrorKind::Redis, message.to_owned())
            }
            Err(trouble) => trouble.into_error(),
        };
        let state = "it is not left taken: the client releases it in the background, or another \
                     level of it goes on";
        Err(error.of(&self.name).now(state))
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
        let over = hold.left_until.load(Ordering::SeqCst);
        let left = Arc::new(Left { site: Arc::clone(self), hold: Arc::clone(hold) });
        self.core.leave_out(hold.owner.number(), over, left);
    }
}

/// Keeps the owner of a hold live until the end to which it was left. Otherwise the client would take
/// the hold for a leftover at a failover, and release it.
struct Left {
    site: Arc<Site>,
    hold: Arc<Hold>,
}

impl Task for Left {
    fn due(self: Arc<Self>) -> Option<Renewal> {
        self.site.core.left_no_more(self.hold.owner.number());
        // A late copy of its request would take the lock anew; and a read-write lock's hold does
        // not end by itself while another hold keeps the lock. The command that cut a longer lease
        // may not have reached the server.
        let outlasts = self.site.mode != Mode::Lock || self.hold.outlasts_its_end();
        self.site.clean_up(&self.hold, outlasts);
        None
    }
}

impl fmt::Debug for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Left({})", self.site.name)
    }
}
