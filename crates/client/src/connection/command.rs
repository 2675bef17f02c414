//! Commands, encoded as bytes.

use std::borrow::Cow;
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use redis::Value;

use super::{Credentials, ReplicaAcks};
use super::{decimal, write_decimal};

/// The command with which clients publish on channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channels {
    /// `PUBLISH`. A client has one own channel.
    Server,
    /// `PUBLISH` in a cluster, where it reaches all servers. A client has one own channel for each
    /// name, so that it listens at the server of the name's slot.
    Cluster,
    /// `SPUBLISH` in a cluster, which reaches only the server of the slot.
    Sharded,
}

/// A Lua script. If the server knows the script, a call contains only its hash.
#[derive(Debug)]
pub struct CachedScript {
    server: Text,
    /// The texts for clusters. Each text is made when it is first needed.
    cluster: OnceLock<Text>,
    sharded: OnceLock<Text>,
    replies: Replies,
    /// See [`takes`](Self::takes).
    takes: bool,
}

/// The kinds of reply that a script can give, in addition to an error. Only the kind is checked: if
/// a key holds other data, a reply may have any number, but never a list in place of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replies(u8);

impl Replies {
    const A_NUMBER: u8 = 1;
    const NOTHING: u8 = 2;
    const A_TEXT: u8 = 4;
    const A_LIST: u8 = 8;
    /// A text of numbers and spaces.
    const SOME_NUMBERS: u8 = 16;

    /// An integer, or nil.
    pub const NUMBER: Self = Self(Self::A_NUMBER | Self::NOTHING);
    /// An array.
    pub const LIST: Self = Self(Self::A_LIST);
    /// An integer, nil or an array.
    pub const NUMBER_OR_LIST: Self = Self(Self::A_NUMBER | Self::NOTHING | Self::A_LIST);
    /// An integer, nil, an array, or a text of numbers and spaces between them.
    pub const NUMBERS_OR_LIST: Self = Self(Self::NUMBER_OR_LIST.0 | Self::SOME_NUMBERS);
    /// Any kind of reply, as to a plain command.
    const ALL: Self = Self(u8::MAX);
    /// All kinds of replies that a script can give in RESP2.
    pub(crate) const ANY: Self = Self(Self::NUMBERS_OR_LIST.0 | Self::A_TEXT);

    fn include(self, reply: &Value) -> bool {
        let kind = match reply {
            // Any command may fail with an error.
            Value::ServerError(_) => return true,
            Value::Int(_) => Self::A_NUMBER,
            Value::Nil => Self::NOTHING,
            Value::BulkString(text) if is_numbers(text) => Self::SOME_NUMBERS | Self::A_TEXT,
            Value::BulkString(_) | Value::SimpleString(_) | Value::Okay => Self::A_TEXT,
            Value::Array(_) => Self::A_LIST,
            _ => return self == Self::ALL,
        };
        self.0 & kind != 0
    }
}

/// Whether a text has at least two numbers, and only digits and spaces.
fn is_numbers(text: &[u8]) -> bool {
    // Without an early exit, the compiler checks several bytes at once.
    let is_fit = |byte: &u8| byte.is_ascii_digit() | (*byte == b' ');
    text.contains(&b' ') && text.iter().fold(true, |all, it| all & is_fit(it))
}

/// A check that the user has the rights that a request needs. The check runs inside the script of a
/// connection's first such request, before the request changes anything. The script's reply is then
/// `{all, reply}`: `all` says whether the user has the rights for all names. For a user with rights
/// for only some names, the check is repeated once for each name.
#[derive(Debug)]
pub struct RightsQuery {
    /// The number of the query, which is below 64. No two queries have the same number.
    number: u8,
    code: String,
}

impl RightsQuery {
    /// Makes a query from this Lua code. In the code, `random` is a random name, and `script` is
    /// the script as a function. The code returns a refusal, the script's error, or `{all, reply}`.
    pub fn new(number: u8, code: String) -> Self {
        Self { number, code }
    }

