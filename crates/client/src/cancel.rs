//! Cancel tokens, which end a wait from another thread.

use std::fmt;
use std::sync::Arc;

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, Waker, is_forked};

/// Cancels waits from another thread, like Java's `Thread.interrupt`.
///
/// All clones are the same token. A cancelled token remains cancelled, and ends each later wait at
/// once. Make a new token for each piece of work.
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
    linked: Mutex<Vec<CancelToken>>,
}

impl CancelToken {
    /// Returns a token that is not cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends every present and later wait with this token, with an error of kind [`Cancelled`]. Does
    /// not block. If a waiter has already been granted its lock, it takes the lock.
    ///
    /// [`Cancelled`]:
    /// https://docs.rs/redlatch/latest/redlatch/enum.ErrorKind.html#variant.Cancelled
    pub fn cancel(&self) {
        // Set the flag before reading the lists: a waiter that registers after its list was copied
        // must see the flag before it sleeps.
        self.0.cancelled.store(true, Ordering::SeqCst);
        let waiting = self.0.waiting.lock().clone();
        waiting.iter().for_each(Waker::wake);
        let linked = self.0.linked.lock().clone();
        linked.iter().for_each(Self::cancel);
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

/// The registration of a waiter. A cancel wakes this waiter.
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

/// A link from a token to a child token. A cancel of the token also cancels the child.
#[derive(Debug)]
pub struct Linked<'a> {
    token: &'a CancelToken,
    child: CancelToken,
}

impl<'a> Linked<'a> {
    /// Makes a cancel of `token` also cancel `child`, until the link is dropped. If `token` is
    /// already cancelled, cancels `child` at once.
    pub fn of(token: &'a CancelToken, child: &CancelToken) -> Self {
        token.0.linked.lock().push(child.clone());
        // Read the flag only after the child was added: see `cancel`.
        if token.is_cancelled() {
            child.cancel();
        }
        Self { token, child: child.clone() }
    }
}

impl Drop for Linked<'_> {
    fn drop(&mut self) {
        // In a forked child, a thread of the parent may have left the mutex locked.
        if is_forked() {
            return;
        }
        let mut linked = self.token.0.linked.lock();
        if let Some(at) = linked.iter().position(|it| Arc::ptr_eq(&it.0, &self.child.0)) {
            linked.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_reaches_a_linked_token_until_the_link_is_dropped() {
        let (token, [first, second, third]) =
            (CancelToken::new(), [(); 3].map(|()| CancelToken::new()));
        let link = Linked::of(&token, &first);
        drop(Linked::of(&token, &second));
        first.cancel();
        assert!(!token.is_cancelled(), "a cancel goes only one way");
        token.cancel();
        assert!(!second.is_cancelled());
        drop(link);
        let _late = Linked::of(&token, &third);
        assert!(third.is_cancelled());
        assert_eq!(token.0.linked.lock().len(), 1);
    }
}
