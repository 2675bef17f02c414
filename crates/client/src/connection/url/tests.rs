use redis::{IntoConnectionInfo, RedisConnectionInfo};

use super::*;

type Said<'a> = (Option<&'a str>, Option<&'a str>, i64, ProtocolVersion);

fn said(settings: &RedisConnectionInfo) -> Said<'_> {
    (settings.username(), settings.password(), settings.db(), settings.protocol())
}

fn addresses(url: &Url) -> Vec<String> {
    url.hosts.iter().map(ToString::to_string).collect()
}

fn sentinels(url: &str) -> (Url, String, RedisConnectionInfo) {
    let mut read = Url::parse(url).unwrap();
    let kind = std::mem::replace(&mut read.kind, Topology::Server);
    let Topology::Sentinels { service, settings } = kind else {
        panic!("{url} is of another kind")
    };
    (read, service, settings)
}

#[test]
fn a_usable_url_is_read_as_the_redis_crate_reads_it() {
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
        let read = Url::parse(url).unwrap_or_else(|why| panic!("{url}: {why}"));
        let info = url.into_connection_info().unwrap();
        assert_eq!(read.hosts, [info.addr().clone()], "{url}");
        assert_eq!(said(&read.settings), said(info.redis_settings()), "{url}");
    }
    for url in ["rediss://localhost/#insecure", "rediss://user:pw@host:1/2"] {
        let why = Url::parse(url).err().unwrap_or_default();
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
        ("redis-server://one", "scheme"),
        ("redis+unix-cluster:///tmp/redis.sock", "one server"),
        ("redis+unix:///tmp/redis.sock?db=", "number"),
        ("redis://[secret]", "IPv6"),
        ("redis://0.0.0.0", "wildcard"),
    ] {
        let Err(why) = Url::parse(url) else { panic!("{url} is taken") };
        assert!(why.contains(word), "{url}: {why}");
        assert!(!why.contains("secret"), "{url}: {why}");
        assert!(!why.contains(". ") && why.len() < 240, "one sentence for {url}: {why}");
    }
}

#[test]
fn the_fragment_of_a_tls_url_is_insecure_or_none() {
    if cfg!(feature = "tls") {
        assert!(Url::parse("rediss://localhost/#secure").unwrap_err().contains("#insecure"));
    }
}

#[test]
fn a_list_of_servers_is_read() {
    for (url, protocol) in [
        ("redis-cluster://u:p%2Fw@one:1,two,[::1]:3", ProtocolVersion::RESP2),
        ("REDIS-Cluster://u:p%2Fw@one:1, two,[::1]:3/", ProtocolVersion::RESP2),
        ("redis-cluster://u:p%2Fw@one:1,two,[::1]:3/0?protocol=resp3", ProtocolVersion::RESP3),
    ] {
        let read = Url::parse(url).unwrap();
        assert!(matches!(read.kind, Topology::Cluster), "{url}");
        assert_eq!(addresses(&read), ["one:1", "two:6379", "::1:3"], "{url}");
        assert_eq!(said(&read.settings), (Some("u"), Some("p/w"), 0, protocol), "{url}");
    }
}

#[test]
fn hosts_master_database_and_both_logins_are_read() {
    const RESP2: ProtocolVersion = ProtocolVersion::RESP2;
    for url in [
        "redis-sentinel://u:p%2Fw@one:1,two,[::1]:3/the%20name/5?sentinelUsername=v&sentinelPassword=q:@/w",
        "REDIS-Sentinel://u:p%2Fw@one:1,two,[::1]:3/the%20name/5/?sentinelUsername=v&sentinelPassword=q%3A%40%2Fw",
    ] {
        let (read, service, of_sentinels) = sentinels(url);
        assert_eq!(service, "the name", "{url}");
        assert_eq!(addresses(&read), ["one:1", "two:26379", "::1:3"], "{url}");
        assert_eq!(said(&of_sentinels), (Some("v"), Some("q:@/w"), 0, RESP2), "{url}");
        assert_eq!(said(&read.settings), (Some("u"), Some("p/w"), 5, RESP2), "{url}");
    }
    let (read, _, of_sentinels) = sentinels("redis-sentinel://localhost/mymaster");
    assert_eq!(said(&read.settings), (None, None, 0, RESP2));
    assert_eq!(said(&of_sentinels), (None, None, 0, RESP2));
    let (read, service, _) = sentinels("redis-sentinel://localhost/5/0");
    assert_eq!((service.as_str(), read.settings.db()), ("5", 0));
    let (_, _, of_sentinels) = sentinels("redis-sentinel://a/m?sentinelPassword=word&protocol=3");
    assert_eq!(said(&of_sentinels), (None, Some("word"), 0, ProtocolVersion::RESP3));
}
