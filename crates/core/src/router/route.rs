//! One public name, its input and output, and its pipeline.

use std::num::NonZeroUsize;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use callboard_codec::{DataType, Value};
use tokio::sync::Notify;

use super::elsewhere;
use super::path_template;
use super::request_argument::RequestArgument;
use super::rollout::{Observation, Trial};
use super::task::Task;
use crate::call::{CallOptions, DeclaredResponse, Priority, RequestExtension, SessionKey};
use crate::gateway::Refusal;
use crate::id::{RouteIndex, RouteName, StageName};
use crate::metrics::{RouteMetrics, TrialRole};
use crate::pipeline::{Graph, all_may_run_again};
use crate::pool::Pool;
use crate::remote::RemoteStages;

/// This bit is set in the call count of a closed route: it takes no new calls.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// One revision of a served route.
#[derive(Debug)]
pub struct Route {
    index: RouteIndex,
    revision: u64,
    name: RouteName,
    parts: RouteParts,
    graph: Graph<Arc<Pool>>,
    metrics: RouteMetrics,
    /// The count of running calls, and whether the route is closed: one word, so that no call can begin during the
    /// closing.
    calls: AtomicUsize,
    /// Notified when the route is closed, and when the last call of a closed route ends.
    changed: Notify,
    /// Counted only if there is a limit.
    in_flight: AtomicUsize,
    /// Its part in the running rollout, if there is one.
    trial: ArcSwapOption<TrialPart>,
}

/// The part of a route in a running rollout.
#[derive(Debug)]
pub(crate) struct TrialPart {
    trial: Arc<Trial>,
    /// For the current revision, the other one. The candidate has no way back, so that both are freed.
    candidate: Option<Arc<Route>>,
}

impl TrialPart {
    pub(crate) fn trial(&self) -> &Trial {
        &self.trial
    }

    pub(crate) fn candidate(&self) -> Option<&Arc<Route>> {
        self.candidate.as_ref()
    }

    /// A copied call of the candidate has ended.
    pub(crate) fn observe_candidate(&self, observation: Observation) {
        self.trial.observe(TrialRole::Candidate, None, observation);
    }

    fn role(&self) -> TrialRole {
        if self.candidate.is_some() { TrialRole::Current } else { TrialRole::Candidate }
    }
}

/// The limits of one route, and the defaults of its calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteLimits {
    pub(crate) max_in_flight: Option<NonZeroUsize>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) max_timeout: Option<Duration>,
    pub(crate) priority: Priority,
}

/// A route as it was declared.
#[derive(Clone, Debug)]
pub(crate) struct RouteParts {
    pub(crate) input: DataType,
    pub(crate) output: DataType,
    pub(crate) summary: String,
    /// Empty: the summary.
    pub(crate) description: String,
    pub(crate) examples: Vec<Value>,
    /// It takes a [`FunctionCall`](crate::FunctionCall).
    pub(crate) is_function: bool,
    /// The position of the streaming stage among its steps, if it has one.
    pub(crate) streams_at: Option<usize>,
    pub(crate) limits: RouteLimits,
    /// `None` if its code reads nothing of a request but the input.
    pub(crate) request_fields: Option<Arc<RequestFields>>,
    /// What is known of these fields.
    pub(crate) request_arguments: Vec<RequestArgument>,
    pub(crate) response: Option<Box<DeclaredResponse>>,
    pub(crate) task: Option<Task>,
    pub(crate) aliases: Vec<String>,
    pub(crate) is_tool: bool,
}

/// What the code of a route reads of a request beside its input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestFields {
    /// The lower-case names of headers; see [`RouteSpec::headers`](crate::RouteSpec::headers).
    pub headers: Vec<Box<str>>,
    /// The names of query parameters; see [`RouteSpec::query`](crate::RouteSpec::query).
    pub query: Vec<Box<str>>,
    /// The types of extensions; see [`RouteSpec::extension`](crate::RouteSpec::extension).
    pub extensions: Vec<RequestExtension>,
    /// The methods of HTTP that call it, in upper case; none means `POST`. See
    /// [`RouteSpec::methods`](crate::RouteSpec::methods).
    pub methods: Vec<Box<str>>,
    /// Whether its name has parameters, which its code finds in the path.
    pub path: bool,
}

impl RequestFields {
    /// Whether its code reads this header.
    #[must_use]
    pub fn has_header(&self, name: &str) -> bool {
        self.headers.iter().any(|known| **known == *name)
    }

    /// Whether this method of HTTP calls it. `HEAD` is as `GET`.
    #[must_use]
    pub fn has_method(&self, name: &str) -> bool {
        let name = if name == "HEAD" { "GET" } else { name };
        self.methods.iter().any(|known| **known == *name) || (self.methods.is_empty() && name == "POST")
    }

