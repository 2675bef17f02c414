//! `redlatch doctor`: the properties of a server, and what they cost.

use redlatch::Rights;
use redlatch::status::ServerInfo;

use crate::acl::Use;
use crate::args::Args;
use crate::print;
use crate::trouble::{Trouble, shown};

/// Prints a line for each property of the server. A line about a cost begins with `!`. If the user
/// lacks rights, the status is that of a refusal.
pub(crate) fn doctor(args: &Args, name: &str, uses: &[Use]) -> Result<u8, Trouble> {
    let url = args.url()?;
    let is_cluster = url.split(':').next().is_some_and(|scheme| scheme.ends_with("-cluster"));
    let client = args.client()?.connect()?;
    let mut text = String::new();
    for server in client.server_infos()? {
        text += &format!("{}\n", server.address);
        for (topic, fact, cost) in facts(&server, is_cluster) {
            text += &line(topic, &fact, cost);
        }
    }
    text += &format!("rights for the name {}\n", shown(name));
    let mut status = 0;
    // A command may wait for each use, so each use needs subscriptions.
    let waiting = [("wait".to_owned(), Rights::Subscriptions)];
    for (word, rights) in uses.iter().map(|it| (it.word(), it.rights())).chain(waiting) {
        match client.check_rights(rights, name) {
            Ok(()) => text += &line(&word, "enough", ""),
            Err(error) => {
                let trouble = Trouble::from(error);
                status = trouble.status;
                text += &line(&word, &trouble.message, "see redlatch acl");
            }
        }
    }
    print(text.as_bytes())?;
    Ok(status)
}

fn line(topic: &str, fact: &str, cost: &str) -> String {
    let (mark, more) = if cost.is_empty() { (" ", "") } else { ("!", ": ") };
    format!("{mark} {topic}: {}{more}{cost}\n", shown(fact))
}

/// Returns the properties of a server, each with its cost, or an empty text if there is no cost.
fn facts(server: &ServerInfo, is_cluster: bool) -> Vec<(&'static str, String, &'static str)> {
    let field = |name| server.field(name);
    let is = |name, value| server.field(name) == Some(value);
    let Some(version) = field("redis_version") else {
        let fact = "unknown".to_owned();
        return vec![("server", fact, "the user lacks the right to INFO, or the server has none")];
    };
    let mut all = vec![("version", program(server, version), "")];

    let is_replica = is("role", "slave");
    all.push(match (is_replica, field("connected_slaves")) {
        (true, _) => (
            "role",
            "a replica that accepts writes".to_owned(),
            "a lock here and a lock at its master do not exclude each other",
        ),
        (false, None | Some("0")) => (
            "role",
            "a master without replicas".to_owned(),
            "there is no failover; if the machine is lost, all locks, counts and tokens are, too",
        ),
        (false, Some(replicas)) => (
            "role",
            format!("a master; replicas: {replicas}"),
            "a failover may lose the newest locks and tokens, unless replica_acks is set",
        ),
    });

    let policy = field("maxmemory_policy").unwrap_or("noeviction");
    let most = field("maxmemory").filter(|most| *most != "0");
    all.push(match (policy, most) {
        ("noeviction", Some(most)) => ("eviction", format!("none, at most {most} bytes"), ""),
        (policy, None) => ("eviction", format!("none ({policy}, without maxmemory)"), ""),
        (policy, Some(most)) => (
            "eviction",
            format!("{policy}, at most {most} bytes"),
            "a full server frees locks that are held: set maxmemory-policy noeviction",
        ),
    });

    let has_failed = |name| field(name).is_some_and(|status| status != "ok");
    all.push(if has_failed("rdb_last_bgsave_status") || has_failed("aof_last_write_status") {
        (
            "persistence",
            "the last save failed".to_owned(),
            "the server may refuse all writes, and so all locks",
        )
    } else if is("aof_enabled", "1") {
        (
            "persistence",
            "append-only file".to_owned(),
            "with appendfsync everysec, a crash of the machine loses the locks of a second",
        )
    } else {
        (
            "persistence",
            "no append-only file".to_owned(),
            "a restart frees the locks since the last snapshot, and their tokens may come again",
        )
    });

    all.push(match (is("cluster_enabled", "1"), is_cluster) {
        (true, false) => (
            "cluster",
            "yes, but the URL names one server".to_owned(),
            "it serves only some of the names: use redis-cluster://",
        ),
        (true, true) => ("cluster", "yes".to_owned(), ""),
        (false, _) => ("cluster", "no".to_owned(), ""),
    });
    all
}

/// Returns the server program and its version. Some programs report only the Redis version with
/// which they are compatible.
fn program(server: &ServerInfo, version: &str) -> String {
    let others = [
        ("Valkey", "valkey_version"),
        ("Redict", "redict_version"),
        ("Garnet", "garnet_version"),
        ("Dragonfly", "dragonfly_version"),
        ("Kvrocks", "kvrocks_version"),
    ];
    let mut found = others.iter().filter_map(|(name, field)| Some((name, server.field(field)?)));
    found.next().map_or_else(
        || format!("Redis {version}"),
        |(name, own)| format!("{name} {own} (as Redis {version})"),
    )
}
