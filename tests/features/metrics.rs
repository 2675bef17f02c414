//! The values that an observer gives the crate `metrics`.

use std::collections::BTreeMap;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use redlatch::Client;
use redlatch::observe::MetricsObserver;

use crate::common::*;

/// Each series so far, with the value of a gauge or counter, or with the number of values in a
/// histogram. The values are added up here, because a snapshot of the recorder resets all series.
struct Seen(Snapshotter, BTreeMap<String, f64>);

impl Seen {
    fn look(&mut self) -> &BTreeMap<String, f64> {
        for (key, _, _, value) in self.0.snapshot().into_vec() {
            let key = key.key();
            let labels: Vec<_> =
                key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            let name = key.name().strip_prefix("redlatch.lock.").unwrap();
            let seen = self.1.entry(format!("{name} {}", labels.join(" "))).or_default();
            match value {
                DebugValue::Counter(count) => *seen += count as f64,
                DebugValue::Gauge(gauge) => *seen += gauge.0,
                DebugValue::Histogram(values) => *seen += values.len() as f64,
            }
        }
        &self.1
    }
}

/// A process has only one recorder.
#[test]
fn each_wait_hold_and_loss_is_counted_under_its_kind_and_the_label_of_its_name() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let recorder = DebuggingRecorder::new();
    let mut seen = Seen(recorder.snapshotter(), BTreeMap::new());
    recorder.install().unwrap();
    let label = |name: &str| name.split(':').next().unwrap().to_owned();
    let client = Client::builder(&server.url())
        .watchdog_timeout(SHORT_LEASE)
        .client_tracking(false)
        .observer(MetricsObserver::new().named_by(label))
        .connect()
        .unwrap();
    let lock = client.reentrant_lock("orders:1");
    let guard = lock.lock().unwrap();
    elsewhere({
        let lock = lock.clone();
        move || assert!(lock.try_lock().unwrap().into_option().is_none())
    });
    let kind = "kind=ReentrantLock";
    assert_eq!(seen.look()[&format!("held {kind} name=orders")], 1.0);
    let renewed = format!("renewal.time_left {kind} outcome=Renewed name=orders");
    wait_until("it is renewed", TIMEOUT, || seen.look().contains_key(&renewed));
    guard.unlock().unwrap();
    let lost = client.reentrant_lock("orders:2").lock().unwrap();
    assert!(client.reentrant_lock("orders:2").force_unlock().unwrap());
    let losses = format!("losses {kind} outcome=ForceUnlocked name=orders");
    wait_until("the loss is told", TIMEOUT, || seen.look().contains_key(&losses));
    client.count_down_latch("latch").wait().unwrap();
    client.semaphore("permits").try_set_permits(3).unwrap();
    let permits = client.semaphore("permits").acquire_many(2).unwrap();
    assert_eq!(seen.look()["held kind=Semaphore name=permits"], 2.0);
    drop(permits);
    let all = seen.look().clone();
    let way = |outcome, way| format!("wait_time {kind} outcome={outcome} way={way} name=orders");
    assert_eq!((all[&way("Acquired", "Free")], all[&way("NotNow", "None")]), (2.0, 1.0), "{all:?}");
    let held = |outcome| format!("hold_time {kind} outcome={outcome} name=orders");
    assert_eq!((all[&held("Released")], all[&held("Lost")]), (1.0, 1.0), "{all:?}");
    assert_eq!(all[&losses], 1.0);
    for (series, value) in &all {
        let is_over = series.starts_with("held ") || series.starts_with("waiting ");
        assert!(!is_over || *value == 0.0, "{series}: {value}");
    }
    assert!(!all.contains_key("held kind=CountDownLatch name=latch"), "{all:?}");
    drop(lost);
}
