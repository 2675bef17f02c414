package interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeoutException;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.redisson.config.SingleServerConfig;

/** Redisson's synchronizers, driven by commands on standard input: see README.md. */
public final class Interop {
    /** The clients by name. Each is what a Java service has: an id of its own, and connections. */
    private final Map<String, RedissonClient> clients = new ConcurrentHashMap<>();
    /** One thread for each client and name: a command that waits keeps only its own thread busy. */
    private final Map<String, ExecutorService> executors = new HashMap<>();
    private final Map<String, Thread> threads = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws IOException {
        say("ready");
        new Interop().serve();
        // As a process that dies: nothing is given back, and nobody is waited for.
        Runtime.getRuntime().halt(0);
    }

    private void serve() throws IOException {
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            String thread = words[0] + " " + words[1];
            executors.computeIfAbsent(thread, this::executor)
                    .execute(() -> say(thread + " " + answer(words)));
        }
    }

    private ExecutorService executor(String name) {
        return Executors.newSingleThreadExecutor(task -> {
            var thread = new Thread(task, name);
            threads.put(name, thread);
            return thread;
        });
    }

    /** One line, whatever other threads say at the same time. */
    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private String answer(String[] words) {
        try {
            Object answer = call(words);
            return answer == null ? "ok" : answer.toString();
        } catch (Exception | LinkageError failure) {
            Throwable cause = failure instanceof ExecutionException ? failure.getCause() : failure;
            return "error " + cause.toString().replace('\n', ' ');
        }
    }

    private Object call(String[] words) throws Exception {
        String client = words[0];
        switch (words[2]) {
            case "connect" -> {
                RedissonClient connected = connect(Arrays.copyOfRange(words, 3, words.length));
                clients.put(client, connected);
                return connected.getId();
            }
            case "shutdown" -> {
                clients.remove(client).shutdown();
                return null;
            }
            case "sleeps" -> {
                waitAsleep(threads.get(client + " " + words[3]));
                return null;
            }
            default -> {
                String name = URLDecoder.decode(words[4], StandardCharsets.UTF_8);
                String[] rest = Arrays.copyOfRange(words, 5, words.length);
                if (words[2].equals("loop")) {
                    RedissonClient checks = clients.get(rest[6]);
                    return new Loop(clients.get(client), checks, words[3], name, rest).run();
                }
                return new Calls(clients.get(client)).call(words[2], words[3], name, rest);
            }
        }
    }

    /**
     * Waits until the thread sleeps for a message of its lock. Redisson 3.16's waiter for a
     * read-write lock does not hear of a message that comes when it has asked and does not sleep yet.
     */
    private static void waitAsleep(Thread thread) throws Exception {
        for (long until = System.nanoTime() + 20_000_000_000L; System.nanoTime() < until; ) {
            if (isAsleep(thread.getStackTrace())) {
                return;
            }
            Thread.sleep(1);
        }
        throw new TimeoutException(thread + " does not sleep");
    }

    private static boolean isAsleep(StackTraceElement[] calls) {
        return calls.length > 0
                && calls[0].getMethodName().equals("park")
                && Arrays.stream(calls)
                        .anyMatch(call -> call.getClassName().equals(Semaphore.class.getName()));
    }

    /** The words: a URL, and if wanted the watchdog's timeout and the fair lock's wait. */
    private static RedissonClient connect(String[] words) {
        Config config = new Config();
        // A test has many clients: each has few threads, and connections when it needs them.
        config.setThreads(8).setNettyThreads(4);
        SingleServerConfig server = config.useSingleServer();
        URI url = URI.create(words[0]);
        server.setAddress("redis://" + url.getHost() + ":" + url.getPort());
        server.setDatabase(database(url));
        if (url.getUserInfo() != null) {
            String[] user = url.getUserInfo().split(":");
            server.setUsername(user[0]).setPassword(user[1]);
        }
        server.setConnectionMinimumIdleSize(1);
        if (words.length > 1) {
            config.setLockWatchdogTimeout(Long.parseLong(words[1]));
        }
        if (words.length > 2) {
            config.setFairLockWaitTimeout(Long.parseLong(words[2]));
        }
        return Redisson.create(config);
    }

    /** The number behind the address; Redisson itself does not read it. */
    private static int database(URI url) {
        String path = url.getPath();
        return path.length() > 1 ? Integer.parseInt(path.substring(1)) : 0;
    }
}
