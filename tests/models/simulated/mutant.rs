//! Rules that are broken one at a time, to show that the model notices it. The file `mutants` of
//! each kind of lock lists them, each with a part of a script and its replacement:
//!
//! ```text
//! what the broken script does
//! Release by seed 17
//! - redis.pcall('hdel', lock, owner)
//! + redis.pcall('del', lock)
//! ```
//!
//! The second line begins with the script, or with `client` and a [`Rule`]. The second line ends
//! with the test that finds the mutant: a history, `by share`, or `by` the name of a scene. The
//! test tries this history first. If the scripts or the model have changed since then, another
//! history finds the mutant, and the test prints its seed. A usual run leaves out the shares, and
//! each `long seed`: its history runs many scripts before it finds the mutant.

use super::client::Rule;
use super::scripts::{Script, Scripts};
use super::specification::{Scene, Specification};

pub(crate) struct Mutant {
    pub(crate) what: &'static str,
    /// The scripts, including the broken script.
    pub(crate) scripts: Scripts,
    pub(crate) script: Option<Script>,
    pub(crate) rule: Option<Rule>,
    pub(crate) by: By,
    pub(crate) is_quick: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum By {
    Seed(u64),
    /// The clients' shares without faults.
    Share,
    Scene(Scene),
}

impl Mutant {
    pub(crate) fn all(of: &Specification) -> Vec<Self> {
        of.mutants.split_terminator("\n\n").map(|text| Self::new(of, text)).collect()
    }

    fn new(of: &Specification, text: &'static str) -> Self {
        let mut lines = text.lines();
        let (what, broken) = (lines.next().unwrap(), lines.next().unwrap());
        let (mut part, mut instead) = (Vec::new(), Vec::new());
        for line in lines {
            let (lines, text) = match line.split_at(1) {
                ("-", text) => (&mut part, text),
                ("+", text) => (&mut instead, text),
                _ => panic!("{what}: {line:?}"),
            };
            lines.push(text.strip_prefix(' ').unwrap_or(text));
        }
        let scripts = (of.scripts)();
        let (broken, by) = broken.split_once(" by ").unwrap();
        let is_quick = by != "share" && !by.starts_with("long ");
        let by = by.strip_prefix("long ").unwrap_or(by);
        let by = match by.strip_prefix("seed ") {
            Some(seed) => By::Seed(seed.parse().unwrap()),
            None if by == "share" => By::Share,
            None => {
                let scene = of.scenes.iter().find(|(name, _)| *name == by);
                By::Scene(scene.unwrap_or_else(|| panic!("no scene {by:?}")).1)
            }
        };
        if let Some(rule) = broken.strip_prefix("client ") {
            let rule = Rule::ALL.into_iter().find(|known| format!("{known:?}") == rule);
            return Self { what, scripts, script: None, rule: Some(rule.unwrap()), by, is_quick };
        }
        let script = scripts.all().find(|script| format!("{script:?}") == broken);
        let script = script.unwrap_or_else(|| panic!("{what}: no script {broken:?}"));
        let scripts = scripts.with(script, &part.join("\n"), &instead.join("\n"));
        Self { what, scripts, script: Some(script), rule: None, by, is_quick }
    }
}
