//! Calls of routes by edges: permits first, then the body, then the run.

use std::sync::Arc;
use std::time::Duration;

use callboard_codec::{Account, Payload};

use crate::call::{AnswerObserver, CallOptions, DeclaredResponse, PayloadReplies, Reply, ResponseFields, SessionKey};
use crate::client::{AdmittedCall, LocalClient, StartedCall, run_admitted};
use crate::clock::{self, Instant};
use crate::deadline::Deadline;
use crate::error::{CallError, ErrorKind};
use crate::gateway::{HeldBytes, Limits, PendingBody};
use crate::metrics::{CacheUse, NodeLoad};
use crate::node::RouteDescription;
use crate::offload::CodecBudget;
use crate::router::{Admission, Route};
use crate::timeline::CallTracer;

/// A node as its edges use it: permits first, then the body, then the run.
#[derive(Clone, Copy, Debug)]
pub struct EdgeHandle<'a>(pub(super) &'a LocalClient);

impl LocalClient {
    /// The node as an edge uses it.
    #[must_use]
    pub const fn edge(&self) -> EdgeHandle<'_> {
        EdgeHandle(self)
    }
}

impl<'a> EdgeHandle<'a> {
    /// The time for a call of this route: the caller's `timeout` or the default, within the limits of the route and the
    /// node.
    #[must_use]
    pub fn timeout_of(self, route: &Route, timeout: Option<Duration>) -> Duration {
        self.0.shared.gateway.timeout_of(route, timeout)
    }

    /// The route that a `POST` of this path calls by the path alone. Of other paths [`route_at`](Self::route_at) finds
    /// it.
    #[must_use]
    pub fn direct_route(self, path: &str) -> Option<Arc<Route>> {
        self.0.shared.router.direct_route(path)
    }

    /// The route that this method of HTTP calls at this path, also by the parameters in its own. Without a method: the
    /// route that `POST` calls there, else that of `GET`, else the only one.
    #[must_use]
    pub fn route_at(self, path: &str, method: Option<&str>) -> Option<Arc<Route>> {
        self.0.shared.router.route_at(path, method)
    }

    /// All routes at this path, each called by other methods.
    #[must_use]
    pub fn routes_at(self, path: &str) -> Vec<Arc<Route>> {
        self.0.shared.router.routes_at(path)
    }

    /// The routes that only this process calls. A node has the same ones from its start on.
    #[must_use]
    pub fn private_routes(self) -> Vec<Arc<Route>> {
        self.0.shared.router.private_routes()
    }

    /// The routes as in a [`Description`](crate::description::Description), without the rest of it.
    #[must_use]
    pub fn describe_routes(self) -> Vec<RouteDescription> {
        self.0.shared.describe_routes()
    }

    /// Whether a call of this route may run twice: each stage has a [contract](crate::Contract) that permits it, here
    /// or on every node that runs it now, and no step asks an actor.
    #[must_use]
    pub fn may_run_again(self, route: &Route) -> bool {
        route.may_run_again(self.0.shared.router.cluster.stages())
    }

    /// Takes the permits for a call before its `bytes` are read. The admission holds them, its route and the stages of
    /// that until it is dropped. If the route was replaced since it was looked up, the admission is for its newest
    /// revision.
    ///
    /// # Errors
    ///
    /// `Overloaded` if the node has no permits left, `Unavailable` if it drains, `NotFound` if the route was removed.
    pub fn admit(self, route: &Arc<Route>, bytes: u64) -> Result<Admission, CallError> {
        self.admit_session(route, bytes, None)
    }

    /// As [`admit`](Self::admit), for a call of this session: during a rollout, its calls stay on one revision.
    ///
    /// # Errors
    ///
    /// As [`admit`](Self::admit).
    pub fn admit_session(
        self,
        route: &Arc<Route>,
        bytes: u64,
        session: Option<SessionKey>,
    ) -> Result<Admission, CallError> {
        self.admit_arrived(route, bytes, clock::now(), session)
    }

