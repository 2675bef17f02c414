//! A script of a guard, compared with the same script alone. The script is an INCR. Alone, it runs
//! over a separate connection and is encoded in advance.

use std::time::Duration;

use redis::{Cmd, ConnectionLike, Value};
use redlatch::{Client, Script};
use redlatch_testkit::{Job, Worker};

use crate::clock;
use crate::cores::{Cores, Place};
use crate::lab::Lab;
use crate::raw;
use crate::report::{Goals, Spread, Table, count, digits};

pub(crate) const ROLE: &str = "evals";

const TEXT: &str = "return redis.call('incrby', KEYS[1], ARGV[1])";
/// The number of calls in a batch. Batches with and without a guard alternate.
const BATCH: u32 = 500;
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    println!("A script of a guard, against the bare script on a raw connection:\n");
    let heads = ["where", "what", "scripts/s", "x bare", "server's time"];
    let mut table = Table::new(&heads);
    for cores in [Cores::One, Cores::Two].into_iter().filter(|cores| lab.machine.can(*cores)) {
        lab.put_server(cores);
        let (mut rates, mut times) = ([const { Vec::new() }; 2], [const { Vec::new() }; 2]);
        let mut ratios = Vec::new();
        lab.rounds(|| {
            let args = [
                lab.url(false),
                format!("bench {}", lab.next()),
                lab.machine.clients(cores).to_string(),
                lab.options.length.as_nanos().to_string(),
            ];
            let mut worker = Worker::spawn(ROLE, &args.each_ref().map(String::as_str));
            let took = worker.expect_line("took", lab.options.length * 2 + TIMEOUT);
            let took: Vec<f64> = took.split(' ').map(|it| it.parse().unwrap()).collect();
            for (kind, both) in took.chunks(2).enumerate() {
                rates[kind].push(1e9 / both[0]);
                times[kind].push(both[1]);
            }
            ratios.push(took[0] / took[2]);
        });
        let ratio = digits(Spread::of(ratios).median);
        let [bare, own] = times.map(|times| Spread::of(times).median);
        let [bare_rate, own_rate] = rates.map(|rates| count(Spread::of(rates).median));
        let place = cores.to_string();
        let time = |micros: f64| format!("{} us", digits(micros));
        table.row(&[&place, &"bare script", &bare_rate, &"", &time(bare)]);
        table.row(&[&place, &"guard.eval", &own_rate, &ratio, &time(own)]);
        let goal = |it| if cores == Cores::One { it } else { "none set" };
        goals.add(format!("guard.eval, {place}"), format!("{ratio} x bare script"), goal("≥ 0.88"));
        let more = format!("{} us more", digits(own - bare));
        goals.add(format!("guard.eval, {place}: server's time"), more, goal("≤ 1.5 us"));
    }
    println!("{table}");
}

/// Reports the time of a script alone and of a guard's script: the client's time in nanoseconds,
/// and the server's time in microseconds.
pub(crate) fn work(job: &Job) {
    job.arg(2).parse::<Place>().unwrap().take();
    let (url, name) = (job.arg(0), job.arg(1));
    let end = clock::now() + job.arg(3).parse::<u64>().unwrap();
    let client = Client::connect(url).unwrap();
    let guard = client.reentrant_lock(name).lock().unwrap();
    let (script, key) = (Script::new(TEXT), format!("{{{name}}}:number"));
    let mut connection = raw::connect(url);
    let bare = redis::Script::new(TEXT);
    bare.prepare_invoke().load(&mut connection).unwrap();
    let mut call = Cmd::new();
    call.arg("EVALSHA").arg(bare.get_hash()).arg(1).arg(&key).arg(1);
    let call = call.get_packed_command();
    let mut observer = raw::connect(url);
    let mut server_time = || {
        let info: String = redis::cmd("INFO").arg("commandstats").query(&mut observer).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).unwrap();
        let field = line.split(',').find_map(|field| field.strip_prefix("usec=")).unwrap();
        field.parse::<f64>().unwrap()
    };
    let mut run = || {
        let reply = connection.req_packed_command(&call).unwrap();
        assert!(matches!(reply, Value::Int(_)));
    };
    let run_own = || assert!(guard.eval(&script, &[&key], &[b"1"]).unwrap().as_int().is_some());
    run();
    run_own();
    let mut all = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    while clock::now() < end {
        for kind in [0, 1, 1, 0] {
            let (before, begun) = (server_time(), clock::now());
            for _ in 0..BATCH {
                if kind == 0 { run() } else { run_own() }
            }
            let took = (clock::now() - begun) as f64;
            all[kind][0].push(took / f64::from(BATCH));
            all[kind][1].push((server_time() - before) / f64::from(BATCH));
        }
    }
    let medians = all.into_iter().flatten().map(|all| Spread::of(all).median.to_string());
    job.say(&format!("took {}", medians.collect::<Vec<_>>().join(" ")));
    guard.unlock().unwrap();
    job.done()
}
