//! Reads a body within its limits of size, pace and time, and admits its call when the body begins, if its route is
//! known by then.
//!
//! A call holds no permit before the first byte of its body: a head costs its sender nothing. Bytes are then charged to
//! the call as they arrive. An announced length is only compared with the free bytes, so that a call without room is
//! refused before its body is read. A compressed body is decompressed step by step and charged by its decompressed
//! length; its decoder is charged, too. Calls that have a permit and wait for more of their bodies are at most half of
//! the node's calls in flight. Each failure has its status: too long 413, too slow 408, past the deadline 504,
//! no room 429, broken 400. Dropping the future stops reading.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::HttpBody;
use bytes::Bytes;
use callboard_codec::Account;
use callboard_core::edge::{Admission, BodyReservation, HeldBytes, Pace, PaceLimits, PendingBody, RequestBytes, Route};
use callboard_core::{CallError, Deadline, Instant, LocalClient, SessionKey};
use tokio::time::Sleep;
use tower::BoxError;

use super::body_buffer::BodyBuffer;
use crate::error::ApiError;
use crate::request::coding::{ContentCoding, Decompressor, MAX_WINDOW_BYTES};
use crate::runtime::coop;

/// A call that takes its permit when its body begins.
pub struct PendingAdmission<'a> {
    client: &'a LocalClient,
    route: &'a Arc<Route>,
    /// The time at which the head was read. Timeouts count from here.
    arrived_at: Instant,
    session: Option<SessionKey>,
    admission: Option<Admission>,
    request: Option<RequestBytes>,
}

impl fmt::Debug for PendingAdmission<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingAdmission").field("at", &self.arrived_at).finish_non_exhaustive()
    }
}

impl<'a> PendingAdmission<'a> {
    /// A call, perhaps of a session, whose head was read at `arrived_at`.
    #[must_use]
    pub const fn new(
        client: &'a LocalClient,
        route: &'a Arc<Route>,
        arrived_at: Instant,
        session: Option<SessionKey>,
    ) -> Self {
        Self { client, route, arrived_at, session, admission: None, request: None }
    }

    /// The deadline of the call.
    #[must_use]
    pub fn deadline(&self, timeout: Option<Duration>) -> Deadline {
        Deadline::after(self.arrived_at, self.client.edge().timeout_of(self.route, timeout))
    }

    /// The permit, after the body was read.
    ///
    /// # Errors
    ///
    /// The node has no room.
    pub fn into_admission(self) -> Result<Admission, CallError> {
        match self.admission {
            Some(admission) => Ok(admission),
            None => self.client.edge().admit_arrived(self.route, 0, self.arrived_at, self.session),
        }
    }
}

impl Arrival for PendingAdmission<'_> {
    fn client(&self) -> &LocalClient {
        self.client
    }

    fn check_room(&self, bytes: u64) -> Result<(), CallError> {
        self.client.edge().check_room(self.route, bytes)
    }

    fn charge(&mut self, bytes: u64) -> Result<(), CallError> {
        if let Some(admission) = &self.admission {
            return admission.grow(bytes);
        }
        let admit = |bytes| self.client.edge().admit_arrived(self.route, bytes, self.arrived_at, self.session);
        match &self.request {
            None => self.admission = Some(admit(bytes)?),
            // Charged after it has joined: all accounts of the request say together whether it is too large.
            Some(request) => {
                let admission = self.admission.insert(admit(0)?);
                admission.join(request);
                admission.grow(bytes)?;
            }
        }
        Ok(())
    }

    fn refund(&self, bytes: u64) {
        self.admission.iter().for_each(|admission| admission.shrink(bytes));
    }

    fn request(&mut self) -> &RequestBytes {
        self.request.get_or_insert_default()
    }

    fn is_charged(&self) -> bool {
        self.admission.is_some()
    }
}

/// The account of a body that names its route itself: its calls take their permits when it was read.
#[derive(Debug)]
pub struct UnroutedBody<'a> {
    client: &'a LocalClient,
    held: Arc<HeldBytes>,
    request: Option<RequestBytes>,
}

