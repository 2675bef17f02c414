//! An observer that feeds the crate `metrics`.

use std::collections::HashSet;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};

use metrics::{
    Counter, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram,
};
use metrics::{gauge, histogram};
use redlatch_client::sync::Mutex;

use crate::error::{ErrorKind, LostReason};
use crate::observe::{Event, Kind, Observer, Way};

/// An observer that feeds the crate `metrics` (feature `metrics`). The program installs the crate's
/// recorder. [Observing](crate::guide::observing) lists the metrics.
///
/// ```no_run
/// # fn main() -> Result<(), redlatch::Error> {
/// use redlatch::Client;
/// use redlatch::observe::MetricsObserver;
///
/// // A label with the name's first part: there are few of those.
/// let named = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
/// let client = Client::builder("redis://127.0.0.1:6379")
///     .observer(MetricsObserver::new().named_by(named))
///     .connect()?;
/// # drop(client);
/// # Ok(()) }
/// ```
pub struct MetricsObserver {
    label: Option<Box<Labels>>,
    /// The kinds and labels that have counters.
    counted: Mutex<HashSet<(Kind, Option<String>)>>,
}

// The compiler does not derive these traits because of the user's callback: see `Config`.
impl UnwindSafe for MetricsObserver {}
impl RefUnwindSafe for MetricsObserver {}

impl Default for MetricsObserver {
    fn default() -> Self {
        Self::new()
    }
}

type Labels = dyn Fn(&str) -> String + Send + Sync;

const WAIT_TIME: &str = "redlatch.lock.wait_time";
const HOLD_TIME: &str = "redlatch.lock.hold_time";
const WAITING: &str = "redlatch.lock.waiting";
const HELD: &str = "redlatch.lock.held";
const LOSSES: &str = "redlatch.lock.losses";
const TIME_LEFT: &str = "redlatch.lock.renewal.time_left";
const FAILURES: &str = "redlatch.lock.renewal.failures";
const FORGOTTEN: &str = "redlatch.lock.forgotten_changes";
const WANTED: &str = "redlatch.lock.wanted";

impl MetricsObserver {
    /// Makes an observer, and describes the metrics to the recorder. The program must install its
    /// recorder before this call: otherwise the recorder gets no descriptions.
    #[must_use]
    pub fn new() -> Self {
        describe_histogram!(WAIT_TIME, Unit::Seconds, "How long the waits for a lock lasted.");
        describe_histogram!(HOLD_TIME, Unit::Seconds, "How long a lock was held.");
        describe_gauge!(WAITING, Unit::Count, "Threads that wait for a lock.");
        describe_gauge!(HELD, Unit::Count, "Locks and permits that are held.");
        describe_counter!(LOSSES, Unit::Count, "Locks that were lost.");
        describe_histogram!(TIME_LEFT, Unit::Seconds, "What a renewal found left of the lease.");
        describe_counter!(FAILURES, Unit::Count, "Renewals that failed, and are tried again.");
        describe_counter!(FORGOTTEN, Unit::Count, "Changes that a failover may lose.");
        describe_counter!(WANTED, Unit::Count, "Holders that heard that others wait.");
        Self { label: None, counted: Mutex::default() }
    }

    /// Adds a label called `name` to each metric. The function `label` gets a lock's name, and
    /// returns the label's value. There should be few different values, because each value is a
    /// separate series. Without this call, metrics have no label `name`.
    #[must_use]
    pub fn named_by(self, label: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self { label: Some(Box::new(label)), ..self }
    }

    fn of<T>(&self, event: &Event<'_, T>, more: &[(&'static str, &str)]) -> Vec<Label> {
        let mut labels = vec![Label::new("kind", format!("{:?}", event.kind))];
        labels.extend(more.iter().map(|(key, value)| Label::new(*key, (*value).to_owned())));
        labels.extend(self.label.as_ref().map(|label| Label::new("name", label(event.name))));
        labels
    }

    /// Creates the counters with the value zero when this kind and label are first used. A query
    /// such as `increase` misses an event if the series begins with it.
    fn count_from_zero<T>(&self, event: &Event<'_, T>) {
        if !is_held(event.kind) {
            return;
        }
        let label = self.label.as_ref().map(|label| label(event.name));
        if self.counted.lock().insert((event.kind, label)) {
            for reason in LostReason::ALL {
                self.losses(event, reason).increment(0);
            }
            self.failures(event).increment(0);
            if event.kind == Kind::Semaphore {
                counter!(FORGOTTEN).increment(0);
            }
        }
    }

    fn losses<T>(&self, event: &Event<'_, T>, reason: LostReason) -> Counter {
        counter!(LOSSES, self.of(event, &[("outcome", &format!("{reason:?}"))]))
    }

    fn failures<T>(&self, event: &Event<'_, T>) -> Counter {
        counter!(FAILURES, self.of(event, &[]))
    }

    fn waited<T>(&self, event: &Event<'_, T>, outcome: &str, way: &str) {
        gauge!(WAITING, self.of(event, &[])).decrement(1);
        histogram!(WAIT_TIME, self.of(event, &[("outcome", outcome), ("way", way)]))
            .record(event.time);
    }

    fn ended<T>(&self, event: &Event<'_, T>, outcome: &str) {
        gauge!(HELD, self.of(event, &[])).decrement(event.permits);
        histogram!(HOLD_TIME, self.of(event, &[("outcome", outcome)])).record(event.time);
    }

    fn renewal<T>(&self, event: &Event<'_, T>, outcome: &str) {
        histogram!(TIME_LEFT, self.of(event, &[("outcome", outcome)])).record(event.time);
    }
}

