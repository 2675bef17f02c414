//! The scripts of a lock and of a read-write lock.

use std::num::NonZero;
use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;
use redlatch_client::sync::clock;
use redlatch_client::{
    CachedScript, Command, Failure, Outcome, Pieces, ReplicaAcks, Route, decimal, numbers,
    reply_code,
};

use super::chain::{Chain, ChainStart};
use super::script_set::ScriptSet;
use super::{
    Replied, Rights, Trouble, accepted, answered, checking_rights, flag, granted, millis, query,
    unexpected,
};
use crate::scripts::{ClientId, LockKeys, Mode, Owner};

// Each script consists of these files of `lua/`, one after the other.
static ACQUIRE: LazyLock<CachedScript> = script!(takes; NUMBERS_OR_LIST;
    "lock/free.lua",
    "lock/queue_up.lua",
    LOCK_OWNER,
    "lock/acquire.lua"
);
/// Like `ACQUIRE`, but with the two scripts for the usual cases in reverse order.
static ACQUIRE_HELD: LazyLock<CachedScript> = script!(takes; NUMBERS_OR_LIST;
    "lock/queue_up.lua",
    "lock/free.lua",
    LOCK_OWNER,
    "lock/acquire.lua"
);
static TRY: LazyLock<CachedScript> =
    script!(takes; NUMBER_OR_LIST; "lock/free.lua", LOCK_OWNER, "lock/try.lua");
static RELEASE: LazyLock<CachedScript> = script!(NUMBER;
    "lock/hand_over.lua",
    LOCK,
    "lock/release.lua"
);
static GIVE_UP: LazyLock<CachedScript> = script!(NUMBER; LOCK, "lock/give_up.lua");
static KEEP: LazyLock<CachedScript> = script!(NUMBER; LOCK, "lock/cut.lua", "lock/keep.lua");
static FORCE_UNLOCK: LazyLock<CachedScript> = script!(NUMBER; LOCK_OWNER, "lock/force_unlock.lua");
/// `scripts::renewal::renew_command` uses this script.
pub(super) static RENEW: LazyLock<CachedScript> = script!(LIST; "lock/cut.lua", "lock/renew.lua");
static STATE: LazyLock<CachedScript> = script!(NUMBER; LOCK_OWNER, "lock/state.lua");
static OWNERS: LazyLock<CachedScript> = script!(LIST; "lock/owners.lua");

static SCRIPTS: ScriptSet = ScriptSet {
    acquire: &ACQUIRE,
    acquire_held: &ACQUIRE_HELD,
    try_acquire: &TRY,
    release: &RELEASE,
    give_up: &GIVE_UP,
    force_unlock: &FORCE_UNLOCK,
};

/// Returns the argument that tells scripts when a chain of grants began, in ms: the server's time
/// of the start, or minus the chain's age. Returns `None` if no chain is sent.
pub(super) fn chain_start_argument(chain: Chain, digits: &mut [u8; 20]) -> Option<&[u8]> {
    match chain.start_to_send(clock::now)? {
        ChainStart::At(at) => Some(decimal(at, digits)),
        ChainStart::Age(age) => Some(minus(age, digits)),
    }
}

/// Returns the scripts' argument for the chain's count: the count after the next grant.
pub(super) fn next_count(chain: Chain) -> u64 {
    u64::from(chain.count) + 1
}

/// Writes `-number` as text. The number has fewer than 20 digits.
fn minus(number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let sign = (digits.len() - decimal(number, digits).len()).saturating_sub(1);
    digits[sign] = b'-';
    &digits[sign..]
}

/// The additional arguments of an owner's second and later requests, which are server times in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Again {
    /// The time at which the owner began to wait.
    pub(crate) waiting_since: u64,
    /// The time at which the request is sent. `Some` only if the server has answered this process
    /// promptly for a while: otherwise the process may not treat other owners as silent.
    pub(crate) sent: Option<u64>,
}

/// Further arguments of a request for a lock.
#[derive(Clone, Copy, Debug)]
enum ExtraArguments {
    Nothing,
    /// The writer that holds the lock while this owner of the same thread reads.
    Writer(Owner),
    Again(Again),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Granted {
        /// Whether the owner already had the lock before this request. The message of the grant is
        /// then on its way, or was lost, or an earlier copy of the request took the lock.
        already: bool,
        /// The number of processes that wait behind the owner.
        places: u32,
        tokens: Option<Tokens>,
    },
    Queued(QueuedReply),
    /// The reply to [`LockScripts::try_acquire`]: the owner did not get the lock.
    NotTaken,
}

