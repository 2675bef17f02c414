//! Shows that a fair lock serves processes in the order in which they came, and skips a process
//! that is killed in the queue: `cargo run --example fair_queue`

mod stage;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Commands, Connection};
use redlatch::Client;
use redlatch_testkit::{Job, Worker};

use stage::{Stage, Trouble};

const CUSTOMERS: usize = 8;
const KILLED: usize = 4;
/// The time that the service of one customer takes.
const SERVICE: Duration = Duration::from_millis(100);
/// The approximate time for which the other processes wait if the first process in the queue is
/// killed. The default is 10 s.
const FAIR_WAIT: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    stage::play("fair_queue", show, customer)
}

fn connect(url: &str) -> Result<(Client, Connection), Trouble> {
    // All clients of a fair lock need the same setting.
    let client = Client::builder(url).fair_wait_timeout(FAIR_WAIT).connect()?;
    Ok((client, redis::Client::open(url)?.get_connection()?))
}

/// The work of each process: takes a number, waits, and is served.
fn customer(job: &Job) -> Result<(), Trouble> {
    let (client, mut redis) = connect(job.arg(0))?;
    let queue = client.fair_lock(job.arg(1));
    job.say("here");
    let _enter = job.wait_line();

    let number: usize = redis.incr(numbers(queue.name()), 1)?;
    job.say(&number.to_string());
    let guard = queue.lock()?;
    // No other customer is served at the same time.
    redis.rpush::<_, _, ()>(served(queue.name()), number)?;
    thread::sleep(SERVICE);
    guard.unlock()?;
    Ok(())
}

fn show(stage: &Stage) -> Result<bool, Trouble> {
    let (client, mut redis) = connect(stage.url())?;
    let queue = client.fair_lock(&stage.name);
    // The shop is closed until all customers have come.
    let closed = queue.lock()?;

    let arguments = [stage.url(), &stage.name];
    let mut customers: Vec<Worker> =
        (0..CUSTOMERS).map(|_| Worker::spawn("customer", &arguments)).collect();
    for (before, customer) in customers.iter_mut().enumerate() {
        stage.hear(customer)?;
        customer.send_line("enter");
        let number = stage.hear(customer)?;
        // The next customer comes after this customer is in the queue. The command reads the key of
        // the queue in Redis, which other programs need not know.
        let queue = format!("redisson_lock_queue:{{{}}}", stage.name);
        stage.wait_until("the customer stands in the queue", || {
            Ok(redis.llen::<_, usize>(&queue)? > before)
        })?;
        stage.say(&format!("process {} has number {number} and waits", customer.pid()))?;
    }
    let killed = &mut customers[KILLED - 1];
    killed.sigkill();
    stage.say(&format!("\nprocess {} with number {KILLED} is killed (SIGKILL)", killed.pid()))?;
    stage.say("the queue opens\n")?;
    closed.unlock()?;

    let expected: Vec<usize> = (1..=CUSTOMERS).filter(|&number| number != KILLED).collect();
    let mut order = Vec::new();
    let opened = Instant::now();
    let mut before = Duration::ZERO;
    while order.len() < expected.len() {
        let mut next: Option<usize> = None;
        stage.wait_until("the next one is served", || {
            next = redis.lpop(served(&stage.name), None)?;
            Ok(next.is_some())
        })?;
        let number = next.unwrap_or_default();
        let at = opened.elapsed();
        let mut line = format!("{:>6.3} s  number {number} is served", at.as_secs_f64());
        if order.last() == Some(&(KILLED - 1)) {
            let pause = (at - before).as_secs_f64();
            line += &format!(", after {pause:.1} s in which number {KILLED} did not come");
        }
        stage.say(&line)?;
        before = at;
        order.push(number);
    }

    let in_order = order == expected;
    stage.say(if in_order {
        "\nServed in the order of arrival, the dead one left out."
    } else {
        "\nTHE ORDER WAS BROKEN."
    })?;
    Ok(in_order)
}

fn numbers(queue: &str) -> String {
    format!("{queue}:numbers")
}

fn served(queue: &str) -> String {
    format!("{queue}:served")
}
