//! What must hold, whatever happens.

use crate::client::Time;
use crate::simulation::Lock;
use crate::store::{Script, State, is_ours, is_to};
use crate::wire::{Site, own_channel};

/// Which rule was broken, and how.
pub(crate) type Broken = String;

const WINDOW: i64 = 4;
/// So many tokens are a hold's.
const TOKENS: i64 = 1_024;

/// One script, and what it made of the keys.
pub(crate) struct Step<'a> {
    pub(crate) script: Script,
    pub(crate) owner: Option<&'a String>,
    pub(crate) before: &'a State,
    pub(crate) after: &'a State,
    /// Whoever sent it may have been refused a place.
    pub(crate) has_no_place: bool,
    pub(crate) is_poor: bool,
}

impl Step<'_> {
    fn is_of_redisson(&self) -> bool {
        matches!(
            self.script,
            Script::RedissonAcquire
                | Script::RedissonUnlock3
                | Script::RedissonUnlock4
                | Script::RedissonForceUnlock
        )
    }
}

fn is_open(state: &State) -> bool {
    (1..=WINDOW).contains(&state.window_left)
}

/// `listeners`: how many the server believes to hear a channel.
pub(crate) fn check(
    step: &Step<'_>,
    site: &Site,
    listeners: impl Fn(&str) -> usize,
) -> Result<Vec<&'static str>, Broken> {
    let mut seen = Vec::new();
    let hears = |owner: &str| listeners(&own_channel(&owner[..36])) > 0;
    let Step { before, after, script, owner, .. } = *step;
    check_keys(after)?;
    check_end(step)?;
    // Whoever finds the lock free grants it. Who has no right to the queue cannot.
    if !step.is_of_redisson()
        && !step.is_poor
        && script != Script::Renew
        && after.holders.is_empty()
        && !after.queue.is_empty()
        && !is_open(after)
    {
        return Err(format!("{script:?} leaves the lock free and {:?} waiting", after.queue));
    }
    // Who is not in the queue any more has the lock, has left, or is dead.
    for place in &before.queue {
        let is_gone = !after.queue.contains(place) && after.holder() != Some(place);
        if is_gone && hears(place) && (script != Script::GiveUp || owner != Some(place)) {
            return Err(format!("{script:?} drops {place}, who listens"));
        }
        if is_gone && !hears(place) {
            seen.push("dead places passed");
        }
    }
    for (place, owner_there) in after.queue.iter().enumerate() {
        if !before.queue.contains(owner_there) && owner != Some(owner_there) {
            return Err(format!("{owner_there} has place {place} and has not asked"));
        }
    }
    let order = |state: &State| -> Vec<_> {
        state
            .queue
            .iter()
            .filter(|id| before.queue.contains(id) && after.queue.contains(id))
            .cloned()
            .collect()
    };
    if order(before) != order(after) {
        return Err(format!("{script:?} changes the order of {:?}", before.queue));
    }
    if is_open(after) && !is_open(before) {
        let others = listeners(&site.public) - listeners(&site.companion);
        if others == 0 {
            return Err("a window for nobody".to_owned());
        }
    }
    if let Some(holder) = after.holder().filter(|holder| before.holder() != Some(holder)) {
        seen.push(check_grant(step, holder, hears)?);
    }
    Ok(seen)
}

/// At most one holder, nothing without an end, and no owner with two places.
fn check_keys(state: &State) -> Result<(), Broken> {
    if state.holders.len() > 1 {
        return Err(format!("two holders: {:?}", state.holders));
    }
    if !state.holders.is_empty() && state.left < 0 {
        return Err("a lock without an end".to_owned());
    }
    if !state.queue.is_empty() && state.queue_left < 0 {
        return Err("a queue without an end".to_owned());
    }
    if state.window_left == -1 {
        return Err("a window without an end".to_owned());
    }
    let mut places: Vec<_> = state.queue.iter().collect();
    places.sort();
    places.dedup();
    if places.len() != state.queue.len() || state.queue.iter().any(|id| !is_ours(id)) {
        return Err(format!("the queue is {:?}", state.queue));
    }
    Ok(())
}