    /// As [`admit_session`](Self::admit_session), for a call that arrived earlier than this: its body began.
    ///
    /// # Errors
    ///
    /// As [`admit`](Self::admit).
    pub fn admit_arrived(
        self,
        route: &Arc<Route>,
        bytes: u64,
        arrived: Instant,
        session: Option<SessionKey>,
    ) -> Result<Admission, CallError> {
        self.0.let_in(arrived, self.0.hold_route(route, session)?, bytes)
    }

    /// Whether the node has room for a call of this many bytes now. Takes no permit: for calls whose bodies have not
    /// begun to arrive.
    ///
    /// # Errors
    ///
    /// As [`admit`](Self::admit).
    pub fn check_room(self, route: &Arc<Route>, bytes: u64) -> Result<(), CallError> {
        self.0.shared.gateway.check_room(route, bytes, self.0.outer.as_ref())
    }

    /// Counts an admitted call that waits for more of its body, until the result is dropped. Over all edges, such calls
    /// are at most half of the node's calls in flight.
    ///
    /// # Errors
    ///
    /// `Overloaded` at the limit.
    pub fn begin_body(self) -> Result<PendingBody, CallError> {
        self.0.shared.gateway.begin_body()
    }

    /// The node's bounds.
    #[must_use]
    pub fn limits(self) -> Limits {
        self.0.shared.gateway.limits()
    }

    /// A separate account, for bytes that are read before their call exists.
    #[must_use]
    pub fn held_bytes(self) -> HeldBytes {
        HeldBytes::none_of(&self.0.shared.gateway)
    }

