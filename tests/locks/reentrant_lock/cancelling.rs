//! Waits that a token cancels.

use super::*;

#[test]
fn a_cancel_ends_a_wait_for_another_client_and_one_for_a_thread() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let lock = other.reentrant_lock("cancel");
    woken_by_message(|| {
        let guard = one.reentrant_lock("cancel").lock().unwrap();
        let token = CancelToken::new();
        // The first waiter waits for the other client, and the other waiters wait for the first.
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let (lock, token) = (lock.clone(), token.clone());
                let waiter = spawn(move || lock.lock_cancellable(&token).map(drop).unwrap_err());
                waiter.wait_asleep();
                waiter
            })
            .collect();
        let patient_lock = lock.clone();
        let patient = spawn(move || patient_lock.lock().unwrap().unlock().unwrap());
        patient.wait_asleep();
        token.cancel();
        for waiter in waiters {
            let error = waiter.join();
            assert_eq!(error.kind(), ErrorKind::Cancelled);
            assert!(error.to_string().contains("\"cancel\""), "{error}");
        }
        // The waiter that was not cancelled is still in the queue, and is granted the lock.
        assert!(!patient.is_finished());
        guard.unlock().unwrap();
        patient.join();
        // A cancelled token stays cancelled.
        assert_eq!(lock.lock_cancellable(&token).unwrap_err().kind(), ErrorKind::Cancelled);
    });
    // The lock works as before.
    assert!(!lock.is_locked().unwrap());
    lock.lock_cancellable(&CancelToken::new()).unwrap().unlock().unwrap();
}

#[test]
fn a_cancel_that_races_with_the_release_loses_no_lock() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let mut random = Random::new();
    let (mut granted, mut cancelled) = (0, 0);
    for _ in 0..60 {
        let guard = one.reentrant_lock("race").lock().unwrap();
        let lock = other.reentrant_lock("race");
        let token = CancelToken::new();
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let (lock, token) = (lock.clone(), token.clone());
                spawn(move || match lock.lock_cancellable(&token) {
                    Ok(guard) => {
                        assert!(guard.is_held());
                        guard.unlock().unwrap();
                        true
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Cancelled);
                        false
                    }
                })
            })
            .collect();
        wait_in_line(&server, "race", 1);
        guard.unlock().unwrap();
        let until = Instant::now() + Duration::from_micros(random.below(600));
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        token.cancel();
        for waiter in waiters {
            if waiter.join() { granted += 1 } else { cancelled += 1 }
        }
        // The cancelled waiters have left no hold and no entry in the queue.
        lock.try_lock().unwrap().into_option().expect("free").unlock().unwrap();
    }
    println!("{granted} granted, {cancelled} cancelled");
}

#[test]
fn a_waiter_of_the_same_process_moves_up_when_those_before_it_give_up() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let lock = client.reentrant_lock("move up");
    woken_by_message(|| {
        hold_as_redisson(&mut redis, "move up", LONG_LEASE);
        // The leader (the thread that sends the process's requests) leaves and passes its role on.
        // The thread behind it leaves without that role.
        let leader_lock = lock.clone();
        let token = CancelToken::new();
        let leaders = token.clone();
        let leader = spawn(move || leader_lock.lock_cancellable(&leaders).unwrap_err());
        leader.wait_asleep();
        let impatient_lock = lock.clone();
        let impatient = spawn(move || {
            assert!(
                answered(|| impatient_lock.try_lock_for(TIME_UNIT * 2)).into_option().is_none()
            );
        });
        impatient.wait_asleep();
        let last_lock = lock.clone();
        let last = spawn(move || last_lock.lock().unwrap().unlock().unwrap());
        last.wait_asleep();
        impatient.join();
        token.cancel();
        assert_eq!(leader.join().kind(), ErrorKind::Cancelled);
        last.wait_asleep();
        release_as_redisson(&mut redis, "move up", &channel("move up"));
        last.join();
    });
}
