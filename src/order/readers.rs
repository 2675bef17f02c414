//! The readers in the order of a read-write lock. Such a lock has two seats, one for the writer and
//! one for the readers, but one queue and one leadership:
//!
//! ```text
//! writer's  readers'  the leadership
//! empty     empty     as in `mod.rs`
//! empty     taken     no thread's: a reader enters without a request while the turn lasts
//!                     a leader's: a writer that waits for the readers of this process and of
//!                     others, or a reader that asks whether it may join
//! taken     empty     no thread's: the others queue
//! taken     taken     the same: one thread has both seats. It writes, and may then go on to read
//! ```
//!
//! While a thread writes, no other thread of the process reads. The server never grants the lock to
//! a writer while readers hold it. So if a writer gets its seat while other threads are in the
//! readers' seat, these readers have lost their hold. At the end of the readers' turn, one thread
//! asks the server whether other processes wait. If none waits, another turn begins. A reader that
//! comes after a writer never overtakes it, in this process or in another process.

use std::sync::Arc;

use redlatch_client::sync::Thread;

use super::{GateOutcome, LockNeed, Order, Side};
use crate::hold::{Tenancy, Terms};
use crate::scripts::Mode;
use crate::waiting::Wake;

/// When a thread may join a hold of other threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joining {
    No,
    InTurn,
    AnyTime,
}

impl<I> Order<I> {
    /// If the thread already reads, it may read again, ahead of all waiters. Otherwise the thread
    /// joins the readers of its process if no thread writes, leads or waits, and if no kept write
    /// hold excludes readers.
    pub(super) fn enter_to_read(
        &mut self,
        thread: &Arc<Thread>,
        terms: Terms,
        now: u64,
    ) -> GateOutcome<I> {
        let is_alone = self.alone.seat.is_some() || self.queue.is_busy() || now < self.kept_until;
        let joining = if is_alone { Joining::No } else { Joining::InTurn };
        match self.side(Mode::Read).join(thread, terms, joining, now) {
            None | Some((GateOutcome::Occupied, _)) => {}
            Some((entered, _)) => return entered,
        }
        match &mut self.alone.seat {
            Some(seat) if !seat.tenancy.is_held_at(now) => {
                GateOutcome::Expired(Arc::clone(&seat.tenancy.hold()))
            }
            Some(seat) => seat.tenant(thread).map_or(GateOutcome::Occupied, |(writing, _)| {
                GateOutcome::Under(Arc::clone(writing))
            }),
            None => self.queue.try_lead().map_or(GateOutcome::Occupied, GateOutcome::Leads),
        }
    }

    pub(crate) fn join_any_time(
        &mut self,
        thread: &Arc<Thread>,
        terms: Terms,
        now: u64,
    ) -> Option<(Arc<Tenancy>, bool)> {
        if now < self.kept_until {
            return None;
        }
        match self.readers.as_mut()?.join::<I>(thread, terms, Joining::AnyTime, now)? {
            (GateOutcome::Reentered(tenancy) | GateOutcome::Joined(tenancy), in_turn) => {
                Some((tenancy, in_turn))
            }
            _ => None,
        }
    }

    pub(crate) fn let_readers_in(&mut self, now: u64) -> Vec<Wake> {
        let mut woken = Vec::new();
        while let Some(first) = self.queue.first()
            && let LockNeed { mode: Mode::Read, terms } = *first.need()
        {
            let thread = Arc::clone(first.thread());
            let Some((tenancy, _)) = self.join_any_time(&thread, terms, now) else { break };
            woken.extend(self.queue.pass_first(|_| tenancy));
        }
        woken
    }

    pub(crate) fn reading(&mut self, thread: &Thread) -> Option<&Arc<Tenancy>> {
        let (reading, _) = self.readers.as_mut()?.seat.as_mut()?.tenant(thread)?;
        Some(reading)
    }
}

impl Side {
    /// Lets a thread share a hold. A thread that already has the hold gets another level. Another
    /// thread joins if the turn has [just begun](super::cohort::Cohort::may_join) and no other
    /// process waits, or [at any time](Joining::AnyTime). The `bool` is `false` only if the thread
    /// joined when the turn was too old. Returns `None` if the seat is empty.
    fn join<I>(
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
