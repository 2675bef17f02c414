//! What a server reports about itself when a connection is opened: its run, its program and its
//! role.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use redis::{ErrorKind as Cause, RedisError, RedisResult, Value};

use super::reply::turns_away;
use crate::sync::Mutex;

/// Programs that use Redis's protocol, each with a field of `INFO server` that no other program
/// has.
const LOOK_ALIKES: [(&str, &str); 3] = [
    ("Garnet", "garnet_version"),
    ("Dragonfly", "dragonfly_version"),
    ("Kvrocks", "kvrocks_version"),
];

/// A server's answer to `INFO server`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InfoReply {
    /// The random id of a run of the server. `None` if the user has no right to ask for it.
    run_id: Option<String>,
    /// Whether the server is a Sentinel, which has no data.
    pub is_sentinel: bool,
    /// The name and version of a program other than Redis and Valkey, if the program reports them.
    pub look_alike: Option<(&'static str, String)>,
    /// The version of Redis, or the version with which the server says that it is compatible.
    pub version: Option<String>,
    /// `None` if the server was not asked or did not answer.
    pub(super) is_master: Option<bool>,
}

impl InfoReply {
    /// Reads the answer to `INFO server`.
    pub(super) fn of(reply: Value) -> RedisResult<Self> {
        match reply {
            Value::BulkString(text) => Ok(Self::parse(&String::from_utf8_lossy(&text))),
            Value::VerbatimString { text, .. } => Ok(Self::parse(&text)),
            // The user lacks the right to `INFO`, or the server does not have the command or has
            // renamed it. (A server that accepts no clients answers differently: see `turns_away`.)
            Value::ServerError(error) => match RedisError::from(error) {
                error
                    if matches!(error.code(), Some("NOPERM" | "ERR") | None)
                        && !turns_away(&error) =>
                {
                    Ok(Self::default())
                }
                error => Err(error),
            },
            _ => Err((Cause::Parse, "the answer to INFO is none that a Redis server gives").into()),
        }
    }

    /// Reads the text of an answer to `INFO server`.
    pub fn parse(info: &str) -> Self {
        let field = |name: &str| {
            let lines = info.lines().filter_map(|line| line.split_once(':'));
            lines.filter(|(field, _)| *field == name).map(|(_, value)| value.trim()).next()
        };
        Self {
            run_id: field("run_id").map(str::to_owned),
            // Redis has the first name, and Valkey 8 and later have the second name.
            is_sentinel: ["redis_mode", "server_mode"].map(field).contains(&Some("sentinel")),
            look_alike: LOOK_ALIKES
                .iter()
                .find_map(|(name, of)| field(of).map(|version| (*name, version.to_owned()))),
            version: field("redis_version").map(str::to_owned),
            is_master: None,
        }
    }

    /// Adds the server's answer to `ROLE`.
    pub(super) fn in_role(self, reply: &Value) -> Self {
        let role = match reply {
            Value::Array(parts) => parts.first(),
            _ => None,
        };
        let is_master = match role {
            Some(Value::BulkString(role)) => Some(role == b"master"),
            Some(Value::SimpleString(role)) => Some(role == "master"),
            _ => None,
        };
        Self { is_master, ..self }
    }

    /// Whether the server says that it is a replica.
    pub fn is_replica(&self) -> bool {
        self.is_master == Some(false)
    }

    /// Whether the answer contains the run of the server.
    pub(super) fn says_its_run(&self) -> bool {
        self.run_id.is_some()
    }

    /// Whether both answers contain the same run.
    pub(super) fn is_same_run(&self, other: &Self) -> bool {
        self.run_id.is_some() && self.run_id == other.run_id
    }
}

