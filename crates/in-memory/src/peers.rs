//! The server's side of its connections: their channels, and the bytes that it has sent them.

use std::collections::VecDeque;
use std::sync::Arc;

use redis::{PushKind, Value};
use redlatch_client::sync::Condvar;

use crate::resp::{encode, refusal, text};

/// The server's side of its connections.
#[derive(Debug, Default)]
pub struct Peers {
    pub(super) all: Vec<Option<Peer>>,
    pub(super) loses_messages: bool,
}

#[derive(Debug, Default)]
pub(super) struct Peer {
    /// The first part of a command that has not arrived completely.
    pub(super) commands: Vec<u8>,
    /// The replies and messages that the client has not read.
    pub(super) replies: VecDeque<Vec<u8>>,
    pub(super) channels: Vec<Vec<u8>>,
    /// The keys that the connection has read since the server last reported a change of them.
    /// `None` if the connection does not track.
    pub(super) tracked: Option<Vec<Vec<u8>>>,
    pub(super) broken: bool,
    pub(super) speaks_resp3: bool,
    pub(super) name: Vec<u8>,
    /// Wakes the reader when there is a reply, a message or the end of the connection.
    pub(super) news: Arc<Condvar>,
}

impl Peers {
    pub(super) fn get(&mut self, peer: usize) -> Option<&mut Peer> {
        self.all.get_mut(peer)?.as_mut()
    }

    pub(super) fn change(&mut self, peer: usize, change: impl FnOnce(&mut Peer)) {
        if let Some(peer) = self.get(peer) {
            change(peer);
        }
    }

    pub(super) fn each(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.all.iter_mut().flatten()
    }

    pub(super) fn listens_in_resp2(&self, peer: usize) -> bool {
        let peer = self.all.get(peer).and_then(Option::as_ref);
        peer.is_some_and(|peer| !peer.speaks_resp3 && !peer.channels.is_empty())
    }

    /// The reply to a subscription, or to its end.
    pub(super) fn confirm(&mut self, peer: usize, kind: PushKind, channel: Vec<u8>) -> Value {
        let count = self.get(peer).map_or(0, |peer| peer.channels.len());
        Value::Push { kind, data: vec![Value::BulkString(channel), Value::Int(count as i64)] }
    }

    /// Runs `PUBSUB`, whose reply describes the channels.
    pub fn ask(&self, question: &[&[u8]]) -> Value {
        let all = || self.all.iter().flatten().flat_map(|peer| &peer.channels);
        match question {
            [kind, channels @ ..] if kind.eq_ignore_ascii_case(b"numsub") => {
                let heard = |channel: &[u8]| all().filter(|own| *own == channel).count() as i64;
                let each = channels.iter().flat_map(|it| [text(it), Value::Int(heard(it))]);
                Value::Array(each.collect())
            }
            [kind, pattern @ ..] if kind.eq_ignore_ascii_case(b"channels") => {
                let pattern = pattern.first().copied().unwrap_or(b"*");
                let mut found: Vec<_> = all().filter(|own| matches(pattern, own)).collect();
                found.sort_unstable();
                found.dedup();
                Value::Array(found.into_iter().map(|it| text(it)).collect())
            }
            _ => refusal("ERR unknown subcommand"),
        }
    }

    /// Sends a message. Returns the number of connections that listen to the channel.
    pub fn publish(&mut self, channel: &[u8], message: &[u8]) -> i64 {
        let (mut heard, loses) = (0, self.loses_messages);
        for peer in self.each().filter(|peer| peer.channels.iter().any(|own| own == channel)) {
            heard += 1;
            if !loses {
                let data = vec![text(channel), text(message)];
                peer.push(&Value::Push { kind: PushKind::Message, data });
            }
        }
        heard
    }

    /// Whether a connection listens to the channel.
    pub fn listen(&self, channel: &[u8]) -> bool {
        self.all.iter().flatten().any(|peer| peer.channels.iter().any(|own| own == channel))
    }

    /// Notes that the key has changed. Notifies each connection that has read the key since its
    /// last notification of this key.
    pub fn changed(&mut self, key: &[u8]) {
        for peer in self.each() {
            let Some(tracked) = &mut peer.tracked else { continue };
            if tracked.extract_if(.., |read| read == key).count() > 0 {
                let keys = Value::Array(vec![text(key)]);
                peer.push(&Value::Push { kind: PushKind::Invalidate, data: vec![keys] });
            }
        }
    }
}

impl Peer {
    pub(super) fn push(&mut self, value: &Value) {
        let mut bytes = Vec::with_capacity(64);
        encode(value, self.speaks_resp3, &mut bytes);
        self.replies.push_back(bytes);
        self.news.notify_all();
    }

    pub(super) fn break_off(&mut self) {
        self.broken = true;
        self.channels.clear();
        self.tracked = None;
        self.news.notify_all();
    }
}

/// Whether a name matches a pattern with `*` and `?`. A byte after a backslash matches only itself.
pub(super) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], _) => name.is_empty(),
        ([b'*', pattern @ ..], _) => (0..=name.len()).any(|at| matches(pattern, &name[at..])),
        ([b'?', pattern @ ..], [_, name @ ..]) => matches(pattern, name),
        ([b'\\', plain, pattern @ ..], [first, name @ ..])
        | ([plain, pattern @ ..], [first, name @ ..]) => plain == first && matches(pattern, name),
        _ => false,
    }
}
