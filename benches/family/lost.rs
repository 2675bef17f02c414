//! The time from the DEL of a held lock to the call of its holder's `on_lost`.
//!
//! Between the DEL and the call, the server reports the change of the key, the client queries
//! whether the hold still exists, and a renewal detects the loss. These steps take two and a half
//! round trips, and four threads wake up.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use redlatch::Client;

use crate::clock::{self, MILLISECOND};
use crate::cores::Cores;
use crate::lab::Lab;
use crate::raw;
use crate::report::{Goals, Table, time};
use crate::round_trips::Figures;

/// The number of locks, which are held at the same time and deleted one after the other.
const LOCKS: usize = 20;
/// The time after which the server tracks all locks.
const TRACK_TIME: Duration = Duration::from_millis(400);
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    println!("From the DEL of a lock that is held for a while to its holder's on_lost:\n");
    let mut table = Table::new(&["where", "what", "number", "least", "median", "most"]);
    for delayed in [false, true] {
        let mut told = Figures::default();
        lab.put_server(Cores::Any);
        lab.rounds(|| told.0.extend(losses(lab, delayed)));
        let place = if delayed { "1 ms away".to_owned() } else { Cores::Any.to_string() };
        let [least, median, most] = [0.0, 0.5, 1.0].map(|part| told.at(part));
        let number = told.0.len();
        let figures = [least, median, most].map(time);
        table.row(&[&place, &"lock", &number, &figures[0], &figures[1], &figures[2]]);
        goals.add(
            format!("a DEL of a held lock until on_lost, {place}: most"),
            time(most),
            "≤ 20 ms",
        );
    }
    println!("{table}");
}

/// Returns the time of each loss.
fn losses(lab: &Lab, delayed: bool) -> Vec<f64> {
    let client = Client::connect(&lab.url(delayed)).unwrap();
    let mut redis = raw::connect(&lab.url(delayed));
    let (sender, told) = mpsc::channel();
    let end = clock::now() + lab.options.length.as_nanos() as u64;
    let mut times = Vec::new();
    while times.is_empty() || clock::now() < end {
        let names: Vec<_> = (0..LOCKS).map(|at| format!("bench {} {at}", lab.next())).collect();
        let guards: Vec<_> = names
            .iter()
            .map(|name| {
                let guard = client.reentrant_lock(name).lock().unwrap();
                let sender = sender.clone();
                guard.on_lost(move |_| sender.send(clock::now()).unwrap());
                guard
            })
            .collect();
        thread::sleep(TRACK_TIME);
        for name in &names {
            // Delete the locks one by one, so that all threads that must wake up are asleep.
            clock::sleep_until(clock::now() + 5 * MILLISECOND);
            let begun = clock::now();
            redis::cmd("DEL").arg(name).exec(&mut redis).unwrap();
            let heard = told.recv_timeout(TIMEOUT).unwrap();
            times.push((heard - begun) as f64);
        }
        drop(guards);
    }
    times
}
