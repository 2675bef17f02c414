//! Causes faults, and records each fault with its time.
//!
//! Two threads cause faults at the same time: one for the processes, the other for servers and
//! network.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use redlatch_testkit::{Action, Cluster, Direction, Proxy, Sentinels, Server, wait_until};

use crate::clock::{ms, nanos, now};
use crate::history::{FAULTS, Fault, LEASES_LONGER, LEASES_SHORTER, MACHINE_STILL};
use crate::run::Crew;
use crate::store;
use crate::world::{World, ask, is_master};

/// The servers may have chosen a new master up to this time (in ns) before this program noticed it.
/// Clients may have used the old master for this time after the change.
const BEFORE: u64 = ms(4000);
const AFTER: u64 = ms(2000);
const PULSE: Duration = Duration::from_millis(50);
/// If the machine stands still for this time, calls are delayed.
const STOOD_STILL: u64 = ms(500);
/// The number of random choices until a fault is of a wanted kind.
const CHOICES: usize = 20;
/// The time limit until the servers work again.
const BOUND: Duration = Duration::from_secs(60);

/// The name in the history for the servers' return to their first roles, which is not a fault.
const BROUGHT_BACK: &str = "masters brought back";

pub(crate) struct Nemesis<'a> {
    pub(crate) world: &'a World,
    /// The prefix of all names of this round.
    pub(crate) prefix: &'a str,
    /// The kinds of faults to cause, or empty for all kinds.
    pub(crate) only: &'a str,
    pub(crate) faults: Mutex<Vec<Fault>>,
    pub(crate) until: Instant,
    pub(crate) seed: u64,
}

