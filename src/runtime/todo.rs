//! The renewer's jobs, the most urgent first.

use std::collections::VecDeque;
use std::sync::Arc;

use redlatch_client::Lane;

use crate::lease::Job;

/// A renewer's jobs. Renewals come first. After each packet of renewals, the renewer does one other
/// job, because renewals that wait for replicas could otherwise block the other jobs. The service
/// of lanes (to read replies for which no caller waits) comes last, one lane at a time. A lane that
/// does not answer takes long, and a renewal should wait for at most one such lane.
#[derive(Default)]
pub(super) struct Todo {
    renewals: VecDeque<Job>,
    /// Whether the last job was a renewal.
    renewed: bool,
    others: VecDeque<Job>,
    lanes: VecDeque<Arc<Lane>>,
    ends: bool,
}

impl Todo {
    pub(super) fn put(&mut self, job: Job) {
        match job {
            // Send all renewals together that became due during the last exchange. If the renewals
            // of each tick needed a round trip of their own, a short lease at a distant server
            // could end.
            Job::Renew(more) => match self.renewals.back_mut() {
                Some(Job::Renew(last)) => last.extend(more),
                _ => self.renewals.push_back(Job::Renew(more)),
            },
            Job::RenewAll if matches!(self.renewals.back(), Some(Job::RenewAll)) => {}
            Job::RenewAll => self.renewals.push_back(job),
            Job::Service(lanes) => self.lanes.extend(lanes),
            Job::End => self.ends = true,
            other => self.others.push_back(other),
        }
    }

    /// Whether there are jobs other than the service of lanes.
    pub(super) fn is_urgent(&self) -> bool {
        !self.renewals.is_empty() || !self.others.is_empty()
    }

    /// Returns the next job. `End` is returned only when no other job is left.
    pub(super) fn next(&mut self) -> Option<Job> {
        let other = std::mem::take(&mut self.renewed).then(|| self.others.pop_front()).flatten();
        if other.is_some() {
            return other;
        }
        self.renewed = !self.renewals.is_empty();
        let urgent = self.renewals.pop_front().or_else(|| self.others.pop_front());
        urgent
            .or_else(|| self.lanes.pop_front().map(|lane| Job::Service(vec![lane])))
            .or_else(|| self.ends.then_some(Job::End))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If renewals wait for replicas, a renewal may be due at all times.
    #[test]
    fn other_jobs_have_their_turn_while_renewals_never_end() {
        let mut todo = Todo::default();
        todo.put(Job::Connected);
        todo.put(Job::Connected);
        let mut others = 0;
        for _ in 0..4 {
            todo.put(Job::Renew(Vec::new()));
            others += u32::from(matches!(todo.next(), Some(Job::Connected)));
        }
        assert_eq!(others, 2);
        assert!(matches!(todo.next(), Some(Job::Renew(_))));
    }
}
