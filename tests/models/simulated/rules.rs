//! The rules that hold at all times.

use super::client::Time;
use super::scripts::Script;
use super::simulation::Lock;
use super::site::Site;
use super::state::{State, writes};
use super::store::{is_ours, is_to};
use super::wire::{self, own_channel};

/// The broken rule, and how it was broken.
pub(crate) type Broken = String;

const WINDOW: i64 = 4;
/// The maximum number of tokens that a hold may use.
const TOKENS: i64 = 1_024;

/// A script, and the keys after it.
pub(crate) struct Step<'a> {
    pub(crate) script: Script,
    pub(crate) owner: Option<&'a String>,
    pub(crate) before: &'a State,
    pub(crate) after: &'a State,
    /// For the second and later requests of an owner: the time since which it has waited, in ms on
    /// the server's clock.
    pub(crate) waiting_since: Option<i64>,
    /// Whether the owner has waited so long that the owners before it should have sent a second
    /// request.
    pub(crate) is_old: bool,
    /// Whether the server's clock jumps.
    pub(crate) has_jumped: bool,
    /// Returns `waiting_since` for an owner with an entry.
    pub(crate) others: &'a dyn Fn(&str) -> Option<i64>,
    /// Returns whether the last request of an owner with an entry is so old that the owner may be
    /// skipped.
    pub(crate) is_silent: &'a dyn Fn(&str) -> bool,
}

impl Step<'_> {
    /// Whether the script may remove the fields of dead readers, and set the lock's time to live by
    /// the remaining readers.
    fn counts_readers(&self) -> bool {
        let asks = matches!(self.script, Script::Acquire | Script::Try);
        self.script.leaves() || asks && self.owner.is_some_and(|owner| writes(owner))
    }

    fn is_by(&self, owner: &str) -> bool {
        self.owner.is_some_and(|own| own == owner)
    }
}

fn is_open(state: &State) -> bool {
    (1..=WINDOW).contains(&state.window_left)
}

/// Checks the rules. `listeners` returns the number of listeners that the server counts on a
/// channel.
pub(crate) fn check(
    step: &Step<'_>,
    site: &Site,
    listeners: impl Fn(&str) -> usize,
) -> Result<Vec<&'static str>, Broken> {
    let mut seen = Vec::new();
    let hears = |owner: &str| listeners(&own_channel(&owner[..36])) > 0;
    let Step { before, after, script, .. } = *step;
    site.kind.check_holders(step)?;
    check_keys(after)?;
    check_end(step)?;
    check_wait(step)?;
    if check_wanted(step)? {
        seen.push("wanted");
    }
    // If an owner is gone from the queue, it has the lock, has left, or is dead.
    for place in &before.queue {
        let is_gone = !after.queue.contains(place) && !after.holders.contains(place);
        let is_passed = script == Script::Acquire && (step.is_silent)(place);
        if is_gone && hears(place) && is_passed {
            seen.push("silent places passed");
        } else if is_gone && hears(place) && (script != Script::GiveUp || !step.is_by(place)) {
            return Err(format!("{script:?} drops {place}, who listens"));
        }
        if is_gone && !hears(place) {
            seen.push("dead places passed");
            if writes(place) && after.mode == "read" {
                seen.push("dead writers passed");
            }
        }
    }
    for (place, owner) in after.queue.iter().enumerate() {
        if !before.queue.contains(owner) && !step.is_by(owner) {
            return Err(format!("{owner} has place {place} and has not asked"));
        }
    }
    if let (Some(waiting_since), true, false) = (step.waiting_since, step.is_old, step.has_jumped) {
        let is_new = |owner: &&String| !before.queue.contains(owner);
        let back = after.queue.iter().position(|owner| step.is_by(owner));
        let back = back.filter(|place| is_new(&&after.queue[*place]));
        let ahead = back.map_or(&[][..], |place| &after.queue[..place]);
        let came_later =
            |owner: &&String| (step.others)(owner).is_some_and(|other| other > waiting_since);
        // If an owner that came earlier is between the two owners, the order is correct.
        if let Some(later) = ahead.last().filter(came_later) {
            return Err(format!("{later} came later than {:?} and stands ahead", step.owner));
        }
        let behind = back.map_or(&[][..], |place| &after.queue[place + 1..]);
        let came_earlier = |owner: &&String| {
            !(step.is_silent)(owner)
                && (step.others)(owner).is_some_and(|other| other < waiting_since)
        };
        if let Some(earlier) = behind.iter().find(came_earlier) {
            return Err(format!(
                "{:?} comes back in front of {earlier}, who came earlier",
                step.owner
            ));
        }
        if back.is_some_and(|place| place + 1 < after.queue.len()) {
            seen.push("came back in front of others");
        }
    }
    let order = |state: &State| -> Vec<_> {
        let stays = |id: &&String| before.queue.contains(id) && after.queue.contains(id);
        state.queue.iter().filter(stays).cloned().collect()
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
    let new: Vec<_> =
        after.holders.iter().filter(|holder| !before.holders.contains(holder)).collect();
    for holder in &new {
        seen.push(check_grant(step, holder, hears)?);
    }
    if new.len() > 1 {
        seen.push("readers let in together");
    }
    if let Some(owner) = step.owner {
        let lasts = |state: &State| state.timeout(owner).is_some_and(|left| left > 0);
        if script.takes() && after.reads(owner) && !lasts(after) {
            return Err(format!("{script:?} lets {owner} read on without a timeout"));
        }
        if before.reads(owner) && !lasts(before) && lasts(after) {
            seen.push("made anew after it had lapsed");
        }
    }
    Ok(seen)
}

