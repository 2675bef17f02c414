//! The rights of a link's user that the link knows.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};

use redis::Value;

use crate::connection::{Channels, Command, RightsQuery};
use crate::sync::clock;

/// The rights that the user has, as known from replies, for one run of a server and one login.
#[derive(Default)]
pub(super) struct KnownRights {
    /// Whether the server has no access rights, so that no check is needed.
    is_open: bool,
    /// One bit for each query whose reply was "the user may use all names".
    all: u64,
    /// The checked names of queries whose reply was "the user may use only some names". Each number
    /// is the hash of such a query and a name. If there are too many numbers, all are forgotten,
    /// and the names are checked again.
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

    /// Returns the bytes of a command, and the query that must be sent with it, if any.
    pub(super) fn encoded<'a>(
        &mut self,
        command: &'a Command,
        channels: Channels,
    ) -> (Cow<'a, [u8]>, Option<SentRightsQuery>) {
        if command.logs_in() {
            self.logs_in();
        }
        if let Some(query) = self.query_for(command)
            && let Some(bytes) = command.to_rights_query(channels, &self.random_name())
        {
            // Send the query as text: it is sent once, so the server need not store it.
            return (bytes.into(), Some(SentRightsQuery { query, login: self.logins }));
        }
        (command.bytes_for(channels), None)
    }

    /// Returns the script's reply without the part that answers the query.
    pub(super) fn answered(
        &mut self,
        command: &Command,
        asked: Option<SentRightsQuery>,
        reply: Value,
    ) -> Value {
        let Some(SentRightsQuery { query, login }) = asked else { return reply };
        let parts = match reply {
            Value::Array(parts) => parts,
            Value::ServerError(_) => return reply,
            // A reply of another form belongs to another command.
            _ => return Value::Boolean(false),
        };
        let mut parts = parts.into_iter();
        let Some(Value::Int(all)) = parts.next() else { return Value::Boolean(false) };
        if login == self.logins {
            self.record(query, command, all != 0);
        }
        parts.next().unwrap_or(Value::Nil)
    }

    fn name(&self, query: &RightsQuery, name: &[u8]) -> u64 {
        self.hasher.hash_one((query.bit(), name))
    }

    /// Returns a random name, which only a pattern for all names matches.
    fn random_name(&self) -> String {
        format!("{:016x}", self.hasher.hash_one(clock::now()))
    }

    /// Returns the query that must be sent with the command, if any.
    fn query_for(&self, command: &Command) -> Option<&'static RightsQuery> {
        let query = command.rights_query()?;
        let is_known = self.all & query.bit() != 0
            || self.is_open
            || !self.names.is_empty()
                && command.names().all(|name| self.names.contains(&self.name(query, name)));
        (!is_known).then_some(query)
    }

    fn record(&mut self, query: &RightsQuery, command: &Command, all: bool) {
        if all {
            self.all |= query.bit();
            return;
        }
        if self.names.len() >= Self::MOST {
            self.names.clear();
        }
        for name in command.names() {
            self.names.insert(self.name(query, name));
        }
    }

    fn logs_in(&mut self) {
        self.all = 0;
        self.names.clear();
        self.logins += 1;
    }
}

/// A query that was sent with a command.
#[derive(Clone, Copy)]
pub(super) struct SentRightsQuery {
    query: &'static RightsQuery,
    login: u32,
}