impl<'a> UnroutedBody<'a> {
    /// A body that has not begun to arrive.
    #[must_use]
    pub fn new(client: &'a LocalClient) -> Self {
        Self { client, held: Arc::new(client.edge().held_bytes()), request: None }
    }

    /// The account of its bytes, which frees them when it is dropped.
    #[must_use]
    pub fn into_account(self) -> Arc<HeldBytes> {
        self.held
    }
}

impl Arrival for UnroutedBody<'_> {
    fn client(&self) -> &LocalClient {
        self.client
    }

    fn check_room(&self, bytes: u64) -> Result<(), CallError> {
        self.client.edge().held_bytes().grow(bytes)
    }

    fn charge(&mut self, bytes: u64) -> Result<(), CallError> {
        self.held.grow(bytes)
    }

    fn refund(&self, bytes: u64) {
        Account::refund(&*self.held, usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    fn request(&mut self) -> &RequestBytes {
        let request = self.request.get_or_insert_default();
        self.held.join(request);
        request
    }

    fn is_charged(&self) -> bool {
        self.held.bytes() > 0
    }
}

/// What a body is charged to while it arrives: a call of a known route, or an account until its route is known. It is
/// asked for [room](Self::check_room) once, before the first byte; a failed [`charge`](Self::charge) ends the body.
pub trait Arrival {
    /// The client of the node that reads the body.
    fn client(&self) -> &LocalClient;

    /// Whether there is room for a body of this length. Holds none of it afterwards.
    ///
    /// # Errors
    ///
    /// The node has no room.
    fn check_room(&self, bytes: u64) -> Result<(), CallError>;

    /// Charges bytes that arrived.
    ///
    /// # Errors
    ///
    /// The node has no room.
    fn charge(&mut self, bytes: u64) -> Result<(), CallError>;

    /// Gives back bytes that were charged.
    fn refund(&self, bytes: u64);

    /// The sum of this and other accounts of the request. Asked before the body begins.
    fn request(&mut self) -> &RequestBytes;

    /// Whether it holds anything of the node.
    fn is_charged(&self) -> bool;
}

/// The limits of one body.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// The longest body.
    pub max_bytes: u64,
    /// The limits of its time.
    pub pace: PaceLimits,
}

/// The body of a request, from any transport.
pub trait RequestBody: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + Unpin {}

impl<B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + Unpin> RequestBody for B {}

/// The announced length of a body, if it has one: that by the framing, which equals `content-length`.
///
/// # Errors
///
/// It is longer than `max_bytes`.
pub fn announced_length(body: &(impl HttpBody + ?Sized), max_bytes: u64) -> Result<Option<u64>, ApiError> {
    let announced = body.size_hint().exact();
    if announced.is_some_and(|bytes| bytes > max_bytes) {
        return Err(ApiError::body_too_large(max_bytes));
    }
    Ok(announced)
}

/// A body that is being read.
pub struct IncomingBody<'a, A, B> {
    body: B,
    arrival: &'a mut A,
    limits: BodyLimits,
    /// The decoder of a compressed body. `compressed_bytes` counts its compressed bytes.
    decoder: Option<Box<BodyDecoder>>,
    compressed_bytes: u64,
    announced: Option<u64>,
    /// Bytes that arrived, after decompression, and the charge for them.
    reservation: BodyReservation,
    timer: BodyTimer,
    /// While the call has a permit and waits for its body.
    pending: Option<PendingBody>,
}

impl<A, B> fmt::Debug for IncomingBody<'_, A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncomingBody").field("reservation", &self.reservation).finish_non_exhaustive()
    }
}

impl<'a, A: Arrival, B: RequestBody> IncomingBody<'a, A, B> {
    /// A body with this announced length, if it has one. The call is refused here if there is no room for it.
    ///
    /// # Errors
    ///
    /// The node has no room for the announced length.
    pub fn new(body: B, announced: Option<u64>, arrival: &'a mut A, limits: BodyLimits) -> Result<Self, CallError> {
        arrival.check_room(announced.unwrap_or(0))?;
        let (reservation, timer) = (BodyReservation::new(announced), BodyTimer::default());
        let (decoder, compressed_bytes, pending) = (None, 0, None);
        Ok(Self { body, arrival, limits, decoder, compressed_bytes, announced, reservation, timer, pending })
    }