/// Every key expires, and no owner has two entries.
fn check_keys(state: &State) -> Result<(), Broken> {
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

/// A waiter must have a reason to wait.
fn check_wait(step: &Step<'_>) -> Result<(), Broken> {
    let Step { after, script, .. } = *step;
    let may_grant = !script.is_of_redisson() && !matches!(script, Script::Renew | Script::Eval);
    if !may_grant || after.queue.is_empty() {
        return Ok(());
    }
    if after.is_free() && !is_open(after) {
        return Err(format!("{script:?} leaves the lock free and {:?} waiting", after.queue));
    }
    if after.mode == "read" && !writes(&after.queue[0]) {
        return Err(format!("{script:?} leaves {:?} waiting behind readers", after.queue));
    }
    Ok(())
}

/// Each holder that wants this message gets it once when the first waiter comes. No other event
/// sends a holder this message. A grant itself says how many owners wait. Returns whether a holder
/// got the message.
fn check_wanted(step: &Step<'_>) -> Result<bool, Broken> {
    let Step { before, after, script, .. } = *step;
    let is_first = before.queue.is_empty() && !after.queue.is_empty();
    let stays = |holder: &&String| before.holders.contains(holder) && wire::hears(holder);
    let due = after.holders.iter().filter(|holder| is_first && stays(holder));
    let mut due: Vec<_> = due.map(|holder| (&holder[..36], &holder[37..])).collect();
    let told = after.messages.iter().filter_map(|(channel, text)| {
        Some((channel, text.strip_prefix("want ")?.split_once(' ')?.0))
    });
    for (channel, number) in told.clone() {
        let is_due = |(uuid, owner): &(&str, &str)| {
            own_channel(uuid) == *channel && owner.trim_end_matches(":write") == number
        };
        let Some(at) = due.iter().position(is_due) else {
            return Err(format!("{script:?} tells {number} that it is wanted"));
        };
        due.remove(at);
    }
    if !due.is_empty() {
        return Err(format!("{script:?} does not tell {due:?} that it is wanted"));
    }
    Ok(told.count() > 0)
}

/// Only a hold's owner or a forced unlock ends the hold, and a late copy of a request shortens no
/// lease.
fn check_end(step: &Step<'_>) -> Result<(), Broken> {
    let Step { before, after, script, owner, .. } = *step;
    // Before Redisson 4.4, a renewal sets the timeouts of all readers.
    let cuts_all = script == Script::RedissonReadRenew3;
    for holder in &before.holders {
        let timeout = before.timeout(holder);
        match after.timeout(holder) {
            None => {
                let is_over = before.reads(holder) && timeout.is_none_or(|left| left <= 0);
                let ends =
                    script.leaves() && step.is_by(holder) || step.counts_readers() && is_over;
                if !(script.is_forced() || ends) {
                    return Err(format!("{script:?} of {owner:?} ends the hold of {holder}"));
                }
            }
            Some(left)
                if timeout.is_some_and(|before| before > 0 && left < before)
                    && !step.is_by(holder)
                    && !cuts_all =>
            {
                return Err(format!("{script:?} cuts the timeout of {holder}"));
            }
            Some(_) => {}
        }
    }
    // The remaining readers keep the lock for the longest of their leases.
    let is_own = |holder: &String| step.is_by(holder) && script.is_of_redisson();
    let stays = |holder: &&String| before.holders.contains(holder) && !is_own(holder);
    let cuts = after.left < before.left && !(step.counts_readers() && after.mode == "read");
    // Redisson's renewal sets the lock's time to live, even to a shorter time.
    let renews = matches!(script, Script::RedissonReadRenew3 | Script::RedissonReadRenew4);
    let cuts = cuts && !renews;
    if let Some(holder) = after.holders.iter().find(stays).filter(|_| cuts) {
        return Err(format!("{script:?} cuts the lease of {holder}"));
    }
    let gives_up = matches!(script, Script::GiveUp | Script::Release);
    if gives_up && owner.is_some_and(|owner| after.holders.contains(owner)) {
        return Err(format!("{owner:?} has given up and holds the lock"));
    }
    Ok(())
}

/// The lock goes to the sender of the request or to an owner that gets a message. No owner with a
/// subscription is skipped.
fn check_grant(
    step: &Step<'_>,
    holder: &String,
    hears: impl Fn(&str) -> bool,
) -> Result<&'static str, Broken> {
    let Step { before, after, script, .. } = *step;
    let is_asker = step.is_by(holder) && script.takes();
    if !is_asker {
        if !before.queue.contains(holder) {
            return Err(format!("{script:?} grants {holder}, who has no place"));
        }
        let number = holder[37..].trim_end_matches(":write");
        let is_told = |(channel, text): &(String, String)| {
            is_to(channel, holder) && text.starts_with(&format!("grant {number} "))
        };
        if !after.messages.iter().any(is_told) {
            return Err(format!("{script:?} grants {holder} and does not say so"));
        }
        if !hears(holder) {
            return Err(format!("{script:?} grants {holder}, who is dead"));
        }
    }
    if after.reads(holder) && after.timeout(holder).is_none_or(|left| left <= 0) {
        return Err(format!("{script:?} lets {holder} read without a timeout"));
    }
    if script.is_of_redisson() {
        return Ok("granted to Redisson");
    }
    if script == Script::Try && before.is_free() {
        return Ok("taken past the queue");
    }
    if before.mode == "write" && before.holders.iter().any(|other| other[..36] == holder[..36]) {
        return Ok("read by the writer");
    }
    if is_open(before) && before.is_free() && script != Script::Try {
        return Err(format!("{script:?} grants {holder} in an open window"));
    }
    let ahead = before.queue.iter().take_while(|id| *id != holder);
    let has_left = |id: &String| script == Script::GiveUp && step.is_by(id);
    let is_granted = |id: &String| after.holders.contains(id);
    let is_silent = |id: &String| !after.queue.contains(id) && (step.is_silent)(id);
    let passed = ahead.filter(|id| !has_left(id) && !is_granted(id));
    // If a waiter comes back, it is placed before owners that came later, and before silent owners.
    let came_later = |id: &String| {
        let is_later = |since| step.has_jumped || (step.others)(id).is_some_and(|it| it > since);
        is_asker && step.waiting_since.is_some_and(|since| is_later(since) || (step.is_silent)(id))
    };
    let passed = passed.filter(|id| !is_silent(id) && !came_later(id)).find(|id| hears(id));
    match passed {
        Some(passed) => Err(format!("{script:?} grants {holder} before {passed}")),
        _ if is_asker && before.mode == "read" => Ok("read beside readers"),
        _ if is_asker => Ok("granted by reply"),
        _ => Ok("granted by message"),
    }
}

