//! The rules for bytes, and their actions.

use std::fmt;
use std::time::Duration;

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server. A rule sees one whole command at a time.
    Request,
    /// From the server to the client. A rule sees the bytes that have come together, with the end
    /// of those before.
    Reply,
}

/// The action of a rule on the connection that it fires on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The command is not passed on, and the connection is cut. The command never runs. (In a rule
    /// for replies, this is the same as [`Action::LoseReply`].)
    LoseRequest,
    /// The command runs, but the connection is cut before the reply. The rule counts as fired once
    /// both are done.
    LoseReply,
    /// The reply comes this much later, and the replies behind it after it.
    DelayReply(Duration),
    /// Replies are held back until [`Proxy::release`](super::Proxy::release).
    HoldReply,
    /// Nothing more passes either way, but nothing is closed: a half-open connection. The command
    /// itself still runs.
    Silence,
}

type Predicate = Box<dyn Fn(&[u8]) -> bool + Send>;

pub(super) struct Rule {
    pub(super) direction: Direction,
    pub(super) matches: Predicate,
    pub(super) action: Action,
    pub(super) shots: usize,
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("direction", &self.direction)
            .field("action", &self.action)
            .field("shots", &self.shots)
            .finish_non_exhaustive()
    }
}

/// Takes one shot of the first rule that these bytes fire. Returns its action.
pub(super) fn fire(rules: &mut Vec<Rule>, direction: Direction, bytes: &[u8]) -> Option<Action> {
    let index = rules
        .iter()
        .position(|rule| rule.direction == direction && rule.shots > 0 && (rule.matches)(bytes))?;
    let action = rules[index].action;
    rules[index].shots -= 1;
    if rules[index].shots == 0 {
        rules.remove(index);
    }
    Some(action)
}

/// Whether the bytes contain the pattern.
pub(super) fn contains(bytes: &[u8], pattern: &[u8]) -> bool {
    pattern.is_empty() || bytes.windows(pattern.len()).any(|window| window == pattern)
}
