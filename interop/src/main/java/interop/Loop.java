package interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RScript;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/**
 * Threads that take turns, and have Redis check each turn by two scripts of the caller's, which it
 * has loaded: one when the turn begins, one when it ends. The words of the command: how many
 * threads, for how many ms, ms of each hold and of each wait at most, `kept` or `fresh` handles,
 * how many may hold it, the client for the checks, the digests of the two scripts, the name under
 * which the turns count, and the lease of a permit.
 */
final class Loop {
    private final RedissonClient redisson;
    /** The checks' own client: its connections are not cut. */
    private final RedissonClient checks;
    private final String kind;
    private final String name;
    private final int threads;
    private final long end;
    private final long hold;
    private final long wait;
    private final boolean fresh;
    private final String limit;
    private final String enters;
    private final String leaves;
    private final String side;
    private final long lease;
    private final Turns kept;

    Loop(RedissonClient redisson, RedissonClient checks, String kind, String name, String[] rest) {
        this.redisson = redisson;
        this.checks = checks;
        this.kind = kind;
        this.name = name;
        threads = Integer.parseInt(rest[0]);
        end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Long.parseLong(rest[1]));
        hold = Long.parseLong(rest[2]);
        wait = Long.parseLong(rest[3]);
        fresh = rest[4].equals("fresh");
        limit = rest[5];
        enters = rest[7];
        leaves = rest[8];
        side = rest[9];
        lease = Long.parseLong(rest[10]);
        kept = turns();
    }

    /** Takes turns until the time is over; the number of calls that failed. */
    Object run() throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        try {
            List<Future<Long>> running = new ArrayList<>();
            for (int i = 0; i < threads; i++) {
                String me = redisson.getId() + ":" + i;
                running.add(pool.submit(() -> take(me)));
            }
            long failed = 0;
            for (Future<Long> thread : running) {
                failed += thread.get();
            }
            return failed;
        } finally {
            pool.shutdown();
        }
    }

    private long take(String me) throws InterruptedException {
        long failed = 0;
        for (int turn = 1; System.nanoTime() < end; turn++) {
            try {
                // Every fourth turn at a read-write lock is a writer's.
                String mode = kind.equals("readWriteLock") && turn % 4 != 0 ? "read" : "write";
                failed += take(me, mode) ? 0 : 1;
            } catch (InterruptedException interrupted) {
                throw interrupted;
            } catch (Exception failure) {
                // A connection was cut; a lock was lost. The checks tell whether it mattered.
                failed++;
                Thread.sleep(5);
            }
        }
        return failed;
    }

    /** Whether it came within the wait. */
    private boolean take(String me, String mode) throws Exception {
        Turns turns = fresh ? turns() : kept;
        long asked = System.nanoTime();
        boolean isRenewed = !kind.equals("permitExpirableSemaphore");
        String ends = isRenewed ? "0" : String.valueOf(System.currentTimeMillis() + lease);
        Callable<?> release = turns.begin(mode);
        if (release == null) {
            return false;
        }
        long waited = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - asked);
        try {
            String seen = check(enters, me, mode, limit, ends);
            Thread.sleep(hold);
            check(leaves, me, mode, limit, seen, side, String.valueOf(waited));
        } finally {
            release.call();
        }
        return true;
    }

    private String check(String script, Object... values) {
        return checks.getScript(StringCodec.INSTANCE).evalSha(RScript.Mode.READ_WRITE, script,
                RScript.ReturnType.VALUE, List.of("check:" + name), values);
    }

    /** What a handle does: begins a turn, and returns what ends it; null: not within the wait. */
    private interface Turns {
        Callable<?> begin(String mode) throws Exception;
    }

    private Turns turns() {
        switch (kind) {
            case "semaphore" -> {
                RSemaphore semaphore = redisson.getSemaphore(name);
                return mode -> {
                    if (!semaphore.tryAcquire(1, wait, TimeUnit.MILLISECONDS)) {
                        return null;
                    }
                    return done(semaphore::release);
                };
            }
            case "permitExpirableSemaphore" -> {
                RPermitExpirableSemaphore semaphore = redisson.getPermitExpirableSemaphore(name);
                return mode -> {
                    String id = semaphore.tryAcquire(wait, lease, TimeUnit.MILLISECONDS);
                    return id == null ? null : done(() -> semaphore.release(id));
                };
            }
            case "readWriteLock" -> {
                RReadWriteLock lock = redisson.getReadWriteLock(name);
                return mode -> begin(mode.equals("read") ? lock.readLock() : lock.writeLock());
            }
            default -> {
                RLock lock = Calls.lock(redisson, kind, name);
                return mode -> begin(lock);
            }
        }
    }

    private Callable<?> begin(RLock lock) throws InterruptedException {
        if (!lock.tryLock(wait, TimeUnit.MILLISECONDS)) {
            return null;
        }
        return done(lock::unlock);
    }

    private static Callable<?> done(Runnable release) {
        return Executors.callable(release);
    }
}
