//! The meaning of error replies.

use redis::ErrorKind;
use redis::{RedisError, Value};

use super::address_map::NamedAddress;
use super::{Failure, Outcome, SLOTS};

/// The code of an error reply: its first word. If the user of a script lacks the right to a
/// command, a key or a channel, returns `NOPERM`, although the server's reply has the code `ERR`.
pub fn reply_code(error: &RedisError) -> &str {
    code(error.code().unwrap_or_default(), error.detail())
}

fn code<'a>(code: &'a str, detail: Option<&str>) -> &'a str {
    if code == "ERR" && detail.is_some_and(forbids_a_script) { "NOPERM" } else { code }
}

/// Whether this is a server's text for a right that the user of a script lacks.
fn forbids_a_script(detail: &str) -> bool {
    // The first text comes from Valkey and from Redis after 7.0, the second from Redis 7.0. The
    // detail must begin with one of them: a user's name, which comes later in the detail, might
    // contain such a text.
    ["ACL failure in script: ", "The user executing the script can't "]
        .iter()
        .any(|said| detail.starts_with(said))
}

/// Whether this reply says that this is the wrong server or that the server is not ready. The next
/// connection then looks the address up again.
pub(super) fn is_wrong_server_reply(reply: &Value) -> bool {
    let Value::ServerError(error) = reply else { return false };
    is_wrong_code(code(error.code(), error.details()))
}

/// Like [`is_wrong_server_reply`], for the error made from the reply.
pub(super) fn is_wrong_server_error(error: &RedisError) -> bool {
    is_wrong_code(reply_code(error))
}

fn is_wrong_code(code: &str) -> bool {
    matches!(code, "READONLY" | "LOADING" | "MASTERDOWN")
}

/// A redirect: a cluster's reply that another server has the slot. The server has not run the
/// command, except with [`Halfway`](Self::Halfway).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot has moved to this server.
    Moved { slot: u16, named: NamedAddress },
    /// The slot is moving to this server. The client sends this one command to it.
    Ask { named: NamedAddress },
    /// No server can run the command now, because the slot has no server or its keys are on two
    /// servers.
    Later,
    /// Like `Later`, but the server stopped inside a script, which may have changed data.
    Halfway,
}

/// The redirect in a command's outcome, if any.
pub(super) fn redirect(outcome: &Outcome) -> Option<Redirect> {
    let Err(Failure::Refused(cause)) = outcome else { return None };
    redirect_of(&cause.error)
}

/// The redirect in an error reply, if any.
pub(super) fn redirect_of(error: &RedisError) -> Option<Redirect> {
    let details = error.detail();
    let address = || {
        let (slot, address) = details?.split_once(' ')?;
        let (host, port) = address.split(' ').next()?.rsplit_once(':')?;
        let named = NamedAddress::new(host.to_owned(), port.parse().ok()?)?;
        Some((slot.parse().ok().filter(|slot| *slot < SLOTS)?, named))
    };
    match error.code()? {
        "MOVED" => {
            Some(address().map_or(Redirect::Later, |(slot, named)| Redirect::Moved { slot, named }))
        }
        "ASK" => Some(address().map_or(Redirect::Later, |(_, named)| Redirect::Ask { named })),
        "TRYAGAIN" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "READONLY" => Some(Redirect::Later),
        // While a slot is moving, the server treats a missing key as a key of another server, even
        // if the script itself has just deleted the key.
        "ERR" if details.is_some_and(|it| it.contains("a non local key")) => {
            Some(Redirect::Halfway)
        }
        _ => None,
    }
}

/// Whether a server of a cluster refused a command because another server has the slot, or soon
/// will have it.
pub fn is_redirect(error: &RedisError) -> bool {
    redirect_of(error).is_some()
}

/// Whether the server was reached, but refuses this client.
pub(super) fn is_refusal(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed
        || error.code().is_some_and(|code| ![NO_MASTER, NO_SERVICE].contains(&code))
}

/// The code of redlatch's own error if the Sentinels name no master at the moment.
pub const NO_MASTER: &str = "NOMASTER";
/// The code of redlatch's own error if no Sentinel knows the service.
pub const NO_SERVICE: &str = "NOSERVICE";

/// The text of an error: the server demands a client certificate for TLS.
pub const NO_CERTIFICATE: &str = "the server wants a certificate of the client";
/// The text of an error: the server refuses the client's certificate.
pub const REFUSED_CERTIFICATE: &str = "the server refuses the certificate of the client";

