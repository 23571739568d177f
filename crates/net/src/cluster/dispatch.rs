//! One call of a stage: the choice of the peer, the meaning of its answer, and the choice of the next peer.
//!
//! One peer at a time has the call. If that peer falls silent and the call may run again, the next peer gets the call as
//! well, within the retry budget: the first outcome counts, and dropping the others cancels them there. The peer that
//! is called next is then never a silent one.

use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use callboard_codec::wire::Call;
use callboard_codec::{DecodeError, EncodeError, EncodeErrorKind, Envelope, Payload};
use callboard_core::edge::{ErrorOrigin, PayloadReplies, RETRY_AFTER};
use callboard_core::remote::{StageCall, StageOutputs, StageReply};
use callboard_core::{CallError, ErrorKind, Instant, Reply, SessionKey};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::Inner;
use super::index::{StagePeer, quick_pick};
use super::load_balance::{PeerLoad, better_of_two, ejected, session_peer};
use super::outputs::RemoteOutputs;
use super::peer_stats::PeerStats;
use super::stage_stats::InFlight;
use crate::client::{CallExchange, CallFault, CallResponse, NodeConnection, RoomPolicy, not_started, read_output};
use crate::metrics::PeerOutcome;
use crate::{offload, wire};

/// How often a call that waits for a node looks for one.
const NODE_POLL: Duration = Duration::from_millis(20);

/// A form of answer: one outcome, or a stream of outputs.
trait AnswerForm {
    /// The answer of a peer.
    type Response;

    const IS_STREAMING: bool;

    /// Makes the call on the chosen peer.
    fn attempt(
        cluster: &Inner,
        choice: &PeerChoice,
        call: &StageCall,
        envelope: &Envelope,
        in_flight: InFlight,
    ) -> impl Future<Output = Result<Self::Response, CallFault>> + Send;

    /// The length of the stage's queue at the peer, if the answer has it.
    fn queued(response: &Self::Response) -> Option<usize>;
}

struct OneOutcome;

impl AnswerForm for OneOutcome {
    type Response = CallResponse;

    const IS_STREAMING: bool = false;

    async fn attempt(
        cluster: &Inner,
        choice: &PeerChoice,
        call: &StageCall,
        envelope: &Envelope,
        in_flight: InFlight,
    ) -> Result<CallResponse, CallFault> {
        let limits = cluster.reply_limits();
        let node = &choice.peer.connection;
        let answered = node.call(&header(call, choice.stages), envelope, limits, choice.room).await;
        drop(in_flight);
        answered
    }

    fn queued(response: &CallResponse) -> Option<usize> {
        Some(response.done.load.queued as usize)
    }
}

struct OutputStream;

impl AnswerForm for OutputStream {
    type Response = RemoteOutputs;

    const IS_STREAMING: bool = true;

    async fn attempt(
        cluster: &Inner,
        choice: &PeerChoice,
        call: &StageCall,
        envelope: &Envelope,
        in_flight: InFlight,
    ) -> Result<RemoteOutputs, CallFault> {
        let (node, limits) = (&choice.peer.connection, cluster.reply_limits());
        let exchange = CallExchange::open(node, limits, choice.room).await?;
        let mut header = header(call, choice.stages);
        header.credit = u32::try_from(call.credit.max(1)).unwrap_or(u32::MAX);
        RemoteOutputs::begin(exchange, &header, envelope.clone(), in_flight).await
    }

    fn queued(_: &RemoteOutputs) -> Option<usize> {
        None
    }
}

struct PeerAnswer<R> {
    response: R,
    /// The number of stages that were sent.
    stages: usize,
    /// The peer's name, for recorded calls.
    node: Option<String>,
}

/// A peer that may be called for a stage, with its load.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) peer: Arc<StagePeer>,
    pub(super) load: PeerLoad,
    /// The end of the open breaker, if calls failed recently.
    open_until: Option<Instant>,
}

/// The peer that is called next.
struct PeerChoice {
    peer: Arc<StagePeer>,
    /// The number of the call's stages that it runs.
    stages: usize,
    /// Whether all of these stages may run again.
    is_idempotent: bool,
    room: RoomPolicy,
}

/// A call that a peer has, with its outcome to come, and whether the call may run again.
struct Attempt<'a, R> {
    /// Its connection, if the call may run again.
    watched: Option<Arc<NodeConnection>>,
    ending: BoxFuture<'a, AttemptEnd<R>>,
}

type AttemptEnd<R> = (PeerChoice, bool, Result<R, CallFault>);

