//! Users of a server, with their rights and passwords.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::Connection;
use redlatch::{Client, ClientBuilder, Credentials};
use redlatch_testkit::{Proxy, Server};

use super::impatient;

/// A user of the server. At first the user has all rights.
pub(crate) struct User {
    name: String,
    redis: Connection,
    url: String,
}

impl User {
    pub(crate) fn new(server: &Server, name: &str) -> Self {
        let url = server.url().replace("redis://", &format!("redis://{name}:word@"));
        let mut user = Self { name: name.to_owned(), redis: server.connection(), url };
        user.set(&["on", ">word", "~*", "&*", "+@all"]);
        user
    }

    pub(crate) fn set(&mut self, rules: &[&str]) {
        let set = redis::cmd("ACL").arg("SETUSER").arg(&self.name).arg(rules).exec(&mut self.redis);
        set.unwrap();
    }

    /// Gives the user the rights that an error lists for `who` (such as "a latch"), on a name's
    /// keys.
    pub(crate) fn set_as_said(&mut self, error: &str, who: &str, name: &str) {
        let named = error.split(&format!("{who} needs ")).nth(1).unwrap();
        let named = named.split(" on its key").next().unwrap();
        let ours = ["request:", "mark:"].map(|what| format!("~redlatch_{what}{{{name}}}*"));
        self.set(&["resetkeys", &format!("~{name}"), &ours[0], &ours[1]]);
        for right in named.replace(" and", ",").replace(",,", ",").split(", ") {
            self.set(&[&format!("+{}", right.to_lowercase())]);
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn client(&self) -> Client {
        impatient(&self.url).connect().unwrap()
    }

    pub(crate) fn client_behind(&self, proxy: &Proxy) -> Client {
        let url = proxy.url().replace("redis://", &format!("redis://{}:word@", self.name));
        impatient(&url).connections(1).connect().unwrap()
    }
}

/// A user whose password changes, with the user's present credentials. A client's provider returns
/// these credentials.
#[derive(Clone)]
pub(crate) struct Vault {
    password: Arc<Mutex<String>>,
    valid_for: Option<Duration>,
    asked: Arc<AtomicUsize>,
}

impl Vault {
    const USER: &str = "tokens";

    pub(crate) fn new(valid_for: Option<Duration>) -> Self {
        Self { password: Arc::default(), valid_for, asked: Arc::default() }
    }

    /// Adds this password to the user at these servers.
    pub(crate) fn add(&self, servers: &[Server], password: &str) {
        for server in servers {
            let args = ["SETUSER", Self::USER, "on", &format!(">{password}"), "~*", "&*", "+@all"];
            redis::cmd("ACL").arg(&args).exec(&mut server.connection()).unwrap();
        }
        *self.password.lock().unwrap() = password.to_owned();
    }

    pub(crate) fn remove(servers: &[Server], password: &str) {
        for server in servers {
            let args = ["SETUSER", Self::USER, &format!("<{password}")];
            redis::cmd("ACL").arg(&args).exec(&mut server.connection()).unwrap();
        }
    }

    /// Closes all connections of the user.
    pub(crate) fn hang_up(servers: &[Server]) {
        for server in servers {
            let args = ["KILL", "USER", Self::USER];
            redis::cmd("CLIENT").arg(&args).exec(&mut server.connection()).unwrap();
        }
    }

    pub(crate) fn asked_by(&self, client: ClientBuilder) -> ClientBuilder {
        let vault = self.clone();
        client.credentials_with(move || {
            vault.asked.fetch_add(1, Ordering::SeqCst);
            let credentials = Credentials::new(Self::USER, &vault.password.lock().unwrap());
            let valid_for = vault.valid_for;
            Ok(valid_for.into_iter().fold(credentials, Credentials::valid_for))
        })
    }

    /// Returns how many times the client has called its provider for credentials.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}
