//! What time it is to an identity: the system's, unless a test has set it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

/// The system's clock, or one that is ahead of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    ahead: Duration,
}

impl Clock {
    /// One that is so far ahead of the system's: for tests of machines that do not agree.
    #[cfg(feature = "testing")]
    pub(super) fn ahead_by(ahead: Duration) -> Self {
        Self { ahead }
    }

    pub(crate) fn now(self) -> SystemTime {
        SystemTime::now() + self.ahead
    }
}

/// Certificates are held against the same clock.
impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        self.now().duration_since(UNIX_EPOCH).ok().map(UnixTime::since_unix_epoch)
    }
}