/// The attempts of one call, at most one with each peer.
struct Attempts<'a, R> {
    /// With the peer that was chosen last.
    current: Option<Attempt<'a, R>>,
    /// With peers that have been silent since.
    silent: Vec<Attempt<'a, R>>,
}

impl<R> Attempts<'_, R> {
    fn is_empty(&self) -> bool {
        self.current.is_none() && self.silent.is_empty()
    }

    /// Completes when one of them ends, which is removed.
    async fn ended(&mut self) -> AttemptEnd<R> {
        std::future::poll_fn(|context| {
            for at in 0..self.silent.len() {
                if let Poll::Ready(end) = self.silent[at].ending.poll_unpin(context) {
                    self.silent.swap_remove(at);
                    return Poll::Ready(end);
                }
            }
            let Some(current) = &mut self.current else { return Poll::Pending };
            let end = ready!(current.ending.poll_unpin(context));
            self.current = None;
            Poll::Ready(end)
        })
        .await
    }
}

/// Completes when the node of this connection is silent.
async fn fell_silent(watched: Option<Arc<NodeConnection>>) {
    match watched {
        Some(node) => node.link().silent().await,
        None => std::future::pending().await,
    }
}

/// The fault of a call that a silent peer has.
fn silence() -> CallFault {
    CallFault::lost(&"the node is silent")
}

impl Inner {
    pub(super) async fn run(&self, mut call: StageCall) -> Result<StageReply, CallError> {
        let PeerAnswer { response, stages, node } = self.dispatch::<OneOutcome>(&mut call).await?;
        let CallResponse { done, body } = response;
        let value = read_output(body, call.budget(), |body| body.finish_encoded()).await?;
        // 0 means that all of them ran.
        let ran = if done.stages > 0 { stages.min(done.stages as usize) } else { stages };
        let reply = Reply::new(Payload::new(value), wire::timing(done.times));
        let response = done.response.map(|head| wire::response_fields(*head));
        Ok(StageReply::new(reply, ran).with_node(node).with_response(response))
    }

    pub(super) async fn stream(&self, mut call: StageCall) -> Result<StageOutputs, CallError> {
        let PeerAnswer { response, stages, .. } = self.dispatch::<OutputStream>(&mut call).await?;
        let outputs = futures_util::stream::unfold(Box::new(response), RemoteOutputs::next);
        Ok(StageOutputs::new(PayloadReplies::new(outputs), stages))
    }

