//! The statistics of a model (statistics extension).
//!
//! Every call of the route counts, from any edge; each item of a request is one inference. The times of a stage are
//! those of all calls through it: models that share a stage have the same times. `compute_input` is the time before a
//! batch reaches user code; `compute_output` is not measured, and there is no cache.

use callboard_core::description::{RouteStatistics, StageStatistics};
use callboard_core::edge::Route;
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::model::Model;

#[derive(Serialize)]
pub(crate) struct ModelStatistics {
    name: String,
    version: String,
    last_inference: u64,
    inference_count: u64,
    /// The batches of the stage that had the most.
    execution_count: u64,
    inference_stats: InferenceStatistics,
    response_stats: EmptyObject,
    batch_stats: [(); 0],
    memory_usage: [(); 0],
}

#[derive(Serialize)]
struct EmptyObject {}

#[derive(Serialize)]
struct InferenceStatistics {
    success: TimedCount,
    fail: TimedCount,
    queue: TimedCount,
    compute_input: TimedCount,
    compute_infer: TimedCount,
    compute_output: TimedCount,
    cache_hit: TimedCount,
    cache_miss: TimedCount,
}

/// A count and a total time.
#[derive(Clone, Copy, Default, Serialize)]
struct TimedCount {
    count: u64,
    ns: u64,
}

impl TimedCount {
    fn new(count: u64, time: std::time::Duration) -> Self {
        Self { count, ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) }
    }
}

/// The statistics of a model, as JSON.
#[must_use]
pub fn statistics(route: &Route, model: &Model) -> Json {
    json!(model_statistics(route, model))
}

pub(crate) fn model_statistics(route: &Route, model: &Model) -> ModelStatistics {
    let RouteStatistics { succeeded, succeeded_time, failed, failed_time, stages, .. } = route.statistics();
    let sum = |time: fn(&StageStatistics) -> std::time::Duration| stages.iter().map(time).sum();
    ModelStatistics {
        name: model.name.clone(),
        version: model.version.to_string(),
        last_inference: model.last_inference(),
        inference_count: succeeded,
        execution_count: stages.iter().map(|stage| stage.batches).max().unwrap_or_default(),
        inference_stats: InferenceStatistics {
            success: TimedCount::new(succeeded, succeeded_time),
            fail: TimedCount::new(failed, failed_time),
            queue: TimedCount::new(succeeded, sum(|stage| stage.queue_time)),
            compute_input: TimedCount::new(succeeded, sum(|stage| stage.batch_time)),
            compute_infer: TimedCount::new(succeeded, sum(|stage| stage.compute_time)),
            compute_output: TimedCount { count: succeeded, ns: 0 },
            cache_hit: TimedCount::default(),
            cache_miss: TimedCount::default(),
        },
        response_stats: EmptyObject {},
        batch_stats: [],
        memory_usage: [],
    }
}
