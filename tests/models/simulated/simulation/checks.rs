//! The rules that need to see all processes.

use super::{Ours, Simulation};
use crate::simulated::client::{LEASE, MS, SECOND, Time};
use crate::simulated::rules::Broken;

/// After a loss of keys, some owners may lack their entries for this time.
const LOST: Time = 12 * SECOND;

impl Simulation<'_> {
    /// Whether the process could take a free lock.
    pub(super) fn is_well(&self, own: &Ours) -> bool {
        let hears = own.connection.is_some_and(|there| !self.connections[there].is_cut);
        !own.is_dead
            && !own.is_stopped
            && own.machine.is_waiting()
            && hears
            && own.troubled < self.now
    }

    pub(super) fn look_at_waits(&mut self) -> Result<(), Broken> {
        for lock in 0..self.locks.len() {
            let state = self.now_of(lock);
            let is_awaited = self.ours.iter().any(|own| own.site == lock && self.is_well(own));
            let is_free = state.is_open() && !self.is_full;
            let unclaimed = state.holders.iter().filter_map(|holder| {
                let own = self.ours.iter().find(|own| holder.starts_with(&own.uuid))?;
                let is_ended =
                    own.claim.is_none_or(|claim| self.locks[lock].claims[claim].until <= self.now);
                let could_say = !own.is_dead && !own.is_stopped && own.troubled < self.now;
                (is_ended && could_say).then(|| (holder.as_str(), own.in_doubt.contains(holder)))
            });
            let now = self.now;
            let are_lost = self.locks[lock].disturbed.last().is_some_and(|at| now - at < LOST);
            // If a clock was set back, every lease becomes longer.
            let unclaimed: Vec<_> = unclaimed.filter(|_| !are_lost && is_awaited).collect();
            let waits = &mut self.locks[lock].waits;
            let free = waits.free(now, is_awaited && is_free)?;
            let unclaimed = waits.unclaimed(now, &unclaimed)?;
            self.summary.most("longest free (ms)", free / MS);
            self.summary.most("longest unclaimed (ms)", unclaimed / MS);
        }
        Ok(())
    }

    pub(super) fn check_end(&mut self) -> Result<(), Broken> {
        for own in &self.ours {
            self.summary.add("grants to ours", own.grants as i64);
            self.summary.most("longest wait of ours (ms)", own.longest / MS);
            if !own.is_dead && !own.machine.is_idle() {
                return Err(format!("{} is not done: {:?}", own.uuid, own.machine));
            }
        }
        for java in &self.java {
            self.summary.add("grants to Redisson", java.grants as i64);
        }
        for lock in 0..self.locks.len() {
            let state = self.now_of(lock);
            let lives = |owner: &&String| {
                self.ours.iter().any(|own| !own.is_dead && owner.starts_with(&own.uuid))
            };
            if let Some(owner) = state.queue.iter().chain(&state.holders).find(lives) {
                return Err(format!("a place or the hold of {owner} is left behind"));
            }
            let later = self.now + self.offset + 61 * SECOND + LEASE * MS;
            let state = self.store.look(later, self.locks[lock].site.place());
            if !state.is_clean() {
                return Err(format!("left for ever: {:?}: {state:?}", self.locks[lock].site));
            }
        }
        Ok(())
    }
}
