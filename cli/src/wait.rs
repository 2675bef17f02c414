//! `redlatch wait`: waits until a lock is free, without taking it.

use std::thread;
use std::time::{Duration, Instant};

use redlatch::Lock;
use redlatch::status::StatusKind;

use crate::args::Args;
use crate::trouble::{NOT_HAD, Trouble, USAGE};
use crate::who::{is_free_lock, is_lock};

/// The time between two checks. Each check runs one short script.
const LOOK: Duration = Duration::from_millis(100);
/// The time for which the server may be unreachable: the default of `failover_timeout`.
const OUTAGE: Duration = Duration::from_secs(60);

pub(crate) fn wait(args: &Args, name: &str, limit: Option<Duration>) -> Result<u8, Trouble> {
    let client = args.client()?.connect()?;
    let (begun, status) = (Instant::now(), client.status(name)?);
    if !is_lock(status.kind) {
        return Err(Trouble::new(USAGE, format!("{name} is not a lock")));
    }
    if is_free_lock(&status) {
        return Ok(0);
    }
    // The handle of a read-write lock also reports readers.
    let lock: Box<dyn Lock> = match status.kind {
        StatusKind::ReadWriteLock => Box::new(client.read_write_lock(name).writer().clone()),
        _ => Box::new(client.reentrant_lock(name)),
    };
    let is_over = || limit.is_some_and(|limit| begun.elapsed() >= limit);
    let mut away = None;
    loop {
        let left = match lock.remaining_lease() {
            Ok(None) => return Ok(0),
            Ok(Some(left)) => {
                away = None;
                left
            }
            Err(error)
                if error.is_transient()
                    && !is_over()
                    && away.get_or_insert_with(Instant::now).elapsed() < OUTAGE =>
            {
                LOOK
            }
            Err(error) => return Err(error.into()),
        };
        let rest = limit.map_or(LOOK, |limit| limit.saturating_sub(begun.elapsed()));
        if rest.is_zero() {
            return Err(Trouble::expected(NOT_HAD, format!("{name} is not free")));
        }
        thread::sleep(LOOK.min(left).min(rest).max(Duration::from_millis(1)));
    }
}
