//! One stream: its calls as they arrive, their outcomes as they come about, in any order.
//!
//! Everything happens in one task, so that its end is the end of all of it: when the stream is reset, its task is dropped, and with
//! it every call that it runs. A call is admitted before its body is read, and run when the last byte of it is there. Reading, running and
//! writing go on beside each other. A stream on which nothing is left to do is ended after a while: one whose calls were answered is
//! finished, so that its caller reads at its own pace, and one that had none is reset.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::wire::{Call, FrameHead, FrameKind, FramePart, Load, ResetCode, WireError};
use callboard_codec::{EnvelopeDecoder, Payload};
use callboard_core::{
    Admission, CallError, CallOptions, DEFAULT_TIMEOUT, Deadline, ErrorKind, FunctionCall, Instant, LocalClient, Route,
    StageAdmission, StageReply,
};
use futures_util::future::{AbortHandle, Abortable, Aborted, abortable};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Handle;

use super::answer::answered;
use super::pace::Pace;
use super::writing::{Outcome, Writing};
use super::{Serving, StreamGuard, streaming};
use crate::endpoint::{begin_here, send_now};
use crate::identity::Role;
use crate::stream::{Incoming, Outgoing, ReadFault};
use crate::{contained, convert};

/// Calls of one stream that may be under way at once, those whose outcomes are not written among them.
pub(crate) const MAX_PACK_ENTRIES: usize = 32;

/// Stages that one call may name.
pub(crate) const MAX_STAGES: usize = 16;

/// How long the acknowledgement of an answer may take that its caller has room for. Threat: a peer that acknowledges nothing.
const LAST_ACKNOWLEDGEMENT: Duration = Duration::from_secs(60);

type Running = Abortable<Pin<Box<dyn Future<Output = Outcome> + Send>>>;

