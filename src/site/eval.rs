//! Runs users' scripts. A script runs only while its tenancy has the hold.
//!
//! An owner stands for a hold, and the threads of a process pass a hold to each other. The owner's
//! field at the server therefore does not show which thread's tenancy has the hold, and a late
//! script of one tenancy could run under the next tenancy. Two rules prevent this. First, a script
//! begins under the gate's mutex, while its tenancy is in the seat. From then on no thread passes
//! the hold on, until a reply shows that the script cannot run later. Second, a hold without such a
//! reply is released and not passed on. After the release, no script of its owner can run.

use std::sync::Arc;
use std::time::Instant;

use redlatch_client::{slot_of, was_cut};

use super::site::Site;
use crate::error::{Error, ErrorKind};
use crate::hold::{Hold, Leaseholder, Tenancy};
use crate::scripts::eval::{Ran, ScriptCall, Value};
#[cfg(soak_mutants)]
use crate::scripts::mutants;
use crate::scripts::{Mode, Replied, failed_script};
use crate::waiting::Wait;

impl Site {
    /// Runs a user's script at the server if the tenancy has the lock there.
    ///
    /// # Blocking
    ///
    /// One round trip, or two if the server does not have the script yet.
    pub(crate) fn eval(
        self: &Arc<Self>,
        tenancy: &Arc<Tenancy>,
        wait: Wait<'_>,
        call: &ScriptCall<'_>,
    ) -> Result<Value, Error> {
        self.check_call(call)?;
        wait.check(&self.core, &self.name)?;
        // A late script runs only while its owner has the lock. A late copy of the request for the
        // lock could give this owner the lock again, after another owner has had it.
        if tenancy.hold().in_doubt {
            let message = "the request that took the lock was sent twice, and its late copy could \
                           let a late script run: release the lock and take it again; the script \
                           has not run";
            return Err(Error::new(ErrorKind::Unavailable, message.to_owned()).of(&self.name));
        }
        let Some(hold) = self.script_begins(tenancy) else { return Err(self.not_held(tenancy)) };
        // With a wait that does not block, the call has the time of one short request.
        let wait = if wait.blocks() { wait } else { wait.once(Instant::now()) };
        let _limited = wait.limits(&self.core);
        let acks = self.core.config.replica_acks;
        let (ran, may_run) = call.send(&self.route, &self.name, &hold.owner, acks);
        #[cfg(soak_mutants)]
        let may_run = may_run && !mutants::is("a script without a reply that counts as not run");
        if !may_run {
            hold.script_ended();
        }
        let error = match ran {
            Ok(Replied { reply: Ran::Done(value), unacknowledged: None, .. }) => return Ok(value),
            Ok(Replied { reply: Ran::NotHeld, .. }) => {
                self.lose_hold(&hold, hold.why_gone());
                return Err(self.not_held(tenancy).unknown(may_run));
            }
            Ok(Replied { reply: Ran::Failed(text), .. }) => {
                failed_script(&text).now("what it wrote before that stays")
            }
            Ok(Replied { unacknowledged: Some(error), .. }) => {
                error.unknown(true).now("the script has run, and a failover may undo it")
            }
            Err(trouble) => {
                let cancelled = was_cut() && wait.check_cancelled(&self.name).is_err();
                let error = if cancelled {
                    let message = "the call was cancelled before the server answered".to_owned();
                    Error::new(ErrorKind::Cancelled, message).unknown(may_run)
                } else {
                    trouble.into_error()
                };
                error.now(if may_run {
                    "whether the script has run is not known; it can still run until the lock is \
                     released"
                } else {
                    "the script has not run"
                })
            }
        };
        Err(error.of(&self.name))
    }

    /// Returns an error if the script cannot run under this lock. Sends nothing.
    fn check_call(&self, call: &ScriptCall<'_>) -> Result<(), Error> {
        let slot = slot_of(self.name.as_bytes());
        let is_elsewhere = |key: &&&str| self.core.is_cluster() && slot_of(key.as_bytes()) != slot;
        // A late script of one reader could run under another reader's tenancy.
        let message = if self.mode == Mode::Read {
            "a read lock runs no scripts, since all readers of a process share one owner: take the \
             write lock"
                .to_owned()
        } else if call.script.has_shebang() {
            "a script that begins with `#!` cannot be used: leave that line out".to_owned()
        } else if let Some(key) = call.keys.iter().find(is_elsewhere) {
            let lock: &str = &self.name;
            let in_braces = lock.split_once('{').and_then(|(_, tag)| tag.split_once('}'));
            let tag = in_braces.map_or(lock, |(tag, _)| tag);
            format!(
                "the key {key:?} is in another slot of the cluster than the lock: begin the key \
                 with {{{tag}}}; nothing was sent"
            )
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Config, message).of(&self.name))
    }

    /// Returns the hold under which the script begins, or `None` if the tenancy does not have the
    /// hold.
    fn script_begins(&self, tenancy: &Arc<Tenancy>) -> Option<Arc<Hold>> {
        self.gate.with_seat(|seat| {
            // A pass also needs the gate's mutex. If a pass came before this check, the tenancy has
            // already ended. A pass after this check sees that the script has begun.
            let is_its = seat?.has(tenancy) && tenancy.is_held();
            is_its.then(|| {
                let hold = tenancy.hold().into_owned();
                hold.script_begins();
                hold
            })
        })
    }
}
