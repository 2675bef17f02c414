//! redlatch compared with other lock libraries, in several languages: see README.md.

// An error ends the bench.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

#[allow(dead_code)]
#[path = "../../table/calls.rs"]
mod calls;
mod clock;
#[allow(dead_code)]
#[path = "../../table/cores.rs"]
mod cores;
mod dashboard;
mod document;
mod drive;
mod grants;
mod lab;
mod options;
mod picture;
mod pictures;
mod program;
#[allow(dead_code)]
#[path = "../../table/report.rs"]
mod report;
mod results;
mod stores;
mod works;

use redlatch_testkit::Job;

use lab::Lab;
use options::Options;
use program::Program;
use results::Results;
use stores::StoreServer;
use works::WORKS;

fn main() -> ExitCode {
    if env::args().nth(1).is_some_and(|arg| arg == "--drive") {
        drive::main();
        return ExitCode::SUCCESS;
    }
    if let Some(job) = Job::from_env() {
        dashboard::work(&job);
    }
    let done = match Options::parse(env::args().skip(1)) {
        Ok(Some(options)) => peers(options),
        Ok(None) => {
            print!("{}", options::HELP);
            Ok(())
        }
        Err(error) => Err(error),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn peers(options: Options) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if options.dashboard {
        return write(&root.join("docs/pictures/dashboard.svg"), &dashboard::draw()?);
    }
    let target =
        env::current_exe().ok().and_then(|exe| Some(exe.parent()?.parent()?.join("peers")));
    let target = target.ok_or("the target folder is unknown")?;
    let unknown = options.works.iter().find(|it| WORKS.iter().all(|work| work.key != **it));
    if let Some(unknown) = unknown {
        let keys: Vec<_> = WORKS.iter().map(|work| work.key).collect();
        return Err(format!("there is no work {unknown}, only {}", keys.join(" ")));
    }
    let whole = target.join("results.json");
    let (mut partly, into) = (options.quick || !options.works.is_empty(), options.into.clone());
    let results = match (&options.from, into.as_deref().map(load).transpose()?) {
        (Some(file), _) => load(file)?,
        (None, None) => {
            let file = if partly { target.join("part.json") } else { whole };
            measure(options, &target, &file)?
        }
        (None, Some(mut earlier)) => {
            earlier.replace(measure(options, &target, &target.join("part.json"))?);
            keep(&earlier, &whole)?;
            partly = false;
            earlier
        }
    };
    let document = document::write(&results);
    if partly {
        print!("{document}");
    } else {
        write(&root.join("PEERS.md"), &document)?;
    }
    let folder = if partly { target } else { root.join("docs/pictures") };
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    for (name, picture) in pictures::all(&results) {
        write(&folder.join(name), &picture)?;
    }
    Ok(())
}

fn load(file: &Path) -> Result<Results, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

fn keep(results: &Results, file: &Path) -> Result<(), String> {
    let text = serde_json::to_string(results).map_err(|error| error.to_string())?;
    write(file, &text)
}

/// Measures, and stores the results in the file.
fn measure(options: Options, target: &Path, file: &Path) -> Result<Results, String> {
    let mut built = BTreeMap::new();
    let (mut versions, mut left_out) = (Vec::new(), Vec::new());
    for program in Program::ALL {
        match program.build(target) {
            Ok(command) => {
                built.insert(program, command);
                versions.push(program.versions());
            }
            Err(error) => left_out.push(format!("{program:?}: {error}")),
        }
    }
    let mut stores = BTreeMap::new();
    for store in StoreServer::ALL {
        match StoreServer::start(store) {
            Ok(server) => {
                versions.push(server.versions());
                stores.insert(store, server);
            }
            Err(error) => left_out.push(format!("{store:?}: {error}")),
        }
    }
    let said = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output();
        let output = output.map(|it| String::from_utf8_lossy(&it.stdout).trim().to_owned());
        output.unwrap_or_default()
    };
    let args: Vec<String> = env::args().skip(1).collect();
    let dashes = if args.is_empty() { "" } else { " -- " };
    let mut lab = Lab::new(options.clone(), built, stores)?;
    let mut results = Results {
        date: said("date", &["-u", "+%Y-%m-%d"]),
        commit: said("git", &["rev-parse", "--short", "HEAD"]),
        machine: machine(),
        server: lab.server_version(),
        command: format!("cargo run --release -p redlatch-peers{dashes}{}", args.join(" ")),
        rounds: options.rounds,
        seconds: options.seconds,
        warm: options.warm,
        versions,
        left_out,
        again: Vec::new(),
        cells: Vec::new(),
    };
    for work in WORKS {
        if options.works.is_empty() || options.works.iter().any(|it| it == work.key) {
            results.cells.extend(lab.measure(work));
            // The results are stored after each work, so that an interrupted run is still useful.
            keep(&results, file)?;
        }
    }
    Ok(results)
}

/// Describes the machine in general terms.
fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let model = model.map_or("of an unknown processor", |(_, model)| model);
    format!("{cores} cores of {model}, shared by clients and server")
}
