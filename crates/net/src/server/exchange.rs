//! One stream: receives its calls, runs them, and writes their outcomes in any order.
//!
//! One task does everything, so its end ends everything: when the stream is reset, the task is dropped with every call
//! that it runs. `receiving.rs` receives a call, which runs once its last byte has arrived. Reading, running and
//! writing happen concurrently. An idle stream is ended after a timeout: finished if its calls were answered, so that
//! its caller can read the rest at its own pace, and reset if it had no call.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use callboard_codec::wire::{FrameHead, FrameKind, FramePart, Load};
use callboard_core::edge::CallEnd;
use callboard_core::{CallError, Instant};
use callboard_identity::Role;
use futures_util::future::{AbortHandle, Abortable, Aborted, abortable};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Handle;

use super::answer::EntryOutcome;
use super::fault::{StreamFault, StreamRefusal};
use super::orders::ConnectedCaller;
use super::receiving::{BodyProgress, CallReceiver, RunningCall};
use super::record::CallRecord;
use super::writing::OutcomeWriter;
use super::{ServerState, StreamGuard, orders, streaming};
use crate::endpoint::{flush_now, start_inline};
use crate::stream::{FrameReceiver, FrameSender, ReadFault};

/// The most calls of a stream at once, including those whose outcomes are not written.
const MAX_CALLS_PER_STREAM: usize = 32;

/// The longest wait for the acknowledgement of a written answer. Threat: a peer that acknowledges nothing.
const ACKNOWLEDGEMENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Answers all calls of a stream. Then waits for the last acknowledgement on `endpoint_runtime`.
pub(super) async fn answer_stream(
    guard: StreamGuard,
    endpoint_runtime: Handle,
    outgoing: FrameSender,
    incoming: FrameReceiver,
) {
    let server = Arc::clone(&guard.server);
    // A node keeps it from its own callers, if it must.
    let sends_traces = guard.caller.role == Role::Node || server.sends_traces;
    let now = Instant::now();
    let mut exchange = Exchange {
        server: &server,
        caller: Arc::clone(&guard.caller),
        outgoing,
        incoming,
        receiver: CallReceiver::new(&server, Arc::clone(&guard.caller), Arc::clone(&guard.window), now),
        idle_since: now,
        running: FuturesUnordered::new(),
        aborts: Vec::new(),
        records: Vec::new(),
        sends_traces,
        writing: OutcomeWriter::new(&server.config, sends_traces),
        seen: CallsSeen::None,
    };
    match exchange.run().await {
        // A shutdown would discard data that has not arrived, so the stream counts until it is acknowledged.
        Ok(()) => {
            let Exchange { mut outgoing, incoming, .. } = exchange;
            start_inline(&endpoint_runtime, async move {
                if tokio::time::timeout(ACKNOWLEDGEMENT_TIMEOUT, outgoing.stopped()).await.is_err() {
                    guard.server.has_cut.store(true, Ordering::Release);
                    outgoing.unfinish();
                }
                drop((outgoing, incoming, guard));
            });
        }
        Err(StreamFault::Left) => {
            if exchange.has_calls() {
                server.metrics.counters.cancelled.inc();
            }
        }
        Err(StreamFault::Refused(refusal)) => {
            server.metrics.refuse_stream(&refusal);
            // Without a call on the stream, no caller can mistake a started call for one that was not started.
            if server.is_draining() && exchange.seen != CallsSeen::None {
                server.has_cut.store(true, Ordering::Release);
            }
            let code = refusal.reset_code();
            exchange.outgoing.on_drop(code);
            exchange.incoming.on_drop(code);
        }
    }
}

struct Exchange<'a> {
    server: &'a Arc<ServerState>,
    caller: Arc<ConnectedCaller>,
    outgoing: FrameSender,
    incoming: FrameReceiver,
    receiver: CallReceiver<'a>,
    /// The time of the last activity.
    idle_since: Instant,
    running: FuturesUnordered<Abortable<RunningCall>>,
    aborts: Vec<(u16, AbortHandle)>,
    /// Those of the calls that have no outcome yet.
    records: Vec<(u16, CallRecord)>,
    sends_traces: bool,
    writing: OutcomeWriter,
    seen: CallsSeen,
}

/// The calls that have arrived on a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallsSeen {
    /// None so far.
    None,
    /// Some, and more may follow.
    More,
    /// All of them: one was marked as the last.
    Last,
    /// A streaming call, which has the rest of the stream.
    Streaming,
}

