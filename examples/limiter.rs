//! A limit for all machines together: at most three downloads at a time. The permit of a killed
//! process is free again within 30 s.

use std::time::Duration;
use std::{env, thread};

use redlatch::{Client, Error, NotTaken, Taken};

fn main() -> Result<(), Error> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let client = Client::connect(&url)?;
    let slots = client.expirable_semaphore("downloads").with_permits(3);
    match slots.try_acquire_for(Duration::from_secs(5))? {
        Taken(permit) => {
            println!("downloads, as one of three");
            thread::sleep(Duration::from_millis(100)); // the download
            permit.release()
        }
        NotTaken => {
            println!("three others download: try again later");
            Ok(())
        }
    }
}
