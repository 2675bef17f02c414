//! Serializes times as whole milliseconds for the feature `serde`, as the command `redlatch` prints
//! them in JSON.

use std::time::{Duration, SystemTime};

use serde::{Serialize as _, Serializer};

/// Serializes a time that has no end as `null`.
pub(crate) fn millis<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    some_millis(&Some(*time).filter(|time| *time < Duration::MAX), serializer)
}

pub(crate) fn some_millis<S: Serializer>(
    time: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).serialize(serializer)
}

/// Serializes a time as milliseconds since 1970.
pub(crate) fn unix_millis<S: Serializer>(
    time: &SystemTime,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    some_unix_millis(&Some(*time), serializer)
}

/// Serializes a time as milliseconds since 1970.
pub(crate) fn some_unix_millis<S: Serializer>(
    time: &Option<SystemTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let since = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    some_millis(&time.map(since), serializer)
}

#[cfg(test)]
mod tests {
    use serde_json::value::Serializer;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_time_without_an_end_is_null() {
        assert_eq!(millis(&Duration::from_secs(2), Serializer).unwrap(), json!(2_000));
        assert_eq!(millis(&Duration::MAX, Serializer).unwrap(), Value::Null);
    }
}
