//! A cluster of real servers. Tests can move its slots and kill its masters.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, RedisResult, Value, cmd};

use crate::{Server, ServerBuilder, ServerError, wait_until};

/// The time limit until each server knows all others, or until the servers agree on a new master.
const BOUND: Duration = Duration::from_secs(60);
const NODE_TIMEOUT: Duration = Duration::from_secs(1);
const SLOTS: u16 = 16_384;

/// Three masters that share the slots evenly, on free ports of 127.0.0.1. Each master may have a
/// replica.
#[derive(Debug)]
pub struct Cluster {
    servers: Vec<Server>,
    masters: usize,
}

impl Cluster {
    /// Starts three masters and three replicas. Returns when each server knows all others.
    ///
    /// # Errors
    ///
    /// The server program has no cluster mode, or a server does not start.
    pub fn start() -> Result<Self, ServerError> {
        Self::of(3, true, |builder, _| node(&builder))
    }

    /// Starts three masters without replicas.
    ///
    /// # Errors
    ///
    /// The errors of [`start`](Self::start).
    pub fn without_replicas() -> Result<Self, ServerError> {
        Self::of(3, false, |builder, _| node(&builder))
    }

    /// Starts three masters without replicas, with this password of letters and digits.
    ///
    /// # Errors
    ///
    /// The errors of [`start`](Self::start).
    pub fn with_password(password: &str) -> Result<Self, ServerError> {
        Self::of(3, false, |builder, _| node(&builder.password(password)))
    }

    /// Starts three masters and three replicas, with TLS for clients and between the servers. See
    /// [`tls_url`](Self::tls_url).
    ///
    /// # Errors
    ///
    /// The errors of [`start`](Self::start), and an error if the program was built without TLS.
    pub fn with_tls(password: &str) -> Result<Self, ServerError> {
        Self::of(3, false, |builder, first| {
            let builder = builder.password(password).tls_among(first);
            node(&builder.args(&["--tls-cluster", "yes"]))
        })
    }

    fn of(
        masters: usize,
        replicas: bool,
        node: impl Fn(ServerBuilder, Option<&Server>) -> Result<Server, ServerError>,
    ) -> Result<Self, ServerError> {
        let all = if replicas { 2 * masters } else { masters };
        let mut servers: Vec<Server> = Vec::new();
        for _ in 0..all {
            servers.push(node(Server::builder(), servers.first())?);
        }
        let cluster = Self { servers, masters };
        cluster.make();
        Ok(cluster)
    }

    fn make(&self) {
        for (at, server) in self.servers.iter().enumerate() {
            let mut node = server.connection();
            let _: Value = cmd("CLUSTER")
                .arg("SET-CONFIG-EPOCH")
                .arg(at + 1)
                .query(&mut node)
                .unwrap_or_else(|error| panic!("no epoch: {error}"));
        }
        // Introduce the servers only now: a server that knows others accepts no epoch.
        self.introduce();
        let share = usize::from(SLOTS).div_ceil(self.masters);
        for (at, server) in self.servers[..self.masters].iter().enumerate() {
            let last = ((at + 1) * share).min(usize::from(SLOTS)) - 1;
            let _: Value = cmd("CLUSTER")
                .arg("ADDSLOTSRANGE")
                .arg(at * share)
                .arg(last)
                .query(&mut server.connection())
                .unwrap_or_else(|error| panic!("no slots: {error}"));
        }
        self.wait_until("all servers know all others", |info| {
            info.contains(&format!("cluster_known_nodes:{}", self.servers.len()))
        });
        for (at, server) in self.servers[self.masters..].iter().enumerate() {
            let master = self.id(&self.servers[at]);
            let mut node = server.connection();
            wait_until("a replica finds its master", BOUND, || {
                let replicates: RedisResult<Value> =
                    cmd("CLUSTER").arg("REPLICATE").arg(&master).query(&mut node);
                replicates.is_ok()
            });
            wait_until("a replica has its master's data", BOUND, || {
                let info: RedisResult<String> = cmd("INFO").arg("replication").query(&mut node);
                info.is_ok_and(|info| info.contains("master_link_status:up"))
            });
        }
        self.wait_until("the cluster is made", |info| info.contains("cluster_state:ok"));
        if self.servers.len() > self.masters {
            // If a master did not know its replica, no replica would replace a master that is
            // killed at once.
            for master in &self.servers[..self.masters] {
                wait_until("a master knows its replica", BOUND, || {
                    let info: RedisResult<String> =
                        cmd("INFO").arg("replication").query(&mut master.connection());
                    info.is_ok_and(|info| info.contains("state=online"))
                });
            }
        }
    }

