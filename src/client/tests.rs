//! Tests of the state that a client keeps for the names that it has used.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use redlatch_testkit::{Server, wait_until};

use super::*;

/// The number of names that the test uses. A small number is enough, because the test counts the
/// names that the client keeps.
const NAMES: usize = 100;

/// A client keeps the last changes of its semaphores for ten seconds: see `scripts/changes.rs`.
#[test]
fn names_that_were_used_once_are_forgotten() {
    let server = Server::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    for at in 0..NAMES {
        let name = at.to_string();
        drop(client.reentrant_lock(&name).lock().unwrap());
        drop(client.fair_lock(&format!("fair {at}")).lock().unwrap());
        let both = client.read_write_lock(&format!("both {at}"));
        drop(both.reader().lock().unwrap());
        drop(both.writer().lock().unwrap());
        client.count_down_latch(&format!("latch {at}")).count_down().unwrap();
        let _ = client.cyclic_barrier(&format!("barrier {at}")).reset().unwrap();
        let leases = client.expirable_semaphore(&format!("leases {at}"));
        assert!(leases.try_set_permits(1).unwrap());
        drop(leases.acquire().unwrap());
    }
    let core = client.0.core();
    wait_until("all are forgotten", Duration::from_secs(20), || {
        let kept = format!("{:?} {:?}", core.members, core.changes.requests);
        kept.matches("Registry(").count() == kept.matches("Registry(0)").count()
    });
    assert!(format!("{:?}", core.members).matches("Registry").count() > 5, "{:?}", core.members);
}
