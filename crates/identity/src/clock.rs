//! The clock of an identity: the system's, unless a test has set it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

/// The interval at which a wait checks the clock again: the system's clock may be set meanwhile.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// The system's clock, or a clock that is ahead of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    ahead: Duration,
}

impl Clock {
    /// A clock ahead of the system's, for tests of machines whose clocks differ.
    #[cfg(feature = "testing")]
    pub(crate) fn ahead_by(ahead: Duration) -> Self {
        Self { ahead }
    }

    /// The time now.
    #[must_use]
    pub fn now(self) -> SystemTime {
        SystemTime::now() + self.ahead
    }

    /// Waits until `moment`, also where the system's clock is set meanwhile.
    pub async fn sleep_until(self, moment: SystemTime) {
        loop {
            let left = moment.duration_since(self.now()).unwrap_or_default();
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LOOK_AGAIN)).await;
        }
    }
}

/// Certificates are verified with the same clock.
impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        self.now().duration_since(UNIX_EPOCH).ok().map(UnixTime::since_unix_epoch)
    }
}

/// Seconds since 1970.
pub(crate) fn seconds(moment: SystemTime) -> u64 {
    moment.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}
