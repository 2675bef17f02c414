//! The server of the model tests: the server of [`redlatch_in_memory`], with the keys and scripts
//! of locks that the models need. This server has no leases, and no windows for Redisson.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock};

use redis::Value;
use redlatch_client::Dialer;
use redlatch_in_memory::{Keys, Peers, Redis, refusal};
use shuttle::rand::{Rng, thread_rng};

use crate::scripts::eval::Script;
use crate::scripts::{Mode, lua};

/// The hash of the script that consists of these files of `lua/`. A client sends this hash.
macro_rules! script {
    ($($part:tt),+) => {
        LazyLock::new(|| sha(concat!($(lua!($part)),+)))
    };
}

mod process;
mod read_write;

pub(crate) use process::Process;
use read_write::Holders;

/// The server's clock, in ms, which stands still.
const NOW: i64 = 1_000_000;

pub(crate) struct ModelServer(Arc<redlatch_in_memory::Server<Locks>>);

impl ModelServer {
    /// Starts a server that has loaded the scripts. (If the server does not know a script, a client
    /// must send the script again. In a model, no renewer would do this for a release.)
    pub(crate) fn start() -> Arc<Self> {
        let locks = [&*ACQUIRE, &ACQUIRE_HELD, &TRY, &RELEASE, &GIVE_UP, &FORCE_UNLOCK, &RENEW];
        let fair = [&*FAIR_ACQUIRE, &FAIR_TRY, &FAIR_RELEASE, &FAIR_GIVE_UP, &FAIR_FORCE_UNLOCK];
        let mut scripts: Vec<_> = locks.into_iter().chain(fair).cloned().collect();
        scripts.push(ACQUIRE_ALL.clone());
        scripts.extend(read_write::scripts());
        scripts.push(EVAL.whole(Mode::Lock).1.clone());
        let redis = Redis::new(Locks::default(), scripts);
        let chance = |most| thread_rng().gen_range(0..=most);
        Arc::new(Self(redlatch_in_memory::Server::start(redis, NOW, 0, chance)))
    }

    pub(crate) fn dialer(&self) -> Dialer {
        self.0.dialer()
    }

    pub(crate) fn not_granted(&self) -> usize {
        self.0.with(|locks, _, _| locks.not_granted)
    }

    pub(crate) fn owner(&self, key: &str) -> Option<Vec<u8>> {
        self.0.with(|locks, _, _| locks.locks.get(key.as_bytes()).cloned())
    }

    /// The arguments of the users' scripts that have run, in order.
    pub(crate) fn ran(&self) -> Vec<Vec<u8>> {
        self.0.with(|locks, _, _| locks.ran.clone())
    }

    /// Makes another client take the lock, if it is free.
    pub(crate) fn take(&self, key: &str, owner: &[u8]) -> bool {
        self.0.with(|locks, _, _| {
            let free = !locks.locks.contains_key(key.as_bytes());
            if free {
                locks.locks.insert(key.as_bytes().to_vec(), owner.to_vec());
            }
            free
        })
    }

    /// Frees another client's lock, and publishes the message on `channel`.
    pub(crate) fn free(&self, key: &str, channel: &str) {
        self.0.with(|locks, peers, _| {
            locks.locks.remove(key.as_bytes());
            peers.publish(channel.as_bytes(), b"0");
        });
    }

    /// Removes the lock without a message.
    pub(crate) fn take_away(&self, key: &str) {
        self.0.with(|locks, peers, _| {
            locks.locks.remove(key.as_bytes());
            peers.changed(key.as_bytes());
        });
    }

    /// Whether a client holds a read-write lock or waits for it.
    pub(crate) fn is_wanted(&self, key: &str) -> bool {
        self.0.with(|locks, _, _| {
            let waits = locks.queues.get(key.as_bytes()).is_some_and(|queue| !queue.is_empty());
            waits || locks.shared.get(key.as_bytes()).is_some_and(|holders| !holders.is_free())
        })
    }