/// The range of fencing tokens of one hold. If the hold is passed from thread to thread, each
/// thread gets the next token. No two holds have a token in common, and a later hold has higher
/// tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tokens {
    last: NonZero<u64>,
}

impl Tokens {
    /// `TOKENS` of `lua/lock/holder.lua`.
    const PER_HOLD: u64 = 1_024;

    /// Returns the tokens of the hold whose last token is `last`, or `None` if `last` is too low.
    pub(crate) fn up_to(last: u64) -> Option<Self> {
        NonZero::new(last).filter(|last| last.get() >= Self::PER_HOLD).map(|last| Self { last })
    }

    /// Returns the token after the first `used` tokens.
    pub(crate) fn after(self, used: u16) -> Option<NonZero<u64>> {
        let left = (Self::PER_HOLD - 1).checked_sub(used.into())?;
        NonZero::new(self.last.get() - left)
    }
}

/// The reply to an owner that did not get the lock, and now has an entry in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueuedReply {
    /// The server's clock, in ms.
    pub(crate) now: u64,
    /// The time after which another request may succeed, even if no message arrives.
    pub(crate) left: Duration,
    /// The number of entries before the owner's entry in the queue.
    pub(crate) place: u32,
    /// Whether a Redisson client holds the lock. If so, the message of the release arrives on the
    /// public channel.
    pub(crate) by_redisson: bool,
    pub(crate) is_new: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LockScripts<'a> {
    pub(crate) route: &'a Route,
    pub(crate) keys: LockKeys<'a>,
    pub(crate) client: &'a ClientId,
    pub(crate) database: i64,
    /// The number of replicas that must have a grant before the thread may use it.
    pub(crate) acks: Option<ReplicaAcks>,
}