/// Why a stream was not answered to its end.
pub(super) enum Fault {
    /// Its caller gave it up, or is gone.
    Left,
    /// It is not of this protocol.
    Refused(&'static str),
}

/// Answers all calls of a stream. What is left to do behind that is done at `home`, where packets arrive.
pub(super) async fn answer_stream(guard: StreamGuard, home: Handle, outgoing: Outgoing, incoming: Incoming) {
    let serving = Arc::clone(&guard.serving);
    let config = &serving.config;
    let mut exchange = Exchange {
        serving: &serving,
        role: guard.role,
        outgoing,
        incoming,
        receiving: Receiving::Nothing,
        pace: Pace::new(Instant::now(), config.body_progress_timeout, config.min_bytes_per_second),
        idle_since: Instant::now(),
        running: FuturesUnordered::new(),
        aborts: Vec::new(),
        writing: Writing::new(config),
        has_begun: false,
        has_last: false,
        streams: false,
    };
    match exchange.run().await {
        // Closing the endpoint would throw away what has not arrived: until then the stream is in hand.
        Ok(()) => {
            let Exchange { mut outgoing, incoming, .. } = exchange;
            begin_here(&home, async move {
                if tokio::time::timeout(LAST_ACKNOWLEDGEMENT, outgoing.stopped()).await.is_err() {
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
        Err(Fault::Refused(reason)) => {
            serving.metrics.refuse_stream(reason);
            if serving.is_draining() {
                serving.has_cut.store(true, Ordering::Release);
            }
            let code = match reason {
                "body_too_large" | "header_too_large" => ResetCode::TooLarge,
                "silent" | "slow_body" | "slow_reader" => ResetCode::Deadline,
                _ => ResetCode::Protocol,
            };
            exchange.outgoing.on_drop(code);
            exchange.incoming.on_drop(code);
        }
    }
}

struct Exchange<'a> {
    serving: &'a Arc<Serving>,
    /// What the caller may do.
    role: Role,
    outgoing: Outgoing,
    incoming: Incoming,
    receiving: Receiving,
    /// How the body comes along that is being received.
    pace: Pace,
    /// Since when there is nothing to do.
    idle_since: Instant,
    running: FuturesUnordered<Running>,
    aborts: Vec<(u16, AbortHandle)>,
    writing: Writing,
    /// There was a call on it.
    has_begun: bool,
    /// No call comes behind those that were begun.
    has_last: bool,
    /// It is a streaming call's.
    streams: bool,
}

/// What the bytes of a body are for.
enum Receiving {
    Nothing,
    Body(Box<Body>),
    /// Of a call that was refused, or is of no frame that has one.
    Discarded,
}

/// An admitted call whose body is on its way.
struct Body {
    entry: u16,
    credit: u32,
    target: Target,
    node: Arc<LocalClient>,
    options: CallOptions,
    due: Deadline,
    decoder: EnvelopeDecoder,
}

/// What is called, with the permits for it.
enum Target {
    Route { admission: Admission, function: bool },
    Stages(StageAdmission),
}

/// The input of a call.
enum Input {
    Read(Payload),
    /// It is large.
    Elsewhere(Pin<Box<dyn Future<Output = Result<Payload, CallError>> + Send>>),
}

impl Input {
    async fn payload(self) -> Result<Payload, CallError> {
        match self {
            Self::Read(payload) => Ok(payload),
            Self::Elsewhere(reading) => reading.await,
        }
    }
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
                Some(outcome) = self.running.next(), if !self.running.is_empty() => self.finished(outcome),
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
                            call = self.take(part.map_err(|error| Fault::Refused(error.as_str()))?)?;
                        }
                        if let Some(call) = call {
                            self.streams = true;
                            self.write_all().await?;
                            return streaming::answer(self.serving, call, &mut self.outgoing, &mut self.incoming).await;
                        }
                    }
                    Ok(None) if matches!(self.receiving, Receiving::Nothing) => ended = true,
                    Ok(None) | Err(ReadFault::Ended) => return Err(Fault::Refused("truncated")),
                    Err(ReadFault::Wire(error)) => return Err(Fault::Refused(error.as_str())),
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

    /// Whether all that is called on it has come. A caller says so where it has more than one call; else it ends the stream.
    fn is_last(&self) -> bool {
        self.has_last && matches!(self.receiving, Receiving::Nothing)
    }

    /// Until when the next bytes have to come or go, if it is the caller who is waited for.
    fn due(&self, ended: bool) -> Option<Instant> {
        let writing = self.writing.due();
        let reading = match &self.receiving {
            _ if ended => None,
            Receiving::Body(body) => Some(body.due.instant().min(self.pace.end())),
            Receiving::Discarded => Some(self.pace.end()),
            // What runs has a deadline of its own, and its caller nothing more to say; what is written has its pace.
            Receiving::Nothing if !self.running.is_empty() || writing.is_some() => None,
            Receiving::Nothing => Some(self.idle_since + self.serving.config.head_timeout),
        };
        reading.into_iter().chain(writing).min()
    }

    /// What becomes of a stream on which the next bytes have not come or gone in time; says whether it is over.
    fn too_late(&mut self) -> Result<bool, Fault> {
        if self.writing.due().is_some_and(|due| due <= Instant::now()) {
            return Err(Fault::Refused("slow_reader"));
        }
        match &self.receiving {
            // All that was called is answered. A reset would take back what has not been read yet.
            Receiving::Nothing if self.has_begun => Ok(true),
            Receiving::Nothing => Err(Fault::Refused("silent")),
            Receiving::Body(body) if body.due.is_expired(Instant::now()) => {
                let error =
                    CallError::new(ErrorKind::DeadlineExceeded, "the deadline passed before the body was there");
                let entry = body.entry;
                self.refuse(entry, error);
                self.receiving = Receiving::Discarded;
                Ok(false)
            }
            Receiving::Body(_) | Receiving::Discarded => Err(Fault::Refused("slow_body")),
        }
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
                _ => Err(Fault::Refused("unexpected_kind")),
            },
            FramePart::Body { bytes, last } => self.receive(bytes, last),
        }
    }

    fn begin(&mut self, head: &FrameHead) -> Result<(), Fault> {
        let call: Call = head.header().map_err(|error: WireError| Fault::Refused(error.as_str()))?;
        if self.running.len() + self.writing.outcomes() >= MAX_PACK_ENTRIES {
            return Err(Fault::Refused("too_many_entries"));
        }
        if self.aborts.iter().any(|(entry, _)| *entry == head.entry) {
            return Err(Fault::Refused("entry_twice"));
        }
        if call.credit > 0 && !self.running.is_empty() {
            return Err(Fault::Refused("streaming_in_a_pack"));
        }
        if self.has_last {
            return Err(Fault::Refused("call_behind_the_last"));
        }
        self.has_begun = true;
        self.has_last = call.last;
        let has_body = head.body_bytes > 0;
        let config = &self.serving.config;
        self.idle_since = Instant::now();
        self.pace = Pace::new(self.idle_since, config.body_progress_timeout, config.min_bytes_per_second);
        self.receiving = match self.admit(head, call) {
            Ok(body) if has_body => Receiving::Body(Box::new(body)),
            Ok(body) => {
                let error = CallError::new(ErrorKind::InvalidInput, "the call has no body: send an envelope");
                self.refuse(body.entry, error);
                Receiving::Nothing
            }
            Err(error) => {
                self.refuse(head.entry, error);
                if has_body { Receiving::Discarded } else { Receiving::Nothing }
            }
        };
        Ok(())
    }

