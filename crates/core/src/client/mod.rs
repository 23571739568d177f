//! The client for callers in this process. Its methods for edges are in `edge/`.

mod blocking;
mod caller;
mod detached;
mod function;
mod inner;
mod keyed_step;
mod node_state;
mod replies;
mod shadow;
mod started;
mod stream;
mod typed;

pub use blocking::{BlockingClient, BlockingStream};
pub use caller::{Caller, LocalPrepared};
pub(crate) use node_state::NodeState;
pub use replies::Replies;
pub(crate) use replies::{CallSteps, OpenCall};
pub use started::StartedCall;
pub use stream::{CallStream, CallStreamWithInputs, NoPreprocess, Prepare, PreparedInput, Preprocess};
pub use typed::{RouteService, TypedRoute};

use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use callboard_codec::{Data, Payload};
use futures_util::future::{Either, lazy};
use futures_util::{FutureExt, TryFutureExt};
use tokio::runtime::Handle;
use tokio::task::JoinError;

use self::shadow::Shadow;
use crate::actor::RemoteRef;
use crate::call::{CallContext, CallOptions, Flight, OuterCall, Reply, SessionKey};
use crate::clock::{self, Instant};
use crate::containment::CaughtPanic;
use crate::deadline::Deadline;
use crate::error::{CallError, ErrorKind, ErrorOrigin};
use crate::keyed::KeyedRef;
use crate::metrics::COUNTING;
use crate::retry::RetryPolicy;
use crate::router::{Admission, HeldRoute, Observation, Route, nearest};

/// How often a caller that waits for a permit checks whether the node has room.
pub const CAPACITY_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A handle on a node's routes within the node's process. Cloning is cheap; it does not keep the node alive. It is a
/// [`Caller`], like the client over a network.
#[derive(Clone, Debug)]
pub struct LocalClient {
    pub(crate) shared: Arc<NodeState>,
    /// The outer call of its calls.
    pub(crate) outer: Option<Arc<OuterCall>>,
}

impl LocalClient {
    pub(crate) fn new(shared: Arc<NodeState>) -> Self {
        Self { shared, outer: None }
    }

    /// The same client for inner calls: calls that user code makes for its current call. Each inner call
    ///
    /// * ends with the outer call, which drops it; blocking code gets `Cancelled` within 20 ms. If it was spawned and
    ///   not awaited, it continues until its deadline, which is no later than that of the outer call;
    /// * has the outer call's priority, recorder, request id, traceparent, caller, headers and tags, unless its options
    ///   say otherwise;
    /// * uses the outer call's permit instead of one of the node's [calls in flight](crate::Limits::max_in_flight), so
    ///   that a node runs it even when full or draining. At most 256 inner calls at a time use one permit; one more is
    ///   `Overloaded`. The limits of its route, its stages and the node's memory apply as to every call;
    /// * does not enter a stage that its outer call, or an outer call of that, is in: this is `Failed` with the
    ///   reason [`LoopDetected`](crate::ErrorReason::LoopDetected), because all workers of the stage could wait for the
    ///   stage itself.
    ///
    /// A [`call_detached`](Self::call_detached) is no inner call: it takes its own permit and outlives the call.
    #[must_use]
    pub fn within(&self, context: &CallContext) -> Self {
        let outer = OuterCall { flight: Arc::clone(context.flight()), stage: context.stage().clone() };
        Self { shared: Arc::clone(&self.shared), outer: Some(Arc::new(outer)) }
    }

    /// A reference to the actor of this name, wherever it runs in the cluster, if it
    /// [accepts](crate::actor::ActorSpec::accepts) questions. Those of a client [within](Self::within) a call have that
    /// call's caller, tags and trace, and end at its deadline.
    #[must_use]
    pub fn remote_actor(&self, name: &str) -> RemoteRef {
        let NodeState { directory, router, .. } = &*self.shared;
        RemoteRef::new(name, Arc::clone(directory), router.cluster.clone(), self.outer.clone())
    }

    /// A reference to the keyed actors of this kind, on this node and on other nodes of the cluster. Those of a client
    /// [within](Self::within) a call have that call's caller, tags and trace, and end at its deadline.
    #[must_use]
    pub fn keyed(&self, kind: &str) -> KeyedRef {
        let NodeState { keyed, router, .. } = &*self.shared;
        KeyedRef::new(kind, Arc::clone(keyed), router.cluster.clone(), self.outer.clone())
    }

