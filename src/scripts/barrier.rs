//! The scripts of the cyclic barrier.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;
use redlatch_client::{CachedScript, Command, Route};

use super::once::Once;
use super::requests::{RequestId, Requests};
use super::{Rights, Trouble, call, flag, millis, number, query, time, unexpected};
use crate::error::{Error, ErrorKind};
use crate::scripts::{BarrierKeys, Owner};

macro_rules! numbered {
    ($file:literal) => {
        script!("once.lua", "barrier/generations.lua", $file)
    };
}

static TRY_SET_PARTIES: LazyLock<CachedScript> = numbered!("barrier/try_set_parties.lua");
static ARRIVE: LazyLock<CachedScript> = numbered!("barrier/arrive.lua");
static RESET: LazyLock<CachedScript> = numbered!("barrier/reset.lua");
static DELETE: LazyLock<CachedScript> = numbered!("barrier/delete.lua");
static STATE: LazyLock<CachedScript> =
    script!(LIST; "barrier/generations.lua", "barrier/state.lua");
static FINISH: LazyLock<CachedScript> =
    script!(NUMBER; "barrier/generations.lua", "barrier/finish.lua");

/// The number of digits that follow the generation in a reply of `arrive`.
const INDEX_DIGITS: usize = 6;
const BROKEN: i64 = -1;
const FORGOTTEN: i64 = -2;
pub(crate) const MAX_PARTIES: u32 = 999_999;

#[derive(Clone, Copy, Debug)]
pub(crate) struct BarrierScripts<'a> {
    pub(crate) route: &'a Route,
    pub(crate) keys: &'a BarrierKeys,
    pub(crate) requests: &'a Requests,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GenerationState {
    Present,
    Tripped,
    Broken,
    /// The generation has ended, and the server no longer has a record of how it ended.
    Forgotten,
}

/// The error of a party whose generation is [forgotten](GenerationState::Forgotten).
pub(crate) fn forgotten() -> Error {
    let message = "the barrier is broken, or was: the server does not know how the generation of \
                   this party has ended, so the others may have passed; if it is broken, reset it \
                   to begin anew";
    Error::new(ErrorKind::Broken, message.to_owned()).unknown(true)
}

