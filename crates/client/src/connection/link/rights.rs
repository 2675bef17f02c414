//! The rights of a link's user that the link knows.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};

use redis::Value;

use crate::connection::{Channels, Command, RightsQuestion};
use crate::sync::clock;

/// The rights that the user has, as known from replies, for one run of a server and one login.
#[derive(Default)]
pub(super) struct KnownRights {
    /// Whether the server has no access rights, so that no check is needed.
    is_open: bool,
    /// One bit for each question whose reply was "the user may use all names".
    all: u64,
    /// Each number is the hash of a question whose reply was "the user may use only some names",
    /// and of a name that was checked. If there are too many numbers, all are forgotten and the
    /// names are checked again.
    names: HashSet<u64>,
    hasher: RandomState,
    /// The number of logins over the connection. A reply is valid only for its own login.
    logins: u32,
}

impl KnownRights {
    /// The maximum number of names that are kept, with about 16 bytes each.
    const MOST: usize = 10_000;

    pub(super) fn new(is_open: bool) -> Self {
        Self { is_open, ..Self::default() }
    }

    /// Returns the bytes of a command, and its question if it must carry one.
    pub(super) fn encoded<'a>(
        &mut self,
        command: &'a Command,
        channels: Channels,
    ) -> (Cow<'a, [u8]>, Option<SentQuestion>) {
        if command.logs_in() {
            self.logs_in();
        }
        if let Some(question) = self.asks(command)
            && let Some(bytes) = command.to_question(channels, &self.random_name())
        {
            // The question is sent as text: it is asked once, so the server does not have to
            // remember it.
            return (bytes.into(), Some(SentQuestion { question, login: self.logins }));
        }
        (command.bytes_for(channels), None)
    }

    /// Returns the script's reply without the part for the question that was sent with it.
    pub(super) fn answered(
        &mut self,
        command: &Command,
        asked: Option<SentQuestion>,
        reply: Value,
    ) -> Value {
        let Some(SentQuestion { question, login }) = asked else { return reply };
        let parts = match reply {
            Value::Array(parts) => parts,
            Value::ServerError(_) => return reply,
            // A reply of another form belongs to another command.
            _ => return Value::Boolean(false),
        };
        let mut parts = parts.into_iter();
        let Some(Value::Int(all)) = parts.next() else { return Value::Boolean(false) };
        if login == self.logins {
            self.told(question, command, all != 0);
        }
        parts.next().unwrap_or(Value::Nil)
    }

    fn name(&self, question: &RightsQuestion, name: &[u8]) -> u64 {
        self.hasher.hash_one((question.bit(), name))
    }

    /// Returns a random name, which only a pattern for all names matches.
    fn random_name(&self) -> String {
        format!("{:016x}", self.hasher.hash_one(clock::now()))
    }

    /// Returns the question that the command must carry, if it must carry one.
    fn asks(&self, command: &Command) -> Option<&'static RightsQuestion> {
        let question = command.question()?;
        let is_known = self.all & question.bit() != 0
            || self.is_open
            || !self.names.is_empty()
                && command.names().all(|name| self.names.contains(&self.name(question, name)));
        (!is_known).then_some(question)
    }

    fn told(&mut self, question: &RightsQuestion, command: &Command, all: bool) {
        if all {
            self.all |= question.bit();
            return;
        }
        if self.names.len() >= Self::MOST {
            self.names.clear();
        }
        for name in command.names() {
            self.names.insert(self.name(question, name));
        }
    }

    fn logs_in(&mut self) {
        self.all = 0;
        self.names.clear();
        self.logins += 1;
    }
}

/// A question that was sent with a command.
#[derive(Clone, Copy)]
pub(super) struct SentQuestion {
    question: &'static RightsQuestion,
    login: u32,
}
