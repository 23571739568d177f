//! One pack: calls that share a stream, their outcomes in any order, each call's end its own.
//!
//! A pack is sent in one go and its stream stays open for CANCEL until every call of it has an outcome; a pack of one call is finished at
//! once, and given up by a reset. What comes back is always read on: an outcome that nobody wants any more, or that is beyond the
//! caller's limits, is passed over, so that it holds up nobody behind it. What became of a call when the stream is lost depends on
//! whether all of it was handed over by then. When no call is left, the stream is reset; when the node does not end it in time, too.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::wire::{FrameHead, FrameKind, FrameLimits, FramePart, LooseFrame, ResetCode};
use callboard_core::CallError;

use super::fault::{not_started, read_fault, refused, unknown, unreadable};
use super::sending::Sending;
use super::slot::{Bell, Carried, Received};
use super::waking::Party;
use crate::convert;
use crate::stream::{Incoming, Outgoing, ReadFault};

/// How long a node may take to end a stream all of whose calls are answered.
const LAST_WORD: Duration = Duration::from_secs(10);

/// Bodies are measured call by call: one that is too large is the end of that call, not of the stream.
const ANY_BODY: FrameLimits = FrameLimits { max_header_bytes: 64 << 10, max_body_bytes: usize::MAX };

/// One pack of so many goes at the pace of large bodies: else as many packs as the connection carries would let no body through.
const PATIENT_PART: u8 = 8;

/// Calls on a stream of their own making.
pub(super) struct Pack {
    outgoing: Outgoing,
    incoming: Incoming,
    bell: Arc<Bell>,
    /// By their entries; `None` behind their ends.
    calls: Vec<Option<Carried>>,
    /// What the caller of each takes of an outcome.
    max_body_bytes: Vec<usize>,
    open: usize,
    /// Callers whose outcomes are there, and who do not know it yet.
    unwoken: Vec<Waker>,
    party: Party,
    sending: Sending,
    receiving: Receiving,
}

/// What the bytes of a body are for.
enum Receiving {
    Nothing,
    Outcome {
        entry: usize,
        head: FrameHead,
        body: Vec<Bytes>,
    },
    /// Of an outcome that nobody takes.
    PassedOver,
}

impl Pack {
    /// A pack of at most so many calls.
    pub(super) fn new((send, receive): (quinn::SendStream, quinn::RecvStream), calls: usize, party: Party) -> Self {
        Self {
            outgoing: Outgoing::new(send),
            incoming: Incoming::new(receive, ANY_BODY),
            bell: Arc::default(),
            calls: Vec::with_capacity(calls),
            max_body_bytes: Vec::with_capacity(calls),
            open: 0,
            unwoken: Vec::with_capacity(calls),
            party,
            sending: Sending::default(),
            receiving: Receiving::Nothing,
        }
    }

    /// Takes a call along, unless it was given up.
    pub(super) fn take(&mut self, frame: &LooseFrame, call: Carried, max_body_bytes: usize) {
        if call.board(&self.bell) {
            self.sending.push(frame);
            self.calls.push(Some(call));
            self.max_body_bytes.push(max_body_bytes);
            self.open += 1;
        }
    }

    /// Sends the calls and gives each its outcome.
    pub(super) async fn run(mut self) {
        // Before the large bodies of others, which have their turn all the same.
        if fastrand::u8(..PATIENT_PART) > 0 {
            self.outgoing.hurry();
        }
        let is_single = self.calls.len() == 1;
        let bell = Arc::clone(&self.bell);
        let mut writes = true;
        while self.open > 0 {
            tokio::select! {
                biased;
                written = self.sending.write_some(&mut self.outgoing), if writes && !self.sending.is_over() => {
                    // The reading half says why.
                    writes = written.is_ok();
                    if is_single && writes && self.sending.is_over() {
                        self.outgoing.finish();
                        writes = false;
                    }
                }
                () = bell.rung() => {
                    self.give_up();
                    if self.open == 0 {
                        return;
                    }
                }
                part = self.incoming.next_part() => {
                    let taken = match part {
                        Ok(Some(part)) => self.receive_ready(part),
                        Ok(None) => Err(ReadFault::Ended),
                        Err(fault) => Err(fault),
                    };
                    if !self.unwoken.is_empty() {
                        self.party.wake(&mut self.unwoken).await;
                    }
                    if let Err(fault) = taken {
                        return self.lost(&fault);
                    }
                }
            }
        }
        if matches!(self.receiving, Receiving::Nothing) && self.sending.is_over() {
            self.outgoing.finish();
            let ended = async { while let Ok(Some(_)) = self.incoming.next_part().await {} };
            let _ = tokio::time::timeout(LAST_WORD, ended).await;
        }
    }

