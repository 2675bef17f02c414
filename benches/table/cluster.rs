//! The same work on a single server and in a cluster.

use redlatch_testkit::Cluster;

use crate::cell::Round;
use crate::contest::longest;
use crate::cores::Cores;
use crate::lab::{Lab, Outcome, Setting};
use crate::peers::Peer;
use crate::report::{Goals, Table, count, time};

/// The cluster has three masters. Several names are spread over the masters, and one name is in one
/// slot.
pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    let cluster = match Cluster::without_replicas() {
        Ok(cluster) => cluster,
        Err(error) => return println!("No cluster: {error}.\n"),
    };
    let mut table = Table::new(&[
        "processes x threads",
        "names",
        "alone, locks/s",
        "cluster, locks/s",
        "x alone",
        "alone, longest wait",
        "cluster, longest wait",
    ]);
    for (processes, threads, contended) in
        [(1, 1, false), (1, 8, true), (4, 8, true), (16, 1, true), (1, 32, false)]
    {
        let setting = Setting { cores: Cores::Any, delayed: false, processes, threads, contended };
        let urls = [lab.url(false), cluster.url()];
        let [alone, ours] = lab.compare_at(setting, Peer::Unlock, urls.each_ref());
        let rate = ours.ratio(&alone, Round::rate);
        let [alone_rate, our_rate] = [&alone, &ours].map(|it| count(it.median(Round::rate)));
        let wait = |it: &Outcome| time(it.median(Round::longest_wait));
        let work = format!("{processes} x {threads}");
        let names = if contended { "one" } else { "one for each thread" };
        table.row(&[&work, &names, &alone_rate, &our_rate, &rate, &wait(&alone), &wait(&ours)]);
        let work = format!("in a cluster, {work}, names: {names}");
        // Many names are spread over several servers, which may or may not have a core each.
        goals.add(&work, format!("{rate} x alone"), if threads == 32 { "said" } else { "≥ 0.9" });
        if contended {
            goals.add(format!("{work}: longest wait"), longest(&ours), "< 50 ms");
        }
    }
    println!("A server alone, and a cluster of three masters on the same machine:\n\n{table}");
}
