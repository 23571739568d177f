//! Receives a call: it is admitted by its head, before its body is read, and complete with its last byte.
//!
//! A stream receives one call at a time. The body of a refused call is discarded as it arrives, so that later calls are
//! read. A body must arrive at a minimum pace, within the timeout for bodies, and within the call's deadline. Its call
//! holds the bytes that have arrived, and is refused when the node has no room for more. A small input is decoded at
//! once, a large one on another thread; nothing of the call has started before that. Dropping the receiver returns the
//! permits of its call.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::wire::{Call, FrameHead, Origin};
use callboard_codec::{Account, DecodeError, EnvelopeDecoder, Payload, charged_to};
use callboard_core::edge::{
    Admission, BodyReservation, EdgeHandle, LARGE_BYTES, Pace, PaceLimits, PendingBody, QuestionAdmission, Route,
    StageAdmission, StageReader,
};
use callboard_core::remote::StageReply;
use callboard_core::{CallError, CallOptions, Deadline, ErrorKind, FunctionCall, Instant, LocalClient, Reply, Timing};
use callboard_identity::{Role, quoted};

use super::answer::{EntryOutcome, answered};
use super::orders::ConnectedCaller;
use super::streaming::{OpeningReplies, StreamingCall};
use super::{NetConfig, ServerState};
use crate::endpoint::{BodyWindow, ConnectionWindow};
use crate::{offload, wire};

/// The longest body that its call holds from the head on.
const SHORT_BYTES: u64 = 1024;

/// The most stages of one call.
pub(crate) const MAX_STAGES: usize = 16;

/// A running call, up to its encoded outcome.
pub(super) type RunningCall = Pin<Box<dyn Future<Output = EntryOutcome> + Send>>;

/// Receives the calls of a stream.
pub(super) struct CallReceiver<'a> {
    server: &'a Arc<ServerState>,
    caller: Arc<ConnectedCaller>,
    window: Arc<ConnectionWindow>,
    state: BodyState,
    /// The arrival rate of the current body.
    pace: Pace,
}

/// The body that is being received.
enum BodyState {
    None,
    Receiving(Box<IncomingBody>),
    /// Its call was refused.
    Discarding,
}

/// An admitted call whose body is arriving.
struct IncomingBody {
    entry: u16,
    credit: u32,
    target: CallTarget,
    node: Arc<LocalClient>,
    options: CallOptions,
    deadline: Deadline,
    decoder: EnvelopeDecoder,
    /// Pays for decoding.
    account: Arc<dyn Account>,
    reservation: BodyReservation,
    window: BodyWindow,
    _pending: PendingBody,
}

impl IncomingBody {
    /// Grants its caller window for the next bytes.
    fn extend_window(&mut self, connection: &ConnectionWindow) {
        let request = self.window.request();
        if request > 0 {
            self.window.granted(connection.grant(request));
        }
    }

    /// Adds a piece, if there is room for it.
    fn push(&mut self, bytes: Bytes, connection: &ConnectionWindow) -> Result<(), CallError> {
        let more = self.reservation.receive(bytes.len() as u64);
        if more > 0 {
            self.target.grow(more)?;
        }
        if self.window.received(bytes.len() as u64) {
            self.extend_window(connection);
        }
        let decoder = &mut self.decoder;
        Ok(charged_to(&self.account, || decoder.push(bytes))?)
    }
}

/// The state of a call after a part of its body.
pub(super) enum BodyProgress {
    /// More must arrive, or the body is discarded.
    Incomplete,
    /// The call runs.
    Complete(u16, RunningCall),
    /// The call runs, and gets the rest of the stream.
    Streaming(StreamingCall),
    /// The call does not run.
    Refused(u16, CallError),
}

impl<'a> CallReceiver<'a> {
    pub(super) fn new(
        server: &'a Arc<ServerState>,
        caller: Arc<ConnectedCaller>,
        window: Arc<ConnectionWindow>,
        now: Instant,
    ) -> Self {
        Self { server, caller, window, state: BodyState::None, pace: pace(&server.config, now) }
    }

