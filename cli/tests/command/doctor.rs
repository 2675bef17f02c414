//! `redlatch doctor`.

use crate::acl::user;
use crate::common::*;
use redlatch_testkit::{Cluster, Server};

fn set(server: &Server, setting: &str, value: &str) {
    let set = [("SET", setting, value)];
    redis::cmd("CONFIG").arg(&set).exec(&mut server.connection()).unwrap();
}

/// Returns the status and the output.
fn says(url: &str, words: &[&str]) -> (Option<i32>, String) {
    let output = output(url, &[&["doctor"], words].concat());
    let [said, trouble] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    assert!(said.is_empty() || trouble.is_empty(), "{said}{trouble}");
    (output.status.code(), said + &trouble)
}

#[test]
fn doctor_names_what_a_server_costs() {
    let server = server();
    let url = server.url();
    let (status, said) = says("", &[&url]);
    assert_eq!(status, Some(0), "{said}");
    for part in [
        "  version: ",
        "! role: a master without replicas: there is no failover",
        "  eviction: none (noeviction, without maxmemory)",
        "! persistence: no append-only file: a restart frees",
        "  cluster: no",
        "rights for the name redlatch-doctor\n  lock: enough",
    ] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    set(&server, "maxmemory", "100000000");
    assert!(says(&url, &[]).1.contains("  eviction: none, at most 100000000 bytes\n"));
    set(&server, "maxmemory-policy", "allkeys-lru");
    set(&server, "appendonly", "yes");
    let (_, said) = says(&url, &[]);
    assert!(said.contains("! eviction: allkeys-lru, at most 100000000 bytes: a full"), "{said}");
    assert!(said.contains("! persistence: append-only file: with appendfsync"), "{said}");
}

#[test]
fn doctor_says_which_rights_are_missing_for_which_use() {
    let server = server();
    let uses = "lock,fenced,fair,read-write,condition,semaphore,expirable-semaphore,latch,barrier,\
                election,status,role,replica-acks";
    let url = user(&server, &["orders", "--for", uses]);
    let (status, said) = says(&url, &["--name", "orders", "--for", uses]);
    assert_eq!((status, said.matches(": enough").count()), (Some(0), 14), "{said}");
    // The user has rights for a lock, for a wait, and for `connect`, which reads the role.
    let url = user(&server, &["orders"]);
    let (status, said) = says(&url, &["--name", "orders", "--for", uses]);
    assert_eq!((status, said.matches(": enough").count()), (Some(77), 3), "{said}");
    assert!(said.contains("\n  lock: enough\n! fenced: "), "{said}");
    assert!(said.contains(": see redlatch acl\n"), "{said}");
    let (status, said) = says(&url, &[]);
    assert!(status == Some(77) && said.contains("\n! lock: \"redlatch-doctor\""), "{said}");
    for right in ["-info", "-subscribe"] {
        redis::cmd("ACL").arg(&["SETUSER", "app", right]).exec(&mut server.connection()).unwrap();
    }
    let (_, said) = says(&url, &["--name", "orders"]);
    assert!(said.contains("! server: unknown: the user lacks the right to INFO"), "{said}");
    assert!(said.contains("SUBSCRIBE"), "{said}");
}

#[test]
fn doctor_knows_a_cluster_and_a_replica() {
    let cluster = Cluster::start().unwrap();
    let (status, said) = says(&cluster.url(), &["--for", "lock,cluster"]);
    assert_eq!((status, said.matches("  cluster: yes\n").count()), (Some(0), 3), "{said}");
    assert!(said.contains("! role: a master; replicas: 1: a failover may lose"), "{said}");
    let (_, said) = says(&cluster.servers()[0].url(), &[]);
    assert!(said.contains("! cluster: yes, but the URL names one server: it serves"), "{said}");
    let master = server();
    let replica = Server::start().unwrap();
    let (host, port) = ("127.0.0.1", master.port().to_string());
    let follow = |redis: &mut redis::Connection| {
        redis::cmd("REPLICAOF").arg(&[host, &port]).exec(redis).unwrap();
    };
    follow(&mut replica.connection());
    let (status, said) = says(&replica.url(), &[]);
    assert!(status == Some(69) && said.contains("read-only replica"), "{said}");
    set(&replica, "replica-read-only", "no");
    assert!(says(&replica.url(), &[]).1.contains("! role: a replica that accepts writes: a lock"));
}