impl Nemesis<'_> {
    /// Causes faults until the time is over, then repairs everything.
    pub(crate) fn rage(&self, crew: &mut Crew<'_>) {
        thread::scope(|scope| {
            let _servers = scope.spawn(|| self.harm_servers());
            self.harm_processes(crew);
        });
    }

    /// Watches for new masters until `ended`, because busy servers may choose a new master by
    /// themselves.
    pub(crate) fn watch(&self, ended: &AtomicBool) {
        if matches!(self.world, World::One { .. }) {
            return;
        }
        let (mut known, mut looked) = (self.world.leaders(), now());
        while !ended.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(150));
            let (began, leaders) = (now(), self.world.leaders());
            // A missing answer of the servers is not a change.
            if !leaders.is_empty() && leaders != known {
                let (from, to) = (looked.saturating_sub(BEFORE), now() + AFTER);
                self.note(Fault {
                    kind: "another master".to_owned(),
                    from,
                    to,
                    process: None,
                    forgets: true,
                });
                known = leaders;
            }
            looked = began;
        }
    }

    /// Records when this machine or its disk stood still, until `ended`. A thread writes a byte at
    /// short intervals, and checks whether the write was late.
    pub(crate) fn pulse(&self, folder: &Path, ended: &AtomicBool) {
        let Ok(mut file) = File::create(folder.join("pulse")) else { return };
        while !ended.load(Ordering::Relaxed) {
            let from = now();
            let _written = file.write_all(b".");
            thread::sleep(PULSE);
            let (from, to) = (from + nanos(PULSE), now());
            if to > from + STOOD_STILL {
                let kind = MACHINE_STILL.to_owned();
                self.note(Fault { kind, from, to, process: None, forgets: false });
            }
        }
    }

    fn note(&self, fault: Fault) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Causes the fault if the options allow its kind, and records it.
    fn fault(&self, kind: &'static str, process: Option<u32>, forgets: bool, act: impl FnOnce()) {
        debug_assert!(kind == BROUGHT_BACK || FAULTS.contains(&kind), "{kind}");
        let is_wanted = self.only.is_empty() || self.only.split(',').any(|it| it == kind);
        if !is_wanted && kind != BROUGHT_BACK {
            return;
        }
        let from = now();
        act();
        let fault = Fault { kind: kind.to_owned(), from, to: now(), process, forgets };
        self.note(fault);
    }

    fn harm_processes(&self, crew: &mut Crew<'_>) {
        let mut rng = StdRng::seed_from_u64(self.seed);
        while !self.is_over() {
            sleep(&mut rng, 50..1200);
            let at = rng.random_range(0..crew.members.len());
            match rng.random_range(0..10) {
                0..3 => {
                    let killed = crew.members[at].number;
                    self.fault("kill", Some(killed), false, || crew.replace(at));
                }
                3..8 => self.stop(crew, at, rng.random_range(20..800), "stop"),
                // This pause is longer than the leases.
                _ => self.stop(crew, at, rng.random_range(3200..5000), "stop beyond a lease"),
            }
        }
    }

    fn stop(&self, crew: &mut Crew<'_>, at: usize, millis: u64, kind: &'static str) {
        let member = &mut crew.members[at];
        self.fault(kind, Some(member.number), false, || {
            member.worker.sigstop();
            thread::sleep(Duration::from_millis(millis));
            member.worker.sigcont();
        });
    }

    fn harm_servers(&self) {
        let mut rng = StdRng::seed_from_u64(self.seed ^ 0xabcd);
        while !self.is_over() {
            sleep(&mut rng, 50..1500);
            // If the options allow only some kinds, most choices cause no fault.
            let before = self.count();
            for _ in 0..CHOICES {
                self.harm_a_server(&mut rng);
                if self.count() > before || self.is_over() {
                    break;
                }
            }
        }
    }

    fn count(&self) -> usize {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn harm_a_server(&self, rng: &mut StdRng) {
        let special = rng.random_bool(0.6);
        match self.world {
            World::One { server, network } if special => {
                if rng.random_bool(0.6) {
                    self.harm_network(network, rng);
                } else {
                    self.harm_one(server, rng);
                }
            }
            World::Sentinel(sentinels) if rng.random_ratio(1, 4) => {
                self.fail_over(sentinels, rng);
            }
            World::Cluster(cluster) if special => self.harm_cluster(cluster, rng),
            _ => {
                if let Some(server) = self.world.masters().choose(rng) {
                    self.harm_any(server, rng);
                }
            }
        }
    }

    /// The faults that every server survives without a loss of data.
    fn harm_any(&self, server: &Server, rng: &mut StdRng) {
        let tell = |command: &[&str]| drop(ask::<redis::Value>(server, command));
        match rng.random_range(0..10) {
            0 => self.fault("server stopped", None, false, || {
                server.pause();
                // This pause is too short for the other servers to choose another master.
                sleep(rng, 50..700);
                server.resume();
            }),
            1 => {
                let millis = rng.random_range(50..800);
                self.fault("CLIENT PAUSE", None, false, || {
                    tell(&["CLIENT", "PAUSE", &millis.to_string()]);
                    thread::sleep(Duration::from_millis(millis));
                });
            }
            2 | 3 => {
                let kind = if rng.random_bool(0.5) { "normal" } else { "pubsub" };
                self.fault("CLIENT KILL", None, false, || tell(&["CLIENT", "KILL", "TYPE", kind]));
            }
            4 => self.fault("SCRIPT FLUSH", None, false, || tell(&["SCRIPT", "FLUSH"])),
            5 | 6 => self.fault("memory full", None, false, || {
                tell(&["CONFIG", "SET", "maxmemory", "1"]);
                sleep(rng, 50..700);
                self.surely(server, &["CONFIG", "SET", "maxmemory", "0"]);
            }),
            // The effect is the same as if the server's clock were set forward or back.
            7 => {
                let by = rng.random_range(300..3000);
                self.fault(LEASES_SHORTER, None, true, || self.shift_leases(server, by));
            }
            8 => {
                let by = rng.random_range(300..3000);
                self.fault(LEASES_LONGER, None, false, || self.shift_leases(server, -by));
            }
            _ => {
                const COMMANDS: [&str; 12] = [
                    "hset", "hdel", "del", "pexpire", "publish", "lpop", "rpush", "lrem", "incrby",
                    "set", "zadd", "decrby",
                ];
                let command = COMMANDS.choose(rng).copied().unwrap_or("hset");
                self.fault("command denied", None, false, || {
                    tell(&["ACL", "SETUSER", "default", &format!("-{command}")]);
                    sleep(rng, 20..500);
                    self.surely(server, &["ACL", "SETUSER", "default", "+@all"]);
                });
            }
        }
    }

    /// Makes all leases and other times of this round end earlier by this many ms.
    fn shift_leases(&self, server: &Server, by: i64) {
        const SHIFT: &str = "
            for _, key in ipairs(redis.call('keys', ARGV[1])) do
                local left = redis.call('pttl', key)
                if left > 0 then
                    redis.call('pexpire', key, left - ARGV[2])
                end
                if key:find('timeout') and redis.call('type', key).ok == 'zset' then
                    for _, member in ipairs(redis.call('zrange', key, 0, -1)) do
                        redis.call('zincrby', key, -ARGV[2], member)
                    end
                end
            end
            return 1";
        let pattern = format!("*{}*", self.prefix);
        let _: Option<i64> = ask(server, &["EVAL", SHIFT, "0", &pattern, &by.to_string()]);
    }

    /// Repeats the command until it succeeds, because a server must not stay broken.
    fn surely(&self, server: &Server, command: &[&str]) {
        wait_until("a server is mended", BOUND, || ask::<redis::Value>(server, command).is_some());
    }

    fn harm_one(&self, server: &Server, rng: &mut StdRng) {
        match rng.random_range(0..6) {
            0..3 => self.fault("restart with data", None, false, || server.restart_empty()),
            3 | 4 => self.fault("restart without data", None, true, || {
                let dir: Option<Vec<String>> = ask(server, &["CONFIG", "GET", "dir"]);
                server.kill();
                if let Some([_, dir]) = dir.as_deref() {
                    let _ = fs::remove_dir_all(PathBuf::from(dir).join("appendonlydir"));
                }
                server.restart_empty();
            }),
            _ => self.fault("FLUSHALL", None, true, || {
                let _: Option<redis::Value> = ask(server, &["FLUSHALL"]);
            }),
        }
    }

    fn harm_network(&self, network: &Proxy, rng: &mut StdRng) {
        match rng.random_range(0..9) {
            0 => self.fault("cut", None, false, || {
                let _ = network.cut_all();
            }),
            1 => self.fault("messages cut", None, false, || {
                let _ = network.cut_matching("SUBSCRIBE");
            }),
            2 => {
                let delay = Duration::from_millis(rng.random_range(1..40));
                self.fault("delay", None, false, || {
                    network.set_delay(delay);
                    sleep(rng, 200..2000);
                    network.set_delay(Duration::ZERO);
                });
            }
            3 => self.fault("network frozen", None, false, || {
                network.freeze();
                sleep(rng, 50..2500);
                network.thaw();
            }),
            4 => self.fault("connections refused", None, false, || {
                network.refuse();
                network.cut_all();
                sleep(rng, 50..1500);
                network.accept();
            }),
            5 => self.fault("byte by byte", None, false, || {
                network.trickle(true);
                sleep(rng, 50..500);
                network.trickle(false);
            }),
            // A script of a guard that runs late may run under the hold of another thread. Such
            // scripts are few among all requests, so they have a kind of fault of their own. The
            // delay is short, because the threads of a process pass a hold on for 10 ms at most.
            6 => {
                let late = Action::LateRequest(Duration::from_millis(1 << rng.random_range(0..5)));
                let shots = rng.random_range(5..30);
                self.fault("scripts late", None, false, || {
                    network.on(Direction::Request, shots, late, store::is_late);
                    sleep(rng, 100..800);
                    network.clear_rules();
                });
            }
            _ => {
                let actions = [
                    Action::LoseRequest,
                    // The delay is mostly short, so that the hold of the request still lasts.
                    Action::LateRequest(Duration::from_millis(1 << rng.random_range(0..11))),
                    Action::LoseReply,
                    Action::DelayReply(Duration::from_millis(rng.random_range(10..1800))),
                    Action::Silence,
                ];
                let action = actions.choose(rng).copied().unwrap_or(Action::LoseReply);
                let direction = match action {
                    Action::LoseRequest | Action::LateRequest(_) => Direction::Request,
                    _ => Direction::Reply,
                };
                let shots = rng.random_range(1..6);
                self.fault("replies and requests lost or late", None, false, || {
                    network.on(direction, shots, action, |_| true);
                    sleep(rng, 100..800);
                    network.clear_rules();
                });
            }
        }
    }

    fn fail_over(&self, sentinels: &Sentinels, rng: &mut StdRng) {
        if rng.random_bool(0.5) {
            self.fault("failover on command", None, true, || {
                sentinels.fail_over();
                sentinels.wait_ready();
            });
        } else {
            self.fault("master killed", None, true, || {
                let old = sentinels.master();
                old.kill();
                sentinels.wait_switched(old);
                sentinels.revive(old);
            });
        }
    }

    fn harm_cluster(&self, cluster: &Cluster, rng: &mut StdRng) {
        const NAMES: [&str; 6] =
            ["reentrant-0", "reentrant-1", "fair-0", "readwrite-0", "readwrite-1", "{several}-0"];
        // The test kit moves slots and fails over only between the first servers and their
        // replicas. On a busy machine they may have exchanged their roles.
        let mut first = cluster.servers().iter().take(3);
        if !first.all(is_master) {
            self.fault(BROUGHT_BACK, None, true, || bring_back(cluster));
            return;
        }
        let name = NAMES.choose(rng).copied().unwrap_or("fair-0");
        let slot = cluster.slot(&format!("{}{name}", self.prefix));
        if rng.random_ratio(1, 4) {
            self.fault("master killed", None, true, || {
                let old = cluster.owner(slot);
                cluster.fail_over(slot);
                old.restart_empty();
                bring_back(cluster);
            });
        } else {
            self.fault("slot moved", None, false, || {
                cluster.move_slot(slot, cluster.another(slot));
            });
        }
    }
}

