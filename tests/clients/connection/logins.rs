//! Credentials that change while the client lives.

use std::collections::HashSet;
use std::slice;

use redlatch::Credentials;

use super::*;

const HOLDS: usize = 20;

/// Returns the ids of the user's connections, except those for messages.
fn commands_of(server: &Server) -> HashSet<String> {
    let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut server.connection()).unwrap();
    let own = list.lines().filter(|line| line.contains("user=tokens") && line.contains(" sub=0 "));
    own.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

fn hold(client: &Client) -> Vec<LockGuard> {
    (0..HOLDS).map(|at| client.reentrant_lock(&held(at)).lock().unwrap()).collect()
}

fn held(at: usize) -> String {
    format!("hold {at}")
}

/// Each connection is opened with the password that is valid at that time.
#[test]
fn holds_outlast_a_new_password_and_the_end_of_all_connections() {
    let server = server();
    let vault = Vault::new(None);
    vault.add(slice::from_ref(&server), "first");
    let client =
        vault.asked_by(impatient(&server.url())).watchdog_timeout(SHORT_LEASE).connect().unwrap();
    let guards = hold(&client);
    for (old, new) in [("first", "second"), ("second", "third")] {
        vault.add(slice::from_ref(&server), new);
        Vault::remove(slice::from_ref(&server), old);
        let before = vault.asked();
        Vault::hang_up(slice::from_ref(&server));
        wait_all_renewed((0..HOLDS).map(|at| (&server, held(at))));
        assert!(vault.asked() > before);
        client.reentrant_lock("more").lock().unwrap().unlock().unwrap();
    }
    for guard in guards {
        guard.unlock().unwrap();
    }
}

/// The client subscribes with the new password, so the waiter gets its grant by a message, before
/// its next request.
#[test]
fn a_waiter_hears_of_its_grant_after_a_new_password_and_the_end_of_the_subscription() {
    let server = server();
    let vault = Vault::new(None);
    vault.add(slice::from_ref(&server), "0");
    let client = vault.asked_by(impatient(&server.url())).connect().unwrap();
    let lock = crate::common::client(&server).reentrant_lock("waited for");
    let mut password = 0;
    woken_by_message(|| {
        let guard = lock.lock().unwrap();
        let waits = client.reentrant_lock("waited for");
        let waiter = spawn(move || waits.lock().unwrap().unlock().unwrap());
        wait_in_line(&server, "waited for", 1);
        waiter.wait_queued();
        let (old, new) = (password.to_string(), (password + 1).to_string());
        password += 1;
        vault.add(slice::from_ref(&server), &new);
        Vault::remove(slice::from_ref(&server), &old);
        let () = redis::cmd("CLIENT")
            .arg(&["KILL", "TYPE", "pubsub", "USER", "tokens"])
            .query::<u64>(&mut server.connection())
            .map(|ended| assert_eq!(ended, 1, "it did not listen"))
            .unwrap();
        wait_subscribed(&server, &own_channel(client.id()));
        guard.unlock().unwrap();
        waiter.join();
    });
}

/// The server may close connections whose credentials have expired.
#[test]
fn open_connections_are_given_new_credentials_before_the_old_ones_expire() {
    let server = server();
    let vault = Vault::new(Some(TIME_UNIT * 20));
    vault.add(slice::from_ref(&server), "first");
    let builder =
        vault.asked_by(impatient(&server.url())).watchdog_timeout(LONG_LEASE).connections(2);
    let client = builder.connect().unwrap();
    let guards = hold(&client);
    let waits = client.reentrant_lock("hold 0");
    let waiter = spawn(move || waits.lock().unwrap().unlock().unwrap());
    waiter.wait_queued();
    let auths = || Commands::so_far(&server).of("auth");
    let (lanes, before) = (commands_of(&server), auths());
    vault.add(slice::from_ref(&server), "second");
    // The two lanes and the connection for messages send AUTH now. The renewer's connection sends
    // AUTH at its next use.
    wait_until("they have been told", TIMEOUT, || auths() >= before + 3);
    assert!(commands_of(&server).intersection(&lanes).count() >= 2, "the lanes are the same");
    // The program does not report this change, so the client cannot know of it.
    Vault::remove(slice::from_ref(&server), "first");
    for guard in guards {
        guard.unlock().unwrap();
    }
    waiter.join();
}

/// The new credentials are sent between other threads' commands. The other threads must still get
/// their own replies.
#[test]
fn replies_are_in_order_while_connections_are_given_new_credentials() {
    let server = server();
    let vault = Vault::new(Some(TIME_UNIT));
    vault.add(slice::from_ref(&server), "0");
    let client = vault
        .asked_by(impatient(&server.url()))
        .watchdog_timeout(LONG_LEASE)
        .connections(1)
        .connect()
        .unwrap();
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
        vault.add(slice::from_ref(&server), &at.to_string());
        wait_until("it is asked for again", TIMEOUT, || vault.asked() > before + 1);
    }
    over.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(Running::join);
}

/// The user's function for credentials may fail, panic or never return. No hold and no thread
/// depends on it.
#[test]
fn code_that_fails_panics_or_hangs_is_an_outage_and_no_more() {
    let server = server();
    let vault = Vault::new(None);
    vault.add(slice::from_ref(&server), "only");
    let (mode, hangs) = (Arc::new(AtomicU64::new(0)), Arc::new(Barrier::new(2)));
    let (told, hung) = (Arc::clone(&mode), Arc::clone(&hangs));
    let builder = impatient(&format!("redis://127.0.0.1:{}", server.port()));
    let builder = builder.watchdog_timeout(LONG_LEASE).credentials_with(move || {
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
        Vault::hang_up(slice::from_ref(&server));
        // If the panic is printed slowly, the first error says that the function did not return in
        // time.
        let error = wait_for_error(&client, said);
        assert!(error.is_transient(), "{error:#}");
        mode.store(0, Ordering::SeqCst);
        if now == 3 {
            hangs.wait();
        }
        wait_until("it goes on", TIMEOUT, || client.reentrant_lock("next").is_locked().is_ok());
    }
    assert!(guard.is_held());
    guard.unlock().unwrap();
}

#[track_caller]
fn wait_for_error(client: &Client, said: &str) -> Error {
    let until = Instant::now() + TIMEOUT;
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
