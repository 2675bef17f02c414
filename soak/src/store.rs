//! The data that the locks protect: values on a separate server, which never fails.
//!
//! Each fenced lock has two values. Every write adds one to the value that was read, after a sleep.
//! For the fenced value the store refuses an older token. For its unfenced twin it accepts any
//! write.

use redis::{Connection, RedisResult, Script};

/// A read stores its token, too: a reader that continues must have the newest token.
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

/// The name of a lock, and the values that were written under the lock, in their order.
pub(crate) type Written = (String, Vec<u64>);

pub(crate) struct Store {
    connection: Connection,
    read: Script,
    write: Script,
}

impl Store {
    pub(crate) fn connect(url: &str) -> RedisResult<Self> {
        let connection = redis::Client::open(url)?.get_connection()?;
        Ok(Self { connection, read: Script::new(READ), write: Script::new(WRITE) })
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

    /// The values that were written under the locks of this prefix, with the names of the locks:
    /// first the fenced values, then the unfenced ones.
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
