//! The result of a call that tries to take a lock, permits or a leadership.

/// The result of a call that tries to take a lock, permits or a leadership:
/// [`try_lock`](crate::Lock::try_lock) and all other calls that do not wait for ever.
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
/// This type is not an [`Option`], because with an `Option` two mistakes would compile. After
/// `lock.try_lock()?;` the program continues without the lock. `if lock.try_lock()?.is_some()`
/// drops the guard at the end of the condition, so the block runs without the lock. With `Attempt`,
/// the compiler warns of the first mistake and rejects the second mistake. The compiler does not
/// warn of the following mistakes. **Bind the guard to a name**: `let Taken(_) = … else`,
/// `matches!(…, Taken(_))` and `let _ =` drop the guard at once. **Match `Taken`**: `let _guard =
/// lock.try_lock()?`, `if let Ok(_guard) = lock.try_lock()` and `lock.try_lock().is_ok()` also
/// accept [`NotTaken`](Self::NotTaken).
#[derive(Debug)]
#[must_use = "if it is `Taken`, the guard in it is dropped at once, and releases what it holds"]
pub enum Attempt<G> {
    /// The call has taken the lock, the permits or the leadership. The drop of the guard releases
    /// it.
    Taken(G),
    /// The call has taken nothing: another holder has the lock, another thread waits for it, or the
    /// time limit of the call has passed.
    NotTaken,
}

impl<G> Attempt<G> {
    /// Returns the guard, or `None` for [`NotTaken`](Self::NotTaken). Do not call `is_some()` on
    /// the result: the guard would be dropped at once.
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
