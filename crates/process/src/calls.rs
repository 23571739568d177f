//! The calls that a child makes to routes of its node, while it runs a batch.
//!
//! Each belongs to an item of the batch, whose deadline, trace and caller it has, or to all items together. It runs on
//! the node's runtime, as an inner call; its outcome goes to the child at once. The outputs of a stream go to a child
//! that takes them as it gives credit: without credit nothing is read, and the stream pauses where it is made.
//!
//! * **Full:** beyond [`MAX_OPEN`] the result is `Overloaded`, as beyond the limits of the node and its routes. Outputs
//!   that the child does not read wait for [room](OutputRoom), and take none of the places of results.
//! * **Late:** the result is `DeadlineExceeded`, at the deadline of the item at the latest.
//! * **Cancelled:** a call ends when its item's caller leaves, when the child cancels it, and with its batch.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::{DecodeLimits, Encoded, Envelope, Payload};
use callboard_core::edge::{PayloadReplies, off_the_runtime};
use callboard_core::{CallContext, CallError, CallOptions, Deadline, ErrorKind, Instant};
use futures_util::StreamExt as _;
use tokio::sync::mpsc;

use crate::credit::CallCredit;
use crate::message::{CallMessage, ItemError, ToChild};
use crate::open::{InnerCall, OpenBatch, OpenBatches, RepeatableCall, SharedBatches};
use crate::room::OutputRoom;
use crate::writer::OutgoingFrame;

/// The most calls of one child at the same time. Each is charged to its item's call; this bounds what waits for a child
/// that does not read.
pub(crate) const MAX_OPEN: usize = 1_024;

/// The most outputs of all calls of a child that it does not read; of large ones, fewer.
pub(crate) const MAX_UNWRITTEN: usize = 256;

/// Makes the calls of one child.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) open: Arc<SharedBatches>,
    /// Weak: a call does not keep the writer.
    pub(crate) frames: mpsc::WeakSender<OutgoingFrame>,
    pub(crate) limits: DecodeLimits,
    /// Room for outputs that are not written.
    pub(crate) unwritten: OutputRoom,
}

impl Caller {
    /// Makes a call for a batch that runs, or answers why not.
    pub(crate) fn make(&self, asked: CallMessage, credit: Option<CallCredit>, input: &Bytes) {
        let id = asked.id;
        if let Err(error) = self.try_make(asked, credit, input) {
            self.answer(id, Err(error), |_| true);
        }
    }

    fn try_make(&self, asked: CallMessage, credit: Option<CallCredit>, input: &Bytes) -> Result<(), CallError> {
        let CallMessage { id, batch: made_for, item, route, timeout_ms, .. } = asked;
        let deadline = timeout_ms.map(|millis| Deadline::after(Instant::now(), Duration::from_millis(millis)));
        let within = self.within(made_for, item).ok_or_else(over)?;
        // Not under the lock, which the callers of all batches take.
        let input =
            within.charged(input.len(), || off_the_runtime(input.len(), || Encoded::read(input, &self.limits)))??;
        let mut open = self.open.lock();
        open.running(made_for).ok_or_else(over)?;
        if open.made.len() >= MAX_OPEN {
            return Err(too_many());
        }
        let (input, credit) = (Payload::new(input), credit.map(Arc::new));
        let call = RepeatableCall { within, route, input, deadline, credit };
        self.start(&mut open, id, made_for, item, call)
    }

    /// The call of an item of a batch that runs, or one for all items.
    fn within(&self, batch: u64, item: Option<usize>) -> Option<CallContext> {
        let open = self.open.lock();
        let batch = open.running(batch)?;
        item.map_or_else(|| batch.latest(), |item| batch.contexts.get(item)).cloned()
    }

    fn start(
        &self,
        open: &mut OpenBatches,
        id: u64,
        made_for: u64,
        item: Option<usize>,
        call: RepeatableCall,
    ) -> Result<(), CallError> {
        let client = call.within.client()?;
        let has_one_caller = item.is_some() || open.running(made_for).is_none_or(OpenBatch::has_one_caller);
        let options =
            call.deadline.map_or_else(CallOptions::new, |deadline| CallOptions::new().with_deadline(deadline));
        let options = if has_one_caller { options } else { options.for_several_callers() };
        let (caller, within, input) = (self.clone(), call.within.clone(), call.input.clone());
        let streams = || client.route(&call.route).is_some_and(|route| route.streams());
        let started = match call.credit.clone().filter(|_| streams()) {
            Some(credit) => {
                let pass_on = move |outputs| caller.pass_on(id, within, outputs, credit);
                client.edge().start_replies(&call.route, input, options, pass_on)
            }
            None => {
                let then = move |outcome: Result<_, _>| caller.end(id, &within, outcome.map(Some));
                client.edge().start(&call.route, input, options, then)
            }
        };
        let (credit, again) = (call.credit.clone(), item.is_none().then_some(call));
        open.made.insert(id, InnerCall { made_for, item, again, credit, started });
        Ok(())
    }

