//! Which types go to other threads and which do not: promises to users, kept by the compiler.

use crate::{
    CancelToken, Client, ClientBuilder, Condition, CountDownLatch, CyclicBarrier, Error, ErrorKind,
    ExpirablePermit, ExpirableSemaphore, FairLock, FencedLock, FencedLockGuard, FencingToken,
    HoldState, Leader, LeaderElection, Leadership, Lock, LockGuard, LostReason, MultiLock,
    MultiLockGuard, OwnedFencedLockGuard, OwnedLockGuard, OwnedMultiLockGuard, Permit, PermitId,
    ReadLock, ReadWriteLock, ReentrantLock, Semaphore, Status, Wait, WriteLock,
};

const fn goes_anywhere<T: Send + Sync + Unpin>() {}
const fn may_be_asked_anywhere<T: Sync + Unpin>() {}
const fn outlives_its_maker<T: 'static>() {}

const _: () = {
    goes_anywhere::<CancelToken>();
    goes_anywhere::<Client>();
    goes_anywhere::<ClientBuilder>();
    goes_anywhere::<Condition>();
    goes_anywhere::<CountDownLatch>();
    goes_anywhere::<CyclicBarrier>();
    goes_anywhere::<Error>();
    goes_anywhere::<ErrorKind>();
    goes_anywhere::<ExpirablePermit>();
    goes_anywhere::<ExpirableSemaphore>();
    goes_anywhere::<FairLock>();
    goes_anywhere::<FencedLock>();
    goes_anywhere::<FencingToken>();
    goes_anywhere::<OwnedFencedLockGuard>();
    goes_anywhere::<HoldState>();
    goes_anywhere::<LostReason>();
    goes_anywhere::<Leader>();
    goes_anywhere::<LeaderElection>();
    goes_anywhere::<Leadership>();
    goes_anywhere::<MultiLock>();
    goes_anywhere::<OwnedLockGuard>();
    goes_anywhere::<OwnedMultiLockGuard>();
    goes_anywhere::<Permit>();
    goes_anywhere::<PermitId>();
    goes_anywhere::<ReadLock>();
    goes_anywhere::<ReadWriteLock>();
    goes_anywhere::<ReentrantLock>();
    goes_anywhere::<Semaphore>();
    goes_anywhere::<Status>();
    goes_anywhere::<Wait<'_>>();
    goes_anywhere::<WriteLock>();
    goes_anywhere::<Box<dyn Lock>>();
    may_be_asked_anywhere::<LockGuard>();
    may_be_asked_anywhere::<FencedLockGuard>();
    may_be_asked_anywhere::<MultiLockGuard>();
    outlives_its_maker::<LockGuard>();
    outlives_its_maker::<OwnedLockGuard>();
    outlives_its_maker::<ExpirablePermit>();
    outlives_its_maker::<Permit>();
};

/// Two traits with one name: the name is ambiguous, and this does not compile, for a type that is `Send`.
trait NotSend<Which> {
    fn stays() {}
}

impl<T: ?Sized> NotSend<()> for T {}
impl<T: ?Sized + Send> NotSend<u8> for T {}

const _: fn() = || {
    // A hold belongs to the thread that took it.
    <LockGuard as NotSend<_>>::stays();
    <FencedLockGuard as NotSend<_>>::stays();
    <MultiLockGuard as NotSend<_>>::stays();
};
