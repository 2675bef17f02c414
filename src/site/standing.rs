//! The messages for the threads of this process that have entries in a fair lock's queue.

use std::sync::Arc;

use redlatch_client::Command;
use redlatch_client::sync::clock;

use crate::ask::ReceivedGrant;
use crate::hold::line::scripts;
use crate::lease::Cleanup;
use crate::order::line::QueuedThread;
use crate::runtime::{Core, Message, Recipient};
use crate::scripts::FairKeys;
use crate::scripts::fair::{FairScripts, followers};

impl Recipient for Arc<QueuedThread> {
    fn receive(&self, message: &Message<'_>) -> bool {
        match *message {
            Message::Ask { .. } => self.wake_with(|messages| messages.must_ask = true),
            Message::Grant { server_time, lease, details, database, lock }
                if (database, lock) == (self.database, &*self.lock) =>
            {
                let Some(details) = followers(details) else { return true };
                let received_at = clock::now();
                self.wake_with(|messages| {
                    let grant = ReceivedGrant { server_time, received_at, lease, details };
                    messages.grant.get_or_insert(grant);
                })
            }
            // The names `x` and `{x}` share one queue. A waiter for one of these names was granted
            // the lock of the other name, and has lost its entry. The next keep-alive detects that
            // the entry is missing. If the waiter sent a request at once, it might be granted the
            // wrong lock again and again.
            // A message for a holder is not for its mailbox, either.
            Message::Grant { .. } | Message::Wanted { .. } => false,
            Message::Open { .. } | Message::Notified { .. } => true,
        }
    }
}

/// Handles a message to an owner of this client for which no thread waits: removes the owner's
/// entry. If the owner has a hold, the hold stays. Such a message comes if a request ran late, or
/// if a hold that was passed to the owner was revoked.
pub(crate) fn take_out(core: &Core, owner: u64, lock: &str) {
    give_up(core, owner, lock, |scripts, owner| scripts.leave_command(owner));
}

/// Gives back a grant to an owner that does not wait.
pub(crate) fn give_back_unclaimed(
    core: &Core,
    owner: u64,
    database: i64,
    lock: &str,
    details: &[u8],
) {
    // The grants of other kinds of locks have other details.
    if database == core.database() && followers(details).is_some() {
        give_up(core, owner, lock, |scripts, owner| scripts.give_up_command(owner));
    }
}

fn give_up(core: &Core, owner: u64, lock: &str, command: fn(FairScripts<'_>, &[u8]) -> Command) {
    if core.is_shut_down() {
        return;
    }
    let keys = FairKeys::new(lock);
    let owner = format!("{}:{owner}", core.id.as_str());
    let command = command(scripts(core, lock, &keys), owner.as_bytes());
    core.watchdog.clean_up(Cleanup::unclaimed(&core.name(lock), command));
}
