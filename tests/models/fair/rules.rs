//! The rules that hold at all times.

use std::collections::HashSet;

use super::clients::{
    FAIR_WAIT, JITTER, PERIOD, PROVISIONAL, Phase, REDISSON_WAIT, SILENT, Waiter, World,
};
use super::store::{Message, State};
use crate::simulated::rules::Broken;
use crate::simulated::scripts::Script;
use crate::simulated::store::is_ours;
use crate::simulated::wire::hears;

/// The maximum time that a Redisson waiter behind a dead redlatch waiter may lose: from the last
/// keep-alive of the dead waiter until it counts as dead and another waiter checks.
const TIME_LOST: i64 = FAIR_WAIT + PERIOD + JITTER;
/// The maximum time until a waiter checks the queue.
const LOOK: i64 = PERIOD + JITTER + 100;
/// The maximum time that a live first waiter may take after a lost message and two lost replies.
const SLOW: i64 = LOOK + 2 * 2_000 + LOOK;

/// A script or another event, and the keys after it.
pub(crate) struct Step<'a> {
    pub(crate) now: i64,
    pub(crate) actor: Option<usize>,
    pub(crate) script: Option<Script>,
    pub(crate) args: &'a [String],
    pub(crate) before: &'a State,
    pub(crate) after: &'a State,
}

impl Step<'_> {
    fn is_by(&self, owner: &str, world: &World) -> bool {
        self.actor.is_some_and(|w| world.waiters[w].owner == owner)
    }
}

/// Checks a step, and stores in the waiters what the checks of later steps need.
pub(crate) fn check_step(
    step: &Step<'_>,
    world: &mut World,
    serial: &mut u64,
) -> Result<Vec<&'static str>, Broken> {
    let mut seen = Vec::new();
    check_keys(step.after)?;
    check_end(step)?;
    if check_wanted(step)? {
        seen.push("wanted");
    }
    check_scores(step)?;
    check_leavers(step, world, &mut seen)?;
    check_comers(step, world, serial, &mut seen)?;
    if step.script == Some(Script::KeepAlive) {
        let mut ours_ahead = false;
        for owner in &step.after.queue {
            let waiter = &mut world.waiters[world.by_owner[owner]];
            // If a waiter comes back to the head of the queue, the Redisson waiters behind it keep
            // their remaining time.
            ours_ahead |= is_ours(owner) && !waiter.came_back && waiter.phase != Phase::Gone;
            if ours_ahead {
                waiter.base = waiter.base.max(step.now - TIME_LOST);
            }
        }
    }
    if let (Some(Script::GiveUp | Script::RedissonGiveUp), Some(w)) = (step.script, step.actor) {
        world.waiters[w].served = true;
    }
    if step.after.holders != step.before.holders && !step.after.holders.is_empty() {
        seen.push(check_grant(step, world, serial)?);
    }
    Ok(seen)
}

/// There is at most one holder, the lock expires, and the list and the set have the same owners.
fn check_keys(state: &State) -> Result<(), Broken> {
    if state.holders.len() > 1 {
        return Err(format!("two holders: {:?}", state.holders));
    }
    if !state.holders.is_empty() && state.lease_ends.is_none() {
        return Err("a lock without an end".to_owned());
    }
    let in_list: HashSet<_> = state.queue.iter().collect();
    let in_set: HashSet<_> = state.scores.keys().collect();
    if in_list.len() != state.queue.len() || in_list != in_set {
        return Err(format!("list and set differ: {state:?}"));
    }
    Ok(())
}

