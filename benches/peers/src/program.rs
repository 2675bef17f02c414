//! The programs of the drivers: how to build them, and their running processes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// The driver of a language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Program {
    Rust,
    Java,
    Go,
    Python,
    Node,
}

/// How a process of the program is started.
#[derive(Clone, Debug)]
pub(crate) struct Built {
    command: Vec<String>,
}

impl Program {
    pub(crate) const ALL: [Self; 5] = [Self::Rust, Self::Java, Self::Go, Self::Python, Self::Node];

    /// Builds the program below `target`. Returns the reason if the program cannot be built.
    pub(crate) fn build(self, target: &Path) -> Result<Built, String> {
        let drivers = Path::new(env!("CARGO_MANIFEST_DIR")).join("drivers");
        let folder = target.join(format!("{self:?}").to_lowercase());
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let text = |path: PathBuf| path.display().to_string();
        let command = match self {
            Self::Rust => {
                let exe = std::env::current_exe().map_err(|error| error.to_string())?;
                vec![text(exe), "--drive".to_owned()]
            }
            Self::Java => {
                let pom = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/pom.xml");
                let mut maven = Command::new("mvn");
                maven.args(["-q", "-B", "-f"]).arg(pom).arg("package");
                run(maven.arg(format!("-Dbuilt={}", folder.display())))?;
                let libraries = format!("{}/4.7.0/*", folder.display());
                let mut javac = Command::new("javac");
                javac.arg("-d").arg(&folder).args(["-cp", &libraries]);
                run(javac.arg(drivers.join("java/Driver.java")))?;
                let classes = format!("{}:{libraries}", folder.display());
                let quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off";
                ["java", "-XX:+UseSerialGC", "-Xmx256m", quiet, "-cp", &classes, "Driver"]
                    .map(str::to_owned)
                    .to_vec()
            }
            Self::Go => {
                let driver = folder.join("driver");
                let mut go = Command::new("go");
                go.current_dir(drivers.join("go")).args(["build", "-o"]).arg(&driver);
                run(go.arg("."))?;
                vec![text(driver)]
            }
            Self::Python => {
                let python = folder.join("bin/python");
                run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
                let mut pip = Command::new(&python);
                pip.args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "-r"]);
                run(pip.arg(drivers.join("python/requirements.txt")))?;
                vec![text(python), text(drivers.join("python/driver.py"))]
            }
            Self::Node => {
                for file in ["driver.js", "package.json", "package-lock.json"] {
                    fs::copy(drivers.join("node").join(file), folder.join(file))
                        .map_err(|error| format!("{file}: {error}"))?;
                }
                run(Command::new("npm").args(["ci", "--silent"]).current_dir(&folder))?;
                vec!["node".to_owned(), text(folder.join("driver.js"))]
            }
        };
        Ok(Built { command })
    }

    /// Returns the versions of the program and its libraries.
    pub(crate) fn versions(self) -> String {
        let version = |program: &str, argument: &str| {
            let output = Command::new(program).arg(argument).output();
            let output = output.map(|it| String::from_utf8_lossy(&it.stdout).into_owned());
            output.unwrap_or_default().lines().next().unwrap_or_default().trim().to_owned()
        };
        match self {
            Self::Rust => format!(
                "rlock {}, rslock {} on {}",
                locked("rlock"),
                locked("rslock"),
                version("rustc", "--version")
            ),
            Self::Java => format!("Redisson 4.7.0 on {}", version("java", "--version")),
            Self::Go => {
                let module = fs::read_to_string(
                    Path::new(env!("CARGO_MANIFEST_DIR")).join("drivers/go/go.mod"),
                );
                let module = module.unwrap_or_default();
                let of = |name: &str| {
                    let line = module.lines().find(|line| line.contains(name));
                    line.and_then(|line| line.rsplit(" v").next()).unwrap_or("?").to_owned()
                };
                format!(
                    "redislock {}, redsync {} with go-redis {}, rueidislock of rueidis {}, pgx {}, \
                     etcd's client {} on {}",
                    of("redislock"),
                    of("redsync"),
                    of("go-redis"),
                    of("rueidis"),
                    of("pgx"),
                    of("etcd"),
                    version("go", "version").replace("go version ", "")
                )
            }
            Self::Python => {
                let requirements =
                    include_str!("../drivers/python/requirements.txt").trim().replace('\n', ", ");
                format!(
                    "{} on {}",
                    requirements.replace("==", " "),
                    version("python3", "--version")
                )
            }
            Self::Node => {
                format!("redlock 4.2.0 with ioredis 6.0.0 on Node {}", version("node", "--version"))
            }
        }
    }
}

/// Returns a crate's version in Cargo.lock.
fn locked(name: &str) -> String {
    let lock = include_str!("../../../Cargo.lock");
    let mut lines = lock.lines().skip_while(|line| *line != format!("name = \"{name}\""));
    let version = lines.nth(1).unwrap_or_default();
    version.trim_start_matches("version = ").trim_matches('"').to_owned()
}

fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("`{program}`: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    let last: Vec<_> = said.lines().rev().take(3).collect();
    Err(format!("`{program}` failed: {}", last.into_iter().rev().collect::<Vec<_>>().join("; ")))
}

/// A running driver, which is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Driver {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Driver {
    pub(crate) fn start(built: &Built) -> Self {
        let mut child = Command::new(&built.command[0])
            .args(&built.command[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let (sender, receiver) = channel();
        thread::spawn(move || lines.for_each(|line| drop(sender.send(line))));
        Self { child, stdin, lines: receiver }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn tell(&mut self, line: &str) {
        // A driver that has ended does not answer.
        let _ = writeln!(self.stdin, "{line}");
    }

    /// Returns the rest of the next line, which must begin with `word`.
    pub(crate) fn answer(&mut self, word: &str, patience: Duration) -> Result<String, String> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => match line.strip_prefix(word) {
                Some(rest) => Ok(rest.trim().to_owned()),
                None => Err(line),
            },
            Err(_) => {
                self.kill();
                Err(format!("a process did not say `{word}` in time, or has ended"))
            }
        }
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.kill();
    }
}
