//! One public name, what goes in and comes out, and the pipeline behind it.

use std::num::NonZeroUsize;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_codec::{DataType, Value};
use tokio::sync::Notify;

use crate::call::Priority;
use crate::gateway::Refusal;
use crate::id::{RouteIndex, RouteName, StageName};
use crate::metrics::RouteMetrics;
use crate::pipeline::{Graph, all_may_run_again};
use crate::pool::Pool;

/// Set in a route's count of calls once it is closed: it takes no new ones.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// One revision of a route that is being served.
#[derive(Debug)]
pub struct Route {
    index: RouteIndex,
    revision: u64,
    name: RouteName,
    parts: RouteParts,
    graph: Graph<Arc<Pool>>,
    metrics: RouteMetrics,
    /// Calls that run through it, and whether it takes more: one word, so that the last call cannot slip past the
    /// closing.
    calls: AtomicUsize,
    emptied: Notify,
    /// Counted only where there is a limit.
    in_flight: AtomicUsize,
}

/// What one route allows, and what its calls are unless they say otherwise.
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
    pub(crate) examples: Vec<Value>,
    /// It takes a [`FunctionCall`](crate::FunctionCall).
    pub(crate) is_function: bool,
    /// Where among its steps the streaming stage stands, if it has one.
    pub(crate) streams_at: Option<usize>,
    pub(crate) limits: RouteLimits,
    /// In lower case.
    pub(crate) headers: Arc<[Box<str>]>,
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
            emptied: Notify::new(),
            in_flight: AtomicUsize::new(0),
        }
    }

    /// Begins a call on this route, unless it is closed.
    pub(crate) fn hold(self: Arc<Self>) -> Option<HeldRoute> {
        let before = self.calls.fetch_add(1, Ordering::AcqRel);
        let held = HeldRoute(self);
        (before & CLOSED == 0).then_some(held)
    }

    /// Takes no more calls. A newer table must be published before: a refused caller looks there.
    pub(super) fn close(&self) {
        self.calls.fetch_or(CLOSED, Ordering::AcqRel);
        self.emptied.notify_waiters();
    }

    /// Waits until the last call of a closed route has left.
    pub(super) async fn emptied(&self) {
        loop {
            // Asked for before the look, so that a call which leaves in between is heard.
            let emptied = self.emptied.notified();
            if self.calls.load(Ordering::Acquire) == CLOSED {
                return;
            }
            emptied.await;
        }
    }

    pub(super) fn parts(&self) -> &RouteParts {
        &self.parts
    }

    /// Takes one of the route's permits, or says that all are out. [`leave`](Self::leave) gives it back.
    pub(crate) fn enter(&self) -> Result<(), Refusal> {
        let Some(limit) = self.parts.limits.max_in_flight else { return Ok(()) };
        // The count never exceeds the limit, not even for a moment: another call would be refused for it.
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

    /// The public name: a path such as `/digits`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The number of the change that opened it; the start was 1.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The highest revision that its stages here are said to be, see
    /// [`StageSettings::revision`](crate::StageSettings::revision): unlike [`revision`](Self::revision), what their
    /// owner counts.
    #[must_use]
    pub fn stage_revision(&self) -> u64 {
        self.graph.stages().into_iter().map(|pool| pool.settings().revision()).max().unwrap_or(0)
    }

    /// What it takes.
    #[must_use]
    pub fn input(&self) -> &DataType {
        &self.parts.input
    }

    /// What it gives.
    #[must_use]
    pub fn output(&self) -> &DataType {
        &self.parts.output
    }

    /// Whether it takes a [`FunctionCall`](crate::FunctionCall): arguments as they are, by place and by name.
    #[must_use]
    pub fn is_function(&self) -> bool {
        self.parts.is_function
    }

    /// Whether it answers one input with many outputs; then [`output`](Self::output) is what one of them is.
    #[must_use]
    pub fn streams(&self) -> bool {
        self.parts.streams_at.is_some()
    }

    /// Whether a call of it may run twice: each stage has a [contract](crate::Contract) that permits it, no actor is
    /// asked, and all of it runs on this node.
    #[must_use]
    pub fn may_run_again(&self) -> bool {
        !self.streams() && all_may_run_again(self.graph().steps())
    }

    /// The names, in lower case, of the headers that the code behind it wants to see; see
    /// [`RouteSpec::headers`](crate::RouteSpec::headers).
    #[must_use]
    pub fn wanted_headers(&self) -> &[Box<str>] {
        &self.parts.headers
    }

    pub(crate) fn streams_at(&self) -> Option<usize> {
        self.parts.streams_at
    }

    /// One line for people.
    #[must_use]
    pub fn summary(&self) -> &str {
        &self.parts.summary
    }

    /// The most calls it has in flight, where it has a limit of its own.
    #[must_use]
    pub fn max_in_flight(&self) -> Option<NonZeroUsize> {
        self.parts.limits.max_in_flight
    }

    /// How long its calls may take when their callers do not say, where it differs from the node's.
    #[must_use]
    pub fn default_timeout(&self) -> Option<Duration> {
        self.parts.limits.timeout
    }

    /// The longest that its calls may take, where it has a limit of its own.
    #[must_use]
    pub fn max_timeout(&self) -> Option<Duration> {
        self.parts.limits.max_timeout
    }

    /// The class of its calls when their callers do not say.
    #[must_use]
    pub fn default_priority(&self) -> Priority {
        self.parts.limits.priority
    }

    /// Inputs that work.
    #[must_use]
    pub fn examples(&self) -> &[Value] {
        &self.parts.examples
    }

    /// How many entries its workers have in hand when all of them run full batches.
    pub(crate) fn workers_hold(&self) -> usize {
        let held = |pool: &Arc<Pool>| pool.replicas().wanted().saturating_mul(pool.policy().max_batch_size.get());
        self.graph.stages().into_iter().map(held).fold(0, usize::saturating_add)
    }

    /// Its stages in order, wherever they run.
    #[must_use]
    pub fn stages(&self) -> Vec<StageName> {
        self.graph.stage_names(|pool| pool.name())
    }

    /// Those of them that run on other nodes only.
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
            self.0.emptied.notify_waiters();
        }
    }
}
