//! Unclaimed messages: messages to owners of this client for which no thread waits.

use redlatch_client::Command;

use super::queue_entry::parse_details;
use crate::lease::Cleanup;
use crate::runtime::Core;
use crate::scripts::lock::LockScripts;
use crate::scripts::{LockKeys, Mode};

/// Removes a queue entry for which no thread waits. The entry's owner belongs to this client, and
/// is first in the queue. A new master may have such an entry if it lacks the last commands of the
/// old master. If the entry stayed, the server would grant it the lock, no thread would use the
/// grant, and the owners behind the entry would wait.
pub(crate) fn give_up_unclaimed(core: &Core, owner: u64, database: i64, lock: &str) {
    if database != core.database() {
        return;
    }
    // For each kind of lock, the command removes only the entry, because other threads may have the
    // owner's hold.
    let (name, owner) = (core.name(lock), format!("{}:{owner}", core.id.as_str()));
    for (mode, suffix) in [(Mode::Lock, ""), (Mode::Read, ""), (Mode::Write, ":write")] {
        let queue = LockKeys::new(lock, mode, false).queue().to_string();
        let owner = format!("{owner}{suffix}");
        let command = Command::plain(&[b"LREM", queue.as_bytes(), b"1", owner.as_bytes()]);
        core.watchdog.clean_up(Cleanup::unclaimed(&name, command));
    }
}

/// Gives back a grant to an owner of this client that does not wait. No thread uses this grant,
/// because the request came late or its thread had already left.
pub(crate) fn give_back_unclaimed(
    core: &Core,
    owner: u64,
    database: i64,
    lock: &str,
    details: &[u8],
) {
    let Some((mode, details)) = parse_details(details) else { return };
    if database != core.database() || core.is_shut_down() {
        return;
    }
    let name = core.name(lock);
    let owner = format!("{}:{owner}{}", core.id.as_str(), mode.suffix());
    let keys = LockKeys::new(&name, mode, details.tokens.is_some());
    let route = core.route(&name);
    let scripts = LockScripts { route: &route, keys, client: &core.id, database, acks: None };
    let command = scripts.give_up_command(owner.as_bytes(), details.chain);
    core.watchdog.clean_up(Cleanup::unclaimed(&name, command));
}
