//! A master with its replicas, and Sentinels that choose a new master when the master fails.

use std::collections::HashMap;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::{Server, ServerError, wait_until};

/// The Sentinels' name for the master.
const SERVICE: &str = "redlatch";
const SENTINELS: usize = 3;
const REPLICAS: usize = 2;
/// The time limit until the servers and Sentinels all know each other, or until they agree on a new
/// master. After a failed attempt, the next attempt begins 6 s later, and on a busy machine several
/// attempts may fail.
const BOUND: Duration = Duration::from_secs(60);
/// The time for which a master may be silent by default. See [`PINGS`].
const DOWN_AFTER: Duration = Duration::from_millis(1200);
/// The time between two pings of a Sentinel. A Sentinel measures a new master's silence from the
/// switch, and sends the first ping one such pause after the switch. If the pause were equal to
/// [`DOWN_AFTER`], a new master that answers a little late would be replaced at once. While a
/// master is down, the Sentinels ask the replicas each second, and choose no replica that was
/// silent for five times this time.
const PINGS: &str = "500";
/// The time between two requests of a Sentinel for a server's state. If the Sentinels replace a
/// master that answers, they choose no replica whose state is older than three times this time. If
/// the Sentinels find no replica, they do not try again.
const LOOKS: &str = "400";
/// The time between two exchanges of the Sentinels' views. If a Sentinel receives no view with a
/// new master within four times this time, the Sentinel makes that master a replica again. The
/// leading Sentinel may need a second to notice that the server is the master.
const TELLS: &str = "400";
/// The time for which the test waits for a Sentinel's answer, when it makes the Sentinel begin a
/// failover or asks whether it has begun one. If the test turned to another Sentinel earlier, two
/// failovers could begin.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which a Sentinel does nothing after it stood still for 2 s, for example because of
/// a busy disk. The default is half a minute. If the master failed in this half minute, its
/// replicas would be without a master for more than ten times [`DOWN_AFTER`], and the Sentinels
/// never choose such a replica.
const RESTS: &str = "1000";

/// A master, two replicas and three Sentinels, on free ports of 127.0.0.1.
#[derive(Debug)]
pub struct Sentinels {
    sentinels: Vec<Server>,
    servers: Vec<Server>,
    options: SentinelsBuilder,
}

/// The settings for [`Sentinels`]. See [`Sentinels::builder`].
#[derive(Clone, Debug)]
pub struct SentinelsBuilder {
    down_after: Duration,
    server_password: Option<String>,
    sentinel_password: Option<String>,
    tls: bool,
}

impl Sentinels {
    /// Starts servers and Sentinels with default settings. Returns when all of them know each
    /// other.
    ///
    /// # Errors
    ///
    /// The server program has no Sentinel mode, or a server does not start.
    pub fn start() -> Result<Self, ServerError> {
        Self::builder().start()
    }

    /// Returns a builder for other settings.
    #[must_use]
    pub fn builder() -> SentinelsBuilder {
        SentinelsBuilder {
            down_after: DOWN_AFTER,
            server_password: None,
            sentinel_password: None,
            tls: false,
        }
    }

    /// The Sentinels' name for the master.
    #[must_use]
    pub fn service(&self) -> &str {
        SERVICE
    }