    /// The same body, decompressed as it arrives. Its limits and charges apply to the decompressed bytes.
    #[must_use]
    pub fn decoded(mut self, coding: Option<ContentCoding>) -> Self {
        if let Some(coding) = coding {
            let held = self.held_bytes();
            self.decoder = Some(Box::new(BodyDecoder::new(coding, held)));
            self.announced = None;
            self.reservation = BodyReservation::new(None);
        }
        self
    }

    /// Another account of the same request, for data that is derived from the body while it arrives.
    pub(crate) fn held_bytes(&mut self) -> HeldBytes {
        let held = self.arrival.client().edge().held_bytes();
        held.join(self.arrival.request());
        held
    }

    /// The whole body. A body of one piece is not copied.
    pub(crate) fn collect(&mut self) -> impl Future<Output = Result<Bytes, ApiError>> {
        self.collect_aligned_at(0)
    }

    /// The whole body, with the byte at `offset` aligned unless the body is one piece.
    ///
    /// # Errors
    ///
    /// The body is too long, too slow or broken, or the node has no room for it.
    pub async fn collect_aligned_at(&mut self, offset: usize) -> Result<Bytes, ApiError> {
        let Some(first) = self.chunk().await? else { return Ok(Bytes::new()) };
        if self.decoder.is_none() && self.body.is_end_stream() {
            return Ok(first);
        }
        match self.chunk().await? {
            None => Ok(first),
            // Boxed, because it is large: this future moves with each request.
            Some(second) => Box::pin(self.join(offset, first, second)).await,
        }
    }

    /// Reads the rest, and joins the pieces.
    async fn join(&mut self, offset: usize, first: Bytes, second: Bytes) -> Result<Bytes, ApiError> {
        let mut whole = BodyBuffer::aligned_at(offset, self.announced, first);
        whole.push(second).await;
        while let Some(chunk) = self.chunk().await? {
            whole.push(chunk).await;
        }
        // While the pieces are joined, the memory holds the body twice.
        let joined = whole.copies_at_end();
        if joined > 0 {
            self.arrival.charge(joined)?;
        }
        let whole = whole.finish().await;
        self.arrival.refund(joined);
        Ok(whole)
    }

    /// The next piece, or `None` at the end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, ApiError> {
        if self.decoder.is_some() {
            return Box::pin(self.decoded_chunk()).await;
        }
        let chunk = self.raw_chunk().await?;
        self.account(chunk.as_ref().map_or(0, |chunk| chunk.len() as u64))?;
        Ok(chunk)
    }

    /// The next piece of the decompressed body.
    async fn decoded_chunk(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            let Some(decoder) = &mut self.decoder else { return Ok(None) };
            let unpacked = match decoder.step()? {
                Some(unpacked) => unpacked,
                None => match self.raw_chunk().await? {
                    Some(chunk) => {
                        self.compressed_bytes += chunk.len() as u64;
                        if self.compressed_bytes > self.limits.max_bytes {
                            return Err(ApiError::body_too_large(self.limits.max_bytes));
                        }
                        if let Some(decoder) = &mut self.decoder {
                            decoder.decoder()?.push(chunk);
                        }
                        continue;
                    }
                    None => match self.decoder.take() {
                        Some(mut decoder) => decoder.decoder()?.finish()?,
                        None => return Ok(None),
                    },
                },
            };
            self.account(unpacked.len() as u64)?;
            // A decompression bomb expands at the speed of memory: other tasks run in between.
            coop::moved(unpacked.len()).await;
            if !unpacked.is_empty() {
                return Ok(Some(unpacked));
            }
        }
    }

    /// The next piece as it was sent.
    async fn raw_chunk(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            let Some(frame) = poll_fn(|cx| self.poll_frame(cx)).await? else { return Ok(None) };
            // Trailers are ignored.
            let Ok(chunk) = frame.into_data() else { continue };
            if !chunk.is_empty() {
                return Ok(Some(chunk));
            }
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<hyper::body::Frame<Bytes>>, ApiError>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                let frame = frame.transpose().map_err(|error| ApiError::broken_body(&*error.into()))?;
                let bytes = frame.as_ref().and_then(|frame| frame.data_ref()).map_or(0, Bytes::len);
                self.timer.rewarded(bytes);
                coop::count(cx, bytes);
                Poll::Ready(Ok(frame))
            }
            Poll::Pending => {
                let exhausted = self.timer.poll_exhausted(cx, self.limits.pace).map(Err);
                if self.pending.is_none() && self.timer.timed.is_some() && self.arrival.is_charged() {
                    self.pending = Some(self.arrival.client().edge().begin_body()?);
                }
                exhausted
            }
        }
    }

    fn account(&mut self, bytes: u64) -> Result<(), ApiError> {
        if self.reservation.received() + bytes > self.limits.max_bytes {
            return Err(ApiError::body_too_large(self.limits.max_bytes));
        }
        match self.reservation.receive(bytes) {
            0 => Ok(()),
            more => Ok(self.arrival.charge(more)?),
        }
    }
}

