//! The work of a server, as the server counts it.

use redis::Connection;

use crate::clock::SECOND;

/// The number of calls so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Calls {
    /// The number of calls of EVALSHA and EVAL.
    pub(crate) scripts: u64,
    /// The number of all commands, including those inside scripts.
    pub(crate) commands: u64,
    /// The number of calls of HEXISTS. A script that renews calls HEXISTS once for each name.
    pub(crate) hexists: u64,
}

impl Calls {
    pub(crate) fn of(server: &mut Connection) -> Self {
        let mut all = Self::default();
        for line in info(server, "commandstats").lines() {
            let counted = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(":calls="));
            let Some((command, rest)) = counted else { continue };
            let calls = rest.split(',').next().and_then(|calls| calls.parse().ok()).unwrap_or(0);
            all.commands += calls;
            match command {
                "evalsha" | "eval" => all.scripts += calls,
                "hexists" => all.hexists += calls,
                _ => {}
            }
        }
        all
    }
}

/// Returns the processor time of the server so far, in nanoseconds.
pub(crate) fn processor(server: &mut Connection) -> u64 {
    let info = info(server, "cpu");
    let seconds = |field: &str| {
        let value = info.lines().find_map(|line| line.strip_prefix(field));
        value.and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0)
    };
    ((seconds("used_cpu_user:") + seconds("used_cpu_sys:")) * SECOND as f64) as u64
}

/// Returns the server's name and version.
pub(crate) fn version(server: &mut Connection) -> String {
    let info = info(server, "server");
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
    match field("valkey_version:") {
        Some(version) => format!("Valkey {version}"),
        None => format!("Redis {}", field("redis_version:").unwrap_or("of an unknown version")),
    }
}

fn info(server: &mut Connection, section: &str) -> String {
    redis::cmd("INFO").arg(section).query(server).unwrap()
}
