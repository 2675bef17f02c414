//! The commands for keys that the scripts and the client use. The commands behave as in Redis 7.0.

use std::cmp::Ordering;
use std::collections::VecDeque;

use redis::Value;

use crate::peers::{Peers, matches};
use crate::resp::refusal;
use crate::store::{Kept, Store};

type Hash = Vec<(Vec<u8>, Vec<u8>)>;
type List = VecDeque<Vec<u8>>;
type Sorted = Vec<(f64, Vec<u8>)>;
/// The reply of a command. `Err` is an error reply.
type Reply = Result<Value, Value>;

/// The longest name of a command.
const LONGEST: usize = 24;

/// The data on which one command works.
pub(super) struct Step<'a> {
    pub(super) store: &'a mut Store,
    pub(super) peers: &'a mut Peers,
    /// The server's time, in µs.
    pub(super) now: i64,
}

impl Step<'_> {
    /// Runs the command, and returns its reply.
    pub(super) fn run(&mut self, command: &[&[u8]]) -> Value {
        let Some((name, arguments)) = command.split_first() else {
            return refusal("ERR there is no command");
        };
        let mut lower = [0; LONGEST];
        let Some(lower) = lower.get_mut(..name.len()) else { return unknown(name) };
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        self.dispatch(lower, arguments).unwrap_or_else(|refused| refused)
    }

    fn dispatch(&mut self, name: &[u8], arguments: &[&[u8]]) -> Reply {
        match (name, arguments) {
            (b"exists", keys @ [_, ..]) => {
                Ok(count(keys.iter().filter(|key| self.exists(key)).count()))
            }
            (b"del" | b"unlink", keys @ [_, ..]) => {
                let now = self.millis();
                let Self { store, peers, .. } = self;
                Ok(count(keys.iter().filter(|key| store.remove(peers, now, key)).count()))
            }
            (b"type", [key]) => {
                let now = self.millis();
                let kind = self.store.entry(self.peers, now, key).map(|entry| entry.kept.kind());
                Ok(Value::SimpleString(kind.unwrap_or("none").to_owned()))
            }
            (b"pttl", [key]) => Ok(Value::Int(self.time_left(key))),
            (b"pexpire", [key, time]) => self.pexpire(key, time),
            (b"persist", [key]) => self.persist(key),
            (b"time", []) => {
                let part = |number: i64| bulk(number.to_string().as_bytes());
                Ok(Value::Array(vec![part(self.now / 1_000_000), part(self.now % 1_000_000)]))
            }
            (b"publish", [channel, message]) => {
                Ok(Value::Int(self.peers.publish(channel, message)))
            }
            (b"pubsub", question) => Ok(self.peers.ask(question)),
            (b"scan", [_, options @ ..]) => self.scan(options),
            (b"keys", [pattern]) => self.scan(&[b"match", pattern]).map(|reply| match reply {
                Value::Array(mut parts) => parts.pop().unwrap_or(Value::Nil),
                other => other,
            }),
            (b"dbsize", []) => Ok(count(self.store.all(self.millis()).len())),
            (b"flushall" | b"flushdb", _) => {
                self.store.clear(self.peers);
                Ok(Value::Okay)
            }
            _ => match name.first() {
                Some(b'h') => self.hash_command(name, arguments),
                Some(b'l' | b'r') => self.list_command(name, arguments),
                Some(b'z') => self.sorted_command(name, arguments),
                _ => self.text_command(name, arguments),
            },
        }
    }

    fn text_command(&mut self, name: &[u8], arguments: &[&[u8]]) -> Reply {
        match (name, arguments) {
            (b"get", [key]) => Ok(self.read::<Vec<u8>>(key)?.map_or(Value::Nil, |it| bulk(it))),
            (b"set", [key, value, options @ ..]) => self.set(key, value, options),
            (b"getrange", [key, first, last]) => {
                let (first, last) = (integer(first)?, integer(last)?);
                let text = self.read::<Vec<u8>>(key)?.map_or(&[][..], |text| text);
                if first < 0 && last < 0 && first > last {
                    return Ok(bulk(b""));
                }
                // In a text, an end before the first byte counts as the first byte. In a list it
                // does not.
                let last = place(last, text.len())
                    .map_or(0, |last| i64::try_from(last).unwrap_or(i64::MAX));
                Ok(bulk(range(first, last, text.len()).map_or(&[], |range| &text[range])))
            }
            (b"incr", [key]) => self.increase(key, 1),
            (b"decr", [key]) => self.increase(key, -1),
            (b"incrby", [key, by]) => self.increase(key, integer(by)?),
            (b"decrby", [key, by]) => match integer(by)?.checked_neg() {
                Some(by) => self.increase(key, by),
                None => Err(refusal("ERR decrement would overflow")),
            },
            _ => Err(unknown(name)),
        }
    }

    fn hash_command(&mut self, name: &[u8], arguments: &[&[u8]]) -> Reply {
        let get = |hash: Option<&mut Hash>, field: &[u8]| {
            let value = hash.and_then(|hash| hash.iter().find(|(own, _)| own == field));
            value.map_or(Value::Nil, |(_, value)| bulk(value))
        };
        match (name, arguments) {
            (b"hget", [key, field]) => Ok(get(self.read(key)?, field)),
            (b"hmget", [key, fields @ ..]) if !fields.is_empty() => {
                let mut hash = self.read::<Hash>(key)?;
                let each = fields.iter().map(|field| get(hash.as_deref_mut(), field));
                Ok(Value::Array(each.collect()))
            }
            (b"hexists", [key, field]) => {
                let hash = self.read::<Hash>(key)?;
                let has = hash.is_some_and(|hash| hash.iter().any(|(own, _)| own == field));
                Ok(count(has.into()))
            }
            (b"hlen", [key]) => Ok(count(self.read::<Hash>(key)?.map_or(0, |hash| hash.len()))),
            (b"hset", [key, pairs @ ..]) if !pairs.is_empty() => {
                if !pairs.len().is_multiple_of(2) {
                    return Err(wrong_number(name));
                }
                let hash = self.write::<Hash>(key)?;
                let before = hash.len();
                for pair in pairs.chunks(2) {
                    match hash.iter_mut().find(|(own, _)| own == pair[0]) {
                        Some((_, value)) => *value = pair[1].to_vec(),
                        None => hash.push((pair[0].to_vec(), pair[1].to_vec())),
                    }
                }
                let new = hash.len() - before;
                self.store.changed(self.peers, key);
                Ok(count(new))
            }
            (b"hdel", [key, fields @ ..]) if !fields.is_empty() => {
                let Some(hash) = self.read::<Hash>(key)? else { return Ok(Value::Int(0)) };
                let before = hash.len();
                hash.retain(|(own, _)| !fields.contains(&own.as_slice()));
                let gone = before - hash.len();
                self.changed_if(gone > 0, key);
                Ok(count(gone))
            }
            (b"hgetall", [key]) => Ok(Value::Map(
                self.fields(key)?.iter().map(|(field, value)| (bulk(field), bulk(value))).collect(),
            )),
            (b"hkeys", [key]) => Ok(list(self.fields(key)?.iter().map(|(field, _)| field))),
            (b"hvals", [key]) => Ok(list(self.fields(key)?.iter().map(|(_, value)| value))),
            (b"hrandfield", [key]) => {
                let fields = self.fields(key)?;
                let at = self.store.random(fields.len());
                Ok(fields.get(at).map_or(Value::Nil, |(field, _)| bulk(field)))
            }
            (b"hrandfield", [key, number, with @ ..]) => {
                let with = match with {
                    [] => false,
                    [with] if with.eq_ignore_ascii_case(b"withvalues") => true,
                    _ => return Err(syntax()),
                };
                self.some_fields(key, integer(number)?, with)
            }
            _ => Err(unknown(name)),
        }
    }

    /// Returns `number` random fields, all different. If `number` is negative, returns `-number`
    /// fields, which may repeat.
    fn some_fields(&mut self, key: &[u8], number: i64, with_values: bool) -> Reply {
        let mut fields = self.fields(key)?;
        let chosen: Hash = match usize::try_from(number) {
            Ok(number) => {
                while fields.len() > number {
                    let at = self.store.random(fields.len());
                    fields.remove(at);
                }
                fields
            }
            Err(_) if fields.is_empty() => fields,
            Err(_) => {
                let number = number.unsigned_abs().min(1 << 20);
                (0..number).map(|_| fields[self.store.random(fields.len())].clone()).collect()
            }
        };
        let each =
            chosen.iter().flat_map(|(field, value)| [Some(field), with_values.then_some(value)]);
        Ok(list(each.flatten()))
    }

    fn list_command(&mut self, name: &[u8], arguments: &[&[u8]]) -> Reply {
        match (name, arguments) {
            (b"lpush" | b"rpush", [key, elements @ ..]) if !elements.is_empty() => {
                let list = self.write::<List>(key)?;
                for element in elements {
                    match name[0] {
                        b'l' => list.push_front(element.to_vec()),
                        _ => list.push_back(element.to_vec()),
                    }
                }
                let length = list.len();
                self.store.changed(self.peers, key);
                Ok(count(length))
            }
            (b"lpop" | b"rpop", [key, number @ ..]) => {
                let number = match number {
                    [] => None,
                    [number] => Some(integer(number)?),
                    _ => return Err(wrong_number(name)),
                };
                let positive = || refusal("ERR value is out of range, must be positive");
                let number = number.map(|it| usize::try_from(it).map_err(|_| positive()));
                self.pop(key, number.transpose()?, name[0] == b'l')
            }
            (b"llen", [key]) => Ok(count(self.read::<List>(key)?.map_or(0, |list| list.len()))),
            (b"lindex", [key, at]) => {
                let at = integer(at)?;
                let list = self.read::<List>(key)?.map(|list| &*list);
                let element = list.and_then(|list| list.get(place(at, list.len())?));
                Ok(element.map_or(Value::Nil, |element| bulk(element)))
            }
            (b"lrange", [key, first, last]) => {
                let (first, last) = (integer(first)?, integer(last)?);
                let Some(elements) = self.read::<List>(key)? else {
                    return Ok(Value::Array(Vec::new()));
                };
                let range = range(first, last, elements.len()).unwrap_or(0..0);
                Ok(list(elements.range(range)))
            }
            (b"lpos", [key, element]) => {
                let at =
                    self.read::<List>(key)?.and_then(|it| it.iter().position(|it| it == element));
                Ok(at.map_or(Value::Nil, count))
            }
            (b"lrem", [key, number, element]) => {
                let number = integer(number)?;
                let Some(list) = self.read::<List>(key)? else { return Ok(Value::Int(0)) };
                let most = if number == 0 { u64::MAX } else { number.unsigned_abs() };
                let mut places: Vec<_> =
                    (0..list.len()).filter(|at| list[*at] == *element).collect();
                if number >= 0 {
                    places.truncate(usize::try_from(most).unwrap_or(usize::MAX));
                } else {
                    let left = u64::try_from(places.len()).unwrap_or(0).saturating_sub(most);
                    places.drain(..usize::try_from(left).unwrap_or(0));
                }
                places.iter().rev().for_each(|at| drop(list.remove(*at)));
                self.changed_if(!places.is_empty(), key);
                Ok(count(places.len()))
            }
            (b"linsert", [key, side, pivot, element]) => {
                let behind = match side {
                    side if side.eq_ignore_ascii_case(b"before") => 0,
                    side if side.eq_ignore_ascii_case(b"after") => 1,
                    _ => return Err(syntax()),
                };
                let Some(list) = self.read::<List>(key)? else { return Ok(Value::Int(0)) };
                let Some(at) = list.iter().position(|it| it == pivot) else {
                    return Ok(Value::Int(-1));
                };
                list.insert(at + behind, element.to_vec());
                let length = list.len();
                self.store.changed(self.peers, key);
                Ok(count(length))
            }
            (b"ltrim", [key, first, last]) => {
                let (first, last) = (integer(first)?, integer(last)?);
                let Some(list) = self.read::<List>(key)? else { return Ok(Value::Okay) };
                let range = range(first, last, list.len()).unwrap_or(0..0);
                list.truncate(range.end);
                list.drain(..range.start);
                self.store.changed(self.peers, key);
                Ok(Value::Okay)
            }
            _ => Err(unknown(name)),
        }
    }

    fn pop(&mut self, key: &[u8], number: Option<usize>, front: bool) -> Reply {
        let Some(list) = self.read::<List>(key)? else { return Ok(Value::Nil) };
        let most = number.unwrap_or(1).min(list.len());
        let pop = |_| if front { list.pop_front() } else { list.pop_back() };
        let popped: Vec<_> = (0..most).filter_map(pop).collect();
        self.changed_if(most > 0, key);
        Ok(match number {
            Some(_) => Value::Array(popped.into_iter().map(Value::BulkString).collect()),
            None => popped.into_iter().next().map_or(Value::Nil, Value::BulkString),
        })
    }

    fn sorted_command(&mut self, name: &[u8], arguments: &[&[u8]]) -> Reply {
        let score_of = |members: Option<&Sorted>, member: &[u8]| {
            let found = members.and_then(|members| members.iter().find(|(_, own)| own == member));
            found.map_or(Value::Nil, |(score, _)| Value::Double(*score))
        };
        match (name, arguments) {
            (b"zadd", [key, rest @ ..]) => self.zadd(key, rest),
            (b"zrem", [key, members @ ..]) if !members.is_empty() => {
                let Some(sorted) = self.read::<Sorted>(key)? else { return Ok(Value::Int(0)) };
                let before = sorted.len();
                sorted.retain(|(_, own)| !members.contains(&own.as_slice()));
                let gone = before - sorted.len();
                self.changed_if(gone > 0, key);
                Ok(count(gone))
            }
            (b"zscore", [key, member]) => {
                Ok(score_of(self.read(key)?.map(|sorted| &*sorted), member))
            }
            (b"zmscore", [key, members @ ..]) if !members.is_empty() => {
                let sorted = self.read::<Sorted>(key)?.map(|sorted| &*sorted);
                Ok(Value::Array(members.iter().map(|it| score_of(sorted, it)).collect()))
            }
            (b"zcard", [key]) => Ok(count(self.read::<Sorted>(key)?.map_or(0, |it| it.len()))),
            (b"zcount", [key, least, most]) => {
                let between = Between::of(least, most)?;
                let sorted = self.read::<Sorted>(key)?.map(|sorted| &*sorted);
                let inside = |sorted: &Sorted| sorted.iter().filter(|it| between.has(it.0)).count();
                Ok(count(sorted.map_or(0, inside)))
            }
            (b"zremrangebyscore", [key, least, most]) => {
                let between = Between::of(least, most)?;
                let Some(sorted) = self.read::<Sorted>(key)? else { return Ok(Value::Int(0)) };
                let before = sorted.len();
                sorted.retain(|(score, _)| !between.has(*score));
                let gone = before - sorted.len();
                self.changed_if(gone > 0, key);
                Ok(count(gone))
            }
            (b"zrange", [key, first, last, options @ ..]) => {
                self.zrange(key, first, last, options, false)
            }
            (b"zrevrange", [key, first, last, options @ ..]) => {
                self.zrange(key, first, last, options, true)
            }
            _ => Err(unknown(name)),
        }
    }

    fn zadd(&mut self, key: &[u8], rest: &[&[u8]]) -> Reply {
        let (mut nx, mut xx, mut gt, mut lt, mut ch) = (false, false, false, false, false);
        let mut at = 0;
        while let Some(option) = rest.get(at) {
            match option {
                it if it.eq_ignore_ascii_case(b"nx") => nx = true,
                it if it.eq_ignore_ascii_case(b"xx") => xx = true,
                it if it.eq_ignore_ascii_case(b"gt") => gt = true,
                it if it.eq_ignore_ascii_case(b"lt") => lt = true,
                it if it.eq_ignore_ascii_case(b"ch") => ch = true,
                _ => break,
            }
            at += 1;
        }
        let pairs = &rest[at..];
        if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
            return Err(syntax());
        } else if nx && xx {
            return Err(refusal("ERR XX and NX options at the same time are not compatible"));
        } else if gt && lt || nx && (gt || lt) {
            return Err(refusal(
                "ERR GT, LT, and/or NX options at the same time are not compatible",
            ));
        }
        let scores = pairs
            .chunks(2)
            .map(|pair| float(pair[0]).ok_or_else(|| refusal("ERR value is not a valid float")));
        let scores = scores.collect::<Result<Vec<_>, _>>()?;
        if xx && self.read::<Sorted>(key)?.is_none() {
            return Ok(Value::Int(0));
        }
        let sorted = self.write::<Sorted>(key)?;
        let (mut added, mut changed) = (0, 0);
        for (pair, score) in pairs.chunks(2).zip(scores) {
            match sorted.iter().position(|(_, own)| own == pair[1]) {
                Some(at) => {
                    let before = sorted[at].0;
                    if nx || gt && score <= before || lt && score >= before || score == before {
                        continue;
                    }
                    let (_, member) = sorted.remove(at);
                    insert(sorted, score, member);
                    changed += 1;
                }
                None if xx => {}
                None => {
                    insert(sorted, score, pair[1].to_vec());
                    added += 1;
                }
            }
        }
        self.changed_if(added + changed > 0, key);
        Ok(count(added + if ch { changed } else { 0 }))
    }

    fn zrange(
        &mut self,
        key: &[u8],
        first: &[u8],
        last: &[u8],
        options: &[&[u8]],
        reversed: bool,
    ) -> Reply {
        let (mut by_score, mut with_scores, mut limit) = (false, false, None);
        let mut rest = options;
        while let Some((option, behind)) = rest.split_first() {
            rest = behind;
            if option.eq_ignore_ascii_case(b"withscores") {
                with_scores = true;
            } else if option.eq_ignore_ascii_case(b"byscore") && !reversed {
                by_score = true;
            } else if option.eq_ignore_ascii_case(b"limit")
                && let [offset, most, behind @ ..] = behind
            {
                limit = Some((integer(offset)?, integer(most)?));
                rest = behind;
            } else {
                return Err(syntax());
            }
        }
        if limit.is_some() && !by_score {
            return Err(refusal(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or \
                 BYLEX",
            ));
        }
        let between = if by_score { Some(Between::of(first, last)?) } else { None };
        let places = if by_score { (0, 0) } else { (integer(first)?, integer(last)?) };
        let mut all = self.read::<Sorted>(key)?.cloned().unwrap_or_default();
        if reversed {
            all.reverse();
        }
        let chosen: Sorted = match between {
            Some(between) => {
                let (offset, most) = limit.unwrap_or((0, -1));
                // A negative offset finds nothing, and a negative count means no limit.
                let offset = usize::try_from(offset).unwrap_or(usize::MAX);
                let most = usize::try_from(most).unwrap_or(usize::MAX);
                all.into_iter().filter(|it| between.has(it.0)).skip(offset).take(most).collect()
            }
            None => {
                range(places.0, places.1, all.len()).map_or_else(Vec::new, |it| all[it].to_vec())
            }
        };
        let each = chosen.into_iter().flat_map(|(score, member)| {
            let score = with_scores.then_some(Value::Double(score));
            [Some(Value::BulkString(member)), score]
        });
        Ok(Value::Array(each.flatten().collect()))
    }

    fn set(&mut self, key: &[u8], value: &[u8], options: &[&[u8]]) -> Reply {
        let (mut life, mut keeps, mut nx, mut xx) = (None, false, false, false);
        let mut rest = options;
        while let Some((option, behind)) = rest.split_first() {
            rest = behind;
            match (option.to_ascii_lowercase().as_slice(), behind) {
                (unit @ (b"px" | b"ex"), [time, behind @ ..]) if life.is_none() && !keeps => {
                    let time = integer(time)?;
                    let millis = if unit == b"ex" { time.checked_mul(1_000) } else { Some(time) };
                    let ends = millis.and_then(|it| it.checked_add(self.millis()));
                    life = Some(ends.filter(|_| time > 0).ok_or_else(|| invalid_expiry("set"))?);
                    rest = behind;
                }
                (b"keepttl", _) if life.is_none() => keeps = true,
                (b"nx", _) if !xx => nx = true,
                (b"xx", _) if !nx => xx = true,
                _ => return Err(syntax()),
            }
        }
        let now = self.millis();
        let before = self.store.entry(self.peers, now, key).map(|entry| entry.ends);
        if nx && before.is_some() || xx && before.is_none() {
            return Ok(Value::Nil);
        }
        let ends = if keeps { before.flatten() } else { life };
        self.store.insert(now, key, Kept::Text(value.to_vec()), ends);
        self.peers.changed(key);
        Ok(Value::Okay)
    }

    fn increase(&mut self, key: &[u8], by: i64) -> Reply {
        let before = self.read::<Vec<u8>>(key)?.map_or(Ok(0), |text| integer(text))?;
        let overflow = || refusal("ERR increment or decrement would overflow");
        let after = before.checked_add(by).ok_or_else(overflow)?;
        *self.write::<Vec<u8>>(key)? = after.to_string().into_bytes();
        self.peers.changed(key);
        Ok(Value::Int(after))
    }

    fn pexpire(&mut self, key: &[u8], time: &[u8]) -> Reply {
        let (now, time) = (self.millis(), integer(time)?);
        let ends = now.checked_add(time).ok_or_else(|| invalid_expiry("pexpire"))?;
        let Some(entry) = self.store.entry(self.peers, now, key) else { return Ok(Value::Int(0)) };
        if time <= 0 {
            self.store.remove(self.peers, now, key);
        } else {
            entry.ends = Some(ends);
            self.peers.changed(key);
        }
        Ok(Value::Int(1))
    }

    fn persist(&mut self, key: &[u8]) -> Reply {
        let now = self.millis();
        let ended = self.store.entry(self.peers, now, key).and_then(|entry| entry.ends.take());
        self.changed_if(ended.is_some(), key);
        Ok(count(ended.is_some().into()))
    }

    /// The time until the key expires, in ms: -1 if it does not expire, -2 if there is no key.
    fn time_left(&mut self, key: &[u8]) -> i64 {
        let now = self.millis();
        match self.store.entry(self.peers, now, key) {
            Some(entry) => entry.ends.map_or(-1, |ends| ends - now),
            None => -2,
        }
    }

    /// Returns all keys in one call.
    fn scan(&self, options: &[&[u8]]) -> Reply {
        let (mut pattern, mut kind) = (&b"*"[..], None);
        for option in options.chunks(2) {
            match option {
                [name, wanted] if name.eq_ignore_ascii_case(b"match") => pattern = wanted,
                [name, wanted] if name.eq_ignore_ascii_case(b"type") => kind = Some(*wanted),
                [name, _] if name.eq_ignore_ascii_case(b"count") => {}
                _ => return Err(syntax()),
            }
        }
        let of_kind =
            |kept: &Kept| kind.is_none_or(|kind| kind.eq_ignore_ascii_case(kept.kind().as_bytes()));
        let all = self.store.all(self.millis());
        let found = all.iter().filter(|(key, it)| of_kind(&it.kept) && matches(pattern, key));
        Ok(Value::Array(vec![bulk(b"0"), list(found.map(|(key, _)| key))]))
    }

    fn exists(&mut self, key: &[u8]) -> bool {
        let now = self.millis();
        self.store.entry(self.peers, now, key).is_some()
    }

    fn fields(&mut self, key: &[u8]) -> Result<Hash, Value> {
        Ok(self.read::<Hash>(key)?.cloned().unwrap_or_default())
    }

    fn read<T: crate::store::ValueKind>(&mut self, key: &[u8]) -> Result<Option<&mut T>, Value> {
        let now = self.millis();
        self.store.value(self.peers, now, key)
    }

    fn write<T: crate::store::ValueKind>(&mut self, key: &[u8]) -> Result<&mut T, Value> {
        let now = self.millis();
        self.store.value_or_new(self.peers, now, key)
    }

    fn changed_if(&mut self, changed: bool, key: &[u8]) {
        if changed {
            self.store.changed(self.peers, key);
        }
    }

    fn millis(&self) -> i64 {
        self.now.div_euclid(1_000)
    }
}

