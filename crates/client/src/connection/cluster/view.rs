//! A server's answer to `CLUSTER SLOTS`, and the weight of this answer, from `CLUSTER INFO`.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use redis::{RedisResult, Value};

use crate::connection::address_map::{AddressMap, NamedAddress};
use crate::connection::host_port::HostPort;
use crate::connection::limit::later;
use crate::connection::{Command, ConnectError, Endpoint, SLOTS};

/// A server's answers to `CLUSTER SLOTS` and `CLUSTER INFO`.
pub(super) struct ClusterAnswer {
    pub(super) slots: Value,
    pub(super) weight: Weight,
}

pub(super) fn ask(endpoint: &Endpoint, within: Duration) -> RedisResult<ClusterAnswer> {
    let now = Instant::now();
    let until = later(now, within);
    let (mut connection, _) = endpoint.open_within(within)?;
    let slots = Command::plain(&[b"CLUSTER", b"SLOTS"]);
    let info = Command::plain(&[b"CLUSTER", b"INFO"]);
    connection.send_packed_command(&[slots.bytes(), info.bytes()].concat(), now)?;
    let slots = connection.receive_until(until)?;
    let weight = Weight::of(&connection.receive_until(until)?);
    Ok(ClusterAnswer { slots, weight })
}

/// The owners of the slots, according to one server.
pub(super) struct View {
    pub(super) from: HostPort,
    pub(super) ranges: Vec<Range>,
    pub(super) weight: Weight,
}

pub(super) const NO_CLUSTER_INFO: &str = "it refuses CLUSTER INFO: if a server is cut off from its cluster, \
                               the client may believe that server's old slots until it is back";

impl View {
    /// Returns the view of this endpoint's server, for a client that has no view yet.
    pub(super) fn first(
        ranges: Result<Vec<Range>, &'static str>,
        weight: Weight,
        endpoint: &Endpoint,
    ) -> Result<Self, ConnectError> {
        let ranges = ranges.map_err(|why| {
            ConnectError::unusable(format!("{why}; it is at {}", endpoint.address()))
        })?;
        if ranges.is_empty() {
            // A server that was removed from its cluster gives the same answer.
            return Err(ConnectError::NotReady(format!(
                "no server of the cluster at {} has a slot yet: create the cluster first",
                endpoint.address()
            )));
        }
        Ok(Self { from: endpoint.host_port(), ranges, weight })
    }
}

/// Consecutive slots, and their servers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) slots: RangeInclusive<u16>,
    pub(super) master: HostPort,
    pub(super) replicas: Vec<HostPort>,
}

/// The order in which the client prefers servers' views. The client prefers a server that reaches a
/// majority of the masters. Of two such servers, it prefers the server with the later epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Weight {
    pub(super) is_up: bool,
    /// The cluster's epoch, which increases each time a replica replaces a master.
    pub(super) epoch: u64,
    /// Whether the server answered `CLUSTER INFO`. If it did not, because the user lacks the right,
    /// the client assumes that the server reaches a majority.
    pub(super) is_said: bool,
}

impl Weight {
    /// Reads the answer to `CLUSTER INFO`.
    pub(super) fn of(reply: &Value) -> Self {
        let text = match reply {
            Value::BulkString(text) => String::from_utf8_lossy(text),
            Value::VerbatimString { text, .. } => text.as_str().into(),
            _ => return Self { is_up: true, epoch: 0, is_said: false },
        };
        let fields = || text.lines().filter_map(|line| line.trim().split_once(':'));
        let field = |name: &str| fields().find(|(field, _)| *field == name).map(|(_, it)| it);
        let epoch = field("cluster_current_epoch").and_then(|epoch| epoch.parse().ok());
        let is_up = field("cluster_state") == Some("ok");
        Self { is_up, epoch: epoch.unwrap_or(0), is_said: true }
    }
}

/// Reads the answer of the server at `from`. The error says why the server belongs to no cluster.
pub(super) fn ranges(
    reply: &Value,
    from: &HostPort,
    map: &AddressMap,
) -> Result<Vec<Range>, &'static str> {
    match reply {
        Value::Array(parts) => Ok(parts.iter().filter_map(|part| range(part, from, map)).collect()),
        Value::ServerError(error) => Err(no_slots(error.code())),
        _ => Err(no_slots("")),
    }
}

