//! The plain lock: Redisson wakes waiters here, and the reverse.

use super::*;

#[test]
fn a_release_by_redisson_wakes_a_thread_that_waits_here() {
    let _bounded = bounded();
    let server = server();
    let Some(mut java) = Java::start(&server) else { return };
    let client = client(&server);
    let lock = client.reentrant_lock("job");
    at_once(|| {
        java.run("a", "lock lock job");
        assert!(lock.is_locked().unwrap());
        let waits = spawn({
            let lock = lock.clone();
            move || lock.lock().unwrap().unlock().unwrap()
        });
        waits.wait_queued();
        java.run("a", "unlock lock job");
        waits.join();
    });
    assert_eq!(java.ask("a", "isLocked lock job"), "false");
}

#[test]
fn a_release_here_wakes_a_thread_of_redissons_that_waits() {
    let _bounded = bounded();
    let server = server();
    let Some(mut java) = Java::start(&server) else { return };
    let client = client(&server);
    let lock = client.reentrant_lock("job");
    // Until the end of the lease, a minute, Redisson asks only when it hears a release.
    once_within(SOON / 2, || {
        let guard = lock.lock().unwrap();
        assert_eq!(java.ask("a", "isLocked lock job"), "true");
        java.tell("a", "lock lock job");
        wait_subscribed(&server, "redisson_lock__channel:{job}");
        guard.unlock().unwrap();
        let released = Instant::now();
        assert_eq!(java.reply("a"), "ok");
        assert!(lock.try_lock().unwrap().is_none());
        java.run("a", "unlock lock job");
        released.elapsed()
    });
}

#[test]
fn a_forced_unlock_by_redisson_is_told_to_the_holder_here() {
    let _bounded = bounded();
    let server = server();
    let Some(mut java) = Java::start(&server) else { return };
    // Without a message from Redis a renewal would find out, after twenty seconds.
    let client = client(&server);
    let lock = client.reentrant_lock("job");
    once_within(BEFORE_A_QUESTION, || {
        let guard = lock.lock().unwrap();
        let (sender, lost) = mpsc::channel();
        guard.on_lost(move |reason| sender.send(reason).unwrap());
        // The client asks the server to tell of holds older than 100 ms.
        wait_until("the key is tracked", SOON, || tracked_keys(&server) == 1);
        let forced = Instant::now();
        assert_eq!(java.ask("a", "forceUnlock lock job"), "true");
        let reason = lost.recv_timeout(SOON).unwrap();
        assert_eq!(reason, LostReason::Revoked);
        assert!(!guard.is_held());
        forced.elapsed()
    });
}

fn tracked_keys(server: &Server) -> u64 {
    let info: String = redis::cmd("INFO").arg("stats").query(&mut server.connection()).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("tracking_total_keys:"));
    line.unwrap().trim().parse().unwrap()
}
