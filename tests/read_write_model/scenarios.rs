//! The scripts as they are, without a simulated clock.

use crate::common::real_server;
use crate::kind::{ReadWriteLock, timeouts};
use crate::model::client::LEASE;
use crate::model::kind::Kind;
use crate::model::shortcuts;
use crate::model::site::Site;
use crate::model::store::uuid;
use crate::model::wire::{Chain, Request};

fn prices() -> Site {
    Site::new(&ReadWriteLock, 0, "prices")
}

#[test]
fn a_shortcut_does_what_the_rest_would() {
    let Some(server) = real_server() else { return };
    let site = prices();
    let Site { lock, queue, window, .. } = &site;
    // The odd ones read.
    let [reader, writer] = [1, 2].map(|number| ReadWriteLock.owner(&uuid(true, 1), number));
    let others = [1, 2].map(|number| ReadWriteLock.owner(&uuid(true, 2), number));
    let timeout = |owner: &str| format!("SET {}:1 1 PX 20000", timeouts(lock, owner));
    let held = |mode: &str, owners: &[&str]| -> Vec<String> {
        let fields: Vec<_> = owners.iter().map(|owner| format!("{owner} 1")).collect();
        let mut commands = vec![
            format!("HSET {lock} mode {mode} {}", fields.join(" ")),
            format!("PEXPIRE {lock} 20000"),
        ];
        let reads = owners.iter().filter(|owner| !owner.ends_with(":write"));
        commands.extend(reads.map(|owner| timeout(owner)));
        commands
    };
    let queued = vec![format!("RPUSH {queue} {}", others[1])];
    let open = vec![format!("SET {window} 1 PX 60000")];
    let states = [
        vec![],
        held("read", &[&reader]),
        held("read", &[&reader, &others[0]]),
        held("read", &[&others[0]]),
        held("write", &[&writer]),
        held("write", &[&writer, &reader]),
        held("write", &[&others[1]]),
        [held("read", &[&reader]), queued.clone()].concat(),
        [held("write", &[&writer]), queued.clone()].concat(),
        [held("write", &[&writer]), open.clone()].concat(),
        [open.clone(), queued.clone()].concat(),
        queued,
        open,
        vec![format!("SET {lock} mine")],
        vec![format!("SET {queue} mine")],
        [held("read", &[&reader]), vec![format!("SET {queue} mine")]].concat(),
    ];
    let requests = [1, 2].map(|number| {
        let release = |since| Request::Release { number, chain: Chain { since, count: 1 } };
        [
            Request::Acquire { number, lease: LEASE },
            Request::Try { number, lease: LEASE },
            release(0),
            release(-9),
            release(-10),
            release(1),
        ]
    });
    // But for PTTL, HLEN and HGETALL, which a lock that is free can do without.
    let denied = "set exists hset pexpire time del publish hexists lpop lpos rpush llen pubsub";
    shortcuts::check(&server, &site, &states, &requests.concat(), denied);
}
