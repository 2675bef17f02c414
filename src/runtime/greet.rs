//! The first exchange with a server. The exchange checks whether this library can use the server,
//! and measures the time of a round trip.

use std::time::{Duration, Instant};

use redis::{RedisError, Value};
use redlatch_client::{Ask, Cause, Command, Endpoint, Failure, InfoReply, ReplicaAcks};

use crate::config::Config;
use crate::error::{Error, ErrorKind};
use crate::scripts::{Rights, Trouble, refused, unreachable};

/// The test script. All clients send the same text, so the server caches only one script. The
/// script checks that the server has `acl_check_cmd`, with which other scripts check their writes
/// before the first write. Servers before Redis 7.0 lack this function.
const SCRIPT: &str = "return redis.acl_check_cmd and ARGV[1]";
const WORD: &[u8] = b"redlatch";

/// The result of the first exchange with a server.
pub(crate) struct Greeting {
    /// The shortest time of a few round trips.
    pub(crate) round_trip: Duration,
    /// Log lines about settings that work now but will cause failures later.
    pub(crate) warnings: Vec<String>,
}

/// Checks over an open connection whether this library can work with the server. `is_cluster`:
/// whether the client uses a cluster.
pub(crate) fn greet(
    endpoint: &Endpoint,
    server: &InfoReply,
    ask: Ask<'_>,
    config: &Config,
    is_cluster: bool,
) -> Result<Greeting, Error> {
    let located = |error: Error| error.now(&format!("it is at {}", endpoint.address()));
    check_program(server, config.allow_garnet).map_err(located)?;
    let hash = redis::Script::new(SCRIPT).get_hash().to_owned();
    let mut round_trip = Duration::MAX;
    let mut call = |verb: &[u8], script: &[u8], keys: &[&[u8]]| {
        let command = Command::plain(&[&[verb, script], keys, &[WORD]].concat());
        let begun = Instant::now();
        let outcome = ask(&command);
        round_trip = round_trip.min(begun.elapsed());
        outcome
    };
    let mut keys: &[&[u8]] = &[b"0"];
    let (text, hash) = (SCRIPT.as_bytes(), hash.as_bytes());
    for (verb, script) in [(b"EVAL".as_slice(), text), (b"EVALSHA", hash), (b"EVALSHA", hash)] {
        let mut outcome = call(verb, script, keys);
        // Some services choose a server by a script's key, and refuse a script without a key. The
        // first attempt has no key, because the user may lack the right to this key.
        if matches!(&outcome, Err(Failure::Refused(cause)) if is_odd(&cause.error)) {
            keys = &[b"1", b"redlatch"];
            outcome = call(verb, script, keys);
        }
        match outcome {
            Err(Failure::Refused(cause)) => check_refusal(&cause).map_err(located)?,
            outcome => check_reply(&outcome.map_err(unanswered)?, server).map_err(located)?,
        }
    }
    let info = Info::of(ask);
    if info.says("role", "slave") && info.says("slave_read_only", "1") {
        let master = info.field("master_host").zip(info.field("master_port"));
        let master = master.map_or_else(String::new, |(host, port)| format!(", at {host}:{port}"));
        let message = format!(
            "the server at {} is a read-only replica: connect to the master{master}",
            endpoint.address()
        );
        return Err(Error::new(ErrorKind::Unavailable, message));
    }
    if config.replica_acks.is_some() {
        may_wait(ask)?;
    }
    Ok(Greeting { round_trip, warnings: info.warnings(endpoint, config, is_cluster) })
}

/// The server's reply to `INFO`, or an empty text if the user lacks the right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Info(String);

impl Info {
    fn of(ask: Ask<'_>) -> Self {
        Self::read(ask(&Command::plain(&[b"INFO"])).unwrap_or(Value::Nil))
    }

    pub(crate) fn read(reply: Value) -> Self {
        match reply {
            Value::BulkString(text) => Self(String::from_utf8_lossy(&text).into_owned()),
            Value::VerbatimString { text, .. } => Self(text),
            _ => Self(String::new()),
        }
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.0.lines().filter_map(|line| line.trim().split_once(':'));
        fields.find(|(field, _)| *field == name).map(|(_, value)| value)
    }

