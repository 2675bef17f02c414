//! Read-write locks of the model's server: the scripts of `lua/read_write/`, but without leases and
//! without the times in which only Redisson's clients may take the lock (`docs/hand-off.md`).

use std::collections::VecDeque;
use std::sync::LazyLock;

use redis::Value;

use super::{ModelStep, numbers, sha};
use crate::scripts::lua;

#[derive(Default)]
pub(super) struct Holders {
    writer: Option<Vec<u8>>,
    readers: Vec<Vec<u8>>,
    /// The owners that have left. An owner takes the lock only once.
    gone: Vec<Vec<u8>>,
}

impl Holders {
    pub(super) fn know(&self, owner: &[u8]) -> bool {
        self.writer.iter().chain(&self.readers).any(|holder| holder == owner)
    }

    pub(super) fn is_free(&self) -> bool {
        self.writer.is_none() && self.readers.is_empty()
    }

    pub(super) fn delete(&mut self) {
        self.writer = None;
        self.readers.clear();
    }

    /// Whether the mode of the owner agrees with the present holders, without regard to waiters.
    fn may_enter(&self, owner: &[u8]) -> bool {
        self.is_free() || self.writer.is_none() && !writes(owner)
    }

    fn add(&mut self, owner: &[u8]) {
        assert!(!self.gone.iter().any(|gone| gone == owner), "an owner is used again");
        if writes(owner) {
            self.writer = Some(owner.to_vec());
        } else {
            self.readers.push(owner.to_vec());
        }
    }

    fn remove(&mut self, owner: &[u8]) {
        if self.know(owner) {
            self.gone.push(owner.to_vec());
        }
        self.writer.take_if(|writer| writer == owner);
        self.readers.retain(|reader| reader != owner);
    }
}

fn writes(owner: &[u8]) -> bool {
    owner.ends_with(b":write")
}