/// Whether this error says that the server accepts no clients. Such a server sends the error before
/// it reads a command.
pub(super) fn turns_away(error: &RedisError) -> bool {
    error.code() == Some("DENIED")
        || error.detail().is_some_and(|text| text.contains("max number of clients"))
}

/// Returns the error for an error text inside another reply.
pub fn error_reply(text: &str) -> RedisError {
    let (code, detail) = text.split_once(' ').unwrap_or((text, ""));
    redis::make_extension_error(code.to_owned(), Some(detail.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of Redis 7.0.15, 7.4.1 and 8.2.3, and of Valkey 8.1.8, 9.0.0 and 9.1.2.
    #[test]
    fn a_right_that_a_script_lacks_is_known_whatever_the_servers_version() {
        for text in [
            "-NOPERM this user has no permissions to run the 'evalsha' command",
            "-ERR The user executing the script can't publish to the channel mentioned in the command \
             script: 32b7, on @user_script:1.",
            "-ERR The user executing the script can't access at least one of the keys mentioned in the \
             command arguments",
            "-ERR ACL failure in script: User me has no permissions to run the 'time' command script: \
             1a8c, on @user_script:1.",
            "-ERR ACL failure in script: User me has no permissions to run the 'time' command script: \
             on @user_script:1.",
            "-ERR ACL failure in script: User me has no permissions to run the 'incrby' command",
            "-ERR ACL failure in script: No permissions to access a key script: on @user_script:1.",
            "-ERR ACL failure in script: No permissions to access a channel",
        ] {
            let error = redis::parse_redis_value(format!("{text}\r\n").as_bytes()).unwrap();
            let Value::ServerError(error) = error else { panic!("{text}") };
            assert_eq!(reply_code(&error.into()), "NOPERM", "{text}");
        }
    }

    #[test]
    fn where_a_cluster_sends_a_command_is_read() {
        let redirect = |text: &str| match redis::parse_redis_value(text.as_bytes()).unwrap() {
            Value::ServerError(error) => redirect_of(&error.into()),
            _ => None,
        };
        let named = |host: &str| NamedAddress::new(host.to_owned(), 7_001).unwrap();
        for (text, expected) in [
            (
                "-MOVED 866 10.0.0.1:7001\r\n",
                Some(Redirect::Moved { slot: 866, named: named("10.0.0.1") }),
            ),
            ("-MOVED 866 ::1:7001\r\n", Some(Redirect::Moved { slot: 866, named: named("::1") })),
            ("-ASK 866 there:7001\r\n", Some(Redirect::Ask { named: named("there") })),
            ("-MOVED 866\r\n", Some(Redirect::Later)),
            ("-MOVED 866 :7001\r\n", Some(Redirect::Later)),
            ("-MOVED 866 ?:7001\r\n", Some(Redirect::Later)),
            ("-ASK 866 ?:7001\r\n", Some(Redirect::Later)),
            ("-MOVED 99999 there:7001\r\n", Some(Redirect::Later)),
            ("-TRYAGAIN Multiple keys request during rehashing of slot\r\n", Some(Redirect::Later)),
            ("-CLUSTERDOWN Hash slot not served\r\n", Some(Redirect::Later)),
            (
                "-ERR Script attempted to access a non local key in a cluster node script: f_1\r\n",
                Some(Redirect::Halfway),
            ),
            ("-WRONGTYPE no\r\n", None),
            ("+OK\r\n", None),
        ] {
            assert_eq!(redirect(text), expected, "{text}");
        }
    }

    #[test]
    fn the_refusals_of_a_wrong_server_are_recognized() {
        let reply = |text: &str| redis::parse_redis_value(text.as_bytes()).unwrap();
        for text in [
            "-READONLY You can't write against a read only replica.\r\n",
            "-LOADING Redis is loading the dataset in memory\r\n",
            "-MASTERDOWN Link with MASTER is down\r\n",
        ] {
            assert!(is_wrong_server_reply(&reply(text)), "{text}");
        }
        for text in ["-ERR unknown command 'READONLY'\r\n", "-OOM no memory\r\n", "+OK\r\n"] {
            assert!(!is_wrong_server_reply(&reply(text)), "{text}");
        }
    }
}
