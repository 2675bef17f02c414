//! Mistakes that the compiler finds: each test below is a program that it must refuse, after one that
//! it must take and that differs in nothing but the mistake.
//!
//! The mistakes that no type can prevent are in the guide, under "Ways to take a lock".

/// `read` and `write` lock in std, so a half of a [`ReadWriteLock`](crate::ReadWriteLock), which no
/// call has locked yet, has another name.
///
/// ```no_run
/// # fn main() -> Result<(), redlatch::Error> {
/// # let prices = redlatch::Client::connect("redis://localhost")?.read_write_lock("prices");
/// let _guard = prices.read_lock().lock()?;
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