    /// Whether no body is arriving.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, BodyState::None)
    }

    /// Whether the body of an admitted call is arriving.
    pub(super) fn has_call(&self) -> bool {
        matches!(self.state, BodyState::Receiving(_))
    }

    /// The time at which the current body is late, if nothing more arrives.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            BodyState::None => None,
            BodyState::Receiving(body) => Some(body.deadline.instant().min(self.pace.end().0)),
            BodyState::Discarding => Some(self.pace.end().0),
        }
    }

    /// Admits a call. Returns the route that it calls, if it calls one.
    ///
    /// # Errors
    ///
    /// The refusal of the call. Its body is discarded.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        head: &FrameHead,
        call: Call,
    ) -> Result<Option<Arc<Route>>, CallError> {
        let has_body = head.body_bytes > 0;
        self.pace = pace(&self.server.config, now);
        let error = match self.admit(now, head, call) {
            Ok(mut body) if has_body => {
                self.window.call_admitted();
                body.extend_window(&self.window);
                let route = body.target.route().map(Arc::clone);
                self.state = BodyState::Receiving(body);
                return Ok(route);
            }
            Ok(_) => CallError::new(ErrorKind::InvalidInput, "the call has no body: send an envelope"),
            Err(error) => error,
        };
        self.state = if has_body { BodyState::Discarding } else { BodyState::None };
        Err(error)
    }

    /// Takes the permits for a call, before its body is read.
    fn admit(&self, now: Instant, head: &FrameHead, mut call: Call) -> Result<Box<IncomingBody>, CallError> {
        let is_handover = call.ask.as_ref().is_some_and(|ask| EdgeHandle::is_handover(&ask.question));
        let Some(node) = self.server.node() else {
            let kind = if is_handover { ErrorKind::NotFound } else { ErrorKind::Unavailable };
            return Err(CallError::new(kind, "the node is starting"));
        };
        if self.server.is_draining() && !is_handover {
            let asked = call.ask.as_ref().filter(|_| self.caller.role == Role::Node);
            let moved = asked.and_then(|ask| Some(node.edge().moved(&ask.actor, ask.key.as_deref()?)));
            return Err(moved.unwrap_or_else(|| CallError::new(ErrorKind::Unavailable, "the node is draining")));
        }
        let (config, bytes) = (&self.server.config, head.body_bytes as u64);
        let options = wire::options(&call, now);
        let reservation = BodyReservation::new(Some(bytes)).holding_up_to(SHORT_BYTES);
        if bytes > SHORT_BYTES {
            // A body without room is refused before it arrives. This only checks: the call holds the arrived bytes.
            node.edge().held_bytes().grow(bytes)?;
        }
        let of_node = || options.deadline_from(now).unwrap_or_else(|| Deadline::after(now, Deadline::DEFAULT_TIMEOUT));
        let (target, deadline) = match (&call.ask, call.stages.as_slice()) {
            (None, []) => {
                let route = route(&node, &call)?;
                config.check_input(route.name(), bytes)?;
                let admission = node.edge().admit_session(&route, reservation.held(), options.session())?;
                let remaining = options.deadline_from(now).map(|deadline| deadline.remaining(now));
                let deadline = admission.deadline(remaining);
                (CallTarget::Route { admission, is_function: call.function }, deadline)
            }
            _ if self.caller.role != Role::Node => return Err(self.not_a_node()),
            (Some(ask), _) => {
                if !is_handover && !config.asks.allow(self.caller.name(), &ask.actor) {
                    return Err(self.may_not_ask(&ask.actor));
                }
                let held = reservation.held();
                let (edge, key) = (node.edge(), ask.key.as_deref());
                let admission = edge.admit_question(&ask.actor, key, &ask.question, ask.tell, held)?;
                (CallTarget::Actor(admission.asked_by(self.caller.node.clone())), of_node())
            }
            (None, stages) if stages.len() <= MAX_STAGES => {
                (CallTarget::Stages(node.edge().admit_stages(stages, reservation.held())?), of_node())
            }
            _ => {
                let message = format!("the call names more than {MAX_STAGES} stages (max_stages)");
                return Err(CallError::new(ErrorKind::InvalidInput, message));
            }
        };
        let pending = node.edge().begin_body()?;
        let account = target.account();
        let options = match call.origin.take() {
            None => options,
            Some(origin) => self.with_origin(options, *origin, &target, &*account)?,
        };
        let options = match target.route() {
            Some(route) => route.with_called_path(&call.route, options),
            None => options,
        };
        let options = self.traced(options, &call, &target, now);
        Ok(Box::new(IncomingBody {
            entry: head.entry,
            credit: call.credit,
            target,
            node,
            options,
            deadline,
            decoder: EnvelopeDecoder::new(&config.decode),
            account,
            reservation,
            window: BodyWindow::new(bytes, &config.tuning),
            _pending: pending,
        }))
    }

    /// Adds the facts of the caller and its request, at the expense of the call. Only a node may name another caller,
    /// which it has checked.
    fn with_origin(
        &self,
        options: CallOptions,
        origin: Origin,
        target: &CallTarget,
        account: &dyn Account,
    ) -> Result<CallOptions, CallError> {
        if self.caller.role != Role::Node && !origin.caller.is_empty() {
            let message = format!(
                "{} may not set `caller`: only nodes may, because they have checked it",
                self.caller.role.with_article()
            );
            return Err(CallError::new(ErrorKind::PermissionDenied, message));
        }
        let options = wire::with_origin(options, origin, target.route().map(|route| &**route))?;
        account.charge(options.attribute_bytes()).map_err(DecodeError::from)?;
        Ok(options)
    }

    /// Adds a recorder, if the caller's trace is recorded and this node has a tracer.
    fn traced(&self, options: CallOptions, call: &Call, target: &CallTarget, now: Instant) -> CallOptions {
        let Some(parent) = wire::trace_parent(call) else { return options };
        let Some(tracer) = self.server.node().and_then(|node| node.edge().tracer()) else { return options };
        let recorder = match target {
            CallTarget::Route { admission, .. } => tracer.trace(parent, admission.route().name(), now),
            CallTarget::Stages(_) => tracer.trace(parent, &call.stages.join(" → "), now),
            CallTarget::Actor(_) => tracer.trace(parent, call.target(), now),
        };
        options.with_recorder(recorder)
    }

    fn not_a_node(&self) -> CallError {
        let message = format!(
            "{}s call routes: stages and actors are for nodes; join with a token of role node",
            self.caller.role
        );
        CallError::new(ErrorKind::PermissionDenied, message)
    }

    fn may_not_ask(&self, actor: &str) -> CallError {
        let member = quoted(self.caller.name());
        let message = format!("the member {member} may not ask the actor {} of this node (quic.asks)", quoted(actor));
        CallError::new(ErrorKind::PermissionDenied, message)
    }

    /// Takes a part of a body.
    pub(super) fn receive(&mut self, now: Instant, bytes: Bytes, last: bool) -> BodyProgress {
        self.pace.moved(now, bytes.len());
        if let BodyState::Receiving(body) = &mut self.state
            && let Err(error) = body.push(bytes, &self.window)
        {
            let entry = body.entry;
            self.state = if last { BodyState::None } else { BodyState::Discarding };
            return BodyProgress::Refused(entry, error);
        }
        if !last {
            return BodyProgress::Incomplete;
        }
        let BodyState::Receiving(body) = std::mem::replace(&mut self.state, BodyState::None) else {
            return BodyProgress::Incomplete;
        };
        let IncomingBody { entry, credit, target, node, options, deadline, decoder, account, .. } = *body;
        match self.read(decoder, target.reader(), Payer { account, deadline }) {
            Err(error) => BodyProgress::Refused(entry, error),
            Ok(input) if credit > 0 && target.is_streaming() => {
                let opening = target.open(Arc::clone(&node), input, options);
                BodyProgress::Streaming(StreamingCall { entry, credit, node, opening, deadline })
            }
            Ok(input) => BodyProgress::Complete(entry, target.run(entry, (node, deadline), input, options)),
        }
    }

    /// Decodes a complete input now, or later on another thread if it is large.
    fn read(&self, decoder: EnvelopeDecoder, reader: InputReader, payer: Payer) -> Result<CallInput, CallError> {
        if decoder.total_bytes().unwrap_or_default() < LARGE_BYTES {
            let read = || charged_to(&payer.account, || reader.read(decoder));
            return offload::contain(read).map(CallInput::Decoded);
        }
        let server = Arc::clone(self.server);
        Ok(CallInput::Large(Box::new(LargeInput { server, decoder, reader, payer })))
    }

    /// Refuses the call whose deadline has passed before its body was complete; the rest of the body is discarded.
    pub(super) fn take_expired(&mut self, now: Instant) -> Option<(u16, CallError)> {
        let BodyState::Receiving(body) = &self.state else { return None };
        if !body.deadline.is_expired(now) {
            return None;
        }
        let error = CallError::new(ErrorKind::DeadlineExceeded, "the deadline passed before the body was complete");
        let entry = body.entry;
        self.state = BodyState::Discarding;
        Some((entry, error))
    }

    /// Cancels this call. `false`: its body is not arriving.
    pub(super) fn cancel(&mut self, entry: u16) -> bool {
        let is_current = matches!(&self.state, BodyState::Receiving(body) if body.entry == entry);
        if is_current {
            self.state = BodyState::Discarding;
        }
        is_current
    }
}

