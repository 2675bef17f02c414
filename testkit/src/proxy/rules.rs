//! Rules that match bytes, and their actions.

use std::fmt;
use std::time::Duration;

/// The direction in which bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server. A rule sees one whole command at a time.
    Request,
    /// From the server to the client. A rule sees the bytes of one read, together with the last
    /// bytes of the previous read.
    Reply,
}

/// What a rule does with the connection on which it fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Drops the command and cuts the connection, so that the command never runs. In a rule for
    /// replies, this action and [`Action::LateRequest`] have the effect of [`Action::LoseReply`].
    LoseRequest,
    /// Lets the command run, but cuts the connection before the reply. The rule counts as fired
    /// when the command has run and the connection is cut.
    LoseReply,
    /// Cuts the connection to the client at once, and lets the command run after this time. By
    /// then, the client may have sent other commands on another connection. The rule counts as
    /// fired when the command has run.
    LateRequest(Duration),
    /// Delays the reply by this time. Later replies come after the delayed reply.
    DelayReply(Duration),
    /// Holds replies back until [`Proxy::release`](super::Proxy::release).
    HoldReply,
    /// Passes no more bytes in either direction and closes nothing: a half-open connection. The
    /// command that matched still runs.
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

/// Fires the first rule whose predicate these bytes satisfy. Returns the rule's action.
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
