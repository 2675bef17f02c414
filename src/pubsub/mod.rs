//! How a wake-up arrives: one subscriber thread, one connection, one entry a channel.
//!
//! The thread sleeps in a read of its connection. To make it look at its queue of new channels, a
//! message is published on the client's own channel, which works over TCP, TLS and unix sockets
//! alike. The same message, sent every few seconds, shows that the connection is alive. Scripts tell
//! waiters of this client there, too (`own.rs`).

mod entry;
mod own;
mod tracking;

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use redis::{PushKind, RedisError, Value};

use entry::Kind;
pub(crate) use entry::{Entry, Standing};
pub(crate) use own::{Addressee, Grant, News};
use own::{Addressees, LOOK, Said};
use tracking::{NO_TRACKING, Step, Steps, Told, Tracking};
pub(crate) use tracking::{Question, Tracked};

use crate::connection::{self, Closer, Command, Connection, Endpoint, Rights};
use crate::error::Error;
use crate::protocol::LockKeys;
use crate::sync::{Condvar, Mutex, Thread};

/// A subscription outlives its last listener by this long, so that a busy lock does not subscribe
/// and unsubscribe for every wait.
const GRACE: Duration = Duration::from_secs(10);
/// How often the control message goes out while there are subscriptions.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(3);
/// Without a message for this long the connection counts as dead.
const SILENCE: Duration = Duration::from_secs(10);
/// A message that was sent is heard after so long, or not at all.
const TELLS_WITHIN: Duration = Duration::from_millis(300);
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// The channels this process listens to.
pub(crate) struct PubSub {
    endpoint: Arc<Endpoint>,
    /// The client's own channel, listened to as long as there is a connection.
    own: Arc<Entry>,
    addressees: Addressees,
    state: Mutex<State>,
    /// Tells the thread of work while it has no connection to read from.
    work: Condvar,
    /// Counts the fences that were asked for.
    fences: AtomicU64,
    /// Whether the server refuses the control message, which has been said.
    muted: AtomicBool,
    /// Whether it is asked to track what is held; and whether it does, as far as is known.
    may_track: bool,
    tracks: AtomicBool,
    /// Ends the thread's connection, and with it its read.
    closer: Mutex<Option<Closer>>,
    /// Counts what the server has said.
    heard: AtomicU64,
    /// What was heard when somebody missed a message, and when that was.
    suspected: Mutex<Option<(u64, Instant)>>,
    shut_down: AtomicBool,
}

struct State {
    entries: HashMap<Arc<str>, Arc<Entry>>,
    /// Channels to ask the server for.
    wanted: Vec<Arc<Entry>>,
    /// What is held for a while now, to be tracked under its key.
    to_track: Vec<(Arc<str>, Weak<dyn Tracked>)>,
    /// Whether the thread sleeps in a read, where only a control message reaches it.
    reading: bool,
    /// Where the versions of new entries begin: past those of all that are gone, so that no
    /// channel ever has a version twice.
    first_version: u64,
}

impl State {
    fn drop_entries(&mut self, is_unwanted: impl Fn(&Entry) -> bool) -> Vec<Arc<Entry>> {
        let dropped = self.entries.extract_if(|_, entry| is_unwanted(entry));
        let dropped: Vec<_> = dropped.map(|(_, entry)| entry).collect();
        let versions = dropped.iter().map(|entry| entry.version() + 1);
        self.first_version = versions.fold(self.first_version, u64::max);
        dropped
    }

    /// Gives up the channels that nobody listens to any more. Returns those that the server has to
    /// be told of.
    fn sweep(&mut self, grace: Duration) -> Vec<Arc<Entry>> {
        // It knows nothing of one that it refused.
        self.drop_entries(|entry| entry.idle_since().is_some() && entry.is_refused());
        // Only a confirmed one: then the order of what the server confirms is that of what was
        // asked, and a confirmation always means the entry of now.
        self.drop_entries(|entry| {
            let grace = if entry.kind() == Kind::Single { Duration::ZERO } else { grace };
            entry.idle_since().is_some_and(|since| since.elapsed() >= grace) && entry.is_confirmed()
        })
    }
}

