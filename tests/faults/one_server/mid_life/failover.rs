//! The cases of the parent module, after a failover to a server on which the user has other rights.
//!
//! At the end the user gets the rights back, and then all permits are free again. Before that, all
//! other clients must continue, except those that wait for the restricted client.

use std::cell::Cell;
use std::sync::Barrier;

use super::others::{ALL_RIGHTS, Play, TOTAL, permits};
use super::*;

/// The three moments at which all cases wait for each other and for the test's next action.
struct Moments<'a> {
    all: &'a Barrier,
    new: &'a Server,
    left: Cell<u32>,
}

impl<'a> Moments<'a> {
    fn next(&self) {
        self.left.set(self.left.get() - 1);
        self.all.wait();
        self.all.wait();
    }

    /// Waits until the replica has all changes and the test has cut it off.
    fn is_cut_off(&self) {
        self.next();
    }

    fn fails_over(&self, it: &mut Play<'a>) {
        self.next();
        it.server = self.new;
    }

    fn rights_are_back(&self) {
        self.next();
    }
}

/// A case that fails must not keep the other cases waiting.
impl Drop for Moments<'_> {
    fn drop(&mut self) {
        while self.left.get() > 0 {
            self.next();
        }
    }
}

type Case = Box<dyn for<'a> Fn(&mut Play<'a>, &Moments<'a>) + Sync>;

/// The cases, with their rows in the table of `docs/operations.md`.
fn cases() -> Vec<(&'static str, &'static [&'static str], Case)> {
    let mut all: Vec<(_, _, Case)> = vec![
        ("semaphore", &["semaphores"] as &[_], Box::new(semaphore)),
        ("idle semaphore", &["semaphores"], Box::new(idle_semaphore)),
        ("expirable semaphore", &["expirable"], Box::new(expirable_semaphore)),
        ("latch", &["latches"], Box::new(latch)),
        ("barrier", &["barriers"], Box::new(barrier)),
        ("election", &["fenced locks", "elections"], Box::new(election)),
        ("condition", &["locks", "conditions"], Box::new(condition)),
    ];
    for kind in &KINDS {
        all.push((kind.what, kind.rows, Box::new(move |it, moments| lock(kind, it, moments))));
    }
    all
}

/// The function does not check that only one client has the lock, because the old master may have
/// extended a lease that the new master does not know.
fn lock<'a>(kind: &Kind, it: &mut Play<'a>, moments: &Moments<'a>) {
    let guard = held(&*(kind.make)(&it.poor, &it.name));
    moments.is_cut_off();
    moments.fails_over(it);
    let _ = it.clear(guard.unlock());
    let other = it.good((kind.other)(&it.rich.other, &it.name).try_lock_for(TIMEOUT));
    let _ =
        other.into_option().unwrap_or_else(|| panic!("{}: nobody else gets it", it.what)).unlock();
    moments.rights_are_back();
}

fn semaphore<'a>(it: &mut Play<'a>, moments: &Moments<'a>) {
    it.make_permits(false);
    let [released, kept] = [1, 2].map(|permits| it.takes(&it.poor, false, permits));
    moments.is_cut_off();
    // Only the old master runs this release.
    it.good(released());
    let taken = it.takes(&it.poor, false, 1);
    moments.fails_over(it);
    let _ = it.clear(kept());
    moments.rights_are_back();
    let _ = it.clear(taken());
    it.waits_until("all come back", || permits(it.server, &it.name) == (TOTAL, 0));
    it.all_come_back(false);
}

/// Uses a semaphore, for which the client sends no request after the failover.
fn idle_semaphore<'a>(it: &mut Play<'a>, moments: &Moments<'a>) {
    it.make_permits(false);
    moments.is_cut_off();
    let taken = it.takes(&it.poor, false, 3);
    moments.fails_over(it);
    moments.rights_are_back();
    it.waits_until("the new master hears of it", || permits(it.server, &it.name) == (TOTAL - 3, 0));
    it.good(taken());
    it.all_come_back(false);
}

fn expirable_semaphore<'a>(it: &mut Play<'a>, moments: &Moments<'a>) {
    it.make_permits(true);
    let [released, kept] = [1, 2].map(|permits| it.takes(&it.poor, true, permits));
    moments.is_cut_off();
    let _ = released();
    let taken = it.takes(&it.poor, true, 1);
    moments.fails_over(it);
    let _ = it.clear(kept());
    let _ = it.clear(taken());
    it.all_come_back(true);
    moments.rights_are_back();
}

