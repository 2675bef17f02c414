//! The servers of a run, and the network in front of them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use redis::{Connection, FromRedisValue};
use redlatch_testkit::{Cluster, Proxy, Sentinels, Server, ServerError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    One,
    Sentinel,
    Cluster,
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One => "one",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        })
    }
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "one" => Ok(Self::One),
            "sentinel" => Ok(Self::Sentinel),
            "cluster" => Ok(Self::Cluster),
            other => Err(format!("there is no topology {other:?}: one, sentinel or cluster")),
        }
    }
}

/// The time for which a master may be silent. A master on a busy machine is silent for less than
/// this time.
const DOWN: Duration = Duration::from_millis(3000);

#[derive(Debug)]
pub(crate) enum World {
    /// A server with its data on disk, and a faulty network for every second worker.
    One {
        server: Box<Server>,
        network: Proxy,
    },
    Sentinel(Box<Sentinels>),
    Cluster(Cluster),
}

impl World {
    pub(crate) fn start(topology: Topology) -> Result<Self, ServerError> {
        Ok(match topology {
            Topology::One => {
                // The server writes to disk before each reply, so a kill loses no data.
                let on_disk = ["--appendonly", "yes", "--appendfsync", "no"];
                let server = Box::new(Server::with_args(&on_disk)?);
                let network = Proxy::before(&server);
                Self::One { server, network }
            }
            Topology::Sentinel => {
                Self::Sentinel(Box::new(Sentinels::builder().down_after(DOWN).start()?))
            }
            Topology::Cluster => Self::Cluster(Cluster::start()?),
        })
    }

    /// Returns the URL that this worker uses.
    pub(crate) fn url(&self, worker: u32) -> String {
        match self {
            Self::One { server, .. } if worker.is_multiple_of(2) => server.url(),
            Self::One { network, .. } => network.url(),
            Self::Sentinel(sentinels) => sentinels.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    pub(crate) fn servers(&self) -> Vec<&Server> {
        match self {
            Self::One { server, .. } => vec![server],
            Self::Sentinel(sentinels) => sentinels.servers().iter().collect(),
            Self::Cluster(cluster) => cluster.servers().iter().collect(),
        }
    }

    /// Returns the servers that have data and take commands.
    pub(crate) fn masters(&self) -> Vec<&Server> {
        match self {
            Self::One { server, .. } => vec![server],
            Self::Sentinel(sentinels) => vec![sentinels.master()],
            Self::Cluster(cluster) => cluster.servers().iter().filter(|it| is_master(it)).collect(),
        }
    }

    /// Returns the ports of all servers that report that they are masters.
    pub(crate) fn leaders(&self) -> Vec<u16> {
        self.servers().into_iter().filter(|it| is_master(it)).map(Server::port).collect()
    }

    /// Returns the name and the version of the server, such as `redis 7.0.15`.
    pub(crate) fn version(&self) -> String {
        let info: Option<String> =
            self.servers().first().and_then(|it| ask(it, &["INFO", "server"]));
        let info = info.unwrap_or_default();
        let version = info.lines().find_map(|it| it.strip_prefix("redis_version:"));
        format!("redis {}", version.unwrap_or("?").trim())
    }
}

pub(crate) fn is_master(server: &Server) -> bool {
    server.is_running()
        && ask::<String>(server, &["INFO", "replication"])
            .is_some_and(|it| it.contains("role:master"))
}

/// Returns all keys that contain `part`, with their time to live in ms. The time is -1 if a key
/// does not expire.
pub(crate) fn keys(server: &Server, part: &str) -> redis::RedisResult<Vec<(String, i64)>> {
    let mut connection = server.connection();
    let keys: Vec<String> = redis::cmd("KEYS").arg(format!("*{part}*")).query(&mut connection)?;
    let mut lasts = redis::pipe();
    for key in &keys {
        lasts.cmd("PTTL").arg(key);
    }
    let lasts: Vec<i64> = lasts.query(&mut connection)?;
    Ok(keys.into_iter().zip(lasts).collect())
}

/// Sends a command on a separate connection. Returns `None` if there is no answer, or after an
/// error.
pub(crate) fn ask<T: FromRedisValue>(server: &Server, command: &[&str]) -> Option<T> {
    let mut tries = 5;
    loop {
        let asked =
            connect(server).and_then(|mut it| redis::Cmd::new().arg(command).query(&mut it));
        match asked {
            Ok(answer) => return Some(answer),
            // When a child process ends, its signal interrupts a read that has a timeout.
            Err(error) if error.is_io_error() && !error.is_timeout() && tries > 0 => tries -= 1,
            Err(_) => return None,
        }
    }
}

fn connect(server: &Server) -> redis::RedisResult<Connection> {
    let patience = Duration::from_secs(2);
    let connection = redis::Client::open(server.url())?.get_connection_with_timeout(patience)?;
    connection.set_read_timeout(Some(patience))?;
    Ok(connection)
}
