package interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson's locks and semaphores, told what to do on standard input: see README.md. */
public final class Interop {
    private final RedissonClient redisson;
    /** One thread for each name of a thread: a command that waits keeps only its own thread busy. */
    private final Map<String, ExecutorService> threads = new HashMap<>();

    private Interop(RedissonClient redisson) {
        this.redisson = redisson;
    }

    public static void main(String[] arguments) throws IOException {
        Config config = new Config();
        config.useSingleServer().setAddress(arguments[0]).setDatabase(database(arguments[0]));
        if (arguments.length > 1) {
            config.setLockWatchdogTimeout(Long.parseLong(arguments[1]));
        }
        Interop interop = new Interop(Redisson.create(config));
        say("ready " + interop.redisson.getId());
        interop.serve();
        // As a process that dies: nothing is given back, and nobody is waited for.
        Runtime.getRuntime().halt(0);
    }

    /** The number behind the address; Redisson itself does not read it. */
    private static int database(String url) {
        String path = URI.create(url).getPath();
        return path.length() > 1 ? Integer.parseInt(path.substring(1)) : 0;
    }

    private void serve() throws IOException {
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            String thread = words[0];
            threads.computeIfAbsent(thread, name -> Executors.newSingleThreadExecutor())
                    .execute(() -> say(thread + " " + answer(words)));
        }
    }

    /** One line, whatever other threads say at the same time. */
    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private String answer(String[] words) {
        try {
            String[] rest = Arrays.copyOfRange(words, 4, words.length);
            Object answer = call(words[1], words[2], words[3], rest);
            return answer == null ? "ok" : answer.toString();
        } catch (Exception failure) {
            Throwable cause = failure instanceof ExecutionException ? failure.getCause() : failure;
            return "error " + cause.toString().replace('\n', ' ');
        }
    }

    /** {@code rest}: numbers, or the id of a permit. */
    private Object call(String verb, String kind, String name, String[] rest) throws Exception {
        if (verb.equals("loop")) {
            return loop(kind, name, whole(rest, 0), number(rest, 1), number(rest, 2));
        }
        return switch (kind) {
            case "semaphore" -> callSemaphore(redisson.getSemaphore(name), verb, rest);
            case "permitExpirableSemaphore" ->
                    callExpirable(redisson.getPermitExpirableSemaphore(name), verb, rest);
            case "latch" -> callLatch(redisson.getCountDownLatch(name), verb, rest);
            default -> callLock(lock(kind, name), verb, rest);
        };
    }

    private RLock lock(String kind, String name) {
        return switch (kind) {
            case "lock" -> redisson.getLock(name);
            case "fairLock" -> redisson.getFairLock(name);
            case "readLock" -> redisson.getReadWriteLock(name).readLock();
            case "writeLock" -> redisson.getReadWriteLock(name).writeLock();
            case "fencedLock" -> redisson.getFencedLock(name);
            default -> throw new IllegalArgumentException("no kind " + kind);
        };
    }

    private static Object callLock(RLock lock, String verb, String[] rest) throws Exception {
        switch (verb) {
            case "lock" -> lock.lock(number(rest, 0), TimeUnit.MILLISECONDS);
            case "unlock" -> lock.unlock();
            case "tryLock" -> {
                long wait = rest.length > 0 ? number(rest, 0) : 0;
                return lock.tryLock(wait, number(rest, 1), TimeUnit.MILLISECONDS);
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
                return ((RFencedLock) lock).lockAndGetToken(number(rest, 0), TimeUnit.MILLISECONDS);
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
                return semaphore.trySetPermits(permits);
            }
            case "addPermits" -> semaphore.addPermits(permits);
            case "drainPermits" -> {
                return semaphore.drainPermits();
            }
            default -> throw new IllegalArgumentException("no verb " + verb);
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
            default -> throw new IllegalArgumentException("no verb " + verb);
        }
        return null;
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

    /** How many turns these threads had in all that began before the time was over. */
    private long loop(String kind, String name, int threads, long seconds, long hold)
            throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        try {
            List<Future<Long>> running = new ArrayList<>();
            for (int i = 0; i < threads; i++) {
                running.add(pool.submit(() -> turns(kind, name, end, hold)));
            }
            long turns = 0;
            for (Future<Long> thread : running) {
                turns += thread.get();
            }
            return turns;
        } finally {
            pool.shutdown();
        }
    }

    private long turns(String kind, String name, long end, long hold) throws Exception {
        long turns = 0;
        while (System.nanoTime() < end) {
            Callable<Void> release = begin(kind, name);
            if (System.nanoTime() < end) {
                turns++;
                Thread.sleep(hold);
            }
            release.call();
        }
        return turns;
    }

    /** Waits for a turn, with a handle of its own; returns what ends it. */
    private Callable<Void> begin(String kind, String name) throws Exception {
        switch (kind) {
            case "semaphore" -> {
                RSemaphore semaphore = redisson.getSemaphore(name);
                semaphore.acquire();
                return () -> {
                    semaphore.release();
                    return null;
                };
            }
            case "permitExpirableSemaphore" -> {
                RPermitExpirableSemaphore semaphore = redisson.getPermitExpirableSemaphore(name);
                String id = semaphore.acquire();
                return () -> {
                    semaphore.release(id);
                    return null;
                };
            }
            default -> {
                RLock lock = lock(kind, name);
                lock.lock();
                return () -> {
                    lock.unlock();
                    return null;
                };
            }
        }
    }

    /** A number that the command has; -1, which is Redisson's "renewed", if it has not. */
    private static long number(String[] rest, int at) {
        return at < rest.length ? Long.parseLong(rest[at]) : -1;
    }

    private static int whole(String[] rest, int at) {
        return Math.toIntExact(number(rest, at));
    }
}
