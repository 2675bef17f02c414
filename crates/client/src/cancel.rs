//! Ending a wait from another thread.

use std::fmt;
use std::sync::Arc;

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, Waker};

/// Cancels waits from another thread, like Java's `Thread.interrupt`.
///
/// A clone is the same token. A cancelled token stays cancelled, and ends each later wait at once.
/// So make a new token for a new piece of work.
///
/// ```
/// # use redlatch_client as redlatch;
/// let token = redlatch::CancelToken::new();
/// let elsewhere = token.clone();
/// std::thread::spawn(move || elsewhere.cancel()).join().unwrap();
/// assert!(token.is_cancelled());
/// ```
#[derive(Clone, Default)]
pub struct CancelToken(Arc<Inner>);

#[derive(Default)]
struct Inner {
    cancelled: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl CancelToken {
    /// Returns a token that is not cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends every present and later wait with this token, with an error of kind [`Cancelled`].
    /// Returns at once. If a waiter was already granted its lock, that waiter takes the lock.
    ///
    /// [`Cancelled`]:
    /// https://docs.rs/redlatch/latest/redlatch/enum.ErrorKind.html#variant.Cancelled
    pub fn cancel(&self) {
        // Set the flag before reading the list. So a waiter that registers after the list was
        // copied sees the flag before it sleeps.
        self.0.cancelled.store(true, Ordering::SeqCst);
        let waiting = self.0.waiting.lock().clone();
        waiting.iter().for_each(Waker::wake);
    }

    /// Returns whether [`cancel`](Self::cancel) was called.
    #[must_use]
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken").field("cancelled", &self.is_cancelled()).finish()
    }
}

/// A waiter that a token wakes.
#[derive(Debug)]
pub struct Registration<'a> {
    token: &'a CancelToken,
    waker: Waker,
}

impl<'a> Registration<'a> {
    /// Makes a cancel wake `waker` until the registration is dropped.
    pub fn of(token: &'a CancelToken, waker: Waker) -> Self {
        token.0.waiting.lock().push(waker.clone());
        Self { token, waker }
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let mut waiting = self.token.0.waiting.lock();
        if let Some(at) = waiting.iter().position(|waker| waker.will_wake(&self.waker)) {
            waiting.swap_remove(at);
        }
    }
}
