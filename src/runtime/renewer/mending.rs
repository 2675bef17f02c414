//! Mending: repeats changes of semaphores at a run of the server that lacks them.

use std::collections::HashSet;
use std::sync::Arc;

use log::Level;
use redis::Value;
use redlatch_client::sync::clock;
use redlatch_client::{Command, Failure, reply_code, slot_of};

use super::{NAMES_PER_CALL, QUERY_RETRY, Renewer, may_succeed_later};
use crate::runtime::Member;
use crate::scripts::{Cursor, RequestId, Requests};

/// The time after which to repeat the changes again if the user lacks a right for some of them.
const RIGHTS_RETRY: u64 = 5_000_000_000;

/// A pass over all changes of semaphores that may have to be repeated. Each step handles only some
/// names, because there may be 100,000 names. Renewals run between the steps.
#[derive(Default)]
pub(super) struct Mending {
    cursor: Cursor,
    /// The run of the server at which the changes are repeated.
    run: u64,
    /// The slots whose names are mended. `None` for all names, after a new run of the server.
    slots: Option<Vec<u16>>,
    mended: Mended,
}

#[derive(Default)]
struct Mended {
    taken: i64,
    given: i64,
    /// Whether the user lacks a right to repeat some of the changes.
    is_forbidden: bool,
}

impl Renewer {
    /// Connects, and checks whether this is another run of the server or another server. If the run
    /// or the server is new, plans to repeat earlier changes of semaphores.
    pub(super) fn check_run(&mut self) {
        let mut members = self.core.members.all();
        members.retain(|member| member.counts_permits() && self.is_home(member.name()));
        if members.is_empty()
            && self.core.released_permits.is_empty()
            && self.core.changes.is_empty()
        {
            return;
        }
        let met = self.own.open();
        let run = self.own.endpoint.incarnation();
        if self.last_run != run {
            self.release_permits_again(|renewer, name| renewer.is_home(name));
            self.mending.retain(|it| it.slots.is_some());
            self.mending.push_back(Mending { run, ..Mending::default() });
        } else if !met {
            self.query_again_at = Some(clock::now().saturating_add(QUERY_RETRY));
        }
    }

    /// Repeats the changes that this server lacks, for some of the semaphores.
    pub(super) fn mend_some(&mut self) {
        let Some(mut mending) = self.mending.pop_front() else { return };
        let names = self.core.changes.next(&mut mending.cursor, NAMES_PER_CALL);
        let (run, asked) = (self.own.endpoint.incarnation(), clock::now());
        let mut mends: Vec<_> =
            names.iter().flat_map(|requests| requests.mend_commands(None)).collect();
        mends.retain(|(name, _)| mending.is_meant(self, name));
        let Some(mended) = self.send_mends(&mends) else {
            // The next `RenewAll` repeats all changes.
            if mending.slots.is_some() {
                self.last_run = u64::MAX;
            }
            return;
        };
        if !mended.is_forbidden {
            // Check only the names that were sent: a slot may have moved to this server after the
            // exchange.
            let sent: HashSet<_> = mends.iter().map(|(name, _)| &**name).collect();
            for requests in &names {
                requests.record_mended(run, asked, |name| sent.contains(name));
            }
        }
        mending.mended.taken += mended.taken;
        mending.mended.given += mended.given;
        mending.mended.is_forbidden |= mended.is_forbidden;
        if !names.is_empty() {
            self.mending.push_front(mending);
            return;
        }
        let Mended { taken, given, is_forbidden } = mending.mended;
        self.is_forbidden = is_forbidden;
        if is_forbidden {
            self.plan_mend_again();
        } else if mending.slots.is_none() {
            self.last_run = mending.run;
        }
        // A regular move of a slot loses no data. Some servers do not report their run. At such a
        // server, only a change that had to be repeated shows that the run is new.
        let is_another =
            mending.slots.is_none() && !is_forbidden && self.own.endpoint.says_its_run();
        if is_another || (taken, given) != (0, 0) {
            let mut members = self.core.members.all();
            members
                .retain(|member| member.counts_permits() && mending.is_meant(self, member.name()));
            self.warn_of_counts(&members, [taken, given]);
        }
    }

