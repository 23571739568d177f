//! How long the queue of a stage takes, at the measured rate.

use std::time::Duration;

use super::handle::Pool;
use crate::error::RETRY_AFTER;
use crate::queue::Load;

impl Pool {
    /// The retry time of refused callers: the time that the queue needs, once a batch was measured.
    pub(super) fn drain_time(&self) -> Duration {
        self.queue_delay().unwrap_or(RETRY_AFTER)
    }

    /// The time that the queue needs at the measured rate, with the replicas that are up. `None` before the first batch
    /// was measured. Where the replicas run several stages, it is the time that their queues need together.
    pub(crate) fn queue_delay(&self) -> Option<Duration> {
        let others = self.others();
        let delays = others.iter().filter_map(|pool| pool.own_queue_delay());
        self.own_queue_delay().into_iter().chain(delays).reduce(Duration::saturating_add)
    }

    /// The busy share of its replicas, as a number of replicas.
    pub(crate) fn busy(&self) -> f64 {
        let staying = self.replicas.all().into_iter().filter(|handle| !handle.is_leaving());
        staying.map(|handle| f64::from(handle.running()) / handle.slots() as f64).sum()
    }

    fn own_queue_delay(&self) -> Option<Duration> {
        let line = self.cost.line();
        if !line.is_known() {
            return None;
        }
        let queued = self.queued();
        let cost = if self.spec.sizing().has_cost() { self.entrance.queued_cost() } else { queued as u64 };
        Some(line.drain(Load::new(queued, cost), self.policy(), self.replicas.slots()))
    }
}