    fn says(&self, name: &str, value: &str) -> bool {
        self.field(name) == Some(value)
    }

    /// Returns warnings about settings that work now but will cause failures later.
    fn warnings(&self, endpoint: &Endpoint, config: &Config, is_cluster: bool) -> Vec<String> {
        let (server, mut warnings) = (format!("the server at {}", endpoint.address()), Vec::new());
        let mode = |value| self.says("redis_mode", value) || self.says("server_mode", value);
        if !is_cluster && mode("cluster") {
            warnings.push(format!(
                "{server} is part of a cluster and serves some names only: connect to the cluster, by \
                 redis-cluster:// in place of redis://"
            ));
        }
        let policy = self.field("maxmemory_policy").unwrap_or("noeviction");
        if policy != "noeviction" && self.field("maxmemory").is_some_and(|most| most != "0") {
            warnings.push(format!(
                "{server} evicts keys when its memory is full (maxmemory-policy {policy}), and so frees \
                 locks that are held: set noeviction"
            ));
        }
        let replicas = self.field("connected_slaves").and_then(|count| count.parse::<u32>().ok());
        if let (Some(acks), Some(replicas)) = (config.replica_acks, replicas)
            && replicas < acks.count
        {
            warnings.push(format!(
                "{server} has {replicas} replicas, and replica_acks asks for {}: no lock is granted \
                 until it has that many",
                acks.count
            ));
        }
        warnings
    }
}

/// Checks that the user may run WAIT. Does not count the replicas, because their number may change
/// at any time.
fn may_wait(ask: Ask<'_>) -> Result<(), Error> {
    let none = ReplicaAcks { count: 0, within: Duration::ZERO };
    match ask(&Command::wait(none)) {
        Err(Failure::Refused(cause)) => Err(refused(&cause, Rights::ReplicaAcks)),
        outcome => outcome.map(drop).map_err(unanswered),
    }
}

/// Returns the error for a request that got no reply over an open connection.
fn unanswered(failure: Failure) -> Error {
    match failure {
        Failure::TimedOut(_) | Failure::Unacknowledged(..) => {
            Trouble::from(failure).into_error().unknown(false)
        }
        Failure::Unsent(cause) | Failure::Reset(cause) | Failure::Refused(cause) => {
            unreachable(&cause)
        }
    }
}

/// Checks whether this library can work with the server, according to the server's reply to INFO.
fn check_program(server: &InfoReply, allows_garnet: bool) -> Result<(), Error> {
    if server.is_sentinel {
        return unusable(
            "this is a Sentinel and not the server itself: use a URL such as \
             redis-sentinel://host:port/name, with the Sentinels' name of the master",
        );
    }
    if let Some(("Garnet", version)) = &server.look_alike
        && !allows_garnet
    {
        return unusable(&format!(
            "the server is Garnet {version}, which by default runs scripts side by side, so two clients \
             may get one lock: use Redis or Valkey; or start Garnet with lua-transaction-mode and set \
             allow_garnet"
        ));
    }
    Ok(())
}

/// Checks that the reply is the test script's reply.
fn check_reply(reply: &Value, server: &InfoReply) -> Result<(), Error> {
    match reply {
        Value::BulkString(word) if word == WORD => Ok(()),
        Value::Nil => {
            let (who, remedy) = match (&server.look_alike, &server.version) {
                (Some((name, version)), _) => (format!("{name} {version}"), "use"),
                (None, Some(version)) => (format!("of version {version}"), "upgrade it to"),
                (None, None) => ("old, or another program".to_owned(), "use"),
            };
            unusable(&format!(
                "the server is {who}: its scripts cannot ask what the user may do \
                 (redis.acl_check_cmd); {remedy} Redis 7.0, Valkey 7.2 or later"
            ))
        }
        _ => {
            let message = "the program there is not a Redis server: it does not run a script";
            Err(Error::new(ErrorKind::Protocol, message.to_owned()))
        }
    }
}

