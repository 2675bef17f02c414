//! Requests that have no owner to ask: each carries a number and is applied once.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::Value;

use super::{Rights, Trouble, call_again, millis};
use crate::connection::{Command, Lane, Script, decimal};
use crate::sync::Mutex;

/// How long the server remembers a client's requests to a name after the last one. A copy that
/// comes later than this is applied again.
const MEMORY: Duration = Duration::from_secs(300);

/// The numbers of one client's requests to one name.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Those whose outcome is not known yet: a copy may still be sent.
    open: Mutex<BTreeSet<u64>>,
}

/// The number of one request, with the lowest one that was open when it was given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    number: u64,
    floor: u64,
}

impl Requests {
    /// Opens a request. `next` gives a number that the client never uses twice: drawn under the
    /// mutex, or a later one could raise the floor above it first.
    pub(crate) fn open(&self, next: impl FnOnce() -> u64) -> Ticket {
        let mut open = self.open.lock();
        let number = next();
        open.insert(number);
        Ticket { number, floor: open.first().copied().unwrap_or(number) }
    }

    /// No copy of it will be sent any more.
    pub(crate) fn close(&self, ticket: Ticket) {
        self.open.lock().remove(&ticket.number);
    }

    /// How many are open: the server's memory of a client grows with them.
    pub(crate) fn count(&self) -> usize {
        self.open.lock().len()
    }
}

/// A request that is applied once, however often it is sent.
#[derive(Debug)]
pub(crate) struct Once<'a> {
    pub(crate) script: &'static Script,
    pub(crate) rights: Rights,
    pub(crate) key: &'a str,
    /// Where the server remembers this client's requests.
    pub(crate) requests: &'a str,
    pub(crate) ticket: Ticket,
    pub(crate) arguments: &'a [&'a [u8]],
}

impl Once<'_> {
    /// The request as it is sent first, or as a copy.
    pub(crate) fn command(&self, copy: bool) -> Command {
        let Ticket { number, floor } = self.ticket;
        let mut digits = [[0; 20]; 3];
        let [first, second, third] = &mut digits;
        let mut arguments: Vec<&[u8]> = Vec::with_capacity(4 + self.arguments.len());
        arguments.push(decimal(number, first));
        arguments.push(decimal(floor, second));
        arguments.push(millis(MEMORY, third));
        arguments.push(if copy { b"1" } else { b"0" });
        arguments.extend_from_slice(self.arguments);
        let keys = [self.key.as_bytes(), self.requests.as_bytes()];
        Command::script(self.script, &keys, &arguments)
    }

    /// Sends the request and waits for its reply; sends a copy if the connection breaks.
    pub(crate) fn call(&self, lane: &Lane) -> Result<Value, Trouble> {
        call_again(lane, &self.command(false), self.rights, || self.command(true))
            .map(|(reply, _)| reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_the_lowest_open_request() {
        let requests = Requests::default();
        let first = requests.open(|| 7);
        let second = requests.open(|| 8);
        assert_eq!((first.number, first.floor), (7, 7));
        assert_eq!((second.number, second.floor), (8, 7));
        requests.close(first);
        assert_eq!(requests.open(|| 12).floor, 8);
        requests.close(second);
        assert_eq!(requests.count(), 1);
        assert_eq!(requests.open(|| 13).floor, 12);
    }
}
