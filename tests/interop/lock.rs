//! The behaviour that all locks share: one owner holds the lock, the other owners wait, and a
//! release wakes one of them.

use super::*;

/// A lease whose end a test waits for.
const LEASE: Duration = Duration::from_millis(6 * TIME_UNIT.as_millis() as u64);

#[test]
fn neither_gets_what_the_other_holds() {
    beside_redisson(|version| {
        let server = server();
        let client = client(&server);
        let mut java = Redisson::of(version, &server);
        for kind in Kind::exclusive(version) {
            let (lock, named) = (kind.ours(&client, "job"), kind.named("job"));
            // Redisson's thread has the lock.
            java.run("a", &format!("lock {named}"));
            assert!(lock.is_locked().unwrap() && !lock.is_held_by_current_thread());
            assert!(lock.remaining_lease().unwrap().unwrap() > LONG_LEASE / 2);
            assert!(lock.try_lock().unwrap().into_option().is_none());
            assert!(answered(|| lock.try_lock_for(TIME_UNIT * 2)).into_option().is_none());
            java.run("a", &format!("unlock {named}"));
            // A thread of this process has the lock.
            let guard = lock.lock().unwrap();
            assert!(java.says("a", &format!("isLocked {named}")));
            assert!(!java.says("a", &format!("isHeld {named}")));
            let remaining: u128 = java.ask("a", &format!("remaining {named}")).parse().unwrap();
            assert!(remaining > LONG_LEASE.as_millis() / 2, "{remaining}");
            assert!(!java.says("a", &format!("tryLock {named}")));
            let begun = Instant::now();
            assert!(!java.says("a", &format!("tryLock {named} 200 1000")));
            assert!(begun.elapsed() >= lasts(TIME_UNIT * 2), "{kind:?}: {:?}", begun.elapsed());
            guard.unlock().unwrap();
            // If a lock is free, a call that may wait takes it in either library, with a lease.
            assert!(java.says("a", &format!("tryLock {named} 1000 10000")), "{kind:?}");
            let left = lock.remaining_lease().unwrap().unwrap();
            assert!(left <= Duration::from_secs(10) && left > Duration::from_secs(2), "{left:?}");
            java.run("a", &format!("unlock {named}"));
            let lease = Duration::from_secs(10);
            let guard = kind
                .leased(&client, "job", lease)
                .try_lock_for(TIMEOUT)
                .unwrap()
                .into_option()
                .unwrap();
            let remaining: u128 = java.ask("a", &format!("remaining {named}")).parse().unwrap();
            assert!(remaining <= 10_000 && remaining > 2_000, "{remaining}");
            guard.unlock().unwrap();
            assert!(!java.says("a", &format!("isLocked {named}")));
        }
    });
}

#[test]
fn a_release_by_redisson_wakes_a_thread_that_waits_here() {
    beside_redisson(|version| {
        let server = server();
        let client = client(&server);
        let mut java = Redisson::of(version, &server);
        for kind in Kind::all(version) {
            let (lock, named) = (kind.ours(&client, "job"), kind.named("job"));
            // A reader waits only for a writer, so Redisson holds the write lock in this case.
            let held = if kind == Kind::Read { Kind::Write.named("job") } else { named };
            woken_by_message(|| {
                java.run("a", &format!("lock {held}"));
                let lock = Arc::clone(&lock);
                let waits = spawn(move || lock.lock().unwrap().unlock().unwrap());
                waits.wait_queued();
                java.run("a", &format!("unlock {held}"));
                waits.join();
            });
            assert!(!java.says("a", &format!("isLocked {held}")), "{kind:?}");
        }
    });
}

#[test]
fn a_release_here_wakes_a_thread_of_redissons_that_waits() {
    beside_redisson(|version| {
        let server = server();
        let client = watched(&server, SHORT_LEASE);
        let mut java = Redisson::of(version, &server);
        for kind in Kind::all(version) {
            let (lock, named) = (kind.ours(&client, "job"), kind.named("job"));
            let held = if kind == Kind::Read { Kind::Write.ours(&client, "job") } else { lock };
            once_within(WAKE_WITHIN, || {
                let guard = held.lock().unwrap();
                kind.redisson_waits(&mut java, &["a"], "job");
                guard.unlock().unwrap();
                let released = Instant::now();
                assert_eq!(java.reply("a"), "ok");
                assert!(held.try_lock().unwrap().into_option().is_none());
                java.run("a", &format!("unlock {named}"));
                released.elapsed()
            });
        }
    });
}

