//! Models of the client's shared connections (lanes), which try many orders of their threads'
//! steps. Threads send commands and wait for the replies, send commands without a wait (post), call
//! `service` (look), and write for other threads (combine). Connections break.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::Value;
use redlatch_client::sync::{Mutex, explore};
use redlatch_client::{
    CachedScript, CancelToken, Command, Endpoint, Failure, Lane, LaneCheck, Limit, Outcome, Posted,
    ReplyReceiver, Settings, was_cut,
};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use crate::{Keys, Peers, Redis, Server};

const MINUTE: Duration = Duration::from_secs(60);
const THREADS: usize = 3;
const ROUNDS: usize = 3;
const LOOKS: usize = 4;

/// A script that returns its argument. At first the server does not know the script.
const RETURN_ARGUMENT: &str = "return ARGV[1]";

/// A server without keys, whose only script returns its argument. The server keeps the arguments.
#[derive(Debug, Default)]
struct NoKeys {
    ran: Vec<Vec<u8>>,
}

impl Keys for NoKeys {
    fn command(&mut self, _: &mut Peers, _: i64, command: &[&[u8]]) -> Value {
        unreachable!("{command:?}")
    }

    fn script(&mut self, _: &mut Peers, _: i64, _: &str, _: usize, all: &[&[u8]]) -> Value {
        self.ran.push(all[0].to_vec());
        Value::BulkString(all[0].to_vec())
    }
}

/// The receiver of a post, which keeps the outcomes.
#[derive(Default)]
struct Heard {
    outcomes: Mutex<Vec<Outcome>>,
}

impl ReplyReceiver for Heard {
    fn receive(&self, outcome: Outcome) {
        self.outcomes.lock().push(outcome);
    }
}

struct Play {
    lane: Arc<Lane>,
    server: Arc<Server<NoKeys>>,
    /// The number of posts that have requested a call of `service` by the background thread.
    asked: AtomicUsize,
    /// The arguments of the [`taken`] commands whose threads left without a reply.
    left: Mutex<Vec<Vec<u8>>>,
}

impl Play {
    fn new(breaks: usize) -> Arc<Self> {
        let chance = |most| thread_rng().gen_range(0..=most);
        let server = Server::start(Redis::new(NoKeys::default(), Vec::new()), 0, breaks, chance);
        server.has_little_room();
        let settings = Settings {
            connect_timeout: MINUTE,
            response_timeout: MINUTE,
            dialer: Some(server.dialer()),
            ..Settings::default()
        };
        let endpoint = Endpoint::of("redis://localhost", &settings).unwrap();
        let lane = Lane::new(Arc::new(endpoint));
        // Open the lane first. In the client, a post gives back what an earlier command took, so no
        // thread posts on a lane that was never open.
        let _ = lane.connect();
        Arc::new(Self {
            lane: Arc::new(lane),
            server,
            asked: AtomicUsize::new(0),
            left: Mutex::default(),
        })
    }

    fn post(&self, what: &str) -> Arc<Heard> {
        let heard = Arc::new(Heard::default());
        let receiver = Arc::clone(&heard) as Arc<dyn ReplyReceiver>;
        let command = echo(what).reply_before_next(thread_rng().gen_range(0..2) == 0);
        if self.lane.post(command, receiver) == Posted::NeedsService {
            self.asked.fetch_add(1, Ordering::SeqCst);
        }
        heard
    }

    /// A thread that only posts.
    fn poster(&self, me: usize) -> Vec<Arc<Heard>> {
        (0..ROUNDS).map(|round| self.post(&format!("post {me} {round}"))).collect()
    }

    /// A thread that posts, and also calls `service` without a request.
    fn looker(&self, me: usize) -> Vec<Arc<Heard>> {
        let look = |post| {
            let _left = self.lane.service(MINUTE, MINUTE);
            post
        };
        self.poster(me).into_iter().map(look).collect()
    }