    /// Returns `redis-sentinel://host:port,…/service` (`rediss-` with TLS), with the passwords if
    /// there are any.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(&self.sentinels.iter().map(Server::known_port).collect::<Vec<_>>())
    }

    /// Returns the same URL as [`url`](Self::url), with these ports of 127.0.0.1 in place of the
    /// Sentinels' ports.
    #[must_use]
    pub fn url_of(&self, ports: &[u16]) -> String {
        let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let word = &self.options.server_password;
        let credentials = word.as_ref().map(|word| format!(":{word}@")).unwrap_or_default();
        let word = &self.options.sentinel_password;
        let parameter = word.as_ref().map(|word| format!("?sentinelPassword={word}"));
        let parameter = parameter.unwrap_or_default();
        let scheme = if self.options.tls { "rediss" } else { "redis" };
        format!("{scheme}-sentinel://{credentials}{}/{SERVICE}{parameter}", hosts.join(","))
    }

    /// The authority (a certificate in PEM) of all servers and Sentinels with TLS.
    #[must_use]
    pub fn tls_authority(&self) -> PathBuf {
        self.servers.first().map(Server::tls_authority).unwrap_or_default()
    }

    /// The Sentinels. A test may kill, pause or query them.
    #[must_use]
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The servers, in any roles.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The server that most of the Sentinels report as the master.
    ///
    /// # Panics
    ///
    /// The Sentinels do not agree for a long time.
    #[must_use]
    pub fn master(&self) -> &Server {
        let mut found = None;
        self.wait_until("most Sentinels name the same master", || {
            found = self
                .agreed()
                .and_then(|port| self.servers.iter().find(|it| it.known_port() == port));
            found.is_some()
        });
        found.unwrap_or_else(|| panic!("there is a master"))
    }

    /// The servers that are not the master.
    #[must_use]
    pub fn replicas(&self) -> Vec<&Server> {
        let master = self.master().port();
        self.servers.iter().filter(|server| server.port() != master).collect()
    }

    /// Waits until most of the Sentinels report a master other than `old`. Returns the time at
    /// which the test noticed this.
    ///
    /// # Panics
    ///
    /// The wait takes too long.
    pub fn wait_switched(&self, old: &Server) -> Instant {
        self.wait_until("the Sentinels have chosen another master", || {
            self.agreed().is_some_and(|port| port != old.known_port())
        });
        Instant::now()
    }

    /// Makes the Sentinels choose another master now, without a failure. Returns when they have
    /// chosen another master.
    ///
    /// # Panics
    ///
    /// The Sentinels choose no other master.
    pub fn fail_over(&self) {
        let old = self.master().known_port();
        self.wait_until("the Sentinels have chosen another master on command", || {
            // Try again, because a Sentinel that gives up a failover does not try again by itself.
            // It gives up if no replica has recently reported its state, or if the chosen replica
            // has become slow.
            if !self.sentinels.iter().any(|sentinel| is_leaving(sentinel, old)) {
                let _begun = self.sentinels.iter().any(begins);
            }
            self.agreed().is_some_and(|port| port != old)
        });
    }

    /// Starts a killed server again, or resumes a paused server, without data and as a replica.
    /// Returns when all servers know each other again, perhaps with another master.
    ///
    /// # Panics
    ///
    /// The server does not start, or the other servers do not accept it.
    pub fn revive(&self, server: &Server) {
        let port = server.port();
        if self.master().port() != port {
            server.restart_empty();
            let master = self.master().known_port().to_string();
            let _ = ask::<String>(server, &["REPLICAOF", "127.0.0.1", &master]);
        }
        self.wait_ready();
    }

    /// Waits until every replica has its data from the master, and every Sentinel knows all others.
    ///
    /// # Panics
    ///
    /// The wait takes too long.
    pub fn wait_ready(&self) {
        // The servers may have any roles here, because the Sentinels may still choose another
        // master.
        self.wait_until("all follow one master, and each Sentinel knows all others", || {
            self.replicas().into_iter().all(follows) && self.sentinels.iter().all(knows_all)
        });
    }

    fn wait_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let until = Instant::now() + BOUND;
        while !condition() {
            assert!(
                Instant::now() < until,
                "waited {BOUND:?} in vain until {what}:\n{}",
                self.situation()
            );
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns the views of all servers and Sentinels, for a panic's message.
    fn situation(&self) -> String {
        let mut said = String::new();
        for server in &self.servers {
            let info = ask::<String>(server, &["INFO", "replication"]);
            let info = info.unwrap_or_else(|| "no answer".to_owned());
            said.push_str(&format!("the server at {}: {info}\n", server.known_port()));
        }
        for sentinel in &self.sentinels {
            let log = sentinel.log();
            let lines: Vec<_> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(40)..].join("\n");
            said.push_str(&format!("the Sentinel at {} ends:\n{end}\n", sentinel.known_port()));
        }
        said
    }

    /// Returns the port of the master that most of the Sentinels report.
    fn agreed(&self) -> Option<u16> {
        let named = |sentinel: &Server| -> Option<u16> {
            let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
            ask::<Vec<String>>(sentinel, &question)?.get(1)?.parse().ok()
        };
        let named: Vec<_> = self.sentinels.iter().filter_map(named).collect();
        let votes = |port: &u16| named.iter().filter(|other| *other == port).count();
        named.iter().copied().find(|port| votes(port) > SENTINELS / 2)
    }
}

