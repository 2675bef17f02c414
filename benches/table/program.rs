//! The common part of all tables: the command line, the lab, and the goals at the end.

use std::env;
use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use redlatch_testkit::Job;

use crate::lab::Lab;
use crate::options::Options;
use crate::report::Goals;

type Section = fn(&Lab, &mut Goals);
type Role = fn(&Job);

/// A bench that prints tables.
pub(crate) struct Program<'a> {
    pub(crate) name: &'a str,
    pub(crate) help: &'a str,
    /// The sections by name.
    pub(crate) sections: &'a [(&'a str, Section)],
    /// The roles of the other processes.
    pub(crate) roles: &'a [(&'a str, Role)],
}

impl Program<'_> {
    pub(crate) fn run(&self) -> ExitCode {
        let Self { name, help, sections, roles } = self;
        if let Some(job) = Job::from_env() {
            let role = roles.iter().find(|(role, _)| *role == job.role());
            role.unwrap().1(&job);
            return ExitCode::SUCCESS;
        }
        let options = match Options::parse(env::args().skip(1)) {
            Ok(Some(options)) => options,
            Ok(None) => {
                print!("{help}");
                return ExitCode::SUCCESS;
            }
            Err(wrong) => {
                eprintln!("{name}: {wrong}; --help lists what there is");
                return ExitCode::from(2);
            }
        };
        let wanted = options.sections.clone();
        if let Some(unknown) = wanted.iter().find(|it| sections.iter().all(|(name, _)| name != it))
        {
            eprintln!("{name}: there is no section {unknown}; --help lists them");
            return ExitCode::from(2);
        }
        let lab = match Lab::new(options) {
            Ok(lab) => lab,
            Err(error) => {
                eprintln!("{name}: {error}");
                return ExitCode::FAILURE;
            }
        };
        println!("{}\n", surroundings(&lab));
        let work = lab.options.busy.then(|| Arc::new(()));
        for _ in 0..work.as_ref().map_or(0, |_| lab.machine.count()) {
            let work = work.as_ref().map(Arc::downgrade).unwrap_or_default();
            thread::spawn(move || while work.strong_count() > 0 {});
        }
        let mut goals = Goals::new();
        for (name, section) in *sections {
            if wanted.is_empty() || wanted.iter().any(|it| it == name) {
                section(&lab, &mut goals);
            }
        }
        println!("Measured and aimed at:\n\n{goals}");
        ExitCode::SUCCESS
    }
}

/// Describes the conditions of the measurements.
fn surroundings(lab: &Lab) -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().filter(|load| !load.is_empty());
    format!(
        "{}, {}; load before the run: {}.\nCores: {}.\n{} x {} ms for each figure{}.",
        lab.server(),
        model.map_or("unknown processor", |(_, model)| model),
        load.unwrap_or("unknown"),
        lab.machine,
        lab.options.rounds,
        lab.options.length.as_millis(),
        if lab.options.busy { ", beside a loop on each core" } else { "" },
    )
}