    /// Makes all servers known to each other. On a machine that stands still, a handshake may take
    /// longer than the node timeout. The server then gives up the handshake, and another handshake
    /// is needed.
    fn introduce(&self) {
        let ids: Vec<_> = self.servers.iter().map(|server| self.id(server)).collect();
        let mut nodes: Vec<_> = self.servers.iter().map(Server::connection).collect();
        for other in &self.servers[1..] {
            meet(&mut nodes[0], other);
        }
        let mut since = Instant::now();
        wait_until("all servers know all others", BOUND, || {
            let is_due = since.elapsed() > NODE_TIMEOUT * 2;
            let mut strangers = 0;
            for node in &mut nodes {
                let known: RedisResult<String> = cmd("CLUSTER").arg("NODES").query(node);
                let known = known.unwrap_or_default();
                for (id, other) in ids.iter().zip(&self.servers) {
                    if !known.contains(id) {
                        strangers += 1;
                        if is_due {
                            meet(node, other);
                        }
                    }
                }
            }
            if is_due {
                since = Instant::now();
            }
            strangers == 0
        });
    }

    /// Waits until `expected` is true of each running server's view of the cluster.
    fn wait_until(&self, what: &str, expected: impl Fn(&str) -> bool) {
        for server in &self.servers {
            let mut node = server.connection();
            wait_until(what, BOUND, || {
                let info: RedisResult<String> = cmd("CLUSTER").arg("INFO").query(&mut node);
                info.is_ok_and(|info| expected(&info))
            });
        }
    }

    /// Returns `redis-cluster://host:port,…` with all servers.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<_> =
            self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    /// Returns `rediss-cluster://password@host:port,…` with the TLS ports.
    ///
    /// # Panics
    ///
    /// The servers have no TLS.
    #[must_use]
    pub fn tls_url(&self) -> String {
        let hosts: Vec<_> = self.servers.iter().map(Server::tls_url).collect();
        let host = |url: &str| {
            let (_, host) = url.trim_end_matches("/#insecure").rsplit_once('@').unwrap_or_default();
            host.to_owned()
        };
        let (login, _) =
            hosts[0].trim_start_matches("rediss://").rsplit_once('@').unwrap_or_default();
        let hosts: Vec<_> = hosts.iter().map(|url| host(url)).collect();
        format!("rediss-cluster://{login}@{}", hosts.join(","))
    }

    /// The servers. The masters come first, then their replicas in the same order.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The slot of a key.
    #[must_use]
    pub fn slot(&self, key: &str) -> u16 {
        cmd("CLUSTER")
            .arg("KEYSLOT")
            .arg(key)
            .query(&mut self.servers[0].connection())
            .unwrap_or_else(|error| panic!("no slot: {error}"))
    }

    /// The server that reports that it has this slot.
    ///
    /// # Panics
    ///
    /// For a long time no server reports the slot.
    #[must_use]
    pub fn owner(&self, slot: u16) -> &Server {
        let mut found = None;
        wait_until("a server has the slot", BOUND, || {
            found = self.servers.iter().position(|server| has(server, slot));
            found.is_some()
        });
        found.map_or_else(|| panic!("no server has slot {slot}"), |at| &self.servers[at])
    }

    /// A master that does not have this slot.
    ///
    /// # Panics
    ///
    /// There is no such master.
    #[must_use]
    pub fn another(&self, slot: u16) -> &Server {
        let owner = self.owner(slot).port();
        let mut all = self.servers[..self.masters].iter();
        let other = all.find(|server| server.port() != owner && server.is_running());
        other.unwrap_or_else(|| panic!("there is no other master"))
    }

    /// The server that has a key.
    #[must_use]
    pub fn home(&self, key: &str) -> &Server {
        self.owner(self.slot(key))
    }

    /// Moves a slot with its keys to another server, as a reshard does.
    pub fn move_slot(&self, slot: u16, to: &Server) {
        self.begin_move(slot, to);
        self.move_keys(slot, to);
        self.end_move(slot, to);
    }

    /// The first step of [`move_slot`](Self::move_slot). After the first step, each of the two
    /// servers may have some of the slot's keys.
    pub fn begin_move(&self, slot: u16, to: &Server) {
        let from = self.owner(slot);
        set_slot(to, slot, &["IMPORTING", &self.id(from)]);
        set_slot(from, slot, &["MIGRATING", &self.id(to)]);
    }

