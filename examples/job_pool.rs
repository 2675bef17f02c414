//! A pool of workers on any number of machines. No two workers work on the same job. A job is a
//! file in the shared folder `jobs`, and a finished job is a removed file.

use std::error::Error;
use std::{env, fs, thread};

use redlatch::{Client, Taken};

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let client = Client::connect(&url)?;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(|| work(&client))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or(Ok(())))
    })
}

fn work(client: &Client) -> Result<(), Box<dyn Error + Send + Sync>> {
    for job in fs::read_dir("jobs")? {
        let job = job?;
        let lock = client.reentrant_lock(&format!("job:{}", job.file_name().display()));
        // If another worker has this job, continue with the next job.
        let Taken(guard) = lock.try_lock()? else { continue };
        // Another worker may have finished the job before this worker took the lock.
        if job.path().exists() {
            println!("{}", fs::read_to_string(job.path())?); // the work
            guard.check(std::time::Duration::from_secs(1))?; // an error if the lock may be lost
            fs::remove_file(job.path())?;
        }
    }
    Ok(())
}
