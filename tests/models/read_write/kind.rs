//! A lock that many owners may hold for reading, or one owner for writing.

use crate::simulated::client::LEASE;
use crate::simulated::kind::{Kind, Prefixes};
use crate::simulated::random::Random;
use crate::simulated::redisson::{Java, Version};
use crate::simulated::rules::{Broken, Claim, Step};
use crate::simulated::scripts::{Call, Script, Texts};
use crate::simulated::site::Site;
use crate::simulated::state::{State, writes};
use crate::simulated::wire::named;

pub(crate) const TEXTS: Texts = &[
    (Script::Free, include_str!("../../../lua/read_write/free.lua")),
    (Script::Unwanted, include_str!("../../../lua/read_write/release_uncontended.lua")),
    (Script::Prelude, include_str!("../../../lua/prelude.lua")),
    (Script::HandOff, include_str!("../../../lua/hand_off.lua")),
    (Script::Holders, include_str!("../../../lua/read_write/holders.lua")),
    (Script::Acquire, include_str!("../../../lua/read_write/acquire.lua")),
    (Script::Try, include_str!("../../../lua/read_write/try.lua")),
    (Script::Release, include_str!("../../../lua/lock/release.lua")),
    (Script::GiveUp, include_str!("../../../lua/lock/give_up.lua")),
    (
        Script::Renew,
        concat!(
            include_str!("../../../lua/lock/cut.lua"),
            include_str!("../../../lua/lock/renew.lua")
        ),
    ),
    (Script::ForceUnlock, include_str!("../../../lua/read_write/force_unlock.lua")),
    (Script::ReadOn, include_str!("../../../lua/read_write/read_on.lua")),
    (Script::RedissonReadAcquire, include_str!("redisson/read_acquire.lua")),
    (Script::RedissonReadUnlock, include_str!("redisson/read_unlock.lua")),
    (Script::RedissonWriteAcquire, include_str!("redisson/write_acquire.lua")),
    (Script::RedissonWriteUnlock, include_str!("redisson/write_unlock.lua")),
    (Script::RedissonReadRenew3, include_str!("redisson/read_renew_3.lua")),
    (Script::RedissonReadRenew4, include_str!("redisson/read_renew_4.lua")),
    (Script::RedissonForceUnlock, include_str!("redisson/force_unlock.lua")),
];

#[derive(Debug)]
pub(crate) struct ReadWriteLock;

impl Kind for ReadWriteLock {
    fn prefixes(&self) -> Prefixes {
        Prefixes {
            queue: "redlatch_rwlock_queue",
            window: "redlatch_rwlock_window",
            public: "redisson_rwlock",
        }
    }

    fn grants(&self) -> &'static [&'static str] {
        &["read", "write"]
    }

    /// Owners with even numbers write.
    fn next_number(&self, last: u64, random: &mut Random) -> u64 {
        last + random.between(1, 2) as u64
    }

    fn owner(&self, uuid: &str, number: u64) -> String {
        let writes = if number.is_multiple_of(2) { ":write" } else { "" };
        format!("{uuid}:{}{writes}", named(number))
    }

    fn texts(&self) -> Texts {
        TEXTS
    }

    fn renewed(&self, owner: &str) -> String {
        if writes(owner) { owner.to_owned() } else { format!("read {owner}") }
    }

    fn forced(&self, state: &State) -> Option<String> {
        Some(if state.mode.is_empty() { "read".to_owned() } else { state.mode.clone() })
    }

    /// There is one writer, or some readers with a timeout each.
    fn check_holders(&self, step: &Step<'_>) -> Result<(), Broken> {
        let Step { before, after: state, script, .. } = *step;
        let writers = state.holders.iter().filter(|holder| writes(holder)).count();
        match state.mode.as_str() {
            "" if state.holders.is_empty() => {}
            "read" if writers == 0 && !state.holders.is_empty() => {}
            "write" if writers == 1 => {
                // The writer's process may also read, but no other process may.
                let process = |owner: &String| owner[..36].to_owned();
                let first = process(&state.holders[0]);
                if state.holders.iter().any(|holder| process(holder) != first) {
                    return Err(format!("others beside a writer: {:?}", state.holders));
                }
            }
            mode => return Err(format!("{:?} hold it to {mode:?}", state.holders)),
        }
        for (holder, timeout) in state.holders.iter().zip(&state.timeouts) {
            if *timeout == -1 {
                return Err(format!("a timeout without an end: {holder}"));
            }
            // An earlier renewal by Redisson may have extended the timeout this far.
            if *timeout > state.left && !script.is_of_redisson() && !outlasts(before, holder) {
                return Err(format!("{holder} has {timeout} ms, the lock {}", state.left));
            }
        }
        Ok(())
    }

    /// The writer may also read.
    fn excludes(&self, one: &Claim, other: &Claim) -> bool {
        (writes(&one.owner) || writes(&other.owner)) && one.owner[..8] != other.owner[..8]
    }

    fn java_wants(&self, random: &mut Random) -> (bool, u32) {
        let writes = random.percent(40);
        (writes, if random.percent(25) { 2 } else { 1 })
    }

    fn java_acquire(&self, java: &Java, site: &Site) -> Call {
        let (lock, owner, lease) = (site.lock.clone(), java.owner(), LEASE.to_string());
        if java.writes {
            let args = vec![lease, owner];
            return Call { script: Script::RedissonWriteAcquire, keys: vec![lock], args };
        }
        let keys = vec![lock.clone(), timeouts(&lock, &owner)];
        let writer = format!("{owner}:write");
        Call { script: Script::RedissonReadAcquire, keys, args: vec![lease, owner, writer] }
    }

    fn java_unlock(&self, java: &Java, site: &Site) -> Call {
        let (lock, public, owner) = (site.lock.clone(), site.public.clone(), java.owner());
        let call = if java.writes {
            let args = vec!["1".to_owned(), LEASE.to_string(), owner];
            Call { script: Script::RedissonWriteUnlock, keys: vec![lock, public], args }
        } else {
            let keys = vec![lock.clone(), public, timeouts(&lock, &owner), prefix(&lock)];
            let args = vec!["0".to_owned(), owner];
            Call { script: Script::RedissonReadUnlock, keys, args }
        };
        if java.version == Version::Three { call } else { java.remembered(call) }
    }

    fn java_renew(&self, java: &Java, site: &Site) -> Option<Call> {
        let script = match java.version {
            Version::Three => Script::RedissonReadRenew3,
            _ => Script::RedissonReadRenew4,
        };
        let keys = vec![site.lock.clone(), prefix(&site.lock)];
        (!java.writes).then(|| Call { script, keys, args: vec![LEASE.to_string(), java.owner()] })
    }
}

/// Returns the prefix of the names of all readers' timeouts.
fn prefix(lock: &str) -> String {
    if lock.contains('{') { lock.to_owned() } else { format!("{{{lock}}}") }
}

/// Returns the names of a reader's timeouts, without their number.
pub(crate) fn timeouts(lock: &str, owner: &str) -> String {
    format!("{}:{owner}:rwlock_timeout", prefix(lock))
}

/// Whether a holder's timeout ends later than the lock.
fn outlasts(state: &State, holder: &str) -> bool {
    state.timeout(holder).is_some_and(|timeout| timeout > state.left)
}
