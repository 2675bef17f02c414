//! The driver of the crate rlock, with its synchronous locks.

use std::time::Duration;

use rlock::AcquireOptions;
use rlock::sync_lock::RLock;

use super::{Client, Options, Turn, is_writer, lease, name};

pub(crate) struct Rlock {
    client: RLock,
    how: AcquireOptions,
    options: Options,
}

impl Rlock {
    pub(crate) fn connect(options: &Options) -> Result<Self, String> {
        let client = RLock::new(options["url"].as_str()).map_err(|error| error.to_string())?;
        let mut how = AcquireOptions::builder().ttl(lease(options));
        if options["peer"] == "rlock-1ms" {
            how = how.retry_interval(Duration::from_millis(1));
        }
        let how = how.build().map_err(|error| error.to_string())?;
        Ok(Self { client, how, options: options.clone() })
    }
}

impl Client for Rlock {
    fn turn(&self, thread: u64) -> Turn {
        let (client, name) = (self.client.clone(), name(&self.options, thread));
        let (how, read_write) = (self.how.clone(), self.options["work"] == "rw");
        Box::new(move |turn, inside| {
            let how = how.clone();
            if !read_write {
                let Ok(mut guard) = client.acquire_mutex_with_options(&name, how) else {
                    return false;
                };
                inside();
                guard.release().is_ok()
            } else if is_writer(turn) {
                let Ok(mut guard) = client.acquire_write_with_options(&name, how) else {
                    return false;
                };
                inside();
                guard.release().is_ok()
            } else {
                let Ok(mut guard) = client.acquire_read_with_options(&name, how) else {
                    return false;
                };
                inside();
                guard.release().is_ok()
            }
        })
    }
}