    /// The permits for a call, before its body is read.
    fn admit(&self, head: &FrameHead, call: Call) -> Result<Body, CallError> {
        let now = Instant::now();
        let Some(node) = self.serving.node() else {
            return Err(CallError::new(ErrorKind::Unavailable, "the node is starting"));
        };
        if self.serving.is_draining() {
            return Err(CallError::new(ErrorKind::Unavailable, "the node is draining"));
        }
        let (config, bytes) = (&self.serving.config, head.body_bytes as u64);
        let options = convert::options(&call, now);
        let (target, due) = match call.stages.as_slice() {
            [] => {
                let route = route(&node, &call)?;
                config.check_input(route.name(), bytes)?;
                let admission = node.admit(&route, bytes)?;
                let due = options.deadline().unwrap_or_else(|| admission.deadline(None));
                (Target::Route { admission, function: call.function }, due)
            }
            _ if self.role != Role::Node => return Err(self.not_a_node()),
            stages if stages.len() <= MAX_STAGES => {
                let due = options.deadline().unwrap_or_else(|| Deadline::after(now, DEFAULT_TIMEOUT));
                (Target::Stages(node.admit_stages(stages, bytes)?), due)
            }
            _ => {
                let message = format!("the call names more than {MAX_STAGES} stages (max_stages)");
                return Err(CallError::new(ErrorKind::InvalidInput, message));
            }
        };
        let options = self.traced(options, &call, &target, now);
        let decoder = EnvelopeDecoder::new(&config.decode);
        Ok(Body { entry: head.entry, credit: call.credit, target, node, options, due, decoder })
    }

    /// With a record, where the caller's trace is recorded and somebody takes part in it.
    fn traced(&self, options: CallOptions, call: &Call, target: &Target, now: Instant) -> CallOptions {
        let tracing = convert::caller(call).zip(self.serving.tracer.get());
        let Some((caller, tracer)) = tracing else { return options };
        let recorder = match target {
            Target::Route { admission, .. } => tracer.trace(caller, admission.route().name(), now),
            Target::Stages(_) => tracer.trace(caller, &call.stages.join(" → "), now),
        };
        options.with_recorder(recorder)
    }

    fn not_a_node(&self) -> CallError {
        let message = format!("{}s call routes: stages are for nodes; join with a token of role node", self.role);
        CallError::new(ErrorKind::PermissionDenied, message)
    }

    fn receive(&mut self, bytes: Bytes, last: bool) -> Result<Option<streaming::StreamingCall>, Fault> {
        let now = Instant::now();
        self.pace.moved(now, bytes.len());
        if let Receiving::Body(body) = &mut self.receiving
            && let Err(error) = body.decoder.push(bytes)
        {
            let entry = body.entry;
            self.refuse(entry, error.into());
            self.receiving = Receiving::Discarded;
        }
        if !last {
            return Ok(None);
        }
        self.idle_since = now;
        let Receiving::Body(body) = std::mem::replace(&mut self.receiving, Receiving::Nothing) else { return Ok(None) };
        let Body { entry, credit, target, node, options, due, decoder } = *body;
        match target {
            Target::Stages(admission) => {
                let Some(input) = self.read(entry, decoder, |decoder| Ok(Payload::new(decoder.finish()?))) else {
                    return Ok(None);
                };
                if credit > 0 && admission.streams() {
                    let opening =
                        async move { Ok(node.submit_stages_streaming(admission, input.payload().await?, options)) };
                    return Ok(Some(streaming::StreamingCall { entry, credit, opening: Box::pin(opening), due }));
                }
                let queue = admission.queue();
                self.start(entry, async move {
                    let ran = match input.payload().await {
                        Ok(payload) => node.submit_stages(admission, payload, options).await,
                        Err(error) => Err(error),
                    };
                    (entry, answered(ran).await, queue.len())
                });
            }
            Target::Route { admission, function } => {
                let route = Arc::clone(admission.route());
                let Some(input) = self.read(entry, decoder, move |decoder| read_input(decoder, &route, function))
                else {
                    return Ok(None);
                };
                if credit > 0 {
                    let opening = async move { Ok(node.submit_streaming(admission, input.payload().await?, options)) };
                    return Ok(Some(streaming::StreamingCall { entry, credit, opening: Box::pin(opening), due }));
                }
                self.start(entry, async move {
                    let ran = match input.payload().await {
                        Ok(payload) => node.submit(admission, payload, options).await,
                        Err(error) => Err(error),
                    };
                    // One route is all that was called.
                    (entry, answered(ran.map(|reply| StageReply::new(reply, 0))).await, 0)
                });
            }
        }
        Ok(None)
    }

