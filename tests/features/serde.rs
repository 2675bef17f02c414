//! The reports and events of the library, as JSON.

use std::time::SystemTime;

use redlatch::election::Leader;
use redlatch::observe::Kind;
use redlatch::{Client, ErrorKind, FencingToken, HoldState, LostReason, Owner, PermitId, Ticket};
use serde_json::{Value, from_value, json, to_value};

use crate::common::*;

/// Removes and returns a time, which would differ at the next read.
fn take_millis(object: &mut Value, name: &str) -> u128 {
    object[name].take().as_u64().unwrap().into()
}

#[test]
fn a_status_is_what_the_command_prints() {
    bound();
    let client = Client::in_memory().unwrap();
    let guard = client.fenced_lock("orders").with_lease(LONG_LEASE).lock().unwrap();
    let mut status = to_value(client.status("orders").unwrap()).unwrap();
    let left = take_millis(&mut status["holders"][0], "left_ms");
    assert!((LONG_LEASE.as_millis() / 2..=LONG_LEASE.as_millis()).contains(&left), "{left}");
    assert!(take_millis(&mut status["holders"][0], "asked_at_ms") > 1_700_000_000_000);
    let process = client.status("orders").unwrap().holders.remove(0).process.unwrap();
    assert_eq!(
        status,
        json!({
            "name": "orders",
            "kind": "FencedLock",
            "holders": [{
                "owner": guard.owner(),
                "shared": false,
                "levels": 1,
                "left_ms": null,
                "asked_at_ms": null,
                "process": {
                    "name": process.name,
                    "address": &*process.address,
                    "host": process.host(),
                    "pid": std::process::id(),
                },
            }],
            "queue": [],
            "listeners": 0,
            "value": null,
            "token": status["token"].as_u64().unwrap(),
        })
    );
    guard.unlock().unwrap();
    let free = to_value(client.status("orders").unwrap()).unwrap();
    assert_eq!((&free["kind"], &free["holders"]), (&json!("Free"), &json!([])));
}

#[test]
fn a_snapshot_has_its_times_in_milliseconds() {
    bound();
    let client = Client::in_memory().unwrap();
    let _guard = client.fair_lock("orders").with_lease(LONG_LEASE).lock_owned().unwrap();
    let mut snapshot = to_value(client.snapshot()).unwrap();
    let held = &mut snapshot["held"][0];
    assert!(take_millis(held, "left_ms") > LONG_LEASE.as_millis() / 2);
    assert!(take_millis(held, "held_ms") < LONG_LEASE.as_millis());
    let nobody = Value::Null;
    let expected = json!({
        "name": "orders", "kind": "FairLock", "held_ms": nobody, "left_ms": nobody,
        "thread": nobody, "levels": 1,
    });
    assert_eq!(*held, expected);
    assert_eq!((&snapshot["counts"]["acquired"], &snapshot["waiting"]), (&json!(1), &json!([])));
    assert_eq!(snapshot["servers"][0]["is_out"], false);
}

#[test]
fn a_leader_has_its_time_in_milliseconds_since_1970() {
    bound();
    let client = Client::in_memory().unwrap();
    let election = client.leader_election("jobs").with_value("10.0.0.7");
    let leadership = election.campaign().unwrap();
    let Leader { who, host, since, .. } = election.leader().unwrap().unwrap();
    let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64;
    assert_eq!(
        to_value(election.leader().unwrap()).unwrap(),
        json!({
            "who": who, "host": host, "since_ms": since, "token": leadership.token().get(),
            "value": "10.0.0.7",
        })
    );
}

#[test]
fn a_kind_is_its_name() {
    assert_eq!(to_value(Kind::ReadLock).unwrap(), "ReadLock");
    assert_eq!(to_value(ErrorKind::LeaseLost).unwrap(), "LeaseLost");
    assert_eq!(to_value(HoldState::Held).unwrap(), "Held");
    let lost = to_value(HoldState::Lost(LostReason::Revoked)).unwrap();
    assert_eq!(lost, json!({"Lost": "Revoked"}));
}

#[test]
fn a_ticket_is_its_text() {
    let text = "0f3b1c9e-3f2a-8d5c-9b7e-1234567890ab:800000000000000 plain 8 an order";
    let ticket: Ticket = text.parse().unwrap();
    assert_eq!(to_value(&ticket).unwrap(), text);
    assert_eq!(from_value::<Ticket>(json!(text)).unwrap(), ticket);
    assert!(from_value::<Ticket>(json!("an order")).is_err());
}

#[test]
fn a_token_and_a_permits_id_are_read_again_and_nothing_else_is() {
    let token = FencingToken::try_from(7_u64).unwrap();
    assert_eq!(to_value(token).unwrap(), 7);
    assert_eq!(from_value::<FencingToken>(json!(7)).unwrap(), token);
    for wrong in [json!(0), json!(-1), json!(1_u64 << 54), json!("7")] {
        assert!(from_value::<FencingToken>(wrong).is_err());
    }
    let text = "00112233445566778899aabbccddeeff";
    let id: PermitId = text.parse().unwrap();
    assert_eq!(to_value(id).unwrap(), text);
    assert_eq!(from_value::<PermitId>(json!(text)).unwrap(), id);
    let owner: Owner = id.into();
    assert_eq!(from_value::<Owner>(to_value(&owner).unwrap()).unwrap(), owner);
    for wrong in [json!("0011"), json!(7)] {
        assert!(from_value::<PermitId>(wrong.clone()).is_err());
        assert!(from_value::<Owner>(wrong).is_err());
    }
}
