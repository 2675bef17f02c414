//! The fair lock: threads of both libraries wait in one queue, and some of them leave it, in every
//! possible way.

use redis::Commands as _;

use super::*;

/// The maximum time for which a redlatch waiter may be silent. A dead Redisson waiter behind it
/// blocks the queue for this time. No live waiter is silent for longer, even on a machine that
/// stands still for a second and a half.
const FAIR_WAIT: Duration = Duration::from_millis(25 * TIME_UNIT.as_millis() as u64);
/// The time limit of Redisson waits that end by themselves, or whose process the test kills.
const LIMIT: Duration = Duration::from_millis(20 * TIME_UNIT.as_millis() as u64);
/// The waiters in the tests that kill or pause another waiter. The killed or paused waiter is
/// placed at each position among these waiters.
const OTHERS: [Whose; 4] = [Whose::Theirs, Whose::Ours, Whose::Theirs, Whose::Ours];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Ours,
    Theirs,
}

/// A waiter in a queue. A waiter that gets the lock keeps it until the test makes the waiter
/// release it.
enum Waiter {
    Ours {
        is_in: mpsc::Receiver<bool>,
        leave: Sender<()>,
        cancel: CancelToken,
    },
    Theirs {
        thread: String,
    },
    /// A waiter in another process, which the test kills or pauses.
    Victim,
}

/// A fair lock and its queue, with the waiters in the order of their arrival.
struct Line {
    name: String,
    redis: redis::Connection,
    url: String,
    java: Redisson,
    waiters: Vec<Waiter>,
    here: Vec<Running<()>>,
}

impl Line {
    /// Returns a queue whose first waiter holds the lock. `holder` is the library of this waiter.
    fn new(version: Version, server: &Server, name: &str, holder: Whose) -> Self {
        let java = Redisson::at(&Jvm::shared(version), &server.url(), SHORT_LEASE);
        let (name, url) = (name.to_owned(), server.url());
        let (waiters, here) = (Vec::new(), Vec::new());
        let mut line = Self { name, redis: server.connection(), url, java, waiters, here };
        line.add(holder);
        line.comes_in(0);
        line
    }

    fn named(&self) -> String {
        Kind::Fair.named(&self.name)
    }

    fn add(&mut self, whose: Whose) {
        match whose {
            Whose::Ours => self.add_ours(),
            Whose::Theirs => self.add_theirs("lock", ""),
        }
    }

    /// Adds a redlatch waiter with its own client. The server sees it as another process.
    fn add_ours(&mut self) {
        let client = Client::builder(&self.url)
            .watchdog_timeout(SHORT_LEASE)
            .fair_wait_timeout(FAIR_WAIT)
            .connect()
            .unwrap();
        let lock = client.fair_lock(&self.name);
        let ((sender, is_in), (leave, leaves)) = (mpsc::channel(), mpsc::channel());
        let cancel = CancelToken::new();
        let token = cancel.clone();
        self.here.push(spawn(move || {
            let guard = lock.lock_cancellable(&token);
            sender.send(guard.is_ok()).unwrap();
            let Ok(guard) = guard else { return };
            leaves.recv().unwrap();
            guard.unlock().unwrap();
        }));
        self.added(Waiter::Ours { is_in, leave, cancel });
    }

    fn add_theirs(&mut self, verb: &str, limit: &str) {
        let thread = format!("t{}", self.waiters.len());
        let named = self.named();
        self.java.tell(&thread, &format!("{verb} {named} {limit}"));
        self.added(Waiter::Theirs { thread });
    }

    /// Waits until the waiter is in the queue, behind the other waiters.
    fn added(&mut self, waiter: Waiter) {
        let (queue, before) =
            (format!("redisson_lock_queue:{{{}}}", self.name), self.waiters.len());
        self.waiters.push(waiter);
        let redis = &mut self.redis;
        // The first waiter holds the lock, so it is not in the queue.
        wait_until("it stands in line", TIMEOUT, || {
            redis.llen::<_, usize>(&queue).unwrap() == before
        });
    }

    #[track_caller]
    fn comes_in(&mut self, place: usize) {
        match &self.waiters[place] {
            Waiter::Ours { is_in, .. } => {
                let said = is_in.recv_timeout(TIMEOUT);
                assert_eq!(said, Ok(true), "ours at {place} does not come in: {}", self.seen());
            }
            Waiter::Theirs { thread } => {
                let said = self.java.reply_within(&thread.clone(), TIMEOUT * 2).unwrap_or_default();
                let is_in = ["ok", "true"].contains(&&*said);
                assert!(is_in, "theirs at {place} says {said:?}: {}", self.seen());
            }
            Waiter::Victim => {}
        }
    }

