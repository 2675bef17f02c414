//! The fault of a URL, in words that never repeat a part of it: any part may be the password.

mod cluster;
mod sentinel;

pub(super) use cluster::ClusterUrl;
pub(super) use sentinel::SentinelUrl;

/// Why a URL cannot be used, if it is clear why. A URL that cannot be used for another reason is
/// refused where it is read.
pub(super) fn explain_url(url: &str) -> Option<String> {
    explain(url.trim())
}

const ESCAPE: &str =
    "in a user or a password write / as %2F, ? as %3F, # as %23, @ as %40 and % as %25";

fn explain(url: &str) -> Option<String> {
    let say = |why: &str| Some(why.to_owned());
    if url.is_empty() {
        return say("the URL is empty; write one such as redis://localhost:6379");
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        return say("the URL does not begin with redis://, as in redis://localhost:6379");
    };
    let unix = match scheme.to_ascii_lowercase().as_str() {
        "redis" | "rediss" => false,
        "redis+unix" => true,
        _ => {
            return say(
                "the URL's scheme is not one of redis, redis+unix, redis-cluster and redis-sentinel, or \
                 with TLS rediss, rediss-cluster and rediss-sentinel",
            );
        }
    };
    let secure = scheme.eq_ignore_ascii_case("rediss");
    if secure && cfg!(not(feature = "tls")) {
        return say("this build has no TLS: enable redlatch's feature `tls`");
    }
    if unix && cfg!(not(unix)) {
        return say("this platform has no unix sockets");
    }
    let (rest, fragment) = parted(rest, '#');
    let (rest, query) = parted(rest, '?');
    // Any text behind the host's end that looks like the end of a password.
    let (authority, path) = parted(rest, '/');
    let strays = [path.filter(|_| !unix), query.filter(|_| !unix), fragment];
    if strays.into_iter().flatten().any(|part| part.contains('@')) {
        return Some(format!("the URL's user or password ends too early: {ESCAPE}"));
    }
    match fragment {
        None => {}
        Some("insecure") if secure => {}
        Some(_) if secure => return say("the only fragment that a URL may have is #insecure"),
        Some(_) => return Some(format!("the URL has a fragment (#): {ESCAPE}")),
    }
    if let Some(why) = query.and_then(|query| explain_parameters(query, unix)) {
        return Some(why);
    }
    if unix {
        return match (authority, path) {
            ("", None | Some("")) => say("the URL names no path"),
            ("" | "localhost", Some(_)) => None,
            _ => say("a socket's path is absolute: write three slashes after the scheme's colon"),
        };
    }
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if !user.is_empty() && !user.contains(':') {
        return say(
            "the URL has a user and no password; a password alone is written redis://:password@host",
        );
    }
    if decoded(user).is_none() {
        return Some(format!("the URL's user or password is no UTF-8 text: {ESCAPE}"));
    }
    explain_host(host).or_else(|| {
        let database = path.unwrap_or_default().trim_matches('/');
        let known = database.is_empty() || database.parse::<u32>().is_ok();
        (!known).then(|| "after the host comes the number of a database, as in /0".to_owned())
    })
}

/// The text before the first `mark`, and the text after it.
fn parted(text: &str, mark: char) -> (&str, Option<&str>) {
    text.split_once(mark).map_or((text, None), |(before, after)| (before, Some(after)))
}

fn explain_host(host: &str) -> Option<String> {
    let say = |why: &str| Some(why.to_owned());
    if host.contains([',', ';']) {
        return say(
            "the URL names several hosts, which is for a cluster (redis-cluster://) or for Sentinels \
             (redis-sentinel://)",
        );
    }
    if host.contains(|c: char| c.is_control() || " <>^|\\{}$\"`".contains(c)) {
        return say("the URL's host has a character that no host's name has");
    }
    let (name, port) = if let Some(rest) = host.strip_prefix('[') {
        let Some((name, port)) = rest.split_once(']') else {
            return say("the URL's host begins with a bracket that is not closed, as in [::1]");
        };
        (name, port.strip_prefix(':').or_else(|| (!port.is_empty()).then_some("?")))
    } else {
        let (name, port) = parted(host, ':');
        if port.is_some_and(|port| port.contains(':')) {
            return say("write an IPv6 address in brackets, as in redis://[::1]:6379");
        }
        (name, port)
    };
    if name.is_empty() {
        return say("the URL names no host, as in redis://localhost:6379");
    }
    let known = port.is_none_or(|port| port.is_empty() || port.parse::<u16>().is_ok_and(|n| n > 0));
    (!known).then(|| {
        format!(
            "the URL's port is not a number from 1 to 65535; if what looks like a host and its port \
             is a user and a password: {ESCAPE}"
        )
    })
}

fn explain_parameters(query: &str, unix: bool) -> Option<String> {
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = parted(pair, '=');
        let value = value.unwrap_or_default();
        match name {
            "protocol" if ["2", "resp2", "3", "resp3"].contains(&value) => {}
            "protocol" => return Some("the URL's protocol is resp2 or resp3".to_owned()),
            "db" if unix && value.parse::<u32>().is_ok() => {}
            "db" if unix => return Some("the URL's db is not the number of a database".to_owned()),
            "user" | "pass" if unix => {}
            "node" => {
                let why =
                    "write a URL's hosts in one list, as in redis-cluster://one:7000,two:7001";
                return Some(why.to_owned());
            }
            "db" | "user" | "pass" | "password" | "username" => {
                let why = "in a URL with a host, database, user and password are not parameters";
                return Some(why.to_owned());
            }
            _ => {
                let known = if unix { "db, user, pass and protocol" } else { "protocol" };
                return Some(format!(
                    "the URL has an unknown parameter (known: {known}); timeouts and the like are \
                     settings of Client::builder"
                ));
            }
        }
    }
    None
}

