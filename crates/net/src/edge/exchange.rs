//! One stream: its calls as they arrive, their outcomes as they come about, in any order.
//!
//! Everything happens in one task, so that its end is the end of all of it: when the stream is reset, its task is dropped, and with
//! it every call that it runs. A call is received in `receiving.rs` and run when the last byte of its body is there. Reading, running and
//! writing go on beside each other. A stream on which nothing is left to do is ended after a while: one whose calls were answered is
//! finished, so that its caller reads at its own pace, and one that had none is reset.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use callboard_codec::wire::{FrameHead, FrameKind, FramePart, Load};
use callboard_core::{CallError, Instant};
use futures_util::future::{AbortHandle, Abortable, Aborted, abortable};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Handle;

use super::answer::Answer;
use super::fault::{Fault, StreamRefusal};
use super::receiving::{Answering, Received, Reception};
use super::writing::Writing;
use super::{Serving, StreamGuard, streaming};
use crate::endpoint::{begin_here, send_now};
use crate::stream::{Incoming, Outgoing, ReadFault};

/// Calls of one stream that may be under way at once, those whose outcomes are not written among them.
pub(crate) const MAX_PACK_ENTRIES: usize = 32;

/// How long the acknowledgement of an answer may take that its caller has room for. Threat: a peer that acknowledges nothing.
const LAST_ACKNOWLEDGEMENT: Duration = Duration::from_secs(60);

/// Answers all calls of a stream. What is left to do behind that is done at `home`, where packets arrive.
pub(super) async fn answer_stream(guard: StreamGuard, home: Handle, outgoing: Outgoing, incoming: Incoming) {
    let serving = Arc::clone(&guard.serving);
    let now = Instant::now();
    let mut exchange = Exchange {
        serving: &serving,
        outgoing,
        incoming,
        reception: Reception::new(&serving, guard.role, Arc::clone(&guard.window), now),
        idle_since: now,
        running: FuturesUnordered::new(),
        aborts: Vec::new(),
        writing: Writing::new(&serving.config),
        said: Said::Nothing,
    };
    match exchange.run().await {
        // Closing the endpoint would throw away what has not arrived: until then the stream is in hand.
        Ok(()) => {
            let Exchange { mut outgoing, incoming, .. } = exchange;
            begin_here(&home, async move {
                if tokio::time::timeout(LAST_ACKNOWLEDGEMENT, outgoing.stopped()).await.is_err() {
                    guard.serving.has_cut.store(true, Ordering::Release);
                    outgoing.take_back();
                }
                drop((outgoing, incoming, guard));
            });
        }
        Err(Fault::Left) => {
            if exchange.has_calls() {
                serving.metrics.cancelled.inc();
            }
        }
        Err(Fault::Refused(refusal)) => {
            serving.metrics.refuse_stream(&refusal);
            // Where there was no call, nobody takes one for not started that was.
            if serving.is_draining() && exchange.said != Said::Nothing {
                serving.has_cut.store(true, Ordering::Release);
            }
            let code = refusal.reset_code();
            exchange.outgoing.on_drop(code);
            exchange.incoming.on_drop(code);
        }
    }
}

struct Exchange<'a> {
    serving: &'a Arc<Serving>,
    outgoing: Outgoing,
    incoming: Incoming,
    reception: Reception<'a>,
    /// Since when there is nothing to do.
    idle_since: Instant,
    running: FuturesUnordered<Abortable<Answering>>,
    aborts: Vec<(u16, AbortHandle)>,
    writing: Writing,
    said: Said,
}

/// What the caller has said of its calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    /// There was none so far.
    Nothing,
    /// More may come behind those that were begun.
    Calls,
    /// No call comes behind those that were begun.
    Last,
    /// The last one has the stream to itself.
    Stream,
}