/// Only the owner of a hold ends it. A script that leaves the lock free notifies the first waiter.
fn check_end(step: &Step<'_>) -> Result<(), Broken> {
    let Step { before, after, .. } = step;
    let script = step.script;
    let owner = match script {
        Some(Script::Release | Script::GiveUp) => Some(&step.args[3]),
        Some(Script::RedissonUnlock) => Some(&step.args[0]),
        _ => None,
    };
    let ended = !before.holders.is_empty() && after.holders != before.holders;
    if ended && owner.is_some_and(|owner| before.holders != [owner.as_str()]) {
        return Err(format!("{owner:?} ends the hold of {:?}", before.holders));
    }
    if script == Some(Script::GiveUp) {
        let only_place = step.args[4] == "1";
        if only_place && ended {
            return Err(format!("{owner:?} gives up its place and loses the lock"));
        }
        if !only_place && after.holders.contains(&step.args[3]) {
            return Err(format!("{owner:?} has given up and holds the lock"));
        }
    }
    if script == Some(Script::Release)
        && let Some(passed) = step.args[4..]
            .iter()
            .find(|passed| after.queue.contains(passed) || after.holders.contains(passed))
    {
        return Err(format!("{passed} was passed the hold and stays"));
    }
    let (Some(script), Some(head), true) = (script, after.queue.first(), after.holders.is_empty())
    else {
        return Ok(());
    };
    // The sender of this keep-alive needs no message: the reply makes it send a request.
    let asks = match script {
        Script::KeepAlive => step.args.contains(head),
        // The first waiter was named in the request of a younger waiter, and its client has no
        // subscription.
        Script::Acquire => step.args[6..].contains(head),
        _ => false,
    };
    if !script.is_of_redisson() && is_ours(head) && !asks {
        return Err(format!("{script:?} leaves {head} before a free lock"));
    }
    let frees = matches!(script, Script::Release | Script::GiveUp | Script::ForceUnlock);
    if frees && !after.told.iter().any(|told| told.owner == *head) {
        return Err(format!("{script:?} does not tell {head}"));
    }
    Ok(())
}

/// A holder that wants to be notified gets one message when a script of redlatch adds the first
/// waiter. No other event sends a holder this message. Returns whether it got the message.
fn check_wanted(step: &Step<'_>) -> Result<bool, Broken> {
    let Step { before, after, .. } = step;
    let is_by_ours = step.script.is_some_and(|script| !script.is_of_redisson());
    let is_first = is_by_ours && before.queue.is_empty() && !after.queue.is_empty();
    let stays = |holder: &&String| before.holders.contains(holder) && hears(holder);
    let due: Vec<_> = after.holders.iter().filter(|it| is_first && stays(it)).collect();
    if after.wanted.iter().ne(due.iter().copied()) {
        return Err(format!("{:?} tells {:?} in place of {due:?}", step.script, after.wanted));
    }
    Ok(!due.is_empty())
}

/// A redlatch waiter is notified of Redisson's release, unless it is about to send a request
/// anyway.
pub(crate) fn check_heard(script: Script, after: &State, world: &World) -> Result<(), Broken> {
    for told in after.told.iter().filter(|told| !told.is_by_ours()) {
        let owner = &told.owner;
        let waiter = world.waiter(owner);
        let client = &world.clients[waiter.client];
        let hears = waiter.listens || waiter.asks_soon || waiter.registered.is_none();
        if client.is_ours
            && script == Script::RedissonUnlock
            && waiter.phase == Phase::Waiting
            && !hears
        {
            return Err(format!("{owner} does not hear that one of Redisson's has released"));
        }
    }
    Ok(())
}

/// Only `keep_alive` takes time from a Redisson waiter, and only if a redlatch waiter is before it.
fn check_scores(step: &Step<'_>) -> Result<(), Broken> {
    let Some(script) = step.script.filter(|script| !script.is_of_redisson()) else {
        return Ok(());
    };
    let mut ours_ahead = false;
    for owner in &step.after.queue {
        let (Some(old), Some(new)) = (step.before.scores.get(owner), step.after.scores.get(owner))
        else {
            continue;
        };
        if is_ours(owner) {
            ours_ahead = true;
        } else if new < old && (script != Script::KeepAlive || !ours_ahead) {
            return Err(format!("{script:?} takes {} ms from {owner}", old - new));
        }
    }
    Ok(())
}

