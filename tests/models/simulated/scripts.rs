//! The texts of the scripts, and the arguments of each script.

use std::collections::HashMap;

use super::client::LEASE;
use super::site::Site;
use super::state::State;
use super::wire::{Chain, Request, number_of};

/// The name of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Script {
    /// The shortcuts, which come before some of redlatch's scripts.
    Free,
    QueueUp,
    Unwanted,
    HandOver,
    /// The parts that come before the rest of redlatch's scripts. The last of these parts comes
    /// only before some scripts.
    Prelude,
    HandOff,
    Holders,
    Owner,
    Acquire,
    Try,
    Release,
    GiveUp,
    Renew,
    ForceUnlock,
    /// A script of a read-write lock.
    ReadOn,
    /// A script of a fair lock.
    KeepAlive,
    /// A user's script, which runs under a hold.
    Eval,
    RedissonAcquire,
    /// A script of Redisson 3.16.8.
    RedissonUnlock3,
    RedissonUnlock4,
    RedissonReadAcquire,
    RedissonReadUnlock,
    RedissonWriteAcquire,
    RedissonWriteUnlock,
    RedissonReadRenew3,
    RedissonReadRenew4,
    RedissonForceUnlock,
    /// Scripts of a fair lock.
    RedissonAcquire3,
    RedissonGiveUp,
    RedissonUnlock,
}

/// The texts of the scripts of one kind of lock.
pub(crate) type Texts = &'static [(Script, &'static str)];

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
            Self::RedissonAcquire
                | Self::RedissonUnlock3
                | Self::RedissonUnlock4
                | Self::RedissonReadAcquire
                | Self::RedissonReadUnlock
                | Self::RedissonWriteAcquire
                | Self::RedissonWriteUnlock
                | Self::RedissonReadRenew3
                | Self::RedissonReadRenew4
                | Self::RedissonForceUnlock
                | Self::RedissonAcquire3
                | Self::RedissonGiveUp
                | Self::RedissonUnlock
        )
    }

    /// Whether the reply may grant the sender the lock.
    pub(crate) fn takes(self) -> bool {
        matches!(
            self,
            Self::Acquire
                | Self::Try
                | Self::RedissonAcquire
                | Self::RedissonReadAcquire
                | Self::RedissonWriteAcquire
        )
    }

    /// Whether the script ends the hold of its sender.
    pub(crate) fn leaves(self) -> bool {
        matches!(
            self,
            Self::Release
                | Self::GiveUp
                | Self::RedissonUnlock3
                | Self::RedissonUnlock4
                | Self::RedissonReadUnlock
                | Self::RedissonWriteUnlock
        )
    }

    pub(crate) fn is_forced(self) -> bool {
        matches!(self, Self::ForceUnlock | Self::RedissonForceUnlock)
    }

    /// Returns the shortcuts before the prelude, if the kind of lock has them.
    fn shortcuts(self) -> &'static [Self] {
        match self {
            Self::Acquire => &[Self::Free, Self::QueueUp],
            Self::Try => &[Self::Free],
            Self::Release => &[Self::Unwanted, Self::HandOver],
            _ => &[],
        }
    }

    fn has_prelude(self) -> bool {
        matches!(
            self,
            Self::Acquire
                | Self::Try
                | Self::Release
                | Self::GiveUp
                | Self::ForceUnlock
                | Self::ReadOn
        )
    }
}

/// The texts of all scripts.
#[derive(Clone, Debug)]
pub(crate) struct Scripts(HashMap<Script, String>);

impl Scripts {
    pub(crate) fn of(texts: Texts) -> Self {
        Self(texts.iter().map(|(script, text)| (*script, (*text).to_owned())).collect())
    }

    /// Replaces a part of one text. The text must contain the part.
    pub(crate) fn with(mut self, script: Script, part: &str, by: &str) -> Self {
        let text = &self.0[&script];
        assert!(text.contains(part), "{script:?} has no {part:?}");
        let text = text.replace(part, by);
        self.0.insert(script, text);
        self
    }

