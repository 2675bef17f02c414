//! The texts of the scripts, and what each is called with.

use std::collections::HashMap;

use crate::state::State;
use crate::wire::{Chain, Request, Site, owner};

/// Which text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Script {
    /// Stands before the others of ours.
    Queue,
    Acquire,
    Try,
    Release,
    GiveUp,
    Renew,
    ForceUnlock,
    RedissonAcquire,
    /// Of Redisson 3.16.8.
    RedissonUnlock3,
    RedissonUnlock4,
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

    /// What stands before the prelude.
    fn shortcut(self) -> &'static str {
        match self {
            Self::Acquire | Self::Try => include_str!("../../lua/lock/free.lua"),
            Self::Release => include_str!("../../lua/lock/unwanted.lua"),
            _ => "",
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
            (Script::Queue, include_str!("../../lua/lock/queue.lua")),
            (Script::Acquire, include_str!("../../lua/lock/acquire.lua")),
            (Script::Try, include_str!("../../lua/lock/try.lua")),
            (Script::Release, include_str!("../../lua/lock/release.lua")),
            (Script::GiveUp, include_str!("../../lua/lock/give_up.lua")),
            (Script::Renew, include_str!("../../lua/lock/renew.lua")),
            (Script::ForceUnlock, include_str!("../../lua/lock/force_unlock.lua")),
            (Script::RedissonAcquire, include_str!("redisson/acquire.lua")),
            (Script::RedissonUnlock3, include_str!("redisson/unlock_3.lua")),
            (Script::RedissonUnlock4, include_str!("redisson/unlock_4.lua")),
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
        script.shortcut().to_owned() + &self.rest(script)
    }

    /// The same without its shortcut.
    pub(crate) fn rest(&self, script: Script) -> String {
        let prelude = if script.has_prelude() { &self.0[&Script::Queue] } else { "" };
        format!("{prelude}{}", self.0[&script])
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
    let mut args = match request {
        Request::Acquire { number, lease } | Request::Try { number, lease } => {
            vec![lease.to_string(), owner(number)]
        }
        Request::Release { number, chain } | Request::GiveUp { number, chain } => {
            let Chain { since, count } = chain;
            vec![owner(number), since.to_string(), count.to_string(), site.public.clone()]
        }
        Request::Renew { number, lease } => {
            return (vec![site.lock.clone()], vec![lease.to_string(), owner(number)]);
        }
    };
    args.extend(database(site));
    let mut keys = keys(site);
    if is_poor {
        keys.truncate(1);
    }
    (keys, args)
}

/// A forced unlock of ours, or of Redisson's.
pub(crate) fn force(site: &Site, _: &State, is_ours: bool) -> (Vec<String>, Vec<String>) {
    if is_ours {
        (keys(site), [site.public.clone()].into_iter().chain(database(site)).collect())
    } else {
        (vec![site.lock.clone(), site.public.clone()], vec!["0".to_owned()])
    }
}

/// Its number is sent if it is not 0.
fn database(site: &Site) -> Option<String> {
    (site.database != 0).then(|| site.database.to_string())
}

pub(crate) fn keys(site: &Site) -> Vec<String> {
    let keys = [&site.lock, &site.queue, &site.window].into_iter().chain(&site.tokens);
    keys.cloned().collect()
}
