//! The process that becomes the command when its guardian sends the command's stdin.
//!
//! Nothing of the command runs before that. So `redlatch run` knows the number of this process, and
//! the guardian has left its group, before the command can do anything.

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

/// The argument that makes this program the process that becomes the command.
pub(crate) const ARGUMENT: &str = "command-of-redlatch-run";
/// The line that carries the command's stdin.
const STDIN: &[u8] = b"stdin\n";

/// Returns this program, even if its file has been replaced since.
pub(crate) fn this_program() -> Command {
    let program = std::env::current_exe().ok().filter(|program| program.exists());
    let mut command = Command::new(program.unwrap_or_else(|| PathBuf::from("/proc/self/exe")));
    command.arg0("redlatch");
    command
}

/// `words` are the guardian's number, the program's path, and the command. This process's stdin is
/// a socket. The command's stdin comes through it if the command may begin. This process sends a
/// byte back if the command cannot begin.
pub(crate) fn main(words: impl Iterator<Item = OsString>) -> ExitCode {
    begin(words).unwrap_or(SOFTWARE).into()
}

fn begin(mut words: impl Iterator<Item = OsString>) -> Option<u8> {
    // If the guardian and `redlatch run` are killed, no other process ends the command.
    #[cfg(target_os = "linux")]
    let _set =
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let guardian = words.next()?;
    let (program, name) = (words.next()?, words.next()?);
    // The guardian may have sent the stdin and then been killed before this process asked for the
    // signal. So this checks the parent.
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

/// Receives a stdin, or returns `None` if the sender is gone.
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