    /// Sends the outputs of a stream to the child, and its end.
    async fn pass_on(
        self,
        id: u64,
        within: CallContext,
        outputs: Result<PayloadReplies, CallError>,
        credit: Arc<CallCredit>,
    ) {
        let sent = match outputs {
            Ok(outputs) => self.send_outputs(id, &within, outputs, &credit).await,
            Err(refusal) => Err(refusal),
        };
        self.end(id, &within, sent.map(|()| None));
    }

    async fn send_outputs(
        &self,
        id: u64,
        within: &CallContext,
        mut outputs: PayloadReplies,
        credit: &CallCredit,
    ) -> Result<(), CallError> {
        loop {
            let place = credit.place().await;
            let Some(output) = outputs.next().await.transpose()? else { return Ok(()) };
            let output = encode(&output, within, self.limits.max_bytes)?;
            credit.sent(output.len(), place);
            let room = self.unwritten.take(output.len()).await;
            let frame = OutgoingFrame::new(&ToChild::CallOutput { id }, vec![output]).in_room(room);
            let Some(frames) = self.frames.upgrade() else { return Ok(()) };
            let mut open = self.open.lock();
            // The end of the call aborts this task, which may run at that moment.
            let Some(made) = open.made.get_mut(&id) else { return Ok(()) };
            made.again = None;
            open.send(&frames, frame);
        }
    }

    /// Sends the outcome of a call, unless the call is no longer open.
    fn end(&self, id: u64, within: &CallContext, outcome: Result<Option<Payload>, CallError>) {
        let is_begun = outcome.as_ref().map_or_else(CallError::was_started, |_| true);
        let outcome = match if is_begun { None } else { self.make_again(id) } {
            Some(Ok(())) => return,
            Some(Err(error)) => Err(error),
            None => outcome,
        };
        let encode = |output: Payload| encode(&output, within, self.limits.max_bytes);
        let outcome = outcome.and_then(|output| output.map(encode).transpose());
        self.answer(id, outcome, |open| open.made.remove(&id).is_some());
    }

    /// Makes a call again for another caller of its batch, after its own caller left.
    fn make_again(&self, id: u64) -> Option<Result<(), CallError>> {
        let mut open = self.open.lock();
        let made = open.made.get_mut(&id)?;
        let (made_for, item) = (made.made_for, made.item);
        let again = made.again.take().filter(|again| !again.within.is_wanted(Instant::now()))?;
        let within = open.running(made_for)?.latest()?.clone();
        Some(self.start(&mut open, id, made_for, item, RepeatableCall { within, ..again }))
    }

    /// Tells the child an outcome, if it is wanted when it has been encoded.
    fn answer(
        &self,
        id: u64,
        outcome: Result<Option<Envelope>, CallError>,
        is_wanted: impl FnOnce(&mut OpenBatches) -> bool,
    ) {
        let Some(frames) = self.frames.upgrade() else { return };
        let (message, output) = result(id, outcome);
        let frame = OutgoingFrame::new(&message, output.into_iter().collect());
        let mut open = self.open.lock();
        if is_wanted(&mut open) {
            open.send(&frames, frame);
        }
    }
}

/// Ends the calls of an item whose caller left. `is_last`: no caller of the batch is left.
pub(crate) fn cancel_item(
    open: &mut OpenBatches,
    frames: &mpsc::Sender<OutgoingFrame>,
    batch: u64,
    item: usize,
    is_last: bool,
) {
    let is_of_item = |made: &InnerCall| made.made_for == batch && made.item.map_or(is_last, |of| of == item);
    let cancelled: Vec<u64> = open.made.extract_if(|_, made| is_of_item(made)).map(|(id, _)| id).collect();
    for id in cancelled {
        let (message, _) = result(id, Err(CallError::new(ErrorKind::Cancelled, "the caller has left")));
        open.send(frames, OutgoingFrame::new(&message, Vec::new()));
    }
}

/// An output as a child reads it, at the expense of the call `within` which it was made.
fn encode(output: &Payload, within: &CallContext, max_bytes: usize) -> Result<Envelope, CallError> {
    let envelope = within.convert(|| output.to_envelope())??;
    let bytes = envelope.len();
    let is_larger = || format!("the output has {bytes} bytes, more than {max_bytes} (max_batch_bytes)");
    if bytes <= max_bytes { Ok(envelope) } else { Err(CallError::new(ErrorKind::Failed, is_larger())) }
}

/// The outcome of a call as a message to its child. A stream has no output at its end.
fn result(id: u64, outcome: Result<Option<Envelope>, CallError>) -> (ToChild, Option<Envelope>) {
    match outcome {
        Ok(envelope) => (ToChild::Result { id, error: None }, envelope),
        Err(error) => (ToChild::Result { id, error: Some(item_error(error)) }, None),
    }
}

/// The error of a call as its child reads it: always with its kind.
fn item_error(error: CallError) -> ItemError {
    let (kind, retryable) = (Some(error.kind().as_str().to_owned()), error.is_retryable());
    ItemError { kind, retryable, ..error.into_parts().into() }
}

/// The refusal of a call for a batch that has ended.
fn over() -> CallError {
    CallError::new(ErrorKind::Cancelled, "the call that it belongs to is over")
}

/// The refusal of a call beyond [`MAX_OPEN`].
fn too_many() -> CallError {
    CallError::new(ErrorKind::Overloaded, format!("{MAX_OPEN} calls are open already"))
}
