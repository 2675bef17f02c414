//! The commands that a server has run.

use std::collections::HashMap;

use redlatch_testkit::Server;

/// The number of calls of each command on this server, by clients and scripts.
pub(crate) struct Commands(HashMap<String, u64>);

impl Commands {
    pub(crate) fn so_far(server: &Server) -> Self {
        let text: String =
            redis::cmd("INFO").arg("commandstats").query(&mut server.connection()).unwrap();
        let calls = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
        };
        Self(text.lines().filter_map(calls).collect())
    }

    pub(crate) fn of(&self, command: &str) -> u64 {
        self.0.get(command).copied().unwrap_or(0)
    }

    /// The number of commands that a lock can send: scripts, and reads of keys.
    pub(crate) fn of_locks(&self) -> u64 {
        ["evalsha", "eval", "exists", "pttl"].iter().map(|name| self.of(name)).sum()
    }

    pub(crate) fn scripts(&self) -> u64 {
        self.of("evalsha") + self.of("eval")
    }
}
