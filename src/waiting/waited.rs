//! The result of a wait with a limit.

/// The result of a wait that may end before its event happens. Waits for a latch, a condition or a
/// barrier return a `Waited`.
///
/// ```no_run
/// # use std::time::Duration;
/// # fn main() -> Result<(), redlatch::Error> {
/// # let ready = redlatch::Client::connect("redis://localhost")?.count_down_latch("ready");
/// if ready.wait_for(Duration::from_secs(60))?.timed_out() {
///     eprintln!("not all workers are ready");
/// }
/// # Ok(()) }
/// ```
///
/// The compiler warns if a program ignores the result, as in `ready.wait_for(limit)?;`. A program
/// that ignores the result would continue as if all workers were ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "it says whether the wait timed out"]
pub enum Waited<T = ()> {
    /// The event happened within the limit. For a barrier, the value is the number of parties that
    /// had not arrived when the caller arrived.
    InTime(T),
    /// The limit ended before the event happened.
    TimedOut,
}

impl<T> Waited<T> {
    pub(crate) fn of(happened: Option<T>) -> Self {
        happened.map_or(Self::TimedOut, Self::InTime)
    }

    /// Returns whether the limit ended before the event happened.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        matches!(self, Self::TimedOut)
    }
}