    /// Whether its code reads this query parameter.
    #[must_use]
    pub fn has_query(&self, name: &str) -> bool {
        self.query.iter().any(|known| **known == *name)
    }
}

impl RouteParts {
    pub(super) fn new(input: DataType, output: DataType) -> Self {
        Self {
            input,
            output,
            summary: String::new(),
            description: String::new(),
            examples: Vec::new(),
            is_function: false,
            streams_at: None,
            limits: RouteLimits::default(),
            request_fields: None,
            request_arguments: Vec::new(),
            response: None,
            task: None,
            aliases: Vec::new(),
            is_tool: false,
        }
    }

    /// The methods of HTTP that call it, in upper case.
    fn methods(&self) -> impl Iterator<Item = &str> {
        let declared = self.request_fields.as_ref().map(|fields| fields.methods.as_slice()).unwrap_or_default();
        declared.iter().map(|method| &**method).chain(declared.is_empty().then_some("POST"))
    }

    /// The first method that calls both.
    pub(super) fn shared_method<'a>(&'a self, other: &Self) -> Option<&'a str> {
        self.methods().find(|method| other.methods().any(|theirs| theirs == *method))
    }

    /// The difference that callers would notice if one route took the place of the other.
    pub(super) fn difference(&self, other: &Self) -> Option<&'static str> {
        let same = |first: &DataType, second: &DataType| {
            first.rust_name() == second.rust_name() && first.schema() == second.schema()
        };
        let differs = [
            ("input type", !same(&self.input, &other.input)),
            ("output type", !same(&self.output, &other.output)),
            ("form: one of them streams", self.streams_at.is_some() != other.streams_at.is_some()),
            ("form: one of them is a function", self.is_function != other.is_function),
            ("list of methods, headers, query parameters or extensions", self.request_fields != other.request_fields),
            ("type of a header, query parameter or cookie", self.request_arguments != other.request_arguments),
            ("status or media type of its answers", self.response != other.response),
            ("task", self.task != other.task),
            ("list of other names", self.aliases != other.aliases),
            ("use as a tool", self.is_tool != other.is_tool),
        ];
        differs.into_iter().find_map(|(what, differs)| differs.then_some(what))
    }
}

impl Route {
    pub(crate) fn new(
        index: RouteIndex,
        revision: u64,
        name: RouteName,
        parts: RouteParts,
        graph: Graph<Arc<Pool>>,
        metrics: RouteMetrics,
    ) -> Self {
        Self {
            index,
            revision,
            name,
            parts,
            graph,
            metrics,
            calls: AtomicUsize::new(0),
            changed: Notify::new(),
            in_flight: AtomicUsize::new(0),
            trial: ArcSwapOption::empty(),
        }
    }

    /// Begins a rollout: `candidate` takes its share of the next calls.
    pub(super) fn begin_trial(&self, trial: &Arc<Trial>, candidate: &Arc<Self>) {
        let part = |candidate| Some(Arc::new(TrialPart { trial: Arc::clone(trial), candidate }));
        candidate.trial.store(part(None));
        self.trial.store(part(Some(Arc::clone(candidate))));
    }

    /// Takes the place of the same revision with other lives of its stages.
    pub(super) fn take_trial(&self, before: &Self) {
        self.trial.store(before.trial.load_full());
    }

    pub(super) fn end_trial(&self) {
        self.trial.store(None);
    }

    /// Its part in a running rollout whose candidate gets copies of its calls.
    pub(crate) fn shadow_trial(&self) -> Option<Arc<TrialPart>> {
        let part = self.trial.load();
        part.as_ref().filter(|part| part.candidate.is_some() && part.trial.policy().is_shadow).cloned()
    }

    #[cfg(test)]
    pub(super) fn has_trial(&self) -> bool {
        self.trial.load().is_some()
    }

    /// Whether it is the candidate of a rollout that has not been promoted.
    pub(crate) fn is_candidate(&self) -> bool {
        self.trial.load().as_ref().is_some_and(|part| part.candidate.is_none())
    }

    /// Begins a call of this name, on this revision or the candidate of its rollout, unless the revision is closed.
    pub(crate) fn hold_revision(self: Arc<Self>, session: Option<SessionKey>) -> Option<HeldRoute> {
        let chosen = match &*self.trial.load() {
            Some(part) if part.trial.is_for_candidate(session) => part.candidate.clone(),
            _ => None,
        };
        chosen.unwrap_or(self).hold()
    }

    /// A call of this revision, perhaps of a session, has ended.
    pub(crate) fn observe(&self, end: impl FnOnce() -> (Option<SessionKey>, Observation)) {
        if let Some(part) = &*self.trial.load() {
            let (session, observation) = end();
            part.trial.observe(part.role(), session, observation);
        }
    }