    /// Deletes a read-write lock, and grants it to the first waiter.
    pub(crate) fn delete(&self, key: &str) {
        self.0.with(|locks, peers, now| {
            let mut step = locks.step(peers, now);
            step.holders(key.as_bytes()).delete();
            step.let_in(key.as_bytes(), None);
        });
    }

    pub(crate) fn forget_scripts(&self) {
        self.0.forget_scripts();
    }

    pub(crate) fn break_subscribers(&self) {
        self.0.break_subscribers();
    }
}

#[derive(Default)]
struct Locks {
    /// Key to owner.
    locks: HashMap<Vec<u8>, Vec<u8>>,
    /// For read-write locks: key to holders.
    shared: HashMap<Vec<u8>, Holders>,
    /// Key to the queue of the lock's waiters.
    queues: HashMap<Vec<u8>, VecDeque<Vec<u8>>>,
    /// The number of requests for a lock that got no grant.
    not_granted: usize,
    /// The arguments of the users' scripts that have run, in order.
    ran: Vec<Vec<u8>>,
    /// The scripts that got no reply and may still run at any time. Each entry is a lock, an
    /// argument and an owner.
    late: Vec<[Vec<u8>; 3]>,
}

/// One command or script.
struct ModelStep<'a> {
    locks: &'a mut HashMap<Vec<u8>, Vec<u8>>,
    shared: &'a mut HashMap<Vec<u8>, Holders>,
    queues: &'a mut HashMap<Vec<u8>, VecDeque<Vec<u8>>>,
    not_granted: &'a mut usize,
    peers: &'a mut Peers,
    /// The server's time, in ms.
    now: i64,
}

impl Locks {
    fn step<'a>(&'a mut self, peers: &'a mut Peers, now: i64) -> ModelStep<'a> {
        let Self { locks, shared, queues, not_granted, .. } = self;
        ModelStep { locks, shared, queues, not_granted, peers, now: now / 1_000 }
    }
}

impl Keys for Locks {
    fn command(&mut self, peers: &mut Peers, now: i64, command: &[&[u8]]) -> Value {
        let key = command[1];
        match command[0] {
            b"HEXISTS" => {
                let is_owner = self.locks.get(key).is_some_and(|owner| owner == command[2]);
                let holds = self.step(peers, now).holders(key).know(command[2]);
                Value::Int(i64::from(is_owner || holds))
            }
            b"EXISTS" => Value::Int(i64::from(self.locks.contains_key(key))),
            other => panic!("the model's server knows no {}", String::from_utf8_lossy(other)),
        }
    }

    fn script(
        &mut self,
        peers: &mut Peers,
        now: i64,
        sha: &str,
        _: usize,
        arguments: &[&[u8]],
    ) -> Value {
        let arguments: &Vec<_> = &arguments.iter().map(|it| it.to_vec()).collect();
        self.late_ones_run();
        if sha == EVAL.whole(Mode::Lock).1 {
            return self.runs_or_is_late(arguments);
        }
        let before = self.locks.get(&arguments[0]).cloned();
        let reply = self.step(peers, now).evaluate(sha, arguments);
        if self.locks.get(&arguments[0]) != before.as_ref() {
            peers.changed(&arguments[0]);
        }
        reply
    }
}

impl Locks {
    /// Runs a user's script. The arguments are the lock, the script's own argument and the owner.
    /// If the script's own argument begins with `may be late`, the script may run later. Its reply
    /// is then a big number that no script returns, and that represents a lost reply.
    fn runs_or_is_late(&mut self, arguments: &[Vec<u8>]) -> Value {
        let [lock, argument, owner] = arguments else { panic!("not the model's script") };
        if argument.starts_with(b"may be late") && thread_rng().gen_bool(0.5) {
            self.late.push([lock.clone(), argument.clone(), owner.clone()]);
            return Value::BigNumber(b"1".to_vec());
        }
        if self.locks.get(lock) != Some(owner) {
            return refusal("NOTHELD");
        }
        self.ran.push(argument.clone());
        Value::Int(1)
    }