/// The period in which a process believes that it has the lock.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) owner: String,
    /// The time at which the process began to wait for the lock.
    pub(crate) began: Time,
    pub(crate) from: Time,
    pub(crate) until: Time,
}

impl Lock {
    /// Checks a user's script that was sent at `sent` under the hold of `owner`, and has run now.
    /// Such a script may run only during that hold, and before any later holder has entered.
    pub(crate) fn check_eval(&self, owner: &str, sent: Time) -> Result<(), Broken> {
        if let Some(ended) = self.ended.get(owner).filter(|ended| **ended >= sent) {
            return Err(format!("a script of {owner} runs after the hold's end at {ended}"));
        }
        match self.claims.last() {
            Some(claim) if claim.owner != owner => {
                Err(format!("a script of {owner} runs under the hold of {}", claim.owner))
            }
            _ => Ok(()),
        }
    }

    /// Claims that exclude each other do not overlap, unless a forced unlock or a clock cut a
    /// lease.
    pub(crate) fn check_claim(&self, new: &Claim) -> Result<(), Broken> {
        let is_disturbed =
            |claim: &Claim| self.disturbed.iter().any(|at| (claim.began..=new.from).contains(at));
        let other = self
            .claims
            .iter()
            .rev()
            .filter(|claim| claim.until > new.from && self.site.kind.excludes(claim, new))
            .find(|claim| !is_disturbed(claim));
        match other {
            Some(other) if !is_disturbed(new) => {
                Err(format!("two are inside: {other:?} and {new:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that a later holder has a higher token, which no earlier holder may have used. After
    /// a lock was taken by force, there may be two holders, in any order.
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