fn insert(sorted: &mut Sorted, score: f64, member: Vec<u8>) {
    let order = |(own, other): &(f64, Vec<u8>)| {
        own.partial_cmp(&score).unwrap_or(Ordering::Equal).then_with(|| other.cmp(&member))
    };
    let at = sorted.binary_search_by(order).unwrap_or_else(|at| at);
    sorted.insert(at, (score, member));
}

/// A range of scores. A bound whose flag is true is not in the range.
struct Between {
    least: (f64, bool),
    most: (f64, bool),
}

impl Between {
    fn of(least: &[u8], most: &[u8]) -> Result<Self, Value> {
        let bound = |text: &[u8]| {
            let open = text.strip_prefix(b"(");
            let number = float(open.unwrap_or(text));
            let number = number.ok_or_else(|| refusal("ERR min or max is not a float"))?;
            Ok((number, open.is_some()))
        };
        Ok(Self { least: bound(least)?, most: bound(most)? })
    }

    fn has(&self, score: f64) -> bool {
        let above = score > self.least.0 || score == self.least.0 && !self.least.1;
        above && (score < self.most.0 || score == self.most.0 && !self.most.1)
    }
}

/// Returns the index of an element. If `at` is negative, it counts from the end.
fn place(at: i64, length: usize) -> Option<usize> {
    let at = if at < 0 { at.checked_add(i64::try_from(length).ok()?)? } else { at };
    usize::try_from(at).ok()
}

