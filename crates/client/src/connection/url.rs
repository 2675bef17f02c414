//! The grammar of URLs. An error contains no part of the URL, because any part may be the password.

use std::net::Ipv6Addr;

use percent_encoding::percent_decode_str;
use redis::{ConnectionAddr, ProtocolVersion, RedisConnectionInfo};

use super::Credentials;

const PORT: u16 = 6_379;
const SENTINELS_PORT: u16 = 26_379;

/// The parsed URL.
#[derive(Debug)]
pub(super) struct Url {
    pub(super) kind: Topology,
    /// The server, or some servers of the cluster, or some Sentinels. There is at least one
    /// address.
    pub(super) hosts: Vec<ConnectionAddr>,
    /// The user, the password and the database at the servers.
    pub(super) settings: RedisConnectionInfo,
}

#[derive(Debug)]
pub(super) enum Topology {
    Server,
    Cluster,
    /// The Sentinels' name for the master, and the user and password at the Sentinels.
    Sentinels {
        service: String,
        settings: RedisConnectionInfo,
    },
}

const ESCAPE: &str =
    "in a user or a password write / as %2F, ? as %3F, # as %23, @ as %40 and % as %25";
const TOO_EARLY: &str = "the URL's user or password ends too early";
const NO_PATH: &str = "a socket's path is absolute: write three slashes after the scheme's colon";
const NO_SERVICE: &str = "the URL lacks the Sentinels' name of the master: write it after the \
                          hosts, as in redis-sentinel://one,two/mymaster";
const BEFORE_PARAMETERS: &str =
    "write hosts and master before it, as in redis-sentinel://one,two/mymaster; ";
const NUMBERED_SERVICE: &str = "write the Sentinels' name of the master after the hosts, and then the number of a database, as \
     in /mymaster/0 (a name that is a number needs the database)";

impl Url {
    /// Reads a URL. The error describes what is wrong, as a part of a sentence.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let url = url.trim();
        if url.is_empty() {
            return Err("the URL is empty; write one such as redis://localhost:6379".into());
        }
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err("the URL does not begin with redis://, as in redis://localhost:6379".into());
        };
        let scheme = scheme.to_ascii_lowercase();
        let secure = scheme.starts_with("rediss");
        match parted(&scheme, '-') {
            ("redis+unix", None) => Self::of_socket(rest),
            ("redis+unix", Some("cluster" | "sentinel")) => {
                Err("the path of a socket leads to one server: write redis+unix://".into())
            }
            ("rediss", None | Some("cluster" | "sentinel")) if cfg!(not(feature = "tls")) => {
                Err("this build has no TLS: enable redlatch's feature `tls`".into())
            }
            ("redis" | "rediss", None) => Self::of_server(&UrlParts::of(rest, secure)?),
            ("redis" | "rediss", Some("cluster")) => Self::of_cluster(&UrlParts::of(rest, secure)?),
            ("redis" | "rediss", Some("sentinel")) => {
                Self::of_sentinels(&UrlParts::of(rest, secure)?)
            }
            _ => Err("the URL's scheme is not one of redis, redis+unix, redis-cluster and \
                      redis-sentinel, or with TLS rediss, rediss-cluster and rediss-sentinel"
                .into()),
        }
    }

    fn of_socket(rest: &str) -> Result<Self, String> {
        let (rest, fragment) = parted(rest, '#');
        look_at_fragment(fragment, false)?;
        let (path, query) = parted(rest, '?');
        let known = ["db", "user", "pass", "protocol"];
        let [database, user, password, protocol] = parameters(query, known, "")?;
        let Ok(database) = database.map_or(Ok(0), str::parse) else {
            return Err("the URL's db is not the number of a database".into());
        };
        // A plus means a space, as in an HTML form.
        let [user, password] = [user, password].map(|it| it.unwrap_or_default().replace('+', " "));
        let settings = settings([&user, &password], database, protocol)?;
        match path.strip_prefix("localhost").unwrap_or(path) {
            "" | "/" => Err("the URL names no path".into()),
            path if path.starts_with('/') => {
                let hosts = vec![ConnectionAddr::Unix(decoded(path)?.into())];
                Ok(Self { kind: Topology::Server, hosts, settings })
            }
            _ => Err(NO_PATH.into()),
        }
    }

    fn of_server(parts: &UrlParts<'_>) -> Result<Self, String> {
        let [protocol] = parameters(parts.query, ["protocol"], "")?;
        let hosts = vec![parts.address(parts.hosts, PORT)?];
        let database = number_of(parts.path.trim_matches('/'))?;
        let settings = settings(parts.login, database, protocol)?;
        Ok(Self { kind: Topology::Server, hosts, settings })
    }

    fn of_cluster(parts: &UrlParts<'_>) -> Result<Self, String> {
        let [protocol] = parameters(parts.query, ["protocol"], "")?;
        if !matches!(parts.path.trim_end_matches('/'), "" | "0") {
            return Err("a cluster has no databases but 0".into());
        }
        let hosts = parts.addresses(PORT)?;
        Ok(Self { kind: Topology::Cluster, hosts, settings: settings(parts.login, 0, protocol)? })
    }

    fn of_sentinels(parts: &UrlParts<'_>) -> Result<Self, String> {
        let known = ["sentinelUsername", "sentinelPassword", "protocol"];
        let [user, password, protocol] = parameters(parts.query, known, BEFORE_PARAMETERS)?;
        let of_sentinels = [user, password].map(Option::unwrap_or_default);
        if of_sentinels[1].is_empty() && !of_sentinels[0].is_empty() {
            return Err("the URL has a sentinelUsername and no sentinelPassword".into());
        }
        let (service, database) = match parted(parts.path.trim_end_matches('/'), '/') {
            ("", _) => return Err(NO_SERVICE.into()),
            (number, None) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                return Err(NUMBERED_SERVICE.into());
            }
            (name, database) => (decoded(name)?, number_of(database.unwrap_or_default())?),
        };
        let settings_of_sentinels = settings(of_sentinels, 0, protocol)?;
        Ok(Self {
            kind: Topology::Sentinels { service, settings: settings_of_sentinels },
            hosts: parts.addresses(SENTINELS_PORT)?,
            settings: settings(parts.login, database, protocol)?,
        })
    }
}

