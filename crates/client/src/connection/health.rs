//! Whether the server can be reached. The client logs one line when an outage begins, and one line
//! when it ends.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::outage::Outage;
use crate::sync::Mutex;

/// One server's health, which all connections of a client share.
///
/// An outage begins when a connection cannot be opened, or when a reply does not arrive in time.
/// All threads and connections that notice the outage share it. The outage ends at the first reply
/// to a command that was sent after the outage began.
///
/// Two failures are not an outage. First, a connection may break: the thread that opens the next
/// connection then finds out whether there is an outage. Second, a server may refuse new
/// connections (because it is full, or its password was changed) but still serve the open
/// connections. The client logs this refusal separately, until the next connection opens.
///
/// If several clients of a process notice the same outage, only one of them reports it. During an
/// outage in which no thread sends commands, the client tries to open a connection every few
/// seconds. So the client always notices and reports the end of the outage.
pub struct ServerHealth {
    address: Mutex<Arc<str>>,
    /// A copy of "the state is `Out`" that is read without the mutex.
    out: AtomicBool,
    state: Mutex<Reach>,
    /// Whether a connection was ever opened.
    ever_opened: AtomicBool,
    /// The server's refusal of new connections, if it refuses them.
    refuses: Mutex<Option<Outage>>,
    /// The missing rights and features that have been reported. Each is reported once.
    lacks: Mutex<Vec<&'static str>>,
    callback: OnceLock<Box<dyn Fn(HealthReport) + Send + Sync>>,
    /// Whether the client has ended.
    ended: AtomicBool,
}

enum Reach {
    /// The server can be reached. The time is the end of the last outage, or `None` if there was
    /// none.
    Works(Option<Instant>),
    /// The server has been out of reach since this time, at which the client noticed the outage.
    Out(Instant, Noted),
}

/// Whether an outage was reported by this client or by another client of the process.
enum Noted {
    NotYet,
    Began(Outage),
    /// The end of the outage was reported, too, so no thread checks for it.
    Ended,
}

/// A change of a server's health, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthReport {
    /// The address of the server or of the new master, or the host's name that now leads to another
    /// server.
    pub address: Arc<str>,
    /// What has happened.
    pub event: ServerEvent,
}

