//! The private servers beside Redis: Postgres and etcd.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getuid, kill_process};
use tempfile::TempDir;

/// The server in which a library keeps its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Store {
    Redis,
    Postgres,
    Etcd,
}

/// The longest time until a server is ready.
const START_BOUND: Duration = Duration::from_secs(20);
/// Postgres's limit of sessions. In two rows of a table, 64 processes run, and each of their
/// threads has a session.
const CONNECTIONS: &str = "max_connections=300";

/// Waits until the parent is gone, and then ends the server and removes its folder.
const GUARD: &str = r#"
trap '' INT QUIT TERM HUP
read -r line && exit
kill -s QUIT "$1"
sleep 2
rm -rf "$2"
"#;

/// A server on a free port of 127.0.0.1. The server ends when this value is dropped or this process
/// ends.
#[derive(Debug)]
pub(crate) struct StoreServer {
    store: Store,
    url: String,
    version: String,
    server: Child,
    guard: Child,
    folder: TempDir,
}

/// Returns a new folder, in memory if possible.
pub(crate) fn folder() -> Result<TempDir, String> {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    folder.map_err(|error| error.to_string())
}

impl StoreServer {
    pub(crate) const ALL: [Store; 2] = [Store::Postgres, Store::Etcd];

    /// Starts a server. Returns the reason if this is not possible.
    pub(crate) fn start(store: Store) -> Result<Self, String> {
        let folder = folder()?;
        let (url, version, mut command) = match store {
            Store::Postgres => postgres(folder.path())?,
            _ => etcd(folder.path())?,
        };
        let log = folder.path().join("log");
        let output = File::create(&log).map_err(|error| error.to_string())?;
        let server = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            // Ctrl-C signals the terminal's group. The server must not end before its users.
            .process_group(0)
            .spawn()
            .map_err(|error| error.to_string())?;
        let guard = Command::new("sh")
            .args(["-c", GUARD, "sh", &server.id().to_string()])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut it = Self { store, url, version, server, guard, folder };
        let until = Instant::now() + START_BOUND;
        while !it.is_ready() {
            if Instant::now() > until || !matches!(it.server.try_wait(), Ok(None)) {
                let said = fs::read_to_string(log).unwrap_or_default();
                return Err(format!(
                    "it does not start: {}",
                    said.lines().last().unwrap_or_default()
                ));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(it)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the version and the settings.
    pub(crate) fn versions(&self) -> String {
        let place = if self.folder.path().starts_with("/dev/shm") { "memory" } else { "files" };
        match self.store {
            Store::Postgres => format!(
                "{}, with its defaults and {CONNECTIONS}. An advisory lock writes no data",
                self.version
            ),
            _ => format!("{}, one member with its defaults. Its data is in {place}", self.version),
        }
    }

    /// Returns the ids of the server's processes. Postgres has one for each session.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let parent = self.server.id().to_string();
        let ids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let children = ids.filter(|id| {
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            // The fields after the program's name are the state and the parent.
            let fields = stat.rsplit(')').next().unwrap_or_default();
            fields.split_whitespace().nth(1) == Some(&parent)
        });
        children.chain([self.server.id()]).collect()
    }

    /// Returns the processor time of the server so far, in ns, if the system reports it.
    pub(crate) fn processor(&self) -> Option<u64> {
        let of_thread = |folder: PathBuf| {
            let text = fs::read_to_string(folder.join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        };
        let threads = self.processes().into_iter().flat_map(|id| {
            fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten()
        });
        let times: Vec<u64> = threads.filter_map(|thread| of_thread(thread.path())).collect();
        (!times.is_empty()).then(|| times.iter().sum())
    }

    fn is_ready(&self) -> bool {
        if self.store == Store::Postgres {
            let file = self.folder.path().join("data/postmaster.pid");
            let lines = fs::read_to_string(file).unwrap_or_default();
            return lines.lines().last().is_some_and(|state| state.trim() == "ready");
        }
        let address = self.url.trim_start_matches("http://");
        let Ok(mut stream) = TcpStream::connect(address) else { return false };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
        let mut answer = String::new();
        let asked = stream.write_all(b"GET /health HTTP/1.0\r\n\r\n");
        let _ = asked.and_then(|()| stream.read_to_string(&mut answer));
        answer.contains("\"true\"")
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.server.id()).ok().and_then(Pid::from_raw) {
            // Postgres ends its sessions and frees its memory at this signal.
            let _ = kill_process(pid, Signal::QUIT);
        }
        // End the guard first: after the wait for the server, another process may get its id.
        if let Some(mut input) = self.guard.stdin.take() {
            let _ = input.write_all(b"end\n");
        }
        let _ = self.guard.wait();
        let _ = self.server.wait();
    }
}

fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|error| error.to_string())?;
    listener.local_addr().map(|it| it.port()).map_err(|error| error.to_string())
}