/// The parts of a URL with hosts, after its scheme.
struct UrlParts<'a> {
    login: [&'a str; 2],
    hosts: &'a str,
    path: &'a str,
    query: Option<&'a str>,
    /// Whether TLS trusts any certificate. `None` for a URL without TLS.
    insecure: Option<bool>,
}

impl<'a> UrlParts<'a> {
    fn of(rest: &'a str, secure: bool) -> Result<Self, String> {
        let (rest, fragment) = parted(rest, '#');
        let (rest, query) = parted(rest, '?');
        let (authority, path) = parted(rest, '/');
        if [path, fragment].into_iter().flatten().any(|part| part.contains('@')) {
            return Err(format!("{TOO_EARLY}: {ESCAPE}"));
        }
        look_at_fragment(fragment, secure)?;
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let login = match parted(login, ':') {
            (user, Some(password)) => [user, password],
            ("", None) => ["", ""],
            (_, None) => {
                return Err("the URL has a user and no password; a password alone is written \
                            redis://:password@host"
                    .into());
            }
        };
        let insecure = secure.then_some(fragment.is_some());
        Ok(Self { login, hosts, path: path.unwrap_or_default(), query, insecure })
    }

    fn addresses(&self, usual_port: u16) -> Result<Vec<ConnectionAddr>, String> {
        let hosts = self.hosts.split(',').map(str::trim);
        hosts.map(|host| self.address(host, usual_port)).collect()
    }

    fn address(&self, host: &str, usual_port: u16) -> Result<ConnectionAddr, String> {
        let (host, port) = host_port(host, usual_port)?;
        Ok(match self.insecure {
            None => ConnectionAddr::Tcp(host, port),
            Some(insecure) => ConnectionAddr::TcpTls { host, port, insecure, tls_params: None },
        })
    }
}

/// The text before the first `mark`, and the text after it.
fn parted(text: &str, mark: char) -> (&str, Option<&str>) {
    text.split_once(mark).map_or((text, None), |(before, after)| (before, Some(after)))
}

/// Returns the decoded text. Line ends and tabs are dropped, because a URL has none.
fn decoded(encoded: &str) -> Result<String, String> {
    let encoded = encoded.replace(['\t', '\n', '\r'], "");
    let text = percent_decode_str(&encoded).decode_utf8().map(String::from);
    text.map_err(|_| format!("a part of the URL is no UTF-8 text: {ESCAPE}"))
}

