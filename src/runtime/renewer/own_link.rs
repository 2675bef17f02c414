//! The renewer's own connection to its server, which is opened again when it breaks. While no
//! connection can be opened, the renewer uses an open lane.
//!
//! Every command gets an outcome within a time limit. The limit depends on the shortest lease, and
//! grows after exchanges without a reply.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;
use redlatch_client::sync::Mutex;
use redlatch_client::{
    Command, Endpoint, Failure, Limit, Link, Node, Outcome, Posted, ReplyReceiver,
};

use crate::lease::schedule;
use crate::runtime::{Core, RESEND_TIMEOUT};

/// The maximum number of times that the time limit is doubled while the server does not reply. By
/// then the limit no longer depends on the shortest lease.
const MAX_DOUBLINGS: u32 = 20;

pub(super) struct OwnLink {
    core: Arc<Core>,
    pub(super) endpoint: Endpoint,
    link: Option<Link>,
    /// The number of exchanges in a row that got no reply.
    unanswered: u32,
    /// See [`Endpoint::credentials_generation`].
    credentials_generation: u64,
    /// The server, whose lanes are used if no connection can be opened.
    node: Arc<Node>,
}

impl OwnLink {
    /// Returns a link that is not open yet.
    pub(super) fn new(core: &Arc<Core>, node: &Arc<Node>) -> Self {
        let reply_wait = schedule::reply_wait(core.config.watchdog_timeout);
        let reply_wait = reply_wait.min(node.endpoint.response_timeout());
        let endpoint = node.endpoint.with_response_timeout(reply_wait);
        let credentials_generation = endpoint.credentials_generation();
        let (core, node) = (Arc::clone(core), Arc::clone(node));
        Self { core, endpoint, link: None, unanswered: 0, credentials_generation, node }
    }

    /// Opens a connection if there is none. Returns whether there is one now.
    pub(super) fn open(&mut self) -> bool {
        self.link().is_ok()
    }

    /// Closes the connection, so that the next exchange opens a new one.
    pub(super) fn close(&mut self) {
        self.link = None;
    }

    /// Tries to open a connection. Success ends an outage. After a failure, the next time limit is
    /// longer.
    pub(super) fn reconnect(&mut self) {
        match Link::open(&self.endpoint.with_response_timeout(self.reply_wait())) {
            Ok(link) => drop(self.link.get_or_insert(link)),
            Err(_) => self.unanswered = self.unanswered.saturating_add(1),
        }
    }

    /// Sends commands in one packet and reads their replies. The open connection may have been dead
    /// for a while: if it breaks without a reply, the commands are sent again over a new
    /// connection. The second result says whether the commands were sent twice. If they were, the
    /// first copies may have run, even if the second copies failed. `within`: the time limit for
    /// the replies, but never less than the time of a few round trips.
    pub(super) fn exchange(
        &mut self,
        commands: &[Command],
        within: Option<Duration>,
    ) -> (Vec<Outcome>, bool) {
        let outcomes = self.exchange_once(commands, within);
        let (outcomes, in_doubt) = match outcomes.first() {
            Some(Err(Failure::Reset(_))) => (self.exchange_once(commands, within), true),
            _ => (outcomes, false),
        };
        let is_lost = matches!(outcomes.first(), Some(Err(failure)) if failure.is_the_links());
        self.unanswered = if is_lost { self.unanswered.saturating_add(1) } else { 0 };
        let Some(cluster) = self.core.servers.cluster() else { return (outcomes, in_doubt) };
        if is_lost {
            // Another server may have the slots now: find it before the next exchange.
            cluster.refresh();
        }
        // All commands share one limit, because the caller gets their outcomes together.
        let ended = self.core.is_shut_down();
        let within = if ended { self.endpoint.response_timeout() } else { RESEND_TIMEOUT };
        let until = Instant::now() + within;
        let sent = commands.iter().zip(outcomes);
        let followed = |(command, outcome)| cluster.resend(command, outcome, until);
        (sent.map(followed).collect(), in_doubt)
    }

    /// Like [`exchange`](Self::exchange), but never sends the commands a second time.
    fn exchange_once(&mut self, commands: &[Command], within: Option<Duration>) -> Vec<Outcome> {
        let (begun, reply_wait) = (Instant::now(), self.reply_wait());
        match self.link() {
            Ok(link) => {
                let (receivers, replies) = replies_to(commands);
                let batch = commands.iter().cloned().zip(receivers);
                let batch = batch.map(|(command, receiver)| (command, receiver, true));
                let done = link.send(batch).and_then(|()| {
                    let within = within.map_or(reply_wait, |within| link.at_least(within));
                    link.read_awaited_within(within.min(reply_wait))
                });
                if done.is_err() || link.is_wrong_server() {
                    self.link = None;
                }
                // Every command has an outcome once the link was read or has failed.
                let taken = replies.iter().map(|reply| reply.lock().take());
                taken.map(|outcome| outcome.unwrap_or(Ok(Value::Nil))).collect()
            }
            Err(failure) => {
                // The limit includes the time of the failed attempt to connect. Otherwise one
                // exchange would wait twice for a server that does not answer.
                let within = within.map_or(reply_wait, |it| it.max(self.core.round_trip() * 4));
                self.exchange_over_lanes(commands, begun + within.min(reply_wait), &failure)
            }
        }
    }

