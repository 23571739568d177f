//! Spans to an OpenTelemetry collector: OTLP over HTTP, in protobuf.
//!
//! One task has the spans: it gathers them for up to a second, writes them as one request and sends it on a connection that it
//! keeps. Calls only put their spans down.
//!
//! * **Full:** beyond [`QUEUE`] requests that wait, spans are dropped and counted.
//! * **The collector is away, or says that it is busy:** the same spans are sent again twice, a second apart; then they are dropped
//!   and counted. Meanwhile the queue fills.
//! * **Shutdown:** [`SpanExporter::shutdown`] sends what is there, within its limit.
//!
//! A collector is spoken to without TLS, because it is as a rule the one on the same machine.

mod message;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prometheus_client::metrics::counter::Counter;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout, timeout_at};

use self::message::ExportRequest;
use crate::client::{Call, ClientError, Connection, Origin, Prepared, Protocol};
use crate::spans::{SampleRatio, Span, SpanSink};

/// Requests and batches whose spans wait to be sent; at five spans each a few megabytes.
const QUEUE: usize = 2_048;

/// Spans in one message to the collector, about.
const MESSAGE_SPANS: usize = 512;

/// How long spans are gathered for one message.
const GATHERING: Duration = Duration::from_secs(1);

/// How long the collector may take for one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a message is sent before it is dropped, and the time between.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// What is read of an answer, which has nothing to say.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Where spans go, and which.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OtlpConfig {
    /// The collector, such as `http://127.0.0.1:4318`; spans are posted to `/v1/traces` below it.
    pub endpoint: Origin,
    /// How many of the requests are sampled whose callers do not say. Default all.
    ///
    /// *Cost*: of a sampled request, a record and some five spans. *Threat*: a client can have any of its requests sampled, by the
    /// flag of its `traceparent`; what does not fit the queue is dropped, so that it costs others their spans and not their calls.
    pub ratio: SampleRatio,
    /// What this service is called in traces. Default `callboard`.
    pub service: String,
}

impl OtlpConfig {
    /// All requests, to this collector.
    #[must_use]
    pub fn new(endpoint: Origin) -> Self {
        Self { endpoint, ratio: SampleRatio::ALL, service: "callboard".to_owned() }
    }
}

/// What is counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpanMetrics {
    pub(crate) exported: Counter,
    pub(crate) dropped: Counter,
}

/// Sends spans until it is told to stop; dropped before that, what it has is lost.
#[derive(Debug)]
#[must_use = "spans are sent as long as this lives"]
pub struct SpanExporter {
    /// Taken when it is told to stop.
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl SpanExporter {
    /// Starts the task on the current runtime.
    pub(crate) fn start(config: &OtlpConfig, metrics: SpanMetrics) -> (Self, Arc<dyn SpanSink>) {
        let (sender, spans) = mpsc::channel(QUEUE);
        let (stop, stopped) = oneshot::channel();
        let sending = Sending {
            origin: config.endpoint.clone(),
            service: config.service.clone(),
            connection: None,
            metrics: metrics.clone(),
            is_away: false,
        };
        let task = tokio::spawn(sending.run(spans, stopped));
        (Self { stop: Some(stop), task }, Arc::new(Queue { sender, dropped: metrics.dropped }))
    }

    /// Sends what is there and ends, within `limit`. Spans that come later are dropped.
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

/// Where calls put their spans.
#[derive(Debug)]
struct Queue {
    sender: mpsc::Sender<Vec<Span>>,
    dropped: Counter,
}

impl SpanSink for Queue {
    fn put(&self, spans: Vec<Span>) {
        if let Err(error) = self.sender.try_send(spans) {
            self.dropped.inc_by(error.into_inner().len() as u64);
        }
    }
}

/// The state of the task.
struct Sending {
    origin: Origin,
    service: String,
    connection: Option<Connection>,
    metrics: SpanMetrics,
    /// The last message was dropped, and the log knows.
    is_away: bool,
}

impl Sending {
    async fn run(mut self, mut spans: mpsc::Receiver<Vec<Span>>, mut stopped: oneshot::Receiver<()>) {
        loop {
            let first = tokio::select! {
                biased;
                _ = &mut stopped => break,
                first = spans.recv() => first,
            };
            let Some(mut gathered) = first else { return };
            let until = tokio::time::Instant::now() + GATHERING;
            let mut is_over = false;
            while gathered.len() < MESSAGE_SPANS && !is_over {
                tokio::select! {
                    biased;
                    _ = &mut stopped => is_over = true,
                    more = timeout_at(until, spans.recv()) => match more {
                        Ok(Some(more)) => gathered.extend(more),
                        Ok(None) | Err(_) => break,
                    },
                }
            }
            self.send(gathered).await;
            if is_over {
                break;
            }
        }
        spans.close();
        let mut last = Vec::new();
        while let Some(more) = spans.recv().await {
            last.extend(more);
            if last.len() >= MESSAGE_SPANS {
                self.send(std::mem::take(&mut last)).await;
            }
        }
        if !last.is_empty() {
            self.send(last).await;
        }
    }

    /// Sends one message, or gives it up.
    async fn send(&mut self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        let body = Bytes::from(ExportRequest::of(&self.service, spans).encode_to_vec());
        let call = Call::post("/v1/traces", "application/x-protobuf", body);
        let outcome = match call.prepare(&self.origin, Protocol::Http1) {
            Ok(message) => self.send_again(&message).await,
            Err(error) => Err(error.to_string()),
        };
        match outcome {
            Ok(()) => {
                self.metrics.exported.inc_by(count);
                self.is_away = false;
            }
            Err(why) => {
                self.metrics.dropped.inc_by(count);
                if !self.is_away {
                    tracing::warn!(collector = %self.origin, why, "spans are dropped");
                }
                self.is_away = true;
            }
        }
    }

    async fn send_again(&mut self, message: &Prepared) -> Result<(), String> {
        let mut attempt = 1;
        loop {
            let why = match timeout(ANSWER_TIMEOUT, self.try_send(message)).await {
                Ok(Ok(200..=299)) => return Ok(()),
                // It will say the same again.
                Ok(Ok(status)) if !matches!(status, 429 | 502..=504) => return Err(format!("status {status}")),
                Ok(Ok(status)) => format!("status {status}"),
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer in {ANSWER_TIMEOUT:?}"),
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
            None => Connection::open(&self.origin, Protocol::Http1).await?,
        };
        let answer = connection.send(message).await?;
        let status = answer.status();
        // Read to its end, so that the connection can be used again.
        answer.bytes(MAX_ANSWER_BYTES).await?;
        self.connection = Some(connection);
        Ok(status)
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use callboard_core::SpanId;

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
            error: None,
        };
        (0..count).map(span).collect()
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_counted_at_once() {
        let (sender, mut waiting) = mpsc::channel(2);
        let queue = Queue { sender, dropped: Counter::default() };
        (1..=4).for_each(|count| queue.put(spans(count)));
        assert_eq!((queue.dropped.get(), waiting.try_recv().unwrap().len()), (3 + 4, 1));
        queue.put(spans(5));
        assert_eq!(queue.dropped.get(), 7, "there is room again");
    }
}