impl SentinelsBuilder {
    /// Sets how long a master may be silent before it counts as dead. The default is 1.2 s.
    #[must_use]
    pub fn down_after(mut self, silent: Duration) -> Self {
        self.down_after = silent;
        self
    }

    /// Sets a password for the servers, of letters and digits.
    #[must_use]
    pub fn server_password(mut self, password: &str) -> Self {
        self.server_password = Some(password.to_owned());
        self
    }

    /// Sets a password for the Sentinels, of letters and digits.
    #[must_use]
    pub fn sentinel_password(mut self, password: &str) -> Self {
        self.sentinel_password = Some(password.to_owned());
        self
    }

    /// Uses TLS with the clients and between the servers. The kit itself uses ports without TLS.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Starts the servers and Sentinels. Returns when they all know each other.
    ///
    /// # Errors
    ///
    /// The server program has no Sentinel mode, or a server does not start.
    pub fn start(self) -> Result<Sentinels, ServerError> {
        let mut servers: Vec<Server> = Vec::new();
        for _ in 0..=REPLICAS {
            let mut builder = Server::builder();
            if self.tls {
                builder = builder.tls_among(servers.first());
            }
            if let Some(password) = &self.server_password {
                builder = builder.password(password).args(&["--masterauth", password]);
            }
            if let Some(master) = servers.first() {
                builder =
                    builder.args(&["--replicaof", &format!("127.0.0.1 {}", master.known_port())]);
            }
            servers.push(builder.start()?);
        }
        for replica in servers.iter().skip(1) {
            wait_until("a replica has its master's data", BOUND, || follows(replica));
        }
        let mut lines = format!(
            "sentinel monitor {SERVICE} 127.0.0.1 {} 2\n\
             sentinel down-after-milliseconds {SERVICE} {}\n\
             sentinel failover-timeout {SERVICE} 3000\n",
            servers.first().map_or(0, Server::known_port),
            self.down_after.as_millis(),
        );
        if let Some(password) = &self.server_password {
            lines.push_str(&format!("sentinel auth-pass {SERVICE} {password}\n"));
        }
        let mut sentinels = Vec::new();
        for _ in 0..SENTINELS {
            let mut builder = Server::builder().sentinel(lines.clone());
            if self.tls {
                builder = builder.tls_among(servers.first());
            }
            if let Some(password) = &self.sentinel_password {
                builder = builder.password(password);
            }
            let sentinel = builder.start()?;
            // Set short times. The defaults are seconds, which would slow the tests down. An older
            // Sentinel does not have these settings.
            for [what, pace] in [
                ["PING-PERIOD", PINGS],
                ["INFO-PERIOD", LOOKS],
                ["PUBLISH-PERIOD", TELLS],
                ["TILT-PERIOD", RESTS],
            ] {
                let _ = ask::<String>(&sentinel, &["SENTINEL", "DEBUG", what, pace]);
            }
            sentinels.push(sentinel);
        }
        let all = Sentinels { sentinels, servers, options: self };
        all.wait_ready();
        Ok(all)
    }
}

fn follows(replica: &Server) -> bool {
    let info = ask::<String>(replica, &["INFO", "replication"]).unwrap_or_default();
    info.contains("role:slave") && info.contains("master_link_status:up")
}

/// Whether the Sentinel could choose another master now.
fn knows_all(sentinel: &Server) -> bool {
    let fields: HashMap<String, String> =
        ask(sentinel, &["SENTINEL", "MASTER", SERVICE]).unwrap_or_default();
    let is = |field: &str, value: &str| fields.get(field).is_some_and(|it| it == value);
    let replicas: Vec<HashMap<String, String>> =
        ask(sentinel, &["SENTINEL", "REPLICAS", SERVICE]).unwrap_or_default();
    let well = |replica: &HashMap<String, String>| {
        let has = |field: &str, value: &str| replica.get(field).is_some_and(|it| it == value);
        has("flags", "slave") && has("master-link-status", "ok")
    };
    is("flags", "master")
        && is("num-other-sentinels", &(SENTINELS - 1).to_string())
        && replicas.iter().filter(|replica| well(replica)).count() == REPLICAS
}

