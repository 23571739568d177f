//! What was counted of a model, in the words of the statistics extension.
//!
//! Every call of the route counts, by whatever door it came; one item of a request is one inference. Times of stages are those
//! of all calls through them: a stage that several models share tells each of them the same. `compute_input` is the hand-over of
//! batches to user code; nothing is measured for `compute_output`, and there is no cache.

use callboard_core::description::{RouteStatistics, StageStatistics};
use callboard_core::edge::Route;
use serde::Serialize;

use super::model::Model;

#[derive(Serialize)]
pub(crate) struct ModelStatistics {
    name: String,
    version: String,
    last_inference: u64,
    inference_count: u64,
    /// Batches of the stage that had most of them.
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

/// How often, and how long in all.
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