/// Returns an error if a server that refused a script runs no scripts at all.
fn check_refusal(Cause { error, .. }: &Cause) -> Result<(), Error> {
    let why = match error.code().unwrap_or_default() {
        "NOPERM" => "the server's access rights (ACL) forbid it: allow EVAL and EVALSHA",
        _ if is_unknown(error) => {
            "the server knows no such command: EVAL and EVALSHA are renamed, a proxy does not pass \
             them on, or the server was built without scripts"
        }
        "ERR" => "the server refuses one",
        // The server is loading or busy, and can run scripts later.
        _ => return Ok(()),
    };
    Err(lacks_scripts(why).caused_by_shared(error.clone()))
}

/// Whether the error has only the general code `ERR`, and does not report an unknown command.
fn is_odd(error: &RedisError) -> bool {
    error.code() == Some("ERR") && !is_unknown(error)
}

fn is_unknown(error: &RedisError) -> bool {
    error.detail().is_some_and(|text| text.contains("unknown command"))
}

fn lacks_scripts(why: &str) -> Error {
    Error::new(ErrorKind::Denied, format!("redlatch needs Lua scripts, and {why}"))
}

fn unusable(why: &str) -> Result<(), Error> {
    Err(Error::new(ErrorKind::Config, why.to_owned()))
}

#[cfg(test)]
mod tests {
    use redlatch_client::Settings;

    use super::*;
    use crate::config::ClientBuilder;

    /// What an error says about another program (Garnet, Dragonfly, Kvrocks) is taken from that
    /// program's documentation.
    #[test]
    fn an_error_at_connect_names_the_program_and_is_true_of_it() {
        let garnet = InfoReply::parse("# Server\r\ngarnet_version:1.0.84\r\nos:Linux\r\n");
        let error = check_program(&garnet, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("Garnet 1.0.84"), "{error}");
        assert!(check_program(&garnet, true).is_ok());
        for (info, says, may_upgrade) in [
            (
                "redis_version:7.4.0\r\ndragonfly_version:df-v1.30.3\r\nredis_mode:standalone\r\n",
                "Dragonfly df-v1.30.3: its scripts",
                false,
            ),
            (
                "version:2.11.1\r\nkvrocks_version:2.11.1\r\nredis_version:4.0.0\r\n",
                "Kvrocks 2.11",
                false,
            ),
            ("redis_version:6.2.14\r\nredis_mode:standalone\r\n", "of version 6.2.14", true),
            ("", "old, or another program", false),
        ] {
            let server = InfoReply::parse(info);
            assert!(check_program(&server, false).is_ok());
            let error = check_reply(&Value::Nil, &server).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
            assert_eq!(error.contains("upgrade"), may_upgrade, "{error}");
        }
    }

    #[test]
    fn a_warning_says_what_will_fail_later() {
        let endpoint = Endpoint::of("redis://there:1", &Settings::default()).unwrap();
        let acks = ReplicaAcks { count: 1, within: Duration::ZERO };
        let config =
            Config { replica_acks: Some(acks), ..ClientBuilder::new("redis://there").config };
        let warnings = |text: &str, is_cluster| {
            Info(text.to_owned()).warnings(&endpoint, &config, is_cluster).join("\n")
        };
        let quiet = "redis_mode:standalone\r\nmaxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n\
                     connected_slaves:1\r\n";
        assert_eq!(warnings(quiet, false), "");
        assert_eq!(warnings("", false), "", "it must not say");
        assert!(warnings("redis_mode:cluster\r\n", false).contains("redis-cluster://"));
        assert_eq!(warnings("server_mode:cluster\r\n", true), "");
        let full = warnings("maxmemory:1024\r\nmaxmemory_policy:volatile-ttl\r\n", false);
        assert!(full.contains("maxmemory-policy volatile-ttl"), "{full}");
        assert!(warnings("connected_slaves:0\r\n", false).contains("has 0 replicas"));
    }
}