impl LockScripts<'_> {
    /// Takes the lock or adds an entry to the queue. `again` is `Some` if this is not the owner's
    /// first request. `probably_held` says whether another process probably has the lock.
    pub(crate) fn acquire(
        self,
        owner: &Owner,
        lease: Duration,
        again: Option<Again>,
        probably_held: bool,
    ) -> Result<Replied<Acquired>, Trouble> {
        let scripts = self.script_set();
        let script = if probably_held { scripts.acquire_held } else { scripts.acquire };
        self.send(
            script,
            owner,
            lease,
            again.map_or(ExtraArguments::Nothing, ExtraArguments::Again),
        )
    }

    /// Takes the lock if it is free. Ignores the queue, and adds no entry to it.
    pub(crate) fn try_acquire(
        self,
        owner: &Owner,
        lease: Duration,
    ) -> Result<Replied<Acquired>, Trouble> {
        self.send(self.script_set().try_acquire, owner, lease, ExtraArguments::Nothing)
    }

    /// Like [`try_acquire`](Self::try_acquire), for a reader whose thread may also hold the write
    /// lock.
    pub(crate) fn read_beside(
        self,
        owner: &Owner,
        lease: Duration,
        writer: &Owner,
    ) -> Result<Replied<Acquired>, Trouble> {
        self.send(self.script_set().try_acquire, owner, lease, ExtraArguments::Writer(*writer))
    }

    /// Raises the lease of a hold, and returns the number of processes that wait, or `None` if the
    /// owner has lost the hold.
    pub(crate) fn read_on(
        self,
        owner: &Owner,
        lease: Duration,
    ) -> Result<Replied<Option<u32>>, Trouble> {
        let Replied { reply, in_doubt, unacknowledged } =
            self.send(&super::read_write::READ_ON, owner, lease, ExtraArguments::Nothing)?;
        let reply = match reply {
            Acquired::Granted { places, .. } => Some(places),
            Acquired::Queued(_) | Acquired::NotTaken => None,
        };
        Ok(Replied { reply, in_doubt, unacknowledged })
    }

    fn script_set(self) -> ScriptSet {
        match self.keys.mode {
            Mode::Lock => SCRIPTS,
            Mode::Read | Mode::Write => super::read_write::SCRIPTS,
        }
    }

    fn send(
        self,
        script: &'static LazyLock<CachedScript>,
        owner: &Owner,
        lease: Duration,
        extra: ExtraArguments,
    ) -> Result<Replied<Acquired>, Trouble> {
        let command = self.request(script, owner, lease, extra);
        // If the connection breaks, send a copy of the request: the copy finds the owner's hold or
        // queue entry. `in_doubt` says whether the request was sent twice.
        let (outcome, in_doubt) = self.route.call_twice(&command, || command.clone());
        // An error reply becomes a `Trouble`, and any other reply goes to `acquired`.
        granted(outcome, in_doubt, self.rights(), acquired)
    }

    fn request(
        self,
        script: &'static LazyLock<CachedScript>,
        owner: &Owner,
        lease: Duration,
        extra: ExtraArguments,
    ) -> Command {
        let (mut digits, owner) = ([0; 20], owner.text_by(self.client));
        let arguments = [millis(lease, &mut digits), &owner].map(Pieces::from);
        let command = self.command(script, &arguments, extra).acknowledged(self.acks);
        checking_rights(command, self.rights())
    }

    /// Returns the command that releases the lock, and grants it to the next process if one waits.
    pub(crate) fn release_command(self, owner: &Owner, chain: Chain) -> Command {
        self.end_command(self.script_set().release, &owner.text_by(self.client), chain)
    }

    /// Returns the command that removes the owner from the queue, and releases its lock.
    pub(crate) fn give_up_command(self, owner: &[u8], chain: Chain) -> Command {
        self.end_command(self.script_set().give_up, owner, chain)
    }

    /// Returns the command that shortens the lease of a hold to `rest`. No thread has the hold now.
    pub(crate) fn keep_command(self, owner: &Owner, rest: Duration) -> Command {
        let (owner, mut digits) = (owner.text(), [0; 20]);
        let arguments = [&owner, millis(rest, &mut digits)].map(Pieces::from);
        self.command(&KEEP, &arguments, ExtraArguments::Nothing)
    }

    /// Ends the hold of any holder. Returns `false` if there was nothing to unlock.
    pub(crate) fn force_unlock(self) -> Result<bool, Trouble> {
        let mut arguments = vec![self.keys.public()];
        arguments.extend(match self.keys.mode {
            Mode::Lock => None,
            Mode::Read => Some(Pieces::from(&b"read"[..])),
            Mode::Write => Some(Pieces::from(&b"write"[..])),
        });
        let command =
            self.command(self.script_set().force_unlock, &arguments, ExtraArguments::Nothing);
        flag(accepted(send_force_unlock(self.route, self.keys.name, &command)?, self.rights())?)
    }

    pub(crate) fn rights(self) -> Rights {
        match self.keys.mode {
            Mode::Read | Mode::Write => Rights::ReadWriteLocks,
            Mode::Lock if self.keys.is_fenced => Rights::FencedLocks,
            Mode::Lock => Rights::Locks,
        }
    }

    fn end_command(
        self,
        script: &'static LazyLock<CachedScript>,
        owner: &[u8],
        chain: Chain,
    ) -> Command {
        let (mut since, mut count) = ([0; 20], [0; 20]);
        let (owner, channel) = (owner.into(), self.keys.public());
        match chain_start_argument(chain, &mut since) {
            Some(since) => {
                let count = decimal(next_count(chain), &mut count);
                self.command(
                    script,
                    &[owner, channel, since.into(), count.into()],
                    ExtraArguments::Nothing,
                )
            }
            // The number of the database comes after the two arguments of the chain, so send those
            // of a new chain if there is none.
            None if self.database != 0 => {
                let (since, count) = (b"0"[..].into(), b"1"[..].into());
                self.command(script, &[owner, channel, since, count], ExtraArguments::Nothing)
            }
            None => self.command(script, &[owner, channel], ExtraArguments::Nothing),
        }
    }

    /// `EVALSHA` with these keys and arguments. If the server answers NOSCRIPT,
    /// `connection/link.rs` sends `EVAL`.
    fn command(
        self,
        script: &'static LazyLock<CachedScript>,
        arguments: &[Pieces<'_>],
        extra: ExtraArguments,
    ) -> Command {
        let (keys, count) = self.keys.of_scripts();
        let keys = &keys[..count];
        // The number of the database is nearly always 0, and 0 is not sent.
        let (database, mut digits) = (self.database.unsigned_abs(), [[0; 20]; 3]);
        let [first, second, third] = &mut digits;
        if let (0, ExtraArguments::Nothing) = (database, extra) {
            return Command::script(script, keys, arguments);
        }
        let mut arguments = arguments.to_vec();
        arguments.push(decimal(database, first).into());
        match extra {
            ExtraArguments::Nothing => {}
            ExtraArguments::Writer(owner) => {
                let text = owner.text();
                arguments.push(Pieces::from(&*text));
                return Command::script(script, keys, &arguments);
            }
            ExtraArguments::Again(Again { waiting_since, sent }) => {
                arguments.push(decimal(waiting_since, second).into());
                arguments.extend(sent.map(|sent| Pieces::from(decimal(sent, third))));
            }
        }
        Command::script(script, keys, &arguments)
    }
}