    pub(crate) fn bit(&self) -> u64 {
        1 << (self.number % 64)
    }
}

#[derive(Debug)]
struct Text {
    code: Cow<'static, str>,
    /// `EVALSHA` and the script's hash, as parts. These parts have the same length for all scripts.
    by_hash: Vec<u8>,
}

/// A text in the scripts of `lua/`, and its replacement for a cluster. In a cluster a channel
/// contains the script's first key, so that all channels of the script are in the key's slot. If
/// the channel were an argument of the script instead, each call would have more bytes, also at a
/// single server.
const OWN: [&str; 2] = [
    "'redisson_lock__channel:{redlatch:'",
    "('redisson_lock__channel:' .. (string.find(KEYS[1], '{', 1, true) and KEYS[1] \
     or '{' .. KEYS[1] .. '}') .. ':{redlatch:')",
];
const PUBLISH: [&str; 2] = ["'publish'", "'spublish'"];
const LISTENERS: [&str; 2] = ["'numsub'", "'shardnumsub'"];

impl CachedScript {
    /// Makes a script with this text, whose replies may be of any kind.
    pub fn new(code: &'static str) -> Self {
        let (cluster, sharded) = (OnceLock::new(), OnceLock::new());
        Self {
            server: Text::new(code.into()),
            cluster,
            sharded,
            replies: Replies::ANY,
            takes: false,
        }
    }

    /// Restricts the script's replies to these kinds. A reply of another kind is an error.
    pub fn answers(self, replies: Replies) -> Self {
        Self { replies, ..self }
    }

    /// Marks a script that takes something for its caller. If the caller no longer waits, the
    /// script need not run.
    pub fn takes(self) -> Self {
        Self { takes: true, ..self }
    }

    /// Returns the hash of the script's text for a single server.
    pub fn hash(&self) -> String {
        redis::Script::new(&self.server.code).get_hash().to_owned()
    }

    fn text(&self, channels: Channels) -> &Text {
        let other = || Text::new(for_channels(&self.server.code, channels).into_owned().into());
        match channels {
            Channels::Server => &self.server,
            Channels::Cluster => self.cluster.get_or_init(other),
            Channels::Sharded => self.sharded.get_or_init(other),
        }
    }
}

/// Returns a script's text for a server of this kind.
fn for_channels(code: &str, channels: Channels) -> Cow<'_, str> {
    match channels {
        Channels::Server => code.into(),
        Channels::Cluster => code.replace(OWN[0], OWN[1]).into(),
        Channels::Sharded => {
            let code = code.replace(OWN[0], OWN[1]).replace(PUBLISH[0], PUBLISH[1]);
            code.replace(LISTENERS[0], LISTENERS[1]).into()
        }
    }
}

impl Text {
    fn new(code: Cow<'static, str>) -> Self {
        let mut by_hash = Vec::new();
        push_part(&mut by_hash, b"EVALSHA");
        push_part(&mut by_hash, redis::Script::new(&code).get_hash().as_bytes());
        Self { code, by_hash }
    }
}

/// One encoded command.
#[derive(Clone, Debug)]
pub struct Command {
    bytes: Vec<u8>,
    script: Option<EvalParts>,
    acks: Option<ReplicaAcks>,
    replies: Replies,
    /// Whether ASKING is sent before the command.
    asks: bool,
    /// See [`reply_before_next`](Self::reply_before_next).
    is_reply_before_next: bool,
    query: Option<&'static RightsQuery>,
    /// See [`of_names`](Self::of_names). Zero if the command has the keys of one name.
    keys_of_name: usize,
    logs_in: bool,
}

#[derive(Clone, Copy, Debug)]
struct EvalParts {
    script: &'static CachedScript,
    /// The number of the command's parts.
    parts: usize,
    /// The index of the first byte after the script's hash.
    rest: usize,
}

