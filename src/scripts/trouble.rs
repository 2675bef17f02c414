//! The reasons why a request has no usable reply, and the error that a user gets for each.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

use redis::{RedisError, Value};
use redlatch_client::sync::is_forked;
use redlatch_client::{
    Cause, ConnectError, Failure, NO_CERTIFICATE, NO_MASTER, NO_SERVICE, REFUSED_CERTIFICATE,
    error_reply, reply_code, was_cut,
};

use super::Rights;
use crate::error::{Error, ErrorKind, Outlook};
use crate::name::Name;

#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// The server refused the script, so nothing was changed.
    Refused(Error),
    /// The request was never sent, or was only a query, so nothing was changed.
    Unsent(Error),
    /// The request may have run, and may still run.
    Unknown(Error),
    /// The request may have run, and cannot run later. The outcome remains unknown.
    Forgotten(Error),
}

impl Trouble {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Refused(error) | Self::Unsent(error) => error.unknown(false),
            Self::Unknown(error) | Self::Forgotten(error) => error.unknown(true),
        }
    }

    /// Returns the trouble of a query, which cannot have changed anything.
    pub(crate) fn of_query(self) -> Self {
        match self {
            Self::Unknown(error) => Self::Unsent(error),
            trouble => trouble,
        }
    }

    /// Returns the error of a request that reads or sets a value of this name. If such a request
    /// fails, nothing has to be undone.
    pub(crate) fn into_error_of(self, name: &Name) -> Error {
        let state = match self {
            Self::Unknown(_) | Self::Forgotten(_) => "whether it was applied is not known",
            Self::Refused(_) | Self::Unsent(_) => "nothing was changed",
        };
        self.into_error().of(name).now(state)
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        if is_forked() {
            return Self::Unsent(Error::forked());
        }
        let Cause { error, address, .. } = failure.cause().clone();
        let what = match &failure {
            Failure::Unsent(cause) if was_cut() => {
                let message = format!(
                    "the call's own time was over before the server at {address} was asked"
                );
                let error = Error::new(ErrorKind::ResponseTimeout, message);
                return Self::Unsent(error.caused_by_shared(cause.error.clone()));
            }
            Failure::TimedOut(_) if was_cut() => {
                format!("the call's own time was over before the server at {address} answered")
            }
            Failure::Unsent(cause) => return Self::Unsent(unreachable(cause)),
            Failure::Refused(cause) => return Self::Refused(refused(cause, Rights::Connect)),
            Failure::Unacknowledged(_, cause) => return Self::Unknown(unacknowledged(cause)),
            // An error with a code comes from a server of a cluster. Keep this error as the source.
            Failure::Reset(_) if error.code().is_some() => format!(
                "the server at {address} stopped the script in its middle: a key of it is on its way to \
                 another server"
            ),
            Failure::Reset(_) => format!("the connection to the server at {address} broke"),
            Failure::TimedOut(_) => format!(
                "the server at {address} did not answer in time (raise response_timeout if it is \
                 only slow)"
            ),
        };
        // The bytes that arrived were no valid reply, or belonged to no command.
        let is_odd =
            matches!(failure, Failure::Reset(_)) && error.kind() == redis::ErrorKind::Parse;
        Self::Unknown(
            match failure {
                // The error is transient, because the next connection may work.
                _ if is_odd => Error::new(ErrorKind::Protocol, what).transient(true),
                Failure::TimedOut(_) => Error::new(ErrorKind::ResponseTimeout, what),
                _ => Error::new(ErrorKind::Unavailable, what),
            }
            .caused_by_shared(error),
        )
    }
}

/// Returns the error of a client that could not connect. A `From` implementation would be public.
pub(crate) fn not_connected(error: ConnectError) -> Error {
    match error {
        ConnectError::Unusable(why) => Error::new(ErrorKind::Config, why),
        ConnectError::NotReady(why) => Error::new(ErrorKind::Unavailable, why),
        ConnectError::Unreachable(cause) => unreachable(&cause),
    }
}

/// Returns the trouble for a reply of the wrong kind. The error does not contain the reply, which
/// may be a user's data.
pub(crate) fn unexpected(value: &Value) -> Trouble {
    let what = match value {
        Value::Nil => "nothing",
        Value::Int(_) => "another number",
        Value::BulkString(_) | Value::SimpleString(_) => "a text",
        Value::Array(_) => "another list",
        _ => "something",
    };
    let message = format!(
        "the server answered {what}, which does not fit: the key holds other data (use another \
         name), or it is not a Redis server"
    );
    Trouble::Unknown(Error::new(ErrorKind::Protocol, message))
}