pub(super) fn acquired(reply: Value) -> Result<Acquired, Trouble> {
    let granted = |reply: i64, tokens| {
        let already = reply < 0;
        let places = if already { -1 - reply } else { reply };
        Acquired::Granted { already, places: u32::try_from(places).unwrap_or(u32::MAX), tokens }
    };
    let parts = match &reply {
        Value::Nil => return Ok(Acquired::NotTaken),
        Value::Int(reply) => return Ok(granted(*reply, None)),
        Value::Array(parts) => parts.as_slice(),
        Value::BulkString(text) => {
            return queued_reply(text).map(Acquired::Queued).ok_or_else(|| unexpected(&reply));
        }
        _ => return Err(unexpected(&reply)),
    };
    let number = |number: i64| u64::try_from(number).unwrap_or(0);
    match parts {
        [Value::Int(reply), Value::Int(last)] if Tokens::up_to(number(*last)).is_some() => {
            Ok(granted(*reply, Tokens::up_to(number(*last))))
        }
        [
            Value::Int(now),
            Value::Int(left),
            Value::Int(place),
            Value::Int(holder_kind),
            Value::Int(is_new),
        ] => Ok(Acquired::Queued(QueuedReply {
            now: number(*now),
            left: Duration::from_millis(number(*left)),
            place: u32::try_from(*place).unwrap_or(u32::MAX),
            by_redisson: *holder_kind == 1,
            is_new: *is_new == 1,
        })),
        _ => Err(unexpected(&reply)),
    }
}

/// Reads the text with which `lua/lock/queue_up.lua` refuses an owner.
fn queued_reply(text: &[u8]) -> Option<QueuedReply> {
    let mut numbers = numbers(text, b' ');
    let mut next = || numbers.next().flatten();
    let now = next()?.checked_mul(1_000)?.checked_add(next()? / 1_000)?;
    let (left, place, fresh) = (Duration::from_millis(next()?), next()?, next()?);
    let place = u32::try_from(place).unwrap_or(u32::MAX);
    Some(QueuedReply { now, left, place, by_redisson: false, is_new: fresh == 1 })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// The next process has the lock, and a message to it was sent.
    HandedOn,
    Done,
    /// The lock is free, and the chain of redlatch's grants has ended: a window (in which only
    /// Redisson's clients take the lock) is open, or no Redisson client waits.
    ChainEnded,
    /// Like [`Done`](Self::Done), but the server refused the message on the public channel. So
    /// Redisson's waiters sleep until the end of the lease that they know.
    PublishRefused,
    NotHeld,
    /// The owner did not have the lock when the second copy of the request ran. Either the first
    /// copy released the lock and its reply was lost, or the hold was lost before. To distinguish
    /// these cases, the server would have to record each release.
    Unclear,
}

/// Sends a release of a lock of any kind and waits for the reply. If the connection breaks, sends
/// the release once more. If the second reply is "not held", the first copy has probably released
/// the lock. Or the server was restarted and has lost the hold.
pub(crate) fn release(
    route: &Route,
    command: &Command,
    rights: Rights,
    same_server: impl FnOnce() -> bool,
) -> Result<Released, Trouble> {
    let (outcome, in_doubt) = route.call_twice(command, || command.clone());
    released(outcome, in_doubt, rights, same_server)
}

