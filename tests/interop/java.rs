//! A process with the real Redisson: the program in `interop/`.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::SystemTime;

use super::*;

/// A process of Redisson's, which dies with this value.
pub(crate) struct Java {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    /// Replies that came while another thread's was waited for.
    kept: Vec<String>,
    /// The beginning of its locks' owners.
    pub(crate) id: String,
}

impl Java {
    /// Starts one on this server; `None`, with a word, if Java or Maven is missing.
    pub(crate) fn start(server: &Server) -> Option<Self> {
        Self::at(&server.url(), None)
    }

    /// The same, with this watchdog timeout and at any URL.
    pub(crate) fn at(url: &str, watchdog: Option<Duration>) -> Option<Self> {
        let classes = match built() {
            Ok(classes) => classes,
            Err(why) => {
                let _ = writeln!(io::stderr(), "skipped: {why}");
                return None;
            }
        };
        let mut child = Command::new("java")
            .args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", classes])
            .args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "interop.Interop", url])
            .args(watchdog.map(|timeout| timeout.as_millis().to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        // Ends with the process.
        thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let stdin = child.stdin.take().unwrap();
        let mut java = Self { child, stdin, lines, kept: Vec::new(), id: String::new() };
        java.id = java.reply("ready");
        Some(java)
    }

    /// Tells a thread of the process to do something.
    #[track_caller]
    pub(crate) fn tell(&mut self, thread: &str, command: &str) {
        writeln!(self.stdin, "{thread} {command}").unwrap();
    }

    /// That thread's next line.
    #[track_caller]
    pub(crate) fn reply(&mut self, thread: &str) -> String {
        let of_thread = |line: &String| line.split(' ').next() == Some(thread);
        let line = match self.kept.iter().position(of_thread) {
            Some(at) => self.kept.remove(at),
            None => loop {
                let line = self.lines.recv_timeout(SOON).unwrap_or_else(|error| {
                    panic!("Redisson's thread {thread:?} says nothing: {error}");
                });
                if of_thread(&line) {
                    break line;
                }
                self.kept.push(line);
            },
        };
        line[thread.len()..].trim_start().to_owned()
    }

    /// Both.
    #[track_caller]
    pub(crate) fn ask(&mut self, thread: &str, command: &str) -> String {
        self.tell(thread, command);
        self.reply(thread)
    }

    /// For commands with no other answer than `ok`.
    #[track_caller]
    pub(crate) fn run(&mut self, thread: &str, command: &str) {
        assert_eq!(self.ask(thread, command), "ok", "{thread} {command}");
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The class path of the program, which is built by the first that asks; or why there is none.
fn built() -> Result<&'static str, &'static str> {
    static BUILT: OnceLock<Result<String, String>> = OnceLock::new();
    BUILT.get_or_init(build).as_deref().map_err(String::as_str)
}

fn build() -> Result<String, String> {
    for (program, argument) in [("java", "-version"), ("mvn", "-version")] {
        let output = Command::new(program).arg(argument).output();
        if !output.is_ok_and(|output| output.status.success()) {
            return Err(format!("no test beside Redisson: `{program}` is not to be had"));
        }
    }
    let interop = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("interop");
    fs::create_dir_all(&target).unwrap();
    // Other processes that build it wait here.
    let lock = File::create(target.join("lock")).unwrap();
    lock.lock().unwrap();
    let (jar, pom) = (target.join("interop.jar"), interop.join("pom.xml"));
    let source = interop.join("src/main/java/interop/Interop.java");
    if modified(&jar) < modified(&pom).max(modified(&source)) {
        let mut maven = Command::new("mvn");
        maven.args(["-q", "-B", "-f"]).arg(&pom).arg(format!("-Dbuilt={}", target.display()));
        let output = maven.arg("package").output().unwrap();
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(std::env::var_os("CI").is_none(), "{maven:?}: {said}");
            return Err(format!("no test beside Redisson: Maven cannot build {interop:?}: {said}"));
        }
    }
    Ok(format!("{}:{}", jar.display(), target.join("lib/*").display()))
}

fn modified(path: &PathBuf) -> Option<SystemTime> {
    fs::metadata(path).and_then(|file| file.modified()).ok()
}
