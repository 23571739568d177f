//! A call as it comes in: admitted by its head, before its body is read, and given out with the last byte of it.
//!
//! A stream receives one call at a time. The body of one that is refused is discarded as it comes, so that the calls behind it are heard. A
//! body has to come along: at a pace, within the time for any body, and within its call's own deadline. It holds what has come of it, and
//! is refused in the middle when the node has no room for more. A small input is read on the spot, a large one elsewhere; until
//! it is read, nothing of the call has been started. Dropping what is here gives back the permits of the call that is on its way.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::wire::{Call, FrameHead};
use callboard_codec::{Account, EnvelopeDecoder, Payload, charged_to};
use callboard_core::edge::{Admission, Route, StageAdmission};
use callboard_core::remote::StageReply;
use callboard_core::{
    CallError, CallOptions, DEFAULT_TIMEOUT, Deadline, ErrorKind, FunctionCall, Instant, LocalClient,
};

use super::answer::{Answer, answered};
use super::arrivals::{Arrival, Earning, FIRST_BYTES};
use super::pace::Pace;
use super::streaming::{Opening, StreamingCall};
use super::{NetConfig, Serving};
use crate::contained::{self, Paying};
use crate::convert;
use crate::endpoint::{Ahead, Window};
use crate::identity::Role;

/// Stages that one call may name.
pub(crate) const MAX_STAGES: usize = 16;

/// A call that runs, up to what is sent for it.
pub(super) type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// What is being received on a stream.
pub(super) struct Reception<'a> {
    serving: &'a Arc<Serving>,
    /// What the caller may do.
    role: Role,
    /// Of its connection.
    window: Arc<Window>,
    receiving: Receiving,
    /// How the body comes along that is being received.
    pace: Pace,
    /// When all of it has to be there.
    ends: Instant,
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
    /// What is read for it is charged here.
    account: Arc<dyn Account>,
    earning: Earning,
    ahead: Ahead,
    /// Its place among those that are on their way.
    _arrival: Arrival,
}

impl Body {
    /// Lets its caller send on.
    fn look_ahead(&mut self, window: &Window) {
        let wanted = self.ahead.wanted();
        if wanted > 0 {
            self.ahead.given(window.give(wanted));
        }
    }

    /// Takes a piece, for which there has to be room.
    fn push(&mut self, bytes: Bytes, window: &Window) -> Result<(), CallError> {
        let more = self.earning.received(bytes.len() as u64);
        if more > 0 {
            self.target.grow(more)?;
        }
        if self.ahead.came(bytes.len() as u64) {
            self.look_ahead(window);
        }
        let decoder = &mut self.decoder;
        Ok(charged_to(&self.account, || decoder.push(bytes))?)
    }
}

/// What became of a call with a piece of its body.
pub(super) enum Received {
    /// There is none, or more of it has to come.
    Nothing,
    /// It is to be run.
    Call(u16, Answering),
    /// It is to be run, and has the rest of the stream to itself.
    Stream(StreamingCall),
    /// It is not run.
    Refused(u16, CallError),
}

impl<'a> Reception<'a> {
    pub(super) fn new(serving: &'a Arc<Serving>, role: Role, window: Arc<Window>, now: Instant) -> Self {
        Self { serving, role, window, receiving: Receiving::Nothing, pace: pace(&serving.config, now), ends: now }
    }

