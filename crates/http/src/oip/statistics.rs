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
pub(super) struct ModelStatistics {
    name: String,
    version: String,
    last_inference: u64,
    inference_count: u64,
    /// Batches of the stage that had most of them.
    execution_count: u64,
    inference_stats: InferenceStatistics,
    response_stats: Empty,
    batch_stats: [(); 0],
    memory_usage: [(); 0],
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
struct InferenceStatistics {
    success: Duration,
    fail: Duration,
    queue: Duration,
    compute_input: Duration,
    compute_infer: Duration,
    compute_output: Duration,
    cache_hit: Duration,
    cache_miss: Duration,
}

/// How often, and how long in all.
#[derive(Clone, Copy, Default, Serialize)]
struct Duration {
    count: u64,
    ns: u64,
}

impl Duration {
    fn new(count: u64, time: std::time::Duration) -> Self {
        Self { count, ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) }
    }
}

pub(super) fn of(route: &Route, model: &Model) -> ModelStatistics {
    let RouteStatistics { succeeded, succeeded_time, failed, failed_time, stages, .. } = route.statistics();
    let sum = |time: fn(&StageStatistics) -> std::time::Duration| stages.iter().map(time).sum();
    ModelStatistics {
        name: model.name.clone(),
        version: model.version.to_string(),
        last_inference: model.last_inference(),
        inference_count: succeeded,
        execution_count: stages.iter().map(|stage| stage.batches).max().unwrap_or_default(),
        inference_stats: InferenceStatistics {
            success: Duration::new(succeeded, succeeded_time),
            fail: Duration::new(failed, failed_time),
            queue: Duration::new(succeeded, sum(|stage| stage.queue_time)),
            compute_input: Duration::new(succeeded, sum(|stage| stage.batch_time)),
            compute_infer: Duration::new(succeeded, sum(|stage| stage.compute_time)),
            compute_output: Duration { count: succeeded, ns: 0 },
            cache_hit: Duration::default(),
            cache_miss: Duration::default(),
        },
        response_stats: Empty {},
        batch_stats: [],
        memory_usage: [],
    }
}
