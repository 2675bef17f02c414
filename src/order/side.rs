//! A seat of a name. A thread in the seat may take another level, and another thread may join it.

use std::sync::Arc;

use redlatch_client::sync::Thread;

use super::cohort::Cohort;
use super::outcome::GateOutcome;
use crate::hold::{Seat, Tenancy, Terms};

/// A seat, and the state that outlives its holds: the turn, and the number of forced unlocks.
#[derive(Debug, Default)]
pub(crate) struct Side {
    pub(crate) seat: Option<Seat>,
    pub(crate) cohort: Cohort,
    /// The number of forced unlocks of this process that the server has answered.
    pub(crate) forced_unlocks: u64,
}

/// When a thread may join a hold of other threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joining {
    No,
    InTurn,
    AnyTime,
}

impl Side {
    /// Adds a level to the thread's tenancy if the tenancy is in the seat. Returns `None` if the
    /// seat is empty.
    #[inline]
    pub(crate) fn reenter<I>(
        &mut self,
        thread: &Arc<Thread>,
        terms: Terms,
        now: u64,
    ) -> Option<GateOutcome<I>> {
        let seat = self.seat.as_mut()?;
        if !seat.tenancy.is_held_at(now) {
            return Some(GateOutcome::Expired(Arc::clone(&seat.tenancy.hold())));
        }
        let Some((tenancy, levels)) = seat.tenant(thread) else {
            return Some(GateOutcome::Occupied);
        };
        let tenancy = Arc::clone(tenancy);
        let Some(level) = levels.add_level(terms, now) else { return Some(GateOutcome::TooDeep) };
        seat.note_level(level);
        Some(GateOutcome::Reentered(tenancy))
    }

    pub(crate) fn add_level<I>(
        &mut self,
        tenancy: &Arc<Tenancy>,
        terms: Terms,
        now: u64,
    ) -> GateOutcome<I> {
        let Some(seat) = &mut self.seat else { return GateOutcome::Occupied };
        let hold = Arc::clone(&seat.tenancy.hold());
        let Some(levels) = seat.levels_of(tenancy) else { return GateOutcome::Occupied };
        if !tenancy.is_held_at(now) {
            return GateOutcome::Expired(hold);
        }
        let Some(level) = levels.add_level(terms, now) else { return GateOutcome::TooDeep };
        seat.note_level(level);
        GateOutcome::Reentered(Arc::clone(tenancy))
    }

    /// Lets a thread share a hold. A thread that already has the hold gets another level. Another
    /// thread joins if the turn has [just begun](Cohort::may_join) and no other process waits, or
    /// [at any time](Joining::AnyTime). The `bool` is `false` only if the thread joined when the
    /// turn was too old. Returns `None` if the seat is empty.
    pub(super) fn join<I>(
        &mut self,
        thread: &Arc<Thread>,
        terms: Terms,
        joining: Joining,
        now: u64,
    ) -> Option<(GateOutcome<I>, bool)> {
        let entered = self.reenter(thread, terms, now)?;
        let seat = self.seat.as_mut()?;
        let in_turn = seat.is_open && self.cohort.may_join(now);
        let may_join = match joining {
            Joining::No => false,
            Joining::InTurn => in_turn,
            Joining::AnyTime => true,
        };
        if !matches!(entered, GateOutcome::Occupied) || !may_join {
            return Some((entered, true));
        }
        let hold = Arc::clone(&seat.tenancy.hold());
        let tenancy = Arc::new(Tenancy::since(hold, Arc::clone(thread), now));
        seat.join(Arc::clone(&tenancy), terms, now);
        Some((GateOutcome::Joined(tenancy), in_turn))
    }
}
