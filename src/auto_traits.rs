//! Compile-time checks of a promise to users: which public types are `Send`, `Sync` and unwind
//! safe.

use std::panic::{RefUnwindSafe, UnwindSafe};

#[cfg(feature = "in-memory")]
use crate::InMemoryServer;
use crate::election::{Changes, Health, Leader, LeaderElection, Leadership};
#[cfg(feature = "metrics")]
use crate::observe::MetricsObserver;
use crate::observe::{Event, Kind, Observer, Way};
use crate::status::{
    Counts, Held, Holder, OwnerProcess, ServerInfo, ServerState, Snapshot, Status, StatusKind,
    Waiter, Waiting,
};
use crate::{
    Attempt, CancelToken, Client, ClientBuilder, Condition, CountDownLatch, Credentials,
    CyclicBarrier, Error, ErrorKind, ExpirablePermit, ExpirableSemaphore, FairLock, FencedLock,
    FencedLockGuard, FencingToken, HoldState, Lock, LockGuard, LostReason, MultiLock,
    MultiLockGuard, NoTicket, OwnedFencedLockGuard, OwnedLockGuard, OwnedMultiLockGuard, Owner,
    PartGuard, Permit, PermitId, ReadLock, ReadWriteLock, ReentrantLock, Rights, Script, Semaphore,
    Ticket, Value, Wait, Waited, WriteLock,
};

const fn goes_anywhere<T: Send + Sync>() {}
const fn may_be_asked_anywhere<T: Sync>() {}
const fn outlives_its_maker<T: 'static>() {}
const fn crosses_a_panic<T: UnwindSafe + RefUnwindSafe>() {}
const fn moves<T: Unpin>() {}

/// Checks a promise for each of the types.
macro_rules! each {
    ($($promise:ident)+ : $types:tt) => { $(each!(@one $promise $types);)+ };
    (@one $promise:ident [$($of:ty),+ $(,)?]) => { const _: () = { $($promise::<$of>();)+ }; };
}

each!(goes_anywhere crosses_a_panic moves: [
    Attempt<OwnedLockGuard>,
    Box<dyn Lock>,
    CancelToken,
    Changes<'_>,
    Client,
    ClientBuilder,
    Condition,
    CountDownLatch,
    Counts,
    Credentials,
    CyclicBarrier,
    Error,
    ErrorKind,
    Event<'_>,
    ExpirablePermit,
    ExpirableSemaphore,
    FairLock,
    FencedLock,
    FencingToken,
    Health,
    Held,
    HoldState,
    Holder,
    Kind,
    Leader,
    LeaderElection,
    Leadership,
    LostReason,
    MultiLock,
    NoTicket,
    OwnedFencedLockGuard,
    OwnedLockGuard,
    OwnedMultiLockGuard,
    Owner,
    OwnerProcess,
    PartGuard<'_>,
    Permit,
    PermitId,
    ReadLock,
    ReadWriteLock,
    ReentrantLock,
    Rights,
    Script,
    Semaphore,
    ServerInfo,
    ServerState,
    Snapshot,
    Status,
    StatusKind,
    Ticket,
    Value,
    Wait<'_>,
    Waited<u32>,
    Waiter,
    Waiting,
    Way,
    WriteLock,
]);

#[cfg(feature = "in-memory")]
each!(goes_anywhere crosses_a_panic moves: [InMemoryServer]);
#[cfg(feature = "metrics")]
each!(goes_anywhere crosses_a_panic moves: [MetricsObserver]);

each!(may_be_asked_anywhere crosses_a_panic moves: [LockGuard, FencedLockGuard, MultiLockGuard]);

// A user's observer does not have to be unwind safe.
each!(goes_anywhere: [Box<dyn Observer>]);

each!(outlives_its_maker: [LockGuard, OwnedLockGuard, Permit, ExpirablePermit]);

/// Two implementations of one method. For a type that is `Send`, the call is ambiguous and does not
/// compile.
trait NotSend<Which> {
    fn stays() {}
}

impl<T: ?Sized> NotSend<()> for T {}
impl<T: ?Sized + Send> NotSend<u8> for T {}

const _: fn() = || {
    // A guard belongs to the thread that took the lock.
    <LockGuard as NotSend<_>>::stays();
    <FencedLockGuard as NotSend<_>>::stays();
    <MultiLockGuard as NotSend<_>>::stays();
};

/// Each type that `lib.rs` or one of its public modules makes public is in the list.
#[test]
fn each_public_type_is_here() {
    let (library, here) = (include_str!("lib.rs"), include_str!("auto_traits.rs"));
    let modules =
        [include_str!("election.rs"), include_str!("observe.rs"), include_str!("status.rs")];
    // The one additional module is the guide, which has no types.
    assert_eq!(library.matches("\npub mod ").count(), modules.len() + 1);
    let (_, promises) = here.split_once("macro_rules!").unwrap();
    let words = |text: &'static str| text.split(|it: char| !it.is_alphanumeric());
    let mut types = 0;
    for item in modules.iter().chain([&library]).flat_map(|file| file.split("\npub ").skip(1)) {
        let names = match item.split_once(' ') {
            Some(("use", names)) => names.split_once(';').unwrap().0,
            Some(("struct" | "enum" | "trait", name)) => words(name).next().unwrap(),
            _ => continue,
        };
        // Two of the names are the variants of `Attempt`.
        let is_type =
            |name: &&str| name.starts_with(char::is_uppercase) && !name.ends_with("Taken");
        for name in words(names).filter(is_type) {
            assert!(words(promises).any(|word| word == name), "{name} has no promise");
            types += 1;
        }
    }
    assert!(types > 50, "{types}");
}