    /// Cancels what was given up since this was last looked at.
    fn give_up(&mut self) {
        for entry in 0..self.calls.len() {
            if self.calls[entry].as_ref().is_none_or(|call| !call.is_left()) {
                continue;
            }
            self.close(entry);
            self.sending.give_up(entry);
        }
    }

    fn close(&mut self, entry: usize) -> Option<Carried> {
        let call = self.calls.get_mut(entry)?.take()?;
        self.open -= 1;
        Some(call)
    }

    /// Takes a part, and all that came with it.
    fn receive_ready(&mut self, part: FramePart) -> Result<(), ReadFault> {
        let mut received = self.receive(part);
        while received.is_ok()
            && let Some(part) = self.incoming.ready_part()
        {
            received = part.map_err(ReadFault::from).and_then(|part| self.receive(part));
        }
        received
    }

    fn receive(&mut self, part: FramePart) -> Result<(), ReadFault> {
        match part {
            FramePart::Head(head) => self.begin(head),
            FramePart::Body { bytes, last } => {
                if let Receiving::Outcome { body, .. } = &mut self.receiving {
                    body.push(bytes);
                }
                if last && let Receiving::Outcome { entry, head, body } = self.over() {
                    self.end(entry, Ok(Received { head, body }));
                }
                Ok(())
            }
        }
    }

    fn over(&mut self) -> Receiving {
        std::mem::replace(&mut self.receiving, Receiving::Nothing)
    }

    /// An outcome begins; that of a call that has ended, or was given up, is nobody's.
    fn begin(&mut self, head: FrameHead) -> Result<(), ReadFault> {
        let (entry, bytes) = (usize::from(head.entry), head.body_bytes);
        let max = match (head.kind, self.max_body_bytes.get(entry)) {
            (FrameKind::Done, Some(max)) => *max,
            (FrameKind::Fail, Some(_)) => convert::max_details_bytes(),
            _ => {
                self.incoming.on_drop(ResetCode::Protocol);
                return Err(ReadFault::Ended);
            }
        };
        if bytes > 0 {
            self.receiving = Receiving::PassedOver;
        }
        if self.calls[entry].is_none() {
            return Ok(());
        }
        match (head.kind, bytes) {
            (_, 0) => self.end(entry, Ok(Received { head, body: Vec::new() })),
            (_, bytes) if bytes <= max => self.receiving = Receiving::Outcome { entry, head, body: Vec::new() },
            // What happened is known; what was attached is not.
            (FrameKind::Fail, _) => self.end(entry, Ok(Received { head, body: Vec::new() })),
            _ => {
                let reason = format!("a body of {bytes} bytes exceeds max_body_bytes = {max}");
                self.end(entry, Err(unreadable(reason)));
            }
        }
        Ok(())
    }

    fn end(&mut self, entry: usize, outcome: Result<Received, CallError>) {
        if let Some(call) = self.close(entry) {
            self.unwoken.extend(call.end_unwoken(outcome));
        }
    }

    /// Nothing more comes: what that means for each call that has no outcome yet.
    fn lost(&mut self, fault: &ReadFault) {
        let is_single = self.calls.len() == 1;
        for entry in 0..self.calls.len() {
            let was_sent = self.sending.was_sent(entry);
            if let Some(call) = self.close(entry) {
                call.end(Err(fate(fault, was_sent, is_single)));
            }
        }
    }
}

/// What a fault of the stream says of one of its calls.
fn fate(fault: &ReadFault, was_sent: bool, is_single: bool) -> CallError {
    match (fault, was_sent) {
        // Whose fault it was, the code does not say: others may have run.
        (ReadFault::Reset(Some(code)), true) if !is_single && !code.says_not_started() => {
            unknown("the stream was reset")
        }
        (ReadFault::Ended, true) => unknown("the stream ended without an outcome"),
        (fault, true) => read_fault(fault),
        (ReadFault::Reset(Some(code)), false) if is_single => {
            refused(*code).unwrap_or_else(|| not_started("the stream was reset".to_owned()))
        }
        (fault, false) => not_started(fault.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_says_of_each_call_what_is_known_of_it() {
        let fault = ReadFault::Reset(Some(ResetCode::Protocol));
        assert!(fate(&fault, false, false).is_retryable());
        assert!(fate(&fault, true, false).was_started());
        let draining = ReadFault::Reset(Some(ResetCode::Draining));
        assert!(fate(&draining, true, false).is_retryable());
        assert!(fate(&ReadFault::Ended, true, true).was_started());
        assert!(!fate(&ReadFault::Ended, false, true).was_started());
    }
}
