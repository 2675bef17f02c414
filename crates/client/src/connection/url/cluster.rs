//! A URL of a cluster: taken apart, and each of its hosts looked at as a URL of its own.

use redis::{ConnectionInfo, IntoConnectionInfo};

use super::{ESCAPE, explain, parted};

/// The parts of a cluster's URL: its servers, or some of them, which name the others.
#[derive(Debug)]
pub(in crate::connection) struct ClusterUrl {
    pub(in crate::connection) nodes: Vec<ConnectionInfo>,
}

impl ClusterUrl {
    /// `None`: the URL is of another kind. `Err`: the fault, without a word of the URL.
    pub(in crate::connection) fn parse(url: &str) -> Option<Result<Self, String>> {
        let (scheme, rest) = url.trim().split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        Some(Self::of(scheme.strip_suffix("-cluster")?, rest))
    }

    fn of(plain: &str, rest: &str) -> Result<Self, String> {
        let (rest, fragment) = parted(rest, '#');
        let (rest, query) = parted(rest, '?');
        let (authority, path) = parted(rest, '/');
        let strays = [path, query, fragment];
        if strays.into_iter().flatten().any(|it| it.contains('@')) {
            return Err(format!("the URL's user or password ends too early: {ESCAPE}"));
        }
        if !matches!(path.unwrap_or_default().trim_end_matches('/'), "" | "0") {
            return Err("a cluster has no databases but 0".to_owned());
        }
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let info = |host: &str| -> Result<ConnectionInfo, String> {
            let login = if user.is_empty() { String::new() } else { format!("{user}@") };
            let mut url = format!("{plain}://{login}{host}/");
            if let Some(query) = query {
                url.push_str(&format!("?{query}"));
            }
            if let Some(fragment) = fragment {
                url.push_str(&format!("#{fragment}"));
            }
            if let Some(why) = explain(&url) {
                return Err(why);
            }
            url.into_connection_info().map_err(|_| "the URL is not usable".to_owned())
        };
        Ok(Self { nodes: hosts.split(',').map(str::trim).map(info).collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<ClusterUrl, String> {
        ClusterUrl::parse(url).unwrap_or_else(|| panic!("{url} is of another kind"))
    }

    #[test]
    fn a_list_of_servers_is_read() {
        for url in [
            "redis-cluster://u:p%2Fw@one:1,two,[::1]:3",
            "REDIS-Cluster://u:p%2Fw@one:1, two,[::1]:3/",
            "redis-cluster://u:p%2Fw@one:1,two,[::1]:3/0?protocol=resp3",
        ] {
            let read = parse(url).unwrap();
            let addresses: Vec<_> = read.nodes.iter().map(|info| info.addr().to_string()).collect();
            assert_eq!(addresses, ["one:1", "two:6379", "::1:3"], "{url}");
            for info in &read.nodes {
                let login = (info.redis_settings().username(), info.redis_settings().password());
                assert_eq!(login, (Some("u"), Some("p/w")), "{url}");
            }
        }
        assert!(ClusterUrl::parse("redis://localhost").is_none());
    }

    #[test]
    fn an_unusable_url_is_explained_and_its_password_not_repeated() {
        for (url, word) in [
            ("redis-cluster://", "no host"),
            ("redis-cluster://one,,two", "no host"),
            ("redis-cluster://:secret@", "no host"),
            ("redis-cluster://one:port", "port"),
            ("redis-cluster://one/1", "databases"),
            ("redis-cluster://one/secret", "databases"),
            ("redis-cluster://secret@one", "no password"),
            ("redis-cluster://:secret/x@one", "%2F"),
            ("redis-cluster://:p@ss/secret@one", "%40"),
            ("redis-cluster://:secret#x@one", "%23"),
            ("redis-cluster://one?secret=1", "unknown parameter"),
            ("redis-cluster://one#secret", "fragment"),
            ("redis-cluster://one?node=two", "one list"),
            ("valkey-cluster://one", "redis-cluster"),
        ] {
            let Err(why) = parse(url) else { panic!("{url} is taken") };
            assert!(why.contains(word), "{url}: {why}");
            assert!(!why.contains("secret"), "{url}: {why}");
            assert!(!why.contains(". ") && why.len() < 240, "one sentence for {url}: {why}");
        }
    }
}