impl ModelStep<'_> {
    /// Runs a script of read-write locks. Returns `None` for any other script.
    pub(super) fn read_or_write(&mut self, sha: &str, arguments: &[Vec<u8>]) -> Option<Value> {
        let key = arguments[0].as_slice();
        let argument = |at: usize| arguments[at].as_slice();
        Some(if sha == *ACQUIRE {
            self.ask_to_share(key, argument(4))
        } else if sha == *TRY {
            self.try_to_share(key, argument(4), arguments.get(6).map(Vec::as_slice))
        } else if sha == *READ_ON {
            if !self.holders(key).know(argument(4)) {
                return Some(Value::Nil);
            }
            self.let_in(key, None);
            Value::Int(self.waiting(key).len() as i64)
        } else if sha == *RELEASE {
            self.leave(key, argument(3), argument(4))
        } else if sha == *GIVE_UP {
            let owner = argument(3).to_vec();
            self.waiting(key).retain(|other| *other != owner);
            self.leave(key, &owner, argument(4))
        } else if sha == *FORCE_UNLOCK {
            let holders = self.holders(key);
            let is_held_so = match argument(4) {
                b"write" => holders.writer.is_some(),
                _ => holders.writer.is_none() && !holders.readers.is_empty(),
            };
            if is_held_so {
                holders.delete();
            }
            self.let_in(key, None);
            Value::Int(i64::from(is_held_so))
        } else {
            return None;
        })
    }

    pub(super) fn holders(&mut self, key: &[u8]) -> &mut Holders {
        self.shared.entry(key.to_vec()).or_default()
    }

    fn waiting(&mut self, key: &[u8]) -> &mut VecDeque<Vec<u8>> {
        self.queues.entry(key.to_vec()).or_default()
    }

    fn has_it_already(&mut self, key: &[u8], owner: &[u8]) -> Option<Value> {
        let places = self.waiting(key).len() as i64;
        self.holders(key).know(owner).then_some(Value::Int(-1 - places))
    }

    fn ask_to_share(&mut self, key: &[u8], owner: &[u8]) -> Value {
        if let Some(already) = self.has_it_already(key, owner) {
            return already;
        }
        if self.waiting(key).is_empty() && self.holders(key).may_enter(owner) {
            self.holders(key).add(owner);
            return Value::Int(0);
        }
        let queue = self.waiting(key);
        let place = queue.iter().position(|other| other == owner);
        if place.is_none() {
            queue.push_back(owner.to_vec());
        }
        let at = place.unwrap_or(queue.len() - 1) as i64;
        self.let_in(key, Some(owner));
        if self.holders(key).know(owner) {
            return Value::Int(self.waiting(key).len() as i64);
        }
        *self.not_granted += 1;
        numbers(&[self.now, 30_000, at, 0, i64::from(place.is_none())])
    }

    fn try_to_share(&mut self, key: &[u8], owner: &[u8], writer: Option<&[u8]>) -> Value {
        if let Some(already) = self.has_it_already(key, owner) {
            return already;
        }
        self.let_in(key, None);
        let nobody_waits = self.waiting(key).is_empty();
        let holders = self.holders(key);
        let may = match &holders.writer {
            Some(holder) => writer == Some(holder),
            None => holders.is_free() || !writes(owner) && nobody_waits,
        };
        if !may {
            return Value::Nil;
        }
        holders.add(owner);
        self.let_in(key, None);
        Value::Int(self.waiting(key).len() as i64)
    }

    fn leave(&mut self, key: &[u8], owner: &[u8], channel: &[u8]) -> Value {
        let held = self.holders(key).know(owner);
        self.holders(key).remove(owner);
        self.let_in(key, None);
        if !held {
            return Value::Nil;
        }
        if self.holders(key).is_free() {
            self.peers.publish(channel, b"0");
            return Value::Int(0);
        }
        Value::Int(4)
    }

    /// Grants the lock to the first waiter. If the first waiter is a reader, also grants the lock
    /// to the readers directly behind it. `asker` gets no message, because it reads the reply.
    pub(super) fn let_in(&mut self, key: &[u8], asker: Option<&[u8]>) {
        while let Some(head) = self.waiting(key).front().cloned() {
            let name = String::from_utf8(head.clone()).unwrap();
            let (client, number) = name.split_once(':').unwrap();
            let number = number.trim_end_matches(":write");
            let channel = format!("redisson_lock__channel:{{redlatch:{client}}}").into_bytes();
            let listens = self.peers.listen(&channel);
            let asks = asker == Some(&head);
            if !listens && !asks {
                self.waiting(key).pop_front();
                continue;
            }
            if !self.holders(key).may_enter(&head) {
                return;
            }
            self.waiting(key).pop_front();
            self.holders(key).add(&head);
            if !asks {
                let behind = match writes(&head) {
                    true => self.waiting(key).len(),
                    false => self.waiting(key).iter().skip_while(|other| !writes(other)).count(),
                };
                let kind = if writes(&head) { "write" } else { "read" };
                let lock = String::from_utf8_lossy(key);
                let now = self.now;
                let message = format!("grant {number} {now} 2000 {kind},{behind},{now},1 0 {lock}");
                self.peers.publish(&channel, message.as_bytes());
            }
        }
    }
}

static ACQUIRE: LazyLock<String> =
    script!("read_write/free.lua", READ_WRITE, "read_write/acquire.lua");
static TRY: LazyLock<String> = script!("read_write/free.lua", READ_WRITE, "read_write/try.lua");
static RELEASE: LazyLock<String> =
    script!("read_write/release_uncontended.lua", READ_WRITE, "lock/release.lua");
static GIVE_UP: LazyLock<String> = script!(READ_WRITE, "lock/give_up.lua");
static FORCE_UNLOCK: LazyLock<String> = script!(READ_WRITE, "read_write/force_unlock.lua");
static READ_ON: LazyLock<String> = script!(READ_WRITE, "read_write/read_on.lua");

pub(super) fn scripts() -> Vec<String> {
    [&ACQUIRE, &TRY, &RELEASE, &GIVE_UP, &FORCE_UNLOCK, &READ_ON]
        .map(|script| String::clone(script))
        .to_vec()
}