/// Makes the first servers the masters again, after they have their data.
fn bring_back(cluster: &Cluster) {
    for server in cluster.servers().iter().take(3) {
        let until = Instant::now() + BOUND;
        while !is_master(server) && Instant::now() < until {
            let info: Option<String> = ask(server, &["INFO", "replication"]);
            if info.is_some_and(|info| info.contains("master_link_status:up")) {
                let _: Option<redis::Value> = ask(server, &["CLUSTER", "FAILOVER"]);
            }
            thread::sleep(Duration::from_millis(300));
        }
    }
}

fn sleep(rng: &mut StdRng, millis: std::ops::Range<u64>) {
    thread::sleep(Duration::from_millis(rng.random_range(millis)));
}

/// The violations that the canary plants. Each has the check that must find it, and a part of the
/// names that it damages.
pub(crate) const PLANTED: [(&str, &str); 3] =
    [("claims", "reentrant"), ("claims", "semaphore"), ("tokens", "fenced")];

/// For the canary: damages the server's data without a record of a fault.
pub(crate) fn plant(server: &Server, prefix: &str, until: Instant) {
    let run = |command: &[&str]| drop(ask::<redis::Value>(server, command));
    let keys =
        |pattern: String| ask::<Vec<String>>(server, &["KEYS", &pattern]).unwrap_or_default();
    while Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
        // The loss of the lock makes two holders.
        run(&["DEL", &format!("{prefix}reentrant-0")]);
        // The higher number makes too many permits.
        for name in keys(format!("{prefix}semaphore-*")) {
            run(&["INCRBY", &name, "5"]);
        }
        // The lower token makes the server grant the same tokens again.
        for name in keys(format!("redisson_lock_token:*{prefix}fenced-*")) {
            run(&["SET", &name, "0"]);
        }
    }
}
