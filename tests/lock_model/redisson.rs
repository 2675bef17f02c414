//! What a Redisson client does with a plain lock: watched from live ones.

use redis::Value;

use crate::client::{LEASE, MS, Time};
use crate::rules::Broken;
use crate::simulation::{Event, Simulation, Who};
use crate::store::{Script, uuid};

/// From the message to the request it makes.
const WAKES: (Time, Time) = (MS, 2_200);

#[derive(Debug)]
pub(crate) struct Java {
    uuid: String,
    site: usize,
    /// 4.7, not 3.16.8.
    is_new: bool,
    serial: u64,
    state: State,
    asked: u64,
    is_asking: bool,
    has_permit: bool,
    connection: Option<usize>,
    began: Time,
    claim: usize,
    pub(crate) grants: u64,
    pub(crate) longest: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Waiting,
    Holding,
    Dead,
}

#[derive(Debug)]
pub(crate) enum JavaEvent {
    Begin,
    Message,
    /// Asks, unless it has asked since.
    Ask(Option<u64>),
    /// Its request reaches the server.
    Served(Time),
    Reply(Time, Value),
    Subscribed,
    Done,
    Unlocked,
}

impl Java {
    pub(crate) fn new(number: usize, site: usize) -> Self {
        Self {
            uuid: uuid(false, number + 1),
            site,
            is_new: number.is_multiple_of(2),
            serial: 0,
            state: State::Idle,
            asked: 0,
            is_asking: false,
            has_permit: false,
            connection: None,
            began: 0,
            claim: 0,
            grants: 0,
            longest: 0,
        }
    }

    fn owner(&self) -> String {
        format!("{}:{}", self.uuid, self.serial)
    }

    /// How long it has waited, at most.
    pub(crate) fn longest_by(&self, now: Time) -> Time {
        let waits = if self.state == State::Waiting { now - self.began } else { 0 };
        self.longest.max(waits)
    }
}

impl Simulation<'_> {
    fn java_soon(&mut self, java: usize, event: JavaEvent) {
        let at = self.now + self.latency();
        self.at(at, Event::Java(java, event));
    }

    pub(crate) fn kill_java(&mut self, java: usize) {
        self.java[java].state = State::Dead;
        if let Some(connection) = self.java[java].connection.take() {
            self.disconnect(connection);
        }
    }

    pub(crate) fn java_event(&mut self, java: usize, event: JavaEvent) -> Result<(), Broken> {
        let lock = self.java[java].site;
        let site = self.locks[lock].site.clone();
        let is_over = self.is_over;
        let now = self.now;
        let own = &mut self.java[java];
        match (event, own.state) {
            (JavaEvent::Served(sent), _) => {
                let args = [LEASE.to_string(), own.owner()];
                let (keys, script) = ([site.lock], Script::RedissonAcquire);
                let reply = self.execute(lock, Some(Who::Java(java)), script, (&keys, &args))?;
                self.java_soon(java, JavaEvent::Reply(sent, reply));
            }
            (JavaEvent::Unlocked, _) => {
                let mut keys = vec![site.lock, site.public];
                let mut args = vec!["0".to_owned(), LEASE.to_string(), own.owner()];
                let script = if own.is_new {
                    keys.push(format!("redisson_unlock_latch:{{{}}}:{}", keys[0], own.owner()));
                    args.extend(["publish".to_owned(), "16000".to_owned()]);
                    Script::RedissonUnlock4
                } else {
                    Script::RedissonUnlock3
                };
                self.execute(lock, Some(Who::Java(java)), script, (&keys, &args))?;
            }
            (JavaEvent::Begin, State::Idle) if !is_over => {
                own.serial += 1;
                own.state = State::Waiting;
                own.began = now;
                own.is_asking = false;
                own.has_permit = false;
                return self.java_event(java, JavaEvent::Ask(None));
            }
            (JavaEvent::Message, State::Waiting) => {
                let (least, most) = WAKES;
                let at = now + self.random.between(least, most);
                self.at(at, Event::Java(java, JavaEvent::Ask(None)));
            }
            (JavaEvent::Ask(asked), State::Waiting)
                if asked.is_none_or(|asked| asked == own.asked) =>
            {
                if own.is_asking {
                    own.has_permit = true;
                    return Ok(());
                }
                own.asked += 1;
                own.is_asking = true;
                own.has_permit = false;
                self.java_soon(java, JavaEvent::Served(now));
            }
            (JavaEvent::Reply(sent, Value::Nil), State::Waiting) => {
                own.is_asking = false;
                own.state = State::Holding;
                own.grants += 1;
                own.longest = own.longest.max(now - own.began);
                let began = own.began;
                if let Some(connection) = own.connection.take() {
                    self.disconnect(connection);
                }
                let owner = self.java[java].owner();
                self.java[java].claim = self.claim(lock, &owner, began, sent + LEASE * MS)?;
                let work = self.plan.java_hold.sample(&mut self.random);
                self.at(now + work, Event::Java(java, JavaEvent::Done));
            }
            // There is no memory. Its thread gets an error, and comes again.
            (JavaEvent::Reply(_, Value::ServerError(_)), State::Waiting) => {
                own.state = State::Idle;
                if let Some(connection) = own.connection.take() {
                    self.disconnect(connection);
                }
                self.at(now + 5 * MS, Event::Java(java, JavaEvent::Begin));
            }
            (JavaEvent::Reply(_, left), State::Waiting) => {
                let left: i64 = redis::from_redis_value(left).map_err(|error| error.to_string())?;
                own.is_asking = false;
                if own.connection.is_none() {
                    self.java_soon(java, JavaEvent::Subscribed);
                } else if own.has_permit {
                    return self.java_event(java, JavaEvent::Ask(None));
                } else {
                    let ask = JavaEvent::Ask(Some(own.asked));
                    self.at(now + left.max(0) * MS + 2 * MS, Event::Java(java, ask));
                }
            }
            (JavaEvent::Subscribed, State::Waiting) if own.connection.is_none() => {
                let connection = self.connect(Who::Java(java), vec![site.public]);
                self.java[java].connection = Some(connection);
                self.at(now + MS / 2, Event::Java(java, JavaEvent::Ask(None)));
            }
            (JavaEvent::Done, State::Holding) => {
                own.state = State::Idle;
                let claim = &mut self.locks[lock].claims[own.claim];
                claim.until = claim.until.min(now);
                self.java_soon(java, JavaEvent::Unlocked);
                let pause = self.plan.think.sample(&mut self.random);
                // The next owner only after the last one's unlock.
                self.at(now + pause + MS / 2, Event::Java(java, JavaEvent::Begin));
            }
            _ => {}
        }
        Ok(())
    }
}
