//! Credentials that change while the client lives.

use std::collections::HashSet;
use std::sync::atomic::AtomicUsize;

use redlatch::{ClientBuilder, Credentials};

use super::*;

const HOLDS: usize = 20;

/// What the user's code would be told now.
#[derive(Clone)]
struct Vault {
    password: Arc<Mutex<String>>,
    valid_for: Option<Duration>,
    asked: Arc<AtomicUsize>,
}

impl Vault {
    fn new(password: &str, valid_for: Option<Duration>) -> Self {
        let password = Arc::new(Mutex::new(password.to_owned()));
        Self { password, valid_for, asked: Arc::default() }
    }

    /// A user of the server's, who has this password from now on beside those before.
    fn add(&self, server: &Server, password: &str) {
        let args = ["SETUSER", "tokens", "on", &format!(">{password}"), "~*", "&*", "+@all"];
        redis::cmd("ACL").arg(&args).exec(&mut server.connection()).unwrap();
        *self.password.lock().unwrap() = password.to_owned();
    }

    fn remove(server: &Server, password: &str) {
        let args = ["SETUSER", "tokens", &format!("<{password}")];
        redis::cmd("ACL").arg(&args).exec(&mut server.connection()).unwrap();
    }

    fn builder(&self, server: &Server) -> ClientBuilder {
        let vault = self.clone();
        impatient(&format!("redis://127.0.0.1:{}", server.port())).credentials_with(move || {
            vault.asked.fetch_add(1, Ordering::SeqCst);
            let credentials = Credentials::new("tokens", &vault.password.lock().unwrap());
            let valid_for = vault.valid_for;
            Ok(valid_for.into_iter().fold(credentials, Credentials::valid_for))
        })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// The numbers of the user's connections; those for messages are left out.
fn commands_of(server: &Server) -> HashSet<String> {
    let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut server.connection()).unwrap();
    let own = list.lines().filter(|line| line.contains("user=tokens") && line.contains(" sub=0 "));
    own.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

fn kill(server: &Server) {
    redis::cmd("CLIENT").arg(&["KILL", "USER", "tokens"]).exec(&mut server.connection()).unwrap();
}

fn hold(client: &Client) -> Vec<LockGuard> {
    (0..HOLDS).map(|at| client.reentrant_lock(&format!("hold {at}")).lock().unwrap()).collect()
}

/// Waits until each lease has been made longer.
fn wait_all_renewed(server: &Server) {
    let mut redis = server.connection();
    let mut left = |at| pttl(&mut redis, &format!("hold {at}"));
    let mut waited_for: Vec<(usize, i64)> = (0..HOLDS).map(|at| (at, left(at))).collect();
    wait_until("all are renewed", SOON, || {
        waited_for.retain_mut(|(at, last)| {
            let now = left(*at);
            assert!(now > 0, "hold {at} is gone");
            now <= std::mem::replace(last, now)
        });
        waited_for.is_empty()
    });
}

/// Each connection is opened with the password of then.
#[test]
fn holds_outlast_a_new_password_and_the_end_of_all_connections() {
    let _bounded = bounded();
    let server = server();
    let vault = Vault::new("", None);
    vault.add(&server, "first");
    let client = vault.builder(&server).watchdog_timeout(RENEWED).connect().unwrap();
    let guards = hold(&client);
    for (old, new) in [("first", "second"), ("second", "third")] {
        vault.add(&server, new);
        Vault::remove(&server, old);
        let before = vault.asked();
        kill(&server);
        wait_all_renewed(&server);
        assert!(vault.asked() > before);
        client.reentrant_lock("more").lock().unwrap().unlock().unwrap();
    }
    for guard in guards {
        guard.unlock().unwrap();
    }
}

/// The server may end what was opened with credentials that have expired.
#[test]
fn open_connections_are_given_new_credentials_before_the_old_ones_expire() {
    let _bounded = bounded();
    let server = server();
    let vault = Vault::new("", Some(UNIT * 20));
    vault.add(&server, "first");
    let builder = vault.builder(&server).watchdog_timeout(LONG).connections(2);
    let client = builder.connect().unwrap();
    let guards = hold(&client);
    let waits = client.reentrant_lock("hold 0");
    let waiter = spawn(move || waits.lock().unwrap().unlock().unwrap());
    waiter.wait_queued();
    let auths = || Commands::so_far(&server).of("auth");
    let (lanes, before) = (commands_of(&server), auths());
    vault.add(&server, "second");
    // Two lanes, the connection for messages, and the renewer's when it is used next.
    wait_until("they have been told", SOON, || auths() >= before + 3);
    assert!(commands_of(&server).intersection(&lanes).count() >= 2, "the lanes are the same");
    // What is not told is not known: nobody is asked for more than that.
    Vault::remove(&server, "first");
    for guard in guards {
        guard.unlock().unwrap();
    }
    waiter.join();
}

/// In the middle of what others send, whose replies stay theirs.
#[test]
fn replies_are_in_order_while_connections_are_given_new_credentials() {
    let _bounded = bounded();
    let server = server();
    let vault = Vault::new("", Some(UNIT));
    vault.add(&server, "0");
    let client = vault.builder(&server).watchdog_timeout(LONG).connections(1).connect().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let threads = [(); 4].map(|()| {
        let (client, over) = (client.clone(), Arc::clone(&over));
        spawn(move || {
            let lock = client.fenced_lock("counted");
            let mut last = 0;
            while !over.load(Ordering::SeqCst) {
                let guard = lock.lock().unwrap();
                assert!(guard.token().get() > last);
                last = guard.token().get();
                if last % 2 == 0 { guard.unlock().unwrap() } else { drop(guard) }
            }
        })
    });
    for at in 1..10 {
        let before = vault.asked();
        vault.add(&server, &at.to_string());
        wait_until("it is asked for again", SOON, || vault.asked() > before + 1);
    }
    over.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(Running::join);
}

/// Foreign code: it may fail, panic or not return, and neither holds nor threads depend on it.
#[test]
fn code_that_fails_panics_or_hangs_is_an_outage_and_no_more() {
    let _bounded = bounded();
    let server = server();
    let vault = Vault::new("", None);
    vault.add(&server, "only");
    let (mode, hangs) = (Arc::new(AtomicU64::new(0)), Arc::new(Barrier::new(2)));
    let (told, hung) = (Arc::clone(&mode), Arc::clone(&hangs));
    let builder = impatient(&format!("redis://127.0.0.1:{}", server.port()));
    let builder = builder.watchdog_timeout(LONG).credentials_with(move || {
        match told.load(Ordering::SeqCst) {
            1 => return Err("the vault is sealed".into()),
            2 => panic!("as the test wants it"),
            3 => {
                hung.wait();
            }
            _ => {}
        }
        Ok(Credentials::new("tokens", "only"))
    });
    let client = builder.connect().unwrap();
    let guard = client.reentrant_lock("held").lock().unwrap();
    for (now, said) in [
        (1, "the vault is sealed"),
        (2, "credentials_with panicked"),
        (3, "did not return in time"),
    ] {
        mode.store(now, Ordering::SeqCst);
        kill(&server);
        // A panic that is slow to be printed is one that did not return in time, at first.
        let error = wait_for_error(&client, said);
        assert!(error.is_transient(), "{error:#}");
        mode.store(0, Ordering::SeqCst);
        if now == 3 {
            hangs.wait();
        }
        wait_until("it goes on", SOON, || client.reentrant_lock("next").is_locked().is_ok());
    }
    assert!(guard.is_held());
    guard.unlock().unwrap();
}

#[track_caller]
fn wait_for_error(client: &Client, said: &str) -> Error {
    let until = Instant::now() + SOON;
    let mut last = None;
    loop {
        if let Err(error) = client.reentrant_lock("next").try_lock().map(drop) {
            if format!("{error:#}").contains(said) {
                return error;
            }
            last = Some(error);
        }
        assert!(Instant::now() < until, "no error said {said:?}; the last one: {last:?}");
    }
}
