//! `redlatch unlock`, `permits` and `latch`: changes by hand.

use std::time::Duration;

use redlatch::status::StatusKind;
use redlatch::{Lock, Owner};

use crate::args::Args;
use crate::print;
use crate::trouble::{NOT_HAD, Trouble, USAGE, say};

/// Frees a lock. The status is 75 if nobody had the lock, or if `owner` did not have it.
pub(crate) fn unlock(args: &Args, name: &str, owner: Option<&Owner>) -> Result<u8, Trouble> {
    let client = args.client()?.connect()?;
    if let Some(owner) = owner {
        return done(client.release_owner(name, owner)?, || {
            format!("{owner} does not have {name}")
        });
    }
    let status = client.status(name)?;
    let is_read = status.holders.first().is_some_and(|holder| holder.shared);
    let read_write = client.read_write_lock(name);
    let lock: Box<dyn Lock> = match status.kind {
        StatusKind::FairLock => Box::new(client.fair_lock(name)),
        StatusKind::FencedLock => Box::new(client.fenced_lock(name)),
        StatusKind::ReadWriteLock if is_read => Box::new(read_write.reader().clone()),
        StatusKind::ReadWriteLock => Box::new(read_write.writer().clone()),
        StatusKind::Free | StatusKind::Lock => Box::new(client.reentrant_lock(name)),
        _ => return Err(Trouble::new(USAGE, format!("{name} is not a lock"))),
    };
    for holder in &status.holders {
        let name = holder.process.as_ref().map_or("an unknown process", |process| &process.name);
        say(format_args!("{name} loses the lock (owner {})", holder.owner));
    }
    done(lock.force_unlock()?, || format!("nobody has {name}"))
}

pub(crate) fn permits(args: &Args, name: &str, set: Option<u32>) -> Result<u8, Trouble> {
    let semaphore = args.client()?.connect()?.expirable_semaphore(name);
    if let Some(permits) = set {
        semaphore.set_permits(permits)?;
    }
    print(format!("{}\n", semaphore.available_permits()?).as_bytes())
}

pub(crate) fn latch(
    args: &Args,
    name: &str,
    set: Option<u64>,
    count_down: bool,
    wait: Option<Duration>,
) -> Result<u8, Trouble> {
    let latch = args.client()?.connect()?.count_down_latch(name);
    let is_done = match (set, wait) {
        (Some(count), _) => latch.try_set_count(count)?,
        // If the server is away, the wait times out, too, and the count is unknown.
        (None, Some(wait)) => !latch.wait_for(wait)?.timed_out() || latch.count()? == 0,
        (None, None) if count_down => latch.count_down().map(|()| true)?,
        (None, None) => return print(format!("{}\n", latch.count()?).as_bytes()),
    };
    done(is_done, || format!("the count of {name} is not zero"))
}

fn done(is_done: bool, otherwise: impl FnOnce() -> String) -> Result<u8, Trouble> {
    if is_done { Ok(0) } else { Err(Trouble::expected(NOT_HAD, otherwise())) }
}