    /// Reads an input that is all there: on the spot, or elsewhere where it is large. One that cannot be read is refused.
    fn read(
        &mut self,
        entry: u16,
        decoder: EnvelopeDecoder,
        how: impl FnOnce(EnvelopeDecoder) -> Result<Payload, CallError> + Send + 'static,
    ) -> Option<Input> {
        let bytes = decoder.total_bytes().unwrap_or_default();
        if bytes >= contained::LARGE_BYTES {
            let serving = Arc::clone(self.serving);
            return Some(Input::Elsewhere(Box::pin(async move {
                let read = contained::run(bytes, move || how(decoder)).await;
                read.inspect_err(|error| serving.metrics.refuse_call(error.kind()))
            })));
        }
        match contained::contain(|| how(decoder)) {
            Ok(payload) => Some(Input::Read(payload)),
            Err(error) => {
                self.refuse(entry, error);
                None
            }
        }
    }

    /// In one place from the beginning: what a call needs to run is large to be moved.
    fn start(&mut self, entry: u16, call: impl Future<Output = Outcome> + Send + 'static) {
        let call: Pin<Box<dyn Future<Output = Outcome> + Send>> = Box::pin(call);
        let (calling, abort) = abortable(call);
        self.aborts.push((entry, abort));
        self.running.push(calling);
    }

    /// A call that is not run.
    fn refuse(&mut self, entry: u16, error: CallError) {
        self.serving.metrics.refuse_call(error.kind());
        self.writing.push((entry, Err(error), 0));
    }

    /// Whether a caller that leaves leaves something behind.
    fn has_calls(&self) -> bool {
        self.streams || !self.running.is_empty() || matches!(self.receiving, Receiving::Body(_))
    }

    /// Gives up one call. One that is not known has been answered, or never began.
    fn cancel(&mut self, entry: u16) {
        let mut was_known = self.writing.forget(entry);
        if let Receiving::Body(body) = &self.receiving
            && body.entry == entry
        {
            self.receiving = Receiving::Discarded;
            was_known = true;
        }
        if let Some(at) = self.aborts.iter().position(|(running, _)| *running == entry) {
            self.aborts.swap_remove(at).1.abort();
            was_known = true;
        }
        if was_known {
            self.serving.metrics.calls_cancelled.inc();
        }
    }

    fn finished(&mut self, outcome: Result<Outcome, Aborted>) {
        // Nobody waits for the answer of one that was given up.
        self.idle_since = Instant::now();
        let Ok((entry, outcome, queued)) = outcome else { return };
        self.aborts.retain(|(running, _)| *running != entry);
        self.writing.push((entry, outcome, queued));
    }

    /// Begins to write every outcome that is there, unless others are still being written.
    fn begin_writing(&mut self) {
        if !self.writing.is_due() {
            return;
        }
        while let Some(Some(outcome)) = futures_util::FutureExt::now_or_never(self.running.next()) {
            self.finished(outcome);
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
                () = tokio::time::sleep_until(due) => return Err(Fault::Refused("slow_reader")),
            }
        }
    }
}

/// The route that is called: a function by its name, with or without its slash.
fn route(node: &LocalClient, call: &Call) -> Result<Arc<Route>, CallError> {
    if call.function {
        return node.find_function(&call.route);
    }
    let found = node.route(&call.route);
    found.ok_or_else(|| CallError::new(ErrorKind::NotFound, format!("there is no route `{}`", call.route)))
}

fn read_input(decoder: EnvelopeDecoder, route: &Route, function: bool) -> Result<Payload, CallError> {
    match function {
        true => decoder.finish_as::<FunctionCall>()?.into_payload(route),
        false => Ok(route.input().finish(decoder)?),
    }
}

/// How the node does, for peers that weigh where to send the next call.
pub(super) fn load(serving: &Serving) -> Load {
    let in_flight = serving.node().map_or(0, |node| node.in_flight());
    Load { in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX), queued: 0 }
}
