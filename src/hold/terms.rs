//! The terms on which a thread wants a lock: its lease.

use std::time::Duration;

use redlatch_client::sync::clock;

use crate::config;
use crate::error::{Error, ErrorKind};
use crate::name::Name;
use crate::runtime::Core;

/// The maximum lease: 300 years. No sum of such leases overflows.
const LONGEST_LEASE: Duration = Duration::from_millis(10_000_000_000_000);

/// The lease that a thread wants. (The type is small, because each guard and each level has a
/// copy.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The lease in nanoseconds, the unit of [`clock`].
    lease: u64,
    is_watched: bool,
    leaves_to_expire: bool,
    /// Whether the process wants a message when others wait for the lock.
    pub(crate) hears: bool,
}

impl Terms {
    /// Returns terms with this lease, which the watchdog renews.
    pub(crate) const fn watched(lease: Duration) -> Self {
        Self { lease: clock::nanos(lease), is_watched: true, leaves_to_expire: false, hears: false }
    }

    /// Returns terms with this lease, which is never renewed.
    pub(crate) const fn fixed(lease: Duration) -> Self {
        Self { is_watched: false, ..Self::watched(lease) }
    }

    /// Returns the same terms, for a thread that will leave its hold to expire as soon as it has
    /// the lock. Such a thread needs the full lease from the server's reply. A grant by message
    /// lasts only 2 s, and a hold from another thread has only its remaining lease. A later
    /// extension might fail when the thread has already left the hold.
    pub(crate) const fn leaving_to_expire(self) -> Self {
        Self { leaves_to_expire: true, ..self }
    }

    /// Returns the same terms, with this value of `hears`.
    pub(crate) const fn hearing(self, hears: bool) -> Self {
        Self { hears, ..self }
    }

    /// Whether the terms are those of a thread that leaves its hold to expire.
    pub(crate) fn leaves_to_expire(self) -> bool {
        self.leaves_to_expire
    }

    pub(crate) fn lease(self) -> Duration {
        Duration::from_nanos(self.lease)
    }

    pub(crate) fn nanos(self) -> u64 {
        self.lease
    }

    pub(crate) fn is_watched(self) -> bool {
        self.is_watched
    }

    /// Returns the lease if the watchdog renews it.
    pub(crate) fn watched_lease(self) -> Option<Duration> {
        self.is_watched.then(|| self.lease())
    }

    /// Returns the lease if it is never renewed.
    pub(crate) fn fixed_lease(self) -> Option<Duration> {
        (!self.is_watched).then(|| self.lease())
    }

    #[inline]
    pub(crate) fn check(self, name: &Name) -> Result<(), Error> {
        const SHORTEST: u64 = clock::nanos(config::SHORTEST_WATCHDOG);
        const LONGEST: u64 = clock::nanos(config::LONGEST_WATCHDOG);
        // The usual case needs no arithmetic.
        if self.is_watched && SHORTEST <= self.lease && self.lease <= LONGEST {
            return Ok(());
        }
        self.check_range(name)
    }

    fn check_range(self, name: &Name) -> Result<(), Error> {
        if self.is_watched {
            let checked = config::check_watchdog("with_watchdog", self.lease());
            checked.map_err(|error| error.of(name))
        } else {
            check_lease(name, self.lease())
        }
    }

    /// Returns advice about a lease that is too short.
    pub(crate) fn lease_advice(self, core: &Core) -> &'static str {
        match self.watched_lease() {
            Some(lease) if lease == core.config.watchdog_timeout => {
                "raise watchdog_timeout; while the server is away, no renewal succeeds"
            }
            Some(_) => "take a longer watched lease",
            None => "take a longer lease",
        }
    }
}

pub(crate) fn check_lease(name: &Name, lease: Duration) -> Result<(), Error> {
    if lease < Duration::from_millis(1) || lease > LONGEST_LEASE {
        let message = format!(
            "a lease of {lease:?} is not usable: it must be from 1 ms to 10^13 ms (300 years); \
             without a lease, the watchdog renews it until it is released"
        );
        return Err(Error::new(ErrorKind::Config, message).of(name));
    }
    Ok(())
}
