//! Sends due renewals. Each renewal gets an outcome.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use log::Level;
use redlatch_client::Failure;
use redlatch_client::sync::clock;

use super::{NAMES_PER_PACKET, QUERY_RETRY, Renewer};
use crate::lease::{Renewal, RenewalOutcome, schedule};
use crate::scripts::renewal::{Longer, RenewalKind, Renewed};
use crate::scripts::{self, Trouble};

/// A period in which the server refuses renewals, from the first refusal until it accepts them
/// again.
pub(super) struct RefusalPeriod {
    since: u64,
    /// The holds whose last renewal was refused, each with the end of its lease.
    holds: HashMap<Arc<str>, u64>,
}

impl Renewer {
    /// Renews the due holds, and sends queries for the other holds. Each `Renewal` gets an outcome:
    /// a hold without an outcome would never be renewed again. After a panic it is unknown which
    /// renewals already have an outcome, so every renewal gets another outcome.
    pub(super) fn renew_each(&mut self, mut renewals: Vec<Renewal>) {
        if !self.catch_panic(|renewer| renewer.send_renewals(&mut renewals)) {
            let (now, cause) = (clock::now(), self.panicked().cause().error.to_string().into());
            for renewal in &renewals {
                self.catch_panic(|_| (renewal.renewed)(now, Err(&cause), false));
            }
            self.query_again_at = Some(now.saturating_add(QUERY_RETRY));
        }
    }

    /// Sends renewals, the longest lease first. Each length of a lease needs its own script call.
    /// Many calls share a packet.
    fn send_renewals(&mut self, renewals: &mut [Renewal]) {
        let sort =
            |renewal: &Renewal| (std::cmp::Reverse(renewal.lease), renewal.kind, renewal.longer);
        renewals.sort_by_key(sort);
        let names_per_call = self.names_per_call;
        let same = renewals.chunk_by(|one, other| sort(one) == sort(other));
        let (mut packet, mut names) = (Vec::new(), 0);
        for call in same.flat_map(|same| same.chunks(names_per_call)) {
            if names + call.len() > NAMES_PER_PACKET {
                self.renew(&packet);
                packet.clear();
                names = 0;
            }
            packet.push(call);
            names += call.len();
        }
        if !packet.is_empty() {
            self.renew(&packet);
        }
    }

    fn renew(&mut self, calls: &[&[Renewal]]) {
        let sent_at = clock::now();
        // A lease of zero makes the call a query, which changes nothing.
        let lease =
            |call: &[Renewal]| call.first().and_then(|renewal| renewal.lease).unwrap_or_default();
        let longer = |call: &[Renewal]| call.first().map_or(Longer::Kept, |renewal| renewal.longer);
        let kind =
            |call: &[Renewal]| call.first().map_or(RenewalKind::Locks, |renewal| renewal.kind);
        let acks = schedule::acks(&self.core.config);
        let commands: Vec<_> = calls
            .iter()
            .map(|call| {
                let holds = call
                    .iter()
                    .map(|renewal| (&*renewal.key, &renewal.owner, renewal.asks_if_wanted));
                // A query writes nothing, so it does not wait for replicas.
                let acks = acks.filter(|_| !lease(call).is_zero());
                scripts::renewal::renew_command(kind(call), holds, lease(call), longer(call), acks)
            })
            .collect();
        let raises = calls.iter().copied().flatten().any(|renewal| renewal.is_raise);
        let (outcomes, resent) =
            self.own.exchange(&commands, raises.then_some(schedule::RAISE_TIMEOUT));
        let address = self.own.endpoint.health().address();
        let (mut unanswered, mut refused) = (false, false);
        let (mut accepted, mut refusals) = (Vec::new(), Vec::new());
        let mut report = |renewal: &Renewal, renewed: RenewalOutcome<'_>| {
            (renewal.renewed)(sent_at, renewed, resent);
            // The renewer repeats only queries. The watchdog repeats a failed renewal.
            unanswered |= renewal.lease.is_none() && renewed.is_err();
        };
        for (call, outcome) in calls.iter().zip(outcomes) {
            let is_refused =
                matches!(outcome, Err(Failure::Refused(_) | Failure::Unacknowledged(..)));
            let mut refuse = |renewal: &Renewal, cause: &Arc<str>| {
                if renewal.lease.is_some() {
                    refusals.push((Arc::clone(&renewal.key), renewal.deadline, Arc::clone(cause)));
                }
            };
            let replies = scripts::renewal::renewed(kind(call), outcome, &address)
                .map_err(Trouble::into_error);
            let cause = match replies {
                Ok(replies) if replies.len() == call.len() => {
                    for (renewal, reply) in call.iter().zip(replies) {
                        match reply {
                            Renewed::Done(held, is_wanted) => {
                                if renewal.lease.is_some() {
                                    accepted.push(Arc::clone(&renewal.key));
                                }
                                report(renewal, Ok((held, is_wanted)));
                            }
                            Renewed::Failed(refusal) => {
                                refused = true;
                                let cause = format!("{refusal:#}").into();
                                refuse(renewal, &cause);
                                report(renewal, Err(&cause));
                            }
                            Renewed::Unacknowledged(unacknowledged) => {
                                let cause = format!("{unacknowledged:#}").into();
                                refuse(renewal, &cause);
                                report(renewal, Err(&cause));
                            }
                        }
                    }
                    continue;
                }
                Ok(_) => "the server answered for other names than were asked for".into(),
                Err(error) => format!("{error:#}").into(),
            };
            for renewal in *call {
                if is_refused {
                    refuse(renewal, &cause);
                }
                report(renewal, Err(&cause));
            }
        }
        self.log_refusals(&address, &accepted, refusals);
        if refused {
            // The server of this connection may have become a replica.
            self.own.close();
        }
        if unanswered {
            self.query_again_at = Some(clock::now().saturating_add(QUERY_RETRY));
        }
    }

    /// Logs the first refusal, and the time when all renewals are accepted again.
    fn log_refusals(
        &mut self,
        address: &str,
        accepted: &[Arc<str>],
        refusals: Vec<(Arc<str>, u64, Arc<str>)>,
    ) {
        let now = clock::now();
        if let Some((name, until, cause)) = refusals.iter().min_by_key(|(_, until, _)| *until)
            && self.refusal_period.is_none()
        {
            let left = Duration::from_nanos(until.saturating_sub(now)).as_secs_f64();
            let others = match refusals.len() - 1 {
                0 => String::new(),
                others => format!(" and {others} others"),
            };
            let name = self.core.name(Arc::clone(name));
            self.core.watchdog.log(Level::Warn, || {
                format!(
                    "the server at {address} refuses to renew {name:?}{others}: {cause}; if that \
                     goes on, the lease ends in {left:.1} s"
                )
            });
            self.refusal_period = Some(RefusalPeriod { since: now, holds: HashMap::new() });
        }
        let Some(period) = &mut self.refusal_period else { return };
        for name in accepted {
            period.holds.remove(name);
        }
        period.holds.extend(refusals.into_iter().map(|(name, until, _)| (name, until)));
        // Forget the holds whose leases have ended.
        period.holds.retain(|_, until| *until > now);
        if period.holds.is_empty() && !accepted.is_empty() {
            let after = Duration::from_nanos(now.saturating_sub(period.since)).as_secs_f64();
            self.core.watchdog.log(Level::Info, || {
                format!("the server at {address} accepts renewals again, after {after:.1} s")
            });
            self.refusal_period = None;
        }
    }
}
