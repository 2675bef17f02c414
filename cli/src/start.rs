//! The process that becomes the command. The process starts the command when its guardian sends the
//! command's stdin.
//!
//! No code of the command runs earlier. So before the command can do anything, `redlatch run` knows
//! the number of this process, and the guardian has left the group of this process.

use std::ffi::OsString;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Result, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, parent_id};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::trouble::{CANNOT_RUN, NOT_FOUND, SOFTWARE, say};

/// The argument that starts this program as the process that becomes the command.
pub(crate) const ARGUMENT: &str = "command-of-redlatch-run";
/// The line with which the guardian sends the command's stdin.
const STDIN: &[u8] = b"stdin\n";

/// Returns this program, even if its file has been replaced since the start.
pub(crate) fn this_program() -> Command {
    let program = std::env::current_exe().ok().filter(|program| program.exists());
    let mut command = Command::new(program.unwrap_or_else(|| PathBuf::from("/proc/self/exe")));
    command.arg0("redlatch");
    command
}

/// `words` are the guardian's process number, the program's path, and the command. The stdin of
/// this process is a socket. If the command may begin, it receives the command's stdin. If the
/// command cannot begin, this process sends a byte back.
pub(crate) fn main(words: impl Iterator<Item = OsString>) -> ExitCode {
    begin(words).unwrap_or(SOFTWARE).into()
}

fn begin(mut words: impl Iterator<Item = OsString>) -> Option<u8> {
    // Ask for a signal at the guardian's death: if the guardian and `redlatch run` are killed, no
    // other process ends the command.
    #[cfg(target_os = "linux")]
    let _set =
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let guardian = words.next()?;
    let (program, name) = (words.next()?, words.next()?);
    // The guardian may have been killed after it sent the stdin, but before this process asked for
    // the signal of its death. So compare the parent of this process with the guardian.
    let stdin = receive_stdin(std::io::stdin()).filter(|_| guardian == *parent_id().to_string())?;
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().ok()?);
    let error = Command::new(program).arg0(&name).args(words).stdin(stdin).exec();
    let _told = (&socket).write_all(b"\n");
    say(format_args!("{}: {error}", name.to_string_lossy()));
    Some(if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN })
}

pub(crate) fn send_stdin(socket: &UnixStream, stdin: impl AsFd) -> Result<()> {
    let sent = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&sent));
    sendmsg(socket, &[IoSlice::new(STDIN)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a stdin. Returns `None` if the sender has ended.
pub(crate) fn receive_stdin(socket: impl AsFd) -> Option<OwnedFd> {
    let mut line = [0; STDIN.len()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut line)];
    recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sent) => sent.next(),
        _ => None,
    })
}
