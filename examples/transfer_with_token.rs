//! A transfer between two accounts. The store refuses the write of a process that has slept past
//! the end of its lock. A real store does this in its SQL transaction: see the guide, "Fencing".

use std::collections::HashMap;
use std::{env, error};

use redlatch::{Client, FencingToken};

/// An account's balance, with the highest token that has written it.
type Accounts = HashMap<String, (i64, Option<FencingToken>)>;

fn main() -> Result<(), Box<dyn error::Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let client = Client::connect(&url)?;
    let mut accounts = Accounts::from([("alice".into(), (100, None)), ("bob".into(), (0, None))]);
    let (alice, bob) = (client.fenced_lock("alice"), client.fenced_lock("bob"));
    // The `MultiLock` takes both locks in the order of their names, so two transfers cannot
    // deadlock.
    let guard = redlatch::MultiLock::new([&alice, &bob])?.lock()?;
    let late = guard.tokens().any(|(name, token)| accounts[name].1 > Some(token));
    if late {
        return Err("a later holder has written".into());
    }
    for ((name, token), amount) in guard.tokens().zip([-30, 30]) {
        accounts.entry(name.to_owned()).and_modify(|old| *old = (old.0 + amount, Some(token)));
    }
    println!("{accounts:?}");
    drop(guard); // the transfer stands: an error of `unlock` would not undo it
    Ok(())
}
