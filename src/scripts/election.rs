//! The scripts of elections.

use std::sync::LazyLock;
use std::time::Duration;

use redlatch_client::{CachedScript, Command, Route};

use super::{Rights, Trouble, call, checking_rights, flag, query, read, time};
use crate::scripts::{ElectionKeys, Owner};

static LEAD: LazyLock<CachedScript> = script!(NUMBER; "election/lead.lua");
static RESIGN: LazyLock<CachedScript> = script!(NUMBER; "election/resign.lua");
static STATE: LazyLock<CachedScript> = script!(LIST; "election/state.lua");

#[derive(Clone, Copy, Debug)]
pub(crate) struct ElectionScripts<'a> {
    pub(crate) route: &'a Route,
    pub(crate) name: &'a str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) token: u64,
    pub(crate) who: String,
    pub(crate) host: String,
    /// The server's time since 1970 at which the candidate became the leader.
    pub(crate) since: Duration,
    /// The leader's own value.
    pub(crate) value: Option<String>,
}

impl ElectionScripts<'_> {
    /// Records the leader. Returns `false` if the owner has lost the lock.
    pub(crate) fn lead(
        self,
        owner: &Owner,
        token: u64,
        [who, host]: [&str; 2],
        value: Option<&str>,
    ) -> Result<bool, Trouble> {
        let (leader, token, owner) =
            (ElectionKeys::leader(self.name), token.to_string(), owner.text());
        let [name, leader, token, who, host] =
            [self.name, &leader, &token, who, host].map(str::as_bytes);
        let mut arguments = vec![&*owner, token, who, host, leader];
        arguments.extend(value.map(str::as_bytes));
        let command = Command::script(&LEAD, &[name, leader], &arguments);
        flag(call(self.route, &checking_rights(command, Rights::Elections), Rights::Elections)?)
    }

    pub(crate) fn resign_command(self, owner: &Owner, token: u64) -> Command {
        let (leader, token) = (ElectionKeys::leader(self.name), token.to_string());
        let leader = leader.as_bytes();
        Command::script(&RESIGN, &[leader], &[&owner.text(), token.as_bytes(), leader])
    }

    /// Returns the leader, and the time until the lock's lease ends.
    pub(crate) fn leader(self) -> Result<(Option<Recorded>, Option<Duration>), Trouble> {
        let leader = ElectionKeys::leader(self.name);
        let command = Command::script(&STATE, &[self.name.as_bytes(), leader.as_bytes()], &[]);
        query(self.route, &command, Rights::Elections, |reply| {
            let (left, leader): (_, Vec<_>) = read(&reply)?;
            let recorded = |(token, who, host, since, value)| {
                let since = Duration::from_millis(since);
                Recorded { token, who, host, since, value }
            };
            Ok((leader.into_iter().next().map(recorded), time(left)))
        })
    }
}
