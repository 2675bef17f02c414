//! A command's own cgroup (version 2). Processes that leave the command's process group stay in the
//! cgroup.

use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Cgroup {
    folder: PathBuf,
}

impl Cgroup {
    /// Chooses the path of a cgroup for the command of this client, whose id is unique. Creates
    /// nothing.
    pub(crate) fn of(client: &str) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = own(&mounts, &fs::read_to_string("/proc/self/cgroup")?);
        let own = own.ok_or_else(|| Error::new(ErrorKind::NotFound, "no cgroup v2 is mounted"))?;
        Ok(Self { folder: own.join(format!("redlatch-{client}")) })
    }

    /// Creates the cgroup, and puts a process and its later children into it.
    pub(crate) fn take(&self, process: u32) -> Result<()> {
        fs::create_dir(&self.folder)?;
        let taken = match fs::exists(self.folder.join("cgroup.kill")) {
            Ok(true) => fs::write(self.folder.join("cgroup.procs"), process.to_string()),
            // Without `cgroup.kill` the cgroup's processes could not be killed, and the lock would
            // be kept for ever.
            _ => Err(Error::new(
                ErrorKind::Unsupported,
                "there is no cgroup.kill, which needs Linux 5.14",
            )),
        };
        taken.inspect_err(|_| self.remove())
    }

    /// Kills all processes in the cgroup, including processes that are just being started.
    pub(crate) fn kill(&self) {
        // Kill the known processes first. The write below waits while any cgroup of the machine is
        // made, entered or removed, which takes more than a second on a busy machine.
        #[cfg(target_os = "linux")]
        self.kill_each();
        let _none = fs::write(self.folder.join("cgroup.kill"), "1");
    }

    /// Kills the processes that the cgroup lists now.
    #[cfg(target_os = "linux")]
    fn kill_each(&self) {
        use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
        let list = || {
            let pids = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
            let pids = pids.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
            pids.collect::<Vec<_>>()
        };
        let open = |pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?));
        // Open only some processes at a time, because the limit for open files may be low.
        for pids in list().chunks(128) {
            let opened: Vec<_> = pids.iter().copied().filter_map(open).collect();
            // If the number was reused before `open`, it belongs to another process, and is missing
            // in the new list.
            let still = list();
            for (_, process) in opened.iter().filter(|(pid, _)| still.contains(pid)) {
                let _gone = pidfd_send_signal(process, Signal::KILL);
            }
        }
    }

    /// Kills all processes in the cgroup, and returns when they are dead.
    pub(crate) fn end(&self) {
        self.kill();
        let is_populated = || {
            let events = fs::read_to_string(self.folder.join("cgroup.events"));
            events.is_ok_and(|events| events.lines().any(|line| line == "populated 1"))
        };
        while is_populated() {
            thread::sleep(Duration::from_millis(1));
        }
        self.remove();
    }

    fn remove(&self) {
        remove(&self.folder);
    }
}

/// Removes a cgroup and the cgroups that the command has made in it.
fn remove(folder: &Path) {
    let inside = fs::read_dir(folder).into_iter().flatten().flatten();
    inside
        .filter(|it| it.file_type().is_ok_and(|it| it.is_dir()))
        .for_each(|it| remove(&it.path()));
    let _gone = fs::remove_dir(folder);
}

/// Returns the folder of this process's cgroup.
fn own(mounts: &str, cgroups: &str) -> Option<PathBuf> {
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let below = path.strip_prefix(root.trim_end_matches('/'))?.trim_start_matches('/');
        kind.starts_with("cgroup2 ").then(|| PathBuf::from(point).join(below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_below_the_mount() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
        let inner = "30 23 0:26 /box /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        let old = "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let cron = "4:cpu:/\n0::/system.slice/cron.service\n";
        let at = |path| Some(PathBuf::from(path));
        assert_eq!(own(mounts, cron), at("/sys/fs/cgroup/system.slice/cron.service"));
        assert_eq!(own(&format!("{old}{mounts}"), "0::/"), at("/sys/fs/cgroup/"));
        assert_eq!(own(inner, "0::/box/a"), at("/sys/fs/cgroup/a"));
        assert_eq!(own(inner, "0::/elsewhere"), None);
        assert_eq!(own(old, cron), None);
        assert_eq!(own(mounts, "4:cpu:/\n"), None);
    }
}
