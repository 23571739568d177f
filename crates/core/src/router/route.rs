//! One public name, what goes in and comes out, and the pipeline behind it.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_codec::{DataType, Value};

use crate::batcher::Pool;
use crate::call::Priority;
use crate::gateway::Refusal;
use crate::id::{RouteIndex, RouteName, StageName};
use crate::metrics::RouteMetrics;
use crate::pipeline::Graph;

/// A route that is being served.
#[derive(Debug)]
pub struct Route {
    index: RouteIndex,
    name: RouteName,
    parts: RouteParts,
    graph: Graph<Arc<Pool>>,
    metrics: RouteMetrics,
    /// Counted only where there is a limit.
    in_flight: AtomicUsize,
}

/// What one route allows, and what its calls are unless they say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteLimits {
    pub(crate) max_in_flight: Option<NonZeroUsize>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) priority: Priority,
}

/// What a route is told by whoever declares it.
#[derive(Clone, Debug)]
pub(crate) struct RouteParts {
    pub(crate) input: DataType,
    pub(crate) output: DataType,
    pub(crate) summary: String,
    pub(crate) examples: Vec<Value>,
    /// It takes a [`FunctionCall`](crate::FunctionCall).
    pub(crate) is_function: bool,
    pub(crate) limits: RouteLimits,
}

impl Route {
    pub(crate) fn new(
        index: RouteIndex,
        name: RouteName,
        parts: RouteParts,
        graph: Graph<Arc<Pool>>,
        metrics: RouteMetrics,
    ) -> Self {
        Self { index, name, parts, graph, metrics, in_flight: AtomicUsize::new(0) }
    }

    /// Takes one of the route's permits, or says that all are out. [`leave`](Self::leave) gives it back.
    pub(crate) fn enter(&self) -> Result<(), Refusal> {
        let Some(limit) = self.parts.limits.max_in_flight else { return Ok(()) };
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        if before < limit.get() {
            return Ok(());
        }
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        Err(Refusal::RouteFull { route: self.name.clone(), limit: limit.get() })
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
        let held =
            |pool: &Arc<Pool>| pool.settings().replicas().get().saturating_mul(pool.policy().max_batch_size.get());
        self.graph.stages().into_iter().map(held).fold(0, usize::saturating_add)
    }

    /// Its stages in order.
    #[must_use]
    pub fn stages(&self) -> Vec<StageName> {
        self.graph.stages().into_iter().map(|pool| pool.name().clone()).collect()
    }
}