    /// Whether no body is on its way.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.receiving, Receiving::Nothing)
    }

    /// Whether an admitted call's body is on its way.
    pub(super) fn has_call(&self) -> bool {
        matches!(self.receiving, Receiving::Body(_))
    }

    /// Until when the next bytes of a body have to come, if there is one.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.receiving {
            Receiving::Nothing => None,
            Receiving::Body(body) => Some(body.due.instant().min(self.pace.end()).min(self.ends)),
            Receiving::Discarded => Some(self.pace.end().min(self.ends)),
        }
    }

    /// Takes the permits of the call that begins.
    ///
    /// # Errors
    ///
    /// What the call is refused with. Its body is discarded.
    pub(super) fn begin(&mut self, now: Instant, head: &FrameHead, call: Call) -> Result<(), CallError> {
        let has_body = head.body_bytes > 0;
        self.pace = pace(&self.serving.config, now);
        self.ends = now + self.serving.config.body_timeout;
        let error = match self.admit(now, head, call) {
            Ok(mut body) if has_body => {
                self.window.called();
                body.look_ahead(&self.window);
                self.receiving = Receiving::Body(body);
                return Ok(());
            }
            Ok(_) => CallError::new(ErrorKind::InvalidInput, "the call has no body: send an envelope"),
            Err(error) => error,
        };
        self.receiving = if has_body { Receiving::Discarded } else { Receiving::Nothing };
        Err(error)
    }

    /// The permits for a call, before its body is read.
    fn admit(&self, now: Instant, head: &FrameHead, call: Call) -> Result<Box<Body>, CallError> {
        let Some(node) = self.serving.node() else {
            return Err(CallError::new(ErrorKind::Unavailable, "the node is starting"));
        };
        if self.serving.is_draining() {
            return Err(CallError::new(ErrorKind::Unavailable, "the node is draining"));
        }
        let (config, bytes) = (&self.serving.config, head.body_bytes as u64);
        let options = convert::options(&call, now);
        let earning = Earning::new(bytes);
        if bytes > FIRST_BYTES {
            // One for which there is no room is refused before it comes. What it holds is what has come.
            node.held_bytes().grow(bytes)?;
        }
        let (target, due) = match call.stages.as_slice() {
            [] => {
                let route = route(&node, &call)?;
                config.check_input(route.name(), bytes)?;
                let admission = node.admit(&route, earning.held())?;
                let due = admission.deadline(options.deadline_from(now).map(|deadline| deadline.remaining(now)));
                (Target::Route { admission, function: call.function }, due)
            }
            _ if self.role != Role::Node => return Err(self.not_a_node()),
            stages if stages.len() <= MAX_STAGES => {
                let due = options.deadline_from(now).unwrap_or_else(|| Deadline::after(now, DEFAULT_TIMEOUT));
                (Target::Stages(node.admit_stages(stages, earning.held())?), due)
            }
            _ => {
                let message = format!("the call names more than {MAX_STAGES} stages (max_stages)");
                return Err(CallError::new(ErrorKind::InvalidInput, message));
            }
        };
        let options = self.traced(options, &call, &target, now);
        let (decoder, arrival) = (EnvelopeDecoder::new(&config.decode), self.serving.arrivals.begin()?);
        let (entry, credit, ahead) = (head.entry, call.credit, Ahead::new(bytes, &config.tuning));
        let account = target.account();
        let body =
            Body { entry, credit, target, node, options, due, decoder, account, earning, ahead, _arrival: arrival };
        Ok(Box::new(body))
    }

    /// With a record, where the caller's trace is recorded and somebody takes part in it.
    fn traced(&self, options: CallOptions, call: &Call, target: &Target, now: Instant) -> CallOptions {
        let tracing = convert::trace_parent(call).zip(self.serving.tracer.get());
        let Some((parent, tracer)) = tracing else { return options };
        let recorder = match target {
            Target::Route { admission, .. } => tracer.trace(parent, admission.route().name(), now),
            Target::Stages(_) => tracer.trace(parent, &call.stages.join(" → "), now),
        };
        options.with_recorder(recorder)
    }

    fn not_a_node(&self) -> CallError {
        let message = format!("{}s call routes: stages are for nodes; join with a token of role node", self.role);
        CallError::new(ErrorKind::PermissionDenied, message)
    }

    /// Takes a piece of a body.
    pub(super) fn receive(&mut self, now: Instant, bytes: Bytes, last: bool) -> Received {
        self.pace.moved(now, bytes.len());
        if let Receiving::Body(body) = &mut self.receiving
            && let Err(error) = body.push(bytes, &self.window)
        {
            let entry = body.entry;
            self.receiving = if last { Receiving::Nothing } else { Receiving::Discarded };
            return Received::Refused(entry, error);
        }
        if !last {
            return Received::Nothing;
        }
        let Receiving::Body(body) = std::mem::replace(&mut self.receiving, Receiving::Nothing) else {
            return Received::Nothing;
        };
        let Body { entry, credit, target, node, options, due, decoder, account, .. } = *body;
        match self.read(decoder, target.reading(), Paying { account, due }) {
            Err(error) => Received::Refused(entry, error),
            Ok(input) if credit > 0 && target.streams() => {
                let opening = target.open(Arc::clone(&node), input, options);
                Received::Stream(StreamingCall { entry, credit, node, opening, due })
            }
            Ok(input) => Received::Call(entry, target.run(entry, (node, due), input, options)),
        }
    }

    /// Reads an input that is all there: on the spot, or elsewhere where it is large.
    fn read(&self, decoder: EnvelopeDecoder, reading: Reading, paying: Paying) -> Result<Input, CallError> {
        if decoder.total_bytes().unwrap_or_default() < contained::LARGE_BYTES {
            let read = || charged_to(&paying.account, || reading.read(decoder));
            return contained::contain(read).map(Input::Read);
        }
        let serving = Arc::clone(self.serving);
        Ok(Input::Unread(Box::new(Unread { serving, decoder, reading, paying })))
    }

    /// Refuses the call whose deadline has passed before its body was there; the rest of it is discarded.
    pub(super) fn take_expired(&mut self, now: Instant) -> Option<(u16, CallError)> {
        let Receiving::Body(body) = &self.receiving else { return None };
        if !body.due.is_expired(now) {
            return None;
        }
        let error = CallError::new(ErrorKind::DeadlineExceeded, "the deadline passed before the body was there");
        let entry = body.entry;
        self.receiving = Receiving::Discarded;
        Some((entry, error))
    }

    /// Nobody waits for this call any more; says whether it is the one whose body is on its way.
    pub(super) fn forget(&mut self, entry: u16) -> bool {
        let is_meant = matches!(&self.receiving, Receiving::Body(body) if body.entry == entry);
        if is_meant {
            self.receiving = Receiving::Discarded;
        }
        is_meant
    }
}