/// The called route or stages, or the asked actor, with the permits.
enum CallTarget {
    Route { admission: Admission, is_function: bool },
    Stages(StageAdmission),
    Actor(QuestionAdmission),
}

impl CallTarget {
    /// Takes permits for more bytes of its input.
    fn grow(&self, bytes: u64) -> Result<(), CallError> {
        match self {
            Self::Route { admission, .. } => admission.grow(bytes),
            Self::Stages(admission) => admission.grow(bytes),
            Self::Actor(admission) => admission.grow(bytes),
        }
    }

    /// The call's account.
    fn account(&self) -> Arc<dyn Account> {
        match self {
            Self::Route { admission, .. } => admission.account(),
            Self::Stages(admission) => admission.account(),
            Self::Actor(admission) => admission.account(),
        }
    }

    fn route(&self) -> Option<&Arc<Route>> {
        match self {
            Self::Route { admission, .. } => Some(admission.route()),
            Self::Stages(_) | Self::Actor(_) => None,
        }
    }

    fn reader(&self) -> InputReader {
        match self {
            Self::Route { admission, is_function: true } => InputReader::Function(Arc::clone(admission.route())),
            Self::Route { admission, is_function: false } => InputReader::Route(Arc::clone(admission.route())),
            Self::Stages(admission) => InputReader::Stages(admission.reader()),
            Self::Actor(admission) => InputReader::Question(admission.reader()),
        }
    }

