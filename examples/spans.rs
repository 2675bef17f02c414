//! Spans of waits and holds for OpenTelemetry, inside the spans of `tracing`.

use std::env;
use std::time::{Duration, SystemTime};

use opentelemetry::KeyValue;
use opentelemetry::trace::{Span, Status, Tracer, TracerProvider};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use redlatch::observe::{Event, Observer, Way};
use redlatch::{Client, ErrorKind, LostReason};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::prelude::*;

/// Makes a span of each wait and each hold when it ends.
struct Spans(SdkTracer);

impl Spans {
    fn add<T>(&self, what: &str, event: &Event<'_, T>, how: Option<String>, status: Status) {
        let end = SystemTime::now();
        let mut attributes = vec![KeyValue::new("redlatch.name", event.name.to_owned())];
        attributes.extend(how.map(|how| KeyValue::new("redlatch.how", how)));
        let builder = self.0.span_builder(format!("{what} {:?}", event.kind));
        let builder = builder.with_attributes(attributes).with_start_time(end - event.time);
        // The span of the thread that calls the lock. redlatch's own threads have no such span.
        let parent = tracing::Span::current().context();
        let mut span = builder.start_with_context(&self.0, &parent);
        span.set_status(status);
        span.end_with_timestamp(end);
    }
}

impl Observer for Spans {
    fn acquired(&self, event: &Event<'_, Way>) {
        self.add("wait for", event, Some(format!("{:?}", event.how)), Status::Unset);
    }

    fn gave_up(&self, event: &Event<'_, Option<ErrorKind>>) {
        let status = event.how.map_or(Status::Unset, |kind| Status::error(format!("{kind:?}")));
        self.add("wait for", event, None, status);
    }

    fn released(&self, event: &Event<'_>) {
        self.add("hold", event, None, Status::Ok);
    }

    fn lost(&self, event: &Event<'_, LostReason>) {
        self.add("hold", event, None, Status::error(event.how.to_string()));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let exporter = opentelemetry_stdout::SpanExporter::default(); // or opentelemetry_otlp's
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("shop"));
    // `init` also makes tracing events of redlatch's log lines.
    tracing_subscriber::registry().with(layer).with(tracing_subscriber::fmt::layer()).init();

    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let client = Client::builder(&url).observer(Spans(provider.tracer("redlatch"))).connect()?;
    tracing::info_span!("checkout", order = 7).in_scope(|| {
        let guard = client.reentrant_lock("orders").lock()?;
        std::thread::sleep(Duration::from_millis(20)); // the work
        guard.unlock()
    })?;
    client.shutdown();
    provider.shutdown()?;
    Ok(())
}
