//! Spans to an OpenTelemetry collector: OTLP over HTTP, in protobuf.
//!
//! One task has the spans: it gathers them for up to a second, writes them as one request and sends it on a connection that it
//! keeps. Calls only put their spans down.
//!
//! * **Full:** beyond [`QUEUE_SPANS`] spans that wait, those of the next request or batch are dropped and counted, all of them.
//! * **The collector is away, or says that it is busy:** the same spans are sent again twice, a second apart; then they are dropped
//!   and counted. Meanwhile the queue fills.
//! * **Shutdown:** [`SpanExporter::shutdown`] sends what is there, within its limit.
//!
//! A collector is as a rule the one on the same machine, and spoken to without TLS; one that is elsewhere has to be served over https
//! with a certificate of an authority that is [named](OtlpConfig::trust).

mod message;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prometheus_client::metrics::counter::Counter;
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout, timeout_at};

use self::message::ExportRequest;
use crate::spans::{SampleRatio, Span, SpanSink};
use callboard_http_client::{Call, ClientError, Connection, Origin, Prepared, Protocol, Trust};

/// Spans that wait to be sent: those of some two thousand requests, and about ten megabytes. Spans are counted and not requests,
/// because a stream through many stages has more than a hundred.
const QUEUE_SPANS: usize = 16_384;

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
pub struct OtlpConfig {
    /// The collector, such as `http://127.0.0.1:4318`; spans are posted to `/v1/traces` below it.
    pub endpoint: Origin,
    /// The authorities one of which has to stand behind the certificate of a collector that is served over https. Default none: such
    /// a collector gets nothing, and its spans are dropped with a warning.
    pub trust: Option<Trust>,
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
        Self { endpoint, trust: None, ratio: SampleRatio::ALL, service: "callboard".to_owned() }
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
        let (queue, spans) = Queue::new(QUEUE_SPANS, metrics.dropped.clone());
        let (stop, stopped) = oneshot::channel();
        let sending = Sending {
            origin: config.endpoint.clone(),
            trust: config.trust.clone(),
            service: config.service.clone(),
            connection: None,
            metrics,
            is_away: false,
        };
        let task = tokio::spawn(sending.run(spans, stopped));
        (Self { stop: Some(stop), task }, Arc::new(queue))
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
    sender: mpsc::Sender<Parcel>,
    /// One for each span.
    places: Arc<Semaphore>,
    dropped: Counter,
}

/// The spans of one request or one batch, with their places in the queue.
#[derive(Debug)]
struct Parcel {
    spans: Vec<Span>,
    _places: OwnedSemaphorePermit,
}

impl Queue {
    fn new(most_spans: usize, dropped: Counter) -> (Self, mpsc::Receiver<Parcel>) {
        // There are never more parcels than spans.
        let (sender, parcels) = mpsc::channel(most_spans);
        (Self { sender, places: Arc::new(Semaphore::new(most_spans)), dropped }, parcels)
    }

    fn try_put(&self, spans: Vec<Span>) -> Option<()> {
        let count = u32::try_from(spans.len()).ok()?;
        let _places = Arc::clone(&self.places).try_acquire_many_owned(count).ok()?;
        self.sender.try_send(Parcel { spans, _places }).ok()
    }
}

impl SpanSink for Queue {
    fn put(&self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        if self.try_put(spans).is_none() {
            self.dropped.inc_by(count);
        }
    }
}

/// The state of the task.
struct Sending {
    origin: Origin,
    trust: Option<Trust>,
    service: String,
    connection: Option<Connection>,
    metrics: SpanMetrics,
    /// The last message was dropped, and the log knows.
    is_away: bool,
}

impl Sending {
    async fn run(mut self, mut parcels: mpsc::Receiver<Parcel>, mut stopped: oneshot::Receiver<()>) {
        loop {
            let first = tokio::select! {
                biased;
                _ = &mut stopped => break,
                first = parcels.recv() => first,
            };
            let Some(Parcel { spans: mut gathered, .. }) = first else { return };
            let until = tokio::time::Instant::now() + GATHERING;
            let mut is_over = false;
            while gathered.len() < MESSAGE_SPANS && !is_over {
                tokio::select! {
                    biased;
                    _ = &mut stopped => is_over = true,
                    more = timeout_at(until, parcels.recv()) => match more {
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
        parcels.close();
        let mut last = Vec::new();
        while let Some(more) = parcels.recv().await {
            last.extend(more.spans);
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
            None => Connection::open_trusting(&self.origin, Protocol::Http1, self.trust.as_ref()).await?,
        };
        let answer = connection.send(message).await?;
        let status = answer.status();
        // Read to its end, so that the connection can be used again. What it says does not change what became of the spans.
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
    fn what_finds_no_room_is_dropped_and_counted_at_once() {
        let (queue, mut waiting) = Queue::new(6, Counter::default());
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
