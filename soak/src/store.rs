//! The data that the locks protect: values on a separate server, which never fails.
//!
//! Each fenced lock has two values. Every write adds one to the value that was read, after a sleep.
//! The store refuses a write of the fenced value with an older token. It accepts any write of the
//! unfenced value.

use redis::{Connection, RedisResult, Script};

/// A read also stores its token. After a read with a newer token, a process with an older token
/// cannot write.
const READ: &str = r"
if tonumber(ARGV[1]) < tonumber(redis.call('hget', KEYS[1], 'token') or '0') then
    return -1
end
redis.call('hset', KEYS[1], 'token', ARGV[1])
return tonumber(redis.call('hget', KEYS[1], 'value') or '0')";

const WRITE: &str = r"
if tonumber(ARGV[1]) < tonumber(redis.call('hget', KEYS[1], 'token') or '0') then
    return 0
end
redis.call('hset', KEYS[1], 'token', ARGV[1], 'value', ARGV[2])
redis.call('rpush', KEYS[2], ARGV[2])
return 1";

/// Records a write. The arguments are the writer, and in some calls the new value of a count. The
/// write is late if its writer has written before and another writer has written since then. If the
/// stored count is not below the new value, a write is lost: another writer has raised the count
/// since this writer read it. Returns the numbers of late writes and of lost writes so far.
pub(crate) const LATE: &str = r"
if redis.call('get', KEYS[1]) ~= ARGV[1] then
    redis.call('incrby', KEYS[3], redis.call('sismember', KEYS[2], ARGV[1]))
    redis.call('set', KEYS[1], ARGV[1])
    redis.call('sadd', KEYS[2], ARGV[1])
end
if ARGV[2] then
    local count, new = tonumber(redis.call('get', KEYS[4]) or '0'), tonumber(ARGV[2])
    redis.call('incrby', KEYS[5], count < new and 0 or 1)
    redis.call('set', KEYS[4], ARGV[2])
end
for i = 1, 5 do
    redis.call('pexpire', KEYS[i], 60000)
end
return {tonumber(redis.call('get', KEYS[3]) or '0'), tonumber(redis.call('get', KEYS[5]) or '0')}";

/// Returns the keys of [`LATE`] for the writes under a lock. The keys are in the lock's slot.
pub(crate) fn late_keys(lock: &str) -> [String; 5] {
    ["last", "writers", "late", "count", "lost"].map(|key| format!("{{{lock}}}:{key}"))
}

/// Whether a request has the keys of [`LATE`].
pub(crate) fn is_late(request: &[u8]) -> bool {
    const KEY: &[u8] = b"}:writers";
    request.windows(KEY.len()).any(|part| part == KEY)
}

/// The name of a lock, and the values that were written under the lock, in their order.
pub(crate) type Written = (String, Vec<u64>);

pub(crate) struct Store {
    connection: Connection,
    read: Script,
    write: Script,
    late: Script,
}

impl Store {
    pub(crate) fn connect(url: &str) -> RedisResult<Self> {
        let connection = redis::Client::open(url)?.get_connection()?;
        let [read, write, late] = [READ, WRITE, LATE].map(Script::new);
        Ok(Self { connection, read, write, late })
    }

    /// Adds one to both values of this lock. Calls `sleep` between the read and the write.
    pub(crate) fn add(&mut self, lock: &str, token: u64, sleep: impl FnOnce()) -> RedisResult<()> {
        let (fenced, twin) = (format!("fenced:{lock}"), format!("unfenced:{lock}"));
        let read: i64 = self.read.key(&fenced).arg(token).invoke(&mut self.connection)?;
        let unfenced: Option<i64> = redis::cmd("GET").arg(&twin).query(&mut self.connection)?;
        let unfenced = unfenced.unwrap_or(0) + 1;
        sleep();
        redis::pipe()
            .atomic()
            .cmd("SET")
            .arg(&twin)
            .arg(unfenced)
            .cmd("RPUSH")
            .arg(format!("{twin}:log"))
            .arg(unfenced)
            .query::<()>(&mut self.connection)?;
        if read >= 0 {
            let log = format!("{fenced}:log");
            let write = self
                .write
                .key(fenced)
                .key(log)
                .arg(token)
                .arg(read + 1)
                .invoke(&mut self.connection);
            let _accepted: bool = write?;
        }
        Ok(())
    }

    /// Makes a write with [`LATE`], without a check of the lock.
    pub(crate) fn write_late(&mut self, lock: &str, writer: &str, count: u64) -> RedisResult<()> {
        let mut call = self.late.prepare_invoke();
        late_keys(lock).into_iter().for_each(|key| {
            call.key(key);
        });
        call.arg(writer).arg(count).invoke(&mut self.connection)
    }

    /// Returns the count that [`write_late`](Self::write_late) changes.
    pub(crate) fn count(&mut self, lock: &str) -> RedisResult<u64> {
        let [.., count, _] = late_keys(lock);
        let count: Option<u64> = redis::cmd("GET").arg(count).query(&mut self.connection)?;
        Ok(count.unwrap_or(0))
    }

    /// Returns how many writes of [`LATE`] under the locks with this prefix were late, if `what` is
    /// `late`, or are lost, if `what` is `lost`.
    pub(crate) fn late(&mut self, prefix: &str, what: &str) -> RedisResult<u64> {
        let pattern = format!("{{{prefix}*}}:{what}");
        let keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query(&mut self.connection)?;
        let mut all = 0;
        for key in keys {
            let late: Option<u64> = redis::cmd("GET").arg(&key).query(&mut self.connection)?;
            all += late.unwrap_or(0);
        }
        Ok(all)
    }

    /// Returns the values that were written under the locks with this prefix, with the names of the
    /// locks. The fenced values come first, then the unfenced values.
    pub(crate) fn written(&mut self, prefix: &str) -> RedisResult<[Vec<Written>; 2]> {
        let mut all = [Vec::new(), Vec::new()];
        for (kind, lists) in ["fenced", "unfenced"].into_iter().zip(&mut all) {
            let pattern = format!("{kind}:{prefix}*:log");
            let keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query(&mut self.connection)?;
            for key in keys {
                let list =
                    redis::cmd("LRANGE").arg(&key).arg(0).arg(-1).query(&mut self.connection)?;
                let name = key.trim_start_matches(kind).trim_start_matches(':');
                lists.push((name.trim_end_matches(":log").to_owned(), list));
            }
        }
        Ok(all)
    }
}
