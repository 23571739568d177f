//! The loop of every streamed response: the items of a source become pieces of its body.
//!
//! * **Begun:** the status waits for the first item, or for the heartbeat.
//! * **Joined:** items that are ready leave as one piece, up to [a limit](SendBuffer). None waits for a later one.
//! * **Silent:** a comment breaks a silence, also at the beginning.
//! * **Full:** a slow client is waited for.
//! * **Broken:** what a source writes of an error is the end.
//! * **Cancelled:** a client that leaves drops the source, and counts as abandoned.

use std::task::Poll;

use bytes::Bytes;
use callboard_core::edge::LARGE_BYTES;
use futures_util::FutureExt as _;
use prometheus_client::metrics::counter::Counter;

use super::AbandonGuard;
use super::heartbeat::{HEARTBEAT, Heartbeat};
use super::send_buffer::SendBuffer;
use crate::error::ApiError;
use crate::observe::stream_log::StreamedItems;

/// Where the items of a stream come from, and how they are written.
pub(crate) trait StreamSource: Send {
    /// What is written.
    type Item: Send;

    /// The next item; `None` after the last one. Nothing is lost if the future is dropped before it is ready: a silence
    /// does that.
    fn next(&mut self) -> impl Future<Output = Option<Result<Self::Item, ApiError>>> + Send;

    /// The next item, if it is there already.
    fn ready(&mut self) -> Poll<Option<Result<Self::Item, ApiError>>> {
        self.next().now_or_never().map_or(Poll::Pending, Poll::Ready)
    }

    /// The size of an item, in bytes. From [`LARGE_BYTES`] on, items that were ready before it are sent first.
    fn bytes(&self, item: &Self::Item) -> usize;

    /// Writes an item.
    fn write(&mut self, item: Self::Item, out: &mut SendBuffer) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// Writes what follows the last item.
    fn end(&mut self, out: &mut SendBuffer);

    /// Logs an error, and writes the end of a stream that has failed.
    fn failed(&mut self, error: &ApiError, out: &mut SendBuffer);
}

/// One stream.
pub(crate) struct JoinedStream<S: StreamSource> {
    pub(crate) source: S,
    /// `None` if its form has no comments.
    heartbeat: Option<Heartbeat>,
    /// A large item that is ready: it is written after the earlier items.
    held: Option<S::Item>,
    /// Written items, not yet sent.
    send_buffer: SendBuffer,
    is_over: bool,
    /// `None` before the stream begins.
    leaving: Option<AbandonGuard>,
    items: StreamedItems,
}

/// What a source has.
enum Next<T> {
    Item(Result<T, ApiError>),
    End,
    /// Nothing for too long.
    Silence,
}

impl<T> From<Option<Result<T, ApiError>>> for Next<T> {
    fn from(item: Option<Result<T, ApiError>>) -> Self {
        item.map_or(Self::End, Self::Item)
    }
}

impl<S: StreamSource> JoinedStream<S> {
    pub(crate) fn new(source: S, heartbeat: Option<Heartbeat>) -> Self {
        Self {
            source,
            heartbeat,
            held: None,
            send_buffer: SendBuffer::default(),
            is_over: false,
            leaving: None,
            items: StreamedItems::default(),
        }
    }

    /// The number of items, as the log reads it.
    pub(crate) fn items(&self) -> StreamedItems {
        self.items.clone()
    }

    /// Waits for the first item, which decides the status, or for the heartbeat.
    ///
    /// # Errors
    ///
    /// That of the first item.
    pub(crate) async fn begin(&mut self) -> Result<(), ApiError> {
        match self.next_or_silence().await {
            Next::Item(item) => self.write(item?).await,
            end_or_silence => {
                self.take(end_or_silence).await;
                Ok(())
            }
        }
    }

    /// The request has its response now: a client that leaves before the end is counted here. Before this, the edge
    /// counts it.
    pub(crate) fn count_leaving(&mut self, abandoned: Counter) {
        self.leaving = (!self.is_over).then(|| AbandonGuard::new(abandoned));
    }

    /// The next piece of the body; `None` after the last one.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.take_what_is_ready().await;
            if let Some(piece) = self.send_buffer.pop() {
                return Some(piece);
            }
            if self.is_over {
                return None;
            }
            let next = match self.held.take() {
                Some(item) => Next::Item(Ok(item)),
                None => self.next_or_silence().await,
            };
            self.take(next).await;
        }
    }

    async fn next_or_silence(&mut self) -> Next<S::Item> {
        let Some(heartbeat) = &mut self.heartbeat else { return self.source.next().await.into() };
        tokio::select! {
            biased;
            item = self.source.next() => {
                heartbeat.sent();
                item.into()
            }
            () = heartbeat.silence() => Next::Silence,
        }
    }

    /// Joins ready items to the next piece, if there is one.
    async fn take_what_is_ready(&mut self) {
        while !self.send_buffer.is_empty() && self.send_buffer.has_room() && !self.is_over && self.held.is_none() {
            let Poll::Ready(item) = self.source.ready() else { return };
            self.heartbeat.iter_mut().for_each(Heartbeat::sent);
            match item {
                Some(Ok(item)) if self.source.bytes(&item) >= LARGE_BYTES => self.held = Some(item),
                item => self.take(item.into()).await,
            }
        }
    }

    async fn take(&mut self, next: Next<S::Item>) {
        let written = match next {
            Next::Item(Ok(item)) => self.write(item).await,
            Next::Item(Err(error)) => Err(error),
            Next::End => {
                self.source.end(&mut self.send_buffer);
                return self.finish();
            }
            Next::Silence => return self.send_buffer.push(HEARTBEAT),
        };
        if let Err(error) = written {
            self.source.failed(&error, &mut self.send_buffer);
            self.finish();
        }
    }

    async fn write(&mut self, item: S::Item) -> Result<(), ApiError> {
        self.source.write(item, &mut self.send_buffer).await?;
        self.items.count();
        Ok(())
    }

    fn finish(&mut self) {
        self.is_over = true;
        self.leaving.iter_mut().for_each(AbandonGuard::ended);
    }
}
