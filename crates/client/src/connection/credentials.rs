//! User and password.

use std::fmt;
use std::time::Duration;

use redis::RedisConnectionInfo;

use super::source::Provided;

/// A user and a password of a server, as [`credentials_with`] returns them.
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
    /// Returns credentials with this user and password, without percent-encoding. If `user` is
    /// empty, it means the server's default user.
    #[must_use]
    pub fn new(user: &str, password: &str) -> Self {
        Self { user: user.to_owned(), password: password.to_owned(), valid_for: None }
    }

    /// Returns the same credentials, which the server accepts for `time` from now on. After that
    /// time the server may close connections that were opened with them. Without this call, the
    /// credentials are valid until the server changes them.
    #[must_use]
    pub fn valid_for(self, time: Duration) -> Self {
        Self { valid_for: Some(time), ..self }
    }

    /// The user, if it is not the server's default one, and the password.
    pub(super) fn parts(&self) -> (Option<&str>, &str) {
        (Some(&*self.user).filter(|user| !user.is_empty()), &self.password)
    }

    /// The settings of a URL, with these credentials in place of the URL's own.
    pub(crate) fn in_place(&self, url: &RedisConnectionInfo) -> RedisConnectionInfo {
        let (user, password) = self.parts();
        let settings = url.clone().set_password(password);
        match user {
            None => settings,
            Some(user) => settings.set_username(user),
        }
    }

    /// The settings of a URL. If there are credentials in `these`, they replace the URL's own.
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

/// Shows neither the user nor the password.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}