impl Observer for MetricsObserver {
    fn wait_started(&self, event: &Event<'_>) {
        self.count_from_zero(event);
        gauge!(WAITING, self.of(event, &[])).increment(1);
    }

    fn acquired(&self, event: &Event<'_, Way>) {
        self.waited(event, "Acquired", &format!("{:?}", event.how));
        if is_held(event.kind) {
            gauge!(HELD, self.of(event, &[])).increment(event.permits);
        }
    }

    fn gave_up(&self, event: &Event<'_, Option<ErrorKind>>) {
        let why = event.how.map_or_else(|| "NotNow".to_owned(), |kind| format!("{kind:?}"));
        self.waited(event, &why, "None");
    }

    fn released(&self, event: &Event<'_>) {
        self.ended(event, "Released");
    }

    fn lost(&self, event: &Event<'_, LostReason>) {
        self.ended(event, "Lost");
        self.losses(event, event.how).increment(1);
    }

    fn forgot(&self, event: &Event<'_>) {
        counter!(FORGOTTEN).increment(event.permits.into());
    }

    fn wanted(&self, event: &Event<'_>) {
        counter!(WANTED, self.of(event, &[])).increment(1);
    }

    fn renewed(&self, event: &Event<'_>) {
        self.renewal(event, "Renewed");
    }

    fn renewal_failed(&self, event: &Event<'_, &str>) {
        self.renewal(event, "Failed");
        self.failures(event).increment(1);
    }
}

/// Whether an acquisition of this kind lasts until a later event ends it.
fn is_held(kind: Kind) -> bool {
    !matches!(kind, Kind::CountDownLatch | Kind::CyclicBarrier)
}

impl fmt::Debug for MetricsObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsObserver").field("is_named", &self.label.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::process::Command;
    use std::time::Duration;

    use metrics::with_local_recorder;
    use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

    use super::*;

    const PAGE: &str = include_str!("../../docs/observing.md");

    /// Returns the text between `from` and the next `to` on the page.
    fn on_page(from: &str, to: &str) -> &'static str {
        let (_, rest) = PAGE.split_once(from).unwrap();
        rest.split_once(to).unwrap().0
    }

    /// Returns the series and their values, as a scrape gets them.
    fn series(scraped: &str) -> BTreeMap<String, String> {
        let lines = scraped.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let pairs = lines.map(|line| line.rsplit_once(' ').unwrap());
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Prometheus's tool checks the page's rules against the exporter's output: first after a lock
    /// without problems, then after one loss, one failed renewal and one long wait.
    #[test]
    fn the_alerts_of_the_page_fire_at_a_first_event_and_not_before() {
        let buckets = on_page("&[", "]").split(", ").map(|bound| bound.parse().unwrap());
        let metric = on_page("Matcher::Full(\"", "\"").to_owned();
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Full(metric), &buckets.collect::<Vec<f64>>())
            .unwrap()
            .build_recorder();
        let scrapes = recorder.handle();
        let ms = Duration::from_millis;
        let what = (Kind::ReentrantLock, 1);
        let (quiet, eventful) = with_local_recorder(&recorder, || {
            let observer = MetricsObserver::new();
            let holds = |time| {
                observer.wait_started(&Event::named("orders", what, ms(0), ()));
                observer.acquired(&Event::named("orders", what, time, Way::Free));
            };
            holds(ms(1));
            observer.released(&Event::named("orders", what, ms(1), ()));
            let quiet = series(&scrapes.render());
            holds(ms(7000));
            observer.renewal_failed(&Event::named("orders", what, ms(1), "it did not answer"));
            observer.lost(&Event::named("orders", what, ms(2), LostReason::Revoked));
            (quiet, series(&scrapes.render()))
        });

        // There is a scrape every half minute. The loss, the failed renewal and the long wait come
        // between the third and the fourth scrape.
        let names: BTreeSet<_> = quiet.keys().chain(eventful.keys()).collect();
        let input: String = names
            .into_iter()
            .map(|name| {
                let before = quiet.get(name).map_or("_", |value| value);
                let after = &eventful[name];
                format!(
                    "      - series: '{name}'\n        values: '{before} {before} {before} {after} \
                     {after} {after}'\n"
                )
            })
            .collect();
        let fires = |alert: &str, labels: &str| {
            format!(
                "      - alertname: {alert}\n        eval_time: 1m\n      - alertname: {alert}\n        \
                 eval_time: 2m\n        exp_alerts: [{{exp_labels: {{{labels}}}}}]\n"
            )
        };
        let cases = [
            fires("LockLost", "kind: ReentrantLock, outcome: Revoked"),
            fires("LockWaitsAreLong", "kind: ReentrantLock"),
            fires("LockRenewalFails", "kind: ReentrantLock"),
        ];
        let test = format!(
            "rule_files: [rules.yml]\nevaluation_interval: 30s\ntests:\n  - interval: 30s\n    \
             input_series:\n{input}    alert_rule_test:\n{}",
            cases.concat()
        );
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("rules.yml"), on_page("```yaml\n", "```")).unwrap();
        fs::write(folder.path().join("test.yml"), &test).unwrap();
        let promtool = Command::new("promtool")
            .args(["test", "rules", "test.yml"])
            .current_dir(folder.path())
            .output();
        let Ok(said) = promtool else {
            println!("skipped: there is no promtool, which the package `prometheus` has");
            return;
        };
        let words = String::from_utf8_lossy(&said.stdout) + String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success(), "{words}\n{test}");
    }
}
