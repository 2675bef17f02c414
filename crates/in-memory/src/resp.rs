//! The bytes of a connection: commands and replies, as a server reads and writes them.

use redis::Value;
use redlatch_client::write_decimal;

/// Writes a value as a server does.
pub(super) fn encode(value: &Value, in_resp3: bool, bytes: &mut Vec<u8>) {
    let head = |bytes: &mut Vec<u8>, kind: u8, count: usize| {
        let mut digits = [0; 20];
        let at = write_decimal(count as u64, &mut digits);
        bytes.push(kind);
        bytes.extend_from_slice(&digits[at..]);
        bytes.extend_from_slice(b"\r\n");
    };
    match value {
        Value::Nil => bytes.extend_from_slice(if in_resp3 { b"_\r\n" } else { b"$-1\r\n" }),
        Value::Okay => bytes.extend_from_slice(b"+OK\r\n"),
        Value::Int(number) => match usize::try_from(*number) {
            Ok(number) => head(bytes, b':', number),
            Err(_) => bytes.extend_from_slice(format!(":{number}\r\n").as_bytes()),
        },
        Value::Double(number) if in_resp3 => {
            bytes.extend_from_slice(format!(",{number}\r\n").as_bytes());
        }
        Value::Double(number) => {
            encode(&Value::BulkString(format!("{number}").into_bytes()), in_resp3, bytes);
        }
        Value::SimpleString(text) => bytes.extend_from_slice(format!("+{text}\r\n").as_bytes()),
        Value::BulkString(text) => {
            head(bytes, b'$', text.len());
            bytes.extend_from_slice(text);
            bytes.extend_from_slice(b"\r\n");
        }
        Value::Array(parts) => {
            head(bytes, b'*', parts.len());
            parts.iter().for_each(|part| encode(part, in_resp3, bytes));
        }
        Value::Map(pairs) => {
            let (kind, parts) = if in_resp3 { (b'%', 1) } else { (b'*', 2) };
            head(bytes, kind, parts * pairs.len());
            for (name, value) in pairs {
                encode(name, in_resp3, bytes);
                encode(value, in_resp3, bytes);
            }
        }
        Value::Push { kind, data } => {
            head(bytes, if in_resp3 { b'>' } else { b'*' }, 1 + data.len());
            encode(&text(kind.to_string().as_bytes()), in_resp3, bytes);
            data.iter().for_each(|part| encode(part, in_resp3, bytes));
        }
        Value::BigNumber(digits) => {
            bytes.push(b'(');
            bytes.extend_from_slice(digits);
            bytes.extend_from_slice(b"\r\n");
        }
        Value::ServerError(error) => {
            let (code, details) = (error.code(), error.details().unwrap_or_default());
            bytes.extend_from_slice(format!("-{code} {details}\r\n").as_bytes());
        }
        other => {
            let unknown = refusal(&format!("ERR a reply of an unknown kind: {other:?}"));
            encode(&unknown, in_resp3, bytes);
        }
    }
}

/// The complete commands, each in its parts, and the bytes after them.
pub(super) fn split(bytes: &[u8]) -> (Vec<Vec<&[u8]>>, &[u8]) {
    let (mut commands, mut rest) = (Vec::new(), bytes);
    while let Some((command, behind)) = command(rest) {
        commands.push(command);
        rest = behind;
    }
    (commands, rest)
}

/// The first command, and the bytes after it.
fn command(bytes: &[u8]) -> Option<(Vec<&[u8]>, &[u8])> {
    let (parts, mut rest) = number(bytes)?;
    let mut command = Vec::with_capacity(parts.min(1_024));
    for _ in 0..parts {
        let (length, text) = number(rest)?;
        command.push(text.get(..length)?);
        rest = text.get(length + 2..)?;
    }
    Some((command, rest))
}

/// The number in a line after its first byte, and the bytes after the line.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut number = 0_usize;
    for (at, byte) in bytes.iter().enumerate().skip(1) {
        match byte {
            b'0'..=b'9' => number = number.saturating_mul(10).saturating_add((byte - b'0').into()),
            _ => return Some((number, bytes.get(at + 2..)?)),
        }
    }
    None
}
pub(super) fn text(bytes: &[u8]) -> Value {
    Value::BulkString(bytes.to_vec())
}

/// An error reply, whose text is its code and its details.
pub fn refusal(text: &str) -> Value {
    let line = format!("-{}\r\n", text.replace(['\r', '\n'], " "));
    redis::parse_redis_value(line.as_bytes()).unwrap_or(Value::Nil)
}