/// Runs a command, and returns its first line.
fn first_line(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("`{program}`: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        return Err(format!("`{program}` failed: {said}"));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(said.lines().next().unwrap_or_default().trim().to_owned())
}

/// Returns the URL, the version and the command of a new Postgres.
fn postgres(folder: &Path) -> Result<(String, String, Command), String> {
    let programs = postgres_programs();
    let data = folder.join("data");
    fs::create_dir(&data).map_err(|error| error.to_string())?;
    // Postgres refuses to run as root.
    let user = if getuid().is_root() { Some(unprivileged()?) } else { None };
    if let Some((user, group)) = user {
        for folder in [folder, &data] {
            chown(folder, Some(user), Some(group)).map_err(|error| error.to_string())?;
        }
    }
    let run = |program: &str| {
        let mut command = Command::new(programs.join(program));
        command.arg("-D").arg(&data).current_dir(&data);
        if let Some((user, group)) = user {
            command.uid(user).gid(group);
        }
        command
    };
    let setup = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"];
    first_line(run("initdb").args(setup))?;
    let version = first_line(Command::new(programs.join("postgres")).arg("--version"))?;
    let port = free_port()?;
    let mut server = run("postgres");
    server.args(["-p", &port.to_string(), "-c", CONNECTIONS]);
    server.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
    let version = version.trim_start_matches("postgres (PostgreSQL) ");
    let version = version.split(' ').next().unwrap_or_default();
    Ok((
        format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable"),
        format!("PostgreSQL {version}"),
        server,
    ))
}

/// Returns the folder of Postgres's programs, which Debian does not put into `PATH`. If the path is
/// empty, the programs are in `PATH`.
fn postgres_programs() -> PathBuf {
    if first_line(Command::new("initdb").arg("--version")).is_ok() {
        return PathBuf::new();
    }
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.max_by_key(|it| it.file_name().to_str()?.parse::<u32>().ok());
    newest.map(|version| version.path().join("bin")).unwrap_or_default()
}

/// Returns the ids of a user without rights, and of the user's group.
fn unprivileged() -> Result<(u32, u32), String> {
    let users = fs::read_to_string("/etc/passwd").map_err(|error| error.to_string())?;
    let ids = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    ids("postgres").or_else(|| ids("nobody")).ok_or_else(|| "no user to run it as".to_owned())
}

/// Returns the URL, the version and the command of a new etcd.
fn etcd(folder: &Path) -> Result<(String, String, Command), String> {
    let version = first_line(Command::new("etcd").arg("--version"))?;
    let (clients, members) = (free_port()?, free_port()?);
    let [clients, members] = [clients, members].map(|port| format!("http://127.0.0.1:{port}"));
    let mut server = Command::new("etcd");
    server.arg("--data-dir").arg(folder.join("data"));
    server.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    server.args(["--listen-peer-urls", &members, "--initial-advertise-peer-urls", &members]);
    server.arg("--initial-cluster").arg(format!("default={members}"));
    Ok((clients, version.replace(" Version:", ""), server))
}
