//! The cores on which clients and server run.
//!
//! A round trip between two sleeping cores costs several times as much as a round trip on a single
//! core. For an unpinned pair, the system switches between these two cases. Compare figures only on
//! the same cores.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// The cores on which clients and server run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cores {
    /// All on the first core.
    One,
    /// The clients on the first core, the server on the second.
    Two,
    /// The processes run where the system puts them.
    Any,
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::One => "one core",
            Self::Two => "two cores",
            Self::Any => "unpinned",
        })
    }
}

/// The cores that this process may use, if they are known. (Only Linux reports these cores.)
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    cores: Vec<usize>,
}

impl Machine {
    pub(crate) fn here() -> Self {
        Self { cores: system::allowed() }
    }

    pub(crate) fn can(&self, cores: Cores) -> bool {
        match cores {
            Cores::Any => true,
            Cores::One => !self.cores.is_empty(),
            Cores::Two => self.cores.len() > 1,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.cores.len().max(1)
    }

    pub(crate) fn clients(&self, cores: Cores) -> Place {
        Place(match cores {
            Cores::Any => self.cores.clone(),
            Cores::One | Cores::Two => vec![self.cores[0]],
        })
    }

    pub(crate) fn server(&self, cores: Cores) -> Place {
        Place(match cores {
            Cores::Any => self.cores.clone(),
            Cores::One => vec![self.cores[0]],
            Cores::Two => vec![self.cores[1]],
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cores.as_slice() {
            [] => write!(f, "nothing can be pinned here, rows with pinned cores are left out"),
            [one] => {
                write!(f, "one core: {one}; there is no other, rows with two cores are left out")
            }
            [one, two, ..] => write!(
                f,
                "one core: clients and server on core {one}; two cores: clients on {one}, server \
                 on {two}; unpinned: any of {}",
                self.cores.len()
            ),
        }
    }
}

/// Some cores, or any cores if it is empty.
#[derive(Clone, Debug)]
pub(crate) struct Place(Vec<usize>);

impl Place {
    /// Pins this thread, and the threads that it starts later, to these cores.
    pub(crate) fn take(&self) {
        system::pin(None, &self.0);
    }

    /// Pins all threads of a process to these cores.
    pub(crate) fn take_process(&self, pid: u32) {
        for thread in system::threads(pid) {
            system::pin(Some(thread), &self.0);
        }
    }
}

/// Writes the cores as a process's argument.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|core| write!(f, "{core} "))
    }
}

impl FromStr for Place {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split_whitespace().map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs;

    use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

    pub(super) fn allowed() -> Vec<usize> {
        let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
        (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
    }

    pub(super) fn pin(thread: Option<i32>, cores: &[usize]) {
        if cores.is_empty() {
            return;
        }
        let mut set = CpuSet::new();
        cores.iter().for_each(|core| set.set(*core));
        // A thread that has ended in the meantime needs no core.
        let _ = sched_setaffinity(thread.and_then(Pid::from_raw), &set);
    }

    pub(super) fn threads(pid: u32) -> Vec<i32> {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
        tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) fn allowed() -> Vec<usize> {
        Vec::new()
    }

    pub(super) fn pin(_thread: Option<i32>, _cores: &[usize]) {}

    pub(super) fn threads(_pid: u32) -> Vec<i32> {
        Vec::new()
    }
}
