//! The tests of one kind of lock: random histories, and the bugs that are planted in its scripts.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};
use std::{env, iter, thread};

use redlatch_testkit::Server;

use super::client::Rule;
use super::mutant::{By, Mutant};
use super::rules::Broken;
use super::scripts::{Script, Scripts};
use super::store::Store;
use super::summary::Summary;

/// How long a usual run plays random histories.
const BUDGET: Duration = Duration::from_millis(1_500);
/// A broken rule must be found within this number of histories.
const SEEDS: u64 = 1_000;

pub(crate) struct Specification {
    pub(crate) scripts: fn() -> Scripts,
    /// Plays the history of this seed. If `broken` is a rule, the client does not keep that rule.
    pub(crate) play: fn(store: &mut Store, seed: u64, broken: Option<Rule>, traced: bool) -> Played,
    /// The cases that must occur, because a case that never occurs is not tested.
    pub(crate) seen: &'static [&'static str],
    /// Seeds of histories that together have all these cases.
    pub(crate) seeds: &'static [u64],
    /// The number of histories in a run at full size.
    pub(crate) full: u64,
    /// The mutants: see `mutant.rs`.
    pub(crate) mutants: &'static str,
    /// Scenes for cases that no history reaches. Each scene is played separately.
    pub(crate) scenes: &'static [(&'static str, Scene)],
    /// Checks the clients' shares without faults.
    pub(crate) share: fn(store: &mut Store, broken: Option<Rule>) -> Result<(), Broken>,
}

pub(crate) type Scene = fn(&Server, &Scripts) -> Result<(), Broken>;

/// How a history ended.
pub(crate) struct Played {
    pub(crate) outcome: Result<(), Broken>,
    pub(crate) summary: Summary,
    pub(crate) trace: String,
}

/// Whether the models run at full size (`.ci/run`) or larger (`.ci/long`).
pub(crate) fn is_full() -> bool {
    env::var_os("REDLATCH_FULL").is_some() || is_long()
}

pub(crate) fn is_long() -> bool {
    env::var_os("REDLATCH_LONG").is_some()
}

fn number_from(variable: &str) -> Option<u64> {
    env::var(variable).ok()?.parse().ok()
}

impl Specification {
    fn store(&self, server: &Server) -> Store {
        Store::new(server, &(self.scripts)())
    }

    /// Checks that random histories keep the rules.
    pub(crate) fn check_histories(&self) {
        if let Some(seed) = number_from("REDLATCH_SEED") {
            let server = Server::start().unwrap();
            let mut store = self.store(&server);
            let Played { outcome, trace, summary } = (self.play)(&mut store, seed, None, true);
            println!("{trace}\n{:#?}", summary.0);
            return outcome.unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        }
        let many = number_from("REDLATCH_SEEDS").or_else(|| is_full().then_some(self.full));
        let total = match many {
            // A history and its server work alternately, so one history uses only one processor.
            Some(seeds) => thread::scope(|scope| {
                let odd = scope.spawn(|| self.run((1..seeds).step_by(2)));
                let mut total = self.run((0..seeds).step_by(2));
                total.add_all(&odd.join().unwrap());
                total
            }),
            None => {
                let (began, random) = (Instant::now(), RandomState::new());
                let others = iter::successors(Some(0_u64), |number| Some(number + 1))
                    .map(|number| random.hash_one(number) % 1_000_000)
                    .take_while(|_| began.elapsed() < BUDGET);
                self.run(self.seeds.iter().copied().chain(others))
            }
        };
        println!("{:#?}", total.0);
        let never = self.seen.iter().filter(|what| !total.0.contains_key(*what));
        let never: Vec<_> = never.collect();
        assert!(never.is_empty(), "never seen: {never:?}");
    }

    fn run(&self, seeds: impl Iterator<Item = u64>) -> Summary {
        let server = Server::start().unwrap();
        let mut store = self.store(&server);
        let mut total = Summary::default();
        for seed in seeds {
            let Played { outcome, summary, .. } = (self.play)(&mut store, seed, None, false);
            if let Err(broken) = outcome {
                panic!("REDLATCH_SEED={seed}: {broken}");
            }
            total.add_all(&summary);
        }
        total
    }

    /// Checks that the model finds each planted bug. `REDLATCH_MUTANT=word` tries only the mutants
    /// whose description contains the word.
    pub(crate) fn find_out_mutants(&self) {
        let word = env::var("REDLATCH_MUTANT").unwrap_or_default();
        let server = Server::start().unwrap();
        let mutants = Mutant::all(self);
        let is_chosen = |mutant: &&Mutant| {
            mutant.what.contains(&word) && (mutant.is_quick || !word.is_empty() || is_full())
        };
        let chosen: Vec<_> = mutants.iter().filter(is_chosen).collect();
        assert!(!chosen.is_empty(), "no mutant does {word:?}");
        let mut unnoticed = Vec::new();
        for mutant in chosen {
            match self.find_out(mutant, &server) {
                // A mutant that the server cannot run proves nothing, because every test notices
                // it.
                Some(found) if !found.contains("nonexistent global") => {
                    println!("{}: {found}", mutant.what);
                }
                found => unnoticed.push((mutant.what, found)),
            }
        }
        assert!(unnoticed.is_empty(), "nobody noticed (REDLATCH_MUTANT tries one): {unnoticed:#?}");
    }

    /// Returns how the mutant was found, or `None` if it was not found.
    fn find_out(&self, mutant: &Mutant, server: &Server) -> Option<String> {
        let scripts = &mutant.scripts;
        match mutant.by {
            By::Scene(scene) => scene(server, scripts).err(),
            By::Share => {
                // A shortcut before the mutant would have the correct effect and hide the bug.
                let is_hidden = mutant.script == Some(Script::HandOff);
                let scripts = scripts.clone();
                let scripts = if is_hidden { scripts.without(Script::HandOver) } else { scripts };
                (self.share)(&mut Store::new(server, &scripts), mutant.rule).err()
            }
            By::Seed(first) => {
                let mut store = Store::new(server, scripts);
                iter::once(first).chain(0..SEEDS).find_map(|seed| {
                    let played = (self.play)(&mut store, seed, mutant.rule, false);
                    let scripts = played.summary.0.get("scripts").unwrap_or(&0);
                    Some(format!("by seed {seed}, script {scripts}: {}", played.outcome.err()?))
                })
            }
        }
    }
}

/// Defines a test for each scene, and the list `SCENES` of all scenes for the mutants.
macro_rules! scenes {
    ($texts:expr; $($scene:ident: $test:ident),* $(,)?) => {
        pub(crate) const SCENES: &[(&str, $crate::simulated::specification::Scene)] =
            &[$((stringify!($scene), $scene)),*];
        $(
            #[test]
            fn $test() {
                $scene(&server(), &Scripts::of($texts)).unwrap();
            }
        )*
    };
}

pub(crate) use scenes;
