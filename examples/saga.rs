//! An order of several steps under one lock. If a step fails, or if the lock may be lost, the
//! finished steps are undone in reverse order. Steps must be idempotent: the next holder may repeat
//! them.

use std::time::Duration;
use std::{env, error};

use redlatch::Client;

type Step = fn() -> Result<(), Box<dyn error::Error>>;

fn main() -> Result<(), Box<dyn error::Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let client = Client::connect(&url)?;
    let steps: [(&str, Step, fn()); 3] = [
        ("reserve", || Ok(()), || println!("undo reserve")),
        ("charge", || Ok(()), || println!("undo charge")),
        ("ship", || Err("no carrier today".into()), || println!("undo ship")),
    ];
    let guard = client.reentrant_lock("order:7").lock()?;
    guard.on_lost(|why| eprintln!("order:7 was lost: {why}"));
    for (number, (name, run, _)) in steps.iter().enumerate() {
        // A step begins only if the lock certainly lasts for 5 s more.
        let done = guard.check(Duration::from_secs(5)).map_err(Into::into).and_then(|()| run());
        if let Err(error) = done {
            println!("{name} failed: {error}");
            steps[..number].iter().rev().for_each(|(.., undo)| undo());
            break;
        }
    }
    guard.unlock()?;
    Ok(())
}
