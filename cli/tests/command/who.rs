//! The output of `redlatch`, and the recipes of docs/shell.md.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::*;
use redlatch::Lock;
use rustix::process::Signal;
use serde_json::{Value, json};

fn prints(url: &str, words: &[&str]) -> String {
    let output = output(url, words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns a status without the values that change with time.
fn without_times(mut status: Value) -> Value {
    status["holders"][0]["left_ms"].take();
    status["queue"][0]["waited_ms"].take();
    status["holders"][0]["process"]["address"].take();
    status["queue"][0]["process"]["address"].take();
    status
}

#[test]
fn who_and_ls_name_holders_and_waiters() {
    let server = server();
    let url = server.url();
    let watcher = client(&server);
    let mut holder = start(&url, &[], "orders", "echo on; while :; do sleep 0.05; done");
    holder.line();
    let mut waiter = redlatch(&url).args(["run", "orders", "true"]).spawn().unwrap();
    wait_in_line(&watcher, "orders", 1);
    let page = prints(&url, &["who", "orders"]);
    let (holds, waits) = (holder.wrapper.id(), waiter.id());
    for part in ["orders: lock", &format!("process {holds} "), &format!("process {waits} ")] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    let object: Value = serde_json::from_str(&prints(&url, &["who", "orders", "--json"])).unwrap();
    assert_eq!((&object["version"], &object["kind"]), (&json!(1), &json!("Lock")));
    assert_eq!(object["holders"][0]["process"]["pid"], holds);
    assert_eq!(object["queue"][0]["process"]["pid"], waits);
    let mut ours = json!(watcher.status("orders").unwrap());
    ours["version"] = json!(1);
    assert_eq!(without_times(ours), without_times(object));
    let lines = prints(&url, &["ls", "--json"]);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["name"], "orders");
    assert!(prints(&url, &["ls", "ord*"]).starts_with("orders\tlock\t"));
    assert_eq!(prints(&url, &["ls", "x*"]), "");
    holder.signal(Signal::TERM);
    assert_eq!(holder.status(), Some(143));
    assert!(waiter.wait().unwrap().success());
    let guard = watcher.reentrant_lock("a\u{1b}[7m\nb\tlock").lock().unwrap();
    let line = prints(&url, &["ls", "a*"]);
    assert!(line.starts_with("a\\u001b[7m\\nb\\tlock\tlock\t"), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(!prints(&url, &["who", guard.name()]).contains('\u{1b}'));
    guard.unlock().unwrap();
    let free = output(&url, &["who", "orders"]);
    assert_eq!((free.status.code(), &*free.stderr), (Some(1), &b""[..]));
    assert!(free.stdout.starts_with(b"orders: free"));
    let free = output(&url, &["who", "orders", "--json"]);
    assert!(free.status.code() == Some(1) && free.stdout.starts_with(b"{"), "{free:?}");
}

/// The key of a fenced lock's tokens remains after a release, and permits may be free without a
/// holder.
#[test]
fn who_says_by_its_status_whether_a_lock_is_free() {
    let (server, status) = (server(), |url: &str, name| ends(url, &["who", name]).0);
    let (url, client) = (server.url(), client(&server));
    let fenced = client.fenced_lock("fenced");
    let guard = fenced.lock().unwrap();
    assert_eq!(status(&url, "fenced"), 0);
    guard.unlock().unwrap();
    assert_eq!(status(&url, "fenced"), 1);
    client.semaphore("slots").set_permits(1).unwrap();
    assert_eq!(status(&url, "slots"), 0);
}

#[test]
fn a_wait_ends_when_the_lock_is_free_and_does_not_take_it() {
    let server = server();
    let (url, client) = (server.url(), client(&server));
    assert_eq!(ends(&url, &["wait", "orders"]), (0, String::new()));
    let read_write = client.read_write_lock("index");
    let locks: [Box<dyn Lock>; 5] = [
        Box::new(client.reentrant_lock("orders")),
        Box::new(client.fair_lock("fair")),
        Box::new(client.fenced_lock("fenced")),
        Box::new(read_write.reader().clone()),
        Box::new(read_write.writer().clone()),
    ];
    for lock in locks {
        let guard = lock.lock().unwrap();
        let limited = ["wait", lock.name(), "--limit", "0.2"];
        let (status, said) = ends(&url, &limited);
        let line = format!("redlatch: {} is not free\n", lock.name());
        assert_eq!((status, said), (75, line));
        assert_eq!(ends(&url, &[&limited[..], &["-q"]].concat()), (75, String::new()));
        let mut waits = redlatch(&url).args(["wait", lock.name()]).spawn().unwrap();
        thread::sleep(Duration::from_millis(300));
        assert_eq!(waits.try_wait().unwrap(), None, "{}", lock.name());
        guard.unlock().unwrap();
        assert!(waits.wait().unwrap().success());
        assert!(!lock.is_locked().unwrap());
    }
    // The end of a lease sends no message.
    client
        .reentrant_lock("orders")
        .with_lease(Duration::from_millis(500))
        .lock()
        .unwrap()
        .leave_to_expire()
        .unwrap();
    assert_eq!(ends(&url, &["wait", "orders", "--limit", "30"]).0, 0);
    client.semaphore("slots").set_permits(1).unwrap();
    assert_eq!(ends(&url, &["wait", "slots"]).0, 64);
}

/// Any client may write an owner, as an element of a list or as a permit's id.
#[test]
fn control_characters_in_an_owner_do_not_reach_the_terminal() {
    let server = server();
    let (url, client, mut redis) = (server.url(), client(&server), server.connection());
    let owner = "x\u{1b}[2J\n\u{9b}31m";
    let fair = client.fair_lock("fair").lock().unwrap();
    let slots = client.expirable_semaphore("slots");
    slots.set_permits(2).unwrap();
    let permit = slots.acquire().unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*slots*").query(&mut redis).unwrap();
    for key in keys {
        let mut add = redis::cmd("ZADD");
        let _not_the_others = add.arg(key).arg(i64::MAX / 1024).arg(owner).exec(&mut redis);
    }
    redis::cmd("RPUSH").arg(("redisson_lock_queue:{fair}", owner)).exec(&mut redis).unwrap();
    redis::cmd("SET").arg((owner, "no lock")).exec(&mut redis).unwrap();
    for words in [&["who", "slots"][..], &["who", "fair"], &["ls"]] {
        for json in [false, true] {
            let said = prints(&url, &[words, if json { &["--json"] } else { &[] }].concat());
            assert_eq!(said.find(|it: char| it.is_control() && !"\n\t".contains(it)), None);
            if json || words[0] == "who" {
                assert!(said.contains("x\\u001b[2J\\n\\u009b31m"), "{said}");
            }
        }
    }
    let (_, said) = ends(&url, &["unlock", owner, "--force"]);
    assert!(said.starts_with("redlatch: x\\u001b[2J\\n\\u009b31m is not a lock"), "{said}");
    permit.release().unwrap();
    fair.unlock().unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_printed_is_trouble_unless_its_reader_is_gone() {
    let server = server();
    let _held = client(&server).reentrant_lock("orders").lock_owned().unwrap();
    for (words, stdout, status) in [
        (&["who", "orders"][..], "/dev/full", 70),
        (&["who", "orders"], "/dev/null", 0),
        (&["top"], "/dev/full", 70),
    ] {
        let file = File::options().write(true).open(stdout).unwrap();
        let ended = redlatch(&server.url()).args(words).stdout(file).output().unwrap();
        assert_eq!(ended.status.code(), Some(status), "{words:?} {stdout}");
        assert_eq!(ended.stderr.is_empty(), status == 0, "{words:?} {stdout}");
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = redlatch(&server.url()).args(["who", "orders"]).stdout(writer).output().unwrap();
    assert_eq!((ended.status.code(), &*ended.stderr), (Some(0), &b""[..]));
}

#[test]
fn top_prints_scan_after_scan_until_its_reader_is_gone() {
    let server = server();
    let url = server.url();
    let mut holder = start(&url, &[], "orders", "echo on; while :; do sleep 0.05; done");
    holder.line();
    for json in [false, true] {
        let mut top = redlatch(&url);
        top.args(["top", "--every", "50ms", "ord*"]).args(json.then_some("--json"));
        let mut top = top.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
        for scan in 1..=3 {
            let line = lines.next().unwrap().unwrap();
            if json {
                let object: Value = serde_json::from_str(&line).unwrap();
                let said = (&object["version"], &object["scan"], &object["name"]);
                assert_eq!(said, (&json!(1), &json!(scan), &json!("orders")));
            } else {
                assert!(line.starts_with("orders\tlock\t"), "{line}");
                assert_eq!(lines.next().unwrap().unwrap(), "");
            }
        }
        drop(lines);
        assert_eq!(top.wait().unwrap().code(), Some(0));
    }
    holder.signal(Signal::TERM);
    assert_eq!(holder.status(), Some(143));
}

#[test]
fn a_lock_is_freed_by_hand() {
    let server = server();
    let url = server.url();
    assert_eq!(ends(&url, &["unlock", "orders"]).0, 64);
    assert_eq!(ends(&url, &["unlock", "orders", "--force"]).0, 75);
    let (status, said) = ends(&url, &["unlock", "orders", "--owner", "somebody"]);
    assert!(status == 64 && said.contains("a client's uuid, a colon and a number"), "{said}");
    for options in [&[][..], &["--fair"], &["--fenced"], &["-s"], &["-x"]] {
        for force in [true, false] {
            let mut holder = start(&url, options, "orders", "echo on; sleep 60 & wait");
            holder.line();
            let owner = client(&server).status("orders").unwrap().holders[0].owner.to_string();
            let another = format!("{owner}1");
            assert_eq!(ends(&url, &["unlock", "orders", "--owner", &another]).0, 75);
            if force {
                let (status, said) = ends(&url, &["unlock", "orders", "--force"]);
                assert!(status == 0 && said.contains("loses the lock"), "{options:?}: {said}");
            } else {
                assert_eq!(ends(&url, &["unlock", "orders", "--owner", &owner]).0, 0);
            }
            assert_eq!(holder.status(), Some(74), "{options:?}");
        }
        redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
    }
}

#[test]
fn a_permit_is_taken_from_its_owner_by_hand() {
    let server = server();
    let url = server.url();
    let mut holder = start(&url, &["--permits", "1"], "slots", "echo on; sleep 60 & wait");
    holder.line();
    let owner = client(&server).status("slots").unwrap().holders[0].owner.to_string();
    assert_eq!(ends(&url, &["unlock", "slots", "--owner", &owner]).0, 0);
    assert_eq!(holder.status(), Some(74));
    assert_eq!(ends(&url, &["unlock", "slots", "--owner", &owner]).0, 75);
}

#[test]
fn permits_and_latches_are_counted() {
    let server = server();
    let url = server.url();
    assert_eq!(prints(&url, &["permits", "slots", "--set", "3"]), "3\n");
    assert_eq!(prints(&url, &["permits", "slots"]), "3\n");
    assert_eq!(prints(&url, &["latch", "ready", "--set", "1"]), "");
    assert_eq!(ends(&url, &["latch", "ready", "--set", "1"]).0, 75);
    assert_eq!(ends(&url, &["latch", "ready", "--wait", "100ms"]).0, 75);
    assert_eq!(prints(&url, &["latch", "ready"]), "1\n");
    assert_eq!(ends(&url, &["latch", "ready", "--count-down"]).0, 0);
    assert_eq!(ends(&url, &["latch", "ready", "--wait", "10"]).0, 0);
}

/// The command must not say that the lock is taken, or that the count is not zero, because it does
/// not know this.
#[test]
fn the_limit_of_a_wait_is_an_outage_if_the_server_is_away_by_then() {
    let server = server();
    let url = server.url();
    let lock = client(&server).reentrant_lock("orders").with_lease(Duration::from_secs(60));
    lock.lock().unwrap().leave_to_expire().unwrap();
    assert_eq!(ends(&url, &["latch", "ready", "--set", "1"]).0, 0);
    let waits = [["wait", "orders", "--limit", "3"], ["latch", "ready", "--wait", "3"]];
    let waits = waits.map(|words| redlatch(&url).args(words).spawn().unwrap());
    thread::sleep(Duration::from_secs(1));
    server.kill();
    let statuses = waits.map(|mut it| it.wait().unwrap().code());
    assert_eq!(statuses, [Some(69), Some(69)]);
}

#[test]
fn the_url_may_stand_in_a_file() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("url");
    fs::write(&file, format!("{}\n", server.url())).unwrap();
    let run = |file: &Path| {
        let mut command = redlatch("");
        command.env_remove("REDLATCH_URL").arg("--url-file").arg(file);
        command.args(["run", "orders", "true"]).status().unwrap().code()
    };
    assert_eq!(run(&file), Some(0));
    assert_eq!(run(&folder.path().join("none")), Some(78));
}

#[test]
fn the_manual_and_completions_are_printed() {
    let page = prints("", &["man"]);
    for part in [
        ".TH redlatch",
        "max\\-hold",
        "REDLATCH_TOKEN",
        "the lock was lost",
        "\n.TP\n78\na setting",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    let shells = prints("", &["completions"]);
    for shell in ["bash", "zsh", "fish"] {
        assert!(shells.lines().any(|line| line == shell), "{shells}");
        assert!(prints("", &["completions", shell]).contains("redlatch"));
    }
}

/// The programs that the recipes run under their locks.
const PROGRAMS: [&str; 11] = [
    "report", "deploy", "serve", "download", "dump", "search", "rebuild", "store", "migrate",
    "compress", "call",
];

#[test]
fn the_recipes_of_the_shell_page_work() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    for program in PROGRAMS {
        let path = folder.path().join(program);
        let script = "#!/bin/sh\necho \"$REDLATCH_NAME: $0 $*\" >>ran\n";
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/shell.md");
    let page = fs::read_to_string(page).unwrap();
    let recipes: Vec<_> =
        page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let own = Path::new(env!("CARGO_BIN_EXE_redlatch")).parent().unwrap();
    let path = format!("{}:{}", own.display(), std::env::var("PATH").unwrap());
    for recipe in &recipes {
        // The recipe is run as on the page, except for the time.
        let script = recipe.replace("50s", "1s");
        let mut shell = Command::new("sh");
        shell.args(["-euc", &script]).current_dir(&folder).stdin(Stdio::null());
        let output = shell.env("PATH", &path).env("REDLATCH_URL", server.url()).output().unwrap();
        assert!(output.status.success(), "{recipe}: {output:?}");
    }
    assert!(recipes.len() >= 10, "{}", recipes.len());
    let ran = fs::read_to_string(folder.path().join("ran")).unwrap();
    for program in PROGRAMS {
        assert_eq!(
            ran.lines().filter(|line| line.contains(&format!("./{program} "))).count(),
            1,
            "{ran}"
        );
    }
    assert!(ran.contains("report: ./report") && ran.contains("invoices: ./store 1"), "{ran}");
    assert!(folder.path().join("dump.gz").exists());
}

#[test]
fn names_are_given_and_printed_without_the_prefix() {
    let server = server();
    let url = server.url();
    let lock = client(&server).reentrant_lock("shop:orders");
    let _other = client(&server).reentrant_lock("orders").lock().unwrap();
    assert!(output(&url, &["--prefix", "shop:", "run", "-n", "orders", "true"]).status.success());
    let guard = lock.lock().unwrap();
    let run = output(&url, &["run", "--prefix", "shop:", "-n", "orders", "true"]);
    assert_eq!(run.status.code(), Some(75), "{run:?}");
    assert!(prints(&url, &["who", "orders", "--prefix", "shop:"]).starts_with("orders: lock\n"));
    let lines = prints(&url, &["ls", "--prefix", "shop:"]);
    assert!(lines.starts_with("orders\tlock\t") && lines.lines().count() == 1, "{lines}");
    guard.unlock().unwrap();
}