    /// Returns the lock's state on the server: its holder, its queue with the scores, and the
    /// listeners.
    fn seen(&mut self) -> String {
        const SEEN: &str = r"
            local name = ARGV[1]
            local of = function(key) return key .. ':{' .. name .. '}' end
            return cjson.encode({
                time = redis.call('time'),
                holder = redis.call('hgetall', name), lease = redis.call('pttl', name),
                queue = redis.call('lrange', of('redisson_lock_queue'), 0, -1),
                scores = redis.call('zrange', of('redisson_lock_timeout'), 0, -1, 'withscores'),
                channels = redis.call('pubsub', 'channels')
            })";
        let seen = redis::cmd("EVAL").arg(SEEN).arg(0).arg(&self.name).query(&mut self.redis);
        format!("{:?} is {}", self.name, seen.unwrap_or_else(|error| error.to_string()))
    }

    fn leaves(&mut self, place: usize) {
        match &self.waiters[place] {
            Waiter::Ours { leave, .. } => leave.send(()).unwrap(),
            Waiter::Theirs { thread } => {
                let (thread, named) = (thread.clone(), self.named());
                self.java.run(&thread, &format!("unlock {named}"));
            }
            Waiter::Victim => {}
        }
    }

    /// Asserts that these waiters get the lock one after the other in this order. Each waiter keeps
    /// the lock until the test waits for the next waiter, so the order is certain.
    fn come_in_order(&mut self, places: impl IntoIterator<Item = usize>) {
        for place in places {
            self.comes_in(place);
            self.leaves(place);
        }
    }

    fn gives_up(&mut self, place: usize) {
        match &self.waiters[place] {
            Waiter::Ours { is_in, cancel, .. } => {
                cancel.cancel();
                assert_eq!(is_in.recv_timeout(TIMEOUT), Ok(false));
            }
            // The waiter gives up when its own time limit ends.
            Waiter::Theirs { thread } => {
                assert_eq!(self.java.reply(&thread.clone()), "false");
            }
            Waiter::Victim => {}
        }
    }

    /// Asserts that no key and no thread remains.
    fn ends(mut self) {
        self.here.drain(..).for_each(Running::join);
        for key in ["redisson_lock_queue", "redisson_lock_timeout"] {
            let key = format!("{key}:{{{}}}", self.name);
            assert!(!self.redis.exists::<_, bool>(&key).unwrap(), "{key}");
        }
    }
}

#[test]
fn waiters_come_in_in_the_order_of_arrival_whoever_gives_up() {
    beside_redisson(|version| {
        let server = server();
        let both = [Whose::Ours, Whose::Theirs];
        thread::scope(|scope| {
            for holder in both {
                for leaver in 0..=OTHERS.len() {
                    let server = &server;
                    scope.spawn(move || {
                        let name = format!("{holder:?} {leaver}");
                        let mut line = Line::new(version, server, &name, holder);
                        for (place, whose) in OTHERS.into_iter().enumerate() {
                            match whose {
                                // On a busy machine, the waiters behind this one may take seconds
                                // to arrive, and all must be there before this one gives up.
                                Whose::Theirs if place == leaver => {
                                    let limit = (LIMIT * 4).as_millis();
                                    line.add_theirs("tryLock", &limit.to_string());
                                }
                                whose => line.add(whose),
                            }
                        }
                        // In the queue without a leaver, no waiter gives up.
                        if leaver < OTHERS.len() {
                            line.gives_up(leaver + 1);
                        }
                        line.leaves(0);
                        line.come_in_order((1..=OTHERS.len()).filter(|place| *place != leaver + 1));
                        line.ends();
                    });
                }
            }
        });
    });
}

/// Returns one queue for each position of a victim among the other waiters.
fn lines(version: Version, server: &Server, mut victim: impl FnMut(&str)) -> Vec<Line> {
    let at = |place: usize| {
        let name = format!("line{place}");
        let holder = if place.is_multiple_of(2) { Whose::Ours } else { Whose::Theirs };
        let mut line = Line::new(version, server, &name, holder);
        for before in 0..=OTHERS.len() {
            if before == place {
                victim(&name);
                line.added(Waiter::Victim);
            }
            if let Some(whose) = OTHERS.get(before) {
                line.add(*whose);
            }
        }
        line
    };
    (0..=OTHERS.len()).map(at).collect()
}

