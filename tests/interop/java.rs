//! Processes with the real Redisson: the program in `interop/`.
//!
//! A Java process takes most of a second to start, so the tests share one process for each version
//! of Redisson. Each test has its own clients in that process. A test that kills or pauses a
//! process starts its own process.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::SystemTime;

use redlatch_testkit::{Guard, signal};

use super::*;

/// A version of Redisson.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    New,
    Old,
}

impl Version {
    const ALL: [Self; 2] = [Self::New, Self::Old];

    pub(crate) fn number(self) -> &'static str {
        match self {
            Self::New => "4.7.0",
            Self::Old => "3.16.8",
        }
    }
}

/// Whether the calling test can run. If it cannot run, the function prints the reason.
pub(crate) fn is_beside_redisson() -> bool {
    if let Err(why) = built() {
        let test = thread::current().name().unwrap_or("?").to_owned();
        let _ = writeln!(io::stderr(), "SKIPPED {test}, no test beside Redisson: {why}");
    }
    built().is_ok()
}

/// Runs the test with all versions at the same time. If Java or Maven is missing, prints this and
/// does not run the test.
pub(crate) fn beside_redisson(test: impl Fn(Version) + Sync) {
    if !is_beside_redisson() {
        return;
    }
    let (test, name) = (&test, thread::current().name().unwrap_or("?").to_owned());
    thread::scope(|scope| {
        for version in Version::ALL {
            let run = move || {
                // The time limit begins only here: on a new machine, Maven first downloads the
                // libraries for the build, which may take longer than any test.
                bound();
                test(version);
            };
            // With this name, a panic shows the version.
            let beside = format!("{name}, beside Redisson {}", version.number());
            thread::Builder::new().name(beside).spawn_scoped(scope, run).unwrap();
        }
    });
}

/// A Java process, which is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Jvm {
    child: Mutex<Child>,
    pid: u32,
    stdin: Mutex<ChildStdin>,
    /// The channel for the lines of each client.
    clients: Arc<Mutex<HashMap<String, Sender<String>>>>,
    guard: Mutex<Option<Guard>>,
}

impl Jvm {
    pub(crate) fn start(version: Version) -> Arc<Self> {
        let folder = built().as_ref().unwrap();
        let classes = format!("{folder}/interop.jar:{folder}/{}/*", version.number());
        let mut child = Command::new("java")
            .args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", &classes])
            .args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "interop.Interop"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let clients: Arc<Mutex<HashMap<String, Sender<String>>>> = Arc::default();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let (pid, stdin) = (child.id(), Mutex::new(child.stdin.take().unwrap()));
        thread::spawn({
            let clients = Arc::clone(&clients);
            // The thread ends with the process.
            move || {
                for line in lines {
                    let Some((client, rest)) = line.split_once(' ') else { continue };
                    // If a test has ended, it receives no further lines.
                    let _ = clients.lock().unwrap().get(client).map(|to| to.send(rest.to_owned()));
                }
                clients.lock().unwrap().clear();
            }
        });
        let (child, guard) = (Mutex::new(child), Mutex::default());
        Arc::new(Self { child, pid, stdin, clients, guard })
    }

    /// Returns the process that all tests share. No test may harm the shared process.
    pub(crate) fn shared(version: Version) -> Arc<Self> {
        // When this process ends, the input of the Java process ends, and then the Java process
        // ends, too.
        static SHARED: [OnceLock<Arc<Jvm>>; 2] = [OnceLock::new(), OnceLock::new()];
        let shared = &SHARED[usize::from(version == Version::Old)];
        Arc::clone(shared.get_or_init(|| Self::start(version)))
    }

    pub(crate) fn kill(&self) {
        let _ = self.child.lock().unwrap().kill();
        // End the guard before the wait, because the id may belong to another process after it.
        *self.guard.lock().unwrap() = None;
        let _ = self.child.lock().unwrap().wait();
    }

    /// Pauses the process until [`go_on`](Self::go_on).
    pub(crate) fn stop(&self) {
        self.guard.lock().unwrap().get_or_insert_with(|| Guard::of(self.pid));
        signal::stop(self.pid);
    }

    pub(crate) fn go_on(&self) {
        signal::go_on(self.pid);
    }
}

impl Drop for Jvm {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A Redisson client like that of a Java service.
#[derive(Debug)]
pub(crate) struct Redisson {
    jvm: Arc<Jvm>,
    name: String,
    lines: Receiver<String>,
    /// Replies of other threads that came while the test waited for one thread's reply.
    kept: Vec<String>,
    /// Each thread's last command.
    told: HashMap<String, String>,
    /// The uuid with which the client's owners begin.
    pub(crate) id: String,
}

impl Redisson {
    /// Returns a client whose leases do not end during a test.
    pub(crate) fn on(jvm: &Arc<Jvm>, server: &Server) -> Self {
        Self::at(jvm, &server.url(), LONG_LEASE)
    }

    pub(crate) fn of(version: Version, server: &Server) -> Self {
        Self::on(&Jvm::shared(version), server)
    }

