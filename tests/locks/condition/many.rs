//! Many waiters at the same time.

use super::*;

#[test]
fn a_look_at_a_condition_asks_the_server_once_however_many_were_notified() {
    const NOTIFIED: usize = 40;
    let server = server();
    let [here, there] =
        [client(&server), client(&server)].map(|client| REENTRANT.make(&client, "m"));
    let crowd: Vec<_> =
        (0..2 * NOTIFIED).map(|_| Guest::of(&server, "m", &here, Wait::FOREVER).passes()).collect();
    let guard = there.lock.lock().unwrap();
    for _ in 0..NOTIFIED {
        assert!(there.condition.notify_one().unwrap());
    }
    let questions = |commands: &Commands| commands.of("pubsub") + commands.of("pubsub|numsub");
    let before = Commands::so_far(&server);
    let scripts = || Commands::so_far(&server).scripts() - before.scripts();
    wait_until("each has looked", TIMEOUT, || scripts() > 4 * NOTIFIED as u64);
    let (sent, after) = (scripts(), Commands::so_far(&server));
    let asked = questions(&after) - questions(&before);
    assert!(asked <= sent, "{asked} questions in {sent} scripts");
    there.condition.notify_all().unwrap();
    guard.unlock().unwrap();
    assert!(leave_all(crowd).into_iter().all(|notified| notified));
    leaves_nothing(&server, "m");
}

#[test]
fn notified_waiters_of_one_process_give_one_sign_of_life_together() {
    const NOTIFIED: u64 = 40;
    let server = server();
    let [here, there] =
        [client(&server), client(&server)].map(|client| REENTRANT.make(&client, "m"));
    let crowd: Vec<_> =
        (0..NOTIFIED).map(|_| Guest::of(&server, "m", &here, Wait::FOREVER).passes()).collect();
    let guard = there.lock.lock().unwrap();
    for _ in 0..NOTIFIED {
        assert!(there.condition.notify_one().unwrap());
    }
    let before = Commands::so_far(&server);
    let signs = || Commands::so_far(&server).of("hset") - before.of("hset");
    wait_until("each has given several", TIMEOUT, || signs() >= 5 * NOTIFIED);
    let after = Commands::so_far(&server);
    let (sent, signs) = (after.scripts() - before.scripts(), after.of("hset") - before.of("hset"));
    assert!(2 * sent < signs, "{sent} scripts for {signs} keep-alives");
    guard.unlock().unwrap();
    assert!(leave_all(crowd).into_iter().all(|notified| notified));
    leaves_nothing(&server, "m");
}

of_all_locks! {
    no_waiter_is_forgotten_and_none_is_told_twice
    items_are_made_and_taken_by_many_processes
    items_are_made_and_taken_while_processes_are_killed
    items_are_made_and_taken_while_processes_stand_still
    items_are_made_and_taken_over_a_bad_network
}

