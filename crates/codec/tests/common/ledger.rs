//! An account that records its charges, for tests that compare the heap with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use callboard_codec::{Account, ChargeError, charged_to};

/// The limit that refusals name.
pub(crate) const LIMIT: &str = "max_in_flight_bytes";

struct Ledger {
    max: usize,
    charged: AtomicUsize,
    peak: AtomicUsize,
}

impl Account for Ledger {
    fn charge(&self, bytes: usize) -> Result<(), ChargeError> {
        let charged = self.charged.load(Relaxed).saturating_add(bytes);
        if charged > self.max {
            return Err(ChargeError::too_large(LIMIT, self.max));
        }
        self.charged.store(charged, Relaxed);
        self.peak.fetch_max(charged, Relaxed);
        Ok(())
    }

    fn refund(&self, bytes: usize) {
        self.charged.fetch_sub(bytes, Relaxed);
    }
}

/// The charges of a scope.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Charged {
    /// The highest sum at one time.
    pub(crate) peak: usize,
    /// The sum after its end.
    #[allow(dead_code, reason = "not every binary uses it")]
    pub(crate) left: usize,
}

/// Runs `work` on an account of `max` bytes.
pub(crate) fn charged<T>(max: usize, work: impl FnOnce() -> T) -> (T, Charged) {
    let ledger = Arc::new(Ledger { max, charged: AtomicUsize::new(0), peak: AtomicUsize::new(0) });
    let account: Arc<dyn Account> = Arc::clone(&ledger) as _;
    let made = charged_to(&account, work);
    (made, Charged { peak: ledger.peak.load(Relaxed), left: ledger.charged.load(Relaxed) })
}
