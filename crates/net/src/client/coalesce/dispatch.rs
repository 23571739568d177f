//! Decides whether a call shares a stream with others, or has its own.
//!
//! Small calls share. A node answers a call on its stream, so a large reply delays the other replies of a shared
//! stream. So a call whose last reply was large gets its own stream, until a reply is small again.

use std::collections::BTreeSet;
use std::sync::Arc;

use arc_swap::ArcSwap;
use callboard_codec::Envelope;
use callboard_codec::wire::{Call, Fail, FrameKind, LooseFrame};
use callboard_core::{CallError, ErrorKind, Instant};

use super::super::call::{CallExchange, CallResponse, ReplyLimits, RoomPolicy};
use super::super::connection::NodeConnection;
use super::super::fault::{CallFault, unreadable};
use super::coalescer::MAX_SHARED_BYTES;
use super::slot::ReceivedOutcome;
use crate::wire;

/// A longer reply delays the other replies of its stream more than a stream costs.
const LARGE_REPLY_BYTES: usize = 64 << 10;

/// The most names that are stored; then they are learned again.
const MAX_NAMES: usize = 256;

impl NodeConnection {
    /// Makes a call, and waits for its outcome.
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels this call where it runs, and no other.
    pub(crate) async fn call(
        self: &Arc<Self>,
        call: &Call,
        envelope: &Envelope,
        limits: ReplyLimits<'_>,
        room: RoomPolicy,
    ) -> Result<CallResponse, CallFault> {
        let name = call.target();
        let is_small = envelope.len() <= MAX_SHARED_BYTES && !self.large_replies().contains(name);
        let frame = if is_small { shared_frame(call, envelope)? } else { None };
        let response = match frame {
            Some(frame) => {
                self.check_input(envelope.len())?;
                let fails_fast = room == RoomPolicy::FailFast;
                read(self.coalescer().call(frame, limits.frames.max_body_bytes, fails_fast).await?, limits)?
            }
            // Boxed, so that the future of small calls stays small.
            None => Box::pin(self.call_on_own_stream(call, envelope, limits, room)).await?,
        };
        self.large_replies().learn(name, response.body.total_bytes().unwrap_or_default() > LARGE_REPLY_BYTES);
        Ok(response)
    }

    async fn call_on_own_stream(
        self: &Arc<Self>,
        call: &Call,
        envelope: &Envelope,
        limits: ReplyLimits<'_>,
        room: RoomPolicy,
    ) -> Result<CallResponse, CallFault> {
        let since = Instant::now();
        let exchange = CallExchange::open(self, limits, room).await?;
        let mut call = call.clone();
        wire::shorten(&mut call, since.elapsed());
        exchange.call(&call, envelope.clone()).await
    }
}

/// The call as a frame for a shared stream, if it is small enough.
fn shared_frame(call: &Call, envelope: &Envelope) -> Result<Option<LooseFrame>, CallError> {
    let frame = LooseFrame::new(FrameKind::Call, call, envelope.parts());
    let frame = frame.map_err(|error| CallError::new(ErrorKind::InvalidInput, error.to_string()))?;
    Ok(Some(frame).filter(|frame| frame.len() <= MAX_SHARED_BYTES))
}

/// Reads an outcome from a shared stream.
fn read(received: ReceivedOutcome, limits: ReplyLimits<'_>) -> Result<CallResponse, CallFault> {
    let ReceivedOutcome { head, body } = received;
    match head.kind {
        FrameKind::Done => {
            let done = head.done().map_err(unreadable)?;
            let mut decoder = limits.decoder();
            body.into_iter().try_for_each(|piece| decoder.push(piece)).map_err(unreadable)?;
            Ok(CallResponse { done, body: decoder })
        }
        FrameKind::Fail => {
            let fail = head.header::<Fail>().map_err(unreadable)?;
            let details = body.concat().into();
            Err(wire::error(fail, &details).into())
        }
        kind => Err(CallFault::unexpected_frame(kind)),
    }
}

/// The names of routes and stages whose last reply was large.
#[derive(Debug, Default)]
pub(crate) struct LargeReplyNames {
    names: ArcSwap<BTreeSet<String>>,
}

impl LargeReplyNames {
    fn contains(&self, name: &str) -> bool {
        let names = self.names.load();
        !names.is_empty() && names.contains(name)
    }

    fn learn(&self, name: &str, is_large: bool) {
        if self.contains(name) == is_large {
            return;
        }
        self.names.rcu(|names| {
            let mut names = if names.len() < MAX_NAMES { BTreeSet::clone(names) } else { BTreeSet::new() };
            if is_large {
                names.insert(name.to_owned());
            } else {
                names.remove(name);
            }
            names
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_stored_while_its_replies_are_large() {
        let large = LargeReplyNames::default();
        large.learn("/a", false);
        assert!(!large.contains("/a"));
        large.learn("/a", true);
        assert!(large.contains("/a") && !large.contains("/b"));
        large.learn("/a", false);
        assert!(!large.contains("/a"));
        (0..10_000).for_each(|n| large.learn(&format!("/{n}"), true));
        assert!(large.names.load().len() <= MAX_NAMES);
    }
}
