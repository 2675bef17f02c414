//! One thread's place in a fair lock's queue, from its first request to the hold or the end of its
//! wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::company::Answer;
use super::queue::{FairQueue, FairWaiter, Granted};
use crate::acquire::{Wait, await_confirmation, slow_poll};
use crate::connection::{Command, Outcome, Receiver};
use crate::error::Error;
use crate::hold::{Asked, Expected, Hold, Leaving, Share, Site, Tenancy};
use crate::node::Core;
use crate::protocol::Owner;
use crate::pubsub::Subscription;
use crate::script::fair::{FairAcquired, Followers, Others, left};
use crate::script::{Replied, Trouble};
use crate::sync::clock;

/// A place in the queue. Whoever drops it without the lock has left the queue, on every path.
pub(super) struct Place {
    pub(super) queue: Arc<FairQueue>,
    pub(super) site: Arc<Site>,
    pub(super) waiter: Arc<FairWaiter>,
    /// To the client's own channel, where scripts of ours tell it.
    pub(super) own: Subscription,
    /// While messages may name it.
    pub(super) expected: Arc<Expected>,
    /// The last request, and what the reply of some request said of the server's clock.
    pub(super) asked: Option<Asked>,
    /// When the first one was sent.
    pub(super) began: Option<u64>,
    pub(super) anchor: Option<Anchor>,
    /// To the channel where Redisson tells it, once one of Redisson's may.
    pub(super) redisson: Option<Subscription>,
    /// It has become a hold.
    pub(super) stays: bool,
    /// A request was sent twice: the first one may arrive after the waiter has left.
    pub(super) twice: bool,
    /// Redis certainly does not know of it: nothing was sent, or it was refused.
    pub(super) unknown_there: bool,
}

/// An exchange whose reply said what the server's clock showed: that was not before `sent`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Anchor {
    sent: u64,
    server: u64,
}

/// What a place listened to before a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Listening {
    confirmed: bool,
    own: u64,
    redisson: Option<u64>,
}

impl Place {
    /// From here on no hold is passed to it. `Some`: one was.
    pub(super) fn stand_down(&self) -> Option<Arc<Tenancy>> {
        let mut waiters = self.queue.waiters.lock();
        waiters.standing.retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
        self.waiter.take_passed()
    }

    /// Sends a request: the first one with those of others of this process, a later one for itself.
    pub(super) fn ask(
        &mut self,
        is_first: bool,
    ) -> (Asked, Result<Replied<FairAcquired>, Trouble>) {
        let Self { queue, site, waiter, .. } = &*self;
        waiter.told.store(false, Ordering::SeqCst);
        let (asked, replied) = if is_first {
            let Answer { asked, replied } = queue.ask_together(site, waiter);
            (asked, replied)
        } else {
            let asked = Asked::now(site);
            let (lease, older) = (waiter.terms.lease(&site.core), self.older());
            let older = Others::Older(&older);
            (asked, queue.scripts().acquire(&site.route, &waiter.owner, lease, older))
        };
        self.began.get_or_insert(asked.at);
        self.asked = Some(asked);
        self.twice |= replied.as_ref().is_ok_and(|replied| replied.twice);
        (asked, replied)
    }

    /// The server answered at `now` that it is not the holder.
    pub(super) fn refused(&mut self, asked: Asked, now: u64) {
        if self.anchor.is_none_or(|anchor| anchor.server < now) {
            self.anchor = Some(Anchor { sent: asked.at, server: now });
        }
        // Void: it was refused after it had been granted. It was taken away again.
        self.waiter.granted.lock().take_if(|granted| granted.now < now);
    }

    /// A hold that the server granted to this place.
    pub(super) fn hold(&self, asked: Asked, followers: Followers) -> Hold {
        let Self { queue, site, waiter, .. } = self;
        let (line, lease) = (queue.line(followers), waiter.terms.lease(&site.core));
        Hold::new(Some(line), waiter.owner, waiter.terms, lease, asked, self.twice)
            .shared(Share::default(), Some(Arc::clone(&self.expected)))
    }

    /// The lock, if a message said that it is ours and that is still so. If it may be, the next thing
    /// to do is to ask.
    pub(super) fn take_grant(&self) -> Option<Hold> {
        let Self { queue, site, waiter, .. } = self;
        let Granted { now, received, lease, followers } = waiter.granted.lock().take()?;
        let asked = self.asked.filter(|asked| asked.incarnation == site.route.incarnation())?;
        // The server granted it not before this, whenever the message was read: the process may have
        // been stopped, and the lock be another's by now.
        let not_before = match self.anchor {
            // Void: see `refused`.
            Some(anchor) if anchor.server > now => return None,
            Some(anchor) => anchor.sent.saturating_add((now - anchor.server) * MS),
            None => self.began?,
        };
        let asked = Asked { at: not_before.min(received), ..asked };
        let hold = Hold::handed(waiter.owner, waiter.terms, lease, asked, self.twice)
            .shared(Share::default(), Some(Arc::clone(&self.expected)))
            .in_line(queue.line(followers));
        (clock::now() < hold.deadline()).then_some(hold)
    }

