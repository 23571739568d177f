//! Reads the frames of a stream of calls off a body, one ahead of the calls that are made of them.
//!
//! * **Full:** no frame is read while the stream has no room for its call; the connection's own flow control holds the client. A
//!   frame takes bytes of the node as they arrive, not as it announces them, and no place of its route. Where the node has none
//!   left it waits, as a call of a stream does, and is refused (429) when it has waited as long as a call may.
//! * **Over its limit:** where the caller's key has one, each frame waits for its turn, too, and is refused (429) in the same way.
//! * **Late:** a frame that has begun has the pace of any body (408). Between frames a client may be silent while calls of its
//!   stream are open, and for `body_timeout` when there are none.
//! * **Broken:** what is no frame is the end of the stream, told by [`FrameReader::fault`].

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::{Buf, Bytes};
use callboard_codec::{Account, DecodeLimits, Format, Payload};
use callboard_core::edge::{CAPACITY_POLL_INTERVAL, HeldBytes, PreparedInput, Route};
use callboard_core::{Deadline, FunctionCall, Instant, LocalClient, MAX_TIMEOUT};
use futures_util::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{sleep, sleep_until, timeout_at};

use crate::call::RequestContext;
use crate::error::ApiError;
use crate::guard::{KeyHolder, OverLimit};
use crate::request::arguments::arguments;
use crate::request::body_buffer::BodyBuffer;
use crate::request::codec_budget::CodecBudget;
use crate::request::pace::{Pace, PaceLimits, TooSlow};
use crate::respond::frame::{FrameKind, HEAD_BYTES};

/// What is too small to be worth a permit while it is read.
const SMALL_FRAME: u64 = 16 * 1024;

/// The steps in which a larger one takes its bytes.
const STEP_BYTES: u64 = 256 * 1024;

/// What reader and writer of one stream tell each other.
#[derive(Debug, Default)]
pub(super) struct StreamState {
    /// Calls without an answer.
    pub(super) open: AtomicUsize,
    /// What pays for their arguments, in the order of the calls.
    pub(super) accounts: Mutex<VecDeque<ArgumentAccount>>,
    /// Why there are no more frames, where it is not their end.
    pub(super) fault: Mutex<Option<ApiError>>,
    /// The body was cut: most probably its client has left.
    pub(super) cut: Notify,
}

/// The account of one call's arguments.
pub(super) struct ArgumentAccount(
    #[expect(dead_code, reason = "it is held, and given back when it is dropped")] Option<Arc<dyn Account>>,
);

impl fmt::Debug for ArgumentAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PaidBy")
    }
}

/// A body on its way to being frames.
pub(super) struct FrameReader {
    body: BodyDataStream,
    /// What was received beyond the last frame.
    rest: Bytes,
    /// What is paid for it.
    rest_held: HeldBytes,
    client: LocalClient,
    route: Arc<Route>,
    limits: DecodeLimits,
    max_bytes: u64,
    idle: Duration,
    /// How long a frame may wait for room, or for its turn.
    timeout: Duration,
    /// Whoever asks, where that is limited.
    key_holder: Option<KeyHolder>,
    /// The first call is counted with the request.
    is_counted: bool,
    pace: PaceLimits,
    shared: Arc<StreamState>,
}

impl FrameReader {
    pub(super) fn new(
        body: Body,
        context: RequestContext<'_>,
        route: &Arc<Route>,
        timeout: Option<Duration>,
        shared: Arc<StreamState>,
    ) -> Self {
        let RequestContext { client, config, key_holder, .. } = context;
        let pace = PaceLimits::new(config, Deadline::after(Instant::now(), MAX_TIMEOUT));
        let (max_bytes, idle) = (config.max_body_bytes_of(route.name()), config.body_timeout);
        let timeout = client.timeout_of(route, timeout);
        Self {
            body: body.into_data_stream(),
            rest: Bytes::new(),
            rest_held: client.held_bytes(),
            client: client.clone(),
            route: Arc::clone(route),
            limits: config.decode.clone(),
            max_bytes,
            idle,
            timeout,
            key_holder: key_holder.cloned(),
            is_counted: true,
            pace,
            shared,
        }
    }