/// Reads the outcome of a [`release`]. `in_doubt` says whether the request was sent twice.
pub(crate) fn released(
    outcome: Outcome,
    in_doubt: bool,
    rights: Rights,
    same_server: impl FnOnce() -> bool,
) -> Result<Released, Trouble> {
    match release_reply(outcome, rights) {
        Ok(Released::NotHeld) if in_doubt && same_server() => Ok(Released::Unclear),
        Err(trouble) if in_doubt => Err(Trouble::Unknown(trouble.into_error())),
        released => released,
    }
}

pub(crate) fn release_reply(outcome: Outcome, rights: Rights) -> Result<Released, Trouble> {
    match accepted(outcome, rights)? {
        Value::Nil => Ok(Released::NotHeld),
        Value::Int(1) => Ok(Released::HandedOn),
        Value::Int(2 | 3) => Ok(Released::ChainEnded),
        Value::Int(5) => Ok(Released::PublishRefused),
        Value::Int(_) => Ok(Released::Done),
        other => Err(unexpected(&other)),
    }
}

/// Returns the command that queries which owners of a client have these locks or wait for them.
pub(crate) fn owners_command(names: &[&str], client: &str) -> Command {
    let keys: Vec<_> = names.iter().map(|name| name.as_bytes()).collect();
    Command::script(&OWNERS, &keys, &[client.as_bytes()])
}

pub(crate) fn owners(outcome: Outcome) -> Result<Vec<Vec<String>>, Trouble> {
    let parts = |reply| match reply {
        Value::Array(parts) => Ok(parts),
        other => Err(unexpected(&other)),
    };
    let owner = |reply| match reply {
        Value::BulkString(owner) => Ok(String::from_utf8_lossy(&owner).into_owned()),
        other => Err(unexpected(&other)),
    };
    let owners = |reply| parts(reply)?.into_iter().map(owner).collect();
    parts(accepted(outcome, Rights::Locks)?)?.into_iter().map(owners).collect()
}

/// Sends a forced unlock of a lock of any kind. Never sends it twice: a second copy would release
/// the next holder's lock. Returns `false` if there was nothing to unlock.
pub(crate) fn force_unlock(route: &Route, key: &str, command: &Command) -> Result<bool, Trouble> {
    flag(accepted(send_force_unlock(route, key, command)?, Rights::Locks)?)
}

fn send_force_unlock(route: &Route, key: &str, command: &Command) -> Result<Outcome, Trouble> {
    // Test the connection with a query first, because the forced unlock is sent only once.
    is_locked(route, key)?;
    Ok(route.call_once(command))
}

/// Queries whether the lock is held in this mode. If the key holds data of another type, returns
/// the same error as an acquire.
pub(crate) fn is_held_to(route: &Route, key: &str, mode: Mode) -> Result<bool, Trouble> {
    let held = query(route, &state_command(key, mode), rights_to(mode), HeldState::read)?;
    Ok(held.is_some_and(|state| state.mode.is_none_or(|held| held == mode)))
}

/// The mode of a held lock, and its time to live.
struct HeldState {
    /// `Some` for a read-write lock.
    mode: Option<Mode>,
    left: Duration,
}

impl HeldState {
    /// Returns `None` if the lock is free.
    fn read(reply: Value) -> Result<Option<Self>, Trouble> {
        match reply {
            Value::Nil => Ok(None),
            Value::Int(left) => Ok(Some(Self { mode: None, left: time_left(left) })),
            Value::Array(parts) => match parts[..] {
                [Value::Int(writes @ 0..=1), Value::Int(left)] => {
                    let mode = if writes == 1 { Mode::Write } else { Mode::Read };
                    Ok(Some(Self { mode: Some(mode), left: time_left(left) }))
                }
                _ => Err(unexpected(&Value::Array(parts))),
            },
            other => Err(unexpected(&other)),
        }
    }
}

fn state_command(key: &str, mode: Mode) -> Command {
    let script = if mode == Mode::Lock { &STATE } else { &super::read_write::STATE };
    Command::script(script, &[key.as_bytes()], &[])
}

fn rights_to(mode: Mode) -> Rights {
    if mode == Mode::Lock { Rights::Locks } else { Rights::ReadWriteLocks }
}