    /// Calls one peer after the other, until one answers or no further one may be tried.
    async fn dispatch<F: AnswerForm>(&self, call: &mut StageCall) -> Result<PeerAnswer<F::Response>, CallError> {
        let encoded = offload::encode(&call.payload, call.budget()).await;
        let envelope = encoded.and_then(|encoded| encoded.map_err(|error| unsendable(error, call)))?;
        // A call counts once for the retry budget.
        if !call.is_retry {
            self.retries.lock().called(Instant::now());
        }
        if call.revision.is_none() {
            let runs = |revision| {
                let peers = self.index.stage(call.stage());
                let mut usable = peers.of_form(F::IS_STREAMING).iter().filter(|peer| peer.is_usable());
                usable.any(|peer| peer.revision == revision)
            };
            call.revision = self.draw(call.stage(), call.options.session(), runs);
        }
        let call = &*call;
        // The members that were called, by their keys.
        let mut tried: Vec<u64> = Vec::new();
        let mut last: Option<CallFault> = None;
        let mut attempts = Attempts { current: None, silent: Vec::new() };
        // Whether a further peer may be called, and whether that is a retry that was not paid for yet.
        let (mut may_go_on, mut owes_retry) = (true, false);
        loop {
            if may_go_on && attempts.current.is_none() {
                let is_repeat = !attempts.silent.is_empty();
                let choice = self.choose_peer(call, F::IS_STREAMING, &tried, is_repeat);
                if (choice.is_some() || call.is_repeated_here)
                    && std::mem::take(&mut owes_retry)
                    && !self.allows_retry(&silence())
                {
                    may_go_on = false;
                    continue;
                }
                if let Some(choice) = choice {
                    if !tried.is_empty() {
                        self.metrics.retried();
                    }
                    tried.push(choice.peer.member.key);
                    attempts.current = Some(self.begin::<F>(choice, call, &envelope));
                } else if !is_repeat {
                    // No peer is left. A lost call that may run again waits for one; the timer of its caller ends the
                    // wait. A call that was not started waits only if a peer was lost a moment ago. A call that can run
                    // on this node fails at once.
                    let fault = last.as_ref();
                    let is_lost = fault.is_some_and(CallFault::is_lost);
                    let is_absent = fault.is_none_or(|fault| fault.error().kind() == ErrorKind::Unavailable);
                    let waits = is_lost || is_absent && self.may_return(call.stage(), Instant::now());
                    if call.can_run_here || !waits {
                        break;
                    }
                    tokio::time::sleep(NODE_POLL).await;
                    tried.clear();
                    continue;
                } else if call.is_repeated_here {
                    last = Some(silence().repeatable());
                    break;
                }
            }
            let watched = attempts.current.as_ref().and_then(|attempt| attempt.watched.clone());
            let (choice, may_repeat, attempt) = tokio::select! {
                biased;
                ended = attempts.ended() => ended,
                // Another peer may come.
                () = tokio::time::sleep(NODE_POLL), if may_go_on && attempts.current.is_none() => continue,
                () = fell_silent(watched), if may_go_on => {
                    attempts.silent.extend(attempts.current.take());
                    owes_retry = true;
                    continue;
                }
            };
            if !may_repeat && attempt.as_ref().err().is_none_or(|fault| !fault.error().is_refusal()) {
                call.set_ran_once();
            }
            let fault = match attempt {
                Ok(response) => {
                    let node = call.options.recorder().map(|_| choice.peer.name());
                    return Ok(PeerAnswer { response, stages: choice.stages, node });
                }
                Err(fault) => fault,
            };
            let is_repeatable = fault.is_lost() && may_repeat;
            let is_final = !fault.error().is_refusal() && !is_repeatable;
            // The next peer has the call already, if the one of this fault was silent.
            if attempts.current.is_none() {
                may_go_on = !is_final && self.allows_retry(&fault);
                owes_retry = false;
            }
            // The error of an attempt that may have run is kept rather than a later refusal. An error that is no
            // refusal replaces either.
            if last.as_ref().is_none_or(|last| last.error().is_refusal()) || !fault.error().is_refusal() {
                last = Some(if is_repeatable { fault.repeatable() } else { fault });
            }
            if is_final || !may_go_on && attempts.is_empty() {
                break;
            }
        }
        let error = last.map_or_else(|| self.no_peer(call, F::IS_STREAMING), CallFault::into_error);
        Err(with_retry_after(error, call))
    }

    /// Takes a retry of a call with this fault.
    fn allows_retry(&self, fault: &CallFault) -> bool {
        self.retries.lock().allows(fault.error(), Instant::now())
    }