/// Wraps the reason why this library cannot work with a server, as an error of the connection.
pub(crate) fn unfit(error: Error) -> RedisError {
    io::Error::other(Unfit(error)).into()
}

/// See [`unfit`]. The wrapped error is the source.
#[derive(Debug)]
struct Unfit(Error);

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Unfit {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

/// Returns the error for a server to which no connection can be opened.
pub(crate) fn unreachable(cause: &Cause) -> Error {
    use redis::ErrorKind as Kind;
    let Cause { error: source, address, met, .. } = cause;
    let mut below = std::iter::successors(source.source(), |error| (*error).source());
    if let Some(unfit) = below.find_map(|error| error.downcast_ref::<Error>()) {
        return unfit.clone();
    }
    let server = format!("the server at {address}");
    let detail = source.detail().unwrap_or_default();
    let (kind, what) = match (source.kind(), source.code().unwrap_or_default()) {
        (Kind::AuthenticationFailed, _) => {
            (ErrorKind::LoginRefused, format!("{server} refuses the user or password of the URL"))
        }
        (_, "NOAUTH") => {
            (ErrorKind::LoginRefused, format!("{server} wants a password: put it into the URL"))
        }
        (_, "DENIED") => (
            ErrorKind::LoginRefused,
            format!(
                "{server} is in protected mode and lets only its own machine in: give it a password, \
                 or switch protected-mode off where its network is trusted"
            ),
        ),
        (_, NO_MASTER) => {
            let message = format!("no master can be had: {detail}");
            return Error::new(ErrorKind::Unavailable, message);
        }
        (_, NO_SERVICE) => {
            let message = format!("no master can be had: {detail}");
            return Error::new(ErrorKind::Config, message);
        }
        _ if detail.contains("max number of clients") => {
            let message = format!(
                "{server} has no connection left: raise its maxclients, or close other clients"
            );
            return Error::new(ErrorKind::TooManyClients, message);
        }
        _ if detail.contains("DB index") => {
            (ErrorKind::Config, format!("{server} has no database with the URL's number"))
        }
        (Kind::Parse, _) => {
            let message = format!("the program at {address} is not a Redis server");
            return Error::new(ErrorKind::Protocol, message);
        }
        (Kind::Client, _) if detail.starts_with(NO_CERTIFICATE) => (
            ErrorKind::LoginRefused,
            format!("{server} asks for a client certificate: set tls_client_certificate"),
        ),
        (Kind::Client, _) if detail.starts_with(REFUSED_CERTIFICATE) => (
            ErrorKind::LoginRefused,
            format!(
                "{server} refuses the client certificate: does the server trust the authority that \
                 signed the tls_client_certificate, and has it not expired?"
            ),
        ),
        (Kind::Client, _) => (
            ErrorKind::LoginRefused,
            format!(
                "the TLS handshake with {server} failed: is its certificate for that host, and trusted \
                 on this machine (#insecure at the URL's end trusts any), and does that port speak TLS?"
            ),
        ),
        (Kind::InvalidClientConfig, _) => {
            (ErrorKind::Config, format!("the URL does not fit {server}"))
        }
        (Kind::Server(_) | Kind::Extension, _) => {
            let message = format!("{server} refuses the connection: {source}");
            return Error::new(meaning(source).0, message);
        }
        _ if source.is_timeout() => {
            let hint = if *met { "" } else { "; is the address right?" };
            let message =
                format!("no connection to {server} within connect_timeout ({source}){hint}");
            return Error::new(ErrorKind::ResponseTimeout, message);
        }
        _ => {
            let hint = if *met { "does it run?" } else { "does it run, and is the address right?" };
            let message = format!("no connection to {server} ({source}); {hint}");
            return Error::new(ErrorKind::Unavailable, message);
        }
    };
    Error::new(kind, what).caused_by_shared(source.clone())
}

pub(crate) fn unacknowledged(cause: &Cause) -> Error {
    let Cause { error, address, .. } = cause;
    if error.code().is_some() {
        let refused = refused(cause, Rights::ReplicaAcks);
        return refused.after("whether replicas have it is not known: ");
    }
    let said = error.detail().unwrap_or("whether replicas have it is not known");
    let message = format!("only {said}, says the server at {address}");
    Error::new(ErrorKind::TooFewReplicas, message)
}

/// Returns the error for a refusal by the server. `rights` are the rights that the request needs.
/// If this library knows the cause, the message has this library's text and the source has the
/// server's text. If the cause is unknown, the message has the server's text, and there is no
/// source.
pub(crate) fn refused(cause: &Cause, rights: Rights) -> Error {
    let Cause { error, address, command, .. } = cause;
    let (kind, hint) = meaning(error);
    let new_error_of = |what: &str, hint: &str| {
        let message = format!("the server at {address} refuses {what}: {hint}");
        Error::new(kind, message)
    };
    let new_error = |hint: &str| new_error_of("it", hint);
    if kind == ErrorKind::Denied {
        let is_forbidden = reply_code(error) == "NOPERM";
        let detail = error.detail().unwrap_or_default();
        let (which, advice) = (missing_right(detail), rights.advice());
        let why = if is_forbidden {
            "its access rights (ACL) forbid it"
        } else {
            "it lacks a command, which rename-command has taken away, or a proxy does not pass on"
        };
        let hint = format!("{why}: {which}{advice} (table of rights: docs/operations.md)");
        return new_error(&hint).caused_by_shared(error.clone());
    }
    if reply_code(error) == "WRONGTYPE" {
        let plain = Arc::new(without_script(error));
        return new_error(&wrong_type(cause.holds, rights)).caused_by_shared(plain);
    }
    match hint {
        Some(hint) => new_error(hint).caused_by_shared(error.clone()),
        // The text may come from a proxy that supports only some commands.
        None => new_error_of(command.as_deref().unwrap_or("it"), &error.to_string()),
    }
}

/// Returns the error kind of a server's refusal, and a better text than the server's if this
/// library has one.
fn meaning(error: &RedisError) -> (ErrorKind, Option<&'static str>) {
    let detail = error.detail().unwrap_or_default();
    let (kind, hint) = match reply_code(error) {
        "LOADING" => {
            (ErrorKind::Unavailable, "it is still loading its data: try again in a moment")
        }
        "READONLY" => (ErrorKind::Unavailable, "it is a read-only replica: connect to the master"),
        "CLUSTERDOWN" | "TRYAGAIN" => (
            ErrorKind::Unavailable,
            "no server of the cluster has this key now: it is on its way to another server, its \
             server is gone and no other has taken over yet, or the servers do not agree which of \
             them has it",
        ),
        "MASTERDOWN" => return (ErrorKind::Unavailable, None),
        "NOREPLICAS" => return (ErrorKind::TooFewReplicas, None),
        _ if detail.contains("max number of clients") => return (ErrorKind::TooManyClients, None),
        "OOM" => (ErrorKind::OutOfMemory, "it has no memory left (maxmemory)"),
        "BUSY" => (ErrorKind::Busy, "a script keeps it busy (SCRIPT KILL ends it)"),
        "MISCONF" => (ErrorKind::Busy, "it accepts no writes, because it cannot save its data"),
        "NOPERM" => return (ErrorKind::Denied, None),
        "ERR" if is_missing(detail) => return (ErrorKind::Denied, None),
        "NOAUTH" => (ErrorKind::LoginRefused, "it wants a password: put it into the URL"),
        "WRONGTYPE" => return (ErrorKind::WrongType, None),
        "ERR" if detail.contains("not an integer") => {
            (ErrorKind::WrongType, "the key holds other data: use another name")
        }
        "TOKENS" => (
            ErrorKind::WrongType,
            "the key of its fencing tokens, redisson_lock_token:*, holds no number from 0 to 2^53: \
             set one that is higher than all tokens so far",
        ),
        "ERR" if detail.contains("would overflow") => (
            ErrorKind::Refused,
            "there would be more permits than Redis can count, which is 2^63 - 1",
        ),
        "MOVED" | "ASK" => (
            ErrorKind::Refused,
            "it is part of a cluster and does not have this key: connect to the cluster, by \
             redis-cluster:// in place of redis://",
        ),
        "CROSSSLOT" => {
            (ErrorKind::Refused, "the name's braces put key and channel into different slots")
        }
        _ => return (ErrorKind::Refused, None),
    };
    (kind, Some(hint))
}

/// Returns the error of a user's script that ended with this text. If the server refused one of the
/// script's commands, the kind shows the reason.
pub(crate) fn failed_script(text: &str) -> Error {
    let kind = match meaning(&error_reply(text)).0 {
        ErrorKind::Refused | ErrorKind::WrongType => ErrorKind::Script,
        kind => kind,
    };
    Error::new(kind, format!("the script ended with an error: {text}"))
}

/// Whether a server that refuses a command with this error may accept the command soon.
pub(crate) fn is_transient(error: &RedisError) -> bool {
    meaning(error).0.outlook() != Outlook::Persistent
}

/// Returns the text for a key of the wrong type. `holds`: the type of the key that equals the name.
fn wrong_type(holds: Option<&'static str>, rights: Rights) -> String {
    let own = match rights {
        Rights::Semaphores | Rights::ExpirableSemaphores | Rights::Latches => "a string",
        _ => "a hash",
    };
    match holds {
        Some(other) if other != own => format!("the key holds {other}: use another name"),
        // Another key of the name has the wrong type.
        _ => "a key of this name holds other data: use another name".to_owned(),
    }
}

/// Returns the error without the server's text about the script in which it occurred.
fn without_script(error: &RedisError) -> RedisError {
    let detail = error.detail().unwrap_or_default();
    let detail = detail.split_once(" script: ").map_or(detail, |(said, _)| said);
    error_reply(&format!("{} {detail}", reply_code(error)))
}

/// Returns the part of a sentence that names the command in a refusal, and its key if a redlatch
/// script checked the right. Redis 7.0 does not name a command that a script tried, and no server
/// names an unknown command.
fn missing_right(detail: &str) -> String {
    let asked = detail.strip_prefix("the user may not run ").map(str::to_owned);
    let tried = || {
        let marks = [" run the '", "unknown command '", "unknown command `"];
        let (_, command) = marks.iter().find_map(|mark| detail.split_once(mark))?;
        command.split_once(['\'', '`']).map(|(command, _)| command.to_uppercase())
    };
    // The user may not use one of the KEYS, so the server refuses the whole script.
    let of_keys = || {
        let is_of_keys =
            ["access a key", "access one of the keys"].iter().any(|it| detail.contains(it));
        is_of_keys.then(|| "a right to one of the keys of this name".to_owned())
    };
    let missing = |right: String| {
        let are = if right.contains(", ") { "are" } else { "is" };
        format!("{right} {are} missing; ")
    };
    asked.or_else(tried).or_else(of_keys).map_or_else(String::new, missing)
}

/// Whether a refusal says that the server does not know a command. The refusal of a client's
/// command has the command's name, and the refusal of a script's command has none.
fn is_missing(detail: &str) -> bool {
    let detail = detail.to_ascii_lowercase();
    let said = ["unknown command", "unknown redis command", "invalid command passed to"];
    said.iter().any(|said| detail.contains(said))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn said(text: &str) -> Cause {
        Cause::said(Arc::new(error_reply(text)), "there:1".into())
    }

    #[test]
    fn each_refusal_has_its_kind() {
        use ErrorKind::{
            Busy, Denied, LoginRefused, OutOfMemory, Refused, TooFewReplicas, TooManyClients,
            Unavailable, WrongType,
        };
        for (text, transient, kind) in [
            ("BUSY Redis is busy running a script", true, Busy),
            ("CLUSTERDOWN The cluster is down", true, Unavailable),
            ("ERR max number of clients reached", true, TooManyClients),
            ("LOADING Redis is loading the dataset in memory", true, Unavailable),
            ("MASTERDOWN Link with MASTER is down", true, Unavailable),
            ("MISCONF Redis is configured to save RDB snapshots", true, Busy),
            ("NOREPLICAS Not enough good replicas to write", true, TooFewReplicas),
            ("OOM command not allowed when used memory > 'maxmemory'", true, OutOfMemory),
            ("READONLY You can't write against a read only replica", true, Unavailable),
            ("TRYAGAIN Multiple keys request during rehashing of slot", true, Unavailable),
            ("CROSSSLOT Keys in request don't hash to the same slot", false, Refused),
            ("ERR unknown command", false, Denied),
            (
                "ERR The user executing the script can't run this command or subcommand",
                false,
                Denied,
            ),
            ("NOAUTH Authentication required", false, LoginRefused),
            (
                "ERR ACL failure in script: User me has no permissions to run the 'time' command",
                false,
                Denied,
            ),
            ("NOPERM this user has no permissions to run the 'evalsha' command", false, Denied),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", false, WrongType),
        ] {
            let error = refused(&said(text), Rights::Locks);
            assert_eq!(error.is_transient(), transient, "{text}: {error}");
            assert_eq!(error.is_transient(), is_transient(&said(text).error), "{text}");
            assert_eq!(error.kind(), kind, "{text}");
            assert!(!error.outcome_unknown(), "{text}");
            let all = format!("{error:#}");
            let said = text.split_once(' ').unwrap().1;
            assert_eq!(all.matches(said).count(), 1, "said once: {all}");
        }
    }

    #[test]
    fn a_missing_right_is_named() {
        for (text, named) in [
            ("NOPERM the user may not run LPOP redlatch_queue:{x}", "LPOP redlatch_queue:{x} is"),
            (
                "ERR ACL failure in script: User me has no permissions to run the 'time' command",
                "TIME",
            ),
            (
                "NOPERM this user has no permissions to run the 'client|list' command",
                "CLIENT|LIST is",
            ),
            ("ERR unknown command 'wait', with args beginning with: '1' ", "WAIT is"),
            ("ERR unknown command `SSUBSCRIBE`, with args beginning with: `x`, ", "SSUBSCRIBE is"),
        ] {
            let said = refused(&said(text), Rights::Locks).to_string();
            assert!(said.contains(named) && said.contains("docs/operations.md"), "{said}");
        }
    }

    #[test]
    fn an_unknown_refusal_names_its_command() {
        for command in [None, Some("EVALSHA".into())] {
            let what = command.clone().unwrap_or_else(|| "it".into());
            let cause = Cause { command, ..said("ERR not supported here") };
            let error = refused(&cause, Rights::Locks).to_string();
            assert!(
                error.ends_with(&format!("refuses {what}: \"ERR\": not supported here")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_clusters_refusals_say_that_it_is_one() {
        for text in ["MOVED 866 127.0.0.1:7001", "ASK 866 127.0.0.1:7001"] {
            let error = refused(&said(text), Rights::Locks);
            assert!(error.to_string().contains("redis-cluster://"), "{error}");
            assert_eq!(error.kind(), ErrorKind::Refused);
        }
    }

    #[test]
    fn the_outcome_of_an_unanswered_request_is_not_known() {
        let broken = || Cause::said(Arc::new(io::Error::other("broken").into()), "there:1".into());
        let state = |trouble: Trouble| {
            let error = trouble.into_error();
            (error.is_transient(), error.outcome_unknown())
        };
        assert_eq!(state(Failure::Unsent(broken()).into()), (true, false));
        assert_eq!(state(Failure::Reset(broken()).into()), (true, true));
        assert_eq!(state(Failure::TimedOut(broken()).into()), (true, true));
        assert_eq!(state(unexpected(&Value::Nil)), (false, true));
        // The first copy may have run, even if the second copy was refused.
        let loading = || refused(&said("LOADING wait"), Rights::Locks);
        assert_eq!(state(Trouble::Refused(loading())), (true, false));
        assert_eq!(state(Trouble::Unknown(loading())), (true, true));
        // The query before the request got no reply, so the request was not sent.
        let unknown = Trouble::Unknown(loading()).into_error();
        assert_eq!(state(Trouble::Unsent(unknown)), (true, false));
    }

    #[test]
    fn a_key_of_another_type_is_said_without_the_hash_of_a_script() {
        let error = refused(
            &said(
                "WRONGTYPE Operation against a key holding the wrong kind of value script: \
                 f_6e92b3c1, on @user_script:27.",
            ),
            Rights::Locks,
        );
        let all = format!("{error:#}");
        assert!(all.contains("the wrong kind of value") && !all.contains("script"), "{all}");
    }

    #[test]
    fn an_error_doubts_the_address_only_before_the_first_connection() {
        for error in [io::ErrorKind::ConnectionRefused, io::ErrorKind::TimedOut] {
            for met in [false, true] {
                let cause = Cause {
                    met,
                    ..Cause::said(Arc::new(io::Error::from(error).into()), "there:1".into())
                };
                let error = unreachable(&cause).to_string();
                assert_eq!(error.contains("address right?"), !met, "{error}");
            }
        }
    }

    #[test]
    fn without_a_master_each_sentinels_word_is_part_of_a_sentence() {
        for (text, sentence) in [
            (
                "NOMASTER the Sentinels did not answer in time",
                "no master can be had: the Sentinels did not answer in time",
            ),
            (
                "NOSERVICE asked for \"x\", here:1 knows no master of this name",
                "no master can be had: asked for \"x\", here:1 knows no master of this name",
            ),
        ] {
            assert_eq!(unreachable(&said(text)).to_string(), sentence);
        }
    }

    #[test]
    fn no_error_shows_a_keys_value() {
        let secret = || b"precious".to_vec();
        for value in [
            Value::BulkString(secret()),
            Value::SimpleString("precious".to_owned()),
            Value::Array(vec![Value::BulkString(secret())]),
            Value::Map(vec![(Value::BulkString(secret()), Value::Nil)]),
        ] {
            let error = unexpected(&value).into_error();
            assert!(!format!("{error:?} {error:#}").contains("precious"), "{error:?}");
            assert!(error.to_string().contains("other data"), "{error}");
        }
    }
}
