//! Reads replies from bytes: RESP2, and the additions of `HELLO 3`.
//!
//! A reply is scanned while it arrives. Its value is made when the whole reply has arrived, so an
//! announced length alone allocates no memory. This module parses the most frequent kinds of
//! replies, because the redis crate takes ten times as long for a number. The redis crate parses
//! all other kinds.

use std::io::{self, Read};

use redis::{ErrorKind, PushKind, RedisError, RedisResult, Value};

use super::leading_number;

/// The maximum size of a reply. All replies to this library's commands are much smaller. A message
/// may be larger, but by default a server closes a subscriber's connection that has more unread
/// bytes than this.
const LARGEST: usize = 32 << 20;
const LONGEST_LINE: usize = 64 << 10;
/// The deepest nesting of arrays.
const DEEPEST: usize = 32;
/// The initial size of the buffer. This size is enough for almost all replies.
const ROOM: usize = 4 << 10;

const END: &[u8] = b"\r\n";
/// The beginning of a message to a listener, after the line with the number of its parts.
const MESSAGE: &[u8] = b"$7\r\nmessage\r\n";
const SHARDED_MESSAGE: &[u8] = b"$8\r\nsmessage\r\n";

/// The bytes that have arrived over a connection and are not yet parsed.
pub(super) struct ReplyReader {
    /// The buffer. The bytes in `from..to` are not yet parsed.
    room: Vec<u8>,
    from: usize,
    to: usize,
    /// The scan of the reply that begins at `from`.
    scan: ReplyScan,
}

impl ReplyReader {
    pub(super) fn new() -> Self {
        Self { room: vec![0; ROOM], from: 0, to: 0, scan: ReplyScan::default() }
    }

    /// Takes the next reply to a command. Reads from `stream` until the reply is complete.
    ///
    /// Skips pushed messages of any kind: the server, a proxy or another client's `CLIENT TRACKING
    /// … REDIRECT` may send one at any time. If the reader took a pushed message for a reply, each
    /// later command would get the reply to the command before it.
    pub(super) fn take_reply(&mut self, stream: &mut impl Read) -> RedisResult<Value> {
        loop {
            if let Some(reply) = reply_of(self.take(stream)?) {
                return Ok(reply);
            }
        }
    }

    /// Takes the next reply or pushed message. Reads from `stream` until it is complete. After an
    /// error, the position of the next reply is unknown.
    pub(super) fn take(&mut self, stream: &mut impl Read) -> RedisResult<Value> {
        loop {
            if self.from < self.to
                && let Some(length) = self.scan.over(&self.room[self.from..self.to])?
            {
                let (reply, _) = part(&self.room[self.from..self.from + length])?;
                self.forget(length);
                return Ok(reply);
            }
            self.make_room()?;
            match stream.read(&mut self.room[self.to..])? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                read => self.to += read,
            }
        }
    }

    fn forget(&mut self, length: usize) {
        // No part is missing, so the list of missing parts is empty and can be used again.
        self.scan.at = 0;
        self.from += length;
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
            if self.room.len() > ROOM {
                self.room = vec![0; ROOM];
            }
        }
    }

    /// Makes room for the next read. The size of the buffer depends only on the bytes that have
    /// arrived.
    fn make_room(&mut self) -> RedisResult<()> {
        if self.to < self.room.len() {
            return Ok(());
        }
        if self.from > 0 {
            self.room.copy_within(self.from.., 0);
            (self.from, self.to) = (0, self.to - self.from);
        } else if self.to >= LARGEST {
            return Err(Nonsense.into());
        } else {
            self.room.resize(2 * self.to, 0);
        }
        Ok(())
    }
}

/// Returns the reply without its attributes, or `None` if `value` is a pushed message.
fn reply_of(value: Value) -> Option<Value> {
    match value {
        Value::Push { .. } => None,
        Value::Attribute { data, .. } => reply_of(*data),
        reply => Some(reply),
    }
}

/// The progress of scanning a reply.
#[derive(Default)]
struct ReplyScan {
    at: usize,
    /// The number of missing parts of each incomplete value, the outermost first.
    missing: Vec<usize>,
}

