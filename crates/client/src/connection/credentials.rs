//! The user and the password of a connection.

use std::fmt;
use std::time::Duration;

use redis::RedisConnectionInfo;

use super::source::Provided;

/// A user and a password of a server, for the provider of [`credentials_with`].
///
/// [`credentials_with`]:
/// https://docs.rs/redlatch/latest/redlatch/struct.ClientBuilder.html#method.credentials_with
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: String,
    password: String,
    valid_for: Option<Duration>,
}

impl Credentials {
    /// Returns credentials with this user and password, which are not percent-encoded. An empty
    /// `user` is the server's default user.
    #[must_use]
    pub fn new(user: &str, password: &str) -> Self {
        Self { user: user.to_owned(), password: password.to_owned(), valid_for: None }
    }

    /// Returns the same credentials, which the server accepts only for `time` from now. When `time`
    /// is over, the server may close connections that were opened with these credentials. Without a
    /// call of `valid_for`, the credentials are valid until they are changed at the server.
    #[must_use]
    pub fn valid_for(self, time: Duration) -> Self {
        Self { valid_for: Some(time), ..self }
    }

    /// Returns the user, if it is not the server's default user, and the password.
    pub(super) fn parts(&self) -> (Option<&str>, &str) {
        (Some(&*self.user).filter(|user| !user.is_empty()), &self.password)
    }

    /// Returns the settings of a URL, with these credentials in place of the URL's credentials.
    pub(crate) fn in_place(&self, url: &RedisConnectionInfo) -> RedisConnectionInfo {
        let (user, password) = self.parts();
        let settings = url.clone().set_password(password);
        match user {
            None => settings,
            Some(user) => settings.set_username(user),
        }
    }

    /// Returns the settings of a URL. Credentials in `these` replace the URL's credentials.
    pub(crate) fn instead(these: &Option<Self>, url: &RedisConnectionInfo) -> RedisConnectionInfo {
        these.as_ref().map_or_else(|| url.clone(), |these| these.in_place(url))
    }
}

impl Provided for Credentials {
    const SETTING: &'static str = "credentials_with";
    const THREAD: &'static str = "redlatch-creds";

    fn valid_for(&self) -> Option<Duration> {
        self.valid_for
    }

    fn is_same_as(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

/// Shows no user and no password.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}
