//! An observer that feeds the crate `metrics`.

use std::fmt;

use metrics::{Label, Unit, counter, describe_counter, describe_gauge, describe_histogram};
use metrics::{gauge, histogram};

use crate::error::{ErrorKind, LostReason};
use crate::observer::{Event, Kind, Observer, Way};

/// An observer that feeds the crate `metrics` (feature `metrics`), whose recorder the program
/// installs. [Observing](crate::guide::observing) lists what it feeds.
///
/// ```no_run
/// # fn main() -> Result<(), redlatch::Error> {
/// use redlatch::{Client, MetricsObserver};
///
/// // A label with the name's first part: there are few of those.
/// let named = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
/// let client = Client::builder("redis://127.0.0.1:6379")
///     .observer(MetricsObserver::new().named_by(named))
///     .connect()?;
/// # drop(client);
/// # Ok(()) }
/// ```
#[derive(Default)]
pub struct MetricsObserver {
    label: Option<Box<Labels>>,
}

type Labels = dyn Fn(&str) -> String + Send + Sync;

const WAIT_TIME: &str = "redlatch.lock.wait_time";
const HOLD_TIME: &str = "redlatch.lock.hold_time";
const WAITING: &str = "redlatch.lock.waiting";
const HELD: &str = "redlatch.lock.held";
const LOSSES: &str = "redlatch.lock.losses";
const TIME_LEFT: &str = "redlatch.lock.renewal.time_left";

impl MetricsObserver {
    /// Describes the metrics to the recorder, which must be installed by now to hear that.
    #[must_use]
    pub fn new() -> Self {
        describe_histogram!(WAIT_TIME, Unit::Seconds, "How long the waits for a lock lasted.");
        describe_histogram!(HOLD_TIME, Unit::Seconds, "How long a lock was held.");
        describe_gauge!(WAITING, Unit::Count, "Threads that wait for a lock.");
        describe_gauge!(HELD, Unit::Count, "Locks and permits that are held.");
        describe_counter!(LOSSES, Unit::Count, "Locks that were lost.");
        describe_histogram!(TIME_LEFT, Unit::Seconds, "What a renewal found left of the lease.");
        Self::default()
    }

    /// Adds the attribute `name`: what `label` makes of a lock's name. Let there be few such
    /// labels: each is a series of its own. Without this no metric has a name.
    #[must_use]
    pub fn named_by(self, label: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self { label: Some(Box::new(label)) }
    }

    fn of<T>(&self, event: &Event<'_, T>, more: &[(&'static str, &str)]) -> Vec<Label> {
        let mut labels = vec![Label::new("kind", format!("{:?}", event.kind))];
        labels.extend(more.iter().map(|(key, value)| Label::new(*key, (*value).to_owned())));
        labels.extend(self.label.as_ref().map(|label| Label::new("name", label(event.name))));
        labels
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
        gauge!(WAITING, self.of(event, &[])).increment(1);
    }

    fn acquired(&self, event: &Event<'_, Way>) {
        self.waited(event, "Acquired", &format!("{:?}", event.how));
        if !matches!(event.kind, Kind::CountDownLatch | Kind::CyclicBarrier) {
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
        counter!(LOSSES, self.of(event, &[("outcome", &format!("{:?}", event.how))])).increment(1);
    }

    fn renewed(&self, event: &Event<'_>) {
        self.renewal(event, "Renewed");
    }

    fn renewal_failed(&self, event: &Event<'_, &str>) {
        self.renewal(event, "Failed");
    }
}

impl fmt::Debug for MetricsObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsObserver").field("is_named", &self.label.is_some()).finish()
    }
}