    /// Calls a route with a Rust value and waits for its outcome. Nothing is encoded if the types are those of the
    /// route.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`]. An output that cannot be read as `Out` is `Internal`, and says that the call has run; the
    /// message names the route and both types.
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the call: queued work is removed, user code can see it, later stages do not run.
    pub fn call<In: Data, Out: Data + Clone>(
        &self,
        route: &str,
        input: In,
    ) -> impl Future<Output = Result<Out, CallError>> + Send {
        self.call_with(route, input, CallOptions::new())
    }

    /// Calls a route with options, such as a deadline or a priority.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`].
    pub fn call_with<In: Data, Out: Data + Clone>(
        &self,
        route: &str,
        input: In,
        options: CallOptions,
    ) -> impl Future<Output = Result<Out, CallError>> + Send {
        self.call_payload(route, Payload::new(input), options)
    }

    fn call_payload<Out: Data + Clone>(
        &self,
        route: impl AsRef<str> + Send,
        input: Payload,
        options: CallOptions,
    ) -> impl Future<Output = Result<Out, CallError>> + Send {
        if let Some(policy) = options.retry() {
            return Either::Right(Box::pin(self.call_by_policy(route, input, options, policy)));
        }
        // The arguments are dropped when the call starts; an `async` block would keep them in every waiting call.
        let begin = move |_: &mut Context<'_>| self.begin(route.as_ref(), input, options);
        Either::Left(lazy(begin).try_flatten().map(Result::flatten))
    }

    /// Makes a call until its outcome is final. All attempts have one deadline.
    async fn call_by_policy<Out: Data + Clone>(
        &self,
        route: impl AsRef<str> + Send,
        input: Payload,
        options: CallOptions,
        policy: RetryPolicy,
    ) -> Result<Out, CallError> {
        let (route, now) = (route.as_ref(), clock::now());
        let served = self.served(route)?;
        let gateway = &self.shared.gateway;
        let after = |timeout| Deadline::after(now, timeout);
        let latest = |own: Deadline| own.min(after(gateway.max_timeout_of(&served)));
        let deadline = options.deadline_from(now).map_or_else(|| after(gateway.timeout_of(&served, None)), latest);
        let options = options.with_deadline(deadline);
        let mut number = 1;
        loop {
            let outcome = match self.begin(route, input.clone(), options.clone()) {
                Ok(call) => call.await.flatten(),
                Err(refusal) => Err(refusal),
            };
            let error = match outcome {
                Err(error) if RetryPolicy::applies_to(&error) && policy.allows(&error, number) => error,
                outcome => return outcome,
            };
            let Some(wait) = policy.wait_within(deadline, &error, number) else { return Err(error) };
            tokio::time::sleep(wait).await;
            number += 1;
        }
    }

    /// The route of this name, if it is served. A path may stand for a name with a method: see
    /// [`RouteSpec::methods`](crate::RouteSpec::methods).
    #[must_use]
    pub fn route(&self, name: &str) -> Option<Arc<Route>> {
        self.shared.router.route(name)
    }

    /// All routes, in the order of their declaration.
    #[must_use]
    pub fn routes(&self) -> Vec<Arc<Route>> {
        self.shared.router.routes()
    }