    fn begin<'a, F: AnswerForm>(
        &'a self,
        choice: PeerChoice,
        call: &'a StageCall,
        envelope: &'a Envelope,
    ) -> Attempt<'a, F::Response> {
        // The contract of the node that runs it counts; this node's may forbid it too.
        let may_repeat = choice.is_idempotent && call.may_run_again;
        let watched = may_repeat.then(|| Arc::clone(&choice.peer.connection));
        let ending = Box::pin(async move {
            let outcome = self.attempt::<F>(&choice, call, envelope).await;
            (choice, may_repeat, outcome)
        });
        Attempt { watched, ending }
    }

    /// The error of a call without a peer. It tells whether nodes are missing, or the name of the stage is wrong.
    fn no_peer(&self, call: &StageCall, is_streaming: bool) -> CallError {
        let stage = call.stage();
        if !self.candidates(stage, Some(!is_streaming), Instant::now()).is_empty() {
            let form = if is_streaming { "with one output" } else { "with a stream" };
            return not_started(format_args!(
                "the nodes that run the stage `{stage}` answer {form}, and it was called as if not"
            ));
        }
        let connected = self.index.peers().iter().filter(|peer| peer.is_connected()).count();
        not_started(match connected {
            0 => format!("no node can be reached that runs the stage `{stage}`: no node is connected"),
            1 => format!("no node can be reached that runs the stage `{stage}`: the connected node does not"),
            _ => format!(
                "no node can be reached that runs the stage `{stage}`: none of the {connected} connected nodes does"
            ),
        })
    }

    /// Calls one peer, and records the outcome in its statistics.
    async fn attempt<F: AnswerForm>(
        &self,
        choice: &PeerChoice,
        call: &StageCall,
        envelope: &Envelope,
    ) -> Result<F::Response, CallFault> {
        let (stats, began) = (&choice.peer.stats, Instant::now());
        let in_flight = stats.begin(began);
        let outcome = F::attempt(self, choice, call, envelope, in_flight).await;
        self.metrics.called(outcome.as_ref().err().map_or(PeerOutcome::Answered, peer_outcome));
        let now = Instant::now();
        stats.record(|stats| match &outcome {
            Ok(response) => stats.answered(now, now - began, F::queued(response)),
            Err(fault) => record_fault(stats, fault, now, now - began),
        });
        outcome
    }

    /// The peers that may be called for a stage, without the ejected ones.
    pub(super) fn candidates(&self, stage: &str, is_streaming: Option<bool>, now: Instant) -> Vec<Candidate> {
        let peers = self.index.stage(stage);
        let candidate = |peer: &Arc<StagePeer>| Candidate {
            peer: Arc::clone(peer),
            load: peer.load(now),
            open_until: peer.stats.open_until(now),
        };
        let mut candidates: Vec<_> = match is_streaming {
            Some(form) => peers.of_form(form).iter().filter(|peer| peer.is_usable()).map(candidate).collect(),
            None => peers.usable().map(candidate).collect(),
        };
        // Of those that answer: a silent peer is no replacement for an ejected one.
        let until = |candidate: &Candidate| (!candidate.peer.is_silent()).then_some(candidate.open_until);
        let until: Vec<_> = candidates.iter().map(until).collect();
        let answering: Vec<_> = until.iter().copied().flatten().collect();
        if answering.iter().any(Option::is_some) {
            let (mut ejected, mut until) = (ejected(&answering).into_iter(), until.into_iter());
            candidates.retain(|_| {
                let is_answering = until.next().is_some_and(|until| until.is_some());
                !(is_answering && ejected.next().unwrap_or(false))
            });
        }
        candidates
    }

    /// The next untried peer for a call.
    fn choose_peer(&self, call: &StageCall, is_streaming: bool, tried: &[u64], is_repeat: bool) -> Option<PeerChoice> {
        let is_plain = tried.is_empty() && call.revision.is_none() && call.options.session().is_none();
        if is_plain && call.stages.len() <= 1 && !self.index.members().has_open_breaker() {
            let peers = self.index.stage(call.stage());
            let peers = peers.of_form(is_streaming);
            if let Some(peer) = quick_pick(peers, (fastrand::usize(..), fastrand::usize(..)), Instant::now()) {
                let (peer, is_idempotent) = (Arc::clone(peer), peer.is_idempotent);
                return Some(PeerChoice { peer, stages: 1, is_idempotent, room: room_policy(peers.len(), call) });
            }
        }
        let candidates = self.candidates(call.stage(), Some(is_streaming), Instant::now());
        best_peer(candidates, call, tried, is_repeat)
    }

    /// Whether a peer offered the stage until a moment ago, and so may be back soon.
    fn may_return(&self, stage: &str, now: Instant) -> bool {
        self.index.peers().iter().any(|peer| peer.may_return(stage, now))
    }

    /// The revision for the next call, if the stage's calls are split.
    pub(super) fn draw(
        &self,
        stage: &str,
        session: Option<SessionKey>,
        is_offered: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let split = self.splits.load().get(stage).cloned()?;
        split.draw(session.map(SessionKey::number), is_offered)
    }
}

/// The error of a call whose input cannot be encoded, or has no room.
fn unsendable(error: EncodeError, call: &StageCall) -> CallError {
    if error.kind() != EncodeErrorKind::Unsupported {
        // As the error of an input: an encode error is that of an outcome, of which a call has run.
        return with_stage(DecodeError::from(error).into(), call);
    }
    let message = format!("the input of stage `{}` cannot be sent: {error}", call.stage());
    // A stage that also runs here does not need the peers.
    if call.can_run_here { not_started(message) } else { CallError::new(ErrorKind::Internal, message) }
}

/// Adds the stage and the retry-after to the error of a call that no peer has started. A lost connection is tried again
/// within a tenth of it at first, and then twice a second.
fn with_retry_after(error: CallError, call: &StageCall) -> CallError {
    if error.kind() != ErrorKind::Unavailable || !error.is_refusal() {
        return error;
    }
    let mut parts = with_stage(error, call).into_parts();
    parts.retry_after = parts.retry_after.or(Some(RETRY_AFTER));
    parts.into()
}

/// Adds the stage to the error of a call, unless the error has one.
fn with_stage(error: CallError, call: &StageCall) -> CallError {
    let mut parts = error.into_parts();
    parts.stage = parts.stage.or_else(|| call.stages.first().cloned());
    parts.into()
}

