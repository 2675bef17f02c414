//! The properties of one kind of lock.

use std::fmt;

use super::random::Random;
use super::redisson::Java;
use super::rules::{Broken, Claim, Step};
use super::scripts::{Call, Texts};
use super::site::Site;
use super::state::State;

pub(crate) trait Kind: fmt::Debug + Sync {
    fn prefixes(&self) -> Prefixes;

    /// Returns the words with which a grant may begin.
    fn grants(&self) -> &'static [&'static str];

    /// Returns the number of the next owner. Each acquisition has a new number.
    fn next_number(&self, last: u64, random: &mut Random) -> u64;

    /// Returns the owner as the hash and the queue contain it.
    fn owner(&self, uuid: &str, number: u64) -> String;

    /// Returns the texts of all scripts, including shortcuts.
    fn texts(&self) -> Texts;

    /// Returns the owner as the argument of `renew`.
    fn renewed(&self, owner: &str) -> String;

    /// Returns the additional argument of redlatch's forced unlock, besides the channel.
    fn forced(&self, state: &State) -> Option<String>;

    /// Checks which owners hold the lock at the same time, and in which mode.
    fn check_holders(&self, step: &Step<'_>) -> Result<(), Broken>;

    /// Whether the two claims must not overlap.
    fn excludes(&self, one: &Claim, other: &Claim) -> bool;

    /// Returns whether a Redisson client wants to write now, and how many times it takes the lock.
    fn java_wants(&self, random: &mut Random) -> (bool, u32);

    /// Returns the request of one of Redisson's clients.
    fn java_acquire(&self, java: &Java, site: &Site) -> Call;

    fn java_unlock(&self, java: &Java, site: &Site) -> Call;

    fn java_renew(&self, java: &Java, site: &Site) -> Option<Call>;
}

/// The prefixes of the names of keys and channels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefixes {
    pub(crate) queue: &'static str,
    pub(crate) window: &'static str,
    pub(crate) public: &'static str,
}