/// The decoded text; `None`: it is no text.
fn decoded(encoded: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((&first, others)) = rest.split_first() {
        let code = others.get(..2).filter(|_| first == b'%');
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &others[2..];
            }
            None => {
                bytes.push(first);
                rest = others;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;

    #[test]
    fn a_usable_url_has_no_error() {
        for url in [
            "redis://localhost",
            "redis://localhost:6379",
            "redis://localhost:/",
            "REDIS://Localhost/",
            "redis://localhost/15",
            "redis://localhost/15/",
            "redis://:secret@localhost:6379/0",
            "redis://user:secret@localhost",
            "redis://user:p%40ss%2Fw%23rd%25@localhost",
            "redis://user:p@ss:word@localhost",
            "redis://user:p,ss;$word@localhost",
            "redis://a_host-1.example.",
            "redis://user:gr%C3%BCn@localhost",
            "redis://127.0.0.1:6379?protocol=resp3",
            "redis://localhost/?protocol=2",
            "redis://[::1]",
            "redis://[::1]:6379/1",
            " redis://localhost ",
            "redis+unix:///tmp/redis.sock",
            "redis+unix:///tmp/a@b.sock?db=3&user=me&pass=a@b",
            "redis+unix:///tmp/redis.sock?protocol=resp3",
        ] {
            assert_eq!(explain_url(url), None, "{url}");
            assert!(url.into_connection_info().is_ok(), "{url}");
        }
        for url in ["rediss://localhost/#insecure", "rediss://user:pw@host:1/2"] {
            let why = explain_url(url).unwrap_or_default();
            assert_eq!(why.contains("feature `tls`"), cfg!(not(feature = "tls")), "{url}: {why}");
        }
    }

    #[test]
    fn an_unusable_url_is_explained_and_its_password_not_repeated() {
        for (url, word) in [
            ("", "is empty"),
            (" ", "is empty"),
            ("localhost", "begin with redis://"),
            ("localhost:6379", "begin with redis://"),
            ("secret@localhost:6379", "begin with redis://"),
            ("user:secret@localhost", "begin with redis://"),
            ("redis:/localhost", "begin with redis://"),
            ("http://localhost:6379", "scheme"),
            ("secret://localhost", "scheme"),
            ("tcp://localhost", "scheme"),
            ("valkey://localhost", "scheme is not one of redis, "),
            ("valkeys://:secret@localhost", "with TLS rediss, "),
            ("unix:///tmp/redis.sock", "redis+unix"),
            ("redis+cluster://:secret@one", "redis-cluster"),
            ("redis+sentinel://one/mymaster", "redis-sentinel"),
            ("redis://", "no host"),
            ("redis://:6379", "no host"),
            ("redis://:secret@", "no host"),
            ("redis://:secret@:6379", "no host"),
            ("redis://one:6379,two:6379", "several hosts"),
            ("redis://one,two", "several hosts"),
            ("redis://u:secret@one:7000,two:7001,[::1]/0", "several hosts"),
            ("redis://:secret@127.0.0.1;127.0.0.2", "several hosts"),
            ("redis://${SECRET}:6379", "character"),
            ("redis://<host>", "character"),
            ("redis://local host", "character"),
            ("redis://local\0host", "character"),
            ("redis://localhost:port", "port"),
            ("redis://localhost:0", "port"),
            ("redis://localhost:65536", "port"),
            ("redis://localhost:-1", "port"),
            ("redis://user:secret:6379", "brackets"),
            ("redis://::1:6379", "brackets"),
            ("redis://[::1", "not closed"),
            ("redis://[::1]6379", "port"),
            ("redis://:secret/x@localhost", "%2F"),
            ("redis://:12/secret@localhost:6379/", "%2F"),
            ("redis://:p@ss/secret@localhost", "%40"),
            ("redis://u:12/secret@localhost:6379/", "%2F"),
            ("redis://:secret?x@localhost", "%3F"),
            ("redis://:secret#x@localhost", "%23"),
            ("redis://:%FFsecret@localhost", "UTF-8"),
            ("redis://localhost/database", "database"),
            ("redis://localhost/-1", "database"),
            ("redis://localhost/0/1", "database"),
            ("redis://localhost/0#secret", "fragment"),
            ("redis://localhost?timeout=5", "Client::builder"),
            ("redis://localhost?secret", "unknown parameter"),
            ("redis://localhost?protocol=4", "resp3"),
            ("redis://localhost?db=1", "not parameters"),
            ("redis://localhost?node=secret:7001", "redis-cluster://one:7000,two:7001"),
            ("redis://localhost?password=secret", "not parameters"),
            ("redis+unix://", "no path"),
            ("redis+unix:///", "no path"),
            ("redis+unix://relative/path.sock", "absolute"),
            ("redis+unix:///tmp/redis.sock?db=one", "number"),
            ("redis+unix:///tmp/redis.sock?passwd=secret", "unknown parameter"),
        ] {
            let why = explain_url(url).unwrap_or_else(|| panic!("{url} is not explained"));
            assert!(why.contains(word), "{url}: {why}");
            assert!(!why.contains("secret"), "{url}: {why}");
            assert!(!why.contains(". ") && why.len() < 200, "one sentence for {url}: {why}");
        }
    }

    #[test]
    fn a_fragment_of_tls_is_insecure_or_none() {
        if cfg!(feature = "tls") {
            assert!(explain_url("rediss://localhost/#secure").unwrap().contains("#insecure"));
        }
    }
}
