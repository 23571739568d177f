//! The unread rest of a request's body on HTTP/1, after an early response.
//!
//! Many clients send head and body in two segments, so the body of a refused request comes after its response. A client
//! that keeps its connection then sends the next request on it. So a short rest is read and discarded while the
//! response is sent, and the connection goes on; else the response says `connection: close` (RFC 9112 §9.6), and what
//! the client still sends is discarded by the [linger](super::linger).
//!
//! * **Short** is an announced rest of at most 64 KiB. A rest in chunks has to end within that and within a moment,
//!   because the response has to say what becomes of the connection.
//! * **Late**: the rest may take the time of a body. Then the connection ends in the middle of it, so no request is
//!   lost.
//! * **Full**: a connection has one rest at a time, which is not kept and takes no permit.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::HttpBody;
use axum::http::header::{CONNECTION, EXPECT, HeaderValue};
use axum::http::{HeaderMap, Version};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::activity::Activity;

/// The longest rest that is read: a usual form or picture, and the usual buffer of a socket.
pub(crate) const SHORT_REST: u64 = 64 * 1024;

/// The time in which a rest in chunks has to end: more than the client needs for a further segment.
const CHUNKS_END: Duration = Duration::from_millis(20);

pub(crate) const CLOSE: HeaderValue = HeaderValue::from_static("close");

/// No rest, or a rest that was read.
const READ: u64 = 0;
/// A rest that is being read.
const READING: u64 = 1;
/// A rest that nothing reads: the connection ends with the response.
const LOST: u64 = 2;
/// More than the states: a power of two, because the state is read for each response.
const STATES: u64 = 4;

/// The rest of the body of a connection's current request.
#[derive(Debug, Default)]
pub(crate) struct UnreadRest {
    /// The number of the rest on its connection, times [`STATES`], plus its state. The next request may come before the
    /// task that has read a rest ends; with the number that task does not change the state of the next rest.
    state: AtomicU64,
    reading: Mutex<Option<Reading>>,
    /// The longest time to read it.
    limit: Duration,
}

/// The task that reads a rest.
#[derive(Debug)]
struct Reading {
    task: JoinHandle<()>,
    is_announced: bool,
}

impl UnreadRest {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Whether there is a rest that was not read to its end.
    pub(crate) fn is_unread(&self) -> bool {
        self.state() != READ
    }

    fn state(&self) -> u64 {
        self.state.load(Ordering::Relaxed) % STATES
    }

    /// The next rest begins in this state. Returns what [`end`](Self::end) takes. A connection has one body at a time.
    fn begin(&self, state: u64) -> u64 {
        let began = (self.state.load(Ordering::Relaxed) / STATES + 1) * STATES + state;
        self.state.store(began, Ordering::Relaxed);
        began
    }

    /// The rest that began so ends in this state.
    fn end(&self, began: u64, state: u64) {
        let ended = began / STATES * STATES + state;
        // A refusal means that a later rest is the current one.
        _ = self.state.compare_exchange(began, ended, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Stops reading: the connection ends.
    pub(crate) fn abandon(&self) {
        if let Some(reading) = self.reading.lock().take() {
            reading.task.abort();
        }
    }

    /// Whether the connection goes on after the response. A rest in chunks has to end now.
    async fn goes_on(&self) -> bool {
        let reading = self.reading.lock().take_if(|reading| !reading.is_announced);
        if let Some(mut reading) = reading
            && timeout(CHUNKS_END, &mut reading.task).await.is_err()
        {
            reading.task.abort();
            return false;
        }
        self.state() != LOST
    }
}

/// The response to a request with an unread rest: it says `connection: close` if its connection does not go on.
pub(super) fn settle<B: Send + 'static>(activity: Arc<Activity>, mut response: Response<B>) -> Settled<B> {
    Settled(Box::pin(async move {
        let rest = activity.rest();
        if response.headers().get(CONNECTION).is_some_and(|value| *value == CLOSE) {
            rest.abandon();
        } else if !rest.goes_on().await {
            response.headers_mut().insert(CONNECTION, CLOSE);
        }
        Ok(response)
    }))
}

/// A type of its own: with the trait object in sight the compiler does not find the future of a connection to be
/// `Send`.
pub(super) struct Settled<B>(Pin<Box<dyn Future<Output = Result<Response<B>, Infallible>> + Send>>);

impl<B> Future for Settled<B> {
    type Output = Result<Response<B>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

/// Reads the rest of a dropped body, if it is short.
pub(super) fn read(activity: &Arc<Activity>, mut body: Incoming) {
    let rest = activity.rest();
    let announced = body.size_hint().exact();
    let (true, Ok(runtime)) = (announced.is_none_or(|bytes| bytes <= SHORT_REST), Handle::try_current()) else {
        rest.begin(LOST);
        return;
    };
    let (limit, reader) = (rest.limit, RestReader::begin(activity));
    let task = runtime.spawn(async move {
        let mut reader = reader;
        if timeout(limit, read_to_end(&mut body)).await == Ok(true) {
            reader.end = READ;
        }
    });
    *rest.reading.lock() = Some(Reading { task, is_announced: announced.is_some() });
}

/// Whether the body ended within [`SHORT_REST`].
async fn read_to_end(body: &mut Incoming) -> bool {
    let mut left = SHORT_REST;
    loop {
        match poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
                let Some(rest) = left.checked_sub(bytes) else { return false };
                left = rest;
            }
        }
    }
}

/// Marks a rest as over when its reading ends, or is aborted.
struct RestReader {
    activity: Arc<Activity>,
    began: u64,
    end: u64,
}

impl RestReader {
    fn begin(activity: &Arc<Activity>) -> Self {
        Self { activity: Arc::clone(activity), began: activity.rest().begin(READING), end: LOST }
    }
}

impl Drop for RestReader {
    fn drop(&mut self) {
        self.activity.body_ended();
        self.activity.rest().end(self.began, self.end);
    }
}

/// The fate of a connection after a refusal.
///
/// Our listener reads a short rest, and tells by itself if a rest is long. It does not know the clients that want no
/// further request, nor the client that waits for `100 Continue` before it sends its body: that one may send it now, or
/// its next request. Another listener, in which the edge is mounted, reads nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnreadBody {
    is_unread: bool,
    ends_connection: bool,
}

impl UnreadBody {
    pub(crate) fn new<B: HttpBody>(headers: &HeaderMap, body: &B, is_own_listener: bool) -> Self {
        let is_unread = !body.is_end_stream();
        Self { is_unread, ends_connection: is_unread && (!is_own_listener || wants_no_rest(headers)) }
    }

    /// HTTP/2 ends the stream only.
    pub(crate) fn ends_connection(self, version: Version) -> bool {
        self.ends_connection && version <= Version::HTTP_11 || self.is_unread && version < Version::HTTP_11
    }
}

fn wants_no_rest(headers: &HeaderMap) -> bool {
    let mut options = headers.get_all(CONNECTION).iter().filter_map(|line| line.to_str().ok());
    headers.contains_key(EXPECT) || options.any(|line| line.to_ascii_lowercase().contains("close"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reading_that_ends_late_leaves_the_rest_of_the_next_request_alone() {
        for next in [LOST, READING] {
            let activity = Arc::new(Activity::default());
            let mut first = RestReader::begin(&activity);
            first.end = READ;
            let second = activity.rest().begin(next);
            drop(first);
            assert_eq!(activity.rest().state(), next);
            assert_eq!(activity.rest().goes_on().await, next != LOST);
            activity.rest().end(second, READ);
            assert!(!activity.rest().is_unread());
        }
    }
}