    /// The inputs of the calls. Ends at the end, and at what is no frame.
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

    /// How envelopes with arguments become inputs of the route.
    fn reading(&self) -> ArgumentDecoder {
        let (client, route, limits) = (self.client.clone(), Arc::clone(&self.route), self.limits.clone());
        ArgumentDecoder { client, route, limits, timeout: self.timeout, shared: Arc::clone(&self.shared) }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        if !self.begins().await? {
            return Ok(None);
        }
        self.count().await?;
        // Each frame is a body of its own to whoever waits for it.
        let mut pace = Pace::new(Instant::now());
        self.pace.deadline = Deadline::after(Instant::now(), MAX_TIMEOUT);
        let mut room = FrameBudget::new(self.client.held_bytes(), self.timeout);
        let mut head = self.exactly(HEAD_BYTES as u64, &mut pace, &mut room).await?;
        let (kind, zeros, length) = (head.get_u8(), head.get_uint(3), u64::from(head.get_u32_le()));
        match kind {
            kind if kind == FrameKind::Value as u8 && zeros == 0 => {}
            kind if kind == FrameKind::End as u8 && zeros == 0 && length == 0 => return Ok(None),
            _ => return Err(ApiError::bad_frame(format!("a frame of kind {kind} is not for calls"))),
        }
        let most = self.max_bytes.min(room.held.limit());
        if length > most {
            return Err(ApiError::body_too_large(most));
        }
        room.wait_for_all(length, &mut pace).await?;
        self.exactly(length, &mut pace, &mut room).await.map(Some)
    }

    /// Waits until the key's limit lets one more call through, as long as a call may.
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
        // Pieces without a byte in them, which HTTP/2 has, are silence, too.
        let mut end = Instant::now() + self.idle;
        while self.rest.is_empty() {
            match timeout_at(end, self.body.next()).await {
                Ok(Some(chunk)) => {
                    let chunk = self.whole(chunk)?;
                    self.keep(chunk);
                }
                Ok(None) => return Ok(false),
                Err(_) if self.shared.open.load(Ordering::Relaxed) > 0 => end = Instant::now() + self.idle,
                Err(_) => return Err(ApiError::body_stalled(1, self.idle)),
            }
        }
        Ok(true)
    }

    /// So many bytes, or an error where the body ends before.
    async fn exactly(&mut self, length: u64, pace: &mut Pace, room: &mut FrameBudget) -> Result<Bytes, ApiError> {
        let mut gathering = BodyBuffer::new(Some(length), self.take(length));
        while gathering.received() < length {
            let (end, why) = pace.end(&self.pace);
            let chunk = match timeout_at(end, self.body.next()).await {
                Ok(Some(chunk)) => self.whole(chunk)?,
                Ok(None) => return Err(ApiError::bad_frame("the body ends within a frame")),
                Err(_) if why == TooSlow::Stalled => {
                    return Err(ApiError::body_stalled(self.pace.progress_bytes, self.pace.progress_timeout));
                }
                Err(_) => return Err(ApiError::body_out_of_time(self.pace.body_timeout)),
            };
            pace.received(Instant::now(), chunk.len() as u64, &self.pace);
            self.keep(chunk);
            let piece = self.take(length - gathering.received());
            gathering.push(piece).await;
            room.keep(gathering.received(), length, pace).await?;
        }
        Ok(gathering.finish().await)
    }

    fn whole(&self, chunk: Result<Bytes, axum::Error>) -> Result<Bytes, ApiError> {
        chunk.map_err(|error| {
            self.shared.cut.notify_one();
            ApiError::broken_body(&error)
        })
    }

    /// Takes a chunk to cut frames out of, of which there is nothing left. A large one is charged, unless there is no room for it:
    /// it is here already, and a stream that held it while it waits would keep others waiting. It is no longer than what a
    /// connection reads at once.
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
        let taken = self.rest.split_to(most.min(self.rest.len()));
        if self.rest.is_empty() {
            self.rest_held.release();
        }
        taken
    }
}

