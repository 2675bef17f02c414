//! What a client says to a server that it connects to: who it is.

use std::sync::Arc;

use redis::RedisConnectionInfo;

use crate::config::Config;

/// With what a connection is opened.
#[derive(Clone)]
pub(crate) struct Login {
    settings: RedisConnectionInfo,
    /// What the server calls the connection. Empty: nothing.
    name: Arc<str>,
}

impl Login {
    pub(super) fn new(settings: RedisConnectionInfo, config: &Config) -> Self {
        Self { settings, name: Arc::clone(&config.connection_name) }
    }

    pub(super) fn settings(&self) -> &RedisConnectionInfo {
        &self.settings
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// What the connections of a client are called: its name and its id, without what the server takes
/// in no name.
pub(crate) fn connection_name(name: Option<&str>, id: &str) -> Arc<str> {
    let name = name.map_or_else(default_name, str::to_owned);
    let name: String =
        name.chars().map(|it| if it.is_ascii_graphic() { it } else { '-' }).collect();
    format!("{name}#{id}").into()
}

/// The program, its host and its process.
fn default_name() -> String {
    let program = std::env::args_os().next().map(std::path::PathBuf::from);
    let program = program.as_ref().and_then(|path| path.file_name());
    let program = program.map_or_else(|| "redlatch".into(), |name| name.to_string_lossy());
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    format!("{program}@{host}:{}", std::process::id())
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_only_what_a_server_takes_and_the_clients_id_behind_it() {
        let named = |name| connection_name(Some(name), "id").to_string();
        assert_eq!(named("billing@host-7"), "billing@host-7#id");
        assert_eq!(named("my service\n\u{fc}"), "my-service--#id");
        let own = connection_name(None, "id");
        assert!(own.ends_with(&format!(":{}#id", std::process::id())), "{own}");
        assert!(own.contains('@') && own.bytes().all(|byte| byte.is_ascii_graphic()), "{own}");
    }
}
