//! The faults, and the effects of each fault.

use super::{Event, Lock, Simulation};
use crate::simulated::client::{MS, SECOND, Time};
use crate::simulated::rules::Broken;
use crate::simulated::scripts::force;

/// The faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Stop,
    /// Pauses a waiting process for longer than the lease of a grant by message.
    StopWaiting,
    Cut,
    HalfOpen,
    Kill,
    KillJava,
    ClockForward,
    ClockBack,
    Flush,
    Evict,
    Force,
    JavaForce,
    Full,
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Stop => "stops",
            Self::StopWaiting => "stops of those who wait",
            Self::Cut => "cuts",
            Self::HalfOpen => "half-open subscribers",
            Self::Kill => "kills",
            Self::KillJava => "kills of Redisson",
            Self::ClockForward => "clock forward",
            Self::ClockBack => "clock back",
            Self::Flush => "keys deleted",
            Self::Evict => "queue evicted",
            Self::Force => "forced",
            Self::JavaForce => "forced by Redisson",
            Self::Full => "memory full",
        }
    }
}

impl Simulation<'_> {
    pub(super) fn stop(&mut self, process: usize, time: Time) {
        if !self.ours[process].is_stopped {
            self.ours[process].is_stopped = true;
            self.at(self.now + time, Event::Resume(process));
        }
    }

    pub(super) fn fault(&mut self) -> Result<(), Broken> {
        if self.is_over {
            return Ok(());
        }
        let next = self.now + self.random.between(0, 3 * SECOND);
        self.at(next, Event::Fault);
        let which = self.random.between(0, self.plan.faults.len() as i64 - 1) as usize;
        let process = self.random.between(0, self.ours.len() as i64 - 1) as usize;
        let lock = self.random.between(0, self.locks.len() as i64 - 1) as usize;
        let fault = self.plan.faults[which];
        self.note(|| format!("fault: {fault:?}, process {}", process + 1));
        self.summary.add(fault.name(), 1);
        match fault {
            Fault::Stop if !self.ours[process].is_stopped => {
                let time = self.random.one_of(&[
                    (20 * MS, 20 * MS),
                    (300 * MS, 300 * MS),
                    (3 * SECOND, 3 * SECOND),
                    (12 * SECOND, 12 * SECOND),
                ]);
                self.stop(process, time);
            }
            Fault::StopWaiting if self.ours[process].machine.is_waiting() => {
                self.stop(process, 3 * SECOND);
            }
            Fault::Cut | Fault::HalfOpen => self.cut(process, fault == Fault::HalfOpen),
            Fault::Kill if self.ours.iter().filter(|own| !own.is_dead).count() > 2 => {
                self.ours[process].is_dead = true;
                if let Some(connection) = self.ours[process].connection {
                    self.disconnect(connection);
                }
            }
            Fault::KillJava if !self.java.is_empty() => {
                let java = self.random.between(0, self.java.len() as i64 - 1) as usize;
                self.kill_java(java);
            }
            Fault::ClockForward | Fault::ClockBack => {
                let step = self.random.one_of(&[(50, 50), (1_500, 1_500), (9_000, 9_000)]) * MS;
                self.offset += if fault == Fault::ClockBack { -step } else { step };
                for lock in 0..self.locks.len() {
                    self.locks[lock].disturbed.push(self.now);
                    let state =
                        self.store.look(self.now + self.offset, self.locks[lock].site.place());
                    self.keep(lock, state);
                }
            }
            Fault::Flush => {
                let keys = self.locks[lock].site.keys();
                // `x` and `{x}` have the same token key.
                let tokens = self.locks[lock].site.tokens.clone();
                for other in self.locks.iter_mut().filter(|other| other.site.tokens == tokens) {
                    other.token = 0;
                }
                self.lose_keys(lock, &keys);
            }
            Fault::Evict => {
                let keys = [self.locks[lock].site.queue.clone()];
                self.lose_keys(lock, &keys);
            }
            Fault::Force => {
                self.locks[lock].disturbed.push(self.now);
                let Lock { site, state, .. } = &self.locks[lock];
                let call = force(site, state, true);
                self.execute(lock, &call)?;
            }
            Fault::JavaForce => {
                self.locks[lock].disturbed.push(self.now);
                let Lock { site, state, .. } = &self.locks[lock];
                let call = force(site, state, false);
                self.execute(lock, &call)?;
            }
            Fault::Full => {
                self.set_full(true);
                let time = self.random.between(100 * MS, 3 * SECOND);
                self.at(self.now + time, Event::MemoryIsBack);
            }
            Fault::Stop | Fault::StopWaiting | Fault::Kill | Fault::KillJava => {}
        }
        Ok(())
    }

    pub(super) fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
        self.store.set_full(is_full);
    }

    pub(super) fn lose_keys(&mut self, lock: usize, keys: &[String]) {
        self.locks[lock].disturbed.push(self.now);
        let state = self.store.delete(self.now + self.offset, self.locks[lock].site.place(), keys);
        self.keep(lock, state);
    }

    pub(super) fn cut(&mut self, process: usize, half_open: bool) {
        let Some(connection) = self.ours[process].connection else { return };
        if self.ours[process].is_dead || self.connections[connection].is_cut {
            return;
        }
        let (gone, back) = if half_open {
            let gone = self.random.between(3 * SECOND, 20 * SECOND);
            (gone, self.random.between(3 * SECOND, 10 * SECOND))
        } else {
            (0, self.random.between(MS, 100 * MS))
        };
        self.connections[connection].is_cut = true;
        if gone == 0 {
            self.disconnect(connection);
        } else {
            self.at(self.now + gone, Event::Forget(connection));
        }
        self.at(self.now + back, Event::Subscribe(process));
    }

    pub(super) fn resume(&mut self, process: usize) -> Result<(), Broken> {
        self.note(|| format!("process {} goes on", process + 1));
        let own = &mut self.ours[process];
        own.is_stopped = false;
        let mut inbox = std::mem::take(&mut own.inbox);
        if self.random.percent(50) {
            // Shuffle the inputs, because a process may notice a timer and a message in any order.
            for i in (1..inbox.len()).rev() {
                inbox.swap(i, self.random.between(0, i as i64) as usize);
            }
        }
        for what in inbox {
            self.give(process, what)?;
        }
        Ok(())
    }
}
