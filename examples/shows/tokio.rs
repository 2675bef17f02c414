//! Shows locks in async code. When a waiting future is dropped, its wait ends. A guard is held
//! across `.await`. Waiters leave some of tokio's blocking threads free: `cargo run --example
//! tokio`

#[expect(dead_code, reason = "this example is one process")]
mod stage;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redlatch::{Attempt, CancelToken, Client, NotTaken, OwnedLockGuard, ReentrantLock, Wait};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout, timeout_at};

use stage::{Stage, Trouble};

/// The number of the runtime's blocking threads. At most `WAITERS` of these threads wait for locks,
/// although more tasks wait. By default tokio has 512 blocking threads.
const BLOCKING_THREADS: usize = 4;
const WAITERS: usize = 2;
const TASKS: usize = 50;
/// A time longer than any wait of this example.
const LONG: Duration = Duration::from_secs(30);

/// Ends the blocking wait when the future that owns this value is dropped.
struct CancelOnDrop(CancelToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Takes the lock on a blocking thread, and returns its guard to async code. Returns `NotTaken`
/// after `limit`, which also limits the wait for a permit. The permits of `waiters` are for this
/// lock only: if all locks shared them, waits for one lock could use all permits. The blocking
/// thread gets the permit, and gives it back when its wait ends.
async fn lock_async(
    lock: &ReentrantLock,
    limit: Duration,
    waiters: &Arc<Semaphore>,
) -> Result<Attempt<OwnedLockGuard>, Trouble> {
    let deadline = Instant::now() + limit;
    let permit = Arc::clone(waiters).acquire_owned();
    let Ok(permit) = timeout_at(deadline.into(), permit).await else { return Ok(NotTaken) };
    let permit = permit?;
    let token = CancelToken::new();
    let _cancel = CancelOnDrop(token.clone());
    let lock = lock.clone();
    let taken = spawn_blocking(move || {
        let _permit = permit;
        lock.lock_owned_within(Wait::until(deadline).cancelled_by(&token))
    });
    Ok(taken.await??)
}

/// Releases the lock and waits for the reply. A drop also releases the lock, but does not wait.
async fn unlock_async(guard: OwnedLockGuard) -> Result<(), Trouble> {
    Ok(spawn_blocking(move || guard.unlock()).await??)
}

fn main() -> ExitCode {
    stage::play("tokio", show, |_| Ok(()))
}

fn show(stage: &Stage) -> Result<bool, Trouble> {
    // The client connects before the runtime starts, because `connect` blocks.
    let lock = Client::connect(stage.url())?.reentrant_lock(&stage.name);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_time()
        .build()?;
    runtime.block_on(show_async(stage, &lock))?;
    Ok(true)
}

async fn show_async(stage: &Stage, lock: &ReentrantLock) -> Result<(), Trouble> {
    let waiters = Arc::new(Semaphore::new(WAITERS));

    let guard = lock_async(lock, LONG, &waiters).await?.into_option().ok_or("the lock is free")?;
    let late = timeout(Duration::from_millis(200), lock_async(lock, LONG, &waiters)).await;
    assert!(late.is_err(), "two have the lock");
    // The thread of the dropped future gives its permit back long before its time limit.
    let all = waiters.acquire_many(WAITERS.try_into()?);
    drop(timeout(LONG / 2, all).await.map_err(|_| "the dropped future still waits")??);
    stage.say("A future that was dropped does not wait any more.")?;

    let (inside, entered) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (lock, waiters) = (lock.clone(), Arc::clone(&waiters));
        let (inside, entered) = (Arc::clone(&inside), Arc::clone(&entered));
        tasks.spawn(async move {
            let guard = lock_async(&lock, LONG, &waiters)
                .await?
                .into_option()
                .ok_or("30 s were too short")?;
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two have the lock");
            sleep(Duration::from_millis(1)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            entered.fetch_add(1, Ordering::SeqCst);
            unlock_async(guard).await
        });
    }
    // A limit also ends the wait for a permit.
    let short = lock_async(lock, Duration::from_millis(50), &waiters).await?;
    assert!(short.into_option().is_none(), "two have the lock");
    // All tasks wait now, and two of them occupy blocking threads. The other blocking threads are
    // free.
    while waiters.available_permits() > 0 {
        sleep(Duration::from_millis(5)).await;
    }
    let free = timeout(LONG / 2, spawn_blocking(|| ())).await;
    free.map_err(|_| "the waiters have all blocking threads")??;
    assert_eq!(entered.load(Ordering::SeqCst), 0, "two have the lock");
    stage.say(&format!("{TASKS} tasks wait, and other blocking work goes on."))?;

    unlock_async(guard).await?;
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    assert_eq!(entered.load(Ordering::SeqCst), TASKS.try_into()?);
    assert!(!lock.is_locked()?, "a guard was lost");
    stage.say("Each of them had the lock, one after the other, across an `.await`.")?;
    Ok(())
}
