//! Room for outputs on their way, in one direction: what a child has sent and nobody has read, or what it has not read.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Room for outputs, counted in units of `unit` bytes. Each output takes at least one.
#[derive(Clone)]
pub(crate) struct OutputRoom {
    room: Arc<Semaphore>,
    units: u32,
    unit: u64,
}

impl OutputRoom {
    /// Room for this many bytes, in units of `unit` bytes.
    pub(crate) fn new(bytes: u64, unit: u64) -> Self {
        let unit = unit.max(1);
        let units = u32::try_from(bytes.div_ceil(unit)).unwrap_or(u32::MAX).clamp(1, u32::MAX / 8);
        Self { room: Arc::new(Semaphore::new(units as usize)), units, unit }
    }

    /// Waits for room. A large output has all of it.
    pub(crate) async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from((bytes as u64).div_ceil(self.unit)).unwrap_or(u32::MAX).clamp(1, self.units);
        // It is never closed.
        Arc::clone(&self.room).acquire_many_owned(units).await.ok()
    }
}