/// What the arguments of one call are read by.
struct ArgumentDecoder {
    client: LocalClient,
    route: Arc<Route>,
    limits: DecodeLimits,
    timeout: Duration,
    shared: Arc<StreamState>,
}

impl ArgumentDecoder {
    /// The input that an envelope is. Where there is no memory for it, it waits as a frame does.
    async fn input(self, envelope: Bytes) -> PreparedInput {
        let end = Instant::now() + self.timeout;
        let (account, input) = loop {
            let account: Arc<dyn Account> = Arc::new(self.client.held_bytes());
            let input = self.read(Arc::clone(&account), envelope.clone(), end).await;
            match input {
                Err(error) if error.is_overloaded() && Instant::now() < end => sleep(CAPACITY_POLL_INTERVAL).await,
                input => break (account, input),
            }
        };
        // An input is charged to its call by its size, and the size of arguments is not known to it.
        let account = self.route.is_function().then_some(account);
        self.shared.accounts.lock().push_back(ArgumentAccount(account));
        PreparedInput(input.map_err(ApiError::into_failure))
    }

    async fn read(&self, account: Arc<dyn Account>, envelope: Bytes, end: Instant) -> Result<Payload, ApiError> {
        let (route, limits, bytes) = (Arc::clone(&self.route), self.limits.clone(), envelope.len());
        let expense = CodecBudget::new(&self.client, account, Deadline::after(end, Duration::ZERO));
        let ((), input) = expense.run((), bytes, move || input_in(&route, &envelope, &limits)).await?;
        input
    }
}

/// The input in one frame: a function takes its arguments as they are, every other route its own type.
fn input_in(route: &Route, bytes: &Bytes, limits: &DecodeLimits) -> Result<Payload, ApiError> {
    let call: FunctionCall = arguments().decode(Format::Envelope, bytes, limits)?.into_inner()?;
    match route.is_function() {
        true => Ok(Payload::new(call)),
        false => Ok(route.input().from_value(call.into_input(route)?)?),
    }
}

/// Bytes of the node for a frame that is being read; its call takes its own.
struct FrameBudget {
    held: HeldBytes,
    /// How long it may still be waited for.
    patience: Duration,
}

impl FrameBudget {
    fn new(held: HeldBytes, patience: Duration) -> Self {
        Self { held, patience }
    }

    /// Waits until there is room for all of a frame, and takes none of it: what is announced costs nobody anything.
    async fn wait_for_all(&mut self, length: u64, pace: &mut Pace) -> Result<(), ApiError> {
        if length > SMALL_FRAME {
            self.take(length, pace).await?;
            self.held.release();
        }
        Ok(())
    }

    /// Takes what has arrived, and up to a step more of what was announced.
    async fn keep(&mut self, received: u64, length: u64, pace: &mut Pace) -> Result<(), ApiError> {
        if received <= SMALL_FRAME.max(self.held.bytes()) {
            return Ok(());
        }
        let needed = received - self.held.bytes();
        self.take(needed.max(STEP_BYTES.min(length - self.held.bytes())), pace).await
    }

    async fn take(&mut self, bytes: u64, pace: &mut Pace) -> Result<(), ApiError> {
        while !self.held.try_grow(bytes) {
            if self.patience.is_zero() {
                return Ok(self.held.grow(bytes)?);
            }
            let began = Instant::now();
            sleep(CAPACITY_POLL_INTERVAL.min(self.patience)).await;
            let waited = began.elapsed();
            self.patience = self.patience.saturating_sub(waited);
            pace.paused(waited);
        }
        Ok(())
    }
}
