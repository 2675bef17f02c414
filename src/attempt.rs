//! What a call that may fail to take something returns.

/// The result of a call that takes a lock, permits or a leadership, or takes nothing: of
/// [`try_lock`](crate::Lock::try_lock) and all others that do not wait for ever.
///
/// ```no_run
/// use redlatch::{Error, ReentrantLock, Taken};
///
/// fn once(lock: &ReentrantLock, job: impl FnOnce()) -> Result<bool, Error> {
///     let Taken(guard) = lock.try_lock()? else { return Ok(false) };
///     job(); // the guard is held until here
///     guard.unlock()?;
///     Ok(true)
/// }
/// ```
///
/// It is no [`Option`], because two mistakes would compile: `lock.try_lock()?;` goes on without the
/// lock, and so does the block of `if lock.try_lock()?.is_some()`, whose guard is dropped with the
/// condition. With this type the compiler warns of the first one and refuses the second one. **Bind
/// the guard to a name**: `let Taken(_) = … else`, `matches!(…, Taken(_))` and `let _ =` drop it at
/// once, and nothing warns. Nor does anything warn of `let _guard = lock.try_lock()?`,
/// `if let Ok(_guard) = lock.try_lock()` or `lock.try_lock().is_ok()`, which all accept
/// [`NotTaken`](Self::NotTaken). **Match `Taken`.**
#[derive(Debug)]
#[must_use = "if it is `Taken`, the guard in it is dropped at once, and releases what it holds"]
pub enum Attempt<G> {
    /// The call has taken it, and the guard holds it until it is dropped.
    Taken(G),
    /// The call has taken nothing: another one has it, or waits for it, or the wait is over.
    NotTaken,
}

impl<G> Attempt<G> {
    /// Returns the guard, or `None` for [`NotTaken`](Self::NotTaken). Do not ask the result
    /// `is_some()`: that drops the guard.
    #[must_use = "the guard in it is dropped at once, and releases what it holds"]
    pub fn into_option(self) -> Option<G> {
        match self {
            Self::Taken(guard) => Some(guard),
            Self::NotTaken => None,
        }
    }

    #[inline]
    pub(crate) fn of(guard: Option<G>) -> Self {
        guard.map_or(Self::NotTaken, Self::Taken)
    }
}