    /// Calls that this node has admitted and not answered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.gateway.in_flight()
    }

    /// Takes the permits for a call of this route; see [`within`](Self::within).
    pub(crate) fn let_in(&self, arrived: Instant, held: HeldRoute, bytes: u64) -> Result<Admission, CallError> {
        let gateway = &self.shared.gateway;
        gateway.try_admit_at(arrived, held, bytes, self.outer.as_ref()).map_err(|refusal| gateway.refuse(refusal))
    }

    /// Admits a call; the returned future runs it, and reads its output as `Out`.
    fn begin<Out: Data + Clone>(
        &self,
        route: &str,
        payload: Payload,
        options: CallOptions,
    ) -> Result<impl Future<Output = Result<Result<Out, CallError>, CallError>> + Send + use<Out>, CallError> {
        let held = self.hold(route, options.session())?;
        let options = held.with_called_path(route, options);
        let admission = self.let_in(clock::now(), held, payload.size_hint() as u64)?;
        let flight = Self::flight_of(&admission, &options);
        let call = AdmittedCall::new(admission, flight);
        Ok(run_admitted(call.admitted_at(), call, payload, AdmittedCall::read_output))
    }

    pub(crate) fn submit_at(
        &self,
        now: Instant,
        admission: Admission,
        payload: Payload,
        options: CallOptions,
    ) -> impl Future<Output = Result<Reply, CallError>> + Send + use<> {
        let flight = Self::flight_of(&admission, &options);
        run_admitted(now, AdmittedCall::new(admission, flight), payload, AdmittedCall::succeeded)
    }

    /// The flight of a call, from its options, its route and its node.
    pub(crate) fn flight_of(admission: &Admission, options: &CallOptions) -> Arc<Flight> {
        Arc::new(Self::new_flight(admission, options, Admission::latest_deadline))
    }

    pub(crate) fn new_flight(
        admission: &Admission,
        options: &CallOptions,
        latest: fn(&Admission) -> Deadline,
    ) -> Flight {
        let own = options.deadline_from(admission.admitted_at());
        let deadline = own.map_or_else(|| admission.deadline(None), |own| own.min(latest(admission)));
        Flight::new(deadline, admission.route().default_priority()).admitted(admission, options)
    }

    /// The node's runtime, for tasks that outlive the caller's own polling.
    fn runtime(&self) -> &Handle {
        &self.shared.runtime
    }

    /// Holds this route, or the candidate of its rollout, for a call; the newest revision if the route was replaced.
    pub(crate) fn hold_route(&self, route: &Arc<Route>, session: Option<SessionKey>) -> Result<HeldRoute, CallError> {
        Arc::clone(route).hold_revision(session).map_or_else(|| self.hold(route.name(), session), Ok)
    }

    /// Holds the route of this name for a call, or the candidate of its rollout.
    pub(crate) fn hold(&self, name: &str, session: Option<SessionKey>) -> Result<HeldRoute, CallError> {
        self.shared.router.hold(name, session).ok_or_else(|| self.no_route(name))
    }

    /// The route of this name, to look at.
    fn served(&self, name: &str) -> Result<Arc<Route>, CallError> {
        self.route(name).ok_or_else(|| self.no_route(name))
    }

    /// The error of a call to a route that is not there: it names the nearest one.
    #[must_use]
    pub fn no_route(&self, name: &str) -> CallError {
        self.missing("route", name)
    }

    fn missing(&self, what: &str, name: &str) -> CallError {
        let routes = self.routes();
        let hint = nearest(name, routes.iter().map(|route| route.name()));
        let hint = hint.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        CallError::new(ErrorKind::NotFound, format!("there is no {what} `{name}`{hint}"))
    }
}

/// Runs an admitted call to its one outcome, and a copy of it if a shadow gets one. `finish` counts a successful
/// outcome.
pub(crate) fn run_admitted<T>(
    now: Instant,
    call: AdmittedCall,
    payload: Payload,
    finish: impl FnOnce(AdmittedCall, Reply) -> T + Send,
) -> impl Future<Output = Result<T, CallError>> + Send {
    match Shadow::of(&call, &payload) {
        None => Either::Left(run_once(now, call, payload, finish)),
        // In a box of its own, so that calls without a shadow do not take its space.
        Some(shadow) => Either::Right(Box::pin(run_once(now, call, payload, move |call, reply| {
            shadow.run(&call, reply.payload.clone());
            finish(call, reply)
        }))),
    }
}

#[expect(clippy::manual_async_fn, reason = "an `async fn` keeps what it is given twice, in every waiting call")]
fn run_once<T>(
    now: Instant,
    mut call: AdmittedCall,
    payload: Payload,
    finish: impl FnOnce(AdmittedCall, Reply) -> T + Send,
) -> impl Future<Output = Result<T, CallError>> + Send {
    async move {
        let AdmittedCall { admission, flight, .. } = &call;
        // The run is polled first: an available outcome counts, even if the deadline passes in the same turn.
        let result = tokio::select! {
            biased;
            result = admission.route().graph().run(payload, flight, now) => result,
            () = tokio::time::sleep_until(flight.deadline.instant()) => {
                Err(CallError::deadline_exceeded("before the outcome was there"))
            }
        };
        // Through the call, because a second reference to its flight would take space in every waiting call.
        match result {
            Ok(reply) => Ok(finish(call, reply)),
            Err(error) => {
                let error = call.flight.with_timing(error, clock::now());
                call.close_failed(&error);
                Err(error)
            }
        }
    }
}

