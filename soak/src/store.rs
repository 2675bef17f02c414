//! The data that the locks protect: values on a separate server, which never fails.
//!
//! Each fenced lock has two values. Every write adds one to the value that was read, after a sleep.
//! For the fenced value the store refuses an older token. For the unfenced value it accepts any
//! write.

use redis::{Connection, RedisResult, Script};

/// A read also stores its token. After this, a reader whose token is not the newest cannot write.
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

/// A write by the writer in the argument. A write is late if the writer has written before and
/// another writer has written since then. Returns the number of late writes so far.
pub(crate) const LATE: &str = r"
if redis.call('get', KEYS[1]) ~= ARGV[1] then
    redis.call('incrby', KEYS[3], redis.call('sismember', KEYS[2], ARGV[1]))
    redis.call('set', KEYS[1], ARGV[1])
    redis.call('sadd', KEYS[2], ARGV[1])
end
for i = 1, 3 do
    redis.call('pexpire', KEYS[i], 60000)
end
return tonumber(redis.call('get', KEYS[3]))";

/// Returns the keys of such writes under a lock, in the lock's slot.
pub(crate) fn late_keys(lock: &str) -> [String; 3] {
    ["last", "writers", "late"].map(|key| format!("{{{lock}}}:{key}"))
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

    /// Writes without a check of the lock.
    pub(crate) fn write_late(&mut self, lock: &str, writer: &str) -> RedisResult<()> {
        let [last, writers, late] = late_keys(lock);
        self.late.key(last).key(writers).key(late).arg(writer).invoke(&mut self.connection)
    }

    /// Returns how many of these writes under the locks with this prefix were late.
    pub(crate) fn late(&mut self, prefix: &str) -> RedisResult<u64> {
        let pattern = format!("{{{prefix}*}}:late");
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