/// The indexes from `first` to `last`, both included. Returns `None` if there are none.
fn range(first: i64, last: i64, length: usize) -> Option<std::ops::Range<usize>> {
    let first = place(first, length).unwrap_or(0);
    let last = place(last, length)?.min(length.checked_sub(1)?);
    (first <= last).then(|| first..last + 1)
}

fn bulk(text: &[u8]) -> Value {
    Value::BulkString(text.to_vec())
}

fn list<T: AsRef<[u8]>>(parts: impl Iterator<Item = T>) -> Value {
    Value::Array(parts.map(|part| bulk(part.as_ref())).collect())
}

fn count(number: usize) -> Value {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

/// Parses an integer as strictly as a server does: `+1` and `01` are errors.
fn integer(text: &[u8]) -> Result<i64, Value> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_plain = matches!(digits, [b'0'] if digits.len() == text.len())
        || matches!(digits, [b'1'..=b'9', ..]);
    let number = str::from_utf8(text).ok().filter(|_| is_plain).and_then(|text| text.parse().ok());
    number.ok_or_else(|| refusal("ERR value is not an integer or out of range"))
}

fn float(text: &[u8]) -> Option<f64> {
    let number: f64 = str::from_utf8(text).ok()?.parse().ok()?;
    Some(number).filter(|number| !number.is_nan())
}

fn syntax() -> Value {
    refusal("ERR syntax error")
}

fn invalid_expiry(command: &str) -> Value {
    refusal(&format!("ERR invalid expire time in '{command}' command"))
}

fn wrong_number(name: &[u8]) -> Value {
    let name = String::from_utf8_lossy(name);
    refusal(&format!("ERR wrong number of arguments for '{name}' command"))
}

/// Returns the error for a command that this server lacks. It has only the commands that the
/// scripts and the client use.
fn unknown(name: &[u8]) -> Value {
    let name = String::from_utf8_lossy(name);
    refusal(&format!("ERR unknown command '{name}', or so many arguments, in the server in memory"))
}
