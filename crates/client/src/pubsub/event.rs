//! The pushed messages and replies that a server sends to a subscriber.

use std::sync::Arc;

use redis::{PushKind, RedisError, Value};

/// A push or a reply on a subscriber's connection, in RESP2 or RESP3.
pub(super) enum PubSubEvent {
    Subscribed(Vec<u8>),
    Unsubscribed(Vec<u8>),
    /// The channel, and the message that arrived on it.
    Message(Vec<u8>, Vec<u8>),
    /// These keys have changed. With `None`, any key may have changed.
    Changed(Option<Vec<Arc<str>>>),
    Refused(RedisError),
    /// The answer to a PING.
    Pong,
    /// The reply to a query about a hold.
    Reply(Value),
    /// A push or reply for which no thread waits.
    Other,
}

impl PubSubEvent {
    pub(super) fn of(value: Value) -> Self {
        match value {
            Value::Array(parts) if matches!(parts[..], [Value::BulkString(_), ..]) => {
                let mut parts = parts.into_iter();
                match (parts.next(), parts.next()) {
                    (Some(Value::BulkString(kind)), Some(Value::BulkString(channel))) => {
                        match kind.as_slice() {
                            b"subscribe" | b"ssubscribe" => Self::Subscribed(channel),
                            b"unsubscribe" | b"sunsubscribe" => Self::Unsubscribed(channel),
                            b"message" | b"smessage" => Self::message(channel, parts.next()),
                            b"pong" => Self::Pong,
                            _ => Self::Other,
                        }
                    }
                    _ => Self::Other,
                }
            }
            Value::Push { kind, data } => {
                let mut data = data.into_iter();
                match (kind, data.next()) {
                    (
                        PushKind::Subscribe | PushKind::SSubscribe,
                        Some(Value::BulkString(channel)),
                    ) => Self::Subscribed(channel),
                    (
                        PushKind::Unsubscribe | PushKind::SUnsubscribe,
                        Some(Value::BulkString(channel)),
                    ) => Self::Unsubscribed(channel),
                    (PushKind::Message | PushKind::SMessage, Some(Value::BulkString(channel))) => {
                        Self::message(channel, data.next())
                    }
                    (PushKind::Invalidate, keys) => Self::changed(keys),
                    _ => Self::Other,
                }
            }
            Value::ServerError(error) => Self::Refused(error.into()),
            Value::SimpleString(word) if word == "PONG" => Self::Pong,
            reply => Self::Reply(reply),
        }
    }

    fn changed(keys: Option<Value>) -> Self {
        let Some(Value::Array(keys)) = keys else { return Self::Changed(None) };
        let name = |key| match key {
            Value::BulkString(key) => String::from_utf8(key).ok().map(Arc::from),
            _ => None,
        };
        Self::Changed(Some(keys.into_iter().filter_map(name).collect()))
    }

    fn message(channel: Vec<u8>, message: Option<Value>) -> Self {
        match message {
            Some(Value::BulkString(message)) => Self::Message(channel, message),
            _ => Self::Message(channel, Vec::new()),
        }
    }
}