    /// A thread that posts and calls.
    fn user(&self, me: usize) -> Vec<Arc<Heard>> {
        let mut posts = Vec::new();
        for round in 0..ROUNDS {
            if (me + round).is_multiple_of(2) {
                posts.push(self.post(&format!("post {me} {round}")));
            }
            let what = format!("call {me} {round}");
            let script = round == ROUNDS - 1;
            match self.lane.call_once(&if script { returned(&what) } else { echo(&what) }) {
                Ok(reply) => assert_eq!(reply, Value::BulkString(what.into_bytes())),
                // The connection broke, or could not be opened.
                Err(Failure::Reset(_) | Failure::Unsent(_)) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
        posts
    }

    /// A caller whose token is cancelled at any time. Caller 0 has no token.
    fn leaver(&self, me: usize) -> Vec<Arc<Heard>> {
        if me == 0 {
            return self.user(me);
        }
        let token = CancelToken::new();
        let cancels = {
            let token = token.clone();
            thread::spawn(move || token.cancel())
        };
        let mut posts = Vec::new();
        {
            let _limited = Limit::set(Limit::new(None, Some(&token)));
            for round in 0..ROUNDS - 1 {
                let what = format!("call {me} {round}");
                let command = if round == 0 { taken(&what) } else { echo(&what) };
                match self.lane.call_once(&command) {
                    Ok(reply) => assert_eq!(reply, Value::BulkString(what.into_bytes())),
                    Err(Failure::Reset(_) | Failure::Unsent(_)) => {}
                    Err(Failure::TimedOut(_)) => {
                        assert!(was_cut() && token.is_cancelled());
                        if round == 0 {
                            self.left.lock().push(what.into_bytes());
                        }
                    }
                    Err(other) => panic!("{other:?}"),
                }
                // When a waiter leaves, it posts a command that removes its queue entry.
                posts.push(self.post(&format!("post {me} {round}")));
            }
        }
        cancels.join().unwrap();
        posts
    }

    /// The background thread, which calls `service` if a post has requested it.
    fn background(&self) {
        for _ in 0..LOOKS {
            if self.asked.swap(0, Ordering::SeqCst) > 0 {
                let patience = [Duration::ZERO, MINUTE][thread_rng().gen_range(0..2)];
                let again = match self.lane.check(patience) {
                    // If another thread combines or there is more to do, request another call of
                    // `service`.
                    LaneCheck::Service => {
                        !self.lane.service(MINUTE, MINUTE)
                            && self.lane.request_service() == Posted::NeedsService
                    }
                    LaneCheck::Again => true,
                    LaneCheck::Done => false,
                };
                self.asked.fetch_add(again.into(), Ordering::SeqCst);
            }
            thread::yield_now();
        }
    }
}

fn echo(what: &str) -> Command {
    Command::plain(&[b"ECHO", what.as_bytes()])
}

/// Like [`echo`], but with a script. The call is sent again if the server does not know the script.
fn returned(what: &str) -> Command {
    static SCRIPT: LazyLock<CachedScript> = LazyLock::new(|| CachedScript::new(RETURN_ARGUMENT));
    Command::script(&SCRIPT, &[], &[what.as_bytes()])
}

/// Like [`returned`], for a command that need not run if its thread has left.
fn taken(what: &str) -> Command {
    static SCRIPT: LazyLock<CachedScript> =
        LazyLock::new(|| CachedScript::new(RETURN_ARGUMENT).takes());
    Command::script(&SCRIPT, &[], &[what.as_bytes()])
}

/// The number of commands that never ran, because the calling thread stopped waiting before its
/// command was written.
static TAKEN_BACK: AtomicUsize = AtomicUsize::new(0);

/// Runs threads that may leave their replies unread. The next caller reads these replies before its
/// own.
fn play_leaving(breaks: usize) {
    let (play, posts) = play_with(breaks, Play::leaver, true);
    if breaks == 0 {
        assert!(posts.iter().all(|post| post.outcomes.lock()[0].is_ok()), "each post runs");
        let echoed = play.server.echoed();
        let at: HashMap<_, _> = echoed.iter().zip(0..).collect();
        assert_eq!(at.len(), echoed.len(), "none runs twice");
        for me in 1..THREADS {
            let order = |round| at[&format!("post {me} {round}").into_bytes()];
            assert!((1..ROUNDS - 1).all(|round| order(round - 1) < order(round)), "in order");
        }
        let ran = play.server.with(|keys, _, _| keys.ran.clone());
        let left = play.left.lock();
        let back = left.iter().filter(|what| !ran.contains(what)).count();
        TAKEN_BACK.fetch_add(back, Ordering::Relaxed);
    }
    let what = "the next one";
    match play.lane.call_once(&echo(what)) {
        Ok(reply) => assert_eq!(reply, Value::BulkString(what.as_bytes().to_vec())),
        Err(Failure::Reset(_) | Failure::Unsent(_)) => assert!(breaks > 0),
        Err(other) => panic!("{other:?}"),
    }
}

fn play(breaks: usize, user: fn(&Play, usize) -> Vec<Arc<Heard>>) -> (Arc<Play>, Vec<Arc<Heard>>) {
    play_with(breaks, user, false)
}

fn play_with(
    breaks: usize,
    user: fn(&Play, usize) -> Vec<Arc<Heard>>,
    leaves: bool,
) -> (Arc<Play>, Vec<Arc<Heard>>) {
    let play = Play::new(breaks);
    let background = {
        let play = Arc::clone(&play);
        thread::spawn(move || play.background())
    };
    let users: Vec<_> = (0..THREADS)
        .map(|me| {
            let play = Arc::clone(&play);
            thread::spawn(move || user(&play, me))
        })
        .collect();
    let posts: Vec<_> = users.into_iter().flat_map(|user| user.join().unwrap()).collect();
    background.join().unwrap();

    while leaves && play.lane.remaining_work().combines {
        // A new thread opens a connection in place of a thread that has left.
        thread::yield_now();
    }
    let rest = play.lane.remaining_work();
    assert!(!rest.combines, "nobody combines, and nobody ever can");
    assert!(rest.queued == 0 || !rest.has_room, "a combiner resigned with commands unwritten");
    let asked = play.asked.load(Ordering::SeqCst) > 0;
    // If threads may leave, some replies may be left for the next caller.
    let is_read = rest.owed == 0 || leaves;
    assert!(asked || (is_read && rest.queued == 0), "replies that nobody will read");
    // Each call of `service` handles at most one packet.
    let looks = (1..1_000).find(|_| play.lane.service(MINUTE, MINUTE));
    assert!(looks.is_some(), "nothing is left in the end");
    for post in &posts {
        assert_eq!(post.outcomes.lock().len(), 1, "each post's outcome is told once");
    }
    (play, posts)
}

#[test]
fn each_caller_gets_its_own_reply_and_all_run_in_the_order_sent() {
    explore(600, || {
        let (play, posts) = play(0, Play::user);
        assert!(posts.iter().all(|post| post.outcomes.lock()[0].is_ok()));
        let echoed = play.server.echoed();
        // The last call of each thread is a script, so the server does not record it as an ECHO.
        assert_eq!(echoed.len(), posts.len() + THREADS * (ROUNDS - 1));
        // A thread's post runs before its next call, as a release must run before the next acquire.
        let at: HashMap<_, _> = echoed.into_iter().zip(0..).collect();
        let position = |what: String| at[what.as_bytes()];
        for me in 0..THREADS {
            for round in (0..ROUNDS).filter(|round| (me + round).is_multiple_of(2)) {
                let post = position(format!("post {me} {round}"));
                assert!(round == ROUNDS - 1 || post < position(format!("call {me} {round}")));
                assert!(round == 0 || position(format!("call {me} {}", round - 1)) < post);
            }
        }
    });
}

#[test]
fn a_broken_connection_strands_no_thread() {
    explore(1_000, || drop(play(3, Play::user)));
}

#[test]
fn the_reply_that_no_thread_waits_for_is_read() {
    explore(1_000, || {
        for user in [Play::poster, Play::looker] {
            let (play, _) = play(0, user);
            assert_eq!(play.server.echoed().len(), THREADS * ROUNDS);
        }
    });
}

#[test]
fn a_thread_that_leaves_strands_no_other_and_shifts_no_reply() {
    for breaks in [0, 3] {
        explore(1_500, move || play_leaving(breaks));
    }
    assert!(TAKEN_BACK.load(Ordering::Relaxed) > 0, "no take was ever taken back");
}
