//! `redlatch who` and `redlatch ls`: the holders of names, and the waiters.

use std::time::{Duration, SystemTime};

use redlatch::status::{OwnerProcess, Status, StatusKind};
use serde_json::{Value, json};

use crate::args::Args;
use crate::print;
use crate::trouble::{FREE, Trouble, shown};

/// The version of the JSON format that `--json` prints.
const VERSION: u32 = 1;
const UNKNOWN: &str = "an unknown process";

pub(crate) fn who(args: &Args, name: &str, json: bool) -> Result<u8, Trouble> {
    let status = args.client()?.connect()?.status(name)?;
    let text = if json { json_line(&object(&status)) } else { page(&status) };
    let printed = print(text.as_bytes())?;
    Ok(if is_free_lock(&status) { FREE } else { printed })
}

/// Whether the name is probably a lock's name, and nobody has the lock.
pub(crate) fn is_free_lock(status: &Status) -> bool {
    is_lock(status.kind) && status.holders.is_empty()
}

/// Whether a name of this kind may be a lock's name.
pub(crate) fn is_lock(kind: StatusKind) -> bool {
    use StatusKind::{FairLock, FencedLock, Free, Lock, ReadWriteLock};
    matches!(kind, Free | Lock | FencedLock | FairLock | ReadWriteLock)
}

pub(crate) fn ls(args: &Args, pattern: &str, json: bool) -> Result<u8, Trouble> {
    let mut text = String::new();
    for status in args.client()?.connect()?.statuses(pattern)? {
        if json {
            text += &json_line(&object(&status));
        } else {
            text += &line(&status);
        }
    }
    print(text.as_bytes())
}

pub(crate) fn word(kind: StatusKind) -> &'static str {
    match kind {
        StatusKind::Free => "free, or not used",
        StatusKind::Lock => "lock",
        StatusKind::FencedLock => "fenced lock",
        StatusKind::FairLock => "fair lock",
        StatusKind::ReadWriteLock => "read-write lock",
        StatusKind::Semaphore => "semaphore",
        StatusKind::ExpirableSemaphore => "expirable semaphore",
        StatusKind::CountDownLatch => "latch",
        StatusKind::Number => "semaphore or latch",
        _ => "not a lock, but another program's data",
    }
}

/// Returns the host and the process, or the client's name.
fn short(process: &OwnerProcess) -> String {
    match (process.host(), process.pid()) {
        (Some(host), Some(pid)) => format!("{host}, process {pid}"),
        _ => process.name.clone(),
    }
}

fn place(process: &OwnerProcess) -> String {
    let (short, address) = (short(process), &process.address);
    if short == process.name {
        format!("{short}, from {address}")
    } else {
        format!("{short} ({}, from {address})", process.name)
    }
}

/// Returns the first holder, and the number of other holders.
fn first(status: &Status, place: fn(&OwnerProcess) -> String) -> String {
    let Some(first) = status.holders.first() else { return "-".to_owned() };
    let first = first.process.as_ref().map_or_else(|| UNKNOWN.to_owned(), place);
    match status.holders.len() {
        1 => first,
        holders => format!("{first} and {} more", holders - 1),
    }
}

/// Returns the holders, for a narrow column.
pub(crate) fn holders(status: &Status) -> String {
    first(status, short)
}

pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn asked(at: Option<SystemTime>) -> String {
    let ago = at.map(|at| SystemTime::now().duration_since(at).unwrap_or_default());
    ago.map_or_else(String::new, |ago| format!("; asked for it {} ago by its clock", seconds(ago)))
}

/// Returns the text that `who` prints about one name.
fn page(status: &Status) -> String {
    let mut lines = vec![format!("{}: {}", status.name, word(status.kind))];
    lines.extend(status.value.map(|value| format!("  count {value}")));
    lines.extend(status.token.map(|token| format!("  last token {token}")));
    for holder in &status.holders {
        let verb = if holder.shared { "read by" } else { "held by" };
        let left = match holder.left {
            Duration::MAX => "no end".to_owned(),
            left => format!("{} left", seconds(left)),
        };
        let place = holder.process.as_ref().map_or_else(|| UNKNOWN.to_owned(), place);
        let asked = asked(holder.asked);
        lines.push(format!("  {verb} {place}; {left}{asked}; owner {}", holder.owner));
    }
    for (place_in_queue, waiter) in (1..).zip(&status.queue) {
        let purpose = if waiter.shared { ", to read" } else { "" };
        let since =
            waiter.waited.map_or_else(String::new, |waited| format!(", for {}", seconds(waited)));
        let place = waiter.process.as_ref().map_or_else(|| UNKNOWN.to_owned(), place);
        let (asked, owner) = (asked(waiter.asked), &waiter.owner);
        lines.push(format!(
            "  {place_in_queue}. {place} waits{since}{purpose}{asked}; owner {owner}"
        ));
    }
    if status.listeners > 0 {
        lines.push(format!("  {} other clients wait for a change", status.listeners));
    }
    lines.iter().map(|line| shown(line) + "\n").collect()
}

pub(crate) fn line(status: &Status) -> String {
    let (kind, waiting) = (word(status.kind), waiting(status));
    let (name, holder, left) = (shown(&status.name), first(status, place), left(status));
    format!("{name}\t{kind}\t{}\t{left}\t{waiting} waiting\n", shown(&holder))
}

/// Returns the remaining time of the longest lease.
pub(crate) fn left(status: &Status) -> String {
    let ends = status.holders.iter().map(|holder| holder.left).filter(|left| *left < Duration::MAX);
    let left = ends.max();
    left.map_or_else(|| "-".to_owned(), seconds)
}

/// Returns the number of waiting processes. For a fair lock, it is the number of waiting threads.
pub(crate) fn waiting(status: &Status) -> u64 {
    status.queue.len() as u64 + status.listeners
}

/// Escapes control characters. Only strings have them, so a reader of the JSON gets the same
/// values.
pub(crate) fn json_line(object: &Value) -> String {
    shown(&object.to_string()) + "\n"
}

pub(crate) fn object(status: &Status) -> Value {
    let mut object = json!(status);
    object["version"] = VERSION.into();
    object
}
