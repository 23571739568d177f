//! The counts of a route, read from the series of the route and of its stages.

use std::time::Duration;

use super::route::Route;
use crate::metrics::{RouteStatistics, StageStatistics};

impl Route {
    /// The counts of the route. Calls continue meanwhile: each count is exact only by itself.
    #[must_use]
    pub fn statistics(&self) -> RouteStatistics {
        let metrics = self.metrics();
        let stages = self.graph().stages().into_iter().map(|pool| {
            let stage = &pool.metrics;
            StageStatistics {
                name: pool.name().clone(),
                batches: stage.batches(),
                entries: stage.released_entries(),
                queue_time: Duration::from_micros(stage.queue_seconds.sum()),
                batch_time: Duration::from_micros(stage.batch_seconds.sum()),
                compute_time: Duration::from_micros(stage.compute_seconds.sum()),
            }
        });
        RouteStatistics {
            succeeded: metrics.ok.get(),
            succeeded_time: Duration::from_micros(metrics.seconds.sum()),
            failed: metrics.errors.iter().map(|kind| kind.get()).sum(),
            failed_time: Duration::try_from_secs_f64(metrics.failed_seconds.get()).unwrap_or_default(),
            stages: stages.collect(),
        }
    }
}
