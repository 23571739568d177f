//! Reads the messages of a request from its body.
//!
//! * **Full:** a message is refused by its prefix: if it is longer than it may be, or the node has no room for it now.
//!   Nothing is allocated for an announced length; bytes are charged as they arrive.
//! * **Late:** a message that began has the limits of any body. Between the messages of a stream a client may be
//!   silent, as long as its connection may be, and longer while calls of the stream are open.
//! * **Compressed:** a message is unpacked in small steps, each of which is charged, up to the same limit.
//! * **Broken:** a body that ends within a message is an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::Account as _;
use callboard_core::edge::{BodyReservation, HeldBytes, Pace, PaceLimits, PendingBody, TooSlow};
use callboard_core::{Instant, LocalClient};
use callboard_http::axum::body::{Body, BodyDataStream};
use callboard_http::protocol::{ApiError, BodyBuffer, ContentCoding, unpacked};
use futures_util::{FutureExt, StreamExt};
use tokio::time::timeout_at;

use crate::framing::{PREFIX_BYTES, Prefix, no_coding};

/// A message that was read, and the account that pays for it.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) bytes: Bytes,
    pub(crate) account: Arc<HeldBytes>,
}

/// Reads the messages of one request.
pub(crate) struct MessageReader {
    body: BodyDataStream,
    /// Bytes that arrived and belong to no message yet.
    rest: Bytes,
    client: LocalClient,
    coding: Option<ContentCoding>,
    max_bytes: u64,
    pace: PaceLimits,
    /// The longest silence between two messages, while no call is open.
    idle: Duration,
    /// Calls without an outcome.
    open: Arc<AtomicUsize>,
}

impl MessageReader {
    /// Reads messages of at most `max_bytes`.
    pub(crate) fn new(
        body: Body,
        client: LocalClient,
        coding: Option<ContentCoding>,
        max_bytes: u64,
        pace: PaceLimits,
        idle: Duration,
    ) -> Self {
        let (body, open) = (body.into_data_stream(), Arc::default());
        Self { body, rest: Bytes::new(), client, coding, max_bytes, pace, idle, open }
    }

    /// The number of open calls, which the owner of the calls keeps.
    pub(crate) fn open_calls(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.open)
    }

    /// The only message of a request.
    pub(crate) async fn only(&mut self) -> Result<Message, ApiError> {
        let mut pace = Pace::new(Instant::now(), self.pace);
        if !self.fill(&mut pace).await? {
            return Err(invalid("the request has no message"));
        }
        let message = self.message(&mut pace).await?;
        if !self.rest.is_empty() || self.fill(&mut pace).await? {
            return Err(invalid("the request has more than one message"));
        }
        Ok(message)
    }

    /// The next message of a stream; `None` at its end.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, ApiError> {
        let mut end = Instant::now() + self.idle;
        while self.rest.is_empty() {
            match timeout_at(end, self.body.next()).await {
                Ok(Some(chunk)) => self.rest = chunk.map_err(|error| broken(&error))?,
                Ok(None) => return Ok(None),
                Err(_) if self.open.load(Ordering::Relaxed) > 0 => end = Instant::now() + self.idle,
                Err(_) => return Err(TooSlow::Stalled { bytes: 1, window: self.idle }.into()),
            }
        }
        self.message(&mut Pace::new(Instant::now(), self.pace)).await.map(Some)
    }

    /// Waits for bytes of the body. `false` at its end.
    async fn fill(&mut self, pace: &mut Pace) -> Result<bool, ApiError> {
        while self.rest.is_empty() {
            // Short messages are in the socket's buffer with their head: they need no timer.
            let chunk = match self.body.next().now_or_never() {
                Some(chunk) => chunk,
                None => pace.wait_for(self.body.next()).await?,
            };
            let Some(chunk) = chunk else { return Ok(false) };
            self.rest = chunk.map_err(|error| broken(&error))?;
            pace.moved(Instant::now(), self.rest.len());
        }
        Ok(true)
    }

    /// Reads a message whose first byte has arrived.
    async fn message(&mut self, pace: &mut Pace) -> Result<Message, ApiError> {
        let mut prefix = [0; PREFIX_BYTES];
        let mut received = 0;
        while received < PREFIX_BYTES {
            if !self.fill(pace).await? {
                return Err(invalid("the request ends within the prefix of a message"));
            }
            let piece = self.take((PREFIX_BYTES - received) as u64);
            prefix[received..received + piece.len()].copy_from_slice(&piece);
            received += piece.len();
        }
        let Prefix { is_compressed, length } = Prefix::parse(prefix)?;
        let coding = if is_compressed { Some(self.coding.ok_or_else(no_coding)?) } else { None };
        if u64::from(length) > self.max_bytes {
            return Err(ApiError::body_too_large(self.max_bytes));
        }
        let account = Arc::new(self.client.edge().held_bytes());
        let bytes = self.exactly(length.into(), &account, pace).await?;
        let bytes = match coding {
            None => bytes,
            Some(coding) => {
                let whole = unpacked(coding, bytes, self.max_bytes, &account).await?;
                account.refund(length as usize);
                whole
            }
        };
        Ok(Message { bytes, account })
    }

    /// Reads this many bytes, or fails if the body ends before.
    async fn exactly(&mut self, length: u64, account: &HeldBytes, pace: &mut Pace) -> Result<Bytes, ApiError> {
        if self.rest.len() as u64 >= length {
            account.grow(length)?;
            return Ok(self.take(length));
        }
        // Held for a moment: an announced length blocks no other call.
        account.grow(length)?;
        account.release();
        let mut reservation = BodyReservation::new(Some(length));
        let first = self.take(length);
        account.grow(reservation.receive(first.len() as u64))?;
        let mut whole = BodyBuffer::new(Some(length), first);
        let mut pending: Option<PendingBody> = None;
        while whole.received() < length {
            let mut chunk = self.body.next().now_or_never();
            if chunk.is_none() {
                if pending.is_none() {
                    pending = Some(self.client.edge().begin_body()?);
                }
                chunk = Some(pace.wait_for(self.body.next()).await?);
            }
            let Some(chunk) = chunk.flatten() else { return Err(invalid("the request ends within a message")) };
            self.rest = chunk.map_err(|error| broken(&error))?;
            pace.moved(Instant::now(), self.rest.len());
            let piece = self.take(length - whole.received());
            account.grow(reservation.receive(piece.len() as u64))?;
            whole.push(piece).await;
        }
        // While the pieces are joined, the memory holds the message twice.
        let joined = whole.copies_at_end();
        account.grow(joined)?;
        let whole = whole.finish().await;
        account.refund(usize::try_from(joined).unwrap_or(usize::MAX));
        Ok(whole)
    }

    fn take(&mut self, most: u64) -> Bytes {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.rest.split_to(most.min(self.rest.len()))
    }
}

/// 3: a request that is not as its method has it.
pub(crate) fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> ApiError {
    ApiError::new(callboard_core::ErrorKind::InvalidInput, message)
}

fn broken(error: &callboard_http::axum::Error) -> ApiError {
    invalid(format!("the body could not be read: {error}"))
}