impl ReplyScan {
    /// Returns the length of the reply at the beginning of `bytes`, or `None` if the reply is
    /// incomplete. The next call must get the same bytes with more bytes after them, and continues
    /// the scan.
    fn over(&mut self, bytes: &[u8]) -> Result<Option<usize>, Nonsense> {
        loop {
            let Some(line) = line(&bytes[self.at..])? else { return Ok(None) };
            let begins = self.at + line.text.len() + END.len();
            let parts = match line.text.first() {
                Some(b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(') => 0,
                Some(b'$' | b'=' | b'!') => match length(&line)? {
                    Some(length) => {
                        let ends = begins + length;
                        let Some(end) = bytes.get(ends..ends + END.len()) else { return Ok(None) };
                        if end != END {
                            return Err(Nonsense);
                        }
                        self.at = ends + END.len();
                        if self.completes() {
                            return Ok(Some(self.at));
                        }
                        continue;
                    }
                    None => 0,
                },
                Some(b'*' | b'~' | b'>') => length(&line)?.unwrap_or(0),
                Some(b'%') => 2 * length(&line)?.unwrap_or(0),
                // The attributes come first, then the reply to which they belong.
                Some(b'|') => 2 * length(&line)?.unwrap_or(0) + 1,
                _ => return Err(Nonsense),
            };
            self.at = begins;
            if parts > 0 {
                if self.missing.len() == DEEPEST {
                    return Err(Nonsense);
                }
                self.missing.push(parts);
            } else if self.completes() {
                return Ok(Some(self.at));
            }
        }
    }

    /// Counts a complete part. If it is the last part of an outer value, counts the outer value,
    /// too. Returns whether the whole reply is complete.
    fn completes(&mut self) -> bool {
        while let Some(missing) = self.missing.last_mut() {
            *missing -= 1;
            if *missing > 0 {
                return false;
            }
            self.missing.pop();
        }
        true
    }
}

/// The first line of a value.
struct Line<'a> {
    /// The line without its end.
    text: &'a [u8],
    /// The number after the character for the kind, if nothing else follows.
    number: Option<u64>,
}

/// The first line of `bytes`. Returns `None` if the line is incomplete.
fn line(bytes: &[u8]) -> Result<Option<Line<'_>>, Nonsense> {
    // Most lines have a number of a few digits.
    if let Some((number, rest)) = bytes.get(1..).and_then(leading_number)
        && rest.starts_with(END)
    {
        let text = &bytes[..bytes.len() - rest.len()];
        return Ok(Some(Line { text, number: Some(number) }));
    }
    match bytes.windows(END.len()).take(LONGEST_LINE).position(|two| two == END) {
        Some(length) => Ok(Some(Line { text: &bytes[..length], number: None })),
        None if bytes.len() > LONGEST_LINE => Err(Nonsense),
        None => Ok(None),
    }
}

/// The length of the value that begins with this line. Returns `None` for a null.
fn length(line: &Line<'_>) -> Result<Option<usize>, Nonsense> {
    match (number(line)?, line.text.first()) {
        (-1, Some(b'$' | b'*')) => Ok(None),
        (length, _) => match usize::try_from(length) {
            Ok(length) if length <= LARGEST => Ok(Some(length)),
            _ => Err(Nonsense),
        },
    }
}

/// The number in a line, after the character for the kind.
fn number(line: &Line<'_>) -> Result<i64, Nonsense> {
    if let Some(number) = line.number {
        return i64::try_from(number).map_err(|_| Nonsense);
    }
    let text = line.text.get(1..).ok_or(Nonsense)?;
    let text = str::from_utf8(text).map_err(|_| Nonsense)?;
    text.parse().map_err(|_| Nonsense)
}

/// Makes the value at the beginning of `bytes`, which must have been scanned. Also returns the
/// bytes after the value.
fn part(bytes: &[u8]) -> Result<(Value, &[u8]), Nonsense> {
    let line = line(bytes)?.ok_or(Nonsense)?;
    let mut rest = &bytes[line.text.len() + END.len()..];
    let value = match line.text.first() {
        Some(b':') => Value::Int(number(&line)?),
        Some(b'+') if line.text == b"+OK" => Value::Okay,
        Some(b'+') => {
            let text = str::from_utf8(&line.text[1..]).map_err(|_| Nonsense)?;
            Value::SimpleString(text.to_owned())
        }
        Some(b'$') => match length(&line)? {
            Some(length) => {
                let (text, behind) = rest.split_at(length);
                rest = &behind[END.len()..];
                Value::BulkString(text.to_vec())
            }
            None => Value::Nil,
        },
        Some(b'*') => match length(&line)? {
            Some(length) => {
                let (parts, behind) = parts(length, rest)?;
                rest = behind;
                Value::Array(parts)
            }
            None => Value::Nil,
        },
        // Messages of grants are of this kind.
        Some(b'>') if rest.starts_with(MESSAGE) || rest.starts_with(SHARDED_MESSAGE) => {
            let (kind, behind) = if rest.starts_with(MESSAGE) {
                (PushKind::Message, &rest[MESSAGE.len()..])
            } else {
                (PushKind::SMessage, &rest[SHARDED_MESSAGE.len()..])
            };
            let others = length(&line)?.and_then(|length| length.checked_sub(1));
            let (data, behind) = parts(others.ok_or(Nonsense)?, behind)?;
            rest = behind;
            Value::Push { kind, data }
        }
        _ => {
            let length = ReplyScan::default().over(bytes)?.ok_or(Nonsense)?;
            let (whole, behind) = bytes.split_at(length);
            rest = behind;
            redis::parse_redis_value(whole).map_err(|_| Nonsense)?
        }
    };
    Ok((value, rest))
}