impl Command {
    fn new(bytes: Vec<u8>, script: Option<EvalParts>, replies: Replies) -> Self {
        Self {
            bytes,
            script,
            acks: None,
            replies,
            asks: false,
            is_reply_before_next: false,
            query: None,
            keys_of_name: 0,
            logs_in: false,
        }
    }

    /// Returns a command that is not a script call.
    pub fn plain(parts: &[&[u8]]) -> Self {
        let mut command = Self::begin(parts.len());
        parts.iter().for_each(|part| command.push(part));
        command
    }

    /// Begins a plain command. The caller must [push](Self::push) as many parts as it names here.
    pub fn begin(parts: usize) -> Self {
        let mut bytes = Vec::with_capacity(USUAL_SIZE);
        push_header(&mut bytes, b'*', parts);
        Self::new(bytes, None, Replies::ALL)
    }

    /// Adds the next part to a command that was [begun](Self::begin).
    pub fn push(&mut self, part: &[u8]) {
        push_part(&mut self.bytes, part);
    }

    /// Returns an AUTH command that logs the connection in with these credentials.
    pub fn auth(credentials: &Credentials) -> Self {
        let (user, password) = credentials.parts();
        let mut parts: Vec<&[u8]> = vec![b"AUTH"];
        parts.extend(user.map(str::as_bytes));
        parts.push(password.as_bytes());
        Self { logs_in: true, ..Self::plain(&parts) }
    }

    /// Whether the command logs in. After the command, the connection may have another user.
    pub(crate) fn logs_in(&self) -> bool {
        self.logs_in
    }

    /// Returns a WAIT command. The server replies to it when `acks.count` replicas have all earlier
    /// writes of the connection, or when `acks.within` is over. The reply is the number of replicas
    /// that have these writes.
    pub fn wait(acks: ReplicaAcks) -> Self {
        let mut digits = [[0; 20]; 2];
        let [count, millis] = &mut digits;
        let count = decimal(acks.count.into(), count);
        // Zero would mean no limit.
        Self::plain(&[b"WAIT", count, decimal(whole_millis(acks.within).max(1), millis)])
    }

    /// Returns a script call as `EVALSHA`. If the server does not know the script yet,
    /// [`to_eval`](Self::to_eval) converts the call to `EVAL`.
    pub fn script<'a, P: Copy + Into<Pieces<'a>>>(
        script: &'static CachedScript,
        keys: &[P],
        arguments: &[P],
    ) -> Self {
        let parts = 3 + keys.len() + arguments.len();
        let mut bytes = Vec::with_capacity(USUAL_CALL_SIZE);
        push_header(&mut bytes, b'*', parts);
        bytes.extend_from_slice(&script.server.by_hash);
        let begins = bytes.len();
        let mut digits = [0; 20];
        push_part(&mut bytes, decimal(keys.len() as u64, &mut digits));
        for part in keys.iter().chain(arguments) {
            push_pieces(&mut bytes, &(*part).into());
        }
        let call = EvalParts { script, parts, rest: begins };
        Self::new(bytes, Some(call), script.replies)
    }

    /// Makes the command succeed only if enough replicas have its writes: the client sends a WAIT
    /// after it.
    pub fn acknowledged(self, acks: Option<ReplicaAcks>) -> Self {
        Self { acks, ..self }
    }

    /// Makes the script run only if its user has the rights that `query` checks.
    pub fn checks_rights(self, query: &'static RightsQuery) -> Self {
        Self { query: Some(query), ..self }
    }

