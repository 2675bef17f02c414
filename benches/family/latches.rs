//! One thread's handle of a latch, of redlatch or of the plain implementation.

use redlatch::{Client, CountDownLatch};
use redlatch_testkit::{PlainClient, PlainLatchHandle};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Ours,
}

/// The connection of one process.
pub(crate) enum Connected {
    Plain(PlainClient),
    Ours(Client),
}

pub(crate) enum Latch {
    Plain(Box<PlainLatchHandle>),
    Ours(CountDownLatch),
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Plain, Self::Ours];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain latch",
            Self::Ours => "latch",
        }
    }

    pub(crate) fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.name() == name).unwrap()
    }

    pub(crate) fn connect(self, url: &str) -> Connected {
        match self {
            Self::Plain => Connected::Plain(PlainClient::connect(url).unwrap()),
            Self::Ours => Connected::Ours(Client::connect(url).unwrap()),
        }
    }
}

impl Connected {
    pub(crate) fn latch(&self, name: &str) -> Latch {
        match self {
            Self::Plain(client) => Latch::Plain(Box::new(client.latch(name).handle().unwrap())),
            Self::Ours(client) => Latch::Ours(client.count_down_latch(name)),
        }
    }
}

impl Latch {
    /// Closes the latch by setting the count to one.
    pub(crate) fn close(&mut self) {
        let closed = match self {
            Self::Plain(latch) => latch.try_set_count(1).unwrap(),
            Self::Ours(latch) => latch.try_set_count(1).unwrap(),
        };
        assert!(closed, "it was open");
    }

    /// Opens the latch.
    pub(crate) fn count_down(&mut self) {
        match self {
            Self::Plain(latch) => latch.count_down().unwrap(),
            Self::Ours(latch) => latch.count_down().unwrap(),
        }
    }

    pub(crate) fn wait(&mut self) {
        match self {
            Self::Plain(latch) => latch.wait().unwrap(),
            Self::Ours(latch) => latch.wait().unwrap(),
        }
    }
}
