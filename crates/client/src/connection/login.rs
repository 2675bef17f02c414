//! The login of a client's connections.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use redis::{RedisConnectionInfo, RedisResult};

use super::{Credentials, Settings, Source};

/// The user and the name with which a connection logs in.
#[derive(Clone)]
pub(crate) struct Login {
    settings: RedisConnectionInfo,
    /// The connection's name on the server, or an empty text if the connection gets no name.
    name: Arc<str>,
    /// The source of the user and the password, or `None` if they are in the settings.
    source: Option<Arc<Source<Credentials>>>,
}

impl Login {
    pub(super) fn new(settings: RedisConnectionInfo, config: &Settings) -> Self {
        Self { settings, name: Arc::clone(&config.name), source: None }
    }

    /// Returns the login of a server whose user and password may change.
    pub(super) fn of_servers(settings: RedisConnectionInfo, config: &Settings) -> Self {
        Self { source: config.credential_source.clone(), ..Self::new(settings, config) }
    }

    /// Returns the settings with the present user and password.
    pub(super) fn settings(&self, deadline: Instant) -> RedisResult<Cow<'_, RedisConnectionInfo>> {
        let Some(source) = &self.source else { return Ok(Cow::Borrowed(&self.settings)) };
        match source.ask(deadline) {
            Ok(credentials) => Ok(Cow::Owned(credentials.in_place(&self.settings))),
            Err(why) => Err(io::Error::other(format!("no user and password: {why}")).into()),
        }
    }

    /// Whether the next connection may need another user or password than the last connection.
    pub(super) fn may_change(&self) -> bool {
        self.source.is_some()
    }

    /// The number of times that open connections have received new credentials.
    pub(super) fn renewals(&self) -> u64 {
        self.source.as_ref().map_or(0, |source| source.renewals())
    }

    pub(super) fn database(&self) -> i64 {
        self.settings.db()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// Returns the name of a client's connections: the client's name and its id. A `-` replaces each
/// character that the server does not allow in a name.
pub fn connection_name(name: Option<&str>, id: &str) -> Arc<str> {
    let name = name.map_or_else(default_name, str::to_owned);
    let name: String =
        name.chars().map(|it| if it.is_ascii_graphic() { it } else { '-' }).collect();
    format!("{name}#{id}").into()
}

/// Returns a name made of the program, the host and the process.
fn default_name() -> String {
    let program = std::env::args_os().next().map(std::path::PathBuf::from);
    let program = program.as_ref().and_then(|path| path.file_name());
    let program = program.map_or_else(|| "redlatch".into(), |name| name.to_string_lossy());
    format!("{program}@{}:{}", host_name(), std::process::id())
}

/// Returns the name of this host.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_only_the_letters_a_server_takes_and_the_clients_id_behind_it() {
        let named = |name| connection_name(Some(name), "id").to_string();
        assert_eq!(named("billing@host-7"), "billing@host-7#id");
        assert_eq!(named("my service\n\u{fc}"), "my-service--#id");
        let own = connection_name(None, "id");
        assert!(own.ends_with(&format!(":{}#id", std::process::id())), "{own}");
        assert!(own.contains('@') && own.bytes().all(|byte| byte.is_ascii_graphic()), "{own}");
    }
}