    /// Sends the commands over open lanes, because no connection can be opened (`failure`). Open
    /// lanes may still work if the server is full, if its password has changed, or if this process
    /// can open no more files.
    fn exchange_over_lanes(
        &self,
        commands: &[Command],
        until: Instant,
        failure: &Failure,
    ) -> Vec<Outcome> {
        let _limited = Limit::set(Limit::new(Some(until), None));
        for lane in self.node.lanes().iter().filter(|lane| lane.is_open()) {
            if Instant::now() >= until {
                break;
            }
            let (receivers, replies) = replies_to(commands);
            for (command, receiver) in commands.iter().zip(receivers) {
                if lane.post(command.clone(), receiver) == Posted::NeedsService {
                    self.core.watchdog.service(lane);
                }
            }
            // The reply to a PING comes after all earlier replies. If the server did not know a
            // script, the script was sent again after the PING, and its reply comes before the
            // reply to the next PING.
            let ping = Command::plain(&[b"PING"]);
            let mut lost = None;
            while lost.is_none() && replies.iter().any(|reply| reply.lock().is_none()) {
                lost = lane.call_once(&ping).err().filter(Failure::is_the_links);
            }
            let cause = || lost.as_ref().unwrap_or(failure).cause().clone();
            let taken = replies.iter().map(|reply| reply.lock().take());
            // A command without a reply may still run.
            let outcomes: Vec<_> =
                taken.map(|it| it.unwrap_or_else(|| Err(Failure::TimedOut(cause())))).collect();
            // If no command was sent, the connection of this lane is broken, too: try the next
            // lane.
            if !outcomes.iter().all(|outcome| matches!(outcome, Err(Failure::Unsent(_)))) {
                return outcomes;
            }
        }
        commands.iter().map(|_| Err(failure.clone())).collect()
    }

    /// Returns how long an exchange waits for its replies. The renewal of the shortest lease may be
    /// in this exchange, or may wait behind it. After two exchanges without a reply, the shortest
    /// lease has ended anyway. The time then grows, so that longer leases are renewed even at a
    /// slow server.
    fn reply_wait(&self) -> Duration {
        let longest = self.endpoint.response_timeout();
        let reply_wait =
            self.core.shortest_reply_wait().max(self.core.round_trip().saturating_mul(4));
        let doubled = 1_u32 << self.unanswered.saturating_sub(1).min(MAX_DOUBLINGS);
        reply_wait.saturating_mul(doubled).min(longest)
    }

    fn link(&mut self) -> Result<&mut Link, Failure> {
        let reply_wait = self.reply_wait();
        let generation = self.endpoint.credentials_generation();
        if std::mem::replace(&mut self.credentials_generation, generation) != generation {
            // The connection was opened with credentials that expire soon: open a new connection.
            self.link = None;
        }
        self.link.take_if(|link| !link.check_alive());
        match &mut self.link {
            Some(link) => Ok(link),
            none => Ok(none.insert(Link::open(&self.endpoint.with_response_timeout(reply_wait))?)),
        }
    }
}

type ReplySlot = Arc<Mutex<Option<Outcome>>>;

/// Returns a receiver for each command, and the slot in which the receiver stores the reply.
fn replies_to(commands: &[Command]) -> (Vec<Arc<dyn ReplyReceiver>>, Vec<ReplySlot>) {
    let reply = |_: &Command| {
        let reply = ReplySlot::default();
        let receiver = Arc::clone(&reply);
        let receiver = move |outcome| *receiver.lock() = Some(outcome);
        (Arc::new(receiver) as Arc<dyn ReplyReceiver>, reply)
    };
    commands.iter().map(reply).unzip()
}

#[cfg(all(test, testkit))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io;

    use redlatch_client::Cause;
    use redlatch_testkit::Server;

    use super::*;
    use crate::config::ClientBuilder;
    use crate::runtime::Session;

    const TIMEOUT: Duration = Duration::from_secs(20);
    const LEASE: Duration = Duration::from_secs(60);

    #[test]
    fn over_callers_lanes_commands_are_sent_together_and_awaited_until_a_time() {
        let server = Server::start().unwrap();
        let config = ClientBuilder::new(&server.url()).response_timeout(LEASE).config;
        let session = Session::open(&server.url(), config, |_, _, _| {}).unwrap();
        let core = session.core();
        let own = OwnLink::new(core, &core.servers.first());
        let echo = |text: &'static [u8]| Command::plain(&[b"ECHO", text]);
        let commands = [echo(b"one"), echo(b"two"), echo(b"three")];
        let none = io::Error::other("none can be had");
        let none = Failure::Unsent(Cause::new(none, own.endpoint.health()));
        let outcomes = own.exchange_over_lanes(&commands, Instant::now() + TIMEOUT, &none);
        let replies = ["one", "two", "three"].map(|it| Value::BulkString(it.into()));
        assert_eq!(outcomes.into_iter().map(Result::unwrap).collect::<Vec<_>>(), replies);
        server.pause();
        let begun = Instant::now();
        let until = begun + Duration::from_millis(100);
        let outcomes = own.exchange_over_lanes(&commands, until, &none);
        assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
        assert!(outcomes.iter().all(|it| matches!(it, Err(Failure::TimedOut(_)))), "{outcomes:?}");
        server.resume();
        // Each caller gets its own reply.
        for lane in core.servers.first().lanes().iter().filter(|lane| lane.is_open()) {
            assert_eq!(lane.call_once(&echo(b"last")).unwrap(), Value::BulkString("last".into()));
        }
    }
}