    /// The second step of a slot's move: moves the keys that are in the slot now.
    pub fn move_keys(&self, slot: u16, to: &Server) {
        let mut from = self.owner(slot).connection();
        loop {
            let keys: Vec<String> = cmd("CLUSTER")
                .arg("GETKEYSINSLOT")
                .arg(slot)
                .arg(100)
                .query(&mut from)
                .unwrap_or_else(|error| panic!("no keys of slot {slot}: {error}"));
            if keys.is_empty() {
                return;
            }
            self.move_key_of(&mut from, &keys, to);
        }
    }

    /// Moves one key. Call this method after [`begin_move`](Self::begin_move).
    pub fn move_key(&self, key: &str, to: &Server) {
        self.move_key_of(&mut self.home(key).connection(), &[key.to_owned()], to);
    }

    fn move_key_of(&self, from: &mut Connection, keys: &[String], to: &Server) {
        // Repeat the move: if a server is too busy to answer the others, they exclude it until it
        // answers again.
        wait_until("the keys are moved", BOUND, || {
            let moved: Result<Value, _> = cmd("MIGRATE")
                .arg("127.0.0.1")
                .arg(to.port())
                .arg("")
                .arg(0)
                .arg(5_000)
                .arg("KEYS")
                .arg(keys)
                .query(from);
            match moved {
                Ok(_) => true,
                Err(error) if error.to_string().contains("CLUSTERDOWN") => false,
                Err(error) => panic!("the keys are not moved: {error}"),
            }
        });
    }

    /// The last step of a slot's move: makes the other server the owner of the slot.
    pub fn end_move(&self, slot: u16, to: &Server) {
        let (from, id) = (self.owner(slot), self.id(to));
        set_slot(to, slot, &["NODE", &id]);
        set_slot(from, slot, &["NODE", &id]);
        let masters = || self.servers[..self.masters].iter().filter(|server| server.is_running());
        masters().for_each(|server| set_slot(server, slot, &["NODE", &id]));
        // Each move has an epoch, and the highest epoch wins. So wait until all servers know of
        // this move: a second move of the slot that begins earlier might get the same epoch, and
        // then the servers would never agree.
        let epoch = |server: &Server| line(server, &id)?.split(' ').nth(6).map(str::to_owned);
        wait_until("all know of the move", BOUND, || {
            let number = epoch(to);
            masters().all(|server| {
                epoch(server) == number && line(server, &id).is_some_and(|it| names(&it, slot))
            })
        });
    }

    /// Waits until a server other than `old` has the slot. Returns the time at which the test
    /// noticed this.
    pub fn wait_taken_over(&self, slot: u16, old: &Server) -> Instant {
        wait_until("another server has taken over", BOUND, || {
            let others = self.servers.iter().filter(|server| server.port() != old.port());
            others.into_iter().any(|server| has(server, slot))
        });
        Instant::now()
    }

    /// Kills the server of a slot, and waits until its replica has taken over.
    pub fn fail_over(&self, slot: u16) {
        let old = self.owner(slot);
        old.kill();
        self.wait_taken_over(slot, old);
    }

    /// Cuts a server off from the other servers: it no longer receives their messages. The other
    /// servers still receive this server's messages.
    pub fn cut_off(&self, server: &Server) {
        let mut forget = redis::pipe();
        // The commands are one transaction. In versions after Redis 7.0, a server passes a `FORGET`
        // on to the servers that it still knows. In Valkey, the other servers would introduce
        // themselves again, so this server must ignore them.
        forget.atomic();
        for other in self.servers.iter().filter(|other| other.port() != server.port()) {
            forget.cmd("CLUSTER").arg("FORGET").arg(self.id(other));
        }
        forget.cmd("DEBUG").arg("DROP-CLUSTER-PACKET-FILTER").arg(-2);
        let _: Value = forget
            .query(&mut server.connection())
            .unwrap_or_else(|error| panic!("FORGET: {error}"));
    }

