//! The background threads of a client.

use std::cell::Cell;
use std::io;

use crossbeam_channel::Sender;

use super::backend::thread;

thread_local! {
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// Starts a background thread of a client. The thread keeps `alive` until it ends.
pub fn own_thread(
    name: &str,
    alive: Option<Sender<()>>,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
        OWN.set(true);
        work();
        drop(alive);
    });
    thread.map(drop)
}

/// Whether the calling thread is a background thread of a client. If a background thread drops the
/// last handle (which an `on_lost` callback may own), the thread must not wait for its own end.
pub fn on_own_thread() -> bool {
    OWN.try_with(Cell::get).unwrap_or(false)
}
