package interop;

import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RExpirable;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** One call of a client, each with a new handle. */
final class Calls {
    private final RedissonClient redisson;

    Calls(RedissonClient redisson) {
        this.redisson = redisson;
    }

    /** {@code rest}: numbers, or the id of a permit. */
    Object call(String verb, String kind, String name, String[] rest) throws Exception {
        return switch (kind) {
            case "semaphore" -> callSemaphore(redisson.getSemaphore(name), verb, rest);
            case "permitExpirableSemaphore" ->
                    callExpirable(redisson.getPermitExpirableSemaphore(name), verb, rest);
            case "latch" -> callLatch(redisson.getCountDownLatch(name), verb, rest);
            case "key" -> callKey(redisson, name, verb, rest);
            default -> callLock(lock(redisson, kind, name), verb, rest);
        };
    }

    /** Of several locks at once the names are separated by commas. */
    static RLock lock(RedissonClient redisson, String kind, String name) {
        return switch (kind) {
            case "lock" -> redisson.getLock(name);
            case "fairLock" -> redisson.getFairLock(name);
            case "readLock" -> redisson.getReadWriteLock(name).readLock();
            case "writeLock" -> redisson.getReadWriteLock(name).writeLock();
            case "fencedLock" -> redisson.getFencedLock(name);
            case "multiLock" -> redisson.getMultiLock(
                    Arrays.stream(name.split(",")).map(redisson::getLock).toArray(RLock[]::new));
            default -> throw new IllegalArgumentException("no kind " + kind);
        };
    }

    private static Object callLock(RLock lock, String verb, String[] rest) throws Exception {
        switch (verb) {
            case "lock" -> lock.lock(number(rest, 0), TimeUnit.MILLISECONDS);
            case "unlock" -> lock.unlock();
            case "tryLock" -> {
                if (rest.length == 0) {
                    return lock.tryLock();
                }
                return lock.tryLock(number(rest, 0), number(rest, 1), TimeUnit.MILLISECONDS);
            }
            case "forceUnlock" -> {
                return lock.forceUnlock();
            }
            case "isLocked" -> {
                return lock.isLocked();
            }
            case "isHeld" -> {
                return lock.isHeldByCurrentThread();
            }
            case "holdCount" -> {
                return lock.getHoldCount();
            }
            case "remaining" -> {
                return lock.remainTimeToLive();
            }
            case "lockAndGetToken" -> {
                return ((RFencedLock) lock).lockAndGetToken();
            }
            case "getToken" -> {
                return ((RFencedLock) lock).getToken();
            }
            default -> throw new IllegalArgumentException("no verb " + verb);
        }
        return null;
    }

    private static Object callSemaphore(RSemaphore semaphore, String verb, String[] rest)
            throws Exception {
        int permits = rest.length > 0 ? whole(rest, 0) : 1;
        switch (verb) {
            case "acquire" -> semaphore.acquire(permits);
            case "tryAcquire" -> {
                long wait = rest.length > 1 ? number(rest, 1) : 0;
                return semaphore.tryAcquire(permits, wait, TimeUnit.MILLISECONDS);
            }
            case "release" -> semaphore.release(permits);
            case "availablePermits" -> {
                return semaphore.availablePermits();
            }
            case "trySetPermits" -> {
                if (rest.length > 1) {
                    return semaphore.trySetPermits(permits, Duration.ofMillis(number(rest, 1)));
                }
                return semaphore.trySetPermits(permits);
            }
            case "addPermits" -> semaphore.addPermits(permits);
            case "drainPermits" -> {
                return semaphore.drainPermits();
            }
            default -> {
                return callExpire(semaphore, verb, rest);
            }
        }
        return null;
    }

    private static Object callExpirable(
            RPermitExpirableSemaphore semaphore, String verb, String[] rest) throws Exception {
        switch (verb) {
            case "acquire" -> {
                return rest.length == 0
                        ? semaphore.acquire()
                        : semaphore.acquire(number(rest, 0), TimeUnit.MILLISECONDS);
            }
            case "tryAcquire" -> {
                long wait = rest.length > 0 ? number(rest, 0) : 0;
                String id = semaphore.tryAcquire(wait, number(rest, 1), TimeUnit.MILLISECONDS);
                return id == null ? "none" : id;
            }
            case "release" -> semaphore.release(rest[0]);
            case "tryRelease" -> {
                return semaphore.tryRelease(rest[0]);
            }
            case "availablePermits" -> {
                return semaphore.availablePermits();
            }
            case "trySetPermits" -> {
                return semaphore.trySetPermits(whole(rest, 0));
            }
            case "setPermits" -> semaphore.setPermits(whole(rest, 0));
            case "addPermits" -> semaphore.addPermits(whole(rest, 0));
            case "updateLeaseTime" -> {
                return semaphore.updateLeaseTime(rest[0], number(rest, 1), TimeUnit.MILLISECONDS);
            }
            default -> {
                return callExpire(semaphore, verb, rest);
            }
        }
        return null;
    }

    /** For a latch, which Redisson gives no time to live by itself. */
    private static Object callKey(
            RedissonClient redisson, String name, String verb, String[] rest) {
        return switch (verb) {
            case "expire" ->
                    redisson.getKeys().expire(name, number(rest, 0), TimeUnit.MILLISECONDS);
            case "clearExpire" -> redisson.getKeys().clearExpire(name);
            case "remaining" -> redisson.getKeys().remainTimeToLive(name);
            default -> throw new IllegalArgumentException("no verb " + verb);
        };
    }

    private static Object callExpire(RExpirable expirable, String verb, String[] rest) {
        return switch (verb) {
            // Of 3.16, too.
            case "expire" -> expirable.expire(number(rest, 0), TimeUnit.MILLISECONDS);
            case "clearExpire" -> expirable.clearExpire();
            case "remaining" -> expirable.remainTimeToLive();
            default -> throw new IllegalArgumentException("no verb " + verb);
        };
    }

    private static Object callLatch(RCountDownLatch latch, String verb, String[] rest)
            throws Exception {
        switch (verb) {
            case "trySetCount" -> {
                return latch.trySetCount(number(rest, 0));
            }
            case "countDown" -> latch.countDown();
            case "getCount" -> {
                return latch.getCount();
            }
            case "await" -> {
                if (rest.length > 0) {
                    return latch.await(number(rest, 0), TimeUnit.MILLISECONDS);
                }
                latch.await();
            }
            default -> throw new IllegalArgumentException("no verb " + verb);
        }
        return null;
    }

    /** A number that the command has; -1, which is Redisson's "renewed", if it has not. */
    private static long number(String[] rest, int at) {
        return at < rest.length ? Long.parseLong(rest[at]) : -1;
    }

    private static int whole(String[] rest, int at) {
        return Math.toIntExact(number(rest, at));
    }
}