/// A hold is ended by its owner or by force, and a late copy cuts no lease.
fn check_end(step: &Step<'_>) -> Result<(), Broken> {
    let Step { before, after, script, owner, .. } = *step;
    let Some(holder) = before.holder() else { return Ok(()) };
    if after.holder() != Some(holder) {
        let ends = matches!(
            script,
            Script::Release | Script::GiveUp | Script::RedissonUnlock3 | Script::RedissonUnlock4
        );
        let is_forced = matches!(script, Script::ForceUnlock | Script::RedissonForceUnlock);
        let is_own = ends && owner.is_some_and(|owner| owner == holder);
        if !is_own && !is_forced {
            return Err(format!("{script:?} of {owner:?} ends the hold of {holder}"));
        }
    } else if after.left < before.left {
        return Err(format!("{script:?} cuts the lease of {holder}"));
    }
    let gives_up = script == Script::GiveUp;
    if gives_up && owner.is_some_and(|owner| after.holder() == Some(owner)) {
        return Err(format!("{owner:?} has given up and holds the lock"));
    }
    Ok(())
}

/// The lock goes to who asked or who is told, and past no one who listens.
fn check_grant(
    step: &Step<'_>,
    holder: &str,
    hears: impl Fn(&str) -> bool,
) -> Result<&'static str, Broken> {
    let Step { before, after, script, owner, .. } = *step;
    let is_asker = owner.is_some_and(|owner| owner == holder);
    let asks = matches!(script, Script::Acquire | Script::Try | Script::RedissonAcquire);
    if !is_asker || !asks {
        let place = before.queue.iter().position(|id| id == holder);
        if place.is_none() {
            return Err(format!("{script:?} grants {holder}, who has no place"));
        }
        let is_told = |(channel, text): &(String, String)| {
            is_to(channel, holder) && text.starts_with(&format!("grant {} ", &holder[37..]))
        };
        if !after.messages.iter().any(is_told) {
            return Err(format!("{script:?} grants {holder} and does not say so"));
        }
        if !hears(holder) {
            return Err(format!("{script:?} grants {holder}, who is dead"));
        }
    }
    if matches!(script, Script::Try | Script::RedissonAcquire) {
        return Ok("taken past the queue");
    }
    if is_open(before) && before.holders.is_empty() && !step.has_no_place {
        return Err(format!("{script:?} grants {holder} in an open window"));
    }
    let ahead = before.queue.iter().take_while(|id| *id != holder);
    let has_left = |id: &String| script == Script::GiveUp && owner == Some(id);
    let passed = ahead.filter(|id| !has_left(id)).find(|id| hears(id));
    match passed {
        Some(passed) if !step.has_no_place => {
            Err(format!("{script:?} grants {holder} before {passed}"))
        }
        _ if is_asker => Ok("granted by reply"),
        _ => Ok("granted by message"),
    }
}

/// What somebody believes: that the lock is his, from then to then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// When the wait for it began.
    pub(crate) began: Time,
    pub(crate) from: Time,
    pub(crate) until: Time,
}

impl Claim {
    pub(crate) fn new(_owner: &str, began: Time, from: Time, until: Time) -> Self {
        Self { began, from, until }
    }
}

impl Lock {
    /// Only one at a time, but for leases that were cut by force or by a clock.
    pub(crate) fn check_claim(&self, new: &Claim) -> Result<(), Broken> {
        let is_disturbed =
            |claim: &Claim| self.disturbed.iter().any(|at| (claim.began..=new.from).contains(at));
        let other = self.claims.iter().rev().find(|claim| claim.until > new.from);
        match other {
            Some(other) if !is_disturbed(other) && !is_disturbed(new) => {
                Err(format!("two are inside: {other:?} and {new:?}"))
            }
            _ => Ok(()),
        }
    }
}

impl Lock {
    /// Who enters later has the higher token, and none of those that the process before may still
    /// use. (Of locks that were taken by force two may be inside, in any order.)
    pub(crate) fn check_token(&mut self, last: Option<i64>) -> Result<(), Broken> {
        if self.site.tokens.is_some() != last.is_some() {
            return Err(format!("the token is {last:?}"));
        }
        let Some(last) = last else { return Ok(()) };
        if last - TOKENS < self.token && self.disturbed.is_empty() {
            return Err(format!("token {last} after {}", self.token));
        }
        self.token = self.token.max(last);
        Ok(())
    }
}