/// A route's output as the type that its caller requests. The call has succeeded, and no other input would help: a
/// stage that hands this error on must not blame its own caller, so it is no `InvalidInput`.
fn read_output<Out: Data + Clone>(route: &str, payload: Payload) -> Result<Out, CallError> {
    let payload = match payload.downcast::<Out>() {
        Ok(output) => return Ok(Arc::unwrap_or_clone(output)),
        Err(other) => other,
    };
    let actual = payload.type_name();
    payload.into_inner::<Out>().map_err(|error| {
        let asked = std::any::type_name::<Out>();
        let message = format!("route `{route}` gives `{actual}`, which cannot be read as `{asked}`: {error}");
        CallError::new(ErrorKind::Internal, message)
    })
}

/// A call with its permits. Counts its outcome exactly once. If it is dropped without an outcome, even before its
/// start, it counts as cancelled or late.
#[derive(Debug)]
pub(crate) struct AdmittedCall {
    pub(crate) admission: Admission,
    pub(crate) flight: Arc<Flight>,
    /// Whether its outcome is not counted yet.
    is_open: bool,
}

impl AdmittedCall {
    pub(crate) fn new(admission: Admission, flight: Arc<Flight>) -> Self {
        Self { admission, flight, is_open: true }
    }

    /// A call whose outcome is counted by the node that owns it, or that has no caller.
    pub(crate) fn uncounted(admission: Admission, flight: Arc<Flight>) -> Self {
        Self { admission, flight, is_open: false }
    }

    fn admitted_at(&self) -> Instant {
        self.admission.admitted_at()
    }

    /// Counts the call as successful.
    fn succeeded(mut self, reply: Reply) -> Reply {
        self.close(Ok(()));
        reply
    }

    /// Reads the output of a call, at its expense, and counts it as successful.
    pub(crate) fn read_output<Out: Data + Clone>(mut self, reply: Reply) -> Result<Out, CallError> {
        let encoded = reply.payload.encoded_bytes();
        let output = self.flight.reading(encoded, || read_output(self.admission.route().name(), reply.payload));
        self.close(Ok(()));
        output
    }

    /// Gives back the charged bytes, unless an edge keeps the account until it has written the outcome.
    pub(crate) fn settle(&self) {
        self.admission.settle();
    }

    pub(crate) fn close(&mut self, outcome: Result<(), ErrorKind>) {
        self.end(outcome, None);
    }

    /// Counts the call as failed. A status of its own may tell whose fault that is.
    pub(crate) fn close_failed(&mut self, error: &CallError) {
        self.end(Err(error.kind()), error.status());
    }

    fn end(&mut self, outcome: Result<(), ErrorKind>, status: Option<u16>) {
        // After a deadline or a cancellation, user code may still run; its bytes stay charged until it returns.
        let may_run_on = |kind: ErrorKind| matches!(kind.row().origin, ErrorOrigin::Time | ErrorOrigin::Caller);
        if !outcome.is_err_and(may_run_on) {
            self.settle();
        }
        if std::mem::take(&mut self.is_open) && COUNTING {
            self.count(outcome, status, clock::now());
        }
    }

    fn count(&self, outcome: Result<(), ErrorKind>, status: Option<u16>, now: Instant) {
        let route = self.admission.route();
        let total = now.saturating_duration_since(self.admission.admitted_at());
        match outcome {
            Ok(()) => {
                route.metrics().succeeded(total);
                route.observe(|| (self.flight.session, Observation::Succeeded(total)));
            }
            Err(kind) => {
                route.metrics().ended(kind, total);
                route.observe(|| {
                    let timeout = self.admission.gateway().timeout_of(route, None);
                    (self.flight.session, Observation::of_error(kind, status, total, timeout))
                });
            }
        }
    }
}

impl Drop for AdmittedCall {
    fn drop(&mut self) {
        if self.is_open {
            let now = clock::now();
            let kind = if self.flight.is_late(now) { ErrorKind::DeadlineExceeded } else { ErrorKind::Cancelled };
            self.count(Err(kind), None, now);
        }
        // The call ends here, whatever its outcome, and its inner calls end with it.
        self.flight.abandon();
    }
}

/// The error of a call whose task was aborted or panicked.
fn lost(error: JoinError) -> CallError {
    if error.is_panic() { panicked(&CaughtPanic::from_payload(error.into_panic())) } else { runtime_gone() }
}

fn panicked(panic: &CaughtPanic) -> CallError {
    CallError::new(ErrorKind::Internal, format!("the call panicked: {panic}")).with_trace(Some(panic.to_string()))
}

fn runtime_gone() -> CallError {
    CallError::new(ErrorKind::Unavailable, "the node's runtime is shutting down")
}