fn is_locked(route: &Route, key: &str) -> Result<bool, Trouble> {
    query(route, &Command::plain(&[b"EXISTS", key.as_bytes()]), Rights::Locks, flag)
}

pub(crate) fn is_held_by(route: &Route, key: &str, owner: &Owner) -> Result<bool, Trouble> {
    query(route, &is_held_by_command(key, owner), Rights::Locks, flag)
}

/// Returns the command that queries whether an owner has the lock. The reply is 1 or 0.
pub(crate) fn is_held_by_command(key: &str, owner: &Owner) -> Command {
    Command::plain(&[b"HEXISTS", key.as_bytes(), &owner.text()])
}

/// Returns the remaining lease of the lock, or `None` if the lock is free or the key holds data of
/// another type.
pub(crate) fn remaining_lease(
    route: &Route,
    key: &str,
    mode: Mode,
) -> Result<Option<Duration>, Trouble> {
    let command = state_command(key, mode);
    let (outcome, in_doubt) = route.call_twice(&command, || command.clone());
    if let Err(Failure::Refused(cause)) = &outcome
        && reply_code(&cause.error) == "WRONGTYPE"
    {
        return Ok(None);
    }
    let held = answered(outcome, in_doubt, rights_to(mode)).and_then(HeldState::read);
    held.map(|held| held.map(|state| state.left)).map_err(Trouble::of_query)
}

/// Converts the reply of a PTTL to a time. Zero if the key has just expired.
fn time_left(left: i64) -> Duration {
    Duration::from_millis(u64::try_from(left).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::super::chain::MIN_CHAIN_AGE;
    use super::*;

    #[test]
    fn a_reply_as_a_text_has_the_servers_time_in_ms() {
        for (text, now, is_new) in [
            ("1783728468 23456 2000 14 1", 1_783_728_468_023, true),
            ("1783728468 7 2000 14 0", 1_783_728_468_000, false),
            ("1783728468 999999 2000 14 0", 1_783_728_468_999, false),
        ] {
            let refused = acquired(Value::BulkString(text.into()));
            let Ok(Acquired::Queued(refused)) = refused else { panic!("{refused:?}") };
            assert_eq!((refused.now, refused.left), (now, Duration::from_secs(2)), "{text:?}");
            assert_eq!((refused.place, refused.by_redisson, refused.is_new), (14, false, is_new));
        }
        let no_time = format!("{} 0 2000 14 1", u64::MAX);
        let wrong = ["", "OK", "1783728468 23456 2000 14", "1783728468 23456 -1 14 1", &no_time];
        for text in wrong {
            assert!(acquired(Value::BulkString(text.into())).is_err(), "{text:?}");
        }
    }

    /// A release sends a chain only if the chain is old enough for the server to check for
    /// Redisson's waiters.
    #[test]
    fn a_release_names_its_chain_once_the_chain_is_old_enough_to_count() {
        let said = |chain| chain_start_argument(chain, &mut [0; 20]).map(<[u8]>::to_vec);
        let script = include_str!("../../lua/hand_off.lua");
        assert!(
            script.contains(&format!("WINDOW, MIN_CHAIN_AGE = 4, {}\n", MIN_CHAIN_AGE / 1_000_000))
        );
        let hand_over = include_str!("../../lua/lock/hand_over.lua");
        let shortcuts = [
            (hand_over, "start_or_age <= -AGE or"),
            (hand_over, "math.abs(now - start_or_age) >= AGE then"),
            (
                include_str!("../../lua/read_write/release_uncontended.lua"),
                "start_or_age > -AGE and",
            ),
        ];
        let age = (MIN_CHAIN_AGE / 1_000_000).to_string();
        for (shortcut, condition) in shortcuts {
            assert!(shortcut.contains(&condition.replace("AGE", &age)));
        }
        assert_eq!(said(Chain::default()), None);
        assert_eq!(said(Chain::begun(clock::now())), None);
        assert_eq!(said(Chain::received(7, 1)), Some(b"7".to_vec()));
        let old = said(Chain::begun(clock::now() - MIN_CHAIN_AGE)).unwrap();
        assert!(old.starts_with(b"-10") || old.len() > 3, "{old:?}");
    }
}
