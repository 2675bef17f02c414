//! The same work on a single server and in a cluster. `../table` measures this for the re-entrant
//! lock.

use redlatch_testkit::Cluster;

use crate::cell::Round;
use crate::cores::Cores;
use crate::lab::{Lab, Setting};
use crate::latches::Kind;
use crate::notified::notifications;
use crate::opening::openings;
use crate::peers::Peer;
use crate::readers;
use crate::report::{Goals, Spread, Table, count, time};

/// Compares a cluster of three masters with a single server. One name is in one slot. The ratio is
/// that of the rates, or the inverse ratio of the times, so a larger ratio is better.
pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    let cluster = match Cluster::without_replicas() {
        Ok(cluster) => cluster,
        Err(error) => return println!("No cluster: {error}.\n"),
    };
    let urls = [lab.url(false), cluster.url()];
    let heads = ["work", "figure", "alone", "cluster", "x alone"];
    let mut table = Table::new(&heads);
    let mut row = |work: &str, figure: &str, [alone, ours]: [String; 2], ratio: Spread| {
        table.row(&[&work, &figure, &alone, &ours, &ratio]);
        goals.add(format!("in a cluster, {work}: {figure}"), format!("{ratio} x alone"), "≥ 0.9");
    };
    for (peer, processes, threads) in [
        (Peer::Fair, 1, 8),
        (Peer::Fair, 4, 8),
        (Peer::Fenced, 4, 8),
        (Peer::Fenced, 16, 1),
        (Peer::Semaphore, 1, 16),
        (Peer::Semaphore, 4, 4),
        (Peer::Expirable, 1, 16),
        (Peer::Expirable, 4, 4),
    ] {
        let contended = true;
        let setting = Setting { cores: Cores::Any, delayed: false, processes, threads, contended };
        let [alone, ours] = lab.compare_at(setting, peer, urls.each_ref());
        let rates = [&alone, &ours].map(|it| count(it.median(Round::rate)));
        let work = format!("{}, {processes} x {threads}", peer.name());
        row(&work, "a second", rates, ours.ratio(&alone, Round::rate));
    }
    let [alone, ours] = readers::compare_at(lab, urls.each_ref());
    let rates = [&alone, &ours].map(|it| Spread::of(it.iter().map(|round| round.0)).median);
    let ratio = Spread::of(alone.iter().zip(&ours).map(|(alone, ours)| ours.0 / alone.0));
    row("4 x 4 readers, 1 writer", "reads a second", rates.map(count), ratio);

    lab.put_server(Cores::Any);
    let mut latches = [Vec::new(), Vec::new()];
    let mut conditions = [Vec::new(), Vec::new()];
    lab.rounds(|| {
        for (at, url) in urls.iter().enumerate() {
            latches[at].push(median(openings(lab, url, Cores::Any, Kind::Ours)));
            conditions[at].push(median(notifications(lab, url, false).1));
        }
    });
    for (work, [alone, ours]) in
        [("latch, opening", latches), ("condition, notify_one", conditions)]
    {
        let times = [&alone, &ours].map(|it| time(median(it.iter().copied())));
        let ratio = Spread::of(alone.iter().zip(&ours).map(|(alone, ours)| alone / ours));
        row(work, "to the waiter awake", times, ratio);
    }
    println!("A server alone, and a cluster of three masters on the same machine:\n\n{table}");
}

fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    Spread::of(figures).median
}
