//! A lock that one owner holds at a time.

use crate::simulated::client::LEASE;
use crate::simulated::kind::{Kind, Prefixes};
use crate::simulated::random::Random;
use crate::simulated::redisson::{Java, Version};
use crate::simulated::rules::{Broken, Claim, Step};
use crate::simulated::scripts::{Call, Script, Texts};
use crate::simulated::site::Site;
use crate::simulated::state::State;
use crate::simulated::wire::named;

pub(crate) const TEXTS: Texts = &[
    (Script::Free, include_str!("../../../lua/lock/free.lua")),
    (Script::QueueUp, include_str!("../../../lua/lock/queue_up.lua")),
    (Script::HandOver, include_str!("../../../lua/lock/hand_over.lua")),
    (Script::Prelude, include_str!("../../../lua/prelude.lua")),
    (Script::HandOff, include_str!("../../../lua/hand_off.lua")),
    (Script::Holders, include_str!("../../../lua/lock/holder.lua")),
    (Script::Owner, include_str!("../../../lua/lock/owner.lua")),
    (Script::Acquire, include_str!("../../../lua/lock/acquire.lua")),
    (Script::Try, include_str!("../../../lua/lock/try.lua")),
    (Script::Release, include_str!("../../../lua/lock/release.lua")),
    (Script::GiveUp, include_str!("../../../lua/lock/give_up.lua")),
    (
        Script::Renew,
        concat!(
            include_str!("../../../lua/lock/cut.lua"),
            include_str!("../../../lua/lock/renew.lua")
        ),
    ),
    (Script::ForceUnlock, include_str!("../../../lua/lock/force_unlock.lua")),
    (
        Script::Eval,
        concat!(
            "local function script() return 1 end\n",
            include_str!("../../../lua/lock/eval.lua")
        ),
    ),
    (Script::RedissonAcquire, include_str!("redisson/acquire.lua")),
    (Script::RedissonUnlock3, include_str!("redisson/unlock_3.lua")),
    (Script::RedissonUnlock4, include_str!("redisson/unlock_4.lua")),
    (Script::RedissonForceUnlock, include_str!("redisson/force_unlock.lua")),
];

#[derive(Debug)]
pub(crate) struct PlainLock;

impl Kind for PlainLock {
    fn prefixes(&self) -> Prefixes {
        Prefixes {
            queue: "redlatch_queue",
            window: "redlatch_window",
            public: "redisson_lock__channel",
        }
    }

    fn grants(&self) -> &'static [&'static str] {
        &["lock"]
    }

    fn next_number(&self, last: u64, _: &mut Random) -> u64 {
        last + 1
    }

    fn owner(&self, uuid: &str, number: u64) -> String {
        format!("{uuid}:{}", named(number))
    }

    fn texts(&self) -> Texts {
        TEXTS
    }

    fn renewed(&self, owner: &str) -> String {
        owner.to_owned()
    }

    fn forced(&self, _: &State) -> Option<String> {
        None
    }

    fn check_holders(&self, step: &Step<'_>) -> Result<(), Broken> {
        let state = step.after;
        if state.holders.len() > 1 || !state.mode.is_empty() {
            return Err(format!("two holders: {:?}", state.holders));
        }
        Ok(())
    }

    fn excludes(&self, _: &Claim, _: &Claim) -> bool {
        true
    }

    fn java_wants(&self, _: &mut Random) -> (bool, u32) {
        (false, 1)
    }

    fn java_acquire(&self, java: &Java, site: &Site) -> Call {
        let keys = vec![site.lock.clone()];
        let args = vec![LEASE.to_string(), java.owner()];
        Call { script: Script::RedissonAcquire, keys, args }
    }

    fn java_unlock(&self, java: &Java, site: &Site) -> Call {
        let keys = vec![site.lock.clone(), site.public.clone()];
        let args = vec!["0".to_owned(), LEASE.to_string(), java.owner()];
        match java.version {
            Version::Three => Call { script: Script::RedissonUnlock3, keys, args },
            _ => java.remembered(Call { script: Script::RedissonUnlock4, keys, args }),
        }
    }

    fn java_renew(&self, _: &Java, _: &Site) -> Option<Call> {
        None
    }
}
