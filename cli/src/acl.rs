//! `redlatch acl`: the access rights that a name needs.

use std::collections::BTreeSet;

use clap::ValueEnum;
use redlatch::Rights;

use crate::args::Args;
use crate::print;
use crate::trouble::{CONFIG, Trouble, USAGE};

/// The ways to use a name or a client. Each way needs its own access rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Use {
    Lock,
    /// run --fenced
    Fenced,
    /// run --fair
    Fair,
    /// run -s, run -x
    ReadWrite,
    Condition,
    Semaphore,
    /// run --permits
    ExpirableSemaphore,
    Latch,
    Barrier,
    Election,
    /// who, ls, top, wait, unlock; slow_wait
    Status,
    /// A redis-cluster:// URL
    Cluster,
    /// A URL with a host's name, or with Sentinels
    Role,
    ReplicaAcks,
}

impl Use {
    pub(crate) fn word(self) -> String {
        self.to_possible_value().map_or_else(String::new, |it| it.get_name().to_owned())
    }

    pub(crate) fn rights(self) -> Rights {
        match self {
            Self::Lock => Rights::Locks,
            Self::Fenced => Rights::FencedLocks,
            Self::Fair => Rights::FairLocks,
            Self::ReadWrite => Rights::ReadWriteLocks,
            Self::Condition => Rights::Conditions,
            Self::Semaphore => Rights::Semaphores,
            Self::ExpirableSemaphore => Rights::ExpirableSemaphores,
            Self::Latch => Rights::Latches,
            Self::Barrier => Rights::Barriers,
            Self::Election => Rights::Elections,
            Self::Status => Rights::Status,
            Self::Cluster => Rights::Cluster,
            Self::Role => Rights::Role,
            Self::ReplicaAcks => Rights::ReplicaAcks,
        }
    }
}

/// Prints one line for `redis-cli`. Sends nothing to a server.
pub(crate) fn acl(args: &Args, name: &str, uses: &[Use], user: &str) -> Result<u8, Trouble> {
    if name.is_empty() {
        return Err(Trouble::new(CONFIG, "the name is empty: a lock needs one"));
    }
    if user.is_empty() || user.contains(char::is_whitespace) {
        return Err(Trouble::new(USAGE, "the user's name is empty, or has a space"));
    }
    let name = format!("{}{name}", args.prefix());
    let uses = uses.iter().map(|it| it.rights());
    let rules = [Rights::Connect].into_iter().chain(uses);
    let rules: BTreeSet<_> = rules.flat_map(|rights| rights.acl_rules(&name)).collect();
    let mut line = format!("ACL SETUSER {user}");
    for first in ['~', '&', '+'] {
        for rule in rules.iter().filter(|rule| rule.starts_with(first)) {
            line = line + " " + rule;
        }
    }
    print((line + "\n").as_bytes())
}
