//! `redlatch acl`: a server runs the printed line.

use crate::common::*;
use redlatch_testkit::Server;

/// Gives the printed rights to a user without rights, and returns the user's URL.
pub(crate) fn user(server: &Server, words: &[&str]) -> String {
    let mut redis = server.connection();
    let rules = ["SETUSER", "app", "reset", "on", ">word"];
    redis::cmd("ACL").arg(&rules).exec(&mut redis).unwrap();
    let output = output("redis://127.0.0.1:1", &[&["acl"], words].concat());
    let line = String::from_utf8(output.stdout).unwrap();
    assert_eq!(line.lines().count(), 1, "{words:?}: {line} {:?}", output.stderr);
    let mut words = line.split_whitespace();
    redis::cmd(words.next().unwrap()).arg(words.collect::<Vec<_>>()).exec(&mut redis).unwrap();
    server.url().replace("redis://", "redis://app:word@")
}

#[test]
fn the_printed_rights_are_enough_for_the_name_and_for_no_other() {
    let server = server();
    for (options, kind) in [
        (&[][..], "lock"),
        (&["--fenced"], "fenced"),
        (&["--fair"], "fair"),
        (&["-s"], "read-write"),
        (&["-x"], "read-write"),
        (&["--permits", "2"], "expirable-semaphore"),
    ] {
        for (given, name, other) in [
            ("orders", "orders", "orders2"),
            ("ord*", "orders", "stock"),
            ("a[b]* c", "a[b]* c", "ab c"),
            ("shop:{1}", "shop:{1}", "shop:1"),
            ("lock", "lock", "lock2"),
        ] {
            let url = user(&server, &[given, "--for", kind]);
            let run = |name| ends(&url, &[&["run"], options, &[name, "true"]].concat());
            assert_eq!(run(name), (0, String::new()), "{kind} {given}");
            let (status, said) = run(other);
            assert!(status == 77 && said.contains("ACL"), "{kind} {given}: {status} {said}");
        }
    }
}

#[test]
fn a_waiter_and_who_need_the_rights_that_are_printed_for_them() {
    let server = server();
    let holder = client(&server).reentrant_lock("orders").lock_owned().unwrap();
    for uses in ["lock", "lock,status"] {
        let url = user(&server, &["orders", "--for", uses]);
        let (status, said) = ends(&url, &["who", "orders"]);
        assert_eq!(status, if uses == "lock" { 77 } else { 0 }, "{said}");
    }
    let url = user(&server, &["orders", "--for", "lock,status"]);
    assert!(ends(&url, &["ls"]).1.is_empty());
    let mut waiter = redlatch(&url).args(["run", "orders", "true"]).spawn().unwrap();
    wait_in_line(&client(&server), "orders", 1);
    holder.unlock().unwrap();
    assert!(waiter.wait().unwrap().success());
}

#[test]
fn a_latch_a_prefix_and_a_users_name_are_in_the_line() {
    let server = server();
    let url = user(&server, &["ready", "--for", "latch", "--prefix", "shop:"]);
    let latch =
        |words: &[&str]| ends(&url, &[&["--prefix", "shop:", "latch", "ready"], words].concat());
    assert_eq!(latch(&["--set", "1"]), (0, String::new()));
    assert_eq!(latch(&["--count-down"]), (0, String::new()));
    assert_eq!(latch(&["--wait", "9"]), (0, String::new()));
    assert_eq!(ends("", &["acl", ""]).0, 78);
    assert_eq!(ends("", &["acl", "orders", "--user", "bob +@all"]).0, 64);
    assert_eq!(ends("", &["acl", "orders", "--user", ""]).0, 64);
    let line = output("", &["acl", "orders", "--user", "bob"]).stdout;
    assert!(line.starts_with(b"ACL SETUSER bob ~orders ~redlatch_"));
}
