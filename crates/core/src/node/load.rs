//! Reads how busy the node is. It costs nothing: the counts are there.

use crate::client::NodeState;
use crate::metrics::NodeLoad;

impl NodeState {
    pub(crate) fn load(&self) -> NodeLoad {
        let (table, limits) = (self.router.table(), self.gateway.limits());
        let (in_flight, bytes) = (self.gateway.in_flight(), self.gateway.bytes());
        let share = |part: f64, whole: f64| (part / whole).clamp(0.0, 1.0);
        let mut load = NodeLoad {
            saturation: share(in_flight as f64, limits.max_in_flight as f64)
                .max(share(bytes as f64, limits.max_in_flight_bytes as f64)),
            ..NodeLoad::default()
        };
        for stage in table.stages() {
            let queued = stage.pool.queued();
            load.queued += queued;
            load.saturation = load.saturation.max(share(queued as f64, stage.pool.settings().queue().get() as f64));
        }
        load.running = in_flight.saturating_sub(load.queued);
        load
    }
}