/// Whether the Sentinel is choosing another master, or has chosen one. Waits equally long for the
/// answer as [`begins`].
fn is_leaving(sentinel: &Server, old: u16) -> bool {
    let question = ["SENTINEL", "MASTER", SERVICE];
    let fields: HashMap<String, String> =
        ask_within(sentinel, &question, TIMEOUT).unwrap_or_default();
    let port = fields.get("port").and_then(|port| port.parse::<u16>().ok());
    port.is_some_and(|port| port != old)
        || fields.get("flags").is_some_and(|flags| flags.contains("failover_in_progress"))
}

/// Makes a Sentinel begin a failover. The wait for the answer is long, because a request to a
/// second Sentinel would begin another failover.
fn begins(sentinel: &Server) -> bool {
    let question = ["SENTINEL", "FAILOVER", SERVICE];
    match ask_within::<String>(sentinel, &question, TIMEOUT) {
        Ok(_) => true,
        Err(error) => error.code() == Some("INPROG"),
    }
}

/// Sends a command over a separate connection and with a time limit, because the server may be
/// paused. Returns `None` if there is no reply.
fn ask<T: redis::FromRedisValue>(server: &Server, question: &[&str]) -> Option<T> {
    ask_within(server, question, Duration::from_millis(300)).ok()
}

fn ask_within<T: redis::FromRedisValue>(
    server: &Server,
    question: &[&str],
    patience: Duration,
) -> redis::RedisResult<T> {
    let client = redis::Client::open(server.url())?;
    let mut connection = client.get_connection_with_timeout(patience)?;
    connection.set_read_timeout(Some(patience))?;
    let mut tries = 3;
    loop {
        match redis::Cmd::new().arg(question).query(&mut connection) {
            // When a child process ends, its signal interrupts a read that has a timeout.
            Err(error) if error.is_io_error() && !error.is_timeout() && tries > 0 => {
                tries -= 1;
                thread::sleep(Duration::from_millis(5));
            }
            answered => return answered,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_master_is_chosen_when_one_is_killed_and_on_command() {
        let Ok(sentinels) = Sentinels::start() else {
            eprintln!("left out: there is no server here that knows replicas");
            return;
        };
        let first = sentinels.master();
        first.kill();
        sentinels.wait_switched(first);
        let second = sentinels.master();
        assert_ne!(first.port(), second.port());
        sentinels.revive(first);
        // The call returns when the Sentinels report another master. Later they may report a third
        // master.
        sentinels.fail_over();
        sentinels.wait_ready();
    }

    #[test]
    fn sentinels_that_stood_still_choose_another_master_when_they_go_on() {
        let Ok(sentinels) = Sentinels::start() else { return };
        let master = sentinels.master();
        sentinels.sentinels().iter().for_each(Server::pause);
        // After such a long pause, the Sentinels assume that their own clocks are wrong.
        thread::sleep(Duration::from_millis(2500));
        master.kill();
        sentinels.sentinels().iter().for_each(Server::resume);
        sentinels.wait_switched(master);
        sentinels.revive(master);
    }

    #[test]
    fn a_failover_that_came_to_nothing_is_begun_again() {
        let Ok(sentinels) = Sentinels::start() else { return };
        let replicas = sentinels.replicas();
        // Until a Sentinel has noticed that these replicas are paused, the Sentinels may choose a
        // paused replica.
        replicas.iter().for_each(|replica| replica.pause());
        thread::scope(|scope| {
            let failover = scope.spawn(|| sentinels.fail_over());
            let gave_up =
                || sentinels.sentinels().iter().any(|it| it.log().contains("-failover-abort"));
            wait_until("a Sentinel gives up", BOUND, gave_up);
            replicas.iter().for_each(|replica| replica.resume());
            failover.join().unwrap();
        });
        sentinels.wait_ready();
    }
}
