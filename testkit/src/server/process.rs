//! The server's process, and the shell that ends the server.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Runs the server in the background. A line on standard input makes the shell end the server. At
/// the end of standard input, the parent has ended, and the shell also removes the folder.
/// Descriptor 3 closes when the server has ended, so that the parent notices this.
const WRAPPER: &str = r#"
dir=$1 log=$2; shift 2
"$@" </dev/null 3>&1 >>"$log" 2>&1 &
pid=$!
echo "$pid"
exec >/dev/null
trap '' INT QUIT TERM HUP
read -r line || gone=yes
kill -9 "$pid"
wait "$pid"
[ -z "$gone" ] || rm -rf "$dir"
"#;

/// A running server. The drop of this value kills the server and waits until it is gone.
#[derive(Debug)]
pub(super) struct Process {
    shell: Child,
    pid: u32,
}

#[derive(Debug)]
pub(super) enum Started {
    Ready(Process),
    /// The port is taken. The string is the server's log.
    PortTaken(String),
}

impl Process {
    pub(super) fn start(
        program: &Path,
        args: &[String],
        dir: &Path,
        log: &Path,
        socket: &Path,
        until: Instant,
    ) -> Result<Started, String> {
        let _ = fs::remove_file(socket);
        let _ = fs::remove_file(log);
        let mut shell = Command::new("sh")
            .args(["-c", WRAPPER, "sh"])
            .args([dir, log])
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Ctrl-C signals the terminal's process group. The server must not end before its
            // users.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("no shell to run it in: {error}; is there a `sh`?"))?;
        let output = shell.stdout.take();
        // If this function returns early after this line, the drop kills the process.
        let mut process = Self { shell, pid: 0 };
        let (pid, ended) = output.and_then(watch).ok_or("the shell has not started it")?;
        process.pid = pid;
        loop {
            if answers(socket) {
                return Ok(Started::Ready(process));
            }
            match ended.recv_timeout(Duration::from_millis(1)) {
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(RecvTimeoutError::Timeout) => return Err("it does not answer".into()),
                _ => break,
            }
        }
        let said = fs::read_to_string(log).unwrap_or_default();
        if said.to_lowercase().contains("address already in use") && Instant::now() < until {
            return Ok(Started::PortTaken(said));
        }
        Err("it has ended at once".into())
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut stdin) = self.shell.stdin.take() {
            let _ = stdin.write_all(b"end\n");
        }
        let _ = self.shell.wait();
    }
}

/// Returns the server's process id, and a channel that closes when the server ends.
fn watch(output: ChildStdout) -> Option<(u32, Receiver<()>)> {
    let mut output = BufReader::new(output);
    let mut line = String::new();
    output.read_line(&mut line).ok()?;
    let pid = line.trim().parse().ok()?;
    let (alive, ended) = channel();
    thread::spawn(move || {
        let _ = output.read_to_end(&mut Vec::new());
        drop::<std::sync::mpsc::Sender<()>>(alive);
    });
    Some((pid, ended))
}

/// Whether the server answers on its own socket. On the port, another server might answer.
fn answers(socket: &Path) -> bool {
    let Ok(mut stream) = UnixStream::connect(socket) else {
        return false;
    };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
    let mut reply = [0; 8];
    let said = stream.write_all(b"PING\r\n").and_then(|()| stream.read(&mut reply));
    // -NOAUTH also shows that the server is ready. -LOADING would show that it is not.
    said.is_ok_and(|n| reply[..n].starts_with(b"+PONG") || reply[..n].starts_with(b"-NOAUTH"))
}
