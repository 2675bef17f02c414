//! A URL of Sentinels: taken apart, and each of its hosts looked at as a URL of its own.

use redis::{ConnectionInfo, IntoConnectionInfo};

use super::{ESCAPE, decoded, explain, parted};

const PORT: u16 = 26_379;

/// The parts of a URL of Sentinels.
pub(in crate::connection) struct SentinelUrl {
    /// The Sentinels' name for the master.
    pub(in crate::connection) service: String,
    /// Each with its access data.
    pub(in crate::connection) sentinels: Vec<ConnectionInfo>,
    /// The servers' access data, with a dummy address.
    pub(in crate::connection) server: ConnectionInfo,
}

impl SentinelUrl {
    /// `None`: the URL is of another kind. `Err`: the fault, without a word of the URL.
    pub(in crate::connection) fn parse(url: &str) -> Option<Result<Self, String>> {
        let (scheme, rest) = url.trim().split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        Some(Self::of(scheme.strip_suffix("-sentinel")?, rest))
    }

    fn of(plain: &str, rest: &str) -> Result<Self, String> {
        let say = |why: &str| why.to_owned();
        let (rest, fragment) = parted(rest, '#');
        let (rest, query) = parted(rest, '?');
        let (authority, path) = parted(rest, '/');
        let strays = [path, fragment];
        if strays.into_iter().flatten().any(|it| it.contains('@')) {
            return Err(format!("the URL's user or password ends too early: {ESCAPE}"));
        }
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let hosts: Vec<_> = hosts.split(',').map(str::trim).collect();
        let (mut protocol, mut login) = ("", ["", ""]);
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = parted(pair, '=');
            let value = value.unwrap_or_default();
            match name {
                "sentinelUsername" => login[0] = value,
                "sentinelPassword" => login[1] = value,
                "protocol" => protocol = value,
                _ if pair.contains('@') => {
                    return Err(format!("the URL's user or password ends too early: {ESCAPE}"));
                }
                _ => {
                    return Err(say("the URL has an unknown parameter (known: sentinelUsername, \
                         sentinelPassword and protocol); write hosts and master before it, as in \
                         redis-sentinel://one,two/mymaster; timeouts and the like are settings of \
                         Client::builder"));
                }
            }
        }
        let path = path.unwrap_or_default().trim_end_matches('/');
        let (service, database) = match parted(path, '/') {
            ("", _) => {
                return Err(say(
                    "the URL lacks the Sentinels' name of the master: write it after the hosts, as \
                     in redis-sentinel://one,two/mymaster",
                ));
            }
            (number, None) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                return Err(say(
                    "write the Sentinels' name of the master after the hosts, and then the number \
                     of a database, as in /mymaster/0 (a name that is a number needs the database)",
                ));
            }
            (name, database) => (name, database.unwrap_or_default()),
        };
        let service = decoded(service)
            .ok_or_else(|| say("the name of the master in the URL is no UTF-8 text"))?;
        let info = |login: &str, host: &str, database: &str| -> Result<ConnectionInfo, String> {
            let login = if login.is_empty() { String::new() } else { format!("{login}@") };
            let host = with_port(host);
            let mut url = format!("{plain}://{login}{host}/{database}");
            if !protocol.is_empty() {
                url.push_str(&format!("?protocol={protocol}"));
            }
            if let Some(fragment) = fragment {
                url.push_str(&format!("#{fragment}"));
            }
            if let Some(why) = explain(&url) {
                return Err(why);
            }
            url.into_connection_info().map_err(|_| say("the URL is not usable"))
        };
        let login = match login.map(as_login) {
            [user, password] if user.is_empty() && password.is_empty() => String::new(),
            [_, password] if password.is_empty() => {
                return Err(say("the URL has a sentinelUsername and no sentinelPassword"));
            }
            [user, password] => format!("{user}:{password}"),
        };
        let server = info(user, hosts.first().copied().unwrap_or_default(), database)?;
        let sentinels = hosts.iter().map(|host| info(&login, host, ""));
        Ok(Self { service, sentinels: sentinels.collect::<Result<_, _>>()?, server })
    }
}

/// A parameter's value, as it stands before a host.
fn as_login(value: &str) -> String {
    value.replace('/', "%2F").replace('?', "%3F").replace('@', "%40").replace(':', "%3A")
}

