//! Tests of the scripts that shorten a kept hold.

#![allow(clippy::unwrap_used)]

use redis::Value;
use redlatch_client::Command;
use redlatch_testkit::{Server, wait_until};

use super::*;
use crate::ask::Asked;
use crate::config::ClientBuilder;
use crate::hold::Terms;
use crate::hold::line::{Line, scripts};
use crate::runtime::Session;
use crate::scripts::fair::{FairScripts, Followers, Others};
use crate::scripts::{FairKeys, Mode};
use crate::site::Gate;

const LEASE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(10);

/// If the copy arrives before the release, the hold's remaining lease is shorter than the lease in
/// the copy. If the copy arrives after the release, it creates nothing.
#[test]
fn a_late_copy_of_a_keep_command_lengthens_no_lease() {
    let server = Server::start().unwrap();
    let config = ClientBuilder::new(&server.url()).config;
    let session = Session::open(&server.url(), config, |_, _, _| {}).unwrap();
    let (core, mut redis) = (session.core(), server.connection());
    let mut check = |site: &Site, keep: &dyn Fn(Duration) -> Command, release: Command| {
        let send = |command: &Command| site.route.call_once(command).unwrap();
        let mut left =
            || -> i64 { redis::cmd("PTTL").arg(&**site.name).query(&mut redis).unwrap() };
        let name = site.name.given();
        assert!(left() > SHORT.as_millis() as i64, "{name}");
        assert!(matches!(send(&keep(SHORT)), Value::Int(_)), "{name}");
        let shortened = left();
        assert!(0 < shortened && shortened <= SHORT.as_millis() as i64, "{name}: {shortened}");
        assert!(matches!(send(&keep(LEASE)), Value::Int(_)), "{name}");
        assert!(left() <= shortened, "{name}");
        send(&release);
        assert_eq!(send(&keep(LEASE)), Value::Nil, "{name}");
        assert_eq!(left(), -2, "{name}");
    };
    for mode in [Mode::Lock, Mode::Read, Mode::Write] {
        let site = Site::behind(core, &format!("copied {mode:?}").into(), Gate::new(mode));
        let owner = core.id.next_owner_to(mode, false);
        site.scripts().acquire(&owner, LEASE, None, false).unwrap();
        let keep = |rest| site.scripts().keep_command(&owner, rest);
        check(&site, &keep, site.scripts().release_command(&owner, Chain::default()));
    }
    let site = Site::behind(core, &"copied fair".into(), Gate::new(Mode::Lock));
    let (owner, keys) = (core.id.next_owner(), FairKeys::new(&site.name));
    let (key, waits): (&str, _) = (&site.name, core.config.fair_waits());
    let fair = FairScripts { key, keys: &keys, waits, database: 0, acks: None };
    fair.try_acquire(&site.route, &owner, LEASE).unwrap();
    check(&site, &|rest| fair.keep_command(&owner, rest, &[]), fair.release_command(&owner, &[]));
}

/// The renewer may send the cleanup after the hold was passed to a second thread. If the second
/// thread's entry stayed in the queue, the server would grant that entry the lock next, and no
/// thread would use the grant.
#[test]
fn a_kept_fair_hold_that_has_ended_leaves_no_thread_that_had_it_in_the_queue() {
    let server = Server::start().unwrap();
    let config = ClientBuilder::new(&server.url()).config;
    let session = Session::open(&server.url(), config, |_, _, _| {}).unwrap();
    let core = session.core();
    let site = Site::of(core, "ended");
    let _own = core.pubsub.listen_to_own(&site.name);
    wait_until("it listens", SHORT, || core.pubsub.is_own_confirmed(&site.name));
    let keys = Arc::new(FairKeys::new(&site.name));
    let [owner, second, third] = [(); 3].map(|()| core.id.next_owner());
    let others = Others::Companions { owners: &[second, third], is_not_listening: false };
    scripts(core, &site.name, &keys).acquire(&site.route, &owner, LEASE, others).unwrap();
    let line = Line::new(&keys, Followers::new());
    line.state.lock().passed.push(second);
    let hold = Hold::new(owner, Terms::fixed(LEASE), Asked::now(&site), false).in_line(line);
    hold.kept_until.store(clock::now(), Ordering::SeqCst);
    site.keep(&Arc::new(hold));
    let mut redis = server.connection();
    wait_until("the third has it", SHORT, || {
        let holders: Vec<String> = redis::cmd("HKEYS").arg("ended").query(&mut redis).unwrap();
        holders == [third.to_string()]
    });
}