    /// Begins a call on this route, unless it is closed.
    pub(crate) fn hold(self: Arc<Self>) -> Option<HeldRoute> {
        let before = self.calls.fetch_add(1, Ordering::AcqRel);
        let held = HeldRoute(self);
        (before & CLOSED == 0).then_some(held)
    }

    /// Takes no more calls. A newer table must be published first: a refused caller looks there.
    pub(super) fn close(&self) {
        self.calls.fetch_or(CLOSED, Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    /// Waits until the route takes no more calls: a change has replaced or removed it.
    pub async fn closed(&self) {
        loop {
            // Created before the check, so that a closing in between is noticed.
            let changed = self.changed.notified();
            if self.calls.load(Ordering::Acquire) & CLOSED != 0 {
                return;
            }
            changed.await;
        }
    }

    /// Waits until the last call of a closed route ends.
    pub(super) async fn emptied(&self) {
        loop {
            // Created before the check, so that the end of a call in between is noticed.
            let changed = self.changed.notified();
            if self.calls.load(Ordering::Acquire) == CLOSED {
                return;
            }
            changed.await;
        }
    }

    pub(super) fn parts(&self) -> &RouteParts {
        &self.parts
    }

    /// Takes one of the route's permits, if one is free. [`leave`](Self::leave) gives it back.
    pub(crate) fn enter(&self) -> Result<(), Refusal> {
        let Some(limit) = self.parts.limits.max_in_flight else { return Ok(()) };
        // The count never exceeds the limit, not even for a moment, or other calls would be refused.
        let take = |taken| (taken < limit.get()).then_some(taken + 1);
        if self.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            return Ok(());
        }
        Err(Refusal::RouteFull { route: self.name.clone(), limit: limit.get() })
    }

    /// Whether one of the route's permits is free. Takes none.
    pub(crate) fn check_room(&self) -> Result<(), Refusal> {
        match self.parts.limits.max_in_flight {
            Some(limit) if self.in_flight.load(Ordering::Relaxed) >= limit.get() => {
                Err(Refusal::RouteFull { route: self.name.clone(), limit: limit.get() })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn leave(&self) {
        if self.parts.limits.max_in_flight.is_some() {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn index(&self) -> RouteIndex {
        self.index
    }

    pub(crate) fn id(&self) -> &RouteName {
        &self.name
    }

    pub(crate) fn graph(&self) -> &Graph<Arc<Pool>> {
        &self.graph
    }

    pub(crate) fn metrics(&self) -> &RouteMetrics {
        &self.metrics
    }

    /// The longest time in which the workers of its stages stop;
    /// [`stop_timeout`](crate::StageSettings::stop_timeout).
    #[must_use]
    pub fn stop_timeout(&self) -> Duration {
        let stages = self.graph.stages().into_iter();
        stages.map(|pool| pool.settings().stop_timeout()).max().unwrap_or_default()
    }

    /// The public name: a path such as `/digits`, and a method before it if `POST` does not call it, as `GET /items`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Its path over HTTP. Routes that other methods call may have the same one.
    #[must_use]
    pub fn path(&self) -> &str {
        path_template::split_route_name(self.name()).1
    }

    /// Whether this method of HTTP calls it. `HEAD` is as `GET`.
    #[must_use]
    pub fn has_method(&self, method: &str) -> bool {
        self.request_fields().map_or(method == "POST", |fields| fields.has_method(method))
    }

    /// The number of the change that opened it; the start has number 1.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The highest revision of its stages on this node, see
    /// [`StageSettings::revision`](crate::StageSettings::revision). The owner of the stages sets it, unlike
    /// [`revision`](Self::revision).
    #[must_use]
    pub fn stage_revision(&self) -> u64 {
        self.graph.stages().into_iter().map(|pool| pool.settings().revision()).max().unwrap_or(0)
    }

    /// The type of its input.
    #[must_use]
    pub fn input(&self) -> &DataType {
        &self.parts.input
    }

    /// The type of its output.
    #[must_use]
    pub fn output(&self) -> &DataType {
        &self.parts.output
    }

    /// Whether it takes a [`FunctionCall`](crate::FunctionCall): positional and keyword arguments.
    #[must_use]
    pub fn is_function(&self) -> bool {
        self.parts.is_function
    }

    /// Whether it answers one input with many outputs; then [`output`](Self::output) is the type of one of them.
    #[must_use]
    pub fn streams(&self) -> bool {
        self.parts.streams_at.is_some()
    }

    /// Whether a call of it may run twice: each stage has a [contract](crate::Contract) that permits it, and no step
    /// asks an actor.
    pub(crate) fn may_run_again(&self, cluster: Option<&dyn RemoteStages>) -> bool {
        let remote = |stage: &StageName| cluster.is_some_and(|cluster| cluster.may_run_again(stage.as_str()));
        !self.streams() && all_may_run_again(self.graph().steps(), &remote)
    }

    /// What its code may read of a request beside its input; `None` for nothing.
    #[must_use]
    pub fn request_fields(&self) -> Option<&RequestFields> {
        self.parts.request_fields.as_deref()
    }

    /// The methods of HTTP that call it, in upper case.
    pub fn methods(&self) -> impl Iterator<Item = &str> {
        self.parts.methods()
    }

    /// Adds the path that a caller has called, for code whose parameters are in it.
    #[must_use]
    pub fn with_called_path(&self, called: &str, options: CallOptions) -> CallOptions {
        let called = path_template::split_route_name(called).1;
        match self.request_fields() {
            Some(fields) if fields.path && called != self.path() => options.with_path(called),
            _ => options,
        }
    }

    /// Whether its path and the method `POST` are all that calls it over HTTP: most routes.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.parts.request_fields.as_ref().is_none_or(|fields| fields.methods.is_empty() && !fields.path)
    }

    /// Whether only this process calls it: its name begins with `@`.
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.name.is_private()
    }

    /// The parameters in its name.
    pub fn path_parameters(&self) -> impl Iterator<Item = &str> {
        path_template::parameters(self.path())
    }

    /// The types of headers, query parameters and cookies that its code takes as arguments.
    #[must_use]
    pub fn request_arguments(&self) -> &[RequestArgument] {
        &self.parts.request_arguments
    }

    /// What it says of its successful answers.
    #[must_use]
    pub fn response(&self) -> Option<&DeclaredResponse> {
        self.parts.response.as_deref()
    }

    /// How clients of model APIs call it, if it says so.
    #[must_use]
    pub fn task(&self) -> Option<Task> {
        self.parts.task
    }

    /// Other names by which clients of model APIs ask for it.
    #[must_use]
    pub fn aliases(&self) -> &[String] {
        &self.parts.aliases
    }

    /// Whether agents may call it as a tool.
    #[must_use]
    pub fn is_tool(&self) -> bool {
        self.parts.is_tool
    }

    /// Whether its calls go to a node in another process, which alone knows whether it streams.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.index == elsewhere::INDEX
    }

    pub(crate) fn streams_at(&self) -> Option<usize> {
        self.parts.streams_at
    }

    /// One line for readers of the documentation.
    #[must_use]
    pub fn summary(&self) -> &str {
        &self.parts.summary
    }

    /// What it does, in as many words as it needs: the summary, if there are no others.
    #[must_use]
    pub fn description(&self) -> &str {
        if self.parts.description.is_empty() { &self.parts.summary } else { &self.parts.description }
    }

    /// The maximum count of its calls in flight, if it has its own limit.
    #[must_use]
    pub fn max_in_flight(&self) -> Option<NonZeroUsize> {
        self.parts.limits.max_in_flight
    }

    /// The default timeout of its calls, if it differs from the node's.
    #[must_use]
    pub fn default_timeout(&self) -> Option<Duration> {
        self.parts.limits.timeout
    }

    /// The longest time for its calls, if it has its own limit.
    #[must_use]
    pub fn max_timeout(&self) -> Option<Duration> {
        self.parts.limits.max_timeout
    }

    /// The default priority of its calls.
    #[must_use]
    pub fn default_priority(&self) -> Priority {
        self.parts.limits.priority
    }

    /// Working inputs.
    #[must_use]
    pub fn examples(&self) -> &[Value] {
        &self.parts.examples
    }

    /// The count of entries that its workers hold when all of them run full batches.
    pub(crate) fn workers_hold(&self) -> usize {
        self.graph.stages().into_iter().map(|pool| pool.capacity()).fold(0, usize::saturating_add)
    }

    /// Its stages in order, wherever they run.
    #[must_use]
    pub fn stages(&self) -> Vec<StageName> {
        self.graph.stage_names(|pool| pool.name())
    }

    /// Its stages that run on other nodes only.
    #[must_use]
    pub fn remote_stages(&self) -> Vec<StageName> {
        self.graph.remote_stages().into_iter().cloned().collect()
    }
}

/// A call's right to run through a route: while it is held, the route and its stages stay.
#[derive(Debug)]
pub(crate) struct HeldRoute(Arc<Route>);

impl Deref for HeldRoute {
    type Target = Arc<Route>;

    fn deref(&self) -> &Arc<Route> {
        &self.0
    }
}

impl Drop for HeldRoute {
    fn drop(&mut self) {
        if self.0.calls.fetch_sub(1, Ordering::AcqRel) == CLOSED + 1 {
            self.0.changed.notify_waiters();
        }
    }
}
