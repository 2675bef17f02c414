//! Runs one script at a time, without a simulated clock.

use redis::{Connection, RedisError, RedisResult, Value};
use redlatch_testkit::Server;

use super::client::LEASE;
use super::rules::Broken;
use super::scripts::{Call, Scripts, call, force};
use super::site::Site;
use super::state::State;
use super::store::uuid;
use super::wire::{Chain, Message, Reply, Request, own_channel};

pub(crate) const CHAIN: Chain = Chain { since: 0, count: 1 };

/// A user's connection, which runs scripts for any client.
pub(crate) struct Direct {
    pub(crate) connection: Connection,
    pub(crate) scripts: Scripts,
    pub(crate) site: Site,
}

impl Direct {
    pub(crate) fn new(server: &Server, site: Site) -> Self {
        Self::over(server.connection(), site)
    }

    fn over(connection: Connection, site: Site) -> Self {
        Self { connection, scripts: Scripts::of(site.kind.texts()), site }
    }

    /// Connects as a user that has all rights except these.
    pub(crate) fn without(server: &Server, site: Site, rules: &[&str]) -> Self {
        let all = ["ACL", "SETUSER", "me", "reset", "on", ">word", "~*", "&*", "+@all"];
        let mut connection = server.connection();
        let user = [&all, rules].concat();
        redis::cmd(user[0]).arg(&user[1..]).exec(&mut connection).unwrap();
        let mut connection = server.connection();
        redis::cmd("AUTH").arg("me").arg("word").exec(&mut connection).unwrap();
        Self::over(connection, site)
    }

    pub(crate) fn raw(&mut self, client: usize, request: &Request) -> RedisResult<Value> {
        self.eval(&call(&self.site, &uuid(true, client), request))
    }

    pub(crate) fn eval(&mut self, call: &Call) -> RedisResult<Value> {
        let Call { script, keys, args } = call;
        let held = call.is_for_held();
        let text = if held { self.scripts.held() } else { self.scripts.text(*script) };
        let mut command = redis::cmd("EVAL");
        command.arg(text).arg(keys.len()).arg(keys).arg(args);
        command.query(&mut self.connection)
    }

    pub(crate) fn run(&mut self, client: usize, request: &Request) -> Reply {
        match self.raw(client, request) {
            Ok(value) => Reply::new(request, &value),
            Err(error) => Reply::Error(error.to_string()),
        }
    }

    pub(crate) fn acquire(&mut self, client: usize) -> Reply {
        self.run(client, &Request::Acquire { number: 1, lease: LEASE, again: None })
    }

    pub(crate) fn takes(&mut self, client: usize) -> bool {
        matches!(self.acquire(client), Reply::Granted { .. })
    }

    /// Returns the client's present position in the queue.
    pub(crate) fn place(&mut self, client: usize) -> i64 {
        match self.acquire(client) {
            Reply::Queued(queued) => queued.place,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn release(&mut self, client: usize) -> Option<i64> {
        let request = Request::Release { number: 1, chain: CHAIN };
        let value = self.raw(client, &request).unwrap();
        redis::from_redis_value(value).unwrap()
    }

    pub(crate) fn give_up(&mut self, client: usize) -> Reply {
        self.run(client, &Request::GiveUp { number: 1, chain: CHAIN })
    }

    pub(crate) fn force_unlock(&mut self) -> RedisResult<Value> {
        self.eval(&force(&self.site, &State::none(), true))
    }

    pub(crate) fn command<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        redis::cmd(words[0]).arg(&words[1..]).query(&mut self.connection).unwrap()
    }

    pub(crate) fn holder(&mut self) -> Option<usize> {
        let lock = self.site.lock.clone();
        let owners: Vec<String> = self.command(&["HKEYS", &lock]);
        owners.first().map(|owner| owner[..8].parse().unwrap())
    }

    pub(crate) fn keys_left(&mut self) -> i64 {
        let keys = self.site.keys();
        self.command(&["EXISTS", &keys[0], &keys[1], &keys[2]])
    }

    /// Asserts that a demoted master refuses each of these requests because it takes no writes. The
    /// server never finds the new master, so it keeps its data.
    pub(crate) fn demoted(&mut self, client: usize, requests: &[Request]) -> Result<(), Broken> {
        let () = self.command(&["REPLICAOF", "127.0.0.1", "1"]);
        let replies: Vec<_> =
            requests.iter().map(|request| (request, self.raw(client, request))).collect();
        let () = self.command(&["REPLICAOF", "NO", "ONE"]);
        for (request, reply) in replies {
            // Before Redis 7.0, the error code is inside the text of a script's error.
            let is_read_only = |error: &RedisError| {
                error.code() == Some("READONLY") || error.to_string().contains("READONLY")
            };
            if !reply.as_ref().is_err_and(is_read_only) {
                return Err(format!("a replica answers {request:?}: {reply:?}"));
            }
        }
        Ok(())
    }

    /// Returns the number of commands that the server runs during `work`, including those inside
    /// scripts.
    pub(crate) fn commands_of(&mut self, work: impl FnOnce(&mut Self)) -> u64 {
        let () = self.command(&["CONFIG", "RESETSTAT"]);
        work(self);
        let stats: String = self.command(&["INFO", "commandstats"]);
        stats
            .lines()
            .filter(|line| line.starts_with("cmdstat_") && !line.starts_with("cmdstat_config"))
            .map(|line| {
                let calls = line.split_once("calls=").unwrap().1;
                calls.split(',').next().unwrap().parse::<u64>().unwrap()
            })
            .sum()
    }
}

/// A client's subscriber.
pub(crate) struct Listener(Connection, Site);

impl Listener {
    pub(crate) fn new(server: &Server, site: Site, client: usize) -> Self {
        let mut connection = server.connection();
        let channel = own_channel(&uuid(true, client));
        redis::cmd("SUBSCRIBE").arg(channel).exec(&mut connection).unwrap();
        Self(connection, site)
    }

    /// Returns the next message to a waiter.
    pub(crate) fn hears(&mut self) -> Message {
        loop {
            let message = redis::Msg::from_value(&self.0.recv_response().unwrap());
            let text = message.and_then(|message| message.get_payload::<String>().ok());
            if let Some(text) = text.filter(|text| !text.starts_with("want ")) {
                return Message::parse(self.1.kind, &text).unwrap();
            }
        }
    }
}
