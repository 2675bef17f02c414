//! A message on the client's own channel notifies a holder that others wait, even after the slot
//! has moved.

use super::*;

#[test]
fn a_holder_hears_at_the_server_of_its_slot() {
    let cluster = cluster();
    for sharded in [false, true] {
        let [holder, other] = clients(&cluster, sharded);
        let name = format!("wanted-{sharded}");
        // The first renewal comes after the test, so only a message can tell the holder.
        let lock = holder.reentrant_lock(&name).with_watchdog(Duration::from_secs(3_600));
        let guard = lock.with_wanted().lock().unwrap();
        let calls = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&calls);
        guard.on_wanted(move || {
            counts.fetch_add(1, Ordering::SeqCst);
        });
        thread::sleep(TIME_UNIT * 5);
        for times in 1..=2 {
            let waiter = other.reentrant_lock(&name);
            let waits =
                spawn(move || waiter.try_lock_for(TIME_UNIT * 20).unwrap().into_option().is_some());
            wait_until("the holder hears", TIMEOUT, || calls.load(Ordering::SeqCst) >= times);
            assert!(guard.is_wanted() && !waits.join());
            // When the new server has confirmed the holder's channel, the holder sends a query,
            // whose reply says that no thread waits.
            let slot = cluster.slot(&name);
            cluster.move_slot(slot, cluster.another(slot));
            wait_until("it is wanted no longer", TIMEOUT, || !guard.is_wanted());
        }
        assert_eq!(calls.load(Ordering::SeqCst), 2);
        guard.unlock().unwrap();
    }
}