/// What has happened to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// An outage begins, with this error.
    Out(String),
    /// The outage is over, after this time.
    Back(Duration),
    /// The server refuses new connections, with this error.
    Refuses(String),
    /// The server accepts connections again, after this time.
    LetsIn(Duration),
    /// The client no longer checks for the end of the outage. The fields are the outage's length so
    /// far, and the reason.
    GivenUp(Duration, &'static str),
    /// Another server is the master now. The field is the address of the old master.
    Moved(Arc<str>),
    /// The host's name leads to another server now.
    Renamed,
    /// A right is missing. The text names the right and the effect.
    Lacks(&'static str),
    /// An optional right or feature is missing.
    Without(&'static str),
}

const NO_MESSAGES: &str = "it refuses the message of a release (`PUBLISH` is not allowed, or not \
                           on that channel): waiters in other processes find out when they ask, \
                           seconds later";

const NO_PUBLIC_MESSAGE: &str = "it refuses the public message that a lock is free (`PUBLISH` is not \
                                 allowed on that lock's channel): a client of Redisson's that \
                                 waits for the lock sleeps until the end of the lease that it \
                                 knows";

impl ServerHealth {
    /// Returns the health of the server at `address`, which must contain no user and no password.
    pub(crate) fn new(address: &str) -> Self {
        let address = Mutex::new(address.into());
        let (out, state) = (AtomicBool::new(false), Mutex::new(Reach::Works(None)));
        let (refuses, lacks) = (Mutex::new(None), Mutex::default());
        let (ever_opened, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { address, out, state, ever_opened, refuses, lacks, callback: OnceLock::new(), ended }
    }

    /// Returns the server's address for errors and the log.
    pub fn address(&self) -> Arc<str> {
        Arc::clone(&self.address.lock())
    }

    /// Notes that another server replaces this server. `first` says whether there was no server
    /// before.
    pub(super) fn record_move(&self, address: &str, first: bool) {
        let address: Arc<str> = address.into();
        let from = std::mem::replace(&mut *self.address.lock(), Arc::clone(&address));
        if !first {
            self.report(ServerEvent::Moved(from));
        }
    }

    /// Notes that the host's name leads to another server now.
    pub(super) fn record_rename(&self) {
        self.report(ServerEvent::Renamed);
    }

    /// Reports that the client works without a right or feature that it needs.
    pub(super) fn report_missing(&self, what: &'static str) {
        self.report_lack(what, ServerEvent::Lacks);
    }

    /// Like [`report_missing`](Self::report_missing), for an optional right or feature.
    pub(crate) fn report_missing_option(&self, what: &'static str) {
        self.report_lack(what, ServerEvent::Without);
    }

    /// Reports that the server refuses to publish, so waiters receive no message at a release.
    pub fn report_publish_missing(&self) {
        self.report_missing(NO_MESSAGES);
    }

    /// Like [`report_publish_missing`](Self::report_publish_missing), for a message that only other
    /// libraries need.
    pub fn report_public_message_missing(&self) {
        self.report_missing(NO_PUBLIC_MESSAGE);
    }

    fn report_lack(&self, what: &'static str, event: fn(&'static str) -> ServerEvent) {
        let mut lacks = self.lacks.lock();
        if !lacks.contains(&what) {
            lacks.push(what);
            // If there is no callback yet, `on_report` reports the event later.
            self.report(event(what));
        }
    }

    /// Sets the callback for reports. The callback is called under the mutex that keeps the reports
    /// in order, so it may only add the report to a queue.
    pub fn on_report(&self, callback: impl Fn(HealthReport) + Send + Sync + 'static) {
        let lacks = self.lacks.lock();
        if self.callback.set(Box::new(callback)).is_ok() {
            lacks.iter().for_each(|&what| self.report(ServerEvent::Lacks(what)));
        }
    }

    /// Notes a failed attempt that began at `begun`: no connection could be opened, or the server
    /// did not answer in time.
    pub(crate) fn record_failure(&self, begun: Instant, cause: &dyn fmt::Display) {
        let mut state = self.state.lock();
        // An attempt that began before the last outage ended does not show a new outage.
        if let Reach::Works(since) = *state
            && since.is_none_or(|since| begun >= since)
        {
            *state = Reach::Out(Instant::now(), Noted::NotYet);
            self.out.store(true, Ordering::Release);
        }
        if let Reach::Out(_, noted @ Noted::NotYet) = &mut *state
            && let Some((outage, is_first)) = self.notice(&self.address(), begun)
        {
            *noted = Noted::Began(outage);
            is_first.then(|| self.report(ServerEvent::Out(cause.to_string())));
        }
    }

    /// Begins an outage. The `bool` says whether this client reports the outage. A client that
    /// could not report the end does not report the beginning either.
    fn notice(&self, what: &str, begun: Instant) -> Option<(Outage, bool)> {
        let can_report = self.callback.get().is_some() && !self.ended.load(Ordering::Acquire);
        can_report.then(|| Outage::notice(what, begun)).flatten()
    }

    /// Notes that the server answered a command that was sent at `sent`. If there is no outage,
    /// only reads a flag.
    pub(crate) fn record_reply(&self, sent: Instant) {
        if !self.is_out() {
            return;
        }
        let mut state = self.state.lock();
        // A late reply to a command that was sent before the outage does not end it.
        if let Reach::Out(began, _) = *state
            && sent >= began
        {
            let was = std::mem::replace(&mut *state, Reach::Works(Some(Instant::now())));
            self.out.store(false, Ordering::Release);
            was.end().inspect(|&after| self.report(ServerEvent::Back(after)));
        }
    }

    /// Notes that the server refused a new connection.
    pub(crate) fn record_refusal(&self, cause: &dyn fmt::Display) {
        let mut refuses = self.refuses.lock();
        if refuses.is_none() {
            let cause = cause.to_string();
            // The error's text is a part of the outage's key, because two clients may have
            // different reasons: a wrong password, and a full server.
            let what = format!("{}: {cause}", self.address());
            let Some((outage, is_first)) = self.notice(&what, Instant::now()) else { return };
            *refuses = Some(outage);
            is_first.then(|| self.report(ServerEvent::Refuses(cause)));
        }
    }

    /// Notes that no thread checks for the end of an outage any longer.
    pub fn give_up(&self, why: &'static str) {
        let refused = self.refuses.lock().take().and_then(Outage::end);
        let mut state = self.state.lock();
        let out = match *state {
            Reach::Out(began, _) => {
                std::mem::replace(&mut *state, Reach::Out(began, Noted::Ended)).end()
            }
            Reach::Works(_) => None,
        };
        for after in refused.into_iter().chain(out) {
            self.report(ServerEvent::GivenUp(after, why));
        }
    }

    /// Notes that the client ends.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.give_up("the client has ended");
    }

    /// Whether a thread must check for the end of an outage or of a refusal.
    pub fn needs_check(&self) -> bool {
        self.is_out() || self.refuses.lock().is_some()
    }

    /// Notes that an attempt that began at `begun` has opened a connection.
    pub(crate) fn record_open(&self, begun: Instant) {
        self.ever_opened.store(true, Ordering::Relaxed);
        let mut refuses = self.refuses.lock();
        if let Some(after) = refuses.take().and_then(Outage::end) {
            self.report(ServerEvent::LetsIn(after));
        }
        drop(refuses);
        self.record_reply(begun);
    }

    /// Whether a connection was ever opened.
    pub(crate) fn was_ever_opened(&self) -> bool {
        self.ever_opened.load(Ordering::Relaxed)
    }

    /// Whether there is an outage, as far as this client has noticed.
    pub fn is_out(&self) -> bool {
        self.out.load(Ordering::Acquire)
    }

    fn report(&self, event: ServerEvent) {
        if let Some(callback) = self.callback.get() {
            callback(HealthReport { address: self.address(), event });
        }
    }
}

impl Reach {
    /// Returns the length of the outage, if this client reports its end.
    fn end(self) -> Option<Duration> {
        match self {
            Self::Out(_, Noted::Began(outage)) => outage.end(),
            _ => None,
        }
    }
}

impl HealthReport {
    /// Returns the level of the event's log line.
    pub fn level(&self) -> log::Level {
        use ServerEvent::{Back, GivenUp, Lacks, LetsIn, Moved, Out, Refuses, Renamed, Without};

        match self.event {
            Out(_) | Refuses(_) | Moved(_) | Renamed | Lacks(_) => log::Level::Warn,
            Back(_) | LetsIn(_) | GivenUp(..) | Without(_) => log::Level::Info,
        }
    }
}

impl fmt::Display for HealthReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, event } = self;
        match event {
            ServerEvent::Out(cause) => {
                write!(f, "the server at {address} cannot be reached or does not answer: {cause}")
            }
            ServerEvent::Back(after) => {
                let after = after.as_secs_f64();
                write!(f, "the server at {address} answers again, after {after:.1} s")
            }
            ServerEvent::Refuses(cause) => {
                write!(f, "the server at {address} accepts no more connections: {cause}")
            }
            ServerEvent::LetsIn(after) => {
                let after = after.as_secs_f64();
                write!(f, "the server at {address} accepts connections again, after {after:.1} s")
            }
            ServerEvent::GivenUp(after, why) => {
                let after = after.as_secs_f64();
                write!(
                    f,
                    "the client no longer asks the server at {address}, {after:.1} s after its \
                     outage began: {why}"
                )
            }
            ServerEvent::Moved(from) => write!(
                f,
                "the Sentinels' master is now at {address}, and was at {from}: the client checks \
                 its locks there"
            ),
            ServerEvent::Renamed => write!(
                f,
                "the name of {address} now leads to another server: the client checks its locks \
                 there"
            ),
            ServerEvent::Lacks(what) | ServerEvent::Without(what) => {
                write!(f, "the server at {address}: {what}")
            }
        }
    }
}

impl fmt::Debug for ServerHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHealth")
            .field("address", &self.address())
            .field("out", &self.out)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_logged_once_and_so_is_its_end() {
        let health = ServerHealth::new("here:1");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&heard);
        health.on_report(move |report| told.lock().push(report));
        let before = Instant::now();
        health.record_reply(before);
        for cause in ["refused", "reset"] {
            health.record_failure(before, &cause);
        }
        health.record_reply(before);
        let event = ServerEvent::Out("refused".to_owned());
        let out = HealthReport { address: "here:1".into(), event };
        assert_eq!(*heard.lock(), [out], "a late reply does not end it");
        let in_it = Instant::now();
        for _ in 0..2 {
            health.record_reply(Instant::now());
        }
        assert_eq!(heard.lock().len(), 2);
        assert!(matches!(heard.lock()[1].event, ServerEvent::Back(_)));
        health.record_failure(in_it, &"late");
        assert_eq!(heard.lock().len(), 2, "a late failure begins none");
        health.record_failure(Instant::now(), &"again");
        assert_eq!(heard.lock().len(), 3);
    }
}
