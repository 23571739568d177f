//! One public name, what goes in and comes out, and the pipeline behind it.

use std::sync::Arc;

use callboard_codec::{DataType, Value};

use crate::batcher::Pool;
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
}

impl Route {
    pub(crate) fn new(
        index: RouteIndex,
        name: RouteName,
        parts: RouteParts,
        graph: Graph<Arc<Pool>>,
        metrics: RouteMetrics,
    ) -> Self {
        Self { index, name, parts, graph, metrics }
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