/// If an owner is gone from the queue, it was served, has left, or was rightly dropped.
fn check_leavers(
    step: &Step<'_>,
    world: &mut World,
    seen: &mut Vec<&'static str>,
) -> Result<(), Broken> {
    for owner in &step.before.queue {
        let w = world.by_owner[owner];
        let stays = step.after.place(owner).is_some();
        let is_actor = step.is_by(owner, world);
        // Redisson's script may drop its own client from the head and add it at the end.
        let drops_itself =
            matches!(step.script, Some(Script::RedissonAcquire | Script::RedissonAcquire3))
                && is_actor
                && stays
                && step.after.scores[owner] != step.before.scores[owner];
        if (!stays || drops_itself) && !is_ours(owner) {
            world.redissons_left.push(step.now);
        }
        let was_passed_to = step.script == Some(Script::Release) && step.args[4..].contains(owner);
        let was_granted = step.after.holders.contains(owner);
        if drops_itself {
            check_drop(step, w, world)?;
            seen.push("Redisson's dropped");
            world.waiters[w].rank = None;
        } else if !stays && !is_actor && !was_passed_to && !was_granted {
            check_drop(step, w, world)?;
            world.waiters[w].dropped = true;
            seen.push(match is_ours(owner) {
                true if !world.client_of(w).is_heard() => "deaf ones dropped",
                true => "ours dropped",
                false => "Redisson's dropped",
            });
        }
    }
    Ok(())
}

/// A waiter is dropped only if it is dead or sends no keep-alive. A Redisson waiter may also be
/// dropped when its time is over.
fn check_drop(step: &Step<'_>, w: usize, world: &World) -> Result<(), Broken> {
    let waiter = &world.waiters[w];
    let was_passed_the_lock = waiter.served;
    if was_passed_the_lock || world.is_dead(waiter) || step.script.is_none() {
        return Ok(());
    }
    if world.is_ours(w) {
        let by_ours = step.script.is_some_and(|script| !script.is_of_redisson());
        let is_gone = waiter.phase == Phase::Gone;
        let hears = world.client_of(w).is_heard() || step.before.just_come.contains(&waiter.owner);
        if is_gone || by_ours && !hears {
            return Ok(());
        }
        return match world.client_of(w).well_since {
            None => Ok(()),
            Some(_) => Err(format!("{} lives and is dropped", waiter.owner)),
        };
    }
    let clock = match step.actor {
        Some(actor) if step.script.is_some_and(Script::is_of_redisson) => {
            step.now + world.client_of(actor).clock_offset
        }
        _ => step.now,
    };
    let early = waiter.base + waiter.wait - clock;
    if early > 0 {
        return Err(format!("{} is dropped {early} ms before its time", waiter.owner));
    }
    Ok(())
}

/// If an owner is new in the queue, it has sent a request. The owner came for the first time, or
/// had lost its entry.
fn check_comers(
    step: &Step<'_>,
    world: &mut World,
    serial: &mut u64,
    seen: &mut Vec<&'static str>,
) -> Result<(), Broken> {
    if step.script == Some(Script::Acquire)
        && let Some(w) = step.actor
        && step.after.holders.contains(&world.waiters[w].owner)
    {
        // Give this waiter its rank before the waiters that its request names.
        rank_anew(&mut world.waiters[w], serial);
    }
    for owner in &step.after.queue {
        let w = world.by_owner[owner];
        let waiter = &world.waiters[w];
        if step.before.place(owner).is_some() && waiter.rank.is_some() {
            continue;
        }
        let comes_along = step.script == Some(Script::Acquire) && step.args[6..].contains(owner);
        if !step.is_by(owner, world) && !comes_along {
            return Err(format!("{owner} is in the queue without having asked"));
        }
        // A redlatch waiter that got no reply about its entry sends its next request as a new
        // waiter.
        let is_brought_back = comes_along && step.args[5] == "1";
        let comes_new = waiter.rank.is_none() || waiter.registered.is_none() && !is_brought_back;
        // A grant whose reply was lost may expire before the request is repeated.
        let may_return = waiter.dropped || waiter.place_lost || waiter.served;
        if !comes_new && !may_return {
            return Err(format!("{owner} is in the queue for the second time"));
        }
        let base = if is_ours(owner) { 0 } else { base_of(owner, step.now, step.after, world)? };
        let waiter = &mut world.waiters[w];
        if is_ours(owner) && !comes_new {
            waiter.came_back = true;
            seen.push("ours came back");
        } else {
            *serial += 1;
            waiter.rank = Some(*serial);
        }
        waiter.dropped = false;
        waiter.served = false;
        waiter.base = base;
    }
    Ok(())
}

