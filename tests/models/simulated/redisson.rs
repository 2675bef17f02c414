//! The actions of a Redisson client on a lock, as observed on live clients. The file also has the
//! actions of a redlatch client that downgrades from writing to reading.

use redis::Value;

use super::client::{LEASE, MS, Time};
use super::rules::Broken;
use super::scripts::{Call, Script, leaving, taking};
use super::simulation::{Event, Simulation, Who};
use super::store::uuid;
use super::wire::Chain;

/// The minimum and the maximum time from a message to the request that it causes.
const WAKES: (Time, Time) = (MS, 2_200);

#[derive(Debug)]
pub(crate) struct Java {
    uuid: String,
    site: usize,
    pub(crate) version: Version,
    serial: u64,
    state: State,
    pub(crate) writes: bool,
    /// How many times the client takes the lock in one turn.
    levels: u32,
    /// How many times the client has the lock now.
    held: u32,
    asked: u64,
    is_asking: bool,
    has_permit: bool,
    connection: Option<usize>,
    began: Time,
    claim: usize,
    /// The process of a redlatch client that continues to read.
    reading: Option<usize>,
    pub(crate) grants: u64,
    pub(crate) longest: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// Redisson 3.16.8.
    Three,
    /// Redisson 4.7.
    Four,
    /// A redlatch client, which tries to write and then continues to read.
    Ours,
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
    /// The client sends a request, unless it has sent one since this event was planned.
    Ask(Option<u64>),
    /// The server runs the client's request.
    Served(Time),
    Reply(Time, Value),
    Subscribed,
    Renewed(u64),
    Done,
    Unlocked,
    /// A redlatch client continues to read.
    Down,
    /// The client has stopped reading.
    DoneReading,
}

impl Java {
    pub(crate) fn new(number: usize, site: usize) -> Self {
        let version = [Version::Four, Version::Three, Version::Ours][number % 3];
        Self {
            // No other process of the history has this number.
            uuid: uuid(version == Version::Ours, 101 + number),
            site,
            version,
            serial: 0,
            state: State::Idle,
            writes: false,
            levels: 1,
            held: 0,
            asked: 0,
            is_asking: false,
            has_permit: false,
            connection: None,
            began: 0,
            claim: 0,
            reading: None,
            grants: 0,
            longest: 0,
        }
    }

    pub(crate) fn owner(&self) -> String {
        let writes = if self.writes { ":write" } else { "" };
        format!("{}:{}{writes}", self.uuid, self.serial)
    }

    /// Returns an unlock as Redisson 4.7 sends it: the server stores the reply for a repeated
    /// request.
    pub(crate) fn remembered(&self, mut call: Call) -> Call {
        let memory = format!("redisson_unlock_latch:{{{}}}:{}", call.keys[0], self.owner());
        call.keys.push(format!("{memory}:{}", self.held));
        call.args.extend(["publish".to_owned(), "16000".to_owned()]);
        call
    }

