//! A migration at the start of a service: the first process runs it, and the other processes wait
//! until it is done. The file `version` stands for the database table with the version.

use std::time::Duration;
use std::{env, error, fs};

use redlatch::{Client, Taken};

fn main() -> Result<(), Box<dyn error::Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let lock = Client::connect(&url)?.reentrant_lock("migration");
    let Taken(guard) = lock.try_lock_for(Duration::from_secs(300))? else {
        return Err("the migration takes more than 5 minutes".into());
    };
    if fs::read_to_string("version").is_ok_and(|version| version == "2") {
        println!("is at version 2");
    } else {
        println!("migrates to version 2"); // in one transaction, together with the version
        fs::write("version", "2")?;
    }
    guard.unlock()?;
    Ok(())
}