    pub(crate) fn rights_query(&self) -> Option<&'static RightsQuery> {
        self.query
    }

    /// Notes that the call has the keys of several names, with `keys_of_name` keys for each name.
    /// The first keys of all names come first, then the second keys, and so on.
    #[must_use]
    pub fn of_names(self, keys_of_name: usize) -> Self {
        Self { keys_of_name, ..self }
    }

    /// The first key of each name.
    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        let keys = self.script.filter(|_| self.keys_of_name > 0).and_then(|call| {
            let (count, keys) = next_part(&self.bytes[call.rest..])?;
            let count: usize = str::from_utf8(count).ok()?.parse().ok()?;
            let keys = std::iter::successors(next_part(keys), |(_, rest)| next_part(rest));
            Some(keys.map(|(key, _)| key).take(count / self.keys_of_name))
        });
        let one = if keys.is_none() { self.key() } else { None };
        keys.into_iter().flatten().chain(one)
    }

    pub(crate) fn acks(&self) -> Option<ReplicaAcks> {
        self.acks
    }

    /// Sets whether the next call on an idle connection first reads the reply to this posted
    /// command, and only then writes its own command.
    ///
    /// The server first runs all commands that it has read, and then writes replies and messages.
    /// So the message of a release reaches the next process sooner if the releasing thread sends
    /// its next request only after the reply. The order and the effect of the commands do not
    /// change.
    #[must_use]
    pub fn reply_before_next(self, is_first: bool) -> Self {
        Self { is_reply_before_next: is_first, ..self }
    }

    pub(crate) fn is_reply_before_next(&self) -> bool {
        self.is_reply_before_next
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the command's bytes for a server of this kind.
    pub(crate) fn bytes_for(&self, channels: Channels) -> Cow<'_, [u8]> {
        if self.asks
            && let Some(eval) = self.to_eval(channels)
        {
            return Cow::Owned(eval);
        }
        match self.script {
            Some(EvalParts { script, rest, .. }) if channels != Channels::Server => {
                let mut bytes = self.bytes.clone();
                let by_hash = &script.text(channels).by_hash;
                bytes[rest - by_hash.len()..rest].copy_from_slice(by_hash);
                Cow::Owned(bytes)
            }
            _ => Cow::Borrowed(&self.bytes),
        }
    }

    /// Returns the command's name, which is `EVALSHA` for a script call.
    pub fn name(&self) -> Option<&str> {
        let parts = self.bytes.iter().position(|byte| *byte == b'\n')? + 1;
        next_part(&self.bytes[parts..]).and_then(|(name, _)| str::from_utf8(name).ok())
    }

    /// Returns the command's first key: the part after a script's number of keys, or after a plain
    /// command's name. Returns `None` if there is no such part.
    pub fn key(&self) -> Option<&[u8]> {
        let rest = self.script.map_or(0, |call| call.rest);
        let mut bytes = &self.bytes[rest..];
        if rest == 0 {
            bytes = &bytes[1 + bytes.iter().position(|byte| *byte == b'\n')?..];
        }
        let (_name, rest) = next_part(bytes)?;
        next_part(rest).map(|(key, _)| key)
    }

    /// Whether the command calls a script that [takes](CachedScript::takes) something for its
    /// caller.
    pub(crate) fn is_take(&self) -> bool {
        self.script.is_some_and(|call| call.script.takes)
    }

    /// Returns a number that identifies the script of the call, or `None` for a plain command.
    pub(crate) fn script_id(&self) -> Option<usize> {
        self.script.map(|call| std::ptr::from_ref(call.script).addr())
    }

    /// Whether `reply` can be the reply to this command. If not, this reply and all later replies
    /// may belong to other commands, and must not count as grants or releases.
    pub(crate) fn may_be_answered(&self, reply: &Value) -> bool {
        self.replies.include(reply)
    }

    /// Returns the same command for a server to which its slot is moving. ASKING is sent before it,
    /// and the call has the script's text in place of the hash. ASKING applies to only one command,
    /// so a call by a hash that the server does not know could not be repeated.
    pub(crate) fn asking(&self) -> Self {
        Self { asks: true, ..self.clone() }
    }

    /// Whether ASKING is sent before the command, in the same packet.
    pub(crate) fn needs_asking(&self) -> bool {
        self.asks
    }

    /// Returns the same call with the script's text, or `None` for a plain command.
    pub(crate) fn to_eval(&self, channels: Channels) -> Option<Vec<u8>> {
        let EvalParts { script, .. } = self.script?;
        self.eval(&script.text(channels).code, None)
    }

    /// Returns the same call with a text that first checks the rights and then runs the script. For
    /// the server, this text is a different script. Returns `None` for a plain command or a call
    /// without a rights query.
    pub(crate) fn to_rights_query(&self, channels: Channels, random: &str) -> Option<Vec<u8>> {
        let (EvalParts { script, .. }, query) = (self.script?, self.query?);
        let code = format!(
            "local function script()\n{}\nend\nlocal random = table.remove(ARGV)\n{}",
            script.server.code, query.code
        );
        self.eval(&for_channels(&code, channels), Some(random.as_bytes()))
    }

    /// Returns the same call with `code` as the script's text, and with `another` as one more
    /// argument.
    fn eval(&self, code: &str, another: Option<&[u8]>) -> Option<Vec<u8>> {
        let EvalParts { parts, rest, .. } = self.script?;
        let mut bytes = Vec::with_capacity(code.len() + self.bytes.len());
        push_header(&mut bytes, b'*', parts + usize::from(another.is_some()));
        push_part(&mut bytes, b"EVAL");
        push_part(&mut bytes, code.as_bytes());
        bytes.extend_from_slice(&self.bytes[rest..]);
        if let Some(another) = another {
            push_part(&mut bytes, another);
        }
        Some(bytes)
    }
}