impl PubSub {
    /// `stray` hears of messages to owners of this client that do not wait. It is called on the
    /// subscriber's thread and must not block. `may_track`: the server is asked to tell when keys
    /// change under which something is held.
    pub(crate) fn new(
        endpoint: Arc<Endpoint>,
        client: &str,
        may_track: bool,
        stray: impl Fn(u64, &News<'_>) + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            entries: HashMap::new(),
            wanted: Vec::new(),
            to_track: Vec::new(),
            reading: false,
            first_version: 0,
        };
        let control = LockKeys::control_channel(client).into();
        Self {
            endpoint,
            own: Arc::new(Entry::new(control, Kind::Own, 0)),
            addressees: Addressees::new(Box::new(stray)),
            state: Mutex::new(state),
            work: Condvar::new(),
            fences: AtomicU64::new(0),
            muted: AtomicBool::new(false),
            may_track,
            tracks: AtomicBool::new(may_track),
            closer: Mutex::new(None),
            heard: AtomicU64::new(0),
            suspected: Mutex::new(None),
            shut_down: AtomicBool::new(false),
        }
    }

    /// Listens to `channel`. `true`: the thread must be told with a
    /// [`control_message`](Self::control_message).
    pub(crate) fn listen(&self, channel: &Arc<str>) -> (Subscription, bool) {
        self.listen_to(channel, Kind::Shared)
    }

    /// As [`listen`](Self::listen), to a channel that nobody else will listen to.
    pub(crate) fn listen_once(&self, channel: &Arc<str>) -> (Subscription, bool) {
        self.listen_to(channel, Kind::Single)
    }

    fn listen_to(&self, channel: &Arc<str>, kind: Kind) -> (Subscription, bool) {
        let mut state = self.state.lock();
        let first_version = state.first_version;
        let (entry, new) = match state.entries.entry(Arc::clone(channel)) {
            MapEntry::Occupied(entry) => (Arc::clone(entry.get()), false),
            MapEntry::Vacant(vacant) => {
                let entry = Arc::new(Entry::new(Arc::clone(channel), kind, first_version));
                (Arc::clone(vacant.insert(entry)), true)
            }
        };
        // Under the map's mutex, where the thread looks for idle entries: it cannot drop this one
        // between the look-up and here.
        entry.listen();
        // A channel that was refused is asked for again: rights may have been granted since.
        let again = entry.is_refused();
        if again {
            entry.ask_again();
        }
        if new || again {
            state.wanted.push(Arc::clone(&entry));
            self.work.notify_one();
        }
        let tell = (new || again) && state.reading;
        drop(state);
        (Subscription { entry }, tell)
    }

    /// Listens to the client's own channel, where scripts tell the waiters that are
    /// [expected](Self::expect). The version moves when messages may have been missed.
    pub(crate) fn listen_to_own(&self) -> Subscription {
        let state = self.state.lock();
        self.own.listen();
        // Whoever has a connection has asked for it, and there is none after a refusal.
        if self.own.is_refused() {
            self.own.ask_again();
        }
        self.work.notify_one();
        drop(state);
        Subscription { entry: Arc::clone(&self.own) }
    }

    /// Moves when messages on the client's own channel may have been missed.
    pub(crate) fn own_version(&self) -> u64 {
        self.own.version()
    }

    /// Whether it is worth while to [`track`](Self::track): the server may do so, as far as is known.
    pub(crate) fn tracks(&self) -> bool {
        self.tracks.load(Ordering::Relaxed)
    }

    /// From here on, while there is a connection, `who` is asked for whenever `key` changes. `true`: the
    /// thread must be told with a [`control_message`](Self::control_message).
    pub(crate) fn track(&self, key: &Arc<str>, who: Weak<dyn Tracked>) -> bool {
        if !self.tracks() {
            return false;
        }
        let mut state = self.state.lock();
        // Who put the first one there has told it of all.
        let tell = state.reading && state.to_track.is_empty();
        state.to_track.push((Arc::clone(key), who));
        self.work.notify_one();
        tell
    }

    /// Somebody found out by asking what a message should have told. That may be on its way. But if
    /// nothing at all is heard until the next one finds out, the connection is dead, and nobody is
    /// told so: it ends here, and the next one begins.
    pub(crate) fn suspect(&self) {
        let heard = self.heard.load(Ordering::Relaxed);
        let now = Instant::now();
        let mut suspected = self.suspected.lock();
        let dead = suspected.is_some_and(|(before, since)| {
            before == heard && now.saturating_duration_since(since) >= TELLS_WITHIN
        });
        if suspected.is_none_or(|(before, _)| before != heard) {
            *suspected = Some((heard, now));
        }
        if dead {
            *suspected = None;
            drop(suspected);
            if let Some(closer) = &*self.closer.lock() {
                closer.close();
            }
        }
    }