#[test]
fn a_lease_that_is_not_renewed_ends_for_both() {
    beside_redisson(|version| {
        let server = server();
        let client = client(&server);
        let mut java = Redisson::of(version, &server);
        for kind in Kind::exclusive(version) {
            let (lock, named) = (kind.ours(&client, "job"), kind.named("job"));
            let begun = Instant::now();
            java.run("a", &format!("lock {named} {}", LEASE.as_millis()));
            let guard = lock.lock().unwrap();
            assert!(begun.elapsed() >= lasts(LEASE), "{kind:?}: {:?}", begun.elapsed());
            let said = java.ask("a", &format!("unlock {named}"));
            assert!(said.contains("IllegalMonitorState"), "{said}");
            assert!(guard.is_held() && lock.is_locked().unwrap());
            guard.unlock().unwrap();
            let begun = Instant::now();
            let guard = kind.leased(&client, "job", LEASE).lock().unwrap();
            java.tell("a", &format!("lock {named}"));
            // The first waiter of Redisson 3.16 for a fair lock may sleep for ever if it sends its
            // request in the lease's last millisecond. A redlatch waiter behind it wakes it.
            let behind = (kind == Kind::Fair).then(|| {
                java.run("watch", "sleeps a");
                let lock = Arc::clone(&lock);
                spawn(move || lock.lock().unwrap().unlock().unwrap())
            });
            assert_eq!(java.reply("a"), "ok");
            assert!(begun.elapsed() >= lasts(LEASE), "{kind:?}: {:?}", begun.elapsed());
            assert!(!guard.is_held());
            assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
            assert!(java.says("a", &format!("isHeld {named}")));
            java.run("a", &format!("unlock {named}"));
            behind.into_iter().for_each(Running::join);
        }
    });
}

#[test]
fn both_renew_what_they_hold() {
    beside_redisson(|version| {
        let server = server();
        let client = watched(&server, SHORT_LEASE);
        let mut java = Redisson::at(&Jvm::shared(version), &server.url(), SHORT_LEASE);
        let (mut guards, mut held) = (Vec::new(), Vec::new());
        for kind in Kind::all(version) {
            let [theirs, mine] = ["theirs", "mine"].map(|whose| format!("{whose} {kind:?}"));
            java.run("a", &format!("lock {}", kind.named(&theirs)));
            guards.push(kind.ours(&client, &mine).lock().unwrap());
            held.extend([(&server, theirs), (&server, mine)]);
        }
        let names: Vec<String> = held.iter().map(|(_, name)| name.clone()).collect();
        wait_all_renewed(held);
        // Each library has renewed only its own holds.
        let mut redis = server.connection();
        for name in names {
            let left = pttl(&mut redis, &name);
            assert!(
                left > 0 && left <= SHORT_LEASE.as_millis().try_into().unwrap(),
                "{name}: {left}"
            );
        }
        assert!(guards.iter().all(|guard| guard.is_held()));
        for kind in Kind::all(version) {
            java.run("a", &format!("unlock {}", kind.named(&format!("theirs {kind:?}"))));
        }
    });
}

#[test]
fn a_hold_that_was_taken_twice_lasts_until_its_second_release() {
    beside_redisson(|version| {
        let server = server();
        let client = client(&server);
        let mut java = Redisson::of(version, &server);
        for kind in Kind::exclusive(version) {
            let (lock, named) = (kind.ours(&client, "job"), kind.named("job"));
            java.run("a", &format!("lock {named}"));
            java.run("a", &format!("lock {named}"));
            assert_eq!(java.ask("a", &format!("holdCount {named}")), "2");
            java.run("a", &format!("unlock {named}"));
            assert!(lock.try_lock().unwrap().into_option().is_none());
            java.run("a", &format!("unlock {named}"));
            let first = lock.try_lock().unwrap().into_option().expect("it is free");
            let second = lock.lock().unwrap();
            first.unlock().unwrap();
            assert!(!java.says("a", &format!("tryLock {named}")));
            second.unlock().unwrap();
            assert!(java.says("a", &format!("tryLock {named}")));
            java.run("a", &format!("unlock {named}"));
        }
    });
}

