//! Runs users' scripts. A script runs only while its tenancy has the hold.
//!
//! All threads of a process that pass a hold to each other have the same owner. So the owner's
//! field at the server does not show which thread's tenancy has the hold, and a late script of one
//! tenancy could run under the next tenancy. Two rules prevent this. First, a script begins under
//! the gate's mutex, while its tenancy is in the seat. From then on no thread passes the hold on,
//! until a reply shows that the script cannot run later. Second, a hold without such a reply is
//! released and not passed on. After the release, no script of its owner can run.

use std::sync::Arc;
use std::time::Instant;

use redlatch_client::{hash_tag, slot_of, was_cut};

use super::site::Site;
use crate::error::{Error, ErrorKind};
use crate::hold::{Hold, Leaseholder, Tenancy};
use crate::scripts::eval::{Ran, ScriptCall, Value};
#[cfg(soak_mutants)]
use crate::scripts::mutants;
use crate::scripts::{Mode, Replied};
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
        // A late script is harmless only if its owner never gets the lock again. If the request for
        // the lock is in doubt, a late copy of it could give the lock to this owner again, after
        // another owner has had the lock.
        if tenancy.hold().in_doubt {
            let message = "the request that took the lock was sent twice: release the lock and \
                           take it again; the script has not run";
            return Err(Error::new(ErrorKind::Unavailable, message.to_owned()).of(&self.name));
        }
        let Some(hold) = self.script_begins(tenancy) else { return Err(self.not_held(tenancy)) };
        // If the wait does not block, limit the call to one short request.
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
            Ok(Ran::Done(Replied { reply, unacknowledged: None, .. })) => return Ok(reply),
            Ok(Ran::Done(Replied { unacknowledged: Some(error), .. })) => {
                error.unknown(true).now("the script has run, and a failover may undo it")
            }
            Ok(Ran::Failed(error)) => error.now("what it wrote before that stays"),
            Ok(Ran::NotHeld) => {
                self.lose_hold(&hold, hold.why_gone());
                return Err(self.not_held(tenancy).unknown(may_run));
            }
            Err(trouble) => {
                let mut error = trouble.into_error();
                if was_cut() && wait.check_cancelled(&self.name).is_err() {
                    let message = "the call was cancelled before the server answered".to_owned();
                    error = Error::new(ErrorKind::Cancelled, message);
                }
                error.unknown(may_run).now(match may_run {
                    true => "the script may have run, and can still run until the lock is released",
                    false => "the script has not run",
                })
            }
        };
        Err(error.of(&self.name))
    }

    /// Returns an error if the script cannot run under this lock. Sends nothing.
    fn check_call(&self, call: &ScriptCall<'_>) -> Result<(), Error> {
        let slot = |key: &str| slot_of(key.as_bytes());
        let is_elsewhere = |key: &&&str| self.core.is_cluster() && slot(key) != slot(&self.name);
        // A late script of one reader could run under another reader's tenancy.
        let message = if self.mode == Mode::Read {
            "a read lock runs no scripts (its readers share one owner): take the write lock"
                .to_owned()
        } else if call.script.text.starts_with("#!") {
            "a script that begins with `#!` cannot be used: leave that line out".to_owned()
        } else if let Some(key) = call.keys.iter().find(is_elsewhere) {
            let tag = String::from_utf8_lossy(hash_tag(self.name.as_bytes()));
            format!(
                "the key {key:?} is in another slot of the cluster than the lock: begin the key \
                 with {{{tag}}}; nothing was sent"
            )
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Config, message).of(&self.name))
    }

    /// Records that a script begins, and returns the hold under which it runs. Returns `None` if
    /// the tenancy does not have the hold.
    fn script_begins(&self, tenancy: &Arc<Tenancy>) -> Option<Arc<Hold>> {
        self.gate.with_seat(|seat| {
            // A pass also needs the gate's mutex. If a pass came before this check, the tenancy has
            // already ended. A thread that passes the hold later sees that the script has begun.
            let is_its = seat?.has(tenancy) && tenancy.is_held();
            let hold = is_its.then(|| tenancy.hold().into_owned())?;
            hold.script_begins();
            Some(hold)
        })
    }
}
