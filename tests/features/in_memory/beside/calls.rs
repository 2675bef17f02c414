//! Random commands: calls of the library's scripts, recorded or changed, and other commands.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use redlatch::Client;
use redlatch_testkit::Server;

use super::super::each_type;
use super::both::Parts;
use super::random::Random;

/// The commands that the library sends.
pub(crate) struct Recorded {
    pub(crate) scripts: Vec<String>,
    calls: Vec<Parts>,
    owners: Vec<Vec<u8>>,
    keys: Vec<Vec<u8>>,
    channels: Vec<Vec<u8>>,
}

/// Makes the library use all its features, and records the commands.
pub(crate) fn record(server: &Server) -> Recorded {
    let mut monitor = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    monitor.write_all(b"MONITOR\r\n").unwrap();
    let mut lines = BufReader::new(monitor).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "+OK");
    let client = || Client::connect(&server.url()).unwrap();
    each_type::all(&client(), &client());
    const END: &str = "the end of the recording";
    redis::cmd("ECHO").arg(END).exec(&mut server.connection()).unwrap();
    let commands = lines
        .map(|line| command_of(&line))
        .take_while(|(_, command)| command.last().is_none_or(|last| last != END.as_bytes()));
    let commands: Vec<_> = commands.filter(|(is_script, _)| !is_script).collect();
    let mut recorded = Recorded {
        scripts: Vec::new(),
        calls: Vec::new(),
        owners: Vec::new(),
        keys: Vec::new(),
        channels: Vec::new(),
    };
    for (_, command) in commands {
        match &command[..] {
            [name, text, ..] if name == b"EVAL" => {
                recorded.scripts.push(String::from_utf8(text.clone()).unwrap());
            }
            [name, _, keys, rest @ ..] if name == b"EVALSHA" => {
                let keys: usize = String::from_utf8(keys.clone()).unwrap().parse().unwrap();
                recorded.keys.extend_from_slice(&rest[..keys]);
                recorded.owners.extend(rest.iter().filter(|part| is_owner(part)).cloned());
                recorded.calls.push(command);
            }
            [name, channels @ ..] if name == b"SUBSCRIBE" => {
                recorded.channels.extend_from_slice(channels);
            }
            _ => {}
        }
    }
    for all in [&mut recorded.owners, &mut recorded.keys, &mut recorded.channels] {
        all.sort_unstable();
        all.dedup();
    }
    recorded.calls.sort_unstable();
    recorded
}

/// Parses a line of `MONITOR`. Returns whether a script ran the command, and the command.
fn command_of(line: &str) -> (bool, Parts) {
    let (head, mut rest) = line.split_once(']').unwrap_or((line, ""));
    let (mut parts, is_script) = (Parts::new(), head.ends_with(" lua"));
    while let Some(quoted) = rest.trim_start().strip_prefix('"') {
        let (mut part, mut bytes) = (Vec::new(), quoted.bytes());
        while let Some(byte) = bytes.next().filter(|byte| *byte != b'"') {
            part.push(if byte != b'\\' {
                byte
            } else {
                match bytes.next().unwrap() {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'a' => 7,
                    b'b' => 8,
                    b'x' => {
                        let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                        u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap()
                    }
                    other => other,
                }
            });
        }
        parts.push(part);
        rest = &quoted[quoted.len() - bytes.len()..];
    }
    (is_script, parts)
}

/// Whether the part is an owner of a redlatch client or a Redisson client.
fn is_owner(part: &[u8]) -> bool {
    part.len() > 37 && part[36] == b':' && part[37..].iter().all(u8::is_ascii_digit)
}

/// The calls of one history. They use few names and few owners, so that they affect each other.
pub(crate) struct Calls<'a> {
    recorded: &'a Recorded,
    chosen: Vec<&'a Parts>,
    owners: Vec<&'a [u8]>,
    keys: Vec<&'a [u8]>,
}

/// Other commands. `K` is a key, `V` a value, field or member, `N` an index or number, `T` a time,
/// `S` a score, `B` a bound of scores, and `C` a channel.
const OTHERS: &[&str] = &[
    "set K V",
    "set K V px T",
    "set K V nx px T",
    "set K V xx keepttl",
    "set K N",
    "get K",
    "getrange K N N",
    "incr K",
    "incrby K N",
    "decrby K N",
    "del K",
    "del K K K",
    "exists K K",
    "type K",
    "pexpire K T",
    "pexpire K T",
    "pexpire K T",
    "persist K",
    "pttl K",
    "hset K V V",
    "hset K V V V V",
    "hset K V",
    "hdel K V V",
    "hget K V",
    "hmget K V V",
    "hexists K V",
    "hlen K",
    "hgetall K",
    "hkeys K",
    "hvals K",
    "lpush K V V",
    "rpush K V V V",
    "lpop K",
    "lpop K N",
    "rpop K",
    "llen K",
    "lindex K N",
    "lrange K N N",
    "lpos K V",
    "lrem K N V",
    "linsert K before V V",
    "linsert K after V V",
    "ltrim K N N",
    "zadd K S V",
    "zadd K xx S V",
    "zadd K nx S V S V",
    "zadd K xx gt S V",
    "zadd K ch S V S V",
    "zadd K lt S V",
    "zrem K V V",
    "zscore K V",
    "zmscore K V V",
    "zcard K",
    "zcount K B B",
    "zremrangebyscore K B B",
    "zrange K N N",
    "zrange K N N withscores",
    "zrange K B B byscore limit N N",
    "zrange K B B byscore withscores",
    "zrevrange K N N withscores",
    "publish C V",
    "pubsub numsub C C",
];

