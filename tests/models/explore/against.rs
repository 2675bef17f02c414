//! Compares the model of the server with the real scripts. The model and the scripts get the same
//! random requests at the same times, and must return the same replies, keys and messages.

use std::collections::BTreeMap;

use redis::Value;
use redlatch_testkit::Server as Redis;

use super::server::{Bug, Chain, Client, JAVA, Kind, Message, Mode, Owner, Reply, Request, Server};
use crate::lock::PlainLock;
use crate::read_write::ReadWriteLock;
use crate::scripts::lock::Again;
use crate::simulated::kind::Kind as Scripted;
use crate::simulated::random::Random;
use crate::simulated::scripts::{Call, Script, Scripts, call};
use crate::simulated::site::Site;
use crate::simulated::state::State;
use crate::simulated::store::{Store, uuid};
use crate::simulated::wire::{self, own_channel};

/// The server's clock at the beginning, in ms.
const START: i64 = 1_763_692_800_000;
const KEPT: i64 = 60_000;
/// The number of steps after which both servers begin again without keys.
const ROUND: u64 = 300;
const CLIENTS: usize = 4;

/// How many requests of each kind were made.
pub(crate) type Counts = BTreeMap<&'static str, u64>;

struct Pair<'a> {
    store: &'a mut Store,
    site: Site,
    model: Server,
    random: Random,
    counts: Counts,
    /// The present numbers of subscribers of the two channels at the real server.
    heard: Option<(u32, i64)>,
}

/// Compares until `least` requests of each kind were made. The error is the first difference.
pub(crate) fn compare(
    redis: &Redis,
    kind: Kind,
    bug: Option<Bug>,
    seed: u64,
    least: u64,
) -> Result<Counts, String> {
    let scripted: &'static dyn Scripted =
        if kind == Kind::ReadWrite { &ReadWriteLock } else { &PlainLock };
    let site = Site::new(scripted, 0, "orders");
    let site = if kind == Kind::Fenced { site.fenced() } else { site };
    let mut store = Store::new(redis, &Scripts::of(scripted.texts()));
    let new = || Server::new(kind, bug, START, KEPT, 0);
    let counts = Counts::new();
    let mut pair = Pair {
        store: &mut store,
        site,
        model: new(),
        random: Random::new(seed),
        counts,
        heard: None,
    };
    let kinds = if kind == Kind::ReadWrite { 5 } else { 7 };
    for step in 0.. {
        if pair.counts.len() == kinds && pair.counts.values().all(|count| *count >= least) {
            break;
        }
        if step % ROUND == 0 {
            pair.store.clear();
            (pair.model, pair.heard) = (new(), None);
        }
        pair.step().map_err(|difference| format!("seed {seed}, step {step}: {difference}"))?;
    }
    Ok(pair.counts)
}