/// Returns the base of a Redisson waiter's score. The score is the base plus the waits of all
/// Redisson waiters up to this waiter.
fn base_of(owner: &str, now: i64, state: &State, world: &World) -> Result<i64, Broken> {
    let place = state.place(owner).unwrap();
    let waits: i64 = state.queue[..=place]
        .iter()
        .filter(|id| !is_ours(id))
        .map(|id| world.waiter(id).wait)
        .sum();
    let base = state.scores[owner] - waits;
    let ahead = &state.queue[..place];
    if let Some(last) = ahead.last().filter(|id| is_ours(id)) {
        let lives = world.clients[world.waiter(last).client].well_since.is_some();
        if lives && base < now {
            let short = now - base;
            return Err(format!("{owner} comes behind one of ours and lacks {short} ms"));
        }
        // redlatch waiters add time only for Redisson waiters that are before them, or have just
        // left.
        let for_redissons = REDISSON_WAIT * ahead.iter().filter(|id| !is_ours(id)).count() as i64;
        let gone = world.redissons_left.iter().filter(|left| now - **left < 2 * LOOK);
        let spare = for_redissons - (waits - world.waiter(owner).wait)
            + REDISSON_WAIT * gone.count() as i64;
        let added = base - now - FAIR_WAIT - spare;
        if lives && added > 0 {
            return Err(format!("ours have added {added} ms to {owner}"));
        }
    }
    // An earlier waiter may have left without subtracting its time from this score. A script may
    // subtract this time later.
    Ok(if ahead.iter().any(|id| is_ours(id)) { base.min(now) } else { base })
}

/// Checks a grant: the lock was free, and goes to the first owner.
fn check_grant(
    step: &Step<'_>,
    world: &mut World,
    serial: &mut u64,
) -> Result<&'static str, Broken> {
    let owner = &step.after.holders[0];
    let message = step.after.told.iter().find(|told| told.owner == *owner);
    let by_message = match message.map(|told| &told.what) {
        Some(Message::Grant(grant)) => {
            if step.after.lease_ends != Some(grant.now + grant.lease) || grant.now != step.now {
                return Err(format!("{owner} is told {grant:?}"));
            }
            check_speaks(owner, step, world)?;
            let hears = world.client_of(world.by_owner[owner]).is_heard()
                || step.before.just_come.contains(owner);
            if grant.lease > PROVISIONAL || !hears {
                return Err(format!("{owner} may not hear {grant:?}"));
            }
            true
        }
        _ => false,
    };
    let ends = matches!(step.script, Some(Script::Release | Script::GiveUp | Script::ForceUnlock));
    if !(step.before.holders.is_empty() || ends && by_message) {
        return Err(format!("{owner} takes it from {:?}", step.before.holders));
    }
    let was_there = step.before.place(owner).is_some()
        || step.script == Some(Script::Acquire) && step.args[6..].contains(owner);
    if by_message && !was_there || !by_message && !step.is_by(owner, world) {
        return Err(format!("{owner} has the lock without having asked"));
    }
    let w = world.by_owner[owner];
    let waiter = &mut world.waiters[w];
    rank_anew(waiter, serial);
    waiter.came_back |= waiter.dropped;
    // If an owner is gone, its client gives the lock back at once.
    if waiter.phase != Phase::Gone {
        check_order(w, false, world)?;
    }
    world.waiters[w].served = true;
    Ok(if is_ours(owner) { "grants to ours" } else { "grants to Redisson" })
}

/// An owner that was silent for long does not get the lock, if another process in the queue sent
/// requests in that time. The rule applies only if all waiters in the queue are redlatch's.
fn check_speaks(owner: &str, step: &Step<'_>, world: &World) -> Result<(), Broken> {
    let since = |waiter: &Waiter| {
        let client = &world.clients[waiter.client];
        Some(waiter.registered?.max(client.well_since?))
    };
    let granted = world.waiter(owner);
    let spoke = world
        .client_of(world.by_owner[owner])
        .last_sign
        .max(granted.registered.unwrap_or(step.now));
    let silent = step.now - spoke;
    // The waiter may have come back to the head in the meantime.
    let has_seen = |waiter: &Waiter| {
        waiter.client != granted.client
            && world.clients[waiter.client].is_ours
            && waiter.phase == Phase::Waiting
            && since(waiter).is_some_and(|since| step.now - since > SILENT + 2 * LOOK)
    };
    let queue = &step.before.queue;
    let is_seen =
        queue.iter().all(|id| is_ours(id)) && queue.iter().any(|id| has_seen(world.waiter(id)));
    if silent > SILENT + 2 * LOOK && is_seen {
        return Err(format!("{owner} was silent for {silent} ms and is granted the lock"));
    }
    Ok(())
}

