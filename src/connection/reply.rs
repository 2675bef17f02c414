//! What an error reply says of the server that sends it.

#[cfg(not(all(test, shuttle)))]
use redis::ErrorKind;
use redis::{RedisError, Value};

/// The code of an error reply: its first word, or, where a script failed on a server before Redis
/// 7.0, the first word of what the script's command was answered.
pub(crate) fn reply_code(error: &RedisError) -> &str {
    code(error.code().unwrap_or_default(), error.detail())
}

fn code<'a>(code: &'a str, detail: Option<&'a str>) -> &'a str {
    let within = |text: &'a str| {
        let word = text.split_once(": -")?.1.split(' ').next()?;
        let is_code = word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase());
        is_code.then_some(word)
    };
    detail.filter(|_| code == "ERR").and_then(within).unwrap_or(code)
}

/// Whether this reply says that the server is not the one to ask, or not now: the connection leads
/// to the wrong place. The next one looks the address up anew.
pub(super) fn is_wrong_server(reply: &Value) -> bool {
    let Value::ServerError(error) = reply else { return false };
    matches!(code(error.code(), error.details()), "READONLY" | "LOADING" | "MASTERDOWN")
}

/// Whether a server has answered whoever wants to connect: it is there, and does not let it in.
#[cfg(not(all(test, shuttle)))]
pub(super) fn is_refusal(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed || error.code().is_some()
}

/// What a server says of itself to whoever it does not let in, before any question.
pub(super) fn turns_away(error: &RedisError) -> bool {
    error.code() == Some("DENIED")
        || error.detail().is_some_and(|text| text.contains("max number of clients"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_server_is_known_by_its_words() {
        let reply = |text: &str| redis::parse_redis_value(text.as_bytes()).unwrap();
        for text in [
            "-READONLY You can't write against a read only replica.\r\n",
            "-LOADING Redis is loading the dataset in memory\r\n",
            "-MASTERDOWN Link with MASTER is down\r\n",
            "-ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write\r\n",
        ] {
            assert!(is_wrong_server(&reply(text)), "{text}");
        }
        for text in ["-ERR unknown command 'READONLY'\r\n", "-OOM no memory\r\n", "+OK\r\n"] {
            assert!(!is_wrong_server(&reply(text)), "{text}");
        }
    }
}
