//! Which way a call goes: in a pack if it is small, on a stream of its own if it is not.
//!
//! A node answers a call where it came from, so a large answer holds up the pack that it comes with. Calls whose last answer was large
//! therefore go apart as well, until an answer is small again.

use std::collections::BTreeSet;
use std::sync::Arc;

use arc_swap::ArcSwap;
use callboard_codec::wire::{Call, Fail, FrameKind, FrameLimits, LooseFrame};
use callboard_codec::{DecodeLimits, Envelope, EnvelopeDecoder};
use callboard_core::{CallError, ErrorKind, Instant};

use super::call::{Answer, Talk};
use super::fault::{no_room, unknown, unreadable};
use super::link::Link;
use super::packer::{MAX_PACKED_BYTES, ROOM_WAIT};
use super::slot::Received;
use crate::convert;

/// Answers of more bytes hold up what comes behind them for longer than a stream costs.
const LARGE_ANSWER_BYTES: usize = 64 << 10;

/// Names that are kept at most; then they are learned anew.
const MAX_NAMES: usize = 256;

/// What a caller does while the node has no room for another stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// It waits, within its deadline.
    Wait,
    /// It asks another node, after a moment.
    OrElsewhere,
}

impl Link {
    /// Makes a call, whole, and waits for its outcome.
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the call where it runs; nobody else's.
    pub(crate) async fn call(
        self: &Arc<Self>,
        call: &Call,
        envelope: &Envelope,
        (frames, decode): (&FrameLimits, &DecodeLimits),
        room: Room,
    ) -> Result<Answer, CallError> {
        let name = call.stages.first().unwrap_or(&call.route);
        let is_small = envelope.len() <= MAX_PACKED_BYTES && !self.apart().contains(name);
        let frame = match is_small {
            true => loose(call, envelope)?,
            false => None,
        };
        let answer = match frame {
            Some(frame) => {
                self.check_input(envelope.len())?;
                let impatient = room == Room::OrElsewhere;
                read(self.packer().call(frame, frames.max_body_bytes, impatient).await?, decode)?
            }
            // In a place of its own, so that small calls stay small.
            None => Box::pin(self.call_apart(call, envelope, (frames, decode), room)).await?,
        };
        self.apart().learn(name, answer.body.total_bytes().unwrap_or_default() > LARGE_ANSWER_BYTES);
        Ok(answer)
    }

    /// Makes a call on a stream of its own.
    async fn call_apart(
        self: &Arc<Self>,
        call: &Call,
        envelope: &Envelope,
        (frames, decode): (&FrameLimits, &DecodeLimits),
        room: Room,
    ) -> Result<Answer, CallError> {
        let (opening, since) = (Talk::open(self, frames, decode), Instant::now());
        let talk = match room {
            Room::Wait => opening.await?,
            Room::OrElsewhere => tokio::time::timeout(ROOM_WAIT, opening)
                .await
                .unwrap_or_else(|_| Err(no_room("the peer has no room for another stream")))?,
        };
        let mut call = call.clone();
        convert::shorten(&mut call, since.elapsed());
        talk.call(&call, envelope.clone()).await
    }
}

/// The call as a frame of a pack, if it is no larger than those are.
fn loose(call: &Call, envelope: &Envelope) -> Result<Option<LooseFrame>, CallError> {
    let frame = LooseFrame::new(FrameKind::Call, call, envelope.parts());
    let frame = frame.map_err(|error| CallError::new(ErrorKind::InvalidInput, error.to_string()))?;
    Ok(Some(frame).filter(|frame| frame.len() <= MAX_PACKED_BYTES))
}

/// Reads what came back from a pack.
fn read(received: Received, limits: &DecodeLimits) -> Result<Answer, CallError> {
    let Received { head, body } = received;
    match head.kind {
        FrameKind::Done => {
            let done = head.done().map_err(unreadable)?;
            let mut decoder = EnvelopeDecoder::new(limits);
            body.into_iter().try_for_each(|piece| decoder.push(piece)).map_err(unreadable)?;
            Ok(Answer { done, body: decoder })
        }
        FrameKind::Fail => {
            let fail = head.header::<Fail>().map_err(unreadable)?;
            let details = body.concat().into();
            Err(convert::error(fail, &details))
        }
        kind => Err(unknown(&format!("a frame of the kind {kind} came instead of an outcome"))),
    }
}

/// The names of routes and stages whose last answer was large.
#[derive(Debug, Default)]
pub(super) struct Apart {
    names: ArcSwap<BTreeSet<String>>,
}

impl Apart {
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
            match is_large {
                true => names.insert(name.to_owned()),
                false => names.remove(name),
            };
            names
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_go_apart_for_as_long_as_their_answers_are_large() {
        let apart = Apart::default();
        apart.learn("/a", false);
        assert!(!apart.contains("/a"));
        apart.learn("/a", true);
        assert!(apart.contains("/a") && !apart.contains("/b"));
        apart.learn("/a", false);
        assert!(!apart.contains("/a"));
        (0..10_000).for_each(|n| apart.learn(&format!("/{n}"), true));
        assert!(apart.names.load().len() <= MAX_NAMES);
    }
}
