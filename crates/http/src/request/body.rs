//! Reads a body that was admitted, within its limits of size, silence and time.
//!
//! A body with a Content-Length took its permits by that number, before a byte of it was read; a chunked one takes them chunk
//! by chunk. Every way in which a body can go wrong has its answer: too long 413, silent 408, later than the deadline 504,
//! no room 429, broken 400. Dropping the future stops reading.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::HttpBody;
use bytes::{Bytes, BytesMut};
use callboard_core::{Admission, Deadline, Instant};
use tokio::time::Sleep;
use tower::BoxError;

use crate::error::ApiError;

/// What bounds the reading of one body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    pub(crate) max_bytes: u64,
    /// The longest silence.
    pub(crate) progress_timeout: Duration,
    /// The request's own deadline.
    pub(crate) deadline: Deadline,
}

/// A body on its way in.
pub(crate) struct Incoming<'a, B> {
    body: B,
    admission: &'a Admission,
    limits: BodyLimits,
    /// The length that permits were taken for; without one they are taken as chunks come.
    announced: Option<u64>,
    received: u64,
    patience: Patience,
}

impl<'a, B> Incoming<'a, B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    pub(crate) fn new(body: B, announced: Option<u64>, admission: &'a Admission, limits: BodyLimits) -> Self {
        Self { body, admission, limits, announced, received: 0, patience: Patience::default() }
    }

    /// The whole body. A body that came in one piece is that piece, uncopied.
    pub(crate) async fn collect(mut self) -> Result<Bytes, ApiError> {
        let Some(first) = self.chunk().await? else { return Ok(Bytes::new()) };
        if self.body.is_end_stream() {
            return Ok(first);
        }
        let Some(second) = self.chunk().await? else { return Ok(first) };
        // The node has set this much aside for us: room for all of it at once saves the copies of growing.
        let expected = self.announced.map_or(first.len() + second.len(), |bytes| bytes as usize);
        let mut whole = BytesMut::with_capacity(expected);
        whole.extend_from_slice(&first);
        whole.extend_from_slice(&second);
        while let Some(chunk) = self.chunk().await? {
            whole.extend_from_slice(&chunk);
        }
        Ok(whole.freeze())
    }

    /// The next piece, or `None` at the end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            let Some(frame) = poll_fn(|cx| self.poll_frame(cx)).await? else { return Ok(None) };
            // Trailers have no meaning to us.
            let Ok(chunk) = frame.into_data() else { continue };
            self.account(chunk.len() as u64)?;
            if !chunk.is_empty() {
                return Ok(Some(chunk));
            }
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<hyper::body::Frame<Bytes>>, ApiError>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                self.patience.rewarded();
                Poll::Ready(frame.transpose().map_err(|error| ApiError::broken_body(&error.into())))
            }
            Poll::Pending => self.patience.poll_exhausted(cx, &self.limits).map(Err),
        }
    }

    fn account(&mut self, bytes: u64) -> Result<(), ApiError> {
        self.received += bytes;
        if self.received > self.limits.max_bytes {
            return Err(ApiError::body_too_large(self.limits.max_bytes));
        }
        if self.announced.is_none() {
            self.admission.grow(bytes)?;
        }
        Ok(())
    }
}

/// The timer of a body, which most bodies never need.
///
/// A small body is in the socket's buffer together with its headers, and hyper hands it over the second time it is asked. So
/// the first wait is not timed but followed by another look; a body that is still missing then gets a timer. Arming
/// one for every request would cost a lock on the runtime's timer wheel, twice.
#[derive(Default)]
struct Patience {
    looked_twice: bool,
    last_progress: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    fn rewarded(&mut self) {
        self.looked_twice = false;
        if self.timer.is_some() {
            self.last_progress = Some(Instant::now());
        }
    }

    /// Ready with the error when nothing came for too long.
    fn poll_exhausted(&mut self, cx: &mut Context<'_>, limits: &BodyLimits) -> Poll<ApiError> {
        if !self.looked_twice {
            self.looked_twice = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let last_progress = *self.last_progress.get_or_insert_with(Instant::now);
        let silent_until = last_progress + limits.progress_timeout;
        let until = silent_until.min(limits.deadline.instant());
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        // Progress moves the end further away, but the timer is only reset when it fires: once, not once per chunk.
        while timer.as_mut().poll(cx).is_ready() {
            if timer.deadline() >= until {
                let stalled = silent_until <= limits.deadline.instant();
                return Poll::Ready(match stalled {
                    true => ApiError::body_stalled(limits.progress_timeout),
                    false => ApiError::deadline_within_body(),
                });
            }
            timer.as_mut().reset(until);
        }
        Poll::Pending
    }
}