/// What is called, with the permits for it.
enum Target {
    Route { admission: Admission, function: bool },
    Stages(StageAdmission),
}

impl Target {
    /// Takes the permits for so many bytes more of its input.
    fn grow(&self, bytes: u64) -> Result<(), CallError> {
        match self {
            Self::Route { admission, .. } => admission.grow(bytes),
            Self::Stages(admission) => admission.grow(bytes),
        }
    }

    /// The account of the call.
    fn account(&self) -> Arc<dyn Account> {
        match self {
            Self::Route { admission, .. } => admission.account(),
            Self::Stages(admission) => admission.account(),
        }
    }

    fn reading(&self) -> Reading {
        match self {
            Self::Route { admission, function: true } => Reading::Function(Arc::clone(admission.route())),
            Self::Route { admission, function: false } => Reading::Route(Arc::clone(admission.route())),
            Self::Stages(_) => Reading::Stages,
        }
    }

    /// Whether it gives its outputs one by one to a caller that has room for them.
    fn streams(&self) -> bool {
        match self {
            Self::Route { .. } => true,
            Self::Stages(admission) => admission.streams(),
        }
    }

    /// Begins a call that answers with a stream.
    fn open(self, node: Arc<LocalClient>, input: Input, options: CallOptions) -> Opening {
        match self {
            Self::Route { admission, .. } => Box::pin(async move {
                let (admission, payload) = input.payload(&node, admission).await?;
                Ok(node.submit_streaming(admission, payload, options))
            }),
            Self::Stages(admission) => Box::pin(async move {
                let (admission, payload) = input.payload(&node, admission).await?;
                Ok(node.submit_stages_streaming(admission, payload, options))
            }),
        }
    }

    /// Runs a call for its one outcome. In one place from the beginning: what a call needs to run is large to be moved.
    fn run(
        self,
        entry: u16,
        (node, due): (Arc<LocalClient>, Deadline),
        input: Input,
        options: CallOptions,
    ) -> Answering {
        match self {
            Self::Route { admission, .. } => Box::pin(async move {
                let ran = match input.payload(&node, admission).await {
                    Ok((admission, payload)) => node.submit_unwritten(admission, payload, options).await,
                    Err(error) => Err(error),
                };
                let outcome = match ran {
                    Ok((reply, unwritten)) => {
                        // One route is all that was called.
                        let outcome = answered(&node, due, Ok(StageReply::new(reply, 0))).await;
                        unwritten.end(outcome.as_ref().map(|_| ()).map_err(CallError::kind));
                        outcome
                    }
                    Err(error) => Err(error),
                };
                Answer { entry, outcome, queued: 0 }
            }),
            Self::Stages(admission) => {
                let queue = admission.queue();
                Box::pin(async move {
                    let ran = match input.payload(&node, admission).await {
                        Ok((admission, payload)) => node.submit_stages(admission, payload, options).await,
                        Err(error) => Err(error),
                    };
                    Answer { entry, outcome: answered(&node, due, ran).await, queued: queue.len() }
                })
            }
        }
    }
}

/// How an input is read.
enum Reading {
    Route(Arc<Route>),
    Function(Arc<Route>),
    Stages,
}

impl Reading {
    fn read(self, decoder: EnvelopeDecoder) -> Result<Payload, CallError> {
        match self {
            Self::Route(route) => Ok(route.input().finish(decoder)?),
            Self::Function(route) => decoder.finish_as::<FunctionCall>()?.into_payload(&route),
            Self::Stages => Ok(Payload::new(decoder.finish()?)),
        }
    }
}

/// The input of a call.
enum Input {
    Read(Payload),
    /// It is large.
    Unread(Box<Unread>),
}

struct Unread {
    serving: Arc<Serving>,
    decoder: EnvelopeDecoder,
    reading: Reading,
    paying: Paying,
}

impl Input {
    /// The input, and the call's permits, which are held while it is read.
    async fn payload<O: Send + 'static>(self, node: &LocalClient, owner: O) -> Result<(O, Payload), CallError> {
        match self {
            Self::Read(payload) => Ok((owner, payload)),
            Self::Unread(unread) => {
                let Unread { serving, decoder, reading, paying } = *unread;
                let bytes = decoder.total_bytes().unwrap_or_default();
                let read = contained::run_for(node, (owner, bytes), paying, move || reading.read(decoder)).await;
                read.inspect_err(|error| serving.metrics.refuse_call(error.kind()))
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

/// What a caller has to send of a body.
fn pace(config: &NetConfig, now: Instant) -> Pace {
    Pace::new(now, config.body_progress_timeout, config.min_bytes_per_second)
}