    /// Returns a client with this watchdog timeout, at any URL.
    pub(crate) fn at(jvm: &Arc<Jvm>, url: &str, watchdog: Duration) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = format!("client{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let (sender, lines) = channel();
        jvm.clients.lock().unwrap().insert(name.clone(), sender);
        let (jvm, kept, told) = (Arc::clone(jvm), Vec::new(), HashMap::new());
        let mut redisson = Self { jvm, name, lines, kept, told, id: String::new() };
        let connect = format!("connect {url} {}", watchdog.as_millis());
        redisson.id = redisson.ask("main", &connect);
        redisson
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Sends a command to a thread of the client.
    #[track_caller]
    pub(crate) fn tell(&mut self, thread: &str, command: &str) {
        self.told.insert(thread.to_owned(), command.to_owned());
        let line = format!("{} {thread} {command}\n", self.name);
        self.jvm.stdin.lock().unwrap().write_all(line.as_bytes()).unwrap();
    }

    /// Returns the thread's next line. Java is slow on a busy machine, so the wait is long.
    #[track_caller]
    pub(crate) fn reply(&mut self, thread: &str) -> String {
        self.reply_within(thread, TIMEOUT * 2).unwrap_or_else(|| {
            let told = self.told.get(thread);
            panic!("Redisson's thread {thread:?} says nothing to {told:?}, or has ended");
        })
    }

    /// Returns the thread's next line if it comes within this time.
    pub(crate) fn reply_within(&mut self, thread: &str, time: Duration) -> Option<String> {
        let of_thread = |line: &String| line.split(' ').next() == Some(thread);
        let until = Instant::now() + time;
        let line = match self.kept.iter().position(of_thread) {
            Some(at) => self.kept.remove(at),
            None => loop {
                let left = until.saturating_duration_since(Instant::now());
                let line = self.lines.recv_timeout(left).ok()?;
                if of_thread(&line) {
                    break line;
                }
                self.kept.push(line);
            },
        };
        Some(line[thread.len()..].trim_start().to_owned())
    }

    /// Sends a command to a thread and returns the thread's reply.
    #[track_caller]
    pub(crate) fn ask(&mut self, thread: &str, command: &str) -> String {
        self.tell(thread, command);
        self.reply(thread)
    }

    /// Runs a command whose only valid answer is `ok`.
    #[track_caller]
    pub(crate) fn run(&mut self, thread: &str, command: &str) {
        assert_eq!(self.ask(thread, command), "ok", "{thread} {command}");
    }

    /// Whether the reply is Java's `true`. The only other valid reply is `false`.
    #[track_caller]
    pub(crate) fn says(&mut self, thread: &str, command: &str) -> bool {
        let answer = self.ask(thread, command);
        answer.parse().unwrap_or_else(|_| panic!("{thread} {command}: {answer}"))
    }
}

impl Drop for Redisson {
    fn drop(&mut self) {
        // The command is sent, and no thread waits for its reply. A killed process does not get it.
        let line = format!("{} main shutdown\n", self.name);
        let _ = self.jvm.stdin.lock().map(|mut stdin| stdin.write_all(line.as_bytes()));
        let _ = self.jvm.clients.lock().map(|mut clients| clients.remove(&self.name));
    }
}

/// The name, encoded for a command.
pub(crate) fn quoted(name: &str) -> String {
    let quote = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    name.bytes().map(quote).collect()
}

/// Returns the folder of the program. The first test that needs the program builds it. The error
/// says why there is no program.
pub(crate) fn built() -> &'static Result<String, String> {
    static BUILT: OnceLock<Result<String, String>> = OnceLock::new();
    BUILT.get_or_init(build)
}

fn build() -> Result<String, String> {
    for (program, argument) in [("java", "-version"), ("mvn", "-version")] {
        let output = Command::new(program).arg(argument).output();
        if !output.is_ok_and(|output| output.status.success()) {
            return Err(format!("`{program}` is not to be had"));
        }
    }
    let interop = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("interop");
    fs::create_dir_all(&target).unwrap();
    // If another process builds the program, this process waits here.
    let lock = File::create(target.join("lock")).unwrap();
    lock.lock().unwrap();
    let (done, pom) = (target.join("done"), interop.join("pom.xml"));
    let sources = fs::read_dir(interop.join("src/main/java/interop")).unwrap();
    let sources = sources.map(|file| modified(&file.unwrap().path())).max().unwrap();
    if modified(&done) < modified(&pom).max(sources) {
        for (version, goal) in Version::ALL.into_iter().zip([
            "package",
            // Copy only the libraries, because the program is the same for each version.
            "dependency:copy-dependencies@libraries",
        ]) {
            let mut maven = Command::new("mvn");
            maven.args(["-q", "-B", "-f"]).arg(&pom).arg(goal);
            maven.arg(format!("-Dbuilt={}", target.display()));
            let output = maven.arg(format!("-Dredisson={}", version.number())).output().unwrap();
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(env::var_os("CI").is_none(), "{maven:?}: {said}");
                return Err(format!("Maven cannot build {interop:?}: {said}"));
            }
        }
        File::create(done).unwrap();
    }
    Ok(target.display().to_string())
}

fn modified(path: &PathBuf) -> Option<SystemTime> {
    fs::metadata(path).and_then(|file| file.modified()).ok()
}
