//! The outcomes of calls on a busy machine, and the texts of errors.

use std::time::Instant;

use redlatch::{Attempt, Error, NotTaken};

use super::{TIMEOUT, wait_until};

/// Returns the result of a call whose limit is so short that the reply may come too late on a busy
/// machine. Repeats the call until a reply comes in time.
#[track_caller]
pub(crate) fn answered<T>(call: impl Fn() -> Result<T, Error>) -> T {
    let until = Instant::now() + TIMEOUT;
    loop {
        match call() {
            Err(error) if is_unanswered(&error) && Instant::now() < until => {}
            got => return got.unwrap(),
        }
    }
}

/// Returns the error of a call that must fail. Repeats the call until it fails because of a reply.
#[track_caller]
pub(crate) fn refused<T>(call: impl Fn() -> Result<T, Error>) -> Error {
    let refused = || call().err().filter(|error| !is_unanswered(error));
    let mut error = None;
    wait_until("it is refused", TIMEOUT, || {
        error = refused();
        error.is_some()
    });
    error.expect("an error")
}

/// Returns the result of a call with a short limit, or `None` if no reply came in time.
#[track_caller]
pub(crate) fn if_answered<T>(got: Result<Attempt<T>, Error>) -> Option<T> {
    got.or_else(unanswered).unwrap().into_option()
}

/// Returns `NotTaken` if the error says that the call's own time had passed.
pub(crate) fn unanswered<T>(error: Error) -> Result<Attempt<T>, Error> {
    if is_unanswered(&error) { Ok(NotTaken) } else { Err(error) }
}

fn is_unanswered(error: &Error) -> bool {
    error.to_string().contains("the call's own time was over")
}

/// Asserts that an error concerns the server, names `name`, and has `hint` in its text.
#[track_caller]
pub(crate) fn is_clear(error: &Error, name: &str, hint: &str) {
    assert!(error.kind().is_server_trouble(), "{error}");
    assert_eq!(error.name(), Some(name), "{error}");
    assert!(error.to_string().contains(hint), "no {hint:?} in: {error}");
}

/// Whether this is a server's error for a command that the user may not run, alone or in a script.
/// The texts are those since Redis 7.2, and for a script also the text of Redis 7.0.
pub(crate) fn forbids_a_command(error: &str) -> bool {
    ["no permissions to run", "can't run", "may not run"].iter().any(|said| error.contains(said))
}