impl<'a> Calls<'a> {
    pub(crate) fn new(recorded: &'a Recorded, random: &mut Random) -> Self {
        let Recorded { calls, owners, keys, .. } = recorded;
        // The calls for one name are adjacent.
        let mut chosen = Vec::new();
        for _ in 0..random.between(1, 3) {
            let key = &pick(random, calls)[3];
            chosen.extend(calls.iter().filter(|call| &call[3] == key));
        }
        let chosen: Vec<_> = (0..60).map(|_| *pick(random, &chosen)).collect();
        let some = |all: &'a [Vec<u8>], count: usize, random: &mut Random| -> Vec<&'a [u8]> {
            (0..count).map(|_| pick(random, all).as_slice()).collect()
        };
        let owners = some(owners, 4, random);
        let mut used = some(keys, 1, random);
        used.extend(
            chosen
                .iter()
                .flat_map(|call| &call[3..])
                .filter(|it| keys.contains(it))
                .map(Vec::as_slice),
        );
        used.extend([&b"k1"[..], b"k2", b"k3"]);
        Self { recorded, chosen, owners, keys: used }
    }

    /// Returns the next command, and the connection that sends it. The time is in ms.
    pub(crate) fn next(&self, random: &mut Random, now: i64) -> (usize, Parts) {
        match random.between(1, 100) {
            1..=70 => {
                let call = *pick(random, &self.chosen);
                let rest = call[3..].iter().map(|part| self.varied(random, part, now));
                (0, call[..3].iter().cloned().chain(rest.collect::<Vec<_>>()).collect())
            }
            71..=90 => {
                let other = pick(random, OTHERS).split(' ');
                (0, other.map(|part| self.other(random, part, now)).collect())
            }
            91..=94 => {
                let verb = *pick(random, &["SUBSCRIBE", "SUBSCRIBE", "UNSUBSCRIBE"]);
                (1, vec![verb.as_bytes().to_vec(), self.channel(random)])
            }
            _ => {
                let question = *pick(random, &["EXISTS", "HLEN", "PTTL"]);
                (1, vec![question.as_bytes().to_vec(), pick(random, &self.keys).to_vec()])
            }
        }
    }

    fn channel(&self, random: &mut Random) -> Vec<u8> {
        let owner = pick(random, &self.owners);
        match random.between(0, 1) {
            0 => {
                let uuid = &owner[..owner.len().min(36)];
                [&b"redisson_lock__channel:{redlatch:"[..], uuid, b"}"].concat()
            }
            _ => pick(random, &self.recorded.channels).clone(),
        }
    }

    /// Returns the part or, at random, another part of the same kind.
    fn varied(&self, random: &mut Random, part: &[u8], now: i64) -> Vec<u8> {
        let number = str::from_utf8(part).ok().and_then(|text| text.parse::<i64>().ok());
        match number {
            _ if is_owner(part) && random.percent(70) => pick(random, &self.owners).to_vec(),
            Some(time) if (1_000_000_000_000..100_000_000_000_000).contains(&time.abs()) => {
                let ago = random.one_of(&[(0, 3), (0, 20), (-400, 3_000), (-70_000, 70_000)]);
                (time.signum() * (now - ago)).to_string().into_bytes()
            }
            Some(_) if random.percent(15) => {
                random.one_of(&[(-3, 12), (1, 40), (30_000, 30_000)]).to_string().into_bytes()
            }
            _ if self.recorded.keys.iter().any(|key| key == part) && random.percent(3) => {
                pick(random, &self.keys).to_vec()
            }
            _ => part.to_vec(),
        }
    }

    fn other(&self, random: &mut Random, part: &str, now: i64) -> Vec<u8> {
        let text = |number: i64| number.to_string().into_bytes();
        match part {
            "K" => pick(random, &self.keys).to_vec(),
            "V" if random.percent(50) => pick(random, &self.owners).to_vec(),
            "V" => pick(random, &["", "a", "b", "12", "mode", "read", "9223372036854775807"])
                .as_bytes()
                .to_vec(),
            "N" => text(random.one_of(&[(-3, 4), (0, 2), (-100, 100)])),
            "T" => text(random.one_of(&[(-1, 3), (1, 40), (30_000, 60_000)])),
            "S" => text(random.one_of(&[(0, 5), (now - 5, now + 5)])),
            "B" => match random.between(0, 3) {
                0 => pick(random, &["-inf", "+inf", "inf", "a"]).as_bytes().to_vec(),
                1 => [b"(".to_vec(), text(random.between(0, 5))].concat(),
                _ => text(random.one_of(&[(0, 5), (now - 5, now + 5)])),
            },
            "C" => self.channel(random),
            plain => plain.as_bytes().to_vec(),
        }
    }
}

fn pick<'a, T>(random: &mut Random, all: &'a [T]) -> &'a T {
    &all[random.between(0, all.len() as i64 - 1) as usize]
}

/// Returns the command as text, for a report.
pub(crate) fn words(command: &Parts) -> String {
    let words = command.iter().map(|part| format!("{:?}", String::from_utf8_lossy(part)));
    words.collect::<Vec<_>>().join(" ")
}