    /// Who of this process came before it and waits.
    pub(super) fn older(&self) -> Vec<Owner> {
        let number = self.waiter.owner.number();
        let waiters = self.queue.waiters.lock();
        let owners = waiters.standing.iter().map(|waiter| waiter.owner);
        let mut older: Vec<_> = owners.filter(|owner| owner.number() < number).collect();
        drop(waiters);
        older.sort_by_key(Owner::number);
        older
    }

    pub(super) fn listening(&self) -> Listening {
        let redisson = self.redisson.as_ref();
        Listening {
            confirmed: self.own.is_confirmed() && redisson.is_none_or(Subscription::is_confirmed),
            own: self.own.version(),
            redisson: redisson.map(Subscription::version),
        }
    }

    /// One of Redisson's holds the lock or stands ahead: its release tells on a channel of this
    /// waiter's alone. If none does, none will before this waiter asks again, since who comes later
    /// stands behind.
    pub(super) fn listen_to_redisson(&mut self) {
        let Self { queue, waiter, redisson, .. } = self;
        redisson
            .get_or_insert_with(|| queue.core.pubsub.listen_once(&queue.redissons_channel(waiter)));
    }

    /// Whether no message can have been missed since a request before which it listened like this.
    pub(super) fn is_heard_since(&self, before: Listening) -> bool {
        before.confirmed && before.redisson.is_some() == self.redisson.is_some()
    }

    /// The thread has the lock.
    pub(super) fn settle(mut self, tenancy: Arc<Tenancy>) -> Arc<Tenancy> {
        self.stand_down();
        self.stays = true;
        if self.twice && tenancy.hold.owner.as_bytes() != self.waiter.owner.as_bytes() {
            // It was passed the hold: that one's release does not undo a late request of this one.
            let Self { queue, site, waiter, .. } = &self;
            let give_up = queue.scripts().give_up_command(waiter.owner.as_bytes());
            site.undo(give_up, waiter.terms.lease(&site.core));
        }
        tenancy
    }

    /// The thread gives up, unless the hold was passed to it first.
    pub(super) fn leave(self) -> Option<Arc<Tenancy>> {
        let tenancy = self.stand_down().filter(|tenancy| tenancy.is_held())?;
        Some(self.settle(tenancy))
    }

    /// Sleeps until the thread should ask again, or what it listens to has moved. `false`: the wait is
    /// over.
    pub(super) fn sleep(
        &self,
        core: &Core,
        wait: &Wait<'_>,
        ask_after: Option<Duration>,
        listening: Listening,
    ) -> Result<bool, Error> {
        let thread = &self.waiter.thread;
        // The process's sign of life finds out what nobody was told, so that many who wait do not
        // each ask. Only the first ones in line know more.
        let sleep = ask_after.map_or_else(
            || slow_poll() + self.queue.core.config.fair_wait_timeout * 2,
            |ask| ask.max(SHORTEST_ASK),
        );
        let until = wait.sleep_until(sleep);
        wait.wakeable(thread, || {
            let _waking = self.own.wake(thread);
            let _waking = self.redisson.as_ref().map(|redisson| redisson.wake(thread));
            loop {
                if self.waiter.has_news() || self.listening() != listening {
                    return Ok(true);
                }
                wait.check(core, &self.queue.name)?;
                if wait.is_over() {
                    return Ok(false);
                }
                if until.is_some_and(|until| Instant::now() >= until) {
                    return Ok(true);
                }
                thread.parker().park_until(until);
            }
        })
    }

    /// Waits until messages reach the thread. `false`: the wait was over first.
    pub(super) fn await_messages(&self, core: &Core, wait: &Wait<'_>) -> Result<bool, Error> {
        let (name, thread) = (&self.queue.name, &self.waiter.thread);
        for subscription in std::iter::once(&self.own).chain(&self.redisson) {
            let news = || self.waiter.has_news();
            if !await_confirmation(subscription, core, name, thread, wait, news)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        let passed = self.stand_down();
        let mut waiters = self.queue.waiters.lock();
        waiters.newcomers.leave(&self.waiter);
        waiters.call_leader();
        drop(waiters);
        let command = self.queue.scripts().give_up_command(self.waiter.owner.as_bytes());
        let site = &self.site;
        let lease = self.waiter.terms.lease(&site.core);
        if self.twice {
            site.undo(command.clone(), lease);
        }
        if let Some(tenancy) = passed {
            // It was given the hold and cannot take it: on to the next.
            let _ = self.site.leave(&tenancy, None, Leaving::Posted);
            return;
        }
        // While the server is away, each call's would be sent for minutes.
        if self.unknown_there {
            return;
        }
        let leaving = Leave { site: Arc::clone(site), command: command.clone(), lease };
        site.core.post(&site.route, command, Arc::new(leaving));
    }
}

/// A waiter that leaves the queue.
struct Leave {
    site: Arc<Site>,
    command: Command,
    lease: Duration,
}

impl Receiver for Leave {
    fn receive(&self, outcome: Outcome) {
        match left(outcome) {
            Ok(_) => {}
            Err(_) => self.site.undo(self.command.clone(), self.lease),
        }
    }
}

const MS: u64 = 1_000_000;
const SHORTEST_ASK: Duration = Duration::from_millis(20);
