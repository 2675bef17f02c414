//! The owners of this process that messages may name.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::runtime::{Core, Message, Recipient};

/// An owner that messages may name while it waits, and the reader of those messages. It stays
/// expected while it holds, if it [may have stood](Acquisition::may_stand) in a queue: if a request
/// found its grant, the message of that grant comes late, and must not be given back.
pub(crate) struct Expected<A: ?Sized = dyn Recipient> {
    core: Arc<Core>,
    owner: u64,
    pub(crate) who: A,
}

impl<A: Recipient + 'static> Expected<A> {
    /// From here on messages that name this owner reach `who`.
    pub(crate) fn new(core: &Arc<Core>, owner: u64, who: A) -> Arc<Self> {
        let expected = Arc::new(Self { core: Arc::clone(core), owner, who });
        let recipient: Weak<dyn Recipient> = Arc::<Self>::downgrade(&expected);
        core.recipients.expect(owner, recipient);
        expected
    }
}

impl<A: Recipient + ?Sized> Recipient for Expected<A> {
    fn told(&self, news: &Message<'_>) {
        self.who.told(news);
    }
}

impl<A: ?Sized> Drop for Expected<A> {
    fn drop(&mut self) {
        if !self.core.is_forked() {
            self.core.recipients.dismiss(self.owner);
        }
    }
}

impl<A: ?Sized> fmt::Debug for Expected<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expected({})", self.owner)
    }
}
