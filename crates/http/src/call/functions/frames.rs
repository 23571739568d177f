//! Reads the frames of a stream of calls from a body, one frame ahead.
//!
//! * **Full:** no frame is read while the stream has no room for its call; flow control holds the client. A frame is
//!   charged as it arrives, not by its announced length, and takes no permit of its route. Without room it waits like a
//!   call of a stream, and is refused (429) after the timeout of a call.
//! * **Over its limit:** with a limited key each frame waits until it is allowed, and is refused (429) in the same way.
//! * **Late:** a frame that began has the limits of any body (408). Between frames a client may be silent while
//!   calls of its stream are open, and for `body_timeout` otherwise.
//! * **Ending:** a node that callers are to leave reads no further frame (503); the calls that it has read go on.
//! * **Broken:** an invalid frame ends the stream; `StreamState::fault` has the error.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::{Buf, Bytes};
use callboard_codec::{Account, DecodeLimits, Format, Payload};
use callboard_core::edge::{
    BodyReservation, CAPACITY_POLL_INTERVAL, HeldBytes, Pace, PaceLimits, PreparedInput, Route, TooSlow,
};
use callboard_core::{Deadline, Instant, LocalClient};
use futures_util::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{sleep, sleep_until, timeout_at};

use super::CallStyle;
use crate::call::RequestContext;
use crate::error::ApiError;
use crate::guard::{KeyHolder, OverLimit};
use crate::request::arguments;
use crate::request::body_buffer::BodyBuffer;
use crate::request::payload::payload;
use crate::respond::frame::{FrameKind, HEAD_BYTES};
use crate::upgrade::EdgeLife;

/// A smaller frame is not charged while it is read.
const SMALL_FRAME: u64 = 16 * 1024;

/// The state that reader and writer of a stream share.
#[derive(Debug, Default)]
pub(super) struct StreamState {
    /// Calls without an outcome.
    pub(super) open: AtomicUsize,
    /// The accounts of their arguments, in the order of the calls.
    pub(super) accounts: Mutex<VecDeque<ArgumentAccount>>,
    /// The error that ended the frames, if any.
    pub(super) fault: Mutex<Option<ApiError>>,
    /// The body was truncated: the client has probably left.
    pub(super) truncated: Notify,
}

/// The account of one call's arguments.
pub(super) struct ArgumentAccount(
    #[expect(dead_code, reason = "it is held, and given back when it is dropped")] Option<Arc<dyn Account>>,
);

impl fmt::Debug for ArgumentAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ArgumentAccount")
    }
}

/// The reader of a body's frames.
pub(super) struct FrameReader {
    body: BodyDataStream,
    /// Bytes after the last frame.
    rest: Bytes,
    /// The charge for them.
    rest_held: HeldBytes,
    client: LocalClient,
    route: Arc<Route>,
    style: CallStyle,
    limits: DecodeLimits,
    max_bytes: u64,
    idle: Duration,
    /// How long a frame may wait for room or for its limit.
    timeout: Duration,
    /// The owner of the key, if keys are required.
    key_holder: Option<KeyHolder>,
    /// Whether the call is counted: the request counts the first one.
    is_counted: bool,
    pace: PaceLimits,
    life: Arc<EdgeLife>,
    shared: Arc<StreamState>,
}

impl FrameReader {
    pub(super) fn new(
        body: Body,
        context: RequestContext<'_>,
        route: &Arc<Route>,
        style: CallStyle,
        timeout: Option<Duration>,
        shared: Arc<StreamState>,
    ) -> Self {
        let RequestContext { client, config, key_holder, .. } = context;
        let pace =
            PaceLimits::new(config.body_progress_timeout, config.min_bytes_per_second).within(config.body_timeout);
        let (max_bytes, idle) = (config.max_body_bytes_of(route.name()), config.body_timeout);
        let timeout = client.edge().timeout_of(route, timeout);
        Self {
            body: body.into_data_stream(),
            rest: Bytes::new(),
            rest_held: client.edge().held_bytes(),
            client: client.clone(),
            route: Arc::clone(route),
            style,
            limits: config.decode.clone(),
            max_bytes,
            idle,
            timeout,
            key_holder: key_holder.cloned(),
            is_counted: true,
            pace,
            life: Arc::clone(context.life),
            shared,
        }
    }

