//! The scripts of conditions.

use std::sync::LazyLock;

use redlatch_client::{CachedScript, Command, Outcome, Route, decimal};

use super::{Rights, Trouble, accepted, call, call_again, checking_rights, flag, number};
use crate::scripts::{ConditionKeys, Owner};

static WAIT: LazyLock<CachedScript> =
    script!(NUMBER; CONDITION, "condition/holder.lua", "condition/wait.lua");
static NOTIFY: LazyLock<CachedScript> = script!(NUMBER; CONDITION, "condition/holder.lua", "condition/passing.lua", "condition/notify.lua");
static STATE: LazyLock<CachedScript> =
    script!(NUMBER; CONDITION, "condition/passing.lua", "condition/state.lua");
static KEEP_ALIVE: LazyLock<CachedScript> = script!(NUMBER; CONDITION, "condition/keep_alive.lua");
static DONE: LazyLock<CachedScript> =
    script!(NUMBER; CONDITION, "condition/passing.lua", "condition/done.lua");

#[derive(Clone, Copy, Debug)]
pub(crate) struct ConditionScripts<'a> {
    pub(crate) keys: &'a ConditionKeys,
    pub(crate) database: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaiterState {
    /// The waiter waits, or waited until this request removed its entry.
    Waits,
    /// The waiter has no entry. This counts as a notification.
    Notified,
}

/// What a notified waiter does with its notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotificationUse {
    Used,
    /// It passes the notification on to another waiter.
    PassedOn,
}

impl ConditionScripts<'_> {
    /// Adds a waiter. Returns `false` if the owner has lost the lock.
    pub(crate) fn wait(
        self,
        route: &Route,
        lock: &str,
        owner: &Owner,
        waiter: &Owner,
    ) -> Result<bool, Trouble> {
        let command = self.command(&WAIT, Some(lock), &[&owner.text(), &waiter.text()]);
        flag(call(route, &checking_rights(command, Rights::Conditions), Rights::Conditions)?)
    }

    /// Notifies one waiter, or all waiters. Returns the number of notified waiters, or `None` if
    /// the owner has lost the lock.
    pub(crate) fn notify(
        self,
        route: &Route,
        lock: &str,
        owner: &Owner,
        notification: u64,
        all: bool,
    ) -> Result<Option<u64>, Trouble> {
        let mut digits = [0; 20];
        let notification = decimal(notification, &mut digits);
        let command = |copy| {
            let all: &[u8] = if all { b"1" } else { b"0" };
            self.command(&NOTIFY, Some(lock), &[&owner.text(), notification, all, copy])
        };
        let (reply, _) = call_again(route, &command(b"0"), Rights::Conditions, || command(b"1"))?;
        Ok(u64::try_from(number(reply)?).ok())
    }

    /// Reads the state of a waiter. If the waiter `leaves`, also removes its entry.
    pub(crate) fn waiter_state(
        self,
        route: &Route,
        waiter: &Owner,
        leaves: bool,
    ) -> Result<WaiterState, Trouble> {
        let leaves: &[u8] = if leaves { b"1" } else { b"0" };
        let command = self.command(&STATE, None, &[&waiter.text(), leaves]);
        let waits = flag(call(route, &command, Rights::Conditions)?)?;
        Ok(if waits { WaiterState::Waits } else { WaiterState::Notified })
    }

    /// Returns the command that sends keep-alives of notified waiters.
    pub(crate) fn keep_alive_command(self, waiters: &[Owner]) -> Command {
        let waiters: Vec<_> = waiters.iter().map(Owner::text).collect();
        let waiters: Vec<&[u8]> = waiters.iter().map(|waiter| &waiter[..]).collect();
        self.command(&KEEP_ALIVE, None, &waiters)
    }

    /// Returns the command that removes a waiter's data from the server.
    pub(crate) fn done_command(self, waiter: &[u8], becomes: NotificationUse) -> Command {
        let pass: &[u8] = if becomes == NotificationUse::PassedOn { b"1" } else { b"0" };
        self.command(&DONE, None, &[waiter, pass])
    }

    fn command(
        self,
        script: &'static LazyLock<CachedScript>,
        lock: Option<&str>,
        arguments: &[&[u8]],
    ) -> Command {
        let keys = [Some(&*self.keys.waiting), Some(&*self.keys.notified), lock];
        let keys: Vec<&[u8]> = keys.into_iter().flatten().map(str::as_bytes).collect();
        let database = self.database.to_string();
        Command::script(script, &keys, &[&[database.as_bytes()], arguments].concat())
    }
}

/// Reads the server's answer to a [`ConditionScripts::done_command`].
pub(crate) fn done(outcome: Outcome) -> Result<(), Trouble> {
    accepted(outcome, Rights::Conditions).map(drop)
}