    /// Decodes and encodes at the expense of an account of this node, until a deadline.
    #[must_use]
    pub fn codec_budget(self, account: Arc<dyn Account>, deadline: Deadline) -> CodecBudget<'a> {
        CodecBudget::new(self.0.shared.gateway.offload(), account, deadline)
    }

    /// Runs an admitted call to its one outcome, and counts it.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`].
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the call and counts it as cancelled.
    pub async fn submit(
        self,
        admission: Admission,
        payload: Payload,
        options: CallOptions,
    ) -> Result<Reply, CallError> {
        self.0.submit_at(clock::now(), admission, payload, options).await
    }

    /// As [`submit`](Self::submit), for an edge that has to write the outcome: the call ends with
    /// [`PendingOutcome::end`].
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit).
    pub async fn submit_unwritten(
        self,
        admission: Admission,
        payload: Payload,
        options: CallOptions,
    ) -> Result<(Reply, PendingOutcome), CallError> {
        self.submit_unwritten_of(admission, payload, options, false).await
    }

    /// As [`submit_unwritten`](Self::submit_unwritten). `is_alone` says that the edge makes no other call in the same
    /// task until this one has ended: it is in no burst of one task, so quick code may run in its poll.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit).
    pub async fn submit_unwritten_of(
        self,
        admission: Admission,
        payload: Payload,
        options: CallOptions,
        is_alone: bool,
    ) -> Result<(Reply, PendingOutcome), CallError> {
        let mut flight = LocalClient::new_flight(&admission, &options, Admission::latest_deadline);
        // The members of an ensemble have one task.
        flight.is_alone = is_alone && admission.route().graph().is_row();
        let flight = Arc::new(flight);
        run_admitted(clock::now(), AdmittedCall::new(admission, flight), payload, PendingOutcome::of).await
    }

    /// Runs an admitted call and reads its outputs one by one: for edges.
    #[must_use = "a call runs as its replies are read"]
    pub fn submit_streaming(self, admission: Admission, payload: Payload, options: CallOptions) -> PayloadReplies {
        self.0.read_replies(admission, payload, options)
    }

    /// As [`submit_streaming`](Self::submit_streaming), for a call whose caller alone says how long it may take: no
    /// limit of the route or of the node makes its deadline earlier. Its first output is due within the
    /// [`first_item_timeout`](CallOptions::first_item_timeout) of its options.
    #[must_use = "a call runs as its replies are read"]
    pub fn submit_open_ended(self, admission: Admission, payload: Payload, options: CallOptions) -> PayloadReplies {
        self.0.read_replies_until(|admission| Deadline::never(admission.admitted_at()), admission, payload, options)
    }

    /// Starts a call on the node's runtime, which gives the outcome to `then`; see
    /// [`LocalClient::start_call`](LocalClient::start_call).
    pub fn start(
        self,
        route: &str,
        payload: Payload,
        options: CallOptions,
        then: impl FnOnce(Result<Payload, CallError>) + Send + 'static,
    ) -> StartedCall {
        self.0.start_payload(route, payload, options, then)
    }

    /// Starts a call of a route that may stream on the node's runtime. What `read` makes of its outputs runs there too,
    /// and drives the call.
    pub fn start_replies<Reading: Future<Output = ()> + Send + 'static>(
        self,
        route: &str,
        payload: Payload,
        options: CallOptions,
        read: impl FnOnce(Result<PayloadReplies, CallError>) -> Reading + Send + 'static,
    ) -> StartedCall {
        self.0.start_replies(route, payload, options, read)
    }

    /// How much the node has to do.
    #[must_use]
    pub fn load(self) -> NodeLoad {
        self.0.shared.load()
    }

    /// The page of the node's metrics with those of this edge, in the text format of OpenMetrics.
    #[must_use]
    pub fn metrics_with(self, own: &str) -> String {
        self.0.shared.extra.append_to(&self.0.shared.encode_metrics(), own)
    }

    /// Records the calls of all edges of the node, if their callers' trace is recorded. A node has one tracer; another
    /// one is ignored.
    pub fn trace_with(self, tracer: Arc<dyn CallTracer>) {
        let _ = self.0.shared.tracer.set(tracer);
    }

    /// Records the calls of an edge; `None` if the node has no sink of spans.
    #[must_use]
    pub fn tracer(self) -> Option<Arc<dyn CallTracer>> {
        self.0.shared.tracer.get().cloned()
    }

    /// Tells `observer` of the calls of all edges that do not count and log them themselves. A node has one observer;
    /// another one is ignored.
    pub fn observe_answers_with(self, observer: Arc<dyn AnswerObserver>) {
        let _ = self.0.shared.answers.set(observer);
    }

    /// The observer that an edge tells of each ended call; `None` if the node has neither metrics nor a log.
    #[must_use]
    pub fn answer_observer(self) -> Option<Arc<dyn AnswerObserver>> {
        self.0.shared.answers.get().cloned()
    }

    /// The sum of all accounts.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn charged_bytes(self) -> u64 {
        self.0.shared.gateway.bytes()
    }

    /// The largest sum of all accounts since the last call of this method.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn take_peak_charged_bytes(self) -> u64 {
        self.0.shared.gateway.take_peak_bytes()
    }
}

/// A call whose outcome its edge has to write. Dropping it before means that its caller left.
#[derive(Debug)]
#[must_use = "dropped, it counts as cancelled"]
pub struct PendingOutcome(AdmittedCall);

impl PendingOutcome {
    fn of(call: AdmittedCall, reply: Reply) -> (Reply, Self) {
        call.settle();
        (reply, Self(call))
    }

    /// The use of the response caches of the call's stages; `None` if no stage has one.
    #[must_use]
    pub fn cache_use(&self) -> Option<CacheUse> {
        self.0.flight.cache_use()
    }

    /// Status and headers that user code has chosen or its route declares; `None` if there are none.
    #[must_use]
    pub fn response(&self) -> Option<ResponseFields> {
        DeclaredResponse::completed(self.0.admission.route().response(), self.0.flight.response())
    }

    /// Counts the call: its outcome was written, or could not be written because of an error of this kind.
    pub fn end(mut self, written: Result<(), ErrorKind>) {
        self.0.close(written);
    }
}