    /// The inputs of the calls, until the body ends or a frame is invalid.
    pub(super) fn into_inputs(self) -> impl Stream<Item = PreparedInput> + Send {
        stream::unfold(self, async |mut frames| match frames.next().await {
            Ok(Some(envelope)) => {
                frames.shared.open.fetch_add(1, Ordering::Relaxed);
                Some((frames.reading().input(envelope).await, frames))
            }
            Ok(None) => None,
            Err(fault) => {
                *frames.shared.fault.lock() = Some(fault);
                None
            }
        })
    }

    /// The decoder of the next frame.
    fn reading(&self) -> InputDecoder {
        let (client, route, limits) = (self.client.clone(), Arc::clone(&self.route), self.limits.clone());
        let (style, timeout, shared) = (self.style, self.timeout, Arc::clone(&self.shared));
        InputDecoder { client, route, style, limits, timeout, shared }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let life = Arc::clone(&self.life);
        if !life.unless_withdrawn(self.begins()).await?? {
            return Ok(None);
        }
        self.count().await?;
        // Each frame has the limits of a whole body.
        let mut pace = Pace::new(Instant::now(), self.pace);
        let mut budget = FrameBudget::new(self.client.edge().held_bytes(), self.timeout);
        let mut head = self.exactly(HEAD_BYTES as u64, &mut pace, &mut budget).await?;
        let (kind, zeros, length) = (head.get_u8(), head.get_uint(3), u64::from(head.get_u32_le()));
        match kind {
            kind if kind == FrameKind::Value as u8 && zeros == 0 => {}
            kind if kind == FrameKind::End as u8 && zeros == 0 && length == 0 => return Ok(None),
            _ => {
                return Err(ApiError::bad_frame(format!("a frame of kind {kind} is not allowed in a stream of calls")));
            }
        }
        let most = self.max_bytes.min(budget.held.limit());
        if length > most {
            return Err(ApiError::body_too_large(most));
        }
        budget.wait_for_all(length, &mut pace).await?;
        self.exactly(length, &mut pace, &mut budget).await.map(Some)
    }