    fn late_ones_run(&mut self) {
        let (run, late) =
            std::mem::take(&mut self.late).into_iter().partition(|_| thread_rng().gen_bool(0.3));
        self.late = late;
        for [lock, argument, owner] in Vec::from(run) {
            if self.locks.get(&lock) == Some(&owner) {
                self.ran.push(argument);
            }
        }
    }
}

impl ModelStep<'_> {
    fn evaluate(&mut self, sha: &str, arguments: &[Vec<u8>]) -> Value {
        let key = &arguments[0];
        if sha == *ACQUIRE || sha == *ACQUIRE_HELD {
            self.acquire(key, &arguments[4], true)
        } else if sha == *TRY {
            self.acquire(key, &arguments[4], false)
        } else if sha == *RELEASE {
            self.release(key, &arguments[3], &arguments[4])
        } else if sha == *ACQUIRE_ALL {
            // The arguments are three keys for each lock, the lease, and the owners.
            let all = (arguments.len() - 1) / 4;
            self.acquire_all(&arguments[..all], &arguments[arguments.len() - all..])
        } else if sha == *GIVE_UP {
            self.queues.entry(key.clone()).or_default().retain(|other| *other != arguments[3]);
            self.release(key, &arguments[3], &arguments[4])
        } else if sha == *FORCE_UNLOCK {
            let existed = self.locks.remove(key).is_some();
            if !self.grant_head(key) {
                self.peers.publish(&arguments[3], b"0");
            }
            Value::Int(i64::from(existed))
        } else if sha == *RENEW {
            // The arguments are the keys, the timeouts of read holds, two leases, and the owners.
            let reads = arguments.iter().filter(|it| it.starts_with(b"read ")).count();
            let holds = (arguments.len() - 2 - reads) / 2;
            let owners = &arguments[arguments.len() - holds..];
            let each = arguments.iter().zip(owners).map(|(key, owner)| {
                let owner = owner.strip_prefix(b"read ").unwrap_or(owner);
                let is_owner = self.locks.get(key).is_some_and(|holder| holder == owner);
                i64::from(is_owner || self.holders(key).know(owner))
            });
            numbers(&each.collect::<Vec<_>>())
        } else {
            let replied = self.read_or_write(sha, arguments);
            replied.unwrap_or_else(|| self.evaluate_fair(sha, &arguments[0], &arguments[6..]))
        }
    }

    /// Runs a script of a fair lock. `own`: the script's arguments after the common arguments.
    fn evaluate_fair(&mut self, sha: &str, key: &[u8], own: &[Vec<u8>]) -> Value {
        if sha == *FAIR_ACQUIRE {
            self.enqueue(key, &own[1], own[2] == b"1", &own[3..])
        } else if sha == *FAIR_TRY {
            let free = !self.locks.contains_key(key) && !self.moves_on(key);
            if free {
                self.locks.insert(key.to_vec(), own[1].clone());
            }
            Value::Int(i64::from(self.locks.get(key) == Some(&own[1])))
        } else if sha == *FAIR_RELEASE || sha == *FAIR_GIVE_UP {
            let gives_up = sha == *FAIR_GIVE_UP;
            let queue = self.queues.entry(key.to_vec()).or_default();
            let before = queue.len();
            let leaving = if gives_up { &own[..1] } else { &own[1..] };
            queue.retain(|waiter| !leaving.contains(waiter));
            let waited = queue.len() < before;
            let held = self.locks.get(key) == Some(&own[0]) && (!gives_up || own[1] != b"1");
            if held {
                self.locks.remove(key);
            }
            let moved = self.moves_on(key);
            match (gives_up, held) {
                (true, true) => Value::Int(2),
                (true, false) => Value::Int(i64::from(waited)),
                (false, true) => Value::Int(i64::from(moved)),
                (false, false) => Value::Nil,
            }
        } else if sha == *FAIR_FORCE_UNLOCK {
            let existed = self.locks.remove(key).is_some();
            self.moves_on(key);
            Value::Int(i64::from(existed))
        } else {
            panic!("a script that the model's server does not know")
        }
    }

    /// Takes a fair lock, or adds the owner to its queue. Adds `rest`, the other owners of the
    /// request, behind the owner.
    fn enqueue(&mut self, key: &[u8], owner: &[u8], was_queued: bool, rest: &[Vec<u8>]) -> Value {
        let company = if was_queued { &[] } else { rest };
        if self.locks.get(key).is_some_and(|holder| holder == owner) {
            let behind = Value::BulkString(b"-".to_vec());
            self.queues.entry(key.to_vec()).or_default().extend(company.iter().cloned());
            return Value::Array(vec![Value::Int(2), behind, Value::Int(self.now)]);
        }
        let queue = self.queues.entry(key.to_vec()).or_default();
        let is_there = queue.iter().any(|waiter| waiter == owner);
        if was_queued && !is_there {
            queue.push_front(owner.to_vec());
        } else if !is_there {
            queue.push_back(owner.to_vec());
        }
        let at = queue.iter().position(|waiter| waiter == owner).unwrap_or_default();
        for (behind, waiter) in company.iter().filter(|_| !is_there).enumerate() {
            queue.insert(at + behind + 1, waiter.clone());
        }
        if !self.locks.contains_key(key) {
            if self.queues[key].front().is_some_and(|head| head == owner) {
                self.queues.entry(key.to_vec()).or_default().pop_front();
                self.locks.insert(key.to_vec(), owner.to_vec());
                let behind = Value::BulkString(self.followers(key, owner).into_bytes());
                return Value::Array(vec![Value::Int(1), behind, Value::Int(self.now)]);
            }
            self.moves_on(key);
        }
        *self.not_granted += 1;
        numbers(&[0, self.now, -1, 0, i64::from(was_queued && !is_there)])
    }

    /// The numbers of the first owners in the queue, up to the first owner of another client.
    fn followers(&self, key: &[u8], owner: &[u8]) -> String {
        let queue = self.queues.get(key).into_iter().flatten();
        let of_client = queue.take_while(|waiter| waiter[..37] == owner[..37]);
        let numbers: Vec<_> =
            of_client.map(|waiter| String::from_utf8_lossy(&waiter[37..]).into_owned()).collect();
        if numbers.is_empty() { "-".to_owned() } else { numbers.join(",") }
    }

    /// Grants a free fair lock to the first waiter that listens.
    fn moves_on(&mut self, key: &[u8]) -> bool {
        if self.locks.contains_key(key) {
            return false;
        }
        while let Some(head) = self.queues.get_mut(key).and_then(VecDeque::pop_front) {
            let owner = String::from_utf8_lossy(&head).into_owned();
            let (client, number) = owner.split_once(':').unwrap();
            let channel = format!("redisson_lock__channel:{{redlatch:{client}}}");
            let (name, followers) = (String::from_utf8_lossy(key), self.followers(key, &head));
            let now = self.now;
            let message = format!("grant {number} {now} 2000 {followers} 0 {name}");
            if self.peers.publish(channel.as_bytes(), message.as_bytes()) > 0 {
                self.locks.insert(key.to_vec(), head);
                return true;
            }
        }
        false
    }

    fn acquire(&mut self, key: &[u8], owner: &[u8], queues: bool) -> Value {
        let holder = self.locks.get(key);
        let already = holder.is_some_and(|holder| holder == owner);
        let queue = self.queues.entry(key.to_vec()).or_default();
        if already || holder.is_none() && (!queues || queue.is_empty()) {
            self.locks.insert(key.to_vec(), owner.to_vec());
            let places = queue.len() as i64;
            return Value::Int(if already { -1 - places } else { places });
        }
        *self.not_granted += 1;
        if !queues {
            return Value::Nil;
        }
        let place = queue.iter().position(|other| other == owner);
        if place.is_none() {
            queue.push_back(owner.to_vec());
        }
        let at = place.unwrap_or(queue.len() - 1) as i64;
        // The lock may be free although processes wait: a lease has ended, or no waiter got the
        // message.
        if !self.locks.contains_key(key) && self.grant_head(key) {
            return self.acquire(key, owner, true);
        }
        numbers(&[self.now, 30_000, at, 0, i64::from(place.is_none())])
    }

    /// Takes all these locks or none.
    fn acquire_all(&mut self, keys: &[Vec<u8>], owners: &[Vec<u8>]) -> Value {
        for (key, owner) in keys.iter().zip(owners) {
            let waits = self.queues.get(key).is_some_and(|queue| !queue.is_empty());
            match self.locks.get(key) {
                Some(holder) if holder == owner => {}
                None if !waits => {}
                holder => {
                    *self.not_granted += 1;
                    let is_taken = holder.is_some_and(|holder| holder[..36] != owner[..36]);
                    return if is_taken { Value::Nil } else { Value::Int(0) };
                }
            }
        }
        self.locks.extend(keys.iter().cloned().zip(owners.iter().cloned()));
        Value::Int(keys.len() as i64)
    }

    fn release(&mut self, key: &[u8], owner: &[u8], channel: &[u8]) -> Value {
        if self.locks.get(key).is_none_or(|holder| holder != owner) {
            return Value::Nil;
        }
        self.locks.remove(key);
        if self.grant_head(key) {
            return Value::Int(1);
        }
        self.peers.publish(channel, b"0");
        Value::Int(0)
    }

    /// Grants the lock to the first waiter that listens.
    fn grant_head(&mut self, key: &[u8]) -> bool {
        while let Some(head) = self.queues.get_mut(key).and_then(VecDeque::pop_front) {
            let owner = String::from_utf8(head.clone()).unwrap();
            let (client, number) = owner.split_once(':').unwrap();
            let channel = format!("redisson_lock__channel:{{redlatch:{client}}}");
            let name = String::from_utf8_lossy(key);
            let now = self.now;
            let message = format!("grant {number} {now} 2000 lock,0,{now},1 0 {name}");
            if self.peers.publish(channel.as_bytes(), message.as_bytes()) > 0 {
                self.locks.insert(key.to_vec(), head);
                return true;
            }
        }
        false
    }
}