/// Gives a rank to a new waiter, or to a waiter that got the lock without knowing it.
fn rank_anew(waiter: &mut Waiter, serial: &mut u64) {
    if waiter.rank.is_none() || waiter.served && waiter.registered.is_none() {
        *serial += 1;
        waiter.rank = Some(*serial);
        waiter.served = false;
    }
}

/// No waiter that came earlier is still waiting with a right to its entry. A thread that passes a
/// hold on does not know the waiters that came back to the head after the grant.
pub(crate) fn check_order(granted: usize, passed: bool, world: &World) -> Result<(), Broken> {
    let granted = &world.waiters[granted];
    let is_entitled = |waiter: &Waiter| {
        let lost = waiter.dropped || waiter.place_lost || granted.place_lost;
        // The waiters of one client that have come back are in the order of their numbers. The
        // order of the numbers differs from the order of arrival if a first request was lost.
        let by_number = waiter.client == granted.client && waiter.number() > granted.number();
        // An older waiter of the same client is before this waiter, although the older waiter's
        // first request arrived later.
        let is_older = |other: &Waiter| {
            other.client == waiter.client
                && other.number() < waiter.number()
                && other.rank > waiter.rank
        };
        let behind_older = waiter.came_back && world.waiters.iter().any(is_older);
        // The granted waiter's first request arrived a second time, and placed its companions
        // behind it.
        let is_company = granted.company.iter().any(|w| world.waiters[*w].owner == waiter.owner);
        let both_back = waiter.came_back && (granted.came_back || passed || by_number);
        waiter.phase == Phase::Waiting
            && !(waiter.served
                || world.is_dead(waiter)
                || lost
                || both_back
                || behind_older
                || is_company)
    };
    let earlier = |waiter: &&Waiter| waiter.rank.is_some() && waiter.rank < granted.rank;
    match world.waiters.iter().filter(earlier).find(|waiter| is_entitled(waiter)) {
        Some(waiter) => Err(format!("{} before {}", granted.owner, waiter.owner)),
        None => Ok(()),
    }
}

/// A lock that is free while a waiter is in the queue.
#[derive(Clone, Debug)]
pub(crate) struct Blocked {
    head: String,
    since: i64,
}

impl Blocked {
    pub(crate) fn next(last: Option<Self>, now: i64, state: &State) -> Option<Self> {
        let head = state.head()?;
        if !state.holders.is_empty() {
            return None;
        }
        match last {
            Some(blocked) if blocked.head == head => Some(blocked),
            _ => Some(Self { head: head.to_owned(), since: now }),
        }
    }
}

/// A lock does not stay free while a healthy redlatch waiter is in the queue.
pub(crate) fn check_blocked(
    blocked: Option<&Blocked>,
    now: i64,
    state: &State,
    world: &World,
) -> Result<(), Broken> {
    let helped_since = state
        .queue
        .iter()
        .filter(|id| is_ours(id))
        .map(|id| world.waiter(id))
        .filter(|waiter| waiter.phase == Phase::Waiting)
        .filter_map(|waiter| {
            let well_since = world.clients[waiter.client].well_since?;
            Some(waiter.registered?.max(well_since))
        })
        .min();
    let (Some(blocked), Some(helped_since)) = (blocked, helped_since) else {
        return Ok(());
    };
    let since = blocked.since.max(helped_since);
    let head = world.waiter(&blocked.head);
    let client = &world.clients[head.client];
    let bound = if client.is_ours && head.phase != Phase::Waiting && client.well_since.is_some() {
        // If the owner is gone, its client removes the entry after a message, and one message may
        // be lost.
        2 * LOOK
    } else if world.is_dead(head) || client.well_since.is_none() {
        // The time until the head's score is over and another waiter notices this.
        let seen = (state.scores[&blocked.head] - since).max(LOOK) + JITTER + 100;
        if client.is_ours { seen.min(FAIR_WAIT + LOOK) } else { seen }
    } else {
        SLOW
    };
    if now - since > bound {
        let waited = now - since;
        return Err(format!("{} has kept a free lock for {waited} ms", blocked.head));
    }
    Ok(())
}