    /// Returns all texts except this shortcut.
    pub(crate) fn without(mut self, shortcut: Script) -> Self {
        self.0.remove(&shortcut);
        self
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = Script> {
        self.0.keys().copied()
    }

    /// Returns the text that is sent to the server.
    pub(crate) fn text(&self, script: Script) -> String {
        let shortcuts = script.shortcuts().iter().filter_map(|shortcut| self.0.get(shortcut));
        shortcuts.map(String::as_str).collect::<String>() + &self.rest(script)
    }

    /// Returns the text for a lock that is probably held, with the shortcuts in the other order.
    pub(crate) fn held(&self) -> String {
        let shortcuts = Script::Acquire.shortcuts().iter().rev();
        let shortcuts = shortcuts.filter_map(|shortcut| self.0.get(shortcut));
        shortcuts.map(String::as_str).collect::<String>() + &self.rest(Script::Acquire)
    }

    /// Returns the text without its shortcuts.
    pub(crate) fn rest(&self, script: Script) -> String {
        let asks_whose = matches!(script, Script::Acquire | Script::Try | Script::ForceUnlock);
        let prelude = [Script::Prelude, Script::HandOff, Script::Holders, Script::Owner];
        let prelude = prelude.iter().filter(|part| **part != Script::Owner || asks_whose);
        let prelude = prelude.filter(|_| script.has_prelude());
        let prelude: String = prelude.filter_map(|part| self.0.get(part)).cloned().collect();
        prelude + &self.0[&script]
    }
}

/// A script with its `KEYS` and `ARGV`.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) script: Script,
    pub(crate) keys: Vec<String>,
    pub(crate) args: Vec<String>,
}

impl Call {
    /// Whether the client sends the text for a lock that is probably held: at random by the owner's
    /// number, and for each later request.
    pub(crate) fn is_for_held(&self) -> bool {
        let is_even = || number_of(&self.args[1]).is_some_and(|number| number.is_multiple_of(2));
        self.script == Script::Acquire && (self.args.len() > 3 || is_even())
    }
}

/// Returns the call of a redlatch client.
pub(crate) fn call(site: &Site, uuid: &str, request: &Request) -> Call {
    let owner = |number: &u64| site.kind.owner(uuid, *number);
    match request {
        Request::Acquire { number, lease, again: None } => {
            taking(Script::Acquire, site, *lease, owner(number), None)
        }
        Request::Acquire { number, lease, again: Some(again) } => {
            let mut args = vec![lease.to_string(), owner(number), site.database.to_string()];
            args.push(again.waiting_since.to_string());
            args.extend(again.sent.map(|sent| sent.to_string()));
            Call { script: Script::Acquire, keys: site.keys(), args }
        }
        Request::Try { number, lease } => taking(Script::Try, site, *lease, owner(number), None),
        Request::Release { number, chain } => leaving(Script::Release, site, owner(number), *chain),
        Request::GiveUp { number, chain } => leaving(Script::GiveUp, site, owner(number), *chain),
        Request::Renew { number, lease } => Call {
            script: Script::Renew,
            keys: vec![site.lock.clone()],
            args: vec![lease.to_string(), LEASE.to_string(), site.kind.renewed(&owner(number))],
        },
    }
}

/// If the owner reads while another owner of its process writes, `writer` is that other owner.
pub(crate) fn taking(
    script: Script,
    site: &Site,
    lease: i64,
    owner: String,
    writer: Option<String>,
) -> Call {
    let mut args = vec![lease.to_string(), owner];
    match writer {
        None => args.extend(database(site)),
        Some(writer) => args.extend([site.database.to_string(), writer]),
    }
    Call { script, keys: site.keys(), args }
}

pub(crate) fn leaving(script: Script, site: &Site, owner: String, chain: Chain) -> Call {
    let mut args = vec![owner, site.public.clone()];
    args.extend(chain.said(site.database != 0));
    args.extend(database(site));
    Call { script, keys: site.keys(), args }
}

/// Returns a forced unlock by a redlatch client or a Redisson client.
pub(crate) fn force(site: &Site, state: &State, is_ours: bool) -> Call {
    if is_ours {
        let mut args = vec![site.public.clone()];
        args.extend(site.kind.forced(state));
        args.extend(database(site));
        return Call { script: Script::ForceUnlock, keys: site.keys(), args };
    }
    let message = if state.mode == "write" { "1" } else { "0" };
    let keys = vec![site.lock.clone(), site.public.clone()];
    Call { script: Script::RedissonForceUnlock, keys, args: vec![message.to_owned()] }
}

/// Returns the database's number as an argument, or no argument if the number is 0.
fn database(site: &Site) -> Option<String> {
    (site.database != 0).then(|| site.database.to_string())
}