impl Exchange<'_> {
    async fn run(&mut self) -> Result<(), Fault> {
        let stopped = self.outgoing.stopped();
        tokio::pin!(stopped);
        let mut ended = false;
        loop {
            self.begin_writing();
            if (ended || self.is_last()) && self.running.is_empty() && self.writing.outcomes() == 0 {
                break;
            }
            // Before anything of the user's is read or run.
            send_now();
            let due = self.due(ended);
            tokio::select! {
                biased;
                Some(answer) = self.running.next(), if !self.running.is_empty() => self.finished(answer),
                written = self.writing.write_some(&mut self.outgoing), if self.writing.outcomes() > 0 => {
                    written?;
                    // Its caller begins to owe the next word when it has been given the last one.
                    self.idle_since = Instant::now();
                }
                part = self.incoming.next_part(), if !ended => match part {
                    Ok(Some(part)) => {
                        let mut call = self.take(part)?;
                        // All that came with it, so that what goes together is run together.
                        while call.is_none()
                            && let Some(part) = self.incoming.ready_part()
                        {
                            call = self.take(part?)?;
                        }
                        if let Some(call) = call {
                            return Box::pin(self.stream(call)).await;
                        }
                    }
                    Ok(None) if self.reception.is_idle() => ended = true,
                    Ok(None) | Err(ReadFault::Ended) => return Err(StreamRefusal::Truncated.into()),
                    Err(ReadFault::Wire(error)) => return Err(error.into()),
                    Err(ReadFault::Reset(_) | ReadFault::Lost(_)) => return Err(Fault::Left),
                },
                _ = &mut stopped => return Err(Fault::Left),
                () = tokio::time::sleep_until(due.unwrap_or(self.idle_since)), if due.is_some() => {
                    if self.too_late()? {
                        break;
                    }
                }
            }
        }
        self.outgoing.finish();
        Ok(())
    }

    /// Gives the rest of the stream to one call. What this needs is large, and few calls need it: it has a place of its own.
    async fn stream(&mut self, call: streaming::StreamingCall) -> Result<(), Fault> {
        self.said = Said::Stream;
        self.write_all().await?;
        streaming::answer(self.serving, call, &mut self.outgoing, &mut self.incoming).await
    }

    /// Whether all that is called on it has come. A caller says so where it has more than one call; else it ends the stream.
    fn is_last(&self) -> bool {
        self.said == Said::Last && self.reception.is_idle()
    }

    /// Until when the next bytes have to come or go, if it is the caller who is waited for.
    fn due(&self, ended: bool) -> Option<Instant> {
        let writing = self.writing.due();
        let reading = match self.reception.due() {
            _ if ended => None,
            // What runs has a deadline of its own, and its caller nothing more to say; what is written has its pace.
            None if !self.running.is_empty() || writing.is_some() => None,
            None => Some(self.idle_since + self.serving.config.head_timeout),
            due => due,
        };
        reading.into_iter().chain(writing).min()
    }

    /// What becomes of a stream on which the next bytes have not come or gone in time; says whether it is over.
    fn too_late(&mut self) -> Result<bool, Fault> {
        let now = Instant::now();
        if self.writing.due().is_some_and(|due| due <= now) {
            return Err(StreamRefusal::SlowReader.into());
        }
        if self.reception.is_idle() {
            // All that was called is answered. A reset would take back what has not been read yet.
            return if self.said == Said::Nothing { Err(StreamRefusal::Silent.into()) } else { Ok(true) };
        }
        let (entry, error) = self.reception.take_expired(now).ok_or(StreamRefusal::SlowBody)?;
        self.refuse(entry, error);
        Ok(false)
    }

    /// Takes the next piece; gives a streaming call that is complete, which has the rest of the stream to itself.
    fn take(&mut self, part: FramePart) -> Result<Option<streaming::StreamingCall>, Fault> {
        match part {
            FramePart::Head(head) => match head.kind {
                FrameKind::Call => self.begin(&head).map(|()| None),
                FrameKind::Cancel => {
                    self.cancel(head.entry);
                    Ok(None)
                }
                _ => Err(StreamRefusal::UnexpectedKind.into()),
            },
            FramePart::Body { bytes, last } => {
                let now = Instant::now();
                if last {
                    self.idle_since = now;
                }
                match self.reception.receive(now, bytes, last) {
                    Received::Stream(call) => return Ok(Some(call)),
                    Received::Call(entry, call) => self.start(entry, call),
                    Received::Refused(entry, error) => self.refuse(entry, error),
                    Received::Nothing => {}
                }
                Ok(None)
            }
        }
    }

    fn begin(&mut self, head: &FrameHead) -> Result<(), Fault> {
        let call = head.call()?;
        if self.running.len() + self.writing.outcomes() >= MAX_PACK_ENTRIES {
            return Err(StreamRefusal::TooManyEntries.into());
        }
        if self.aborts.iter().any(|(entry, _)| *entry == head.entry) {
            return Err(StreamRefusal::EntryTwice.into());
        }
        if call.credit > 0 && !self.running.is_empty() {
            return Err(StreamRefusal::StreamingInAPack.into());
        }
        if self.said == Said::Last {
            return Err(StreamRefusal::CallBehindTheLast.into());
        }
        self.said = if call.last { Said::Last } else { Said::Calls };
        self.idle_since = Instant::now();
        if let Err(error) = self.reception.begin(self.idle_since, head, call) {
            self.refuse(head.entry, error);
        }
        Ok(())
    }

    fn start(&mut self, entry: u16, call: Answering) {
        let (calling, abort) = abortable(call);
        self.aborts.push((entry, abort));
        self.running.push(calling);
    }

    /// A call that is not run.
    fn refuse(&mut self, entry: u16, error: CallError) {
        self.serving.metrics.refuse_call(error.kind());
        self.writing.push(Answer { entry, outcome: Err(error), queued: 0 });
    }

    /// Whether a caller that leaves leaves something behind.
    fn has_calls(&self) -> bool {
        self.said == Said::Stream || !self.running.is_empty() || self.reception.has_call()
    }

    /// Gives up one call. One that is not known has been answered, or never began.
    fn cancel(&mut self, entry: u16) {
        let mut was_known = self.writing.forget(entry) | self.reception.forget(entry);
        if let Some(at) = self.aborts.iter().position(|(running, _)| *running == entry) {
            self.aborts.swap_remove(at).1.abort();
            was_known = true;
        }
        if was_known {
            self.serving.metrics.calls_cancelled.inc();
        }
    }

    fn finished(&mut self, answer: Result<Answer, Aborted>) {
        self.idle_since = Instant::now();
        // Nobody waits for the answer of one that was given up.
        let Ok(answer) = answer else { return };
        self.aborts.retain(|(running, _)| *running != answer.entry);
        self.writing.push(answer);
    }

    /// Begins to write every outcome that is there, unless others are still being written.
    fn begin_writing(&mut self) {
        if !self.writing.is_due() {
            return;
        }
        while let Some(Some(answer)) = futures_util::FutureExt::now_or_never(self.running.next()) {
            self.finished(answer);
        }
        self.writing.begin(&self.serving.config, load(self.serving));
    }

    /// Writes what there is, before the stream is another's.
    async fn write_all(&mut self) -> Result<(), Fault> {
        loop {
            self.begin_writing();
            let Some(due) = self.writing.due() else { return Ok(()) };
            tokio::select! {
                biased;
                written = self.writing.write_some(&mut self.outgoing) => written?,
                () = tokio::time::sleep_until(due) => return Err(StreamRefusal::SlowReader.into()),
            }
        }
    }
}

/// How the node does, for peers that weigh where to send the next call.
pub(super) fn load(serving: &Serving) -> Load {
    let in_flight = serving.node().map_or(0, |node| node.in_flight());
    Load { in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX), queued: 0 }
}
