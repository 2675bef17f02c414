//! A holder's process is killed, or is paused for longer than its lease.

use super::*;

/// Returns the kind of lock that a waiter requests. A writer waits for a reader's hold.
fn rival(kind: Kind) -> Kind {
    if kind == Kind::Read { Kind::Write } else { kind }
}

/// A redlatch process and a Redisson process, each with a lock of each kind. Threads of this
/// process wait for the locks of the Redisson process. Threads of another Redisson process wait for
/// the locks of the redlatch process.
struct Fallen {
    server: Server,
    kinds: Vec<Kind>,
    jvm: Arc<Jvm>,
    theirs: Redisson,
    ours: Worker,
    java: Redisson,
    here: Vec<Running<OwnedLockGuard>>,
}

impl Fallen {
    fn new(version: Version) -> Self {
        let server = server();
        let kinds = Kind::all(version);
        let jvm = Jvm::start(version);
        let mut theirs = Redisson::at(&jvm, &server.url(), SHORT_LEASE);
        let mut java = Redisson::of(version, &server);
        let named: Vec<_> = kinds.iter().map(|kind| kind.java()).collect();
        let mut ours = Worker::spawn_test("worker", "holder", &[&server.url(), &named.join(" ")]);
        ours.expect_line("holds", TIMEOUT);
        for kind in &kinds {
            theirs.run("a", &format!("lock {}", kind.named(&format!("theirs {kind:?}"))));
        }
        let client = client(&server);
        let here = kinds.iter().map(|kind| {
            let lock = rival(*kind).ours(&client, &format!("theirs {kind:?}"));
            let waits = spawn(move || lock.lock_owned().unwrap());
            waits.wait_queued();
            waits
        });
        let here = here.collect();
        for kind in &kinds {
            let (thread, name) = (format!("{kind:?}"), format!("mine {kind:?}"));
            rival(*kind).redisson_waits(&mut java, &[&thread], &name);
        }
        Self { server, kinds, jvm, theirs, ours, java, here }
    }

    /// Waits until all waiters have their locks, which must not happen before the leases end.
    fn wait_taken_over(&mut self) -> Vec<OwnedLockGuard> {
        let mut redis = self.server.connection();
        let mut left = |name: &str| u64::try_from(pttl(&mut redis, name)).unwrap_or(0);
        let least = self.kinds.iter().map(|kind| format!("theirs {kind:?}"));
        let least = Duration::from_millis(least.map(|it| left(&it)).min().unwrap());
        let begun = Instant::now();
        // The first waiter of Redisson 3.16 for a fair lock may sleep for ever if it sends its
        // request in the lease's last millisecond. A redlatch waiter behind it wakes it.
        let client = client(&self.server);
        let behind = Kind::Fair.ours(&client, "mine Fair");
        let behind = spawn(move || behind.lock().unwrap().unlock().unwrap());
        let guards: Vec<_> = self.here.drain(..).map(Running::join).collect();
        assert!(begun.elapsed() + TIME_UNIT >= least, "{:?} of {least:?}", begun.elapsed());
        for kind in &self.kinds {
            let thread = format!("{kind:?}");
            assert_eq!(self.java.reply(&thread), "ok");
            let name = format!("mine {kind:?}");
            assert!(self.java.says(&thread, &format!("isHeld {}", rival(*kind).named(&name))));
            if *kind == Kind::Fair {
                self.java.run(&thread, &format!("unlock {}", kind.named(&name)));
            }
        }
        behind.join();
        guards
    }
}

#[test]
fn a_killed_holders_lock_goes_to_the_others_waiter_when_its_lease_ends() {
    beside_redisson(|version| {
        let mut fallen = Fallen::new(version);
        fallen.jvm.kill();
        fallen.ours.sigkill();
        for guard in fallen.wait_taken_over() {
            guard.unlock().unwrap();
        }
    });
}

#[test]
fn a_holder_that_stood_still_past_its_lease_learns_of_it_and_takes_nothing_back() {
    beside_redisson(|version| {
        let mut fallen = Fallen::new(version);
        fallen.jvm.stop();
        fallen.ours.sigstop();
        let guards = fallen.wait_taken_over();
        fallen.jvm.go_on();
        fallen.ours.sigcont();
        fallen.ours.send_line("unlock");
        assert_eq!(fallen.ours.expect_line("lost", TIMEOUT), fallen.kinds.len().to_string());
        for kind in &fallen.kinds {
            let named = kind.named(&format!("theirs {kind:?}"));
            let said = fallen.theirs.ask("a", &format!("unlock {named}"));
            assert!(said.contains("IllegalMonitorState"), "{kind:?}: {said}");
        }
        for guard in guards {
            guard.unlock().unwrap();
        }
    });
}

/// Holds a lock of each kind until the test sends a line, and then reports how many holds it has
/// lost.
pub(crate) fn holder_process(job: &Job) {
    let client = Client::builder(job.arg(0)).watchdog_timeout(SHORT_LEASE).connect().unwrap();
    let guards: Vec<_> = job
        .arg(1)
        .split(' ')
        .map(|kind| {
            let kind = Kind::of_java(kind);
            kind.ours(&client, &format!("mine {kind:?}")).lock().unwrap()
        })
        .collect();
    job.say("holds");
    let _line = job.wait_line();
    let is_lost = |guard: LockGuard| {
        let held = guard.is_held();
        let lost = guard.unlock().is_err_and(|error| error.kind() == ErrorKind::LeaseLost);
        !held && lost
    };
    let lost = guards.into_iter().filter_map(|guard| is_lost(guard).then_some(()));
    job.say(&format!("lost {}", lost.count()));
}