fn with_port(host: &str) -> String {
    let name = host.rsplit_once(']').map_or(host, |(_, behind)| behind);
    if host.is_empty() || name.contains(':') { host.to_owned() } else { format!("{host}:{PORT}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<SentinelUrl, String> {
        SentinelUrl::parse(url).unwrap_or_else(|| panic!("{url} is of another kind"))
    }

    fn login(info: &ConnectionInfo) -> (Option<&str>, Option<&str>) {
        (info.redis_settings().username(), info.redis_settings().password())
    }

    #[test]
    fn hosts_master_database_and_both_logins_are_read() {
        for url in [
            "redis-sentinel://u:p%2Fw@one:1,two,[::1]:3/the%20name/5?sentinelUsername=v&sentinelPassword=q:@/w",
            "REDIS-Sentinel://u:p%2Fw@one:1,two,[::1]:3/the%20name/5/?sentinelUsername=v&sentinelPassword=q%3A%40%2Fw",
        ] {
            let read = parse(url).unwrap();
            assert_eq!(read.service, "the name", "{url}");
            let addresses: Vec<_> =
                read.sentinels.iter().map(|info| info.addr().to_string()).collect();
            assert_eq!(addresses, ["one:1", "two:26379", "::1:3"], "{url}");
            assert!(read.sentinels.iter().all(|info| login(info) == (Some("v"), Some("q:@/w"))));
            assert_eq!(login(&read.server), (Some("u"), Some("p/w")), "{url}");
            assert_eq!(read.server.redis_settings().db(), 5, "{url}");
        }
        let read = parse("redis-sentinel://localhost/mymaster").unwrap();
        assert_eq!((login(&read.server), login(&read.sentinels[0])), ((None, None), (None, None)));
        assert!(SentinelUrl::parse("redis://localhost").is_none());
        let read = parse("redis-sentinel://localhost/5/0").unwrap();
        assert_eq!((read.service.as_str(), read.server.redis_settings().db()), ("5", 0));
        let read = parse("redis-sentinel://a/m?sentinelPassword=word&protocol=resp3").unwrap();
        assert_eq!(login(&read.sentinels[0]), (None, Some("word")));
    }

    #[test]
    fn an_unusable_url_is_explained_and_its_password_not_repeated() {
        for (url, word) in [
            ("redis-sentinel://one:26379", "lacks the Sentinels' name"),
            ("redis-sentinel://one:26379/", "lacks the Sentinels' name"),
            ("redis-sentinel://one:26379/0", "/mymaster/0"),
            ("redis-sentinel://one/m/x", "database"),
            ("redis-sentinel://one/m/0/1", "database"),
            ("redis-sentinel:///m", "no host"),
            ("redis-sentinel://one,,two/m", "no host"),
            ("redis-sentinel://:secret@/m", "no host"),
            ("redis-sentinel://one:port/m", "port"),
            ("redis-sentinel://::1/m", "brackets"),
            ("redis-sentinel://secret@one/m", "no password"),
            ("redis-sentinel://:secret/x@one/m", "%2F"),
            ("redis-sentinel://:p@ss/secret@one/m", "%40"),
            ("redis-sentinel://:secret?x@one/m", "%3F"),
            ("redis-sentinel://:secret#x@one/m", "%23"),
            ("redis-sentinel://one/m?secret=1", "unknown parameter"),
            ("redis-sentinel://one/m?timeout=1", "Client::builder"),
            ("redis-sentinel://one/m?sentinelUsername=secret", "no sentinelPassword"),
            ("redis-sentinel://one/%FFsecret", "UTF-8"),
            ("redis-sentinel://one/5?sentinelMasterId=secret", "one,two/mymaster"),
            ("redis-sentinel://one/5?sentinelServiceName=secret", "one,two/mymaster"),
            ("redis-sentinel://one/m?node=secret", "one,two/mymaster"),
            ("redis-sentinel://one/m?protocol=4", "resp3"),
            ("redis-sentinel://one/m#secret", "fragment"),
            ("valkey-sentinel://one/m", "redis-sentinel"),
            ("redis+unix-sentinel://one/m", "path"),
        ] {
            let Err(why) = parse(url) else { panic!("{url} is taken") };
            assert!(why.contains(word), "{url}: {why}");
            assert!(!why.contains("secret"), "{url}: {why}");
            assert!(!why.contains(". ") && why.len() < 240, "one sentence for {url}: {why}");
        }
    }
}