/// The script of the models' users.
pub(crate) static EVAL: LazyLock<Script> = LazyLock::new(|| Script::new(""));
static ACQUIRE: LazyLock<String> =
    script!("lock/free.lua", "lock/queue_up.lua", LOCK_OWNER, "lock/acquire.lua");
static ACQUIRE_HELD: LazyLock<String> =
    script!("lock/queue_up.lua", "lock/free.lua", LOCK_OWNER, "lock/acquire.lua");
static TRY: LazyLock<String> = script!("lock/free.lua", LOCK_OWNER, "lock/try.lua");
static RELEASE: LazyLock<String> = script!("lock/hand_over.lua", LOCK, "lock/release.lua");
static ACQUIRE_ALL: LazyLock<String> = script!("multi/acquire.lua");
static GIVE_UP: LazyLock<String> = script!(LOCK, "lock/give_up.lua");
static FORCE_UNLOCK: LazyLock<String> = script!(LOCK_OWNER, "lock/force_unlock.lua");
static FAIR_ACQUIRE: LazyLock<String> = script!(FAIR_OWNER, "fair/acquire.lua");
static FAIR_TRY: LazyLock<String> = script!(FAIR_OWNER, "fair/try.lua");
static FAIR_RELEASE: LazyLock<String> = script!(FAIR, "fair/release.lua");
static FAIR_GIVE_UP: LazyLock<String> = script!(FAIR, "fair/give_up.lua");
static FAIR_FORCE_UNLOCK: LazyLock<String> = script!(FAIR_OWNER, "fair/force_unlock.lua");
static RENEW: LazyLock<String> = script!("lock/cut.lua", "lock/renew.lua");

fn sha(code: &str) -> String {
    redis::Script::new(code).get_hash().to_owned()
}

fn numbers(numbers: &[i64]) -> Value {
    Value::Array(numbers.iter().copied().map(Value::Int).collect())
}
