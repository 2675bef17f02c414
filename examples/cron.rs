//! A job that cron starts on each machine every ten minutes. Only one of the machines runs the job.
//! If a run fails, the job is not repeated before the next ten minutes.

use std::env;
use std::time::Duration;

use redlatch::{Client, Error, Taken};

fn main() -> Result<(), Error> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let client = Client::connect(&url)?;
    let lock = client.reentrant_lock("report");
    // This interval is shorter than the time between two runs, and longer than the difference
    // between the machines' clocks.
    if let Taken(_run) = lock.try_once_per(Duration::from_secs(9 * 60))? {
        println!("this machine writes the report");
    } else {
        println!("another machine writes the report, or has written it");
    }
    Ok(())
}