/// The best untried peer for a call. `is_repeat`: a silent peer has the call as well.
fn best_peer(mut candidates: Vec<Candidate>, call: &StageCall, tried: &[u64], is_repeat: bool) -> Option<PeerChoice> {
    candidates.retain(|candidate| !tried.contains(&candidate.peer.member.key));
    // A silent peer is better than none, but not than this node or a further wait.
    if is_repeat || call.can_run_here || candidates.iter().any(|candidate| !candidate.peer.is_silent()) {
        candidates.retain(|candidate| !candidate.peer.is_silent());
    }
    let room = room_policy(candidates.len(), call);
    if candidates.iter().any(|candidate| Some(candidate.peer.revision) == call.revision) {
        candidates.retain(|candidate| Some(candidate.peer.revision) == call.revision);
    }
    // Peers that run the most stages come first: one crossing rather than several.
    let chain = |candidate: &Candidate| chained_stages(&candidate.peer, call);
    let most = candidates.iter().map(|candidate| chain(candidate).0).max()?;
    candidates.retain(|candidate| chain(candidate).0 == most);
    let loads: Vec<PeerLoad> = candidates.iter().map(|candidate| candidate.load).collect();
    let index = match call.options.session() {
        Some(session) => session_peer(&loads, session.number()),
        None => better_of_two(&loads, (fastrand::usize(..), fastrand::usize(..))),
    };
    let peer = candidates.swap_remove(index?).peer;
    let (stages, is_idempotent) = chained_stages(&peer, call);
    Some(PeerChoice { peer, stages, is_idempotent, room })
}

/// The last alternative is worth waiting for, within the deadline.
fn room_policy(alternatives: usize, call: &StageCall) -> RoomPolicy {
    match alternatives {
        1 if !call.can_run_here => RoomPolicy::Wait,
        _ => RoomPolicy::FailFast,
    }
}

/// The number of the call's stages that this peer runs in one go, and whether all of them may run again.
fn chained_stages(peer: &StagePeer, call: &StageCall) -> (usize, bool) {
    let most = (peer.connection.welcome().max_stages.max(1) as usize).min(call.stages.len());
    let (mut stages, mut is_idempotent) = (1, peer.is_idempotent);
    for stage in call.stages.iter().take(most).skip(1) {
        let offer = peer.connection.stage_offer(stage.as_str()).filter(|offer| !offer.is_streaming);
        let Some(offer) = offer else { break };
        is_idempotent &= offer.is_idempotent;
        stages += 1;
    }
    (stages, is_idempotent)
}

pub(super) fn peer_outcome(fault: &CallFault) -> PeerOutcome {
    match (fault, fault.error()) {
        (CallFault::Lost(_), _) => PeerOutcome::Lost,
        (_, error) if error.is_refusal() && error.kind() == ErrorKind::Overloaded => PeerOutcome::Overloaded,
        (_, error) if error.is_refusal() => PeerOutcome::NotStarted,
        _ => PeerOutcome::Answered,
    }
}

/// Records a fault in the peer's statistics.
fn record_fault(stats: &mut PeerStats, fault: &CallFault, now: Instant, took: Duration) {
    let row = fault.error().kind().row();
    // A connection without room is full of this node's own calls; the peer is healthy.
    if row.origin == ErrorOrigin::Load || matches!(fault, CallFault::NoRoom(_)) {
        stats.refused(now);
    } else if row.counts_for_breaker && (fault.is_lost() || !fault.error().was_started()) {
        stats.lost(now);
    } else {
        // The peer has answered, perhaps with an error of its user code.
        stats.failed(now, took);
    }
}

fn header(call: &StageCall, stages: usize) -> Call {
    let names = call.stages.iter().take(stages).map(|stage| stage.as_str().to_owned()).collect();
    let mut header = Call { stages: names, ..Call::default() };
    wire::put_options(&mut header, &call.options, Instant::now());
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ROOM_WAIT;

    #[test]
    fn a_full_connection_makes_its_peer_busy_and_a_lost_one_opens_the_breaker() {
        let (mut busy, mut lost, now) = (PeerStats::default(), PeerStats::default(), Instant::now());
        for _ in 0..100 {
            record_fault(&mut busy, &CallFault::no_room(), now, ROOM_WAIT);
            record_fault(&mut lost, &CallFault::not_started("a test"), now, ROOM_WAIT);
        }
        assert!(busy.breaker.is_closed() && busy.in_flight(now) > 0);
        assert!(!lost.breaker.is_closed() && lost.in_flight(now) == 0);
    }
}
