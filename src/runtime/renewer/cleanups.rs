//! Sends cleanups until they are done.

use std::collections::VecDeque;
use std::time::Duration;

use redlatch_client::sync::clock;
use redlatch_client::{Command, Outcome};

use super::{NAMES_PER_CALL, Renewer};
use crate::lease::Cleanup;
use crate::scripts;

/// The time after which a keep-alive that panicked is due again.
const RETRY_AFTER_PANIC: Duration = Duration::from_secs(1);

impl Renewer {
    /// Repeats the latest releases of expirable permits, which a new run of the server may lack.
    pub(super) fn release_permits_again(&mut self, is_meant: impl Fn(&Self, &str) -> bool) {
        for (key, returned) in self.core.released_permits.by_semaphore(|name| is_meant(self, name))
        {
            let name = self.core.name(key.clone());
            for ids in returned.ids.chunks(NAMES_PER_CALL) {
                let release = scripts::expirable_semaphore::release_again_command(&key, ids);
                self.cleanups.push(Cleanup::left_over(&name, release, returned.lease));
            }
        }
    }

    /// Sends one packet of due cleanups, and keeps the unfinished cleanups. The other due cleanups
    /// wait for the next call, so that renewals can go between the packets. There may be thousands
    /// of cleanups, and each packet takes a round trip.
    pub(super) fn send_due_cleanups(&mut self, now: u64) {
        let is_due = |cleanup: &Cleanup| cleanup.due() <= now;
        let keep_alives = self.cleanups.extract_if(.., |it| it.is_keep_alive() && is_due(it));
        let mut due: VecDeque<_> = keep_alives.collect();
        due.extend(self.cleanups.extract_if(.., |it| is_due(it)).take(NAMES_PER_CALL));
        if self.core.servers.cluster().is_some() && !self.core.is_shut_down() {
            // Another server may have the slot now. Give the cleanup back, because this server may
            // never come back.
            let (here, elsewhere) = due.into_iter().partition(|cleanup| match cleanup.server() {
                Some(number) => number == self.server,
                None => self.is_home(cleanup.name()),
            });
            due = here;
            let elsewhere: VecDeque<_> = elsewhere;
            elsewhere.into_iter().for_each(|cleanup| self.core.watchdog.clean_up(cleanup));
        }
        self.catch_panic(|renewer| renewer.send_cleanups(&mut due));
        // After a panic, some cleanups are left in `due`.
        while !due.is_empty() {
            let outcome = Err(self.panicked());
            if !self.catch_panic(|renewer| renewer.handle_cleanup_outcome(&mut due, &outcome, true))
            {
                let cleanup = due.pop_front();
                // After the client's end, a keep-alive would be sent again and again without a
                // pause.
                let goes_on = |it: &Cleanup| it.is_keep_alive() && !self.core.is_shut_down();
                let keep_alive = cleanup.filter(goes_on);
                self.cleanups.extend(keep_alive.map(|it| it.delayed(RETRY_AFTER_PANIC)));
            }
        }
    }

    /// Sends the cleanups in one packet.
    fn send_cleanups(&mut self, due: &mut VecDeque<Cleanup>) {
        let mut commands = Vec::new();
        due.retain_mut(|cleanup| push_command(cleanup.command(), &mut commands));
        if commands.is_empty() {
            return;
        }
        let (outcomes, resent) = self.own.exchange(&commands, None);
        for outcome in &outcomes {
            self.handle_cleanup_outcome(due, outcome, resent);
        }
    }

    /// Handles the outcome of the first cleanup's command, and only then removes the cleanup, so
    /// that a panic does not lose it.
    fn handle_cleanup_outcome(
        &mut self,
        due: &mut VecDeque<Cleanup>,
        outcome: &Outcome,
        resent: bool,
    ) {
        let (watchdog, ended) = (&self.core.watchdog, self.core.is_shut_down());
        let goes_on = due.front_mut().is_some_and(|cleanup| {
            cleanup.handle_outcome(outcome, resent, clock::now(), watchdog, ended)
        });
        let cleanup = due.pop_front();
        self.cleanups.extend(cleanup.filter(|_| goes_on));
    }
}

/// Adds `command` to `commands` if it is `Some`. Returns whether it was added.
fn push_command(command: Option<Command>, commands: &mut Vec<Command>) -> bool {
    let is_wanted = command.is_some();
    commands.extend(command);
    is_wanted
}
