//! How a client hears of the loss of a hold: after a while the subscriber has the server track the
//! hold's key (`pubsub/tracking.rs`). A hold that ends before that costs nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::Value;
use redlatch_client::pubsub::{Question, Tracked};

use super::hold::Hold;
use super::site::Site;
use crate::runtime::Member;
use crate::scripts;
use crate::scripts::Owner;

impl Hold {
    /// Whether the server tracks the hold's key, or has done so.
    pub(crate) fn is_tracked(&self) -> bool {
        self.tracked.load(Ordering::Relaxed)
    }
}

impl Site {
    fn tracked_owner(&self) -> Option<Owner> {
        self.gate.hold().filter(|hold| hold.is_tracked()).map(|hold| hold.owner)
    }
}

impl Tracked for Site {
    fn question(self: Arc<Self>) -> Option<Question> {
        let owner = self.tracked_owner()?;
        let command = scripts::lock::is_held_by_command(&self.name, &owner);
        let answered = Box::new(move |reply: &Value| {
            // The change of the key is only a hint. A hold that was released meanwhile needs no
            // renewal.
            if *reply != Value::Int(1) && self.tracked_owner().is_some() {
                let core = Arc::clone(&self.core);
                core.watchdog.renew_now(self.renew_now());
            }
        });
        Some(Question { command, answered })
    }
}
