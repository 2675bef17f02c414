import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.redisson.Redisson;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RLock;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** A driver of Redisson. src/drive/mod.rs describes what it reads and writes. */
public final class Driver {
    private interface Turns {
        /** Returns a function that releases the lock. */
        Runnable acquire(int turn) throws Exception;
    }

    private final Map<String, String> options;
    private final RedissonClient redisson;

    private Driver(Map<String, String> options) {
        this.options = options;
        Config config = new Config();
        config.setLockWatchdogTimeout(number("lease"));
        URI url = URI.create(options.get("url"));
        config.useSingleServer().setAddress("redis://" + url.getHost() + ":" + url.getPort());
        redisson = Redisson.create(config);
        if (options.get("work").equals("semaphore")) {
            redisson.getSemaphore(options.get("name")).trySetPermits(3);
        }
    }

    private long number(String key) {
        return Long.parseLong(options.get(key));
    }

    private Turns turns(int thread) {
        String name = options.get("name");
        if (options.get("own").equals("1")) {
            name += "-" + options.get("process") + "-" + thread;
        }
        switch (options.get("work")) {
            case "semaphore" -> {
                RSemaphore semaphore = redisson.getSemaphore(name);
                return turn -> {
                    semaphore.acquire();
                    return semaphore::release;
                };
            }
            case "rw" -> {
                RReadWriteLock lock = redisson.getReadWriteLock(name);
                return turn -> lock(isWriter(turn) ? lock.writeLock() : lock.readLock());
            }
            case "fair" -> {
                RLock lock = redisson.getFairLock(name);
                return turn -> lock(lock);
            }
            default -> {
                RLock lock = redisson.getLock(name);
                return turn -> lock(lock);
            }
        }
    }

    private static Runnable lock(RLock lock) {
        lock.lock();
        return lock::unlock;
    }

    private static boolean isWriter(int turn) {
        return turn % 8 == 7;
    }

    /** Lets all threads go, and returns how many calls failed. */
    private int run(Map<String, String> given) throws Exception {
        AtomicInteger failures = new AtomicInteger();
        long[] schedule = null;
        if (given.containsKey("schedule")) {
            List<String> lines = Files.readAllLines(Path.of(given.get("schedule")));
            schedule = lines.stream().mapToLong(Long::parseLong).toArray();
        }
        try (FileOutputStream out = new FileOutputStream(given.get("out"))) {
            List<Recorder> recorders = new ArrayList<>();
            List<Thread> threads = new ArrayList<>();
            for (int i = 0; i < number("threads"); i++) {
                Recorder recorder = new Recorder(out, i, "1".equals(given.get("through")));
                recorders.add(recorder);
                int thread = i;
                long[] intended = schedule;
                Thread running = new Thread(() -> {
                    try {
                        if (options.get("work").equals("latch")) {
                            latches(recorder, given);
                        } else {
                            take(thread, recorder, given, intended, failures);
                        }
                    } catch (Exception failure) {
                        throw new IllegalStateException(failure);
                    }
                });
                threads.add(running);
                running.start();
            }
            for (Thread thread : threads) {
                thread.join();
            }
            for (Recorder recorder : recorders) {
                recorder.flush();
            }
        }
        return failures.get();
    }

