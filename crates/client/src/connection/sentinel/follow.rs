//! How the client notices a new master, with or without a message. The thread `redlatch-follow`
//! runs this code.
//!
//! The thread listens to one Sentinel. This Sentinel may be cut off from the other Sentinels, so
//! the thread also asks another Sentinel every few seconds. A caller's thread cannot do this work:
//! it may be in a long read from the old master, which only the news of the new master ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use redis::{PushKind, RedisResult, Value};

use super::Sentinels;
use super::ask::text;
use crate::connection::Command;
use crate::connection::host_port::HostPort;

/// The channels for changes of the master. Sentinels publish on the first channel when a failover
/// is over. The leading Sentinel publishes on the second channel when the new server becomes a
/// master, which is up to 1 s earlier.
const CHANNELS: [&[u8]; 2] = [b"+switch-master", b"+promoted-slave"];
/// After a silence of this length the thread sends a PING to the Sentinel. The thread waits equally
/// long for the reply.
const PING_AFTER: Duration = Duration::from_secs(1);
/// The time between two requests to another Sentinel for the master.
const CHECK_INTERVAL: Duration = Duration::from_secs(3);
/// The time limit of such a request. Meanwhile the thread reads no message.
const CHECK_TIMEOUT: Duration = Duration::from_millis(500);
/// The first pause before the thread tries the next Sentinel, after it could not listen to one.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(1);

impl Sentinels {
    /// The body of the thread, until [`end`](Self::end).
    pub(in crate::connection) fn follow(&self) {
        let (mut at, mut retry) = (0, FIRST_RETRY);
        loop {
            let Some(host_port) = self.nth(at) else { return };
            // When the connection ends, the thread continues with the next Sentinel of the present
            // list. This must also happen after a panic in the callback: without this thread the
            // client would notice no failover.
            let listened = catch_unwind(AssertUnwindSafe(|| self.listen(&host_port, &mut at)));
            if matches!(listened, Ok(Ok(()))) {
                retry = FIRST_RETRY;
            }
            at += 1;
            if !self.rest(retry) {
                return;
            }
            retry = (retry * 2).min(LAST_RETRY);
        }
    }

    /// The Sentinel at this index, modulo their number. Returns `None` if the client has ended.
    fn nth(&self, at: usize) -> Option<HostPort> {
        let state = self.state.lock();
        if state.ended {
            return None;
        }
        state.sentinels.get(at % state.sentinels.len().max(1)).cloned()
    }

    /// Sleeps. Returns `false` if the client has ended.
    fn rest(&self, sleep: Duration) -> bool {
        let until = Instant::now() + sleep;
        let mut state = self.state.lock();
        while !state.ended && Instant::now() < until {
            self.changed.wait_until(&mut state, until);
        }
        !state.ended
    }

    /// Listens to the Sentinel at this address until the connection ends. Returns `Ok` if it could
    /// listen for some time.
    fn listen(&self, host_port: &HostPort, at: &mut usize) -> RedisResult<()> {
        let within = PING_AFTER.min(self.connect_timeout);
        let until = Instant::now() + within;
        let mut connection = self.connect(host_port, until)?;
        let mut state = self.state.lock();
        if state.ended {
            return Ok(());
        }
        state.listening = Some(connection.closer());
        drop(state);
        let [over, promoted] = CHANNELS;
        connection.send_until(Command::plain(&[b"SUBSCRIBE", over, promoted]).bytes(), until)?;
        if let Value::ServerError(_) = connection.receive_any_until(until)? {
            self.health.report_missing(NO_SWITCH);
            return self.check_only(at);
        }
        // Read the reply to the second subscription.
        connection.receive_any_until(until)?;
        // Ask once, because the master may have changed before the subscription.
        self.check(host_port, within);
        let (mut checked, mut asked) = (Instant::now(), false);
        loop {
            match connection.receive_any_until(Instant::now() + PING_AFTER) {
                Ok(message) => {
                    asked = false;
                    if self.is_switch(message) {
                        self.check(host_port, CHECK_TIMEOUT.max(within));
                    }
                }
                Err(error) if error.is_timeout() && !asked => {
                    let ping = Command::plain(&[b"PING"]);
                    connection.send_until(ping.bytes(), Instant::now() + PING_AFTER)?;
                    asked = true;
                }
                // The connection has broken, or the Sentinel is silent.
                Err(_) => return Ok(()),
            }
            if self.state.lock().ended {
                return Ok(());
            }
            if checked.elapsed() >= CHECK_INTERVAL {
                *at += 1;
                if let Some(other) = self.nth(*at) {
                    self.check(&other, CHECK_TIMEOUT);
                }
                checked = Instant::now();
            }
        }
    }

    /// Like [`listen`](Self::listen), for a user that may not subscribe: asks every few seconds.
    fn check_only(&self, at: &mut usize) -> RedisResult<()> {
        while self.rest(PING_AFTER) {
            *at += 1;
            if let Some(host_port) = self.nth(*at) {
                self.check(&host_port, CHECK_TIMEOUT);
            }
        }
        Ok(())
    }

    /// Asks the Sentinel at this address for the master. Stores the answer, if there is one.
    fn check(&self, host_port: &HostPort, within: Duration) {
        if let Ok(answer) = self.ask(host_port, within) {
            self.learn(host_port, &answer, false);
        }
    }

    /// Whether a message says that this service has another master now. The thread then asks for
    /// the master, because the message has no epoch.
    fn is_switch(&self, message: Value) -> bool {
        let last = match message {
            Value::Array(parts) => parts.into_iter().last(),
            Value::Push { kind: PushKind::Message, data } => data.into_iter().last(),
            _ => None,
        };
        let said = last.and_then(text).unwrap_or_default();
        // The text is "name old new" or "slave … @ name old", with hosts and ports. (A name has no
        // space.)
        let words: Vec<_> = said.split(' ').collect();
        words.first() == Some(&&*self.service)
            || words.windows(2).any(|it| it == ["@", &self.service])
    }
}

const NO_SWITCH: &str = "its Sentinels refuse SUBSCRIBE, so the client notices a failover up to a \
                         second later: allow SUBSCRIBE on +switch-master and +promoted-slave";