    /// From here on messages to this owner reach `who`, who [dismisses](Self::dismiss) it in the end.
    pub(crate) fn expect(&self, owner: u64, who: Weak<dyn Addressee>) {
        self.addressees.expect(owner, who);
    }

    /// From here on this owner does not wait, and has no place anywhere that anybody knows of.
    pub(crate) fn dismiss(&self, owner: u64) {
        self.addressees.dismiss(owner);
    }

    /// A subscription that is confirmed already, if there is one.
    pub(crate) fn listening(&self, channel: &Arc<str>) -> Option<Subscription> {
        let state = self.state.lock();
        let entry = state.entries.get(channel).filter(|entry| entry.is_confirmed())?;
        entry.listen();
        Some(Subscription { entry: Arc::clone(entry) })
    }

    /// A mark for a script to send on the client's own channel, so that the messages the server sent
    /// before it read something can be told from those it sent after it.
    pub(crate) fn fence(&self, channel: &Arc<str>) -> Fence<'_> {
        let number = self.fences.fetch_add(1, Ordering::Relaxed) + 1;
        Fence { number, control: self.own.channel(), message: own::fence(number, channel) }
    }

    /// Makes the thread look at its queue.
    pub(crate) fn control_message(&self) -> Command {
        Command::plain(&[b"PUBLISH", self.own.channel().as_bytes(), LOOK.as_bytes()])
    }

    /// Whether the right to publish is missing from now on. Returns whether it was before.
    pub(crate) fn is_muted(&self, now: bool) -> bool {
        self.muted.swap(now, Ordering::Relaxed)
    }

    /// Whether there is a connection whose life a heartbeat should show.
    pub(crate) fn wants_heartbeat(&self) -> bool {
        self.state.lock().reading
    }

    /// Ends the thread, unless it is opening a connection just now, and every wait.
    pub(crate) fn shut_down(&self) {
        // Before the look for a connection: one that is opened now finds it when it has left its
        // closer there.
        self.shut_down.store(true, Ordering::SeqCst);
        // No message: whether one gets through depends on the server, and on a connection of others.
        let closer = self.closer.lock().take();
        if let Some(closer) = closer {
            closer.close();
        }
        let state = self.state.lock();
        self.work.notify_one();
        let entries = self.all_entries(&state);
        drop(state);
        for entry in entries {
            entry.nudge();
        }
    }

    /// The subscriber thread's whole life.
    pub(crate) fn run(&self) {
        let mut retry = FIRST_RETRY;
        let mut tracking = Tracking::default();
        while self.wait_for_work(&mut tracking) {
            // A panic is an outage: those who wait must not be left with a channel that says nothing.
            let served = catch_unwind(AssertUnwindSafe(|| self.serve(&mut retry, &mut tracking)));
            if matches!(served, Ok(Ok(()))) {
                return;
            }
            tracking.end();
            let mut state = self.state.lock();
            state.reading = false;
            for entry in self.all_entries(&state) {
                entry.disconnected();
            }
            // Whoever left meanwhile need not be subscribed again.
            state.drop_entries(|entry| entry.idle_since().is_some());
            if !self.is_shut_down() {
                let _woken = self.work.wait_for(state, retry);
                retry = (retry * 2).min(LAST_RETRY);
            }
        }
    }

    /// Sleeps until somebody wants a channel, or something is held that is to be tracked. `false`: shut
    /// down.
    fn wait_for_work(&self, tracking: &mut Tracking) -> bool {
        let tracked = tracking.is_needed();
        let mut state = self.state.lock();
        while state.entries.is_empty()
            && !self.own.is_listened_to()
            && !(self.tracks() && (tracked || !state.to_track.is_empty()))
            && !self.is_shut_down()
        {
            state = self.work.wait(state);
        }
        !self.is_shut_down()
    }

    /// Connects, subscribes to every channel there is, and dispatches until something breaks
    /// (`Err`) or the client is shut down (`Ok`).
    fn serve(&self, retry: &mut Duration, tracking: &mut Tracking) -> Result<(), RedisError> {
        let mut connection = self.endpoint.open()?;
        connection.set_read_timeout(SILENCE);
        *self.closer.lock() = Some(connection.closer());
        if self.is_shut_down() {
            return Ok(());
        }
        let channels: Vec<Arc<Entry>> = {
            let mut state = self.state.lock();
            state.wanted.clear();
            // From here on who wants a new channel sends a control message. One sent before the
            // client's own channel is confirmed is lost, which is why the queue is looked at again
            // when the confirmation comes.
            state.reading = true;
            // Those that were refused, too: what became of them is to be seen.
            let entries = self.all_entries(&state);
            entries.iter().for_each(|entry| entry.ask_again());
            entries
        };
        // What was asked for and not answered yet, in order. The server does not say what it refuses.
        let mut asked = VecDeque::new();
        if self.may_track {
            let steps = tracking.begin();
            if steps.0.is_empty() {
                self.does_not_track();
            }
            asked.extend(take_steps(&mut connection, steps)?);
        }
        send_each(&mut connection, b"SUBSCRIBE", &channels)?;
        asked.extend(channels.into_iter().map(Asked::Subscribe));
        loop {
            let event = Event::of(connection.recv_response()?);
            self.heard.fetch_add(1, Ordering::Relaxed);
            if self.is_shut_down() {
                return Ok(());
            }
            match event {
                Event::Subscribed(channel) => {
                    *retry = FIRST_RETRY;
                    asked.pop_front();
                    if let Some(entry) = self.entry(&channel) {
                        if entry.kind() == Kind::Own {
                            asked.extend(self.look(&mut connection, tracking)?);
                        }
                        entry.stand(Standing::Confirmed);
                    }
                }
                Event::Unsubscribed => drop(asked.pop_front()),
                Event::Message(channel, message) if channel == self.own.channel().as_bytes() => {
                    match Said::parse(&message) {
                        Some(Said::Look) => asked.extend(self.look(&mut connection, tracking)?),
                        Some(Said::Fence { number, channel }) => {
                            if let Some(entry) = self.entry(channel.as_bytes()) {
                                entry.pass(number);
                            }
                        }
                        Some(Said::To { owner, news }) => self.addressees.tell(owner, &news),
                        None => {}
                    }
                }
                Event::Message(channel, message) => {
                    if let Some(entry) = self.entry(&channel) {
                        entry.moved(&message);
                    }
                }
                Event::Changed(keys) => {
                    let steps = tracking.changed(keys.as_deref());
                    asked.extend(take_steps(&mut connection, steps)?);
                }
                Event::Reply(reply) => {
                    if let Some(step) = pop_step(&mut asked) {
                        asked.extend(self.step_done(
                            &mut connection,
                            tracking,
                            step,
                            Ok(&reply),
                        )?);
                    }
                }
                Event::Refused(error) => match asked.pop_front() {
                    // Without the own channel nothing would ever make the thread look again, so
                    // nobody can wait.
                    Some(Asked::Subscribe(entry)) if entry.kind() == Kind::Own => {
                        self.refuse_all(&error);
                        return Err(error);
                    }
                    Some(Asked::Subscribe(entry)) => {
                        entry.stand(Standing::Refused(refused(&error)));
                    }
                    // What still comes there finds nobody.
                    Some(Asked::Unsubscribe) => {}
                    Some(Asked::Step(step)) => {
                        let error = Err(&error);
                        asked.extend(self.step_done(&mut connection, tracking, step, error)?);
                    }
                    None => return Err(error),
                },
                Event::Other => {}
            }
        }
    }

    /// Asks for new channels, gives up those that nobody has listened to for a while, and asks for what
    /// is to be tracked. Returns what it asked for.
    fn look(
        &self,
        connection: &mut Connection,
        tracking: &mut Tracking,
    ) -> Result<Vec<Asked>, RedisError> {
        let (wanted, unwanted, to_track) = {
            let mut state = self.state.lock();
            let wanted: Vec<_> = state.wanted.drain(..).collect();
            (wanted, state.sweep(GRACE), std::mem::take(&mut state.to_track))
        };
        send_each(connection, b"SUBSCRIBE", &wanted)?;
        send_each(connection, b"UNSUBSCRIBE", &unwanted)?;
        let tracked = take_steps(connection, tracking.look(to_track))?;
        let subscribed = wanted.into_iter().map(Asked::Subscribe);
        let unsubscribed = unwanted.into_iter().map(|_| Asked::Unsubscribe);
        Ok(subscribed.chain(unsubscribed).chain(tracked).collect())
    }

    /// A step towards tracking was answered. Returns what was asked for then.
    fn step_done(
        &self,
        connection: &mut Connection,
        tracking: &mut Tracking,
        step: Step,
        reply: Result<&Value, &RedisError>,
    ) -> Result<Vec<Asked>, RedisError> {
        let Some((told, steps)) = tracking.answered(step, reply) else { return Ok(Vec::new()) };
        match told {
            Told::Tracks => self.tracks.store(true, Ordering::Relaxed),
            Told::Refuses => self.does_not_track(),
        }
        Ok(take_steps(connection, steps)?.collect())
    }

    fn does_not_track(&self) {
        self.tracks.store(false, Ordering::Relaxed);
        self.endpoint.health().does_without(NO_TRACKING);
    }

    fn entry(&self, channel: &[u8]) -> Option<Arc<Entry>> {
        let channel = std::str::from_utf8(channel).ok()?;
        if channel == &**self.own.channel() {
            return Some(Arc::clone(&self.own));
        }
        self.state.lock().entries.get(channel).cloned()
    }

    /// The own one first.
    fn all_entries(&self, state: &State) -> Vec<Arc<Entry>> {
        std::iter::once(&self.own).chain(state.entries.values()).cloned().collect()
    }

    fn refuse_all(&self, error: &RedisError) {
        if self.may_track {
            // And nothing would tell the thread of what is held.
            self.does_not_track();
        }
        let state = self.state.lock();
        let entries = self.all_entries(&state);
        drop(state);
        for entry in entries {
            entry.stand(Standing::Refused(refused(error)));
        }
    }

    fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::SeqCst)
    }
}

