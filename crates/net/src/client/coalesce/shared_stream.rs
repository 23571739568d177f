//! One stream that several calls share. Their outcomes arrive in any order, and each call ends by itself.
//!
//! The calls are sent in one write, and the stream stays open for cancel frames until every call has an outcome. A
//! stream with one call is finished at once, and reset to cancel it. Everything received is read: the outcome of a
//! cancelled call, or one that exceeds its caller's limits, is skipped, so that it delays no other. When the stream is
//! lost, the fate of a call depends on whether it was sent completely. When no call is left, the stream is reset; also
//! when the node does not end it in time.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::wire::{FrameHead, FrameKind, FrameLimits, FramePart, LooseFrame, ResetCode};

use super::super::fault::{CallFault, not_started, read_fault, refused, reply_too_large};
use super::slot::{CancelSignal, ReceivedOutcome, ResponseSlot};
use super::wake_batch::WakeGuard;
use super::write_queue::WriteQueue;
use crate::link::Link;
use crate::stream::{FrameReceiver, FrameSender, ReadFault};
use crate::wire;

/// How long a node may take to end a stream after its last outcome.
const STREAM_END_TIMEOUT: Duration = Duration::from_secs(10);

/// Bodies are limited call by call: a body that is too large ends its call, not the stream.
const ANY_BODY: FrameLimits = FrameLimits { max_header_bytes: 64 << 10, max_body_bytes: usize::MAX };

/// One of this many streams has normal priority. Otherwise many shared streams would starve large bodies.
const LOW_PRIORITY_SHARE: u8 = 8;

/// A stream with its calls.
pub(super) struct SharedStream {
    outgoing: FrameSender,
    incoming: FrameReceiver,
    cancel: Arc<CancelSignal>,
    /// By entry; `None` once ended.
    calls: Vec<Option<ResponseSlot>>,
    /// The longest body that each caller accepts.
    max_body_bytes: Vec<usize>,
    /// The number of calls without an outcome.
    open: usize,
    /// Callers with an outcome that were not woken yet.
    unwoken: Vec<Waker>,
    wake_guard: WakeGuard,
    writing: WriteQueue,
    receiving: ReceiveState,
}

/// The body that is being received.
enum ReceiveState {
    None,
    Outcome {
        entry: usize,
        head: FrameHead,
        body: Vec<Bytes>,
    },
    /// The outcome has no caller.
    Skipping,
}

impl SharedStream {
    /// A stream for up to this number of calls.
    pub(super) fn new(
        (send, receive): (quinn::SendStream, quinn::RecvStream),
        calls: usize,
        wake_guard: WakeGuard,
        link: &Arc<Link>,
    ) -> Self {
        Self {
            outgoing: FrameSender::new(send),
            incoming: FrameReceiver::new(receive, ANY_BODY).watched_by(Arc::clone(link)),
            cancel: Arc::default(),
            calls: Vec::with_capacity(calls),
            max_body_bytes: Vec::with_capacity(calls),
            open: 0,
            unwoken: Vec::with_capacity(calls),
            wake_guard,
            writing: WriteQueue::default(),
            receiving: ReceiveState::None,
        }
    }

    /// Adds a call, unless it was cancelled.
    pub(super) fn add(&mut self, frame: &LooseFrame, call: ResponseSlot, max_body_bytes: usize) {
        if call.send_on(&self.cancel) {
            self.writing.push(frame);
            self.calls.push(Some(call));
            self.max_body_bytes.push(max_body_bytes);
            self.open += 1;
        }
    }

    /// Sends the calls, and delivers their outcomes.
    pub(super) async fn run(mut self) {
        // Small calls go before large bodies, which still make progress.
        if fastrand::u8(..LOW_PRIORITY_SHARE) > 0 {
            self.outgoing.raise_priority();
        }
        let is_single = self.calls.len() == 1;
        let cancel = Arc::clone(&self.cancel);
        let mut is_writing = true;
        while self.open > 0 {
            tokio::select! {
                biased;
                written = self.writing.write_some(&mut self.outgoing), if is_writing && !self.writing.is_empty() => {
                    // The receiving half reports the fault.
                    is_writing = written.is_ok();
                    if is_single && is_writing && self.writing.is_empty() {
                        self.outgoing.finish();
                        is_writing = false;
                    }
                }
                () = cancel.notified() => {
                    self.cancel_dropped();
                    if self.open == 0 {
                        return;
                    }
                }
                part = self.incoming.next_part() => {
                    let received = match part {
                        Ok(Some(part)) => self.receive_ready(part),
                        Ok(None) => Err(ReadFault::Ended),
                        Err(fault) => Err(fault),
                    };
                    if !self.unwoken.is_empty() {
                        self.wake_guard.wake(&mut self.unwoken).await;
                    }
                    if let Err(fault) = received {
                        return self.on_lost(&fault);
                    }
                }
            }
        }
        if matches!(self.receiving, ReceiveState::None) && self.writing.is_empty() {
            self.outgoing.finish();
            let ended = async { while let Ok(Some(_)) = self.incoming.next_part().await {} };
            let _ = tokio::time::timeout(STREAM_END_TIMEOUT, ended).await;
        }
    }