#[test]
fn only_its_holder_unlocks_a_lock() {
    beside_redisson(|version| {
        let server = server();
        let client = client(&server);
        let mut java = Redisson::of(version, &server);
        let mut redis = server.connection();
        for kind in Kind::exclusive(version) {
            let (lock, named) = (kind.ours(&client, "job"), kind.named("job"));
            let guard = lock.lock().unwrap();
            let held = holder(&mut redis, "job");
            let said = java.ask("a", &format!("unlock {named}"));
            assert!(said.contains("IllegalMonitorState"), "{kind:?}: {said}");
            assert_eq!(holder(&mut redis, "job"), held);
            assert!(guard.is_held());
            guard.unlock().unwrap();
            java.run("a", &format!("lock {named}"));
            let held = holder(&mut redis, "job");
            assert!(held.as_ref().unwrap().0.starts_with(&java.id));
            assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
            // Another thread of the holder's process cannot release the lock either.
            let said = java.ask("b", &format!("unlock {named}"));
            assert!(said.contains("IllegalMonitorState"), "{kind:?}: {said}");
            assert_eq!(holder(&mut redis, "job"), held);
            java.run("a", &format!("unlock {named}"));
        }
    });
}

#[test]
fn a_forced_unlock_by_redisson_is_reported_to_our_holder_and_wakes_a_waiter() {
    beside_redisson(|version| {
        let server = server();
        // Without a message, only a renewal would find the loss, after twenty seconds.
        let (client, other) = (client(&server), client(&server));
        let mut java = Redisson::of(version, &server);
        for kind in Kind::exclusive(version) {
            let (lock, named) = (kind.ours(&client, "job"), kind.named("job"));
            let waiting = kind.ours(&other, "job");
            once_within(MIN_POLL_INTERVAL, || {
                let guard = lock.lock().unwrap();
                let (sender, lost) = mpsc::channel();
                guard.on_lost(move |reason| sender.send(reason).unwrap());
                let waiting = Arc::clone(&waiting);
                let waits = spawn(move || waiting.lock().unwrap().unlock().unwrap());
                waits.wait_queued();
                // The client makes the server report changes of holds older than 100 ms.
                wait_until("the key is tracked", TIMEOUT, || tracked_keys(&server) > 0);
                let forced = Instant::now();
                assert!(java.says("a", &format!("forceUnlock {named}")));
                let reason = lost.recv_timeout(TIMEOUT).unwrap();
                assert_eq!(reason, LostReason::Revoked);
                assert!(!guard.is_held());
                waits.join();
                forced.elapsed()
            });
            assert!(!java.says("a", &format!("forceUnlock {named}")));
        }
    });
}

#[test]
fn a_forced_unlock_here_takes_the_lock_from_redisson_and_wakes_its_waiter() {
    beside_redisson(|version| {
        let server = server();
        let client = client(&server);
        let mut java = Redisson::at(&Jvm::shared(version), &server.url(), SHORT_LEASE);
        for kind in Kind::exclusive(version) {
            let (lock, named) = (kind.ours(&client, "job"), kind.named("job"));
            once_within(WAKE_WITHIN, || {
                java.run("a", &format!("lock {named}"));
                kind.redisson_waits(&mut java, &["b"], "job");
                let forced = Instant::now();
                assert!(lock.force_unlock().unwrap());
                assert_eq!(java.reply("b"), "ok");
                let took = forced.elapsed();
                assert!(!java.says("a", &format!("isHeld {named}")));
                let said = java.ask("a", &format!("unlock {named}"));
                assert!(said.contains("IllegalMonitorState"), "{kind:?}: {said}");
                java.run("b", &format!("unlock {named}"));
                took
            });
            assert!(!lock.force_unlock().unwrap());
        }
    });
}

fn tracked_keys(server: &Server) -> u64 {
    let info: String = redis::cmd("INFO").arg("stats").query(&mut server.connection()).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("tracking_total_keys:"));
    line.unwrap().trim().parse().unwrap()
}