    /// Waits until the limit of the key allows one more call, at most for the timeout of a call.
    async fn count(&mut self) -> Result<(), ApiError> {
        let is_counted = std::mem::replace(&mut self.is_counted, false);
        let Some(key_holder) = self.key_holder.as_ref().filter(|_| !is_counted) else { return Ok(()) };
        let end = Instant::now() + self.timeout;
        while let Err(OverLimit { wait, error }) = key_holder.take(1) {
            match wait.map(|wait| Instant::now() + wait).filter(|turn| *turn <= end) {
                Some(turn) => sleep_until(turn).await,
                None => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits for the first byte of a frame. `false` at the end of the body.
    async fn begins(&mut self) -> Result<bool, ApiError> {
        // HTTP/2 may send empty pieces: they count as silence.
        let mut end = Instant::now() + self.idle;
        while self.rest.is_empty() {
            match timeout_at(end, self.body.next()).await {
                Ok(Some(chunk)) => {
                    let chunk = self.whole(chunk)?;
                    self.keep(chunk);
                }
                Ok(None) => return Ok(false),
                Err(_) if self.shared.open.load(Ordering::Relaxed) > 0 => end = Instant::now() + self.idle,
                Err(_) => return Err(TooSlow::Stalled { bytes: 1, window: self.idle }.into()),
            }
        }
        Ok(true)
    }

    /// Reads this many bytes, or fails if the body ends before.
    async fn exactly(&mut self, length: u64, pace: &mut Pace, budget: &mut FrameBudget) -> Result<Bytes, ApiError> {
        let mut gathering = BodyBuffer::new(Some(length), self.take(length));
        while gathering.received() < length {
            let chunk = pace.wait_for(self.body.next()).await?;
            let chunk = self.whole(chunk.ok_or_else(|| ApiError::bad_frame("the body ends within a frame"))?)?;
            pace.moved(Instant::now(), chunk.len());
            self.keep(chunk);
            let piece = self.take(length - gathering.received());
            gathering.push(piece).await;
            budget.keep(gathering.received(), pace).await?;
        }
        Ok(gathering.finish().await)
    }

    fn whole(&self, chunk: Result<Bytes, axum::Error>) -> Result<Bytes, ApiError> {
        chunk.map_err(|error| {
            self.shared.truncated.notify_one();
            ApiError::broken_body(&error)
        })
    }

    /// Takes a chunk to read frames from. A large chunk is charged if there is room: it is in memory already, and
    /// waiting with it would block other calls. It is at most as long as one read of a connection.
    fn keep(&mut self, chunk: Bytes) {
        self.rest_held.release();
        let bytes = chunk.len() as u64;
        if bytes > SMALL_FRAME {
            let _is_charged = self.rest_held.try_grow(bytes);
        }
        self.rest = chunk;
    }

    fn take(&mut self, most: u64) -> Bytes {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let piece = self.rest.split_to(most.min(self.rest.len()));
        if self.rest.is_empty() {
            self.rest_held.release();
        }
        piece
    }
}

/// Decodes the input or the arguments of one call.
struct InputDecoder {
    client: LocalClient,
    route: Arc<Route>,
    style: CallStyle,
    limits: DecodeLimits,
    timeout: Duration,
    shared: Arc<StreamState>,
}

impl InputDecoder {
    /// The input of a call. Without room it waits like a frame.
    async fn input(self, envelope: Bytes) -> PreparedInput {
        let end = Instant::now() + self.timeout;
        let (account, input) = loop {
            let account: Arc<dyn Account> = Arc::new(self.client.edge().held_bytes());
            let input = self.read(Arc::clone(&account), envelope.clone(), end).await;
            match input {
                Err(error) if error.is_overloaded() && Instant::now() < end => sleep(CAPACITY_POLL_INTERVAL).await,
                input => break (account, input),
            }
        };
        // The size of an input is charged to its call; arguments have no known size, so they keep their own account.
        let has_arguments = self.style == CallStyle::Function && self.route.is_function();
        let account = has_arguments.then_some(account);
        self.shared.accounts.lock().push_back(ArgumentAccount(account));
        PreparedInput(input.map_err(ApiError::into_failure))
    }

    async fn read(&self, account: Arc<dyn Account>, envelope: Bytes, end: Instant) -> Result<Payload, ApiError> {
        let (route, style, limits) = (Arc::clone(&self.route), self.style, self.limits.clone());
        let budget = self.client.edge().codec_budget(account, Deadline::at(end));
        let decode = move |bytes: &Bytes| match style {
            CallStyle::Function => arguments::decode(&route, Format::Envelope, bytes, &limits),
            CallStyle::Route | CallStyle::Declared | CallStyle::Asgi => {
                payload(route.input(), Format::Envelope, bytes, &limits)
            }
        };
        let ((), input) = budget.run((), envelope.len(), move || decode(&envelope)).await?;
        input
    }
}

/// The bytes of the node for a frame that is being read. Its call has a separate account.
struct FrameBudget {
    held: HeldBytes,
    reservation: BodyReservation,
    /// How long the frame may still wait.
    max_wait: Duration,
}

impl FrameBudget {
    fn new(held: HeldBytes, max_wait: Duration) -> Self {
        Self { held, reservation: BodyReservation::new(None), max_wait }
    }

    /// Waits until there is room for a whole frame, and takes none: an announced length blocks no other call.
    async fn wait_for_all(&mut self, length: u64, pace: &mut Pace) -> Result<(), ApiError> {
        self.reservation = BodyReservation::new(Some(length));
        if length > SMALL_FRAME {
            self.take(length, pace).await?;
            self.held.release();
        }
        Ok(())
    }

    /// Takes the received bytes.
    async fn keep(&mut self, received: u64, pace: &mut Pace) -> Result<(), ApiError> {
        if received <= SMALL_FRAME {
            return Ok(());
        }
        match self.reservation.receive(received - self.reservation.received()) {
            0 => Ok(()),
            more => self.take(more, pace).await,
        }
    }

    async fn take(&mut self, bytes: u64, pace: &mut Pace) -> Result<(), ApiError> {
        while !self.held.try_grow(bytes) {
            if self.max_wait.is_zero() {
                return Ok(self.held.grow(bytes)?);
            }
            let began = Instant::now();
            sleep(CAPACITY_POLL_INTERVAL.min(self.max_wait)).await;
            let waited = began.elapsed();
            self.max_wait = self.max_wait.saturating_sub(waited);
            pace.paused(waited);
        }
        Ok(())
    }
}