/// The size for which a plain command has room from the beginning. Most are smaller.
const USUAL_SIZE: usize = 256;
/// The same for a script call.
const USUAL_CALL_SIZE: usize = 512;

fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Splits off the first part of the command.
fn next_part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\r')?;
    let length: usize = std::str::from_utf8(bytes.get(1..end)?).ok()?.parse().ok()?;
    let from = end + b"\r\n".len();
    Some((bytes.get(from..from + length)?, bytes.get(from + length + b"\r\n".len()..)?))
}

#[inline]
fn push_header(bytes: &mut Vec<u8>, kind: u8, count: usize) {
    // Append each length as a whole, usually without a loop, because a command has many lengths.
    let digit = |number: usize| b'0' + (number % 10) as u8;
    match count {
        0..10 => return bytes.extend_from_slice(&[kind, digit(count), b'\r', b'\n']),
        10..100 => {
            let line = [kind, digit(count / 10), digit(count), b'\r', b'\n'];
            return bytes.extend_from_slice(&line);
        }
        _ => {}
    }
    let mut line = *b"000000000000000000000\r\n";
    let before = write_decimal(count as u64, &mut line[1..21]);
    line[before] = kind;
    bytes.extend_from_slice(&line[before..]);
}

#[inline]
fn push_part(bytes: &mut Vec<u8>, part: &[u8]) {
    push_header(bytes, b'$', part.len());
    bytes.extend_from_slice(part);
    bytes.extend_from_slice(b"\r\n");
}

#[inline]
fn push_pieces(bytes: &mut Vec<u8>, Pieces(pieces): &Pieces<'_>) {
    push_header(bytes, b'$', pieces.iter().map(|piece| piece.len()).sum());
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        bytes.extend_from_slice(piece);
    }
    bytes.extend_from_slice(b"\r\n");
}

/// One part of a command, as pieces that are joined when the command is written, so that a lock's
/// requests allocate no strings.
#[derive(Clone, Copy, Debug)]
pub struct Pieces<'a>([&'a [u8]; 3]);

impl<'a> Pieces<'a> {
    /// Returns the part that consists of these pieces.
    #[inline]
    pub fn of(pieces: [&'a str; 3]) -> Self {
        Self(pieces.map(str::as_bytes))
    }
}

impl<'a> From<&'a [u8]> for Pieces<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self([bytes, b"", b""])
    }
}