/// Returns why a server that refuses `CLUSTER SLOTS` with this code belongs to no cluster.
pub(super) fn no_slots(code: &str) -> &'static str {
    match code {
        "NOPERM" => {
            "the server's access rights (ACL) forbid it: a client of a cluster needs CLUSTER SLOTS"
        }
        _ => "the server is none of a cluster: use redis:// for a single server",
    }
}

/// Reads one range of slots. Returns `None` if the range is malformed: then its slots have no
/// server.
fn range(part: &Value, from: &HostPort, map: &AddressMap) -> Option<Range> {
    let Value::Array(parts) = part else { return None };
    let [Value::Int(first), Value::Int(last), servers @ ..] = parts.as_slice() else { return None };
    let slot = |number: &i64| u16::try_from(*number).ok().filter(|slot| *slot < SLOTS);
    let mut host_ports = servers.iter().map(|server| host_port(server, from, map));
    // The first server is the master. If the master has no usable address, the range has no server:
    // a replica cannot replace the master.
    let master = host_ports.next()??;
    let replicas = host_ports.flatten().collect();
    Some(Range { slots: slot(first)?..=slot(last)?, master, replicas })
}

fn host_port(server: &Value, from: &HostPort, map: &AddressMap) -> Option<HostPort> {
    let Value::Array(parts) = server else { return None };
    let [host, Value::Int(port), ..] = parts.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
        // The server that answers does not know its own host name.
        Value::Nil => String::new(),
        _ => return None,
    };
    let host = if host.is_empty() { from.host.clone() } else { host };
    map.reach(&NamedAddress::new(host, u16::try_from(*port).ok()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn at(host: &str, port: u16) -> HostPort {
        HostPort { host: host.to_owned(), port }
    }

    #[test]
    fn the_servers_of_the_slots_are_read() {
        let server = |host: Value, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let reply = Value::Array(vec![
            Value::Array(vec![
                Value::Int(0),
                Value::Int(5_460),
                server(text("one"), 1),
                server(text("two"), 2),
            ]),
            Value::Array(vec![Value::Int(5_461), Value::Int(16_383), server(Value::Nil, 3)]),
            Value::Array(vec![Value::Int(0), Value::Int(99_999), server(text("four"), 4)]),
        ]);
        let ranges = ranges(&reply, &at("here", 9), &AddressMap::default()).unwrap();
        let [first, second] = ranges.as_slice() else { panic!("{ranges:?}") };
        assert_eq!((first.slots.clone(), &first.master), (0..=5_460, &at("one", 1)));
        assert_eq!(first.replicas, [at("two", 2)]);
        assert_eq!((second.slots.clone(), &second.master), (5_461..=16_383, &at("here", 3)));
    }

    #[test]
    fn no_replica_takes_the_place_of_a_master_whose_address_does_not_count() {
        let server =
            |host: &str, port| Value::Array(vec![text(host), Value::Int(port), text("id")]);
        let of = |servers: [Value; 2]| {
            let [one, other] = servers;
            Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(9), one, other])])
        };
        let map =
            AddressMap::new(
                |host, _| if host == "one" { panic!("as the test wants it") } else { None },
            );
        let read = |reply: &Value| ranges(reply, &at("here", 9), &map).unwrap().len();
        assert_eq!(read(&of([server("one", 1), server("two", 2)])), 0);
        assert_eq!(read(&of([server("?", 1), server("two", 2)])), 0);
        assert_eq!(read(&of([server("two", 2), server("one", 1)])), 1);
    }

    #[test]
    fn a_server_that_sees_a_majority_counts_more_and_then_the_one_with_the_later_master() {
        let says = |state: &str, epoch: u64| {
            let info = format!("cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\n");
            Weight::of(&Value::BulkString(info.into()))
        };
        assert!(says("ok", 7) > says("fail", 9));
        assert!(says("ok", 8) > says("ok", 7));
        let silent = Weight::of(&redis::parse_redis_value(b"-NOPERM no\r\n").unwrap());
        assert!(silent.is_up && !silent.is_said);
        assert!(silent < says("ok", 1) && silent > says("fail", 9));
    }

    #[test]
    fn a_single_server_is_told_from_a_cluster() {
        let text = b"-ERR This instance has cluster support disabled\r\n";
        let reply = redis::parse_redis_value(text).unwrap();
        let ranges = ranges(&reply, &at("here", 9), &AddressMap::default());
        assert!(ranges.unwrap_err().contains("use redis://"));
    }
}