    /// Whether it can answer with a stream of outputs.
    fn is_streaming(&self) -> bool {
        match self {
            Self::Route { .. } => true,
            Self::Stages(admission) => admission.streams(),
            Self::Actor(_) => false,
        }
    }

    /// Starts a call that answers with a stream.
    fn open(self, node: Arc<LocalClient>, input: CallInput, options: CallOptions) -> OpeningReplies {
        match self {
            Self::Route { admission, .. } => Box::pin(async move {
                let (admission, payload) = input.payload(&node, admission).await?;
                Ok(node.edge().submit_streaming(admission, payload, options))
            }),
            Self::Stages(admission) => Box::pin(async move {
                let (admission, payload) = input.payload(&node, admission).await?;
                Ok(node.edge().submit_stages_streaming(admission, payload, options))
            }),
            // Not called: it does not stream.
            Self::Actor(_) => {
                Box::pin(async { Err(CallError::new(ErrorKind::InvalidInput, "an actor has one answer")) })
            }
        }
    }

    /// Runs a call for its one outcome. Boxed from the beginning, because its state is large to move.
    fn run(
        self,
        entry: u16,
        (node, deadline): (Arc<LocalClient>, Deadline),
        input: CallInput,
        options: CallOptions,
    ) -> RunningCall {
        match self {
            Self::Route { admission, .. } => Box::pin(async move {
                let ran = match input.payload(&node, admission).await {
                    Ok((admission, payload)) => node.edge().submit_unwritten(admission, payload, options).await,
                    Err(error) => Err(error),
                };
                let outcome = match ran {
                    Ok((reply, unwritten)) => {
                        // A call of a route counts no stages.
                        let ran = StageReply::new(reply, 0).with_response(unwritten.response());
                        let outcome = answered(&node, deadline, Ok(ran)).await;
                        unwritten.end(outcome.as_ref().map(|_| ()).map_err(CallError::kind));
                        outcome
                    }
                    Err(error) => Err(error),
                };
                EntryOutcome { entry, outcome, queued: 0 }
            }),
            Self::Stages(admission) => {
                let queue = admission.queue();
                Box::pin(async move {
                    let ran = match input.payload(&node, admission).await {
                        Ok((admission, payload)) => node.edge().submit_stages(admission, payload, options).await,
                        Err(error) => Err(error),
                    };
                    EntryOutcome { entry, outcome: answered(&node, deadline, ran).await, queued: queue.len() }
                })
            }
            Self::Actor(mut admission) => {
                // Now, because later calls may be admitted before the future runs.
                admission.arrived();
                Box::pin(async move {
                    let answer = match input.payload(&node, admission).await {
                        Ok((admission, question)) => admission.deliver(question, deadline, options).await,
                        Err(error) => Err(error),
                    };
                    let reply = answer.map(|answer| StageReply::new(Reply::new(answer, Timing::default()), 0));
                    EntryOutcome { entry, outcome: answered(&node, deadline, reply).await, queued: 0 }
                })
            }
        }
    }
}

