//! A process that another process has started, and that is not reaped yet.

use rustix::process::Pid;

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    /// A descriptor of the process. `None` on Linux before 5.3, or if a sandbox forbids the call.
    #[cfg(target_os = "linux")]
    opened: Option<std::os::fd::OwnedFd>,
}

impl Process {
    pub(crate) fn of(pid: Pid) -> Self {
        Self {
            pid,
            #[cfg(target_os = "linux")]
            opened: rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok(),
        }
    }

    /// Returns whether the process has ended. On systems other than Linux, only the parent can
    /// check this, and the result is `false`.
    #[cfg(target_os = "linux")]
    pub(crate) fn has_ended(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let Some(opened) = &self.opened else { return self.is_zombie() };
        let mut polled = [PollFd::new(opened, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ended| ended > 0)
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn has_ended(&self) -> bool {
        false
    }

    /// If the file is not readable, the result is `false`, because `/proc` may hide the processes
    /// of other users.
    #[cfg(target_os = "linux")]
    fn is_zombie(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero()));
        // The program's name, in parentheses, may contain any characters.
        let stat = stat.unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('Z'))
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process::Command;

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    #[test]
    fn a_process_has_ended_when_only_its_parent_has_to_reap_it() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let processes = [Process::of(pid), Process { pid, opened: None }];
        assert!(processes[0].opened.is_some());
        assert!(processes.iter().all(|it| !it.has_ended()));
        child.kill().unwrap();
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        assert!(processes.iter().all(Process::has_ended));
        child.wait().unwrap();
        assert!(processes[0].has_ended());
    }
}