impl Exchange<'_> {
    async fn run(&mut self) -> Result<(), StreamFault> {
        let stopped = self.outgoing.stopped();
        tokio::pin!(stopped);
        let mut has_ended = false;
        loop {
            self.begin_writing();
            if (has_ended || self.is_last()) && self.running.is_empty() && self.writing.unwritten() == 0 {
                break;
            }
            // Before user code runs.
            flush_now();
            let timeout = self.next_timeout(has_ended);
            tokio::select! {
                biased;
                Some(answer) = self.running.next(), if !self.running.is_empty() => self.finish(answer),
                written = self.writing.write_some(&mut self.outgoing), if self.writing.unwritten() > 0 => {
                    written?;
                    // The caller's idle time begins when it has been sent the last outcome.
                    self.idle_since = Instant::now();
                }
                part = self.incoming.next_part(), if !has_ended => match part {
                    Ok(Some(part)) => {
                        let mut call = self.take(part)?;
                        // Also everything that arrived with it, so that calls sent together run together.
                        while call.is_none()
                            && let Some(part) = self.incoming.ready_part()
                        {
                            call = self.take(part?)?;
                        }
                        if let Some(call) = call {
                            return Box::pin(self.run_streaming(call)).await;
                        }
                    }
                    Ok(None) if self.receiver.is_idle() => has_ended = true,
                    Ok(None) | Err(ReadFault::Ended) => return Err(StreamRefusal::Truncated.into()),
                    Err(ReadFault::Wire(error)) => return Err(error.into()),
                    Err(ReadFault::Reset(_) | ReadFault::Lost(_)) => return Err(StreamFault::Left),
                },
                _ = &mut stopped => return Err(StreamFault::Left),
                () = tokio::time::sleep_until(timeout.unwrap_or(self.idle_since)), if timeout.is_some() => {
                    if self.on_timeout()? {
                        break;
                    }
                }
            }
        }
        self.outgoing.finish();
        Ok(())
    }

    /// Gives the rest of the stream to a streaming call. Boxed by its caller: it is large, and few calls need it.
    async fn run_streaming(&mut self, call: streaming::StreamingCall) -> Result<(), StreamFault> {
        self.seen = CallsSeen::Streaming;
        self.write_all().await?;
        let (traces, record) = (self.sends_traces, self.take_record(call.entry));
        streaming::answer(self.server, call, record, traces, &mut self.outgoing, &mut self.incoming).await
    }

    /// Whether all calls have arrived. Callers mark the last of several calls; after a single call they end the stream.
    fn is_last(&self) -> bool {
        self.seen == CallsSeen::Last && self.receiver.is_idle()
    }

    /// The time at which the caller must have sent or read more, if the stream waits for its caller.
    fn next_timeout(&self, has_ended: bool) -> Option<Instant> {
        let writing = self.writing.deadline();
        let reading = match self.receiver.deadline() {
            _ if has_ended => None,
            // Running calls have their own deadlines, and writing has its pace.
            None if !self.running.is_empty() || writing.is_some() => None,
            None => Some(self.idle_since + self.server.config.head_timeout),
            deadline => deadline,
        };
        reading.into_iter().chain(writing).min()
    }

    /// Handles a timeout of the caller. `true`: the stream is complete.
    fn on_timeout(&mut self) -> Result<bool, StreamFault> {
        let now = Instant::now();
        if self.writing.deadline().is_some_and(|deadline| deadline <= now) {
            return Err(StreamRefusal::SlowReader.into());
        }
        if self.receiver.is_idle() {
            // If all calls are answered, a reset would discard unread answers.
            return if self.seen == CallsSeen::None { Err(StreamRefusal::Silent.into()) } else { Ok(true) };
        }
        let (entry, error) = self.receiver.take_expired(now).ok_or(StreamRefusal::SlowBody)?;
        self.refuse(entry, error);
        Ok(false)
    }

    /// Takes the next part. Returns a complete streaming call, which gets the rest of the stream.
    fn take(&mut self, part: FramePart) -> Result<Option<streaming::StreamingCall>, StreamFault> {
        match part {
            FramePart::Head(head) => match head.kind {
                FrameKind::Call => self.begin(&head).map(|()| None),
                FrameKind::Cancel => {
                    self.cancel(head.entry);
                    Ok(None)
                }
                FrameKind::Status | FrameKind::Drain => self.carry_out(&head).map(|()| None),
                _ => Err(StreamRefusal::UnexpectedKind.into()),
            },
            FramePart::Body { bytes, last } => {
                let now = Instant::now();
                if last {
                    self.idle_since = now;
                }
                match self.receiver.receive(now, bytes, last) {
                    BodyProgress::Streaming(call) => return Ok(Some(call)),
                    BodyProgress::Complete(entry, call) => self.start(entry, call),
                    BodyProgress::Refused(entry, error) => self.refuse(entry, error),
                    BodyProgress::Incomplete => {}
                }
                Ok(None)
            }
        }
    }

    fn begin(&mut self, head: &FrameHead) -> Result<(), StreamFault> {
        let call = head.call()?;
        if self.running.len() + self.writing.unwritten() >= MAX_CALLS_PER_STREAM {
            return Err(StreamRefusal::TooManyEntries.into());
        }
        if self.aborts.iter().any(|(entry, _)| *entry == head.entry) {
            return Err(StreamRefusal::EntryTwice.into());
        }
        if call.credit > 0 && !self.running.is_empty() {
            return Err(StreamRefusal::StreamingOnSharedStream.into());
        }
        if self.seen == CallsSeen::Last {
            return Err(StreamRefusal::CallAfterLast.into());
        }
        self.seen = if call.last { CallsSeen::Last } else { CallsSeen::More };
        self.idle_since = Instant::now();
        let node = self.server.node();
        let record = node.as_ref().and_then(|node| CallRecord::begin(node, &self.caller, self.idle_since, head, &call));
        let begun = self.receiver.begin(self.idle_since, head, call);
        if let (Some(mut record), Some(node)) = (record, node) {
            match &begun {
                Ok(route) => record.set_route(route.clone()),
                Err(_) => record.find_route(&node),
            }
            self.records.push((head.entry, record));
        }
        if let Err(error) = begun {
            self.refuse(head.entry, error);
        }
        Ok(())
    }

    /// Carries an order out, also when the node is full or drains.
    fn carry_out(&mut self, head: &FrameHead) -> Result<(), StreamFault> {
        if head.body_bytes > 0 || !self.running.is_empty() || self.writing.unwritten() > 0 {
            return Err(StreamRefusal::UnexpectedKind.into());
        }
        self.seen = CallsSeen::More;
        self.idle_since = Instant::now();
        match orders::carry_out(self.server, &self.caller, head) {
            Ok(order) => self.start(head.entry, order),
            Err(error) => self.refuse(head.entry, error),
        }
        Ok(())
    }

    fn start(&mut self, entry: u16, call: RunningCall) {
        let (calling, abort) = abortable(call);
        self.aborts.push((entry, abort));
        self.running.push(calling);
    }

    /// Answers a call that does not run.
    fn refuse(&mut self, entry: u16, error: CallError) {
        self.server.metrics.refuse_call(error.kind());
        if let Some(record) = self.take_record(entry) {
            record.end(CallEnd::Failed(&error));
        }
        self.writing.push(EntryOutcome { entry, outcome: Err(error), queued: 0 });
    }

    /// Whether the end of the stream cancels calls.
    fn has_calls(&self) -> bool {
        self.seen == CallsSeen::Streaming || !self.running.is_empty() || self.receiver.has_call()
    }

    /// Cancels one call. An unknown one was answered, or never began.
    fn cancel(&mut self, entry: u16) {
        let mut was_known = self.writing.remove(entry) | self.receiver.cancel(entry);
        if let Some(at) = self.aborts.iter().position(|(running, _)| *running == entry) {
            self.aborts.swap_remove(at).1.abort();
            was_known = true;
        }
        drop(self.take_record(entry));
        if was_known {
            self.server.metrics.counters.calls_cancelled.inc();
        }
    }

    fn finish(&mut self, answer: Result<EntryOutcome, Aborted>) {
        self.idle_since = Instant::now();
        // A cancelled call has no answer.
        let Ok(answer) = answer else { return };
        self.aborts.retain(|(running, _)| *running != answer.entry);
        if let Some(mut record) = self.take_record(answer.entry) {
            match &answer.outcome {
                Ok(output) => {
                    record.add_output(output.bytes());
                    record.end(CallEnd::Answered);
                }
                Err(error) => record.end(CallEnd::Failed(error)),
            }
        }
        self.writing.push(answer);
    }

    fn take_record(&mut self, entry: u16) -> Option<CallRecord> {
        let at = self.records.iter().position(|(of, _)| *of == entry)?;
        Some(self.records.swap_remove(at).1)
    }

    /// Begins to write every outcome that is ready, unless others are still being written.
    fn begin_writing(&mut self) {
        if !self.writing.can_begin() {
            return;
        }
        while let Some(Some(answer)) = futures_util::FutureExt::now_or_never(self.running.next()) {
            self.finish(answer);
        }
        self.writing.begin(&self.server.config, load(self.server));
    }

    /// Writes all outcomes, before a streaming call gets the stream.
    async fn write_all(&mut self) -> Result<(), StreamFault> {
        loop {
            self.begin_writing();
            let Some(deadline) = self.writing.deadline() else { return Ok(()) };
            tokio::select! {
                biased;
                written = self.writing.write_some(&mut self.outgoing) => written?,
                () = tokio::time::sleep_until(deadline) => return Err(StreamRefusal::SlowReader.into()),
            }
        }
    }
}

/// The load of the node, for the load balancing of peers.
pub(super) fn load(server: &ServerState) -> Load {
    let in_flight = server.node().map_or(0, |node| node.in_flight());
    Load { in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX), queued: 0 }
}