    /// Plans to repeat all changes again, because the user may get the right later. Until the
    /// changes are repeated, the server refuses later requests in the same sequences
    /// (`lua/once.lua`). If the server has already applied a change, its repetition has no effect.
    fn plan_mend_again(&mut self) {
        self.last_run = u64::MAX;
        let at = clock::now().saturating_add(RIGHTS_RETRY);
        self.query_again_at = Some(self.query_again_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Repeats the changes of one sequence. The reply to its last change came from an older run of
    /// the server, after the renewer had repeated the earlier changes at the present run.
    pub(super) fn mend_late(
        &mut self,
        name: &Arc<str>,
        requests: &Requests,
        request_id: RequestId,
    ) {
        match self.send_mends(&requests.mend_commands_for(request_id)) {
            // The next `RenewAll` repeats all changes.
            None => self.last_run = u64::MAX,
            Some(Mended { is_forbidden: true, .. }) => {
                self.is_forbidden = true;
                self.plan_mend_again();
            }
            // This server has already applied the changes.
            Some(Mended { taken: 0, given: 0, .. }) => {}
            Some(Mended { taken, given, .. }) => {
                let mut members = self.core.members.all();
                members.retain(|member| member.counts_permits() && **member.name() == *name);
                self.warn_of_counts(&members, [taken, given]);
            }
        }
    }

    /// Sends these changes. Returns `None` if the server may accept them later.
    fn send_mends(&mut self, mends: &[(Arc<str>, Command)]) -> Option<Mended> {
        let mut mended = Mended::default();
        for part in mends.chunks(NAMES_PER_CALL) {
            let commands: Vec<_> = part.iter().map(|(_, command)| command.clone()).collect();
            let outcomes = self.own.exchange(&commands, None).0;
            for ((key, _), outcome) in part.iter().zip(outcomes) {
                let name = || self.core.name(Arc::clone(key));
                match outcome {
                    Ok(Value::Int(permits)) if permits < 0 => mended.taken -= permits,
                    Ok(Value::Int(permits)) => mended.given += permits,
                    Err(failure) if may_succeed_later(&failure) => {
                        self.query_again_at = Some(clock::now().saturating_add(QUERY_RETRY));
                        return None;
                    }
                    Err(Failure::Refused(cause)) if reply_code(&cause.error) == "NOPERM" => {
                        mended.is_forbidden = true;
                        if !self.is_forbidden {
                            self.core.watchdog.log(Level::Error, || {
                                format!(
                                    "the permits of {:?} cannot be restored after a failover \
                                     without the access rights of a semaphore; tried again for two \
                                     minutes",
                                    name()
                                )
                            });
                        }
                    }
                    _ => self.core.watchdog.log(Level::Error, || {
                        format!(
                            "the permits of {:?} could not be restored after a failover",
                            name()
                        )
                    }),
                }
            }
        }
        Some(mended)
    }

    /// Logs the semaphores whose counts cannot be restored.
    fn warn_of_counts(&self, members: &[Arc<dyn Member>], [taken, given]: [i64; 2]) {
        let mut names: Vec<_> =
            members.iter().map(|member| member.name().given().to_owned()).collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return;
        }
        let address = self.own.endpoint.address();
        self.core.watchdog.log(Level::Warn, || {
            let some: Vec<_> = names.iter().take(10).map(|name| format!("{name:?}")).collect();
            let more = names.len().saturating_sub(some.len());
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!(
                "another server is the master at {address}, or it was started anew; semaphores in \
                 use: {}{more}. It had not heard of {taken} permits that this client had taken and \
                 of {given} that it had given back, which was put right. What clients did that \
                 ended since, or Redisson's, was not: compare available_permits with what is out",
                some.join(", ")
            )
        });
    }
}

impl Mending {
    pub(super) fn in_slots(slots: Vec<u16>) -> Self {
        Self { slots: Some(slots), ..Self::default() }
    }

    fn is_meant(&self, renewer: &Renewer, name: &str) -> bool {
        let is_in = |slots: &Vec<u16>| slots.binary_search(&slot_of(name.as_bytes())).is_ok();
        self.slots.as_ref().is_none_or(is_in) && renewer.is_home(name)
    }
}
