//! The driver of the crate rslock, whose locks are asynchronous. The driver's threads are tasks.

use std::time::Duration;

use rslock::LockManager;
use tokio::runtime::{Builder, Runtime};

use super::records::Records;
use super::{Go, Options, inside, lease, name, number};
use crate::clock;

pub(crate) struct Rslock {
    runtime: Runtime,
    manager: LockManager,
}

impl Rslock {
    pub(crate) fn connect(options: &Options) -> Self {
        let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
        let mut manager = LockManager::new(vec![options["url"].as_str()]);
        if options["peer"] == "rslock-1ms" {
            // rslock waits for a random time that is shorter than this.
            manager.set_retry(u32::MAX, Duration::from_millis(2));
        }
        Self { runtime, manager }
    }

    pub(crate) fn run(&self, options: &Options, go: Go, records: Records) -> u64 {
        let threads: Vec<_> = (0..number(options, "threads"))
            .map(|thread| {
                let (manager, options) = (self.manager.clone(), options.clone());
                let (go, records) = (go.clone(), records.clone());
                self.runtime.spawn(take(thread, manager, options, go, records))
            })
            .collect();
        let joined = async {
            let mut failures = 0;
            for thread in threads {
                failures += thread.await.unwrap();
            }
            failures
        };
        self.runtime.block_on(joined)
    }
}

async fn take(
    thread: u64,
    manager: LockManager,
    options: Options,
    go: Go,
    records: Records,
) -> u64 {
    let rest = number(&options, "rest");
    let (name, lease) = (name(&options, thread), lease(&options));
    let mut mine = records.of_thread();
    let mut failures = 0;
    sleep_until(go.start).await;
    for turn in 0.. {
        let inside = inside(&options, turn);
        let mut asked = clock::now();
        if let Some(schedule) = &go.schedule {
            let Some(intended) = schedule.get(turn as usize) else { break };
            asked = *intended;
            sleep_until(asked).await;
        } else if asked >= go.end {
            break;
        }
        let lock = loop {
            if let Ok(lock) = manager.lock(name.as_str(), lease).await {
                break lock;
            }
            failures += 1;
            if clock::now() >= go.end {
                mine.push([thread, asked, 0, clock::now()]);
                return failures;
            }
        };
        let granted = clock::now();
        if go.through {
            records.write_now([thread, asked, granted, granted]);
        }
        if inside > clock::SPUN {
            sleep_until(granted + inside).await;
        } else {
            clock::work_until(granted + inside);
        }
        let released = clock::now();
        manager.unlock(&lock).await;
        if !go.through {
            mine.push([thread, asked, granted, released]);
        }
        if rest > 0 {
            sleep_until(clock::now() + rest).await;
        }
    }
    failures
}

async fn sleep_until(at: u64) {
    tokio::time::sleep(Duration::from_nanos(at.saturating_sub(clock::now()))).await;
}
