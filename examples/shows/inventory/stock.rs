//! The shop's data in Redis: a number of items, and a ledger with a line for each sale.

use std::time::Duration;

use redis::{Commands, Connection, RedisResult};
use redlatch::{Error, ErrorKind, LockGuard, Script};

/// The keys of one run. Each run has its own prefix.
#[derive(Clone)]
pub(crate) struct Keys {
    pub(crate) lock: String,
    items: String,
    ledger: String,
    deaths: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        let key = |name: &str| format!("{prefix}:{name}");
        Self {
            lock: key("lock"),
            items: key("items"),
            ledger: key("ledger"),
            deaths: key("deaths"),
        }
    }
}

/// The time limit of each command, for the server and for this program.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The keys end after this number of seconds, in case a killed program does not delete them.
const KEPT: i64 = 60;

/// The stock, over a plain connection.
pub(crate) struct Stock {
    connection: Connection,
    keys: Keys,
    process: usize,
    sale: Script,
}

impl Stock {
    pub(crate) fn open(url: &str, keys: Keys, process: usize) -> RedisResult<Self> {
        let connection = redis::Client::open(url)?.get_connection_with_timeout(TIMEOUT)?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        connection.set_write_timeout(Some(TIMEOUT))?;
        let sale = Script::new("redis.call('decr', KEYS[1]) redis.call('rpush', KEYS[2], ARGV[1])");
        Ok(Self { connection, keys, process, sale })
    }

    pub(crate) fn fill(&mut self, items: u64) -> RedisResult<()> {
        self.connection.set_ex(&self.keys.items, items, KEPT.unsigned_abs())
    }

    /// Returns how many items are left. Negative if too many were sold.
    pub(crate) fn left(&mut self) -> RedisResult<i64> {
        let left: Option<i64> = self.connection.get(&self.keys.items)?;
        left.ok_or_else(|| (redis::ErrorKind::Client, "the stock was deleted meanwhile").into())
    }

    /// Takes one item and writes the sale into the ledger, with the number `seen` before the sale.
    ///
    /// The change and the ledger's line are one transaction, so a killed process never leaves half
    /// a sale.
    pub(crate) fn sell_one(&mut self, seen: i64) -> RedisResult<()> {
        redis::pipe()
            .atomic()
            .decr(&self.keys.items, 1)
            .rpush(&self.keys.ledger, format!("{} {seen}", self.process))
            .exec(&mut self.connection)
    }

    /// Like [`sell_one`](Self::sell_one), but in one script. The server runs the script only while
    /// the guard's lock is held. If the lock was lost, sells nothing and returns `false`.
    pub(crate) fn sell_one_under(&self, guard: &LockGuard, seen: i64) -> Result<bool, Error> {
        let Keys { items, ledger, .. } = &self.keys;
        let line = format!("{} {seen}", self.process);
        match guard.eval(&self.sale, &[items, ledger], &[line.as_bytes()]) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::LeaseLost => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns `true` only to the first process that calls this at this number of items. That
    /// process is then killed or paused.
    pub(crate) fn dies_first(&mut self, left: i64) -> RedisResult<bool> {
        self.connection.sadd(&self.keys.deaths, left)
    }

    /// Like [`left`](Self::left), but also extends the time to live of the keys.
    pub(crate) fn keep(&mut self) -> RedisResult<i64> {
        redis::pipe()
            .expire(&self.keys.items, KEPT)
            .ignore()
            .expire(&self.keys.ledger, KEPT)
            .ignore()
            .expire(&self.keys.deaths, KEPT)
            .ignore()
            .exec(&mut self.connection)?;
        self.left()
    }

    /// Returns all sales in their order.
    pub(crate) fn ledger(&mut self) -> RedisResult<Vec<Sale>> {
        let lines: Vec<String> = self.connection.lrange(&self.keys.ledger, 0, -1)?;
        let sale = |line: &String| {
            let (process, seen) = line.split_once(' ')?;
            Some(Sale { process: process.parse().ok()?, seen: seen.parse().ok()? })
        };
        let sales: Option<Vec<_>> = lines.iter().map(sale).collect();
        sales
            .ok_or_else(|| (redis::ErrorKind::Client, "somebody else wrote into the ledger").into())
    }

    /// Deletes all keys, after all processes have ended.
    pub(crate) fn delete(&mut self) {
        let Keys { lock, items, ledger, deaths } = &self.keys;
        // The key of a fair lock's queue.
        let queue = format!("redisson_lock_queue:{{{lock}}}");
        let timeouts = format!("redisson_lock_timeout:{{{lock}}}");
        let all = [lock, items, ledger, deaths, &queue, &timeouts];
        // Earlier commands of a killed process may arrive after the first deletion.
        while self.connection.del::<_, u64>(&all).is_ok_and(|gone| gone > 0) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A line of the ledger.
pub(crate) struct Sale {
    /// The number of the process that made the sale.
    pub(crate) process: usize,
    /// How many items the process saw in stock before the sale.
    pub(crate) seen: i64,
}