/// Makes the values of the next `number` parts. Also returns the bytes after the values.
fn parts(number: usize, mut bytes: &[u8]) -> Result<(Vec<Value>, &[u8]), Nonsense> {
    let mut parts = Vec::with_capacity(number);
    for _ in 0..number {
        let (value, behind) = part(bytes)?;
        bytes = behind;
        parts.push(value);
    }
    Ok((parts, bytes))
}

/// The error of bytes that are not in Redis's protocol. (Of no size, so that the results of this
/// module's functions are small.)
struct Nonsense;

impl From<Nonsense> for RedisError {
    fn from(_: Nonsense) -> Self {
        (ErrorKind::Parse, "the answer is not in Redis's protocol").into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use redis::Parser;

    use super::*;

    /// A stream that returns the bytes in pieces of these lengths, then all other bytes in one
    /// piece, then the end.
    struct InPieces<'a> {
        bytes: &'a [u8],
        lengths: std::slice::Iter<'a, usize>,
    }

    impl<'a> InPieces<'a> {
        fn of(bytes: &'a [u8], lengths: &'a [usize]) -> Self {
            Self { bytes, lengths: lengths.iter() }
        }
    }

    impl Read for InPieces<'_> {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            let length = self.lengths.next().copied().unwrap_or(usize::MAX);
            (&mut self.bytes).take(length as u64).read(room)
        }
    }

    /// Returns all replies in `bytes`, and the error that ended the read.
    fn read(bytes: &[u8], lengths: &[usize]) -> (Vec<Value>, RedisError) {
        let (mut replies, mut pieces) = (ReplyReader::new(), InPieces::of(bytes, lengths));
        let mut all = Vec::new();
        loop {
            let taken = replies.take(&mut pieces);
            assert!(replies.room.len() <= ROOM.max(2 * bytes.len()), "room for what has not come");
            match taken {
                Ok(reply) => all.push(reply),
                Err(error) => return (all, error),
            }
        }
    }

    /// Returns all replies in `bytes`, read by the redis crate's parser.
    fn expected(mut bytes: &[u8]) -> Vec<Value> {
        let mut parser = Parser::new();
        std::iter::from_fn(|| parser.parse_value(&mut bytes).ok()).collect()
    }

    fn is_end(error: &RedisError) -> bool {
        error.is_connection_dropped()
    }

    fn is_nonsense(error: &RedisError) -> bool {
        error.kind() == ErrorKind::Parse
    }

    fn text() -> impl Strategy<Value = String> {
        "[ -~é€]{0,12}"
    }

    fn blob(kind: char) -> impl Strategy<Value = Vec<u8>> {
        vec(prop_oneof![any::<u8>(), Just(b'\r'), Just(b'\n')], 0..40).prop_map(move |bytes| {
            [format!("{kind}{}\r\n", bytes.len()).as_bytes(), &bytes, b"\r\n"].concat()
        })
    }

    /// A random reply, as a server writes it.
    fn reply() -> impl Strategy<Value = Vec<u8>> {
        let line =
            |kind: &'static str| move |text: String| format!("{kind}{text}\r\n").into_bytes();
        let number = any::<i64>().prop_map(|number| number.to_string());
        let fraction = any::<i32>().prop_map(|number| (f64::from(number) / 8.0).to_string());
        let leaf = prop_oneof![
            4 => number.clone().prop_map(line(":")),
            4 => blob('$'),
            2 => text().prop_map(line("+")),
            2 => "[A-Z]{1,12} [ -~é]{0,12}".prop_map(line("-")),
            1 => Just(b"+OK\r\n".to_vec()),
            1 => Just(b"$-1\r\n".to_vec()),
            1 => Just(b"*-1\r\n".to_vec()),
            1 => Just(b"_\r\n".to_vec()),
            1 => "[tf]".prop_map(line("#")),
            1 => fraction.prop_map(line(",")),
            1 => number.prop_map(line("(")),
            1 => "[A-Z]{1,8} [ -~]{0,8}".prop_map(|it| format!("!{}\r\n{it}\r\n", it.len()).into()),
            1 => "(txt|mkd|xyz):[ -~]{0,8}".prop_map(|it| format!("={}\r\n{it}\r\n", it.len()).into()),
        ];
        leaf.prop_recursive(5, 40, 6, |inner| {
            let many = |kind: &'static str| {
                move |parts: Vec<Vec<u8>>| {
                    [format!("{kind}{}\r\n", parts.len()).into(), parts.concat()].concat()
                }
            };
            let pairs = |kind: &'static str, more: usize| {
                move |mut parts: Vec<Vec<u8>>| {
                    parts.truncate(parts.len() / 2 * 2 + more);
                    [format!("{kind}{}\r\n", parts.len() / 2).into(), parts.concat()].concat()
                }
            };
            let kind = prop::sample::select(["message", "smessage", "massage"].as_slice())
                .prop_map(|kind| format!("${}\r\n{kind}\r\n", kind.len()).into_bytes());
            prop_oneof![
                4 => vec(inner.clone(), 0..6).prop_map(many("*")),
                1 => vec(inner.clone(), 0..6).prop_map(many("~")),
                1 => (kind, vec(inner.clone(), 0..5)).prop_map(move |(kind, mut parts)| {
                    parts.insert(0, kind);
                    many(">")(parts)
                }),
                1 => vec(inner.clone(), 0..7).prop_map(pairs("%", 0)),
                1 => vec(inner, 3..8).prop_filter("one behind the pairs", |it| it.len() % 2 == 1)
                    .prop_map(pairs("|", 1)),
            ]
        })
    }

    /// A random pushed message.
    fn push() -> impl Strategy<Value = Vec<u8>> {
        vec(reply(), 0..4).prop_map(|parts| {
            let head = format!(">{}\r\n$10\r\ninvalidate\r\n", parts.len() + 1);
            [head.into_bytes(), parts.concat()].concat()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn replies_are_as_the_redis_crate_reads_them_in_any_pieces(
            replies in vec(reply(), 1..4),
            lengths in vec(1..9_usize, 0..60),
        ) {
            let bytes = replies.concat();
            let expected = expected(&bytes);
            prop_assert_eq!(expected.len(), replies.len());
            let (read_so, error) = read(&bytes, &lengths);
            prop_assert_eq!(&read_so, &expected);
            prop_assert!(is_end(&error), "{}", error);
            for at in 1..bytes.len() {
                prop_assert_eq!(&read(&bytes, &[at]).0, &expected, "in two pieces, at {}", at);
                // A reply that is incomplete is not returned.
                let (before, error) = read(&bytes[..at], &[]);
                prop_assert!(expected.starts_with(&before) && before.len() < expected.len());
                prop_assert!(is_end(&error), "{}", error);
            }
        }

        #[test]
        fn pushed_messages_between_replies_shift_none_of_them(
            all in vec((vec(push(), 0..3), reply()), 1..5),
            lengths in vec(1..9_usize, 0..60),
        ) {
            let replies = all.iter().map(|(_, reply)| reply.clone()).collect::<Vec<_>>().concat();
            let bytes = all.iter().flat_map(|(pushes, reply)| [pushes.concat(), reply.clone()]);
            let bytes = bytes.collect::<Vec<_>>().concat();
            let (mut among, mut pieces) = (ReplyReader::new(), InPieces::of(&bytes, &lengths));
            // One of the random replies may itself be a push.
            for expected in expected(&replies).into_iter().filter_map(reply_of) {
                prop_assert_eq!(among.take_reply(&mut pieces).unwrap(), expected);
            }
        }

        /// The reader returns the same replies as the redis crate's parser, or an error.
        #[test]
        fn a_damaged_reply_is_an_error_and_no_panic(
            replies in vec(reply(), 1..4),
            changes in vec((any::<prop::sample::Index>(), prop_oneof![
                any::<u8>(),
                prop::sample::select(b"+-:$*~>%|_#,(!=0123456789\r\n".to_vec()),
            ]), 0..8),
            lengths in vec(1..9_usize, 0..60),
        ) {
            let mut bytes = replies.concat();
            for (at, byte) in changes {
                *at.get_mut(&mut bytes) = byte;
            }
            let (understood, error) = read(&bytes, &lengths);
            prop_assert!(is_end(&error) || is_nonsense(&error), "{}", error);
            let (expected, said) = (format!("{:?}", expected(&bytes)), format!("{understood:?}"));
            let said = said.strip_suffix(']').unwrap();
            prop_assert!(expected.starts_with(said), "{} and not {}", said, expected);
        }

        #[test]
        fn random_bytes_are_an_error_and_no_panic(
            bytes in vec(prop_oneof![
                any::<u8>(),
                prop::sample::select(b"+-:$*~>%|_#,(!=0123456789\r\n".to_vec()),
            ], 0..200),
            lengths in vec(1..9_usize, 0..60),
        ) {
            let (_, error) = read(&bytes, &lengths);
            prop_assert!(is_end(&error) || is_nonsense(&error), "{}", error);
        }
    }

    #[test]
    fn a_reply_that_begins_at_the_end_of_the_buffer_is_read() {
        // A reply is five bytes long, so the last one in the buffer is incomplete.
        let bytes = b":12\r\n".repeat(ROOM);
        let (replies, error) = read(&bytes, &[]);
        assert!(replies.iter().all(|reply| *reply == Value::Int(12)));
        assert_eq!(replies.len(), ROOM);
        assert!(is_end(&error), "{error}");
    }

    #[test]
    fn a_length_that_a_reply_claims_allocates_nothing() {
        for claim in ["$33554432", "*33554432", "%16777216", "|16777216", "~9999999", "=33554432"] {
            let (_, error) = read(format!("{claim}\r\n:1\r\n").as_bytes(), &[]);
            assert!(is_end(&error), "{claim}: {error}");
        }
        let too_much = ["$33554433", "*33554433", "*9223372036854775807", "$9223372036854775808"];
        let wrong =
            ["$-2", "*-2", "%-1", ">-1", "=-1", "!-1", "$", "*", ":", ":1x", ": 1", "?", ""];
        for claim in too_much.into_iter().chain(wrong) {
            let (_, error) = read(format!("{claim}\r\n").as_bytes(), &[]);
            assert!(is_nonsense(&error), "{claim}: {error}");
        }
        let deep = |depth| format!("{}:1\r\n", "*1\r\n".repeat(depth));
        assert_eq!(read(deep(DEEPEST).as_bytes(), &[]).0.len(), 1);
        assert!(is_nonsense(&read(deep(DEEPEST + 1).as_bytes(), &[]).1));
        assert!(is_nonsense(&read(deep(100_000).as_bytes(), &[]).1));
        assert!(is_nonsense(&read(&vec![b'+'; LONGEST_LINE + 2], &[]).1));
    }

    /// The stream never ends. The reader stops at the largest size of a reply, and stores no more
    /// bytes.
    #[test]
    fn a_reply_without_an_end_is_an_error_in_bounded_memory() {
        struct Endless;
        impl Read for Endless {
            fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
                let text = b":1\r\n";
                let many = room.chunks_exact_mut(text.len());
                let read = many.map(|chunk| chunk.copy_from_slice(text)).count() * text.len();
                Ok(read)
            }
        }
        let mut replies = ReplyReader::new();
        let mut stream = (&b"*33554432\r\n:1\r\n:"[..]).chain(Endless);
        assert!(is_nonsense(&replies.take(&mut stream).unwrap_err()));
        assert!(replies.room.len() <= 2 * LARGEST);
    }

    #[test]
    fn bytes_read_before_a_timeout_are_kept_and_their_spare_buffer_is_freed() {
        struct Slow<'a>(Vec<io::Result<&'a [u8]>>);
        impl Read for Slow<'_> {
            fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
                let piece = self.0.remove(0)?;
                let (now, later) = piece.split_at(piece.len().min(room.len()));
                room[..now.len()].copy_from_slice(now);
                if !later.is_empty() {
                    self.0.insert(0, Ok(later));
                }
                Ok(now.len())
            }
        }
        let late = || Err(io::ErrorKind::WouldBlock.into());
        let long = vec![b'x'; 20_000];
        let mut stream =
            Slow(vec![Ok(b"*2\r\n:"), late(), Ok(b"1\r"), late(), Ok(b"\n$20000\r\n")]);
        stream.0.extend(long.chunks(10).map(Ok));
        stream.0.extend([late(), Ok(&b"\r\n"[..])]);
        let mut replies = ReplyReader::new();
        let mut lates = 0;
        let reply = loop {
            match replies.take(&mut stream) {
                Ok(reply) => break reply,
                Err(_) => lates += 1,
            }
        };
        assert_eq!(lates, 3);
        assert_eq!(reply, Value::Array(vec![Value::Int(1), Value::BulkString(long)]));
        assert_eq!(replies.room.len(), ROOM);
    }
}