fn refused(error: &RedisError) -> Error {
    connection::refused(error.clone(), Rights::Subscriptions)
}

/// What is not answered yet.
enum Asked {
    Subscribe(Arc<Entry>),
    Unsubscribe,
    Step(Step),
}

/// The step that is answered next, if it is one.
fn pop_step(asked: &mut VecDeque<Asked>) -> Option<Step> {
    match asked.pop_front() {
        Some(Asked::Step(step)) => return Some(step),
        Some(other) => asked.push_front(other),
        None => {}
    }
    None
}

/// Writes the commands of some steps.
fn take_steps(
    connection: &mut Connection,
    (commands, steps): Steps,
) -> Result<impl Iterator<Item = Asked> + use<>, RedisError> {
    if !commands.is_empty() {
        let bytes: Vec<u8> = commands.iter().flat_map(Command::bytes).copied().collect();
        connection.send_packed_command(&bytes, Instant::now())?;
    }
    Ok(steps.into_iter().map(Asked::Step))
}

/// One command a channel: the server refuses or takes each by itself.
fn send_each(
    connection: &mut Connection,
    command: &[u8],
    entries: &[Arc<Entry>],
) -> Result<(), RedisError> {
    let mut bytes = Vec::new();
    for entry in entries {
        let command = Command::plain(&[command, entry.channel().as_bytes()]);
        bytes.extend_from_slice(command.bytes());
    }
    if bytes.is_empty() { Ok(()) } else { connection.send_packed_command(&bytes, Instant::now()) }
}

