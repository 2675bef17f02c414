//! A rule that is broken, to show that the model would notice.

use redlatch_testkit::Server;

use super::choice::chosen;
use super::client::Rule;
use super::histories::Histories;
use super::rules;
use super::scripts::{Script, Scripts};
use super::simulation::Simulation;
use super::store::Store;

/// In how many histories something broken must have been found out.
const SEEDS: u64 = 250;

/// The broken part, its entry, and the checks that notice it.
pub(crate) struct Mutant {
    pub(crate) what: &'static str,
    broken: Broken,
    by: By,
}

enum Broken {
    /// A part of a text, and its replacement.
    Script(Script, &'static str, &'static str),
    Client(Rule),
}

#[derive(Clone, Copy, Debug)]
enum By {
    /// A history that has found it out, to be tried first. If scripts or model have changed since,
    /// another one will, and the test says which.
    Seed(u64),
    /// The clients' shares if nothing goes wrong.
    Share,
    Scene(Scene),
}

/// A case to which no history comes, played for itself.
pub(crate) type Scene = fn(&Server, &Scripts) -> Result<(), rules::Broken>;

pub(crate) const fn script(
    what: &'static str,
    script: Script,
    part: &'static str,
    by: &'static str,
    seed: u64,
) -> Mutant {
    Mutant { what, broken: Broken::Script(script, part, by), by: By::Seed(seed) }
}

pub(crate) const fn unfair(
    what: &'static str,
    script: Script,
    part: &'static str,
    by: &'static str,
) -> Mutant {
    Mutant { what, broken: Broken::Script(script, part, by), by: By::Share }
}

pub(crate) const fn seldom(
    what: &'static str,
    script: Script,
    part: &'static str,
    by: &'static str,
    scene: Scene,
) -> Mutant {
    Mutant { what, broken: Broken::Script(script, part, by), by: By::Scene(scene) }
}

pub(crate) const fn client(what: &'static str, rule: Rule, seed: u64) -> Mutant {
    Mutant { what, broken: Broken::Client(rule), by: By::Seed(seed) }
}

pub(crate) const fn slow(what: &'static str, rule: Rule) -> Mutant {
    Mutant { what, broken: Broken::Client(rule), by: By::Share }
}

impl Mutant {
    /// How it was found out, if it was. `share` checks the clients' shares.
    fn find_out(
        &self,
        server: &Server,
        histories: &Histories,
        share: &impl Fn(&mut Store, Option<Rule>) -> Option<String>,
    ) -> Option<String> {
        let kind = histories.kind;
        let (scripts, rule) = match self.broken {
            Broken::Script(script, part, by) => (Scripts::broken(kind, script, part, by), None),
            Broken::Client(rule) => (Scripts::of(kind), Some(rule)),
        };
        match self.by {
            By::Scene(scene) => scene(server, &scripts).err(),
            By::Share => {
                // Before it the shortcut would do the same unbroken.
                let is_hidden = matches!(self.broken, Broken::Script(Script::HandOff, ..));
                let scripts = if is_hidden { scripts.without(Script::HandOver) } else { scripts };
                share(&mut Store::new(server, &scripts), rule)
            }
            By::Seed(first) => {
                let mut store = Store::new(server, &scripts);
                std::iter::once(first).chain(0..SEEDS).find_map(|seed| {
                    let plan = (histories.plan)(seed);
                    let mut simulation = Simulation::new(&mut store, kind, seed, plan, rule);
                    Some(format!("by seed {seed}: {}", simulation.run().err()?))
                })
            }
        }
    }
}

/// A model that notices nothing proves nothing.
pub(crate) fn find_out_all(
    server: &Server,
    histories: &Histories,
    mutants: &[Mutant],
    share: impl Fn(&mut Store, Option<Rule>) -> Option<String>,
) {
    let mut unnoticed = Vec::new();
    for mutant in chosen(mutants, |mutant| mutant.what) {
        match mutant.find_out(server, histories, &share) {
            Some(found) => println!("{}: {found}", mutant.what),
            None => unnoticed.push(mutant.what),
        }
    }
    assert!(unnoticed.is_empty(), "nobody noticed (REDLATCH_MUTANT tries one): {unnoticed:#?}");
}
