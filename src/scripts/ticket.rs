//! The scripts that hand a lock over by a ticket.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;
use redlatch_client::{CachedScript, Command, Pieces, decimal};

use super::lock::{Acquired, LockScripts, acquired};
use super::{Owner, Replied, Trouble, call, checking_rights, granted, millis, unexpected};

static TICKET: LazyLock<CachedScript> =
    script!(NUMBER; LOCK_OWNER, "lock/successor.lua", "lock/ticket.lua");
static ADOPT: LazyLock<CachedScript> =
    script!(takes; NUMBER_OR_LIST; LOCK_OWNER, "lock/successor.lua", "lock/adopt.lua");

impl LockScripts<'_> {
    /// Gives the owner's lock to a ticket, with this lease. Returns `false` if the owner does not
    /// have the lock.
    pub(crate) fn give_to_ticket(
        self,
        owner: &Owner,
        ticket: &Owner,
        lease: Duration,
    ) -> Result<bool, Trouble> {
        // If the connection breaks, a copy of the request finds that the ticket has the lock, and
        // gets the same reply as the first request.
        match call(self.route, &self.handing_over(&TICKET, lease, owner, ticket), self.rights())? {
            Value::Nil => Ok(false),
            Value::Int(_) => Ok(true),
            other => Err(unexpected(&other)),
        }
    }

    /// Takes the lock over from a ticket. Returns [`NotTaken`](Acquired::NotTaken) if neither the
    /// ticket nor this owner has the lock.
    pub(crate) fn adopt(
        self,
        ticket: &Owner,
        owner: &Owner,
        lease: Duration,
    ) -> Result<Replied<Acquired>, Trouble> {
        let command = self.handing_over(&ADOPT, lease, owner, ticket).acknowledged(self.acks);
        let (outcome, in_doubt) = self.route.call_twice(&command, || command.clone());
        granted(outcome, in_doubt, self.rights(), acquired)
    }

    fn handing_over(
        self,
        script: &'static LazyLock<CachedScript>,
        lease: Duration,
        owner: &Owner,
        ticket: &Owner,
    ) -> Command {
        let (keys, count) = self.keys.of_scripts();
        let (mut lease_digits, mut database_digits) = ([0; 20], [0; 20]);
        let (owner, ticket) = (owner.text(), ticket.text());
        let lease = millis(lease, &mut lease_digits);
        let database = decimal(self.database.unsigned_abs(), &mut database_digits);
        let arguments = [lease, &owner, &ticket, database].map(Pieces::from);
        checking_rights(Command::script(script, &keys[..count], &arguments), self.rights())
    }
}