/// The runs of the server to which a client has connected.
///
/// After a restart, the server (or the replica that replaced it) may not have the client's holds.
/// So the reply "not held" to a release may mean that the hold was lost before. After a new run,
/// the client reports the reply "not held" as a loss, and checks its holds again. If a server does
/// not report its run, every connection counts as a new run.
pub(super) struct Runs {
    last: Mutex<Option<InfoReply>>,
    /// The number of the last run. Before the first connection, this is already the number of the
    /// first run. If the first connection raised the number, the request that opens this connection
    /// would seem to have reached two runs.
    incarnation: AtomicU64,
    /// The callback for each run after the first.
    callback: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Default for Runs {
    fn default() -> Self {
        let (last, incarnation) = (Mutex::default(), AtomicU64::new(1));
        Self { last, incarnation, callback: OnceLock::new() }
    }
}

impl Runs {
    /// Notes a new connection to this server. Returns the run's number, if the server reports its
    /// run. `asked` says whether the code behind the callback has opened this connection. If so,
    /// and if the server does not report its run, the callback is not called: it would open the
    /// next connection, and so on for ever.
    pub(super) fn record(&self, server: InfoReply, asked: bool) -> Option<u64> {
        let mut last = self.last.lock();
        let says_its_run = server.says_its_run();
        let is_vain = asked && !says_its_run;
        let is_first = last.is_none();
        let is_same = last.as_ref().is_some_and(|last| last.is_same_run(&server));
        *last = Some(server);
        if !is_same && !is_first {
            // Raise the number before any command uses the connection, so that every thread reads
            // the new number after a reply of this run.
            self.incarnation.fetch_add(1, Ordering::AcqRel);
        }
        let number = says_its_run.then(|| self.incarnation());
        drop(last);
        if !is_same
            && !is_first
            && !is_vain
            && let Some(callback) = self.callback.get()
        {
            callback();
        }
        number
    }

    pub(super) fn last(&self) -> Option<InfoReply> {
        self.last.lock().clone()
    }

    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Acquire)
    }

    /// Sets the callback for new runs. The thread that opens the first connection to a new run
    /// calls it, so the callback must not block.
    pub(super) fn on_new(&self, callback: impl Fn() + Send + Sync + 'static) {
        let _only_once = self.callback.set(Box::new(callback));
    }
}

/// The run of the server at the other end of a connection.
pub(super) struct Run {
    runs: Arc<Runs>,
    /// `None` if the server does not report its run.
    number: Option<u64>,
}

impl Run {
    /// Notes a new connection: see [`Runs::record`].
    pub(super) fn record(runs: &Arc<Runs>, server: InfoReply, asked: bool) -> Self {
        Self { number: runs.record(server, asked), runs: Arc::clone(runs) }
    }

    /// Whether the client has connected to no newer run, as far as servers report their runs.
    pub(super) fn is_last(&self) -> bool {
        self.number.is_none_or(|number| number == self.runs.incarnation())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const INFO: &str = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n\
                        run_id:0a1b\r\ntcp_port:6379\r\n";

    fn server(run_id: Option<&str>) -> InfoReply {
        InfoReply { run_id: run_id.map(str::to_owned), ..InfoReply::default() }
    }

    #[test]
    fn the_answer_of_info_is_read() {
        let redis = InfoReply::of(Value::BulkString(INFO.into())).unwrap();
        assert_eq!(redis.run_id.as_deref(), Some("0a1b"));
        assert!(!redis.is_sentinel);
        assert!(InfoReply::parse("redis_mode:sentinel\r\n").is_sentinel);
        assert!(InfoReply::parse("redis_version:7.2.4\r\nserver_mode:sentinel\r\n").is_sentinel);
        assert!(!InfoReply::parse("redis_version:7.2.4\r\nserver_mode:standalone\r\n").is_sentinel);
        assert!(InfoReply::of(Value::Okay).is_err());
        assert_eq!((redis.look_alike, redis.version.as_deref()), (None, Some("7.0.15")));
    }

    #[test]
    fn a_new_run_of_a_server_is_announced_once_and_its_first_run_never() {
        let runs = Runs::default();
        let told = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&told);
        runs.on_new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let seen = || (runs.incarnation(), told.load(Ordering::SeqCst));
        for (run_id, expected) in
            [("a", (1, 0)), ("a", (1, 0)), ("b", (2, 1)), ("b", (2, 1)), ("a", (3, 2))]
        {
            assert_eq!(runs.record(server(Some(run_id)), true), Some(expected.0));
            assert_eq!(seen(), expected);
        }
        assert_eq!([(); 2].map(|()| runs.record(server(None), false)), [None; 2]);
        assert_eq!(seen(), (5, 4), "a server that does not say may be another one each time");
    }
}