    private void take(int thread, Recorder recorder, Map<String, String> given, long[] schedule,
            AtomicInteger failures) throws IOException {
        long end = Long.parseLong(given.get("end"));
        long inside = number("inside");
        long spread = number("spread");
        long rest = number("rest");
        boolean writers = options.get("work").equals("rw");
        Turns turns = turns(thread);
        sleepUntil(Long.parseLong(given.get("start")));
        for (int turn = 0; ; turn++) {
            long asked = System.nanoTime();
            if (schedule != null) {
                if (turn == schedule.length) {
                    return;
                }
                asked = schedule[turn];
                sleepUntil(asked);
            } else if (asked >= end) {
                return;
            }
            long tag = writers && isWriter(turn) ? 1L << 32 : 0;
            Runnable release = null;
            while (release == null) {
                try {
                    release = turns.acquire(turn);
                } catch (Exception failure) {
                    failures.incrementAndGet();
                    if (System.nanoTime() >= end) {
                        recorder.write(tag, asked, 0, System.nanoTime());
                        return;
                    }
                }
            }
            long granted = System.nanoTime();
            if (recorder.through) {
                recorder.write(tag, asked, granted, granted);
            }
            work(granted + inside + spread / 16 * (turn * 5 % 16));
            long released = System.nanoTime();
            try {
                release.run();
            } catch (Exception failure) {
                failures.incrementAndGet();
            }
            if (!recorder.through) {
                recorder.write(tag, asked, granted, released);
            }
            if (rest > 0) {
                LockSupport.parkNanos(rest);
            }
        }
    }

    /** Process 0 sets and counts down, process 1 waits. */
    private void latches(Recorder recorder, Map<String, String> given) throws Exception {
        long start = Long.parseLong(given.get("start"));
        long period = number("inside");
        boolean waits = number("process") == 1;
        for (int i = 0; start + (i + 1) * period <= Long.parseLong(given.get("end")); i++) {
            RCountDownLatch latch =
                    redisson.getCountDownLatch(options.get("name") + "-" + start + "-" + i);
            long at = start + i * period;
            sleepUntil(at);
            if (!waits) {
                latch.trySetCount(1);
            }
            sleepUntil(at + period / (waits ? 4 : 2));
            long asked = System.nanoTime();
            if (waits) {
                latch.await();
            } else {
                latch.countDown();
            }
            long granted = System.nanoTime();
            recorder.write(0, asked, granted, granted);
        }
    }

    private static void sleepUntil(long at) {
        for (long left = at - System.nanoTime(); left > 0; left = at - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }

    /** Keeps the core busy for a short time, and sleeps for a long one. */
    private static void work(long until) {
        if (until - System.nanoTime() > 100_000) {
            sleepUntil(until);
        }
        while (System.nanoTime() < until) {
            Thread.onSpinWait();
        }
    }

    /** A thread's grants. */
    private static final class Recorder {
        private final FileOutputStream out;
        private final int thread;
        final boolean through;
        private long[] values = new long[4096];
        private int count;

        Recorder(FileOutputStream out, int thread, boolean through) {
            this.out = out;
            this.thread = thread;
            this.through = through;
        }

        void write(long tag, long asked, long granted, long released) throws IOException {
            if (count + 4 > values.length) {
                values = Arrays.copyOf(values, values.length * 2);
            }
            values[count++] = tag | thread;
            values[count++] = asked;
            values[count++] = granted;
            values[count++] = released;
            if (through) {
                flush();
            }
        }

        void flush() throws IOException {
            ByteBuffer bytes = ByteBuffer.allocate(count * 8).order(ByteOrder.LITTLE_ENDIAN);
            bytes.asLongBuffer().put(values, 0, count);
            count = 0;
            synchronized (out) {
                out.write(bytes.array());
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Driver> sessions = new HashMap<>();
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            Map<String, String> given = new HashMap<>();
            for (int i = 1; i < words.length; i++) {
                String[] parts = words[i].split("=", 2);
                given.put(parts[0], parts[1]);
            }
            switch (words[0]) {
                case "prepare" -> {
                    try {
                        sessions.put(given.get("id"), new Driver(given));
                        System.out.println("ready");
                    } catch (Exception failure) {
                        System.out.println("error " + failure.toString().replace('\n', ' '));
                    }
                }
                case "go" -> System.out.println("done " + sessions.get(given.get("id")).run(given));
                default -> {
                    for (Driver session : sessions.values()) {
                        session.redisson.shutdown(0, 1, java.util.concurrent.TimeUnit.SECONDS);
                    }
                    sessions.clear();
                    System.out.println("closed");
                }
            }
        }
        Runtime.getRuntime().halt(0);
    }
}