impl Pair<'_> {
    fn step(&mut self) -> Result<(), String> {
        self.prepare();
        let choices = if self.model.kind == Kind::ReadWrite { 5 } else { 7 };
        let owner = self.owner();
        let name = self.name(owner);
        let client = uuid(true, usize::from(owner.client.0));
        let lease = self.random.one_of(&[(1, 5), (500, 3_000), (2_000, 2_000), (30_000, 30_000)]);
        let chain = self.chain();
        let said = wire::Chain { since: chain.since, count: chain.count };
        let number = u64::from(owner.number);
        let (what, request, wired) = match self.random.between(0, choices - 1) {
            0 => {
                let again = self.again();
                let wired = wire::Request::Acquire { number, lease, again };
                ("acquire", Request::Acquire { again }, wired)
            }
            1 => ("try", Request::Try, wire::Request::Try { number, lease }),
            2 => {
                let wired = wire::Request::Release { number, chain: said };
                ("release", Request::Release { chain }, wired)
            }
            3 => {
                let wired = wire::Request::GiveUp { number, chain: said };
                ("give up", Request::GiveUp { chain }, wired)
            }
            4 => ("renew", Request::Renew, wire::Request::Renew { number, lease }),
            5 => return self.java_takes(lease),
            _ => return self.java_leaves(),
        };
        *self.counts.entry(what).or_default() += 1;
        let before = format!("{:?}", self.model);
        let reply = self.model.run(owner, request, lease);
        let call = call(&self.site, &client, &wired);
        let (real, state) = self.run(&call);
        let expected = value(reply);
        // The reply to a renewal also says whether the lease is too long, so drop this part.
        let real = match real {
            Value::Array(held) if what == "renew" && held == [Value::Int(2)] => {
                Value::Array(vec![Value::Int(1)])
            }
            real => wire::as_list(real),
        };
        if real != expected {
            return Err(format!(
                "{request:?} by {name} for {lease} answers {real:?}, and in the model {expected:?}; \
                 before {before}"
            ));
        }
        self.same(&state)
            .map_err(|it| format!("{request:?} by {name} for {lease}: {it}; before {before}"))
    }

    /// Advances the time, and makes clients subscribe or unsubscribe.
    fn prepare(&mut self) {
        let past = if self.random.percent(2) { -1_500 } else { 0 };
        let passed = self.random.one_of(&[
            (0, 0),
            (0, 0),
            (0, 12),
            (0, 12),
            (300, 1_200),
            (1_999, 2_001),
            (past, past),
        ]);
        self.model.now += if self.random.percent(1) { 70_000 } else { passed };
        if self.model.listens == 0 || self.random.percent(20) {
            let client = self.random.between(1, CLIENTS as i64) as usize;
            self.model.listens ^= 1 << client;
        }
        if self.model.kind != Kind::ReadWrite && self.random.percent(10) {
            self.model.others = self.random.between(0, 2);
        }
        let heard = Some((self.model.listens, self.model.others));
        if std::mem::replace(&mut self.heard, heard) == heard {
            return;
        }
        for client in 1..=CLIENTS {
            let count = usize::from(self.model.hears(Client(client as u16)));
            self.store.set_subscribers(&own_channel(&uuid(true, client)), count);
        }
        self.store.set_subscribers(&self.site.public, self.model.others as usize);
    }

    /// Returns an owner. Usually the owner holds the lock or has an entry.
    fn owner(&mut self) -> Owner {
        let known: Vec<_> = self.model.holders.iter().chain(&self.model.queue).copied().collect();
        let known: Vec<_> = known.into_iter().filter(|owner| *owner != JAVA).collect();
        if !known.is_empty() && self.random.percent(60) {
            return known[self.random.between(0, known.len() as i64 - 1) as usize];
        }
        let number = self.random.between(1, 4) as u8;
        let client = Client(self.random.between(1, CLIENTS as i64) as u16);
        Owner {
            client,
            number,
            writes: self.model.kind != Kind::ReadWrite || number.is_multiple_of(2),
        }
    }

    fn name(&self, owner: Owner) -> String {
        if owner == JAVA {
            return format!("{}:7", uuid(false, 1));
        }
        let uuid = uuid(true, usize::from(owner.client.0));
        self.site.kind.owner(&uuid, u64::from(owner.number))
    }

    fn chain(&mut self) -> Chain {
        let (since, count) = (self.random.between(0, 30), self.random.between(0, 4));
        let since = match self.random.between(0, 2) {
            0 => self.model.now - since,
            1 if since >= 10 => -since,
            _ => return Chain::default(),
        };
        Chain { since, count }
    }

    fn again(&mut self) -> Option<Again> {
        let ago = self.random.one_of(&[(0, 500), (1_500, 4_000)]);
        let late = self.random.between(0, 600);
        let sent = (self.model.now - late) as u64;
        let waiting_since = (self.model.now - ago) as u64;
        let sent = self.random.percent(60).then_some(sent);
        self.random.percent(60).then_some(Again { waiting_since, sent })
    }

    fn java_takes(&mut self, lease: i64) -> Result<(), String> {
        *self.counts.entry("Redisson's lock").or_default() += 1;
        if self.model.holders.contains(&JAVA) {
            return Ok(());
        }
        self.model.java_takes(lease);
        let keys = vec![self.site.lock.clone()];
        let args = vec![lease.to_string(), self.name(JAVA)];
        let (_, state) = self.run(&Call { script: Script::RedissonAcquire, keys, args });
        self.same(&state)
    }

    fn java_leaves(&mut self) -> Result<(), String> {
        *self.counts.entry("Redisson's unlock").or_default() += 1;
        self.model.java_leaves();
        let keys = vec![self.site.lock.clone(), self.site.public.clone()];
        let args = vec!["0".to_owned(), "30000".to_owned(), self.name(JAVA)];
        let (_, state) = self.run(&Call { script: Script::RedissonUnlock3, keys, args });
        self.same(&state)
    }

    fn run(&mut self, call: &Call) -> (Value, State) {
        self.store.run(self.model.now * 1_000, self.site.place(), call)
    }

    /// Compares the real server's keys and messages with the model's.
    fn same(&self, state: &State) -> Result<(), String> {
        let of_holders = |(_, text): &&(String, String)| !text.starts_with("want ");
        let messages: Vec<_> = state.messages.iter().filter(of_holders).cloned().collect();
        let real = (seen(state), &state.queue, &messages);
        let model = &self.model;
        let left = |owner: &Owner| {
            let timeout = model.timeouts.iter().find(|(reader, _)| reader == owner);
            timeout.map_or(-2, |(_, ends)| ends - model.now)
        };
        let mut holders: Vec<_> =
            model.holders.iter().map(|it| (self.name(*it), left(it))).collect();
        holders.sort_unstable();
        let mode = match model.mode {
            _ if model.kind != Kind::ReadWrite => "",
            None => "",
            Some(Mode::Read) => "read",
            Some(Mode::Write) => "write",
        };
        let ends = |is_there: bool, ends: i64| if is_there { ends - model.now } else { -2 };
        let seen = Seen {
            mode: mode.to_owned(),
            holders,
            left: ends(model.mode.is_some(), model.ends),
            queue_left: ends(!model.queue.is_empty(), model.queue_ends),
            window_left: ends(model.window.is_some(), model.window.unwrap_or(0)),
        };
        let queue: Vec<_> = model.queue.iter().map(|it| self.name(*it)).collect();
        let told: Vec<_> = model.told.iter().map(|it| self.text(*it)).collect();
        let expected = (seen, &queue, &told);
        if real != expected {
            return Err(format!("{real:?}, and in the model {expected:?}"));
        }
        Ok(())
    }

    /// Returns the channel and the text of a message.
    fn text(&self, message: Message) -> (String, String) {
        let to = |owner: Owner| own_channel(&uuid(true, usize::from(owner.client.0)));
        let (lock, named) = (&self.site.lock, |number| wire::named(u64::from(number)));
        match message {
            Message::Grant { owner, now, places, chain, token } => {
                let kind = match self.model.kind {
                    Kind::ReadWrite if owner.writes => "write",
                    Kind::ReadWrite => "read",
                    Kind::Lock | Kind::Fenced => "lock",
                };
                let Chain { since, count } = chain;
                let token = token.map(|token| format!(",{token}")).unwrap_or_default();
                let number = named(owner.number);
                let details = format!("{kind},{places},{since},{count}{token}");
                (to(owner), format!("grant {number} {now} 2000 {details} 0 {lock}"))
            }
            Message::Open { owner, left } => {
                (to(owner), format!("open {} {left} 0 {lock}", named(owner.number)))
            }
            Message::Public { by_writer } => {
                (self.site.public.clone(), i64::from(by_writer).to_string())
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: String,
    /// The holders, each with the remaining time of its timeout.
    holders: Vec<(String, i64)>,
    left: i64,
    queue_left: i64,
    window_left: i64,
}

fn seen(state: &State) -> Seen {
    let mut holders: Vec<_> =
        state.holders.iter().cloned().zip(state.timeouts.iter().copied()).collect();
    holders.sort_unstable();
    let State { mode, left, queue_left, window_left, .. } = state;
    let (mode, left, queue_left) = (mode.clone(), *left, *queue_left);
    Seen { mode, holders, left, queue_left, window_left: *window_left }
}

/// Converts a reply to the script's form.
fn value(reply: Reply) -> Value {
    let numbers = |numbers: &[i64]| Value::Array(numbers.iter().copied().map(Value::Int).collect());
    match reply {
        Reply::Granted { already, places, token } => {
            let places = if already { -1 - places } else { places };
            match token {
                Some(token) => numbers(&[places, token as i64]),
                None => Value::Int(places),
            }
        }
        Reply::Queued { now, left, place, whose, is_new } => {
            numbers(&[now, left, place, whose, i64::from(is_new)])
        }
        Reply::NotTaken | Reply::Released(None) => Value::Nil,
        Reply::Released(Some(reply)) => Value::Int(reply),
        Reply::Renewed(held) => numbers(&[i64::from(held)]),
    }
}
