//! The driver of redlatch.

use std::time::Duration;

use super::{Client, Options, Turn, is_writer, lease, name};
use crate::clock;

/// The time for which a thread polls for its reply, in the works with polling.
const POLLED: Duration = Duration::from_micros(50);

pub(crate) struct Redlatch {
    client: redlatch::Client,
    options: Options,
}

impl Redlatch {
    pub(crate) fn connect(options: &Options) -> Result<Self, String> {
        let mut builder =
            redlatch::Client::builder(&options["url"]).watchdog_timeout(lease(options));
        if options["peer"].contains("-busy") {
            builder = builder.busy_poll(POLLED);
        }
        let client = builder.connect().map_err(|error| error.to_string())?;
        if options["work"] == "semaphore" {
            client.semaphore(&options["name"]).try_set_permits(3).map_err(|it| it.to_string())?;
        }
        Ok(Self { client, options: options.clone() })
    }
}

/// A turn with a lock, which ends with `unlock` or with `drop`.
macro_rules! turn {
    ($lock:expr, $drop:expr) => {{
        let (lock, drops) = ($lock, $drop);
        Box::new(move |_, inside| {
            let Ok(guard) = lock.lock() else { return false };
            inside();
            if drops {
                drop(guard);
                return true;
            }
            guard.unlock().is_ok()
        })
    }};
}

impl Client for Redlatch {
    fn turn(&self, thread: u64) -> Turn {
        let (client, name) = (&self.client, name(&self.options, thread));
        let drops = self.options["peer"].ends_with("-drop");
        match self.options["work"].as_str() {
            "fair" => turn!(client.fair_lock(&name), drops),
            "semaphore" => {
                let semaphore = client.semaphore(&name);
                Box::new(move |_, inside| {
                    let Ok(permit) = semaphore.acquire() else { return false };
                    inside();
                    permit.release().is_ok()
                })
            }
            "rw" => {
                let lock = client.read_write_lock(&name);
                let mut read: Turn = turn!(lock.reader().clone(), drops);
                let mut write: Turn = turn!(lock.writer().clone(), drops);
                Box::new(
                    move |turn, inside| {
                        if is_writer(turn) { write(turn, inside) } else { read(turn, inside) }
                    },
                )
            }
            _ => turn!(client.reentrant_lock(&name), drops),
        }
    }

    fn latch(&self, name: &str, at: u64, period: u64, waits: bool) -> (u64, u64) {
        let latch = self.client.count_down_latch(name);
        clock::sleep_until(at);
        if !waits {
            latch.try_set_count(1).unwrap();
        }
        clock::sleep_until(at + period / if waits { 4 } else { 2 });
        let asked = clock::now();
        if waits {
            latch.wait().unwrap();
        } else {
            latch.count_down().unwrap();
        }
        (asked, clock::now())
    }
}
