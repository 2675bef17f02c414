//! The participants, their actions and the faults, as far as they are chosen before a history.

use super::client::{MS, SECOND, Time};
use super::random::Random;
use super::simulation::Fault;

/// Times, each with its weight in a random choice.
#[derive(Clone, Debug)]
pub(crate) struct Times(Vec<(u32, Option<Time>)>);

impl Times {
    pub(crate) fn always(time: Time) -> Self {
        Self(vec![(1, Some(time))])
    }

    pub(crate) fn sample(&self, random: &mut Random) -> Time {
        self.sample_some(random).unwrap_or(0)
    }

    pub(crate) fn sample_some(&self, random: &mut Random) -> Option<Time> {
        let all: u32 = self.0.iter().map(|(weight, _)| weight).sum();
        let mut at = random.between(0, i64::from(all) - 1);
        for (weight, time) in &self.0 {
            at -= i64::from(*weight);
            if at < 0 {
                return *time;
            }
        }
        None
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The database and the name of each lock.
    pub(crate) sites: Vec<(i64, &'static str)>,
    pub(crate) ours: usize,
    pub(crate) java: usize,
    /// Whether the locks have fencing tokens.
    pub(crate) is_fenced: bool,
    /// Whether a monitor listens to every channel.
    pub(crate) is_monitored: bool,
    pub(crate) length: Time,
    pub(crate) think: Times,
    pub(crate) hold: Times,
    pub(crate) java_hold: Times,
    pub(crate) limit: Times,
    /// The percentage of calls that try once and do not wait.
    pub(crate) tries: i64,
    /// The percentage of holds under which a user's script is sent.
    pub(crate) evals: i64,
    /// How many of a thousand requests break their connection.
    pub(crate) breaks: i64,
    pub(crate) faults: Vec<Fault>,
}

impl Plan {
    /// Returns a plan in which every fault occurs.
    pub(crate) fn random(seed: u64) -> Self {
        use Fault::{
            ClockBack, ClockForward, Cut, Evict, Flush, Force, Full, HalfOpen, JavaForce, Kill,
            KillJava, Stop,
        };
        let mut random = Random::new(seed);
        let faults: &[&[Fault]] = &[
            &[Stop, Cut, HalfOpen, Kill],
            &[Stop, Cut, HalfOpen, KillJava],
            &[Stop, Cut, ClockForward, ClockBack, ClockBack],
            &[Cut, Flush, Evict, Force, JavaForce, Stop],
            &[Stop, HalfOpen, Stop],
            &[Stop, Full, Cut, Kill],
            &[Kill],
        ];
        let faults = faults[seed as usize % faults.len()].to_vec();
        let sites: &[&[(i64, &str)]] =
            &[&[(0, "orders")], &[(0, "orders")], &[(0, "x"), (0, "{x}")], &[(0, "x"), (1, "x")]];
        let sites = sites[random.between(0, sites.len() as i64 - 1) as usize].to_vec();
        let ours = random.between(2, 6) as usize;
        let is_fenced = seed % 2 == 1;
        Self {
            java: random.between(0, 2) as usize,
            is_fenced,
            is_monitored: random.percent(50),
            length: 10 * SECOND,
            // In half of the histories some client is always waiting.
            think: if random.percent(50) {
                Times::always(MS / 5)
            } else {
                Times(vec![(1, Some(MS / 5)), (3, Some(5 * MS)), (3, Some(30 * MS))])
            },
            hold: if random.percent(50) {
                Times(vec![
                    (8, Some(10)),
                    (20, Some(MS / 2)),
                    (20, Some(5 * MS)),
                    (4, Some(80 * MS)),
                    (1, Some(2_500 * MS)),
                ])
            } else {
                Times(vec![(1, Some(MS / 2)), (1, Some(5 * MS)), (1, Some(120 * MS))])
            },
            java_hold: Times(vec![(2, Some(MS)), (2, Some(5 * MS)), (1, Some(200 * MS))]),
            limit: Times(vec![(6, None), (1, Some(MS)), (1, Some(20 * MS)), (1, Some(3 * SECOND))]),
            tries: 3,
            evals: 0,
            breaks: 3,
            faults,
            sites,
            ours,
        }
    }

    /// Makes many clients wait, and lets holders keep the lock for longer than the lease of a grant
    /// by message. Now and then a waiter is paused.
    pub(crate) fn slow(self) -> Self {
        Self {
            sites: vec![(0, "orders")],
            ours: 6,
            java: self.java.min(1),
            length: 80 * SECOND,
            think: Times::always(5 * MS),
            hold: Times(vec![(2, Some(5 * MS)), (1, Some(4_500 * MS))]),
            limit: Times(vec![(1, None)]),
            faults: vec![Fault::StopWaiting],
            ..self
        }
    }

    /// Makes many requests break their connections, and sends a user's script under each hold.
    pub(crate) fn doubtful(self) -> Self {
        Self {
            sites: vec![(0, "orders")],
            ours: 3,
            java: 0,
            length: 20 * SECOND,
            think: Times::always(30 * MS),
            hold: Times(vec![(3, Some(MS)), (1, Some(20 * MS))]),
            evals: 100,
            breaks: 100,
            faults: Vec::new(),
            ..self
        }
    }

    /// Returns a plan without faults, for the clients' shares.
    pub(crate) fn peaceful(ours: usize, java: usize, hold: Time, length: Time) -> Self {
        Self {
            sites: vec![(0, "orders")],
            ours,
            java,
            is_fenced: false,
            is_monitored: false,
            length,
            think: Times::always(20),
            hold: Times::always(hold),
            java_hold: Times::always(hold),
            limit: Times(vec![(1, None)]),
            tries: 0,
            evals: 0,
            breaks: 0,
            faults: Vec::new(),
        }
    }
}