    /// Makes the replica of a slot's master replace the master. The master and the other servers do
    /// not take part in this decision. Waits until all other servers know of it, and returns the
    /// replica.
    pub fn take_over(&self, slot: u16) -> &Server {
        let old = self.owner(slot).port();
        let at = self.servers.iter().position(|server| server.port() == old);
        let at = at.unwrap_or_default();
        let new = &self.servers[at + self.masters];
        // The replica takes over with the data that it has, so it must first have all data.
        let written = offset(&self.servers[at], "master_repl_offset");
        wait_until("the replica has what its master has", BOUND, || {
            offset(new, "slave_repl_offset").is_some_and(|it| written.is_some_and(|at| it >= at))
        });
        let _: Value = cmd("CLUSTER")
            .arg("FAILOVER")
            .arg("TAKEOVER")
            .query(&mut new.connection())
            .unwrap_or_else(|error| panic!("TAKEOVER: {error}"));
        let id = self.id(new);
        wait_until("all others know the new master", BOUND, || {
            let others = self.servers.iter().filter(|server| server.port() != old);
            others.into_iter().all(|it| line(it, &id).is_some_and(|it| names(&it, slot)))
        });
        new
    }

    fn id(&self, server: &Server) -> String {
        cmd("CLUSTER")
            .arg("MYID")
            .query(&mut server.connection())
            .unwrap_or_else(|error| panic!("a server without a name: {error}"))
    }
}

/// Begins a handshake between two servers.
fn meet(node: &mut Connection, other: &Server) {
    let _: Value = cmd("CLUSTER")
        .arg("MEET")
        .arg("127.0.0.1")
        .arg(other.port())
        .arg(other.port() + BUS)
        .query(node)
        .unwrap_or_else(|error| panic!("the servers do not meet: {error}"));
}

/// Returns the number of bytes that a master has written, or that a replica has received.
fn offset(server: &Server, which: &str) -> Option<u64> {
    let info: String = cmd("INFO").arg("replication").query(&mut server.connection()).ok()?;
    info.lines().find_map(|line| line.strip_prefix(which)?.strip_prefix(':')?.parse().ok())
}

/// The difference between a server's port and its port for the other servers. With the default of
/// 10,000, some servers would get an invalid port.
const BUS: u16 = 20_000;

fn node(builder: &ServerBuilder) -> Result<Server, ServerError> {
    let timeout = NODE_TIMEOUT.as_millis().to_string();
    for _ in 0..100 {
        let port = crate::server::ports::free();
        let bus = port.number() + BUS;
        // The system may have given this port to a client, which then binds it for a moment.
        if TcpListener::bind(("127.0.0.1", bus)).is_err() {
            continue;
        }
        let started = builder
            .clone()
            .port(port.number())
            .args(&["--cluster-enabled", "yes", "--cluster-node-timeout", &timeout])
            .args(&["--cluster-port", &bus.to_string()])
            .args(&["--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0"])
            .args(&["--cluster-allow-replica-migration", "no"])
            .args(&["--enable-debug-command", "local"])
            .start();
        match started {
            Err(error) if error.to_string().contains("taken") => {
                thread::sleep(Duration::from_millis(10));
            }
            started => return started.map(|server| server.with_reserved(port)),
        }
    }
    Err(ServerError::new("no two free ports for a server of a cluster"))
}

fn has(server: &Server, slot: u16) -> bool {
    if !server.is_running() {
        return false;
    }
    let own = line(server, "myself").unwrap_or_default();
    own.contains("master") && names(&own, slot)
}

/// Returns the line about a server (an id or an address) in another server's list.
fn line(server: &Server, word: &str) -> Option<String> {
    let nodes: RedisResult<String> = cmd("CLUSTER").arg("NODES").query(&mut server.connection());
    let nodes = nodes.unwrap_or_default();
    // A replica's line also has its master's id, in a later column.
    let is_it = |line: &&str| line.split(' ').take(3).any(|column| column.contains(word));
    nodes.lines().find(is_it).map(str::to_owned)
}

/// Whether this line of the list contains the slot.
fn names(line: &str, slot: u16) -> bool {
    line.split(' ').skip(8).any(|range| {
        let mut ends = range.split('-').map(str::parse::<u16>);
        match (ends.next(), ends.next()) {
            (Some(Ok(first)), Some(Ok(last))) => (first..=last).contains(&slot),
            (Some(Ok(only)), None) => only == slot,
            _ => false,
        }
    })
}

fn set_slot(server: &Server, slot: u16, words: &[&str]) {
    let _: Value = cmd("CLUSTER")
        .arg("SETSLOT")
        .arg(slot)
        .arg(words)
        .query(&mut server.connection())
        .unwrap_or_else(|error| panic!("SETSLOT {words:?}: {error}"));
}
