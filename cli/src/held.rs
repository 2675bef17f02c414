//! A lock or a permit that was taken for a command.

use std::time::Duration;

use redlatch::{Client, Error, ExpirablePermit, Lock, LockGuard, LostReason, Wait};

use crate::args::Run;

/// See the module.
pub(crate) enum Held {
    Lock(LockGuard, Option<u64>),
    Permit(ExpirablePermit),
}

macro_rules! each {
    ($held:expr, $it:ident => $what:expr) => {
        match $held {
            Held::Lock($it, _) => $what,
            Held::Permit($it) => $what,
        }
    };
}

impl Held {
    /// Waits for it. `None`: the wait is over.
    pub(crate) fn take(
        client: &Client,
        name: &str,
        run: &Run,
        wait: Wait<'_>,
    ) -> Result<Option<Self>, Error> {
        if let Some(permits) = run.permits {
            let semaphore = client.expirable_semaphore(name);
            let _set = semaphore.try_set_permits(permits)?;
            return Ok(semaphore.acquire_within(wait)?.map(Self::Permit));
        }
        if run.fenced {
            let guard = client.fenced_lock(name).lock_within(wait)?;
            return Ok(guard.map(|guard| {
                let token = guard.token().get();
                Self::Lock(guard.into(), Some(token))
            }));
        }
        let lock: Box<dyn Lock> = if run.shared {
            Box::new(client.read_write_lock(name).read().clone())
        } else if run.exclusive {
            Box::new(client.read_write_lock(name).write().clone())
        } else if run.fair {
            Box::new(client.fair_lock(name))
        } else {
            Box::new(client.reentrant_lock(name))
        };
        Ok(lock.lock_within(wait)?.map(|guard| Self::Lock(guard, None)))
    }

    pub(crate) fn token(&self) -> Option<u64> {
        if let Self::Lock(_, token) = self { *token } else { None }
    }

    pub(crate) fn remaining(&self) -> Duration {
        each!(self, held => held.remaining())
    }

    pub(crate) fn check(&self, slack: Duration) -> Result<(), Error> {
        each!(self, held => held.check(slack))
    }

    pub(crate) fn on_lost(&self, callback: impl FnOnce(LostReason) + Send + 'static) {
        each!(self, held => held.on_lost(callback));
    }

    pub(crate) fn release(self) -> Result<(), Error> {
        match self {
            Self::Lock(guard, _) => guard.unlock(),
            Self::Permit(permit) => permit.release(),
        }
    }
}