/// Makes the holders release, and asserts that all waiters except the victims get the lock in the
/// order of their arrival.
fn others_come_in(lines: &mut [Line]) {
    thread::scope(|scope| {
        for line in lines {
            scope.spawn(|| {
                line.leaves(0);
                line.come_in_order(1..line.waiters.len());
            });
        }
    });
}

#[test]
fn a_killed_process_of_ours_is_passed_at_every_place() {
    if !is_long() {
        return;
    }
    beside_redisson(|version| {
        let server = server();
        let mut ours = Worker::spawn_test("worker", "waiter", &[&server.url()]);
        let mut lines = lines(version, &server, |name| ours.send_line(&format!("lock {name}")));
        ours.sigkill();
        others_come_in(&mut lines);
        lines.into_iter().for_each(Line::ends);
    });
}

/// A killed waiter blocks the queue until its own time has passed.
#[test]
fn a_killed_process_of_redissons_is_passed_at_every_place_when_its_time_is_over() {
    if !is_long() {
        return;
    }
    beside_redisson(|version| {
        let server = server();
        let jvm = Jvm::start(version);
        let mut theirs = Redisson::on(&jvm, &server);
        let limit = (LIMIT * 2).as_millis();
        let mut lines = lines(version, &server, |name| {
            theirs.tell(name, &format!("tryLock {} {limit}", Kind::Fair.named(name)));
        });
        jvm.kill();
        others_come_in(&mut lines);
    });
}

#[test]
fn a_stopped_process_of_ours_is_passed_at_every_place_and_comes_back() {
    if !is_long() {
        return;
    }
    beside_redisson(|version| {
        let server = server();
        let mut ours = Worker::spawn_test("worker", "waiter", &[&server.url()]);
        let mut lines = lines(version, &server, |name| ours.send_line(&format!("lock {name}")));
        ours.sigstop();
        others_come_in(&mut lines);
        ours.sigcont();
        for _ in &lines {
            let name = ours.expect_line("in ", TIMEOUT);
            ours.send_line(&format!("unlock {name}"));
        }
        for line in &mut lines {
            let redis = &mut line.redis;
            wait_until("it is free", TIMEOUT, || !redis.exists::<_, bool>(&line.name).unwrap());
        }
        lines.into_iter().for_each(Line::ends);
    });
}

/// The server cannot tell a paused waiter from a waiter that may still take the lock.
#[test]
fn a_stopped_process_of_redissons_keeps_its_place_until_it_goes_on() {
    if !is_long() {
        return;
    }
    beside_redisson(|version| {
        let server = server();
        let jvm = Jvm::start(version);
        let mut theirs = Redisson::on(&jvm, &server);
        let mut lines = lines(version, &server, |name| {
            theirs.tell(name, &format!("lock {}", Kind::Fair.named(name)));
        });
        jvm.stop();
        let mut redis = server.connection();
        for (place, line) in lines.iter_mut().enumerate() {
            line.leaves(0);
            line.come_in_order(1..=place);
        }
        thread::sleep(TIME_UNIT * 3);
        for line in &lines {
            assert!(!redis.exists::<_, bool>(&line.name).unwrap(), "{:?} is taken", line.name);
        }
        jvm.go_on();
        for (place, line) in lines.iter_mut().enumerate() {
            assert_eq!(theirs.reply(&line.name), "ok");
            theirs.run(&line.name.clone(), &format!("unlock {}", line.named()));
            line.come_in_order(place + 2..line.waiters.len());
        }
        lines.into_iter().for_each(Line::ends);
    });
}

/// The entry point of a process that starts a thread for each lock that the test names.
pub(crate) fn waiter_process(job: &Job) {
    let client = Client::builder(job.arg(0))
        .watchdog_timeout(SHORT_LEASE)
        .fair_wait_timeout(FAIR_WAIT)
        .connect()
        .unwrap();
    let mut leave = std::collections::HashMap::new();
    thread::scope(|scope| {
        loop {
            let line = job.wait_line();
            let (verb, name) = line.split_once(' ').unwrap();
            if verb == "unlock" {
                let leave: Sender<()> = leave.remove(name).unwrap();
                leave.send(()).unwrap();
                continue;
            }
            let (sender, leaves) = mpsc::channel();
            leave.insert(name.to_owned(), sender);
            let (name, lock) = (name.to_owned(), client.fair_lock(name));
            scope.spawn(move || {
                let guard = lock.lock().unwrap();
                job.say(&format!("in {name}"));
                leaves.recv().unwrap();
                guard.unlock().unwrap();
            });
        }
    });
}