    /// Returns the owner with which a redlatch client reads while it writes.
    fn reader(&self) -> String {
        format!("{}:{}", self.uuid, 1_000_000 + self.serial)
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

    fn java_call(&mut self, java: usize, call: &Call) -> Result<Value, Broken> {
        self.execute(self.java[java].site, call)
    }

    fn java_served(&mut self, java: usize) -> Result<Value, Broken> {
        let own = &self.java[java];
        let site = &self.locks[own.site].site;
        let call = match own.version {
            Version::Ours => taking(Script::Try, site, LEASE, own.owner(), None),
            _ => site.kind.java_acquire(own, site),
        };
        self.java_call(java, &call)
    }

    fn java_unlocked(&mut self, java: usize) -> Result<(), Broken> {
        let own = &self.java[java];
        let site = &self.locks[own.site].site;
        let call = match own.version {
            Version::Ours => leaving(Script::Release, site, own.owner(), Chain::default()),
            _ => site.kind.java_unlock(own, site),
        };
        self.java_call(java, &call).map(drop)
    }

    fn java_renewed(&mut self, java: usize) -> Result<(), Broken> {
        let own = &self.java[java];
        let site = &self.locks[own.site].site;
        let Some(call) = site.kind.java_renew(own, site) else { return Ok(()) };
        self.java_call(java, &call).map(drop)
    }

    /// The client begins to read while it writes, and then stops writing.
    fn go_down(&mut self, java: usize) -> Result<bool, Broken> {
        let own = &self.java[java];
        let lock = own.site;
        let site = &self.locks[lock].site;
        let (writer, reader, now) = (own.owner(), own.reader(), self.now);
        let call = taking(Script::Try, site, LEASE, reader.clone(), Some(writer));
        let Value::Int(_) = self.java_call(java, &call)? else {
            return Ok(false);
        };
        self.java[java].reading = Some(self.claim(lock, &reader, now, now + LEASE * MS)?);
        self.summary.add("gone down", 1);
        Ok(true)
    }

    fn read_no_more(&mut self, java: usize) -> Result<(), Broken> {
        let own = &mut self.java[java];
        let (lock, reader) = (own.site, own.reader());
        if let Some(claim) = own.reading.take() {
            let claim = &mut self.locks[lock].claims[claim];
            claim.until = claim.until.min(self.now);
        }
        let site = &self.locks[lock].site;
        let call = leaving(Script::Release, site, reader, Chain::default());
        self.java_call(java, &call).map(drop)
    }

    pub(crate) fn java_event(&mut self, java: usize, event: JavaEvent) -> Result<(), Broken> {
        let lock = self.java[java].site;
        let public = self.locks[lock].site.public.clone();
        let is_over = self.is_over;
        let now = self.now;
        let own = &mut self.java[java];
        match (event, own.state) {
            (JavaEvent::Served(sent), _) => {
                let reply = self.java_served(java)?;
                self.java_soon(java, JavaEvent::Reply(sent, reply));
            }
            (JavaEvent::Unlocked, _) => self.java_unlocked(java)?,
            (JavaEvent::DoneReading, state) if state != State::Dead => {
                self.read_no_more(java)?;
                let pause = self.plan.think.sample(&mut self.random);
                self.at(now + pause, Event::Java(java, JavaEvent::Begin));
            }
            (JavaEvent::Begin, State::Idle) if !is_over => {
                (own.writes, own.levels) = match own.version {
                    Version::Ours => (true, 1),
                    _ => self.locks[lock].site.kind.java_wants(&mut self.random),
                };
                own.serial += 1;
                own.held = 0;
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
            // A redlatch client does not wait.
            (JavaEvent::Reply(_, Value::Nil), State::Waiting) if own.version == Version::Ours => {
                own.state = State::Idle;
                self.at(now + 3 * MS, Event::Java(java, JavaEvent::Begin));
            }
            (JavaEvent::Reply(sent, reply), State::Waiting)
                if reply == Value::Nil
                    || own.version == Version::Ours && matches!(reply, Value::Int(_)) =>
            {
                own.is_asking = false;
                own.held += 1;
                if own.held < own.levels {
                    return self.java_event(java, JavaEvent::Ask(None));
                }
                own.state = State::Holding;
                own.grants += 1;
                own.longest = own.longest.max(now - own.began);
                let (began, owner, serial) = (own.began, own.owner(), own.serial);
                let (renews, is_ours) = (!own.writes, own.version == Version::Ours);
                if let Some(connection) = own.connection.take() {
                    self.disconnect(connection);
                }
                self.java[java].claim = self.claim(lock, &owner, began, sent + LEASE * MS)?;
                let work = self.plan.java_hold.sample(&mut self.random);
                if renews {
                    self.at(now + work / 2, Event::Java(java, JavaEvent::Renewed(serial)));
                }
                let then = if is_ours { JavaEvent::Down } else { JavaEvent::Done };
                self.at(now + work, Event::Java(java, then));
            }
            // The server has no memory. The client's thread gets an error, and tries again later.
            // The client keeps the lock if it already has it.
            (JavaEvent::Reply(_, Value::ServerError(_)), State::Waiting) => {
                let held = own.held > 0;
                own.state = if held { State::Dead } else { State::Idle };
                if let Some(connection) = own.connection.take() {
                    self.disconnect(connection);
                }
                self.at(now + 5 * MS, Event::Java(java, JavaEvent::Begin));
            }
            (JavaEvent::Reply(_, left), State::Waiting) => {
                let left: i64 = redis::from_redis_value(left).map_err(|error| error.to_string())?;
                // Another client has taken the client's hold by force.
                own.held = 0;
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
                let connection = self.connect(Who::Java(java), vec![public]);
                self.java[java].connection = Some(connection);
                self.at(now + MS / 2, Event::Java(java, JavaEvent::Ask(None)));
            }
            (JavaEvent::Renewed(serial), State::Holding) if serial == own.serial => {
                self.java_renewed(java)?;
            }
            (JavaEvent::Down, State::Holding) => {
                let reads_on = self.go_down(java)?;
                self.at(now + MS, Event::Java(java, JavaEvent::Done));
                if reads_on {
                    let work = MS + self.plan.java_hold.sample(&mut self.random);
                    self.at(now + 2 * MS + work, Event::Java(java, JavaEvent::DoneReading));
                }
            }
            (JavaEvent::Done, State::Holding) => {
                own.state = State::Idle;
                let reads_on = own.reading.is_some();
                let claim = &mut self.locks[lock].claims[own.claim];
                claim.until = claim.until.min(now);
                let levels = own.levels;
                if levels == 1 {
                    self.java_soon(java, JavaEvent::Unlocked);
                } else {
                    // The acquisitions are released one after the other.
                    self.java_unlocked(java)?;
                    self.java[java].held -= 1;
                    self.java_soon(java, JavaEvent::Unlocked);
                }
                // The client wants the lock again only after its last release.
                if !reads_on {
                    let pause = self.plan.think.sample(&mut self.random);
                    self.at(now + pause + MS / 2, Event::Java(java, JavaEvent::Begin));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the longest wait of a Redisson client, including the present wait.
    pub(crate) fn longest_java(&self) -> Time {
        let wait = |own: &Java| match own.state {
            State::Waiting => own.longest.max(self.now - own.began),
            _ => own.longest,
        };
        self.java.iter().map(wait).max().unwrap_or(0)
    }
}
