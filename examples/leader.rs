//! A service with several processes, one of which leads. On SIGTERM or Ctrl-C the leader resigns,
//! and another process leads at once. Needs a crate that handles signals: `cargo add ctrlc -F
//! termination`.

use std::time::Duration;
use std::{env, error, thread};

use redlatch::{CancelToken, Client};

fn main() -> Result<(), Box<dyn error::Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let (client, stop) = (Client::connect(&url)?, CancelToken::new());
    let on_signal = stop.clone();
    ctrlc::set_handler(move || on_signal.cancel())?;
    let election = client.leader_election("scheduler").with_watchdog(Duration::from_secs(10));
    election.run(&stop, |leadership, stop| {
        println!("leads, with token {}", leadership.token());
        // One step of the leader's work takes less than a second.
        while !stop.is_cancelled() && leadership.check(Duration::from_secs(1)).is_ok() {
            thread::sleep(Duration::from_millis(100));
        }
    })?; // the run resigns whenever the closure returns
    client.shutdown();
    println!("stopped");
    Ok(())
}
