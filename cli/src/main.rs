//! The command `redlatch`: runs a command under a distributed lock, and shows its holder.

mod acl;
mod admin;
mod args;
mod cgroup;
mod doctor;
mod guardian;
mod held;
mod manual;
mod process;
mod run;
mod start;
mod top;
mod trouble;
mod wait;
mod who;

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _, ValueEnum as _};
use clap_complete::Shell;

use args::{Args, Task};
use trouble::{SOFTWARE, Trouble, USAGE, say};

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        Some(word) if word == guardian::ARGUMENT => return guardian::main(words),
        Some(word) if word == start::ARGUMENT => return start::main(words),
        _ => {}
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let asked = !error.use_stderr();
            let _written = error.print();
            return if asked { ExitCode::SUCCESS } else { USAGE.into() };
        }
    };
    match perform(&args) {
        Ok(status) => status.into(),
        Err(trouble) => {
            if !(trouble.is_expected && args.quiet) {
                say(&trouble.message);
            }
            trouble.status.into()
        }
    }
}

fn perform(args: &Args) -> Result<u8, Trouble> {
    match &args.task {
        Task::Run(run) => run::run(args, run),
        Task::Who { name, json } => who::who(args, name, *json),
        Task::Ls { pattern, json } => who::ls(args, pattern, *json),
        Task::Wait { name, limit } => wait::wait(args, name, *limit),
        Task::Top { pattern, every, json } => top::top(args, pattern, *every, *json),
        Task::Unlock { name, owner, force: _ } => admin::unlock(args, name, owner.as_ref()),
        Task::Permits { name, set } => admin::permits(args, name, *set),
        Task::Latch { name, set, count_down, wait } => {
            admin::latch(args, name, *set, *count_down, *wait)
        }
        Task::Acl { name, uses, user } => acl::acl(args, name, uses, user),
        Task::Doctor { name, uses, server: _ } => doctor::doctor(args, name, uses),
        Task::Completions { shell: Some(shell) } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Args::command(), "redlatch", &mut script);
            print(&script)
        }
        Task::Completions { shell: None } => {
            let shells = Shell::value_variants().iter().map(|shell| format!("{shell}\n"));
            print(shells.collect::<String>().as_bytes())
        }
        Task::Man => {
            let page = manual::manual();
            print(&page.map_err(|error| Trouble::new(SOFTWARE, format!("{error}")))?)
        }
    }
}

fn print(bytes: &[u8]) -> Result<u8, Trouble> {
    write(bytes).map(|_| 0)
}

/// Writes to stdout. Returns `false` if the reader of stdout has ended. A full disk is an error.
fn write(bytes: &[u8]) -> Result<bool, Trouble> {
    let mut stdout = std::io::stdout();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Trouble::new(SOFTWARE, format!("cannot write to stdout: {error}"))),
        Ok(()) => Ok(true),
    }
}