/// The decoder of a compressed body. Its memory is charged from the first byte to the last.
struct BodyDecoder {
    coding: ContentCoding,
    decoder: Option<Decompressor>,
    held: HeldBytes,
    /// The size that the window of zstd may have. It is touched as the body is decompressed.
    window: u64,
}

/// State and buffers of one decoder: 75 KiB for gzip and deflate, 255 KiB for zstd; a short body touches half of that.
const DECODER_BYTES: u64 = 128 * 1024;

impl BodyDecoder {
    fn new(coding: ContentCoding, held: HeldBytes) -> Self {
        Self { coding, decoder: None, held, window: 0 }
    }

    fn decoder(&mut self) -> Result<&mut Decompressor, ApiError> {
        if self.decoder.is_none() {
            self.held.grow(DECODER_BYTES)?;
        }
        match &mut self.decoder {
            Some(decoder) => Ok(decoder),
            none => Ok(none.insert(Decompressor::new(self.coding)?)),
        }
    }

    fn step(&mut self) -> Result<Option<Bytes>, ApiError> {
        let Some(decoder) = &mut self.decoder else { return Ok(None) };
        let step = decoder.step()?;
        if self.coding == ContentCoding::Zstd {
            let unpacked = step.as_ref().map_or(0, |step| step.len() as u64);
            let more = unpacked.min(MAX_WINDOW_BYTES - self.window);
            self.held.grow(more)?;
            self.window += more;
        }
        Ok(step)
    }
}

/// The timer of a body. Most bodies need none.
///
/// A small body is in the socket's buffer with its head, and hyper returns it on the second poll. So the first wait is
/// not timed but polled again; a body that is still missing then gets a timer. A timer for every request would lock the
/// runtime's timer wheel twice.
#[derive(Default)]
struct BodyTimer {
    was_polled_again: bool,
    timed: Option<(Pace, Pin<Box<Sleep>>)>,
}

impl BodyTimer {
    fn rewarded(&mut self, bytes: usize) {
        self.was_polled_again = false;
        if let Some((pace, _)) = &mut self.timed {
            pace.moved(Instant::now(), bytes);
        }
    }

    /// Ready with the error of a body that is too slow.
    fn poll_exhausted(&mut self, cx: &mut Context<'_>, limits: PaceLimits) -> Poll<ApiError> {
        if !self.was_polled_again {
            self.was_polled_again = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let (pace, timer) = self.timed.get_or_insert_with(|| {
            let pace = Pace::new(Instant::now(), limits);
            (pace, Box::pin(tokio::time::sleep_until(pace.end().0)))
        });
        // Progress moves the end; the timer is reset only when it fires, not with each chunk.
        while timer.as_mut().poll(cx).is_ready() {
            let (end, reason) = pace.end();
            if timer.deadline() >= end {
                return Poll::Ready(reason.into());
            }
            timer.as_mut().reset(end);
        }
        Poll::Pending
    }
}