/// What the server says on a subscriber's connection, in RESP2 or RESP3.
enum Event {
    Subscribed(Vec<u8>),
    Unsubscribed,
    /// A channel's message.
    Message(Vec<u8>, Vec<u8>),
    /// These keys have changed; `None`: any may have.
    Changed(Option<Vec<Arc<str>>>),
    Refused(RedisError),
    /// The answer to a question.
    Reply(Value),
    /// Nothing that anybody waits for.
    Other,
}

impl Event {
    fn of(value: Value) -> Self {
        match value {
            Value::Array(parts) if matches!(parts[..], [Value::BulkString(_), ..]) => {
                let mut parts = parts.into_iter();
                match (parts.next(), parts.next()) {
                    (Some(Value::BulkString(kind)), Some(Value::BulkString(channel))) => {
                        match kind.as_slice() {
                            b"subscribe" => Self::Subscribed(channel),
                            b"unsubscribe" => Self::Unsubscribed,
                            b"message" => Self::message(channel, parts.next()),
                            _ => Self::Other,
                        }
                    }
                    _ => Self::Other,
                }
            }
            Value::Push { kind, data } => {
                let mut data = data.into_iter();
                match (kind, data.next()) {
                    (PushKind::Subscribe, Some(Value::BulkString(channel))) => {
                        Self::Subscribed(channel)
                    }
                    (PushKind::Unsubscribe, _) => Self::Unsubscribed,
                    (PushKind::Message, Some(Value::BulkString(channel))) => {
                        Self::message(channel, data.next())
                    }
                    (PushKind::Invalidate, keys) => Self::changed(keys),
                    _ => Self::Other,
                }
            }
            Value::ServerError(error) => Self::Refused(error.into()),
            reply => Self::Reply(reply),
        }
    }

