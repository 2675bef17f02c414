//! Splits a client's bytes into commands.

/// Splits a client's bytes into whole commands.
#[derive(Debug, Default)]
pub(super) struct Commands {
    buffer: Vec<u8>,
    /// Whether the bytes are not commands (as with TLS). The proxy passes such bytes on as they
    /// come.
    opaque: bool,
}

impl Commands {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next command, if all its bytes have come.
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        if self.buffer.is_empty() {
            return None;
        }
        if !self.opaque {
            match length(&self.buffer) {
                Ok(Some(length)) => return Some(self.buffer.drain(..length).collect()),
                Ok(None) => return None,
                Err(NoCommand) => self.opaque = true,
            }
        }
        Some(std::mem::take(&mut self.buffer))
    }
}

struct NoCommand;

/// Returns the length of the first command, which is an array of bulk strings. Returns `None` if
/// the command is incomplete.
fn length(bytes: &[u8]) -> Result<Option<usize>, NoCommand> {
    let mut at = 0;
    let Some(count) = header(bytes, &mut at, b'*')? else {
        return Ok(None);
    };
    for _ in 0..count {
        let Some(length) = header(bytes, &mut at, b'$')? else {
            return Ok(None);
        };
        at += length + 2;
        if at > bytes.len() {
            return Ok(None);
        }
    }
    Ok(Some(at))
}

/// Returns the number in a line such as `$12\r\n`.
fn header(bytes: &[u8], at: &mut usize, kind: u8) -> Result<Option<usize>, NoCommand> {
    let rest = &bytes[*at..];
    if rest.first().is_some_and(|first| *first != kind) {
        return Err(NoCommand);
    }
    let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
        return if rest.len() < 24 { Ok(None) } else { Err(NoCommand) };
    };
    let digits = rest[1..end].strip_suffix(b"\r").ok_or(NoCommand)?;
    let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
    *at += end + 1;
    number.filter(|number| *number < (1 << 32)).ok_or(NoCommand).map(Some)
}

/// Returns a command's name in upper case, if these bytes are a command.
pub(super) fn name(command: &[u8]) -> Option<String> {
    let name = command.split(|byte| *byte == b'\n').nth(2)?.strip_suffix(b"\r")?;
    std::str::from_utf8(name).ok().map(str::to_uppercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[u8] = b"*2\r\n$3\r\nget\r\n$4\r\na\r\nb\r\n*1\r\n$4\r\nPING\r\n";

    #[test]
    fn commands_are_found_however_they_are_cut() {
        let whole = [&TWO[..23], &TWO[23..]];
        for size in 1..TWO.len() {
            let mut commands = Commands::default();
            let mut found = Vec::new();
            for chunk in TWO.chunks(size) {
                commands.add(chunk);
                while let Some(command) = commands.next() {
                    found.push(command);
                }
            }
            assert_eq!(found, whole, "cut at every {size} bytes");
        }
        assert_eq!(name(whole[0]).as_deref(), Some("GET"));
    }

    #[test]
    fn bytes_that_are_no_command_pass_unchanged() {
        for other in [&b"\x16\x03\x01abc"[..], b"PING\r\n", b"*x\r\n", b"*1\r\n+a\r\n"] {
            let mut commands = Commands::default();
            commands.add(other);
            assert_eq!(commands.next().as_deref(), Some(other));
            commands.add(b"*2\r\n");
            assert_eq!(commands.next().as_deref(), Some(&b"*2\r\n"[..]));
        }
    }
}