/// Why a party sends the script `arrive`, as an argument of the script.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum ArrivalKind {
    Waits = b'0',
    /// The party waits, and runs an action if it is the last party to arrive.
    RunsAction = b'1',
    /// The party does not wait or has stopped waiting, and breaks its generation.
    Leaves = b'2',
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct BarrierPosition {
    pub(crate) generation: i64,
    /// The number of parties that had not arrived after this arrival. Zero for the last party,
    /// which trips the barrier or runs the action. `None` if the thread has not arrived, because
    /// the generation is complete and the last party's action is running.
    pub(crate) index: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct BarrierState {
    /// The barrier's number of parties, or zero if there is no barrier.
    pub(crate) parties: u32,
    pub(crate) waiting: u32,
    /// The state of the requested generation.
    pub(crate) generation_state: GenerationState,
    /// The time until the earliest end of a party's lease.
    pub(crate) until_lease_end: Option<Duration>,
}

impl BarrierScripts<'_> {
    pub(crate) fn try_set_parties(self, id: RequestId, parties: u32) -> Result<bool, Trouble> {
        flag(self.once(&TRY_SET_PARTIES, id, &[parties.to_string().as_bytes()])?)
    }

    /// Makes `party` arrive with its lease. `lowest_generation` is the lowest number that the
    /// present generation can have. `is_copy` says whether the request was sent before, with an
    /// unknown outcome. Returns `None` if the barrier is broken.
    pub(crate) fn arrive(
        self,
        id: RequestId,
        party: (&Owner, Duration),
        kind: ArrivalKind,
        lowest_generation: i64,
        is_copy: bool,
    ) -> Result<Option<BarrierPosition>, Trouble> {
        let reply = self.arrival(id, party, kind, lowest_generation, |once| {
            once.call_again(self.route, is_copy)
        })?;
        match reply {
            Value::Int(0) => {
                let message = "the barrier has no parties: set them first (try_set_parties)";
                Err(Trouble::Refused(Error::new(ErrorKind::Config, message.to_owned())))
            }
            Value::Int(BROKEN) => Ok(None),
            Value::Int(FORGOTTEN) => Err(Trouble::Forgotten(forgotten())),
            reply => read_position(&reply).map(Some).ok_or_else(|| unexpected(&reply)),
        }
    }

    /// Returns the command that takes an arrival back, with the number of the arrival's request.
    pub(crate) fn leave_command(
        self,
        id: RequestId,
        party: (&Owner, Duration),
        lowest_generation: i64,
    ) -> Command {
        self.arrival(id, party, ArrivalKind::Leaves, lowest_generation, |once| once.command(true))
    }

    fn arrival<T>(
        self,
        id: RequestId,
        (party, lease): (&Owner, Duration),
        kind: ArrivalKind,
        lowest_generation: i64,
        send: impl FnOnce(&Once<'_>) -> T,
    ) -> T {
        let (mut digits, party, lowest_generation) =
            ([0; 20], party.text(), lowest_generation.to_string());
        let (channel, lease) = (self.keys.channel.as_bytes(), millis(lease, &mut digits));
        let arguments = [channel, &party, lease, &[kind as u8], lowest_generation.as_bytes()];
        send(&self.numbered(&ARRIVE, id, &arguments))
    }

    pub(crate) fn reset(self, id: RequestId) -> Result<bool, Trouble> {
        flag(self.once(&RESET, id, &[self.keys.channel.as_bytes()])?)
    }

    pub(crate) fn delete(self, id: RequestId) -> Result<bool, Trouble> {
        flag(self.once(&DELETE, id, &[self.keys.channel.as_bytes()])?)
    }

    /// Reads the state of a thread's generation, or of the present generation. If the thread's
    /// party has arrived, renews the party's lease.
    pub(crate) fn state(
        self,
        waits: Option<(BarrierPosition, &Owner, Duration)>,
    ) -> Result<BarrierState, Trouble> {
        query(self.route, &self.state_command(waits), Rights::Barriers, read_state)
    }

    pub(crate) fn state_command(
        self,
        waits: Option<(BarrierPosition, &Owner, Duration)>,
    ) -> Command {
        let mut arguments = vec![self.keys.channel.clone().into_bytes()];
        if let Some((BarrierPosition { generation, index }, party, lease)) = waits {
            arguments.push(generation.to_string().into_bytes());
            if index.is_some() {
                let lease = millis(lease, &mut [0; 20]).to_vec();
                arguments.extend([party.text().to_vec(), lease]);
            }
        }
        let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        Command::script(&STATE, &self.keys.both(), &arguments)
    }

    /// Trips the generation after its last party's action, or breaks the generation.
    pub(crate) fn finish(
        self,
        generation: i64,
        party: &Owner,
        trips: bool,
    ) -> Result<GenerationState, Trouble> {
        let reply =
            call(self.route, &self.finish_command(generation, party, trips), Rights::Barriers);
        let reply = number(reply?)?;
        generation_state(reply).ok_or_else(|| unexpected(&Value::Int(reply)))
    }

    pub(crate) fn finish_command(self, generation: i64, party: &Owner, trips: bool) -> Command {
        let (generation, party) = (generation.to_string(), party.text());
        let arguments: [&[u8]; 4] = [
            self.keys.channel.as_bytes(),
            generation.as_bytes(),
            &party,
            if trips { b"1" } else { b"0" },
        ];
        Command::script(&FINISH, &self.keys.both(), &arguments)
    }

    fn once(
        self,
        script: &'static CachedScript,
        request_id: RequestId,
        arguments: &[&[u8]],
    ) -> Result<Value, Trouble> {
        self.numbered(script, request_id, arguments).call(self.route)
    }

    fn numbered<'s>(
        &'s self,
        script: &'static CachedScript,
        request_id: RequestId,
        arguments: &'s [&'s [u8]],
    ) -> Once<'s> {
        let Self { keys, requests, .. } = *self;
        let (rights, key, another) = (Rights::Barriers, &*keys.barrier, Some(&*keys.parties));
        Once { script, rights, key, another, requests, request_id, arguments, acks: None }
    }
}

fn read_position(reply: &Value) -> Option<BarrierPosition> {
    let text = match reply {
        Value::BulkString(text) => str::from_utf8(text).ok()?.to_owned(),
        Value::Int(number) => number.to_string(),
        _ => return None,
    };
    let (generation, missing) = text.split_at_checked(text.len().checked_sub(INDEX_DIGITS)?)?;
    let index = missing.parse::<u32>().ok()?.checked_sub(1);
    Some(BarrierPosition { generation: generation.parse().ok()?, index })
}

/// Reads a message: the generation that has ended, and its state.
pub(crate) fn read_message(message: &[u8]) -> Option<(i64, GenerationState)> {
    let (generation, state) = str::from_utf8(message).ok()?.split_once(' ')?;
    Some((generation.parse().ok()?, generation_state(state.parse().ok()?)?))
}

fn read_state(reply: Value) -> Result<BarrierState, Trouble> {
    let state = match &reply {
        Value::Array(parts) => match parts.as_slice() {
            [
                Value::Int(parties),
                Value::Int(waiting),
                Value::Int(state),
                Value::Int(until_lease_end),
            ] => generation_state(*state).map(|generation_state| BarrierState {
                parties: u32::try_from(*parties).unwrap_or(0),
                waiting: u32::try_from(*waiting).unwrap_or(0),
                generation_state,
                until_lease_end: time(*until_lease_end),
            }),
            _ => None,
        },
        _ => None,
    };
    state.ok_or_else(|| unexpected(&reply))
}

fn generation_state(state: i64) -> Option<GenerationState> {
    match state {
        0 => Some(GenerationState::Present),
        1 => Some(GenerationState::Tripped),
        2 => Some(GenerationState::Broken),
        3 => Some(GenerationState::Forgotten),
        _ => None,
    }
}