    fn changed(keys: Option<Value>) -> Self {
        let Some(Value::Array(keys)) = keys else { return Self::Changed(None) };
        let name = |key| match key {
            Value::BulkString(key) => String::from_utf8(key).ok().map(Arc::from),
            _ => None,
        };
        Self::Changed(Some(keys.into_iter().filter_map(name).collect()))
    }

    fn message(channel: Vec<u8>, message: Option<Value>) -> Self {
        match message {
            Some(Value::BulkString(message)) => Self::Message(channel, message),
            _ => Self::Message(channel, Vec::new()),
        }
    }
}

/// A channel listened to, until this is dropped.
#[derive(Debug)]
pub(crate) struct Subscription {
    entry: Arc<Entry>,
}

impl Subscription {
    pub(crate) fn version(&self) -> u64 {
        self.entry.version()
    }

    /// Whether the server has sent the message `0` since it passed the fence of this number.
    pub(crate) fn is_zero_since(&self, fence: u64) -> bool {
        self.entry.is_zero_since(fence)
    }

    pub(crate) fn standing(&self) -> Standing {
        self.entry.standing()
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        self.entry.is_confirmed()
    }

    /// Until the result is dropped, whatever happens to the channel wakes `thread`.
    pub(crate) fn wake<'a>(&'a self, thread: &'a Arc<Thread>) -> Waking<'a> {
        self.entry.wake(thread);
        Waking { subscription: self, thread }
    }
}

/// See [`PubSub::fence`].
#[derive(Debug)]
pub(crate) struct Fence<'a> {
    pub(crate) number: u64,
    pub(crate) control: &'a str,
    pub(crate) message: String,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.entry.leave();
    }
}

/// A thread that a channel wakes.
pub(crate) struct Waking<'a> {
    subscription: &'a Subscription,
    thread: &'a Arc<Thread>,
}

impl Drop for Waking<'_> {
    fn drop(&mut self) {
        self.subscription.entry.forget(self.thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_channel_that_nobody_listens_to_is_given_up() {
        const MINUTE: Duration = Duration::from_secs(60);
        let endpoint = Endpoint::new("redis://localhost", MINUTE, MINUTE).unwrap();
        let pubsub = PubSub::new(Arc::new(endpoint), "client", true, |_, _| {});
        let listened =
            ["confirmed", "refused", "pending"].map(|name| pubsub.listen(&name.into()).0);
        listened[0].entry.stand(Standing::Confirmed);
        let refusal = Error::new(ErrorKind::Redis, "no".to_owned());
        listened[1].entry.stand(Standing::Refused(refusal));
        let sweep = |grace| pubsub.state.lock().sweep(grace).len();
        let left = || pubsub.state.lock().entries.len();
        assert_eq!((sweep(Duration::ZERO), left()), (0, 3), "somebody listens");

        drop(listened);
        assert_eq!(
            (sweep(MINUTE), left()),
            (0, 2),
            "the refused one needs neither time nor a word"
        );
        assert_eq!((sweep(Duration::ZERO), left()), (1, 1), "a pending one waits for its answer");

        let single = pubsub.listen_once(&"single".into()).0;
        single.entry.stand(Standing::Confirmed);
        assert_eq!((sweep(MINUTE), left()), (0, 2), "somebody listens");
        drop(single);
        assert_eq!((sweep(MINUTE), left()), (1, 1), "nobody will again");
    }
}