fn no_waiter_is_forgotten_and_none_is_told_twice(kind: Kind) {
    let server = server();
    let clients: Vec<_> = (0..2).map(|_| client(&server)).collect();
    let (turns, back) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let end = Arc::new(AtomicBool::new(false));
    let waiters: Vec<_> = (0..6)
        .map(|at| {
            let Monitor { lock, condition, .. } = kind.make(&clients[at % 2], "m");
            let (back, end) = (Arc::clone(&back), Arc::clone(&end));
            spawn(move || {
                let guard = lock.lock().unwrap();
                while !end.load(Ordering::SeqCst) {
                    condition.wait(&guard).unwrap();
                    back.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    wait_waiting(&server, "m", 6);
    let notifier = kind.make(&client(&server), "m");
    for _ in 0..300 {
        let guard = notifier.lock.lock().unwrap();
        if notifier.condition.notify_one().unwrap() {
            turns.fetch_add(1, Ordering::SeqCst);
        }
        guard.unlock().unwrap();
    }
    wait_until("all notified waiters are back", TIMEOUT, || {
        back.load(Ordering::SeqCst) == turns.load(Ordering::SeqCst)
    });
    let guard = notifier.lock.lock().unwrap();
    end.store(true, Ordering::SeqCst);
    assert_eq!(notifier.condition.notify_all().unwrap(), 6);
    guard.unlock().unwrap();
    waiters.into_iter().for_each(Running::join);
    assert_eq!(back.load(Ordering::SeqCst), turns.load(Ordering::SeqCst) + 6);
    leaves_nothing(&server, "m");
}

/// The number of items for which the buffer has room.
const ROOM: usize = 3;

/// A bounded buffer in Redis. Each operation is one command, so a thread that dies has done either
/// the whole operation or nothing.
struct Buffer {
    lock: Arc<dyn Lock>,
    not_empty: Condition,
    not_full: Condition,
    redis: redis::Connection,
}

impl Buffer {
    fn new(client: &Client, kind: &str, redis: redis::Connection) -> Self {
        macro_rules! of {
            ($lock:expr) => {{
                let lock = $lock;
                let [not_empty, not_full] =
                    ["not_empty", "not_full"].map(|name| lock.condition(name));
                Self { lock: Arc::new(lock), not_empty, not_full, redis }
            }};
        }
        match kind {
            "fair" => of!(client.fair_lock("buffer")),
            "fenced" => of!(client.fenced_lock("buffer")),
            "writer" => of!(client.read_write_lock("buffer").writer().clone()),
            _ => of!(client.reentrant_lock("buffer")),
        }
    }

    fn put(&mut self, goal: usize) -> Result<bool, Error> {
        let Self { lock, not_empty, not_full, redis } = self;
        let guard = lock.lock()?;
        not_full.wait_while(&guard, || length(redis) >= ROOM)?;
        if redis.get::<_, Option<usize>>("made").unwrap().unwrap_or(0) >= goal {
            // All items are made, so this maker ends, and wakes the next maker that waits for room.
            not_full.notify_one()?;
            guard.unlock()?;
            return Ok(false);
        }
        not_empty.notify_one()?;
        let () = redis::pipe().atomic().rpush("items", 1).incr("made", 1).query(redis).unwrap();
        guard.unlock()?;
        Ok(true)
    }

    fn take(&mut self) -> Result<(), Error> {
        let Self { lock, not_empty, not_full, redis } = self;
        let guard = lock.lock()?;
        not_empty.wait_while(&guard, || length(redis) == 0)?;
        not_full.notify_one()?;
        let _: Option<u64> = redis.rpoplpush("items", "taken").unwrap();
        guard.unlock()
    }

    /// Notifies all waiters. A thread that failed may have changed the buffer without a
    /// notification.
    fn make_up(&self) -> Result<(), Error> {
        let guard = self.lock.lock()?;
        self.not_empty.notify_all()?;
        self.not_full.notify_all()?;
        guard.unlock()
    }
}

fn length(redis: &mut redis::Connection) -> usize {
    redis.llen("items").unwrap()
}

pub(super) fn buffer_worker(job: &Job) {
    let [url, data, kind, what] = [0, 1, 2, 3].map(|at| job.arg(at).to_owned());
    let goal: usize = job.arg(4).parse().unwrap();
    let lease = TIME_UNIT * 10;
    let connect = || {
        let builder = Client::builder(&url).watchdog_timeout(lease);
        builder.response_timeout(SHORT_TIMEOUT).connect_timeout(SHORT_TIMEOUT).connect()
    };
    // On a busy machine, or over a bad network, the server may not answer in time.
    let client = &loop {
        match connect() {
            Err(error) if error.is_transient() => {}
            connected => break connected.unwrap(),
        }
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            let redis = redis::Client::open(data.as_str()).unwrap().get_connection().unwrap();
            let mut buffer = Buffer::new(client, &kind, redis);
            let makes = what == "make";
            scope.spawn(move || {
                loop {
                    let done = if makes { buffer.put(goal) } else { buffer.take().map(|()| true) };
                    match done {
                        Ok(true) => {}
                        Ok(false) => return,
                        Err(_) => while buffer.make_up().is_err() {},
                    }
                }
            });
        }
        job.say("starts");
    });
    let _ = job.wait_line();
}

/// Runs makers and takers until `goal` items are made and taken. Calls `trouble` in the meantime.
fn play(kind: Kind, goal: usize, mut trouble: impl FnMut(&Server, &mut Cast<'_>, &mut Random)) {
    let server = server();
    let proxy = Proxy::before(&server);
    let mut random = Random::new();
    let mut cast = Cast { server: &server, proxy, kind, goal, workers: Vec::new() };
    for what in ["make", "take", "make", "take"] {
        let worker = cast.enter(what);
        cast.workers.push((what, worker));
    }
    let mut redis = server.connection();
    let begun = Instant::now();
    let (mut last, mut since) = (0, Instant::now());
    loop {
        let taken: usize = redis.llen("taken").unwrap();
        if taken >= goal {
            break;
        }
        if taken != last {
            (last, since) = (taken, Instant::now());
        }
        if since.elapsed() > TIMEOUT / 2 {
            let keys: Vec<String> = redis.keys("*").unwrap();
            let dump: Vec<_> = keys
                .iter()
                .filter(|key| *key != "taken")
                .map(|key| {
                    let kind: String = redis::cmd("TYPE").arg(key).query(&mut redis).unwrap();
                    let read: redis::Value = match kind.as_str() {
                        "list" => redis.lrange(key, 0, -1).unwrap(),
                        "hash" => redis.hgetall(key).unwrap(),
                        "string" => redis.get(key).unwrap(),
                        _ => redis::Value::Nil,
                    };
                    format!("{key} {read:?}")
                })
                .collect();
            panic!("nobody moves with {taken} of {goal} taken: {dump:#?}");
        }
        if begun.elapsed() < TIME_UNIT * 60 {
            trouble(&server, &mut cast, &mut random);
        }
        thread::sleep(TIME_UNIT / 10);
    }
    // Read all numbers at one moment, because takers continue.
    let (made, taken, left): (usize, usize, usize) =
        redis::pipe().atomic().get("made").llen("taken").llen("items").query(&mut redis).unwrap();
    assert!(made <= goal + cast.workers.len() && made == taken + left, "{made} {taken} {left}");
}

struct Cast<'a> {
    server: &'a Server,
    proxy: Proxy,
    kind: Kind,
    goal: usize,
    workers: Vec<(&'static str, Worker)>,
}

impl Cast<'_> {
    fn enter(&self, what: &str) -> Worker {
        let goal = self.goal.to_string();
        let args = [&self.proxy.url(), &self.server.url(), self.kind.name, what, &goal];
        let mut worker = Worker::spawn_test("condition::deaths::worker", "buffer", &args);
        worker.expect_line("starts", TIMEOUT);
        worker
    }
}

fn items_are_made_and_taken_by_many_processes(kind: Kind) {
    let goal = if std::env::var_os("REDLATCH_LONG").is_some() { 1_500 } else { 500 };
    play(kind, goal, |_, _, _| {});
}

fn items_are_made_and_taken_while_processes_are_killed(kind: Kind) {
    play(kind, 300, |_, cast, random| {
        if random.below(20) == 0 {
            let at = usize::try_from(random.below(4)).unwrap();
            let what = cast.workers[at].0;
            cast.workers[at].1.sigkill();
            cast.workers[at].1 = cast.enter(what);
        }
    });
}

fn items_are_made_and_taken_while_processes_stand_still(kind: Kind) {
    let mut stopped = None;
    play(kind, 300, |_, cast, random| {
        if random.below(30) != 0 {
            return;
        }
        if let Some(at) = stopped.take() {
            let (_, worker): &(_, Worker) = &cast.workers[at];
            worker.sigcont();
        } else {
            let at = usize::try_from(random.below(4)).unwrap();
            cast.workers[at].1.sigstop();
            stopped = Some(at);
        }
    });
}

fn items_are_made_and_taken_over_a_bad_network(kind: Kind) {
    play(kind, 300, |_, cast, random| {
        let proxy = &cast.proxy;
        match random.below(40) {
            0 => drop(proxy.cut_all()),
            1 => drop(proxy.cut_matching("SUBSCRIBE")),
            2 => proxy.on_reply("notify ", Action::LoseReply),
            3 => proxy.on_request("redlatch_condition", Action::LoseReply),
            4 => proxy.on_request("redlatch_condition", Action::LoseRequest),
            5 => proxy.on(Direction::Reply, 1, Action::DelayReply(TIME_UNIT), |_| true),
            6 => proxy.clear_rules(),
            _ => {}
        }
    });
}
