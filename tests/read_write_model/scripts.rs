//! The texts of the scripts, and what each is called with.

use std::collections::HashMap;

use crate::state::State;
use crate::wire::{Chain, Request, Site, owner};

/// Which text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Script {
    /// These stand before some of ours, and shorten them.
    Free,
    Unwanted,
    /// These stand before the others of ours.
    HandOff,
    Holders,
    Acquire,
    Try,
    Release,
    GiveUp,
    Renew,
    ForceUnlock,
    RedissonReadAcquire,
    RedissonReadUnlock,
    RedissonWriteAcquire,
    RedissonWriteUnlock,
    RedissonReadRenew3,
    RedissonReadRenew4,
    RedissonForceUnlock,
}

impl Script {
    pub(crate) fn of(request: &Request) -> Self {
        match request {
            Request::Acquire { .. } => Self::Acquire,
            Request::Try { .. } => Self::Try,
            Request::Release { .. } => Self::Release,
            Request::GiveUp { .. } => Self::GiveUp,
            Request::Renew { .. } => Self::Renew,
        }
    }

    pub(crate) fn is_of_redisson(self) -> bool {
        matches!(
            self,
            Self::RedissonReadAcquire
                | Self::RedissonReadUnlock
                | Self::RedissonWriteAcquire
                | Self::RedissonWriteUnlock
                | Self::RedissonReadRenew3
                | Self::RedissonReadRenew4
                | Self::RedissonForceUnlock
        )
    }

    /// What stands before the prelude.
    fn shortcut(self) -> Option<Self> {
        match self {
            Self::Acquire | Self::Try => Some(Self::Free),
            Self::Release => Some(Self::Unwanted),
            _ => None,
        }
    }

    fn has_prelude(self) -> bool {
        matches!(self, Self::Acquire | Self::Try | Self::Release | Self::GiveUp | Self::ForceUnlock)
    }
}

/// The texts.
#[derive(Clone, Debug)]
pub(crate) struct Scripts(HashMap<Script, String>);

impl Scripts {
    pub(crate) fn ours() -> Self {
        let texts = [
            (Script::Free, include_str!("../../lua/read_write/free.lua")),
            (Script::Unwanted, include_str!("../../lua/read_write/unwanted.lua")),
            (Script::HandOff, include_str!("../../lua/hand_off.lua")),
            (Script::Holders, include_str!("../../lua/read_write/holders.lua")),
            (Script::Acquire, include_str!("../../lua/read_write/acquire.lua")),
            (Script::Try, include_str!("../../lua/read_write/try.lua")),
            (Script::Release, include_str!("../../lua/read_write/release.lua")),
            (Script::GiveUp, include_str!("../../lua/read_write/give_up.lua")),
            (Script::Renew, include_str!("../../lua/lock/renew.lua")),
            (Script::ForceUnlock, include_str!("../../lua/read_write/force_unlock.lua")),
            (Script::RedissonReadAcquire, include_str!("redisson/read_acquire.lua")),
            (Script::RedissonReadUnlock, include_str!("redisson/read_unlock.lua")),
            (Script::RedissonWriteAcquire, include_str!("redisson/write_acquire.lua")),
            (Script::RedissonWriteUnlock, include_str!("redisson/write_unlock.lua")),
            (Script::RedissonReadRenew3, include_str!("redisson/read_renew_3.lua")),
            (Script::RedissonReadRenew4, include_str!("redisson/read_renew_4.lua")),
            (Script::RedissonForceUnlock, include_str!("redisson/force_unlock.lua")),
        ];
        Self(texts.map(|(script, text)| (script, text.to_owned())).into())
    }

    /// One text with a part of it replaced, which must occur in it.
    pub(crate) fn broken(script: Script, part: &str, by: &str) -> Self {
        let mut scripts = Self::ours();
        let text = scripts.0[&script].clone();
        assert!(text.contains(part), "{script:?} has no {part:?}");
        scripts.0.insert(script, text.replace(part, by));
        scripts
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = Script> {
        self.0.keys().copied()
    }

    /// As the server gets it.
    pub(crate) fn text(&self, script: Script) -> String {
        let shortcut = script.shortcut().map_or("", |shortcut| &self.0[&shortcut]);
        shortcut.to_owned() + &self.rest(script)
    }

    /// The same without its shortcut.
    pub(crate) fn rest(&self, script: Script) -> String {
        if !script.has_prelude() {
            return self.0[&script].clone();
        }
        [Script::HandOff, Script::Holders, script].map(|part| self.0[&part].as_str()).concat()
    }
}

/// `KEYS` and `ARGV` of one of ours; of one that has no right to the queue, if it `is_poor`.
pub(crate) fn call(
    site: &Site,
    uuid: &str,
    request: &Request,
    is_poor: bool,
) -> (Vec<String>, Vec<String>) {
    let owner = |number: &u64| owner(uuid, *number);
    let args = match request {
        Request::Acquire { number, lease } | Request::Try { number, lease } => {
            taking(site, *lease, owner(number), String::new())
        }
        Request::Release { number, chain } | Request::GiveUp { number, chain } => {
            leaving(site, owner(number), *chain)
        }
        Request::Renew { number, lease } => {
            let reads = if number.is_multiple_of(2) { "" } else { "read " };
            let owner = format!("{reads}{}", owner(number));
            return (vec![site.lock.clone()], vec![lease.to_string(), owner]);
        }
    };
    let mut keys = keys(site);
    if is_poor {
        keys.truncate(1);
    }
    (keys, args)
}

/// `ARGV` of `acquire` and `try`. `writer`: under whose hold it reads, or nobody's.
pub(crate) fn taking(site: &Site, lease: i64, owner: String, writer: String) -> Vec<String> {
    let mut args = vec![lease.to_string(), owner, writer];
    args.extend(database(site));
    args
}

/// `ARGV` of `release` and `give_up`.
pub(crate) fn leaving(site: &Site, owner: String, chain: Chain) -> Vec<String> {
    let Chain { since, count } = chain;
    let mut args = vec![owner, since.to_string(), count.to_string(), site.public.clone()];
    args.extend(database(site));
    args
}

/// A forced unlock of ours, or of Redisson's: of those who have it.
pub(crate) fn force(site: &Site, state: &State, is_ours: bool) -> (Vec<String>, Vec<String>) {
    if is_ours {
        let mode = if state.mode.is_empty() { "read" } else { &state.mode };
        let mut args = vec![site.public.clone(), mode.to_owned()];
        args.extend(database(site));
        return (keys(site), args);
    }
    let message = if state.mode == "write" { "1" } else { "0" };
    (vec![site.lock.clone(), site.public.clone()], vec![message.to_owned()])
}

/// Its number is sent if it is not 0.
fn database(site: &Site) -> Option<String> {
    (site.database != 0).then(|| site.database.to_string())
}

pub(crate) fn keys(site: &Site) -> Vec<String> {
    vec![site.lock.clone(), site.queue.clone(), site.window.clone()]
}
