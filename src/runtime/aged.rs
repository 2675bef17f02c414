//! Ends the leases of a client that uses a server in memory, when a test advances the server's
//! time.

use std::sync::Weak;
use std::time::Duration;

use redlatch_client::sync::clock;

use super::Core;

impl Core {
    /// Registers the client with its server in memory. When a test advances the server's time, the
    /// leases of all registered clients grow older by the same time.
    pub(super) fn age_with_others(&self) {
        let Some(others) = &self.config.ages_with else { return };
        let core = Weak::clone(&self.itself);
        others.add(Box::new(move |by| {
            let core = core.upgrade();
            core.as_ref().inspect(|core| core.age(by)).is_some()
        }));
    }

    fn age(&self, by: Duration) {
        let by = clock::nanos(by);
        let members = self.members.all();
        let renewals: Vec<_> = members.into_iter().flat_map(|member| member.age(by)).collect();
        if !renewals.is_empty() {
            self.watchdog.renew_now(renewals);
        }
    }
}
