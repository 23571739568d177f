//! A streaming call's outputs, read at the pace of whoever asks for them.
//!
//! The node is told how many outputs there is room for, and more when half of them are read: a reader that pauses lets the worker
//! wait, without a byte on the wire.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use callboard_codec::Data;
use callboard_codec::wire::{Credit, FrameKind, frame_head};
use callboard_core::{CallError, CallOptions, ErrorKind, Instant, Timing};
use futures_util::{Stream, StreamExt, stream};

use super::call::{Talk, read_output};
use super::fault::not_started;
use super::link::Link;
use super::{Client, Prepared, Returned, Time, within};
use crate::convert;

/// The outputs of one call, with their lengths. An error is the last of them. Made by [`Client::exchange_streaming`].
#[must_use = "a call runs as its outputs are read"]
pub struct ReturnedStream<Out>(Pin<Box<dyn Stream<Item = Result<Returned<Out>, CallError>> + Send>>);

impl<Out> ReturnedStream<Out> {
    /// The next output; `None` behind the last one. A `next` that is dropped loses nothing.
    pub async fn next(&mut self) -> Option<Result<Returned<Out>, CallError>> {
        self.0.next().await
    }
}

impl<Out> Stream for ReturnedStream<Out> {
    type Item = Result<Returned<Out>, CallError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(context)
    }
}

impl<Out> fmt::Debug for ReturnedStream<Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReturnedStream").finish_non_exhaustive()
    }
}

/// Begins when the first output is asked for; its time runs from now on.
pub(super) fn read<Out: Data>(client: Client, prepared: Prepared, options: CallOptions) -> ReturnedStream<Out> {
    let time = Time::new(&options, Instant::now());
    let reading = Reading { client, options, time, link: None, phase: Phase::Begin(Box::new(prepared)) };
    ReturnedStream(Box::pin(stream::unfold(reading, Reading::next::<Out>)))
}

struct Reading {
    client: Client,
    options: CallOptions,
    time: Time,
    /// Whom it was sent to, until there is an output.
    link: Option<Arc<Link>>,
    phase: Phase,
}

enum Phase {
    Begin(Box<Prepared>),
    Open { talk: Box<Talk>, read: u32 },
    Over,
}

impl Reading {
    async fn next<Out: Data>(mut self) -> Option<(Result<Returned<Out>, CallError>, Self)> {
        if matches!(self.phase, Phase::Over) {
            return None;
        }
        if let Phase::Begin(prepared) = &self.phase {
            match self.client.link_for(&prepared.call.route, &mut self.time).await {
                Ok(link) => self.link = Some(link),
                Err(error) => {
                    self.phase = Phase::Over;
                    return Some((Err(error), self));
                }
            }
        }
        let told = within(self.time.deadline, self.advance::<Out>()).await.map_err(|late| late.into_error(true));
        let link = self.link.take();
        match told {
            Ok(Some(returned)) => Some((Ok(returned), self)),
            Ok(None) => None,
            Err(error) => {
                // Whoever makes it again finds another node, if there is one.
                if let Some(link) = link.filter(|_| error.is_refusal()) {
                    self.client.inner.links.turn_away_from(&link);
                }
                // Dropping the stream resets it.
                self.phase = Phase::Over;
                Some((Err(error), self))
            }
        }
    }

    async fn advance<Out: Data>(&mut self) -> Result<Option<Returned<Out>>, CallError> {
        if let (Phase::Begin(prepared), Some(link)) = (&self.phase, &self.link) {
            let talk = self.begin(link, Prepared::clone(prepared)).await?;
            self.phase = Phase::Open { talk: Box::new(talk), read: 0 };
        }
        let credit = self.client.inner.credit;
        let Phase::Open { talk, read } = &mut self.phase else { return Ok(None) };
        let head = talk.next_head().await?;
        if head.kind != FrameKind::Item {
            talk.answer(&head).await?;
            talk.outgoing.finish();
            self.phase = Phase::Over;
            return Ok(None);
        }
        let body = talk.body(&head).await?;
        let received_bytes = body.total_bytes().unwrap_or_default() as u64;
        let output = read_output(body, None, |body| body.finish_as::<Out>()).await?;
        *read += 1;
        // Half of what there is room for, so that the node need not wait for the word.
        if *read * 2 >= credit {
            let more = Credit { items: std::mem::take(read) };
            let head = frame_head(FrameKind::Credit, 0, &more, 0);
            let head = head.map_err(|error| CallError::new(ErrorKind::Internal, error.to_string()))?;
            // Who has answered to the end reads no more; what was answered is still to be read.
            let _ = talk.outgoing.write(&mut [head]).await;
        }
        Ok(Some(Returned { output, timing: Timing::default(), received_bytes }))
    }

    /// Sends the call. Not tried again here: a stream is seldom small, and its reader knows better.
    async fn begin(&self, link: &Arc<Link>, prepared: Prepared) -> Result<Talk, CallError> {
        let inner = &self.client.inner;
        let mut talk = Talk::open(link, &inner.frames, &inner.decode).await?;
        let Prepared { mut call, envelope } = prepared;
        convert::put_options(&mut call, &self.time.on(&self.options), Instant::now());
        call.credit = inner.credit;
        match talk.send(&call, envelope, false).await? {
            None => Ok(talk),
            Some(head) if head.kind == FrameKind::Fail => Err(talk.fail(&head).await),
            Some(_) => Err(not_started("the node answered before it had the whole call".to_owned())),
        }
    }
}