fn look_at_fragment(fragment: Option<&str>, secure: bool) -> Result<(), String> {
    match fragment {
        None => Ok(()),
        Some("insecure") if secure => Ok(()),
        Some(_) if secure => Err("the only fragment that a URL may have is #insecure".into()),
        Some(_) => Err(format!("the URL has a fragment (#): {ESCAPE}")),
    }
}

/// The values of the `known` parameters. An error ends with `hint`.
fn parameters<'a, const N: usize>(
    query: Option<&'a str>,
    known: [&str; N],
    hint: &str,
) -> Result<[Option<&'a str>; N], String> {
    let mut values = [None; N];
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = parted(pair, '=');
        let Some(at) = known.iter().position(|known| *known == name) else {
            return Err(match name {
                "node" if hint.is_empty() => "write a URL's hosts in one list, as in \
                                              redis-cluster://one:7000,two:7001"
                    .into(),
                "db" | "user" | "pass" | "password" | "username" => {
                    "in a URL with a host, database, user and password are not parameters".into()
                }
                _ if pair.contains('@') => format!("{TOO_EARLY}: {ESCAPE}"),
                _ => format!(
                    "the URL has an unknown parameter (known: {}); {hint}timeouts and the like \
                     are settings of Client::builder",
                    known.join(", ")
                ),
            });
        };
        values[at] = Some(value.unwrap_or_default());
    }
    Ok(values)
}

fn settings(
    login: [&str; 2],
    database: u32,
    protocol: Option<&str>,
) -> Result<RedisConnectionInfo, String> {
    let protocol = match protocol {
        None | Some("2" | "resp2") => ProtocolVersion::RESP2,
        Some("3" | "resp3") => ProtocolVersion::RESP3,
        Some(_) => return Err("the URL's protocol is resp2 or resp3".into()),
    };
    let settings = RedisConnectionInfo::default().set_db(database.into()).set_protocol(protocol);
    let [user, password] = login.map(decoded);
    let (user, password) = (user?, password?);
    Ok(if password.is_empty() {
        settings
    } else {
        Credentials::new(&user, &password).in_place(&settings)
    })
}

fn number_of(database: &str) -> Result<u32, String> {
    let number = if database.is_empty() { Ok(0) } else { database.parse() };
    number.map_err(|_| "after the host comes the number of a database, as in /0".into())
}

fn host_port(host: &str, usual_port: u16) -> Result<(String, u16), String> {
    if host.contains([',', ';']) {
        return Err("the URL names several hosts, which is for a cluster (redis-cluster://) or \
                    for Sentinels (redis-sentinel://)"
            .into());
    }
    let (name, port) = match host.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(None) => {
            return Err(
                "the URL's host begins with a bracket that is not closed, as in [::1]".into()
            );
        }
        Some(Some((address, port))) => match address.parse::<Ipv6Addr>() {
            Ok(address) => (address.to_string(), port),
            Err(_) => return Err("the URL's host in brackets is no IPv6 address".into()),
        },
        None => {
            let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
            if port.get(1..).is_some_and(|port| port.contains(':')) {
                return Err("write an IPv6 address in brackets, as in redis://[::1]:6379".into());
            }
            (name.to_owned(), port)
        }
    };
    if name.is_empty() {
        return Err("the URL names no host, as in redis://localhost:6379".into());
    }
    if name.contains(|c: char| c.is_control() || " <>^|\\{}[]$\"`".contains(c)) {
        return Err("the URL's host has a character that no host's name has".into());
    }
    if ["0.0.0.0", "::"].contains(&&*name) {
        return Err("the URL's host is a wildcard, and no server's address".into());
    }
    let number = match port {
        "" | ":" => Some(usual_port),
        port => port.strip_prefix(':').and_then(|port| port.parse().ok()).filter(|port| *port > 0),
    };
    let Some(port) = number else {
        return Err(format!(
            "the URL's port is not a number from 1 to 65535; if what looks like a host and its \
             port is a user and a password: {ESCAPE}"
        ));
    };
    Ok((name, port))
}

#[cfg(test)]
mod tests;
