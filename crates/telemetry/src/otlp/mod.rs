//! Spans to an OpenTelemetry collector: OTLP over HTTP, in protobuf.
//!
//! One task exports: it gathers spans for up to a second and sends them as one message on a connection that it keeps.
//! Calls only enqueue their spans.
//!
//! * **Full:** when [`QUEUE_SPANS`] spans wait, all spans of the next request or batch are dropped and counted.
//! * **The collector is unreachable or busy:** the message is sent twice more, a second apart; then its spans are
//!   dropped and counted. Meanwhile the queue fills.
//! * **Shutdown:** [`SpanExporter::shutdown`] sends the queued spans within its limit.
//!
//! A collector usually runs on the same machine, without TLS. A collector over https needs a certificate of an
//! authority in [`OtlpConfig::trust`].

mod env;
mod message;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_core::families;
use callboard_http_client::{Call, ClientError, Connection, Origin, Prepared, Protocol, Trust};
use prometheus_client::metrics::counter::Counter;
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout, timeout_at};

pub use self::env::{OTEL_ENDPOINT, OtlpEnvError};

use self::message::ExportRequest;
use crate::spans::{SampleRatio, Span, SpanSink};

/// The spans that may wait: of some two thousand requests, about ten megabytes. The unit is the span and not the
/// request, because a stream through many stages has more than a hundred spans.
const QUEUE_SPANS: usize = 16_384;

/// The approximate number of spans in one message.
const MESSAGE_SPANS: usize = 512;

/// The longest time to gather one message.
const GATHERING: Duration = Duration::from_secs(1);

/// The longest time for the response of the collector: the default of OpenTelemetry.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The attempts to send a message, and the pause between two.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// The longest response that is read. Its content is ignored.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// The destination of spans, and which requests are sampled.
#[derive(Clone)]
pub struct OtlpConfig {
    /// The collector, such as `http://127.0.0.1:4318`; spans are posted to `/v1/traces` below it.
    pub endpoint: Origin,
    /// The authorities that are trusted for a collector over https. Default none: then the spans for such a collector
    /// are dropped with a warning.
    pub trust: Option<Trust>,
    /// The share of requests that are sampled, of those without a `traceparent`. Default all.
    ///
    /// *Cost*: a record and some five spans for each sampled request. *Threat*: a client can have all of its requests
    /// sampled, by the flag of its `traceparent`. Spans beyond the queue are dropped: others lose spans and no calls.
    pub ratio: SampleRatio,
    /// The name of this service in traces. Default `callboard`.
    pub service: String,
    /// Further attributes of this service, such as `deployment.environment`. Default none.
    pub attributes: Vec<(String, String)>,
    /// Headers of each message, such as the key of a hosted collector. Default none.
    pub headers: Vec<(String, String)>,
    /// The longest time for the response of the collector. Default 10 s.
    pub timeout: Duration,
}

impl OtlpConfig {
    /// Exports all requests to this collector.
    #[must_use]
    pub fn new(endpoint: Origin) -> Self {
        Self {
            endpoint,
            trust: None,
            ratio: SampleRatio::ALL,
            service: "callboard".to_owned(),
            attributes: Vec::new(),
            headers: Vec::new(),
            timeout: ANSWER_TIMEOUT,
        }
    }
}

/// Hides the values of headers.
impl fmt::Debug for OtlpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("OtlpConfig")
            .field("endpoint", &self.endpoint)
            .field("ratio", &self.ratio)
            .field("service", &self.service)
            .field("attributes", &self.attributes)
            .field("headers", &headers)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

families! {
    /// Counters of spans. Clones share them.
    pub struct SpanMetrics {
        /// Spans that the collector took.
        pub exported: Counter = "spans_exported", "Spans that the collector took";
        /// Spans that were dropped.
        pub dropped: Counter =
            "spans_dropped",
            "Spans that were dropped, because the queue was full or the collector did not take them";
    }
}

/// Exports spans until [`shutdown`](Self::shutdown). Dropping it loses the queued spans.
#[derive(Debug)]
#[must_use = "spans are sent as long as this lives"]
pub struct SpanExporter {
    /// `None` after shutdown.
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl SpanExporter {
    /// Spawns the task on the current runtime, and gives the sink that feeds it.
    pub fn spawn(config: &OtlpConfig, metrics: SpanMetrics) -> (Self, Arc<dyn SpanSink>) {
        let (queue, spans) = SpanQueue::new(QUEUE_SPANS, metrics.dropped.clone());
        let (stop, stopped) = oneshot::channel();
        let sender = ExportTask { config: config.clone(), connection: None, metrics, is_unreachable: false };
        let task = tokio::spawn(sender.run(spans, stopped));
        (Self { stop: Some(stop), task }, Arc::new(queue))
    }

    /// Sends the queued spans within `limit`, and ends. Later spans are dropped.
    pub async fn shutdown(mut self, limit: Duration) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if timeout(limit, &mut self.task).await.is_err() {
            tracing::warn!("the last spans were not sent in time");
        }
    }
}

impl Drop for SpanExporter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The bounded queue of spans.
#[derive(Debug)]
struct SpanQueue {
    sender: mpsc::Sender<SpanBatch>,
    /// One permit for each span.
    permits: Arc<Semaphore>,
    dropped: Counter,
}

/// The spans of one request or one batch, with their permits.
#[derive(Debug)]
struct SpanBatch {
    spans: Vec<Span>,
    _permits: OwnedSemaphorePermit,
}

