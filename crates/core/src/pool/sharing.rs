//! The stages that the same replicas run: the one that has the replicas, their host, and those that it hosts.
//!
//! A hosted stage has a pool of its own, with its own permits, batches, costs, cache and metrics. The host's health,
//! replicas, demand, inbox and batcher are those of all of them, so its supervisor serves them all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::handle::Pool;
use super::message::BatcherMessage;
use crate::call::Flight;
use crate::queue::{HOSTED_BITS, HostedId};

/// The stages that a pool hosts. Weak: each of them has its host.
#[derive(Debug, Default)]
pub(super) struct Hosted {
    /// Most pools host nothing: they read this instead of taking the lock.
    is_any: AtomicBool,
    pools: Mutex<HostedPools>,
}

#[derive(Debug, Default)]
struct HostedPools {
    last: HostedId,
    known: Vec<(HostedId, Weak<Pool>)>,
}

impl Hosted {
    /// The number of the next stage.
    pub(super) fn next(&self) -> HostedId {
        let mut pools = self.pools.lock();
        // The first numbers are free again when the last are in use: a million stages later.
        pools.last = (pools.last + 1) % (1 << HOSTED_BITS);
        pools.last = pools.last.max(1);
        pools.last
    }

    pub(super) fn add(&self, id: HostedId, pool: &Arc<Pool>) {
        let mut pools = self.pools.lock();
        pools.known.retain(|(_, pool)| pool.strong_count() > 0);
        pools.known.push((id, Arc::downgrade(pool)));
        self.is_any.store(true, Ordering::Release);
    }
}

impl Pool {
    /// The pool with the replicas.
    pub(super) fn with_replicas(&self) -> &Self {
        self.host.as_deref().unwrap_or(self)
    }

    /// Whether its replicas run other stages as well.
    pub(super) fn is_shared(&self) -> bool {
        self.host.is_some() || self.hosted.is_any.load(Ordering::Acquire)
    }

    /// The hosted stage of this number; `None` after its end.
    pub(crate) fn hosted(&self, id: HostedId) -> Option<Arc<Self>> {
        let pools = self.hosted.pools.lock();
        pools.known.iter().find(|(known, _)| *known == id).and_then(|(_, pool)| pool.upgrade())
    }

    /// This stage has ended: the batcher of its host forgets it.
    pub(crate) fn leave_host(&self) {
        if let Some(host) = &self.host {
            host.tell_batcher(BatcherMessage::Ended(self.hosted_id));
        }
    }

    /// The other stages that the same replicas run.
    pub(super) fn others(&self) -> Vec<Arc<Self>> {
        if !self.is_shared() {
            return Vec::new();
        }
        let hosted = self.with_replicas().hosted.pools.lock().known.clone();
        let hosted = hosted.into_iter().filter_map(|(_, pool)| pool.upgrade());
        self.host.iter().cloned().chain(hosted).filter(|pool| !std::ptr::eq(&raw const **pool, self)).collect()
    }

    /// The entries in the queues of all stages that the same replicas run.
    pub(crate) fn queued_by_all(&self) -> usize {
        self.queued() + self.others().iter().map(|pool| pool.queued()).sum::<usize>()
    }

    /// Whether one of the outer calls is in a stage of the same replicas.
    pub(super) fn is_inside_itself(&self, flight: &Flight) -> bool {
        flight.is_inside(self.name())
            || flight.outer().is_some() && self.others().iter().any(|pool| flight.is_inside(pool.name()))
    }
}
