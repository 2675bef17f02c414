//! Several locks at a time. redlatch and Redisson take the locks one after the other. redlatch
//! takes them in the order of their names.

use redlatch::MultiLock;

use super::*;

const NAMES: [&str; 3] = ["a", "b", "c"];
/// All locks together, as a command of the Java program names them.
const NAMED: &str = "multiLock a%2Cb%2Cc";

fn ours(client: &Client) -> MultiLock {
    let [a, b, c] = NAMES.map(|name| client.reentrant_lock(name));
    MultiLock::new(&[&a, &b, &c]).unwrap()
}

#[test]
fn several_locks_are_held_by_one_library_at_a_time() {
    beside_redisson(|version| {
        let server = server();
        let client = client(&server);
        let mut java = Redisson::of(version, &server);
        let mut redis = server.connection();
        let all = ours(&client);
        java.run("x", &format!("lock {NAMED}"));
        assert!(NAMES.iter().all(|name| holder(&mut redis, name).unwrap().0.starts_with(&java.id)));
        assert!(all.try_lock().unwrap().into_option().is_none());
        assert!(answered(|| all.try_lock_for(TIME_UNIT * 2)).into_option().is_none());
        java.run("x", &format!("unlock {NAMED}"));
        let guard = all.lock().unwrap();
        assert!(
            NAMES.iter().all(|name| holder(&mut redis, name).unwrap().0.starts_with(client.id()))
        );
        assert!(!java.says("x", &format!("tryLock {NAMED}")));
        assert!(!java.says("x", &format!("tryLock {NAMED} 200 5000")));
        guard.unlock().unwrap();
        // If the other library has one of the locks, the attempt takes none of them.
        for name in NAMES {
            let single = client.reentrant_lock(name).lock().unwrap();
            assert!(!java.says("x", &format!("tryLock {NAMED} 200 5000")));
            single.unlock().unwrap();
            assert!(NAMES.iter().all(|name| holder(&mut redis, name).is_none()));
            java.run("x", &format!("lock lock {name}"));
            assert!(all.try_lock().unwrap().into_option().is_none());
            java.run("x", &format!("unlock lock {name}"));
            assert!(NAMES.iter().all(|name| holder(&mut redis, name).is_none()));
        }
    });
}

#[test]
fn several_locks_that_are_released_go_to_the_others_waiter() {
    beside_redisson(|version| {
        let server = server();
        let client = watched(&server, SHORT_LEASE);
        let mut java = Redisson::at(&Jvm::shared(version), &server.url(), SHORT_LEASE);
        let all = ours(&client);
        woken_by_message(|| {
            java.run("x", &format!("lock {NAMED}"));
            let waiting = all.clone();
            let waits = spawn(move || waiting.lock().unwrap().unlock().unwrap());
            waits.wait_queued();
            java.run("x", &format!("unlock {NAMED}"));
            waits.join();
        });
        once_within(WAKE_WITHIN, || {
            let guard = all.lock().unwrap();
            let scripts = Commands::so_far(&server).scripts();
            java.tell("x", &format!("lock {NAMED}"));
            wait_subscribed(&server, &channel("a"));
            wait_until("it has asked again", TIMEOUT, || {
                Commands::so_far(&server).scripts() >= scripts + 2
            });
            guard.unlock().unwrap();
            let released = Instant::now();
            assert_eq!(java.reply("x"), "ok");
            let took = released.elapsed();
            java.run("x", &format!("unlock {NAMED}"));
            took
        });
    });
}
