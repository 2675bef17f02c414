//! The keys and messages of a latch.

use super::*;

#[test]
fn the_key_and_the_messages_are_redissons() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    for (name, channel) in [
        ("wire", "redisson_countdownlatch__channel__{wire}"),
        ("{a}b", "redisson_countdownlatch__channel__{{a}b}"),
    ] {
        let mut connection = server.connection();
        let mut subscriber = connection.as_pubsub();
        subscriber.psubscribe("redisson*").unwrap();
        subscriber.subscribe("end").unwrap();
        let latch = latch(&client, name, 2);
        assert_eq!(redis.get::<_, String>(name).unwrap(), "2");
        assert_eq!(pttl(&mut redis, name), -1);
        latch.count_down().unwrap();
        assert_eq!(redis.get::<_, String>(name).unwrap(), "1");
        latch.count_down().unwrap();
        assert!(!redis.exists::<_, bool>(name).unwrap());
        latch.count_down().unwrap();
        assert!(latch.try_set_count(1).unwrap());
        assert!(latch.delete().unwrap());
        let () = redis.publish("end", "").unwrap();
        let mut heard = Vec::new();
        loop {
            let message = subscriber.get_message().unwrap();
            if message.get_channel_name() == "end" {
                break;
            }
            assert_eq!(message.get_channel_name(), channel);
            heard.push(message.get_payload::<String>().unwrap());
        }
        assert_eq!(heard, ["1", "0", "1", "0"]);
    }
}

#[test]
fn a_java_services_last_count_down_wakes_and_another_message_does_not() {
    let server = server();
    woken_by_message(|| {
        let latch = latch(&client(&server), "java", 2);
        let asked = || Commands::so_far(&server).of("get");
        let set = asked();
        let waiters = waiters(&latch, 3);
        // The waiter asks again when its client listens.
        wait_until("it has asked twice", TIMEOUT, || asked() >= set + 2);
        let mut redis = server.connection();
        for message in ["1", "7", "x", "", "00"] {
            let before = asked();
            let () = redis.publish(channel("java"), message).unwrap();
            wait_until("it has asked", TIMEOUT, || asked() > before);
            waiters.iter().for_each(Running::wait_asleep);
        }
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        // Each waiter sends a request at first, another when its client has subscribed, and one for
        // each message. It sends no other requests.
        let asked = asked() - set;
        assert!(asked <= 5 + 2, "{asked} questions for five messages");
        let () = redis::pipe()
            .atomic()
            .del("java")
            .publish(channel("java"), "0")
            .query(&mut redis)
            .unwrap();
        waiters.into_iter().for_each(|waiter| {
            waiter.join();
        });
    });
}

#[test]
fn a_late_message_of_the_count_before_does_not_open_the_next() {
    let server = server();
    woken_by_message(|| {
        let proxy = Proxy::before(&server);
        let late = Client::connect(&proxy.url()).unwrap();
        let other = client(&server).count_down_latch("late");
        let latch = latch(&late, "late", 1);
        // The client subscribes here, and remains subscribed for some time after the wait.
        assert!(answered(|| latch.wait_for(TIME_UNIT)).timed_out());
        proxy.on(Direction::Reply, 1, Action::HoldReply, |bytes| {
            contains(bytes, "message") && contains(bytes, "latch__channel__{late}")
        });
        other.count_down().unwrap();
        proxy.wait_fired(1, TIMEOUT);
        assert!(other.try_set_count(1).unwrap());
        let waiter = waiters(&latch, 1).remove(0);
        let before = Commands::so_far(&server).of("get");
        proxy.release();
        // Each of the two messages makes the waiter send one request.
        wait_until("it asks", TIMEOUT, || Commands::so_far(&server).of("get") > before);
        thread::sleep(TIME_UNIT);
        assert!(!waiter.is_finished());
        other.count_down().unwrap();
        waiter.join();
    });
}

#[test]
fn another_databases_latch_of_the_name_opens_nothing() {
    let server = server();
    let [ours, theirs] =
        ["0", "1"].map(|database| Client::connect(&format!("{}{database}", server.url())).unwrap());
    let (here, there) = (latch(&ours, "start", 3), latch(&theirs, "start", 1));
    let waiting = waiters(&here, 3);
    wait_subscribed(&server, &channel("start"));
    there.count_down().unwrap();
    there.wait().unwrap();
    let mut asked = Commands::so_far(&server).of("get");
    // The message of the other latch comes on the same channel, and makes a waiter send at most one
    // request.
    wait_until("they wait again", TIMEOUT, || {
        waiting.iter().for_each(Running::wait_asleep);
        let now = Commands::so_far(&server).of("get");
        std::mem::replace(&mut asked, now) == now
    });
    thread::sleep(TIME_UNIT);
    assert!(waiting.iter().all(|waiter| !waiter.is_finished()));
    assert_eq!(here.count().unwrap(), 3);
    (0..3).for_each(|_| here.count_down().unwrap());
    for waiter in waiting {
        waiter.join();
    }
}

#[test]
fn a_delete_whose_reply_is_lost_has_deleted_that_latch_and_no_other() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let latch = latch(&client, "deleted", 3);
    latch.count_down().unwrap();
    for action in [Action::LoseReply, Action::LoseRequest] {
        on_script(&proxy, "deleted", 1, action);
        assert!(latch.delete().unwrap());
        assert!(!latch.delete().unwrap());
        assert!(latch.try_set_count(2).unwrap());
    }
    assert_eq!(proxy.fired(), 2);
    stays(&server, "deleted", 2);
}

#[test]
fn the_message_of_an_open_latch_costs_one_question() {
    let server = server();
    let name = "message";
    let other = client(&server).count_down_latch(name);
    let latch = latch(&client(&server), name, 1);
    let set = Commands::so_far(&server).of("get");
    let waiter = waiters(&latch, 1).remove(0);
    // The waiter asks again when its client listens.
    wait_until("it has asked twice", TIMEOUT, || Commands::so_far(&server).of("get") >= set + 2);
    wait_subscribed(&server, &channel(name));
    let before = Commands::so_far(&server).of("get");
    other.count_down().unwrap();
    waiter.join();
    // The script of the count-down reads two keys, and the waiter reads one.
    assert_eq!(Commands::so_far(&server).of("get") - before, 3);
}
