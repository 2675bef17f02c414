//! The owners of this process that messages may name.

use std::fmt;
use std::sync::{Arc, Weak};

use redlatch_client::sync::is_forked;

use crate::runtime::{Core, Message, Recipient};

/// An owner that messages may name while it waits, and the reader of those messages. It stays
/// registered while it holds, if it [may have stood](super::exchanges::Exchanges::may_stand) in a
/// queue: if a request found its grant, the message of that grant comes late, and must not be given
/// back.
pub(crate) struct Registered<R: ?Sized = dyn Recipient> {
    core: Arc<Core>,
    owner: u64,
    pub(crate) recipient: R,
}

impl<R: Recipient + 'static> Registered<R> {
    /// From here on messages that name this owner reach `recipient`.
    pub(crate) fn new(core: &Arc<Core>, owner: u64, recipient: R) -> Arc<Self> {
        let registered = Arc::new(Self { core: Arc::clone(core), owner, recipient });
        let recipient: Weak<dyn Recipient> = Arc::<Self>::downgrade(&registered);
        core.recipients.register(owner, recipient);
        registered
    }
}

impl<R: Recipient + ?Sized> Recipient for Registered<R> {
    fn told(&self, news: &Message<'_>) {
        self.recipient.told(news);
    }
}

impl<R: ?Sized> Drop for Registered<R> {
    fn drop(&mut self) {
        if !is_forked() {
            self.core.recipients.remove(self.owner);
        }
    }
}

impl<R: ?Sized> fmt::Debug for Registered<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registered({})", self.owner)
    }
}
