//! The requests to one Sentinel, and its replies.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::{ErrorKind as Cause, RedisError, RedisResult, Value};

use super::{Answer, Master, Refusal, Sentinels};
use crate::connection::address_map::NamedAddress;
use crate::connection::host_port::HostPort;
use crate::connection::limit::deadline_in;
use crate::connection::reply::is_refusal;
use crate::connection::{Command, Connection};

impl Sentinels {
    /// Asks the Sentinel at this address for the master. After the connection is open, this takes
    /// one round trip.
    pub(super) fn ask(&self, host_port: &HostPort, within: Duration) -> Result<Answer, Refusal> {
        let deadline = deadline_in(within);
        let mut connection = self.connect(host_port, deadline).map_err(|error| {
            if is_refusal(&error) {
                Refusal::Forbidden(error)
            } else if error.kind() == Cause::Parse {
                Refusal::NoSentinel
            } else {
                Refusal::NotReached(error)
            }
        })?;
        let service = self.service.as_bytes();
        // The reply to `MASTER` has the epoch of the decision (`config-epoch`). Only the epoch
        // shows that a report is old: a Sentinel that was away reports the old master for some
        // seconds, and the old master still says that it is a master.
        let queries: [&[u8]; 3] = [b"GET-MASTER-ADDR-BY-NAME", b"MASTER", b"SENTINELS"];
        let queries = queries.map(|query| Command::plain(&[b"SENTINEL", query, service]));
        let bytes: Vec<u8> = queries.iter().flat_map(|query| query.bytes()).copied().collect();
        let mut exchange = || -> RedisResult<[Value; 3]> {
            connection.send_until(&bytes, deadline)?;
            Ok([
                connection.receive_until(deadline)?,
                connection.receive_until(deadline)?,
                connection.receive_until(deadline)?,
            ])
        };
        let [address, master, others] = exchange().map_err(|error| match error.kind() {
            Cause::Parse => Refusal::NoSentinel,
            _ => Refusal::NotReached(error),
        })?;
        let mut named = match address {
            Value::Array(parts) => parts.into_iter().filter_map(text),
            Value::Nil => return Err(Refusal::Unknown),
            Value::ServerError(error) => {
                let error = RedisError::from(error);
                let detail = error.detail().unwrap_or_default().to_ascii_lowercase();
                return Err(if detail.contains("unknown command") {
                    Refusal::NoSentinel
                } else {
                    Refusal::Forbidden(error)
                });
            }
            _ => return Err(Refusal::Odd),
        };
        let address = |host: Option<String>, port: Option<String>| {
            NamedAddress::new(host?, port?.parse().ok()?)
        };
        let named = address(named.next(), named.next()).ok_or(Refusal::Odd)?;
        let named = self.map.reach(&named).ok_or(Refusal::Unmapped)?;
        // The epoch is optional: the user may have no right to read it, or the Sentinel may send it
        // in another format.
        let epoch = fields(master).get("config-epoch").and_then(|epoch| epoch.parse().ok());
        let others = match others {
            Value::Array(others) => others,
            _ => Vec::new(),
        };
        let others = others
            .into_iter()
            .map(fields)
            .filter_map(|mut fields| address(fields.remove("ip"), fields.remove("port")))
            .filter_map(|named| self.map.reach(&named));
        let master = Master { host_port: named, epoch };
        Ok(Answer { by: host_port.clone(), master, others: others.collect() })
    }

    pub(super) fn connect(
        &self,
        host_port: &HostPort,
        deadline: Instant,
    ) -> RedisResult<Connection> {
        let address = host_port.instead_of(&self.pattern);
        let login = &self.of_sentinels;
        let (network, timeout) = (&self.network, self.response_timeout);
        Connection::open(&address, network, login, timeout, deadline, false, &|_| {})
            .map(|(connection, _)| connection)
    }
}

/// A Sentinel's fields by name. The Sentinel sends them as pairs or as a map.
fn fields(value: Value) -> HashMap<String, String> {
    match value {
        Value::Array(parts) => {
            let mut parts = parts.into_iter();
            let mut fields = HashMap::new();
            while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
                fields.extend(text(name).zip(text(value)));
            }
            fields
        }
        Value::Map(pairs) => {
            pairs.into_iter().filter_map(|(name, value)| text(name).zip(text(value))).collect()
        }
        _ => HashMap::new(),
    }
}

pub(super) fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