/// Decodes the input of a call.
enum InputReader {
    Route(Arc<Route>),
    Function(Arc<Route>),
    Stages(StageReader),
    Question(fn(EnvelopeDecoder) -> Result<Payload, DecodeError>),
}

impl InputReader {
    fn read(self, decoder: EnvelopeDecoder) -> Result<Payload, CallError> {
        match self {
            Self::Route(route) => Ok(route.input().finish(decoder)?),
            Self::Function(route) => decoder.finish_as::<FunctionCall>()?.into_payload(&route),
            Self::Stages(reader) => reader.read(decoder),
            Self::Question(read) => Ok(read(decoder)?),
        }
    }
}

enum CallInput {
    Decoded(Payload),
    /// It is large, and decoded on another thread when the call starts.
    Large(Box<LargeInput>),
}

/// What pays for the decoding of an input.
struct Payer {
    account: Arc<dyn Account>,
    deadline: Deadline,
}

struct LargeInput {
    server: Arc<ServerState>,
    decoder: EnvelopeDecoder,
    reader: InputReader,
    payer: Payer,
}

impl CallInput {
    /// The decoded input, and the call's permits, which are held while it is decoded.
    async fn payload<O: Send + 'static>(self, node: &LocalClient, owner: O) -> Result<(O, Payload), CallError> {
        match self {
            Self::Decoded(payload) => Ok((owner, payload)),
            Self::Large(input) => {
                let LargeInput { server, decoder, reader, payer: Payer { account, deadline } } = *input;
                let budget = node.edge().codec_budget(account, deadline);
                let read = move || offload::contain(|| reader.read(decoder));
                let read = budget.off_thread(owner, read).await.and_then(|(owner, payload)| Ok((owner, payload?)));
                read.inspect_err(|error| server.metrics.refuse_call(error.kind()))
            }
        }
    }
}

/// The called route: a function by its name, with or without the slash.
fn route(node: &LocalClient, call: &Call) -> Result<Arc<Route>, CallError> {
    if call.function {
        return node.find_function(&call.route);
    }
    node.route(&call.route).filter(|route| !route.is_private()).ok_or_else(|| node.no_route(&call.route))
}

/// The required pace of a body.
fn pace(config: &NetConfig, now: Instant) -> Pace {
    let limits = PaceLimits::new(config.body_progress_timeout, config.min_bytes_per_second);
    Pace::new(now, limits.within(config.body_timeout))
}
