//! The clock of an identity: the system's, unless a test has set it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use tokio::sync::Notify;

/// The interval at which a wait checks the clock again: the system's clock may be set meanwhile.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// The system's clock, or one that a test sets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    set: Option<&'static SetClock>,
}

/// The difference of a clock from the system's, for tests.
#[derive(Debug, Default)]
pub(crate) struct SetClock {
    ahead_seconds: AtomicI64,
    /// Ends the waits, which would look again after [`LOOK_AGAIN`].
    was_set: Notify,
}

impl SetClock {
    #[cfg(feature = "testing")]
    pub(crate) fn set(&self, ahead_seconds: i64) {
        self.ahead_seconds.store(ahead_seconds, Ordering::SeqCst);
        self.was_set.notify_waiters();
    }
}

impl Clock {
    /// A clock that a test sets. It is never freed.
    #[cfg(feature = "testing")]
    pub(crate) fn settable() -> (Self, &'static SetClock) {
        let set: &'static SetClock = Box::leak(Box::default());
        (Self { set: Some(set) }, set)
    }

    /// The time now.
    #[must_use]
    pub fn now(self) -> SystemTime {
        let (now, ahead) = (SystemTime::now(), self.set.map_or(0, |set| set.ahead_seconds.load(Ordering::SeqCst)));
        let by = Duration::from_secs(ahead.unsigned_abs());
        if ahead < 0 { now - by } else { now + by }
    }

    /// Waits until `moment`, also where the system's clock is set meanwhile.
    pub async fn sleep_until(self, moment: SystemTime) {
        loop {
            // Before the clock is read, so that no setting of it is missed.
            let was_set = self.set.map(|set| set.was_set.notified());
            let left = moment.duration_since(self.now()).unwrap_or_default();
            if left.is_zero() {
                return;
            }
            let was_set = async {
                match was_set {
                    Some(was_set) => was_set.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = tokio::time::sleep(left.min(LOOK_AGAIN)) => {}
                () = was_set => {}
            }
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
