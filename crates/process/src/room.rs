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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn take(room: &OutputRoom, bytes: usize) -> Option<OwnedSemaphorePermit> {
        room.take(bytes).now_or_never().flatten()
    }

    #[test]
    fn outputs_share_the_room_in_units_and_give_it_back() {
        let room = OutputRoom::new(100, 10);
        let first = take(&room, 51).expect("six units");
        assert!(take(&room, 41).is_none() && take(&room, 40).is_some());
        let empty: Vec<_> = (0..4).map(|_| take(&room, 0).expect("each takes one")).collect();
        assert!(take(&room, 0).is_none());
        drop((first, empty));
        assert!(take(&room, 100).is_some());
    }

    #[test]
    fn a_large_output_has_all_of_the_room() {
        let room = OutputRoom::new(95, 10);
        let large = take(&room, 1 << 40).expect("it is alone");
        assert!(take(&room, 0).is_none());
        drop(large);
        let _small = take(&room, 1).unwrap();
        assert!(take(&room, 1 << 40).is_none());
    }

    /// A semaphore has a limit, and a unit is at least a byte.
    #[test]
    fn any_room_and_any_unit_are_taken() {
        let room = OutputRoom::new(u64::MAX, 0);
        let quarters = [take(&room, 1 << 27), take(&room, 1 << 27)];
        assert!(quarters.iter().all(Option::is_some) && take(&room, usize::MAX).is_none());
        drop(quarters);
        assert!(take(&room, usize::MAX).is_some());
        assert!(take(&OutputRoom::new(0, 10), 7).is_some());
    }
}