fn latch<'a>(it: &mut Play<'a>, moments: &Moments<'a>) {
    let theirs = it.rich.other.count_down_latch(&it.name);
    assert!(it.good(theirs.try_set_count(2)));
    let latch = it.poor.count_down_latch(&it.name);
    let waits = latch.clone();
    let waiter = spawn(move || waits.wait_for(TIMEOUT * 2));
    moments.is_cut_off();
    moments.fails_over(it);
    let counted = it.clear(latch.count_down());
    let left = it.good(theirs.count());
    match counted {
        Ok(()) => assert_eq!(left, 1, "{}", it.what),
        // If the outcome is unknown, the count-down may still be applied, but only once.
        Err(error) => assert!(left == 2 || error.outcome_unknown(), "{}: {error}", it.what),
    }
    while it.good(theirs.count()) > 0 {
        it.good(theirs.count_down());
    }
    assert!(
        !it.clear(waiter.join()).is_ok_and(|waited| waited.timed_out()),
        "{}: it is not told",
        it.what
    );
    moments.rights_are_back();
}

fn barrier<'a>(it: &mut Play<'a>, moments: &Moments<'a>) {
    let (poor, rich) = it.barrier();
    let party = spawn(move || poor.wait());
    it.wait_arrived(&rich, &party);
    moments.is_cut_off();
    moments.fails_over(it);
    let its = rich.clone();
    let theirs = spawn(move || its.wait());
    let its = party.join();
    moments.rights_are_back();
    it.is_met(&rich, its, theirs);
}

fn election<'a>(it: &mut Play<'a>, moments: &Moments<'a>) {
    let leads = it.good(it.poor.leader_election(&it.name).campaign());
    moments.is_cut_off();
    moments.fails_over(it);
    let _ = it.clear(leads.resign());
    it.leads_on(&it.rich.other);
    moments.rights_are_back();
}

fn condition<'a>(it: &mut Play<'a>, moments: &Moments<'a>) {
    let its = it.waiter(&it.poor, TIMEOUT * 2);
    let theirs = it.waiter(&it.rich.third, TIMEOUT * 2);
    moments.is_cut_off();
    moments.fails_over(it);
    // A notification skips a waiter whose client has not subscribed at the new master yet. The
    // skipped waiter ends its wait at its next request.
    it.waits_until("both hear of it", || {
        it.notify(&it.rich.other);
        its.is_finished() && theirs.is_finished()
    });
    assert!(it.clear(its.join()).unwrap_or(true), "{}: the notification is lost", it.what);
    assert!(it.good(theirs.join()), "{}: the notification is lost", it.what);
    moments.rights_are_back();
    it.nobody_waits();
}

#[test]
fn rights_that_the_new_master_does_not_give_lose_no_permit_count_or_notification() {
    let _turn = takes_turns();
    let old = server();
    let replication = Proxy::before(&old);
    let new = Server::builder().replica_behind(&replication).start().unwrap();
    let proxy = Proxy::before(&old);
    // These clients wait long, because more than a thousand cases run at the same time.
    let [other, third, judge] = [(); 3].map(|()| {
        let rich = Client::builder(&proxy.url()).watchdog_timeout(LONG_LEASE);
        rich.response_timeout(TIMEOUT).connect().unwrap()
    });
    let rich = Rich { other, third, judge };
    let cases = cases();
    let mut all: Vec<_> = cases.iter().flat_map(|(_, rows, _)| taken_away(rows)).collect();
    all.sort_unstable();
    all.dedup();
    let users: Vec<_> = all
        .into_iter()
        .enumerate()
        .map(|(at, rules)| {
            let [_old, mut user] = [&old, &new].map(|it| User::new(it, &format!("poor{at}")));
            user.set(&rules.iter().map(String::as_str).collect::<Vec<_>>());
            let url = proxy.url().replace("://", &format!("://poor{at}:word@"));
            let poor = impatient(&url).watchdog_timeout(SHORT_LEASE).response_timeout(TIMEOUT);
            let poor = poor.connections(1).connect().unwrap();
            (rules, Arc::new(Mutex::new(user)), poor)
        })
        .collect();
    let mut plays = Vec::new();
    for (what, rows, case) in &cases {
        for rules in taken_away(rows) {
            let (rules, user, poor) = users.iter().find(|it| it.0 == rules).unwrap();
            let play = Play {
                server: &old,
                rich: &rich,
                poor: poor.clone(),
                user: Arc::clone(user),
                rules,
                flushes: false,
                what: format!("{what}, {rules:?}"),
                name: format!("case {}", plays.len()),
            };
            plays.push((play, case));
        }
    }
    let all = Barrier::new(plays.len() + 1);
    thread::scope(|scope| {
        for (mut play, case) in plays {
            let moments = Moments { all: &all, new: &new, left: Cell::new(3) };
            scope.spawn(move || case(&mut play, &moments));
        }
        all.wait();
        let heard: u64 = redis::cmd("WAIT").arg(1).arg(0).query(&mut old.connection()).unwrap();
        assert_eq!(heard, 1);
        replication.freeze();
        all.wait();
        all.wait();
        redis::cmd("REPLICAOF").arg(&["NO", "ONE"]).exec(&mut new.connection()).unwrap();
        proxy.lead_to(&new);
        old.kill();
        all.wait();
        all.wait();
        for (_, user, _) in &users {
            user.lock().unwrap().set(&ALL_RIGHTS);
        }
        all.wait();
    });
}
