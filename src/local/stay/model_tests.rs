//! Callbacks that come while a thread goes to wait on a condition, and comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redlatch_client::sync::{Thread, explore};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use super::Stay;
use crate::error::LostReason;
use crate::local::tenancy::Callback;
use crate::local::{Asked, Hold, Tenancy, Terms, clock};
use crate::scripts::ClientId;

const LEASE: Duration = Duration::from_secs(30);

fn tenancy(id: &ClientId) -> Arc<Tenancy> {
    let asked = Asked { forced: 0, incarnation: 0, at: clock::now() };
    let hold = Hold::new(id.next_owner(), Terms::watched(LEASE), LEASE, asked, false);
    Arc::new(Tenancy::new(Arc::new(hold), Thread::current()))
}

fn call(reason: LostReason, callbacks: Vec<Callback>) {
    callbacks.into_iter().for_each(|callback| callback(reason));
}

/// Registered before a wait, in the instant in which the wait begins or ends, or after it.
#[test]
fn each_callback_is_called_once_however_often_its_thread_waits() {
    explore(2_000, || {
        let id = ClientId::random().unwrap();
        let first = tenancy(&id);
        let called = Arc::new(AtomicUsize::new(0));
        let others = [(); 2].map(|()| {
            let (first, called) = (Arc::clone(&first), Arc::clone(&called));
            thread::spawn(move || {
                let callback = Box::new(move |_| {
                    called.fetch_add(1, Ordering::SeqCst);
                });
                if let Some((reason, callback)) = first.on_lost_now(callback) {
                    callback(reason);
                }
            })
        });
        let reason = LostReason::Revoked;
        let mut last = first;
        for _ in 0..thread_rng().gen_range(0..3) {
            let (stay, _) = Stay::leaves(&last);
            last.finish_released();
            last = tenancy(&id);
            let now = stay.comes_back(&last, None);
            assert!(now.is_empty(), "it was not lost yet");
        }
        if thread_rng().gen_bool(0.5) {
            // The hold is lost in the instant in which the thread leaves it once more.
            let (stay, _) = Stay::leaves(&last);
            call(reason, last.lose(reason).unwrap_or_default());
            call(reason, stay.lose(reason));
        } else {
            call(reason, last.lose(reason).unwrap_or_default());
        }
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(called.load(Ordering::SeqCst), 2);
    });
}