impl SpanQueue {
    fn new(most_spans: usize, dropped: Counter) -> (Self, mpsc::Receiver<SpanBatch>) {
        // There are never more batches than spans.
        let (sender, batches) = mpsc::channel(most_spans);
        (Self { sender, permits: Arc::new(Semaphore::new(most_spans)), dropped }, batches)
    }

    fn try_put(&self, spans: Vec<Span>) -> Option<()> {
        let count = u32::try_from(spans.len()).ok()?;
        let _permits = Arc::clone(&self.permits).try_acquire_many_owned(count).ok()?;
        self.sender.try_send(SpanBatch { spans, _permits }).ok()
    }
}

impl SpanSink for SpanQueue {
    fn put(&self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        if self.try_put(spans).is_none() {
            self.dropped.inc_by(count);
        }
    }
}

/// The state of the task.
struct ExportTask {
    config: OtlpConfig,
    connection: Option<Connection>,
    metrics: SpanMetrics,
    /// Whether the last message was dropped, which was logged.
    is_unreachable: bool,
}

impl ExportTask {
    async fn run(mut self, mut batches: mpsc::Receiver<SpanBatch>, mut stopped: oneshot::Receiver<()>) {
        loop {
            let first = tokio::select! {
                biased;
                _ = &mut stopped => break,
                first = batches.recv() => first,
            };
            let Some(SpanBatch { spans: mut gathered, .. }) = first else { return };
            let until = tokio::time::Instant::now() + GATHERING;
            let mut is_over = false;
            while gathered.len() < MESSAGE_SPANS && !is_over {
                tokio::select! {
                    biased;
                    _ = &mut stopped => is_over = true,
                    more = timeout_at(until, batches.recv()) => match more {
                        Ok(Some(more)) => gathered.extend(more.spans),
                        Ok(None) | Err(_) => break,
                    },
                }
            }
            self.send(gathered).await;
            if is_over {
                break;
            }
        }
        batches.close();
        let mut last = Vec::new();
        while let Some(more) = batches.recv().await {
            last.extend(more.spans);
            if last.len() >= MESSAGE_SPANS {
                self.send(std::mem::take(&mut last)).await;
            }
        }
        if !last.is_empty() {
            self.send(last).await;
        }
    }

    /// Sends one message, or drops it.
    async fn send(&mut self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        let OtlpConfig { endpoint, service, attributes, headers, .. } = &self.config;
        let body = Bytes::from(ExportRequest::new(service, attributes, spans).encode_to_vec());
        let mut call = Call::post("/v1/traces", "application/x-protobuf", body);
        call.headers.extend_from_slice(headers);
        let outcome = match call.prepare(endpoint, Protocol::Http1) {
            Ok(message) => self.send_with_retries(&message).await,
            Err(error) => Err(error.to_string()),
        };
        match outcome {
            Ok(()) => {
                self.metrics.exported.inc_by(count);
                self.is_unreachable = false;
            }
            Err(why) => {
                self.metrics.dropped.inc_by(count);
                if !self.is_unreachable {
                    tracing::warn!(collector = %self.config.endpoint, why, "spans are dropped");
                }
                self.is_unreachable = true;
            }
        }
    }

    async fn send_with_retries(&mut self, message: &Prepared) -> Result<(), String> {
        let mut attempt = 1;
        loop {
            let why = match timeout(self.config.timeout, self.try_send(message)).await {
                Ok(Ok(200..=299)) => return Ok(()),
                // A retry would have the same outcome.
                Ok(Ok(status)) if !matches!(status, 429 | 502..=504) => return Err(format!("status {status}")),
                Ok(Ok(status)) => format!("status {status}"),
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer in {:?}", self.config.timeout),
            };
            self.connection = None;
            if attempt == ATTEMPTS {
                return Err(why);
            }
            attempt += 1;
            sleep(PAUSE).await;
        }
    }

    async fn try_send(&mut self, message: &Prepared) -> Result<u16, ClientError> {
        let mut connection = match self.connection.take().filter(|connection| !connection.is_closed()) {
            Some(connection) => connection,
            None => {
                let OtlpConfig { endpoint, trust, .. } = &self.config;
                Connection::open_trusting(endpoint, Protocol::Http1, trust.as_ref()).await?
            }
        };
        let answer = connection.send(message).await?;
        let status = answer.status();
        // Read to its end, so that the connection can be reused. The content does not matter.
        if answer.bytes(MAX_ANSWER_BYTES).await.is_ok() {
            self.connection = Some(connection);
        }
        Ok(status)
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use callboard_core::timeline::SpanId;

    use super::*;

    fn spans(count: usize) -> Vec<Span> {
        let now = SystemTime::now();
        let span = |_| Span {
            id: SpanId::begin(),
            parent: None,
            name: "x".to_owned(),
            is_server: false,
            start: now,
            end: now,
            attributes: Vec::new(),
            links: Vec::new(),
            omitted_links: 0,
            error: None,
        };
        (0..count).map(span).collect()
    }

    #[test]
    fn spans_beyond_the_queue_are_dropped_and_counted() {
        let (queue, mut waiting) = SpanQueue::new(6, Counter::default());
        (1..=4).for_each(|count| queue.put(spans(count)));
        assert_eq!(queue.dropped.get(), 4, "one, two and three of them fill it");
        queue.put(spans(1));
        assert_eq!(queue.dropped.get(), 5);
        assert_eq!(waiting.try_recv().unwrap().spans.len(), 1);
        queue.put(spans(2));
        queue.put(spans(1));
        assert_eq!(queue.dropped.get(), 7, "there is room for one again");
        queue.put(spans(7));
        assert_eq!(queue.dropped.get(), 14, "more than it ever holds");
    }
}