    /// Cancels the calls whose callers left.
    fn cancel_dropped(&mut self) {
        for entry in 0..self.calls.len() {
            if self.calls[entry].as_ref().is_none_or(|call| !call.is_cancelled()) {
                continue;
            }
            self.close(entry);
            self.writing.cancel(entry);
        }
    }

    fn close(&mut self, entry: usize) -> Option<ResponseSlot> {
        let call = self.calls.get_mut(entry)?.take()?;
        self.open -= 1;
        Some(call)
    }

    /// Takes a part, and everything that arrived with it.
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
                if let ReceiveState::Outcome { body, .. } = &mut self.receiving {
                    body.push(bytes);
                }
                if last && let ReceiveState::Outcome { entry, head, body } = self.take_received() {
                    self.end(entry, Ok(ReceivedOutcome { head, body }));
                }
                Ok(())
            }
        }
    }

    fn take_received(&mut self) -> ReceiveState {
        std::mem::replace(&mut self.receiving, ReceiveState::None)
    }

    /// Begins an outcome. The outcome of an ended or cancelled call is skipped.
    fn begin(&mut self, head: FrameHead) -> Result<(), ReadFault> {
        let (entry, bytes) = (usize::from(head.entry), head.body_bytes);
        let max = match (head.kind, self.max_body_bytes.get(entry)) {
            (FrameKind::Done, Some(max)) => *max,
            (FrameKind::Fail, Some(_)) => wire::max_details_bytes(),
            _ => {
                self.incoming.on_drop(ResetCode::Protocol);
                return Err(ReadFault::Ended);
            }
        };
        if bytes > 0 {
            self.receiving = ReceiveState::Skipping;
        }
        if self.calls[entry].is_none() {
            return Ok(());
        }
        match (head.kind, bytes) {
            (_, 0) => self.end(entry, Ok(ReceivedOutcome { head, body: Vec::new() })),
            (_, bytes) if bytes <= max => self.receiving = ReceiveState::Outcome { entry, head, body: Vec::new() },
            // The error is known without its details.
            (FrameKind::Fail, _) => self.end(entry, Ok(ReceivedOutcome { head, body: Vec::new() })),
            _ => {
                let reason = format!("a body of {bytes} bytes exceeds max_body_bytes = {max}");
                self.end(entry, Err(reply_too_large(reason).into()));
            }
        }
        Ok(())
    }

    fn end(&mut self, entry: usize, outcome: Result<ReceivedOutcome, CallFault>) {
        if let Some(call) = self.close(entry) {
            self.unwoken.extend(call.end_unwoken(outcome));
        }
    }

    /// Ends each call without an outcome, after a fault of the stream.
    fn on_lost(&mut self, fault: &ReadFault) {
        let is_single = self.calls.len() == 1;
        for entry in 0..self.calls.len() {
            let was_sent = self.writing.was_sent(entry);
            if let Some(call) = self.close(entry) {
                call.end(Err(fate(fault, was_sent, is_single)));
            }
        }
    }
}

/// The meaning of a fault of the stream for one of its calls.
fn fate(fault: &ReadFault, was_sent: bool, is_single: bool) -> CallFault {
    match (fault, was_sent) {
        // The code does not tell which call caused the reset: the others may have run.
        (ReadFault::Reset(Some(code)), true) if !is_single && !code.says_not_started() => {
            CallFault::lost(&"the stream was reset")
        }
        (ReadFault::Ended, true) => CallFault::lost(&"the stream ended without an outcome"),
        (fault, true) => read_fault(fault),
        (ReadFault::Reset(Some(code)), false) if is_single => {
            refused(*code).unwrap_or_else(|| not_started("the stream was reset")).into()
        }
        (fault, false) => CallFault::not_started(fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_ends_each_call_by_whether_it_was_sent() {
        let fault = ReadFault::Reset(Some(ResetCode::Protocol));
        assert!(fate(&fault, false, false).error().is_retryable());
        assert!(fate(&fault, true, false).error().was_started());
        let draining = ReadFault::Reset(Some(ResetCode::Draining));
        assert!(fate(&draining, true, false).error().is_retryable());
        assert!(fate(&ReadFault::Ended, true, true).error().was_started());
        assert!(!fate(&ReadFault::Ended, false, true).error().was_started());
    }
}
