//! Mistakes that the compiler finds. Each test below is a correct program, followed by the same
//! program with a mistake. The compiler must accept the first program and reject the second, so
//! only the mistake can be the reason for the rejection.
//!
//! The guide lists the mistakes that no type can prevent, under "Ways to take a lock".

/// In std, `read` and `write` take the lock. `reader` and `writer` of a
/// [`ReadWriteLock`](crate::ReadWriteLock) take nothing, so they have other names.
///
/// ```no_run
/// # fn main() -> Result<(), redlatch::Error> {
/// # let prices = redlatch::Client::connect("redis://localhost")?.read_write_lock("prices");
/// let _guard = prices.reader().lock()?;
/// let _guard = prices.writer().lock()?;
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0599
/// # fn main() -> Result<(), redlatch::Error> {
/// # let prices = redlatch::Client::connect("redis://localhost")?.read_write_lock("prices");
/// let _guard = prices.read();
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0599
/// # fn main() -> Result<(), redlatch::Error> {
/// # let prices = redlatch::Client::connect("redis://localhost")?.read_write_lock("prices");
/// let _guard = prices.write();
/// # Ok(()) }
/// ```
struct ReadTakesNoLock;

/// A guard belongs to its thread, and an owned guard belongs to no thread. If a program sends a
/// guard, the compiler says that `GuardStaysWithItsThread` cannot be sent.
///
/// ```no_run
/// fn elsewhere(guard: redlatch::OwnedLockGuard) {
///     std::thread::spawn(move || drop(guard));
/// }
/// ```
///
/// ```compile_fail,E0277
/// fn elsewhere(guard: redlatch::LockGuard) {
///     std::thread::spawn(move || drop(guard));
/// }
/// ```
struct AGuardStaysWithItsThread;

/// An [`Attempt`](crate::Attempt) in a condition would be dropped at the end of the condition, so
/// the block would run without the lock.
///
/// ```no_run
/// # fn work() {}
/// # fn f(lock: &redlatch::ReentrantLock) -> Result<(), redlatch::Error> {
/// if let redlatch::Taken(_guard) = lock.try_lock()? {
///     work();
/// }
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0599
/// # fn work() {}
/// # fn f(lock: &redlatch::ReentrantLock) -> Result<(), redlatch::Error> {
/// if lock.try_lock()?.is_some() {
///     work();
/// }
/// # Ok(()) }
/// ```
struct AnAttemptIsNoCondition;

/// A program that ignores an [`Attempt`](crate::Attempt) continues without the lock.
///
/// ```no_run
/// # #![deny(unused_must_use)]
/// # fn f(lock: &dyn redlatch::Lock) -> Result<(), redlatch::Error> {
/// let _guard = lock.try_lock()?;
/// # Ok(()) }
/// ```
///
/// ```compile_fail
/// # #![deny(unused_must_use)]
/// # fn f(lock: &dyn redlatch::Lock) -> Result<(), redlatch::Error> {
/// lock.try_lock()?;
/// # Ok(()) }
/// ```
///
/// ```compile_fail
/// # #![deny(unused_must_use)]
/// # fn f(lock: &dyn redlatch::Lock) -> Result<(), redlatch::Error> {
/// lock.try_lock()?.into_option();
/// # Ok(()) }
/// ```
///
/// ```no_run
/// # #![deny(unused_must_use)]
/// # fn f(downloads: &redlatch::ExpirableSemaphore) -> Result<(), redlatch::Error> {
/// let _permits = downloads.try_acquire_many(3)?;
/// # Ok(()) }
/// ```
///
/// ```compile_fail
/// # #![deny(unused_must_use)]
/// # fn f(downloads: &redlatch::ExpirableSemaphore) -> Result<(), redlatch::Error> {
/// downloads.try_acquire_many(3)?;
/// # Ok(()) }
/// ```
struct AnAttemptIsNotIgnored;

/// A program that ignores a [`Waited`](crate::Waited) continues as if the awaited event had
/// happened.
///
/// ```no_run
/// # #![deny(unused_must_use)]
/// # fn f(ready: &redlatch::CountDownLatch) -> Result<(), redlatch::Error> {
/// let _ = ready.wait_for(std::time::Duration::from_secs(60))?;
/// # Ok(()) }
/// ```
///
/// ```compile_fail
/// # #![deny(unused_must_use)]
/// # fn f(ready: &redlatch::CountDownLatch) -> Result<(), redlatch::Error> {
/// ready.wait_for(std::time::Duration::from_secs(60))?;
/// # Ok(()) }
/// ```
///
/// ```no_run
/// # #![deny(unused_must_use)]
/// # fn f(steps: &redlatch::CyclicBarrier) -> Result<(), redlatch::Error> {
/// let _ = steps.wait_for(std::time::Duration::from_secs(60))?;
/// # Ok(()) }
/// ```
///
/// ```compile_fail
/// # #![deny(unused_must_use)]
/// # fn f(steps: &redlatch::CyclicBarrier) -> Result<(), redlatch::Error> {
/// steps.wait_for(std::time::Duration::from_secs(60))?;
/// # Ok(()) }
/// ```
struct AWaitIsNotIgnored;