impl fmt::Display for Pieces<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| f.write_str(&String::from_utf8_lossy(piece)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    static SCRIPT: LazyLock<CachedScript> = LazyLock::new(|| CachedScript::new("return KEYS[1]"));

    #[test]
    fn a_command_is_as_the_redis_crate_would_write_it() {
        let expected = redis::cmd("PTTL").arg("a b\0é").get_packed_command();
        assert_eq!(Command::plain(&[b"PTTL", "a b\0é".as_bytes()]).bytes(), expected);
    }

    #[test]
    fn a_script_call_has_two_forms() {
        let call = Command::script(&SCRIPT, &[&b"key"[..]], &[b"10", b""]);
        let sha = redis::Script::new("return KEYS[1]").get_hash().to_owned();
        let by_hash =
            redis::cmd("EVALSHA").arg(sha).arg(1).arg("key").arg(10).arg("").get_packed_command();
        let by_text = redis::cmd("EVAL")
            .arg("return KEYS[1]")
            .arg(1)
            .arg("key")
            .arg(10)
            .arg("")
            .get_packed_command();
        assert_eq!(call.bytes(), by_hash);
        assert_eq!(call.to_eval(Channels::Server).unwrap(), by_text);
        assert_eq!(call.key(), Some(&b"key"[..]));
        assert_eq!(Command::plain(&[b"PTTL", b"a\r\nb"]).key(), Some(&b"a\r\nb"[..]));
        assert_eq!(Command::plain(&[b"TIME"]).key(), None);
    }

    /// After a reply of another command, all later replies may belong to other commands: a number
    /// for one of them would count as a grant.
    #[test]
    fn only_a_text_of_numbers_fits_a_script_that_replies_with_numbers() {
        static ASKS: LazyLock<CachedScript> =
            LazyLock::new(|| CachedScript::new("return '1 2'").answers(Replies::NUMBERS_OR_LIST));
        let call = Command::script(&ASKS, &[&b"key"[..]], &[]);
        let text = |text: &str| Value::BulkString(text.into());
        for reply in
            [text("1700000000 5 2000 0 1"), Value::Int(0), Value::Nil, Value::Array(vec![])]
        {
            assert!(call.may_be_answered(&reply), "{reply:?}");
        }
        for reply in [Value::Okay, text(""), text("hi"), text("17"), text("1 a 2"), text("-1 2")] {
            assert!(!call.may_be_answered(&reply), "{reply:?}");
        }
    }

    #[test]
    fn in_a_cluster_a_script_speaks_to_its_slots_channels() {
        static TELLS: LazyLock<CachedScript> = LazyLock::new(|| {
            CachedScript::new("redis.call('pubsub', 'numsub', 'x') redis.call('publish', 'x', '0')")
        });
        let call = Command::script(&TELLS, &[&b"key"[..]], &[]);
        let text = |channels| String::from_utf8(call.to_eval(channels).unwrap()).unwrap();
        assert_eq!(text(Channels::Server).matches("'publish'").count(), 1);
        assert_eq!(text(Channels::Cluster).matches("'publish'").count(), 1);
        assert_eq!(text(Channels::Sharded).matches("'publish'").count(), 0);
        assert_eq!(text(Channels::Sharded).matches("'spublish'").count(), 1);
        assert_eq!(text(Channels::Sharded).matches("'shardnumsub'").count(), 1);
        assert_eq!(&*call.bytes_for(Channels::Server), call.bytes());
        let sharded = call.bytes_for(Channels::Sharded).into_owned();
        let hash = &TELLS.text(Channels::Sharded).by_hash;
        assert_eq!(sharded.windows(hash.len()).filter(|part| part == hash).count(), 1);
        assert_eq!(sharded.len(), call.bytes().len());
    }
}
