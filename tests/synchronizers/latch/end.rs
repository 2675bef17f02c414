//! A latch with a time to live.

use super::*;

#[test]
fn a_latch_with_a_time_to_live_ends_and_is_otherwise_like_any_other() {
    let server = server();
    let latch = client(&server).count_down_latch("ends");
    let mut redis = server.connection();
    assert_eq!(latch.time_to_live().unwrap(), None);
    assert!(!latch.expire(LONG_LEASE).unwrap() && !latch.expire(Duration::MAX).unwrap());
    assert!(latch.try_set_count_for(2, LONG_LEASE).unwrap());
    assert!(!latch.try_set_count_for(9, TIME_UNIT).unwrap(), "it has a count");
    latch.count_down().unwrap();
    let left = latch.time_to_live().unwrap().unwrap();
    assert!(left > LONG_LEASE - TIMEOUT && left <= LONG_LEASE, "{left:?}");
    assert!(latch.expire(Duration::MAX).unwrap());
    assert_eq!(
        (latch.time_to_live().unwrap(), pttl(&mut redis, "ends")),
        (Some(Duration::MAX), -1)
    );
    assert!(latch.expire(TIME_UNIT).unwrap());
    wait_until("it is gone", TIMEOUT, || latch.time_to_live().unwrap().is_none());
    assert_eq!(latch.count().unwrap(), 0);
    // A new count does not keep the time to live of the old one.
    assert!(latch.try_set_count(1).unwrap());
    assert_eq!(pttl(&mut redis, "ends"), -1);
    for unusable in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
        let error = latch.try_set_count_for(1, unusable).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    }
    for unusable in [Duration::ZERO, Duration::from_micros(999), Duration::MAX - TIME_UNIT] {
        let error = latch.expire(unusable).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("Duration::MAX"), "{error}");
    }
}

#[test]
fn waiters_of_a_latch_that_expires_get_an_error_at_once() {
    let server = server();
    let clients = [client(&server), client(&server)];
    // If the waiter sent no request at that time, its next request would come after 4 s at the
    // earliest.
    const POLL: Duration = Duration::from_secs(4);
    once_within(POLL, || {
        let begun = Instant::now();
        let latches = clients.each_ref().map(|client| client.count_down_latch("gone"));
        assert!(latches[0].try_set_count_for(1, SHORT_TIMEOUT).unwrap());
        let waiters: Vec<_> = (0..6)
            .map(|at| {
                let latch = latches[at % 2].clone();
                spawn(move || match at {
                    0 | 1 => latch.wait_for(LONG_LEASE).unwrap_err(),
                    _ => latch.wait().unwrap_err(),
                })
            })
            .collect();
        for waiter in waiters {
            let error = waiter.join();
            assert_eq!(error.kind(), ErrorKind::Expired, "{error}");
            assert!(error.to_string().contains("\"gone\""), "{error}");
        }
        // A thread that comes later finds a latch without a count.
        latches[1].wait().unwrap();
        begun.elapsed()
    });
}

#[test]
fn waiters_of_a_latch_that_is_opened_or_kept_do_not_hear_of_its_end() {
    let server = server();
    let client = client(&server);
    for ends in [CountDownLatch::count_down, |it: &CountDownLatch| it.delete().map(drop)] {
        let latch = client.count_down_latch("kept");
        assert!(latch.try_set_count_for(1, SHORT_TIMEOUT).unwrap());
        let waiters = waiters(&latch, 3);
        assert!(latch.expire(LONG_LEASE).unwrap());
        // This time is later than the end of the latch's first time to live.
        thread::sleep(SHORT_TIMEOUT + TIME_UNIT);
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        ends(&latch).unwrap();
        for waiter in waiters {
            waiter.join();
        }
    }
}

#[test]
fn an_end_whose_reply_is_lost_is_set_once() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    for action in [Action::LoseReply, Action::LoseRequest] {
        let latch = client.count_down_latch("once");
        on_script(&proxy, "once", 1, action);
        assert!(latch.try_set_count_for(2, LONG_LEASE).unwrap());
        on_script(&proxy, "once", 1, action);
        assert!(latch.expire(Duration::MAX).unwrap());
        assert_eq!(pttl(&mut server.connection(), "once"), -1);
        assert!(latch.delete().unwrap());
    }
    assert_eq!(proxy.fired(), 4);
}

#[test]
fn a_latch_that_was_opened_before_its_end_is_open_though_the_reply_comes_after_it() {
    let server = server();
    let proxy = Proxy::before(&server);
    let far = Client::builder(&proxy.url()).response_timeout(TIMEOUT).connect().unwrap();
    let (far, near) = (far.count_down_latch("late"), client(&server).count_down_latch("late"));
    let lasts = TIME_UNIT * 15;
    assert!(near.try_set_count_for(1, lasts).unwrap());
    let waits = spawn(move || far.wait());
    wait_subscribed(&server, "redisson_countdownlatch__channel__{late}");
    waits.wait_asleep();
    on_script(&proxy, "late", 1, Action::DelayReply(lasts));
    near.count_down().unwrap();
    waits.join().unwrap();
    assert_eq!(proxy.fired(), 1);
}

#[test]
fn a_latch_whose_opening_is_heard_while_it_is_asked_after_its_end_is_open() {
    const CHANNEL: &str = "redisson_countdownlatch__channel__{slow}";
    let server = server();
    let proxy = Proxy::before(&server);
    let far = Client::builder(&proxy.url()).response_timeout(TIMEOUT).connect().unwrap();
    let (far, near) = (far.count_down_latch("slow"), client(&server).count_down_latch("slow"));
    let lasts = TIME_UNIT * 15;
    assert!(near.try_set_count_for(1, lasts).unwrap());
    let waits = spawn(move || far.wait());
    wait_subscribed(&server, CHANNEL);
    waits.wait_asleep();
    // The waiter sends a request at the end of the latch, and the reply is late. The message
    // arrives between this request and its reply.
    proxy.on(Direction::Reply, 1, Action::DelayReply(lasts + TIME_UNIT * 3), |bytes| {
        contains(bytes, "message") && contains(bytes, CHANNEL)
    });
    on_script(&proxy, "slow", 1, Action::DelayReply(TIME_UNIT * 20));
    near.count_down().unwrap();
    waits.join().unwrap();
    assert_eq!(proxy.fired(), 2);
}
