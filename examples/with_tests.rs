//! A function under a lock, and a test of what the function does if the lock is lost. The test
//! needs no server: `cargo add --dev redlatch -F in-memory`.

use std::env;
use std::time::Duration;

use redlatch::{Client, Error};

fn main() -> Result<(), Error> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    sell(&Client::connect(&url)?, || println!("charged"), || println!("shipped"))
}

fn sell(client: &Client, charge: impl FnOnce(), ship: impl FnOnce()) -> Result<(), Error> {
    let guard = client.reentrant_lock("stock").lock()?;
    charge();
    guard.check(Duration::from_secs(1))?;
    ship();
    guard.unlock()
}

#[test]
fn ships_nothing_without_the_lock() -> Result<(), Error> {
    let server = redlatch::InMemoryServer::new()?;
    let too_slow = || server.advance(Duration::from_secs(31)); // longer than the lease
    let sold = sell(&server.client()?, too_slow, || panic!("shipped without the lock"));
    assert!(sold.is_err());
    sell(&server.client()?, || (), || ()) // the lock is free for the next sale
}
