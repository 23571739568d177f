//! Decoding and encoding at the expense of an account, by one rule for the thread: small work at once, large work off
//! the runtime.
//!
//! A millisecond of work would block its thread for other calls, but most work is shorter than a change of threads. The
//! size may show only during the work: a body of a kilobyte may decode to megabytes. So work that can be repeated
//! begins on the current thread with an allowance of [`LARGE_BYTES`] for its allocations. If that is not enough, it is
//! stopped and starts again on another thread. For work that cannot be repeated its known size decides.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::{Account, ChargeError, EncodeError, charged_to, charged_up_to};

use super::{LARGE_BYTES, Offload};
use crate::deadline::Deadline;
use crate::error::CallError;

/// A shorter response is charged to its connection.
const CHARGED_FROM_BYTES: usize = 4 * 1024;

/// Bytes of a response that are not sent yet, with the account that pays for them.
struct ChargedBytes {
    bytes: Bytes,
    _account: Arc<dyn Account>,
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Decodes and encodes at the expense of an account, until a deadline. Of an admitted call it is
/// [its account](crate::edge::Admission::account): work that outlives the admission keeps it.
pub struct CodecBudget<'a> {
    offload: &'a Offload,
    account: Arc<dyn Account>,
    deadline: Deadline,
}

impl fmt::Debug for CodecBudget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CodecBudget").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl<'a> CodecBudget<'a> {
    pub(crate) fn new(offload: &'a Offload, account: Arc<dyn Account>, deadline: Deadline) -> Self {
        Self { offload, account, deadline }
    }

    /// Charges bytes that are held besides decoded and encoded data.
    ///
    /// # Errors
    ///
    /// The account has no room.
    pub fn charge(&self, bytes: usize) -> Result<(), ChargeError> {
        // Most calls have nothing of the kind, and a charge takes the lock of the node's account.
        if bytes == 0 { Ok(()) } else { self.account.charge(bytes) }
    }

    /// Gives back bytes that are no longer held.
    pub fn refund(&self, bytes: usize) {
        self.account.refund(bytes);
    }

    /// Charges bytes of an outcome. The call has run, so without room it may not be sent again.
    ///
    /// # Errors
    ///
    /// The account has no room.
    pub fn charge_outcome(&self, bytes: usize) -> Result<(), CallError> {
        self.account.charge(bytes).map_err(|error| EncodeError::from(error).into())
    }

    /// Replaces all charges so far by these bytes: the response is encoded, and all other data of the call is gone. A
    /// short response charges nothing, because it frees its account in a moment.
    ///
    /// # Errors
    ///
    /// The account has no room.
    pub fn settle(&self, bytes: usize) -> Result<(), CallError> {
        if bytes < CHARGED_FROM_BYTES {
            return Ok(());
        }
        self.account.refund_all();
        self.charge_outcome(bytes)
    }

    /// Whether a response of this length may be compressed. The compressor, a copy and the result are charged until the
    /// response is [settled](Self::settle) again. Without room for them it is sent uncompressed.
    #[must_use]
    pub fn can_compress(&self, compressor_bytes: usize, bytes: usize) -> bool {
        self.account.charge(bytes.saturating_mul(2).saturating_add(compressor_bytes)).is_ok()
    }

    /// The same bytes, which keep the account until they are sent.
    #[must_use]
    pub fn charged(&self, bytes: Bytes) -> Bytes {
        if bytes.len() < CHARGED_FROM_BYTES {
            bytes
        } else {
            Bytes::from_owner(ChargedBytes { bytes, _account: Arc::clone(&self.account) })
        }
    }

    /// Runs `read` on a body. If nothing else shares the body afterwards, its charge is refunded, because the result
    /// was charged by itself. The refund of a short body would cost more than it frees.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), and those of `read`.
    pub async fn read<O: Send + 'static, T: Send + 'static, E: From<CallError> + Send + 'static>(
        &self,
        owner: O,
        body: Bytes,
        read: impl Fn(&Bytes) -> Result<T, E> + Send + 'static,
    ) -> Result<(O, T), E> {
        let length = body.len();
        let handle = (length >= CHARGED_FROM_BYTES).then(|| body.clone());
        let (owner, read) = self.run(owner, length, move || read(&body)).await?;
        if let Some(body) = handle.filter(Bytes::is_unique) {
            drop(body);
            self.account.refund(length);
        }
        Ok((owner, read?))
    }

    /// Runs `work`, which reads `bytes` at least: on the current thread if it turns out to be small, else again on
    /// another thread. That thread holds `owner` until the work returns.
    ///
    /// # Errors
    ///
    /// As [`off_thread`](Self::off_thread).
    pub async fn run<O: Send + 'static, T: Send + 'static>(
        &self,
        owner: O,
        bytes: usize,
        work: impl Fn() -> T + Send + 'static,
    ) -> Result<(O, T), CallError> {
        if bytes < LARGE_BYTES
            && let Some(done) = charged_up_to(LARGE_BYTES, &self.account, &work)
        {
            return Ok((owner, done));
        }
        // Boxed, so that the rare large future does not enlarge the future of every call.
        Box::pin(self.off_thread(owner, work)).await
    }

    /// As [`run`](Self::run), for an outcome. The call has run, so without room or time it may not be sent again.
    ///
    /// # Errors
    ///
    /// As [`off_thread`](Self::off_thread).
    pub async fn run_outcome<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl Fn() -> T + Send + 'static,
    ) -> Result<T, CallError> {
        let done = self.run((), bytes, work).await;
        done.map(|((), done)| done).map_err(CallError::of_outcome)
    }

    /// Runs work that cannot be repeated, on a thread by its known size.
    ///
    /// # Errors
    ///
    /// As [`off_thread`](Self::off_thread).
    pub async fn run_once<O: Send + 'static, T: Send + 'static>(
        &self,
        owner: O,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(O, T), CallError> {
        if bytes < LARGE_BYTES {
            Ok((owner, charged_to(&self.account, work)))
        } else {
            Box::pin(self.off_thread(owner, work)).await
        }
    }

    /// Runs `work` off the runtime's threads. The thread holds `owner`, such as the call's
    /// [`Admission`](crate::edge::Admission), until the work returns, and gives it back with the result.
    ///
    /// # Errors
    ///
    /// `Overloaded` when too much such work waits, `DeadlineExceeded` when no thread was free in time, `Unavailable`
    /// when the node stops. The owner is dropped then.
    ///
    /// # Panics
    ///
    /// As `work` does.
    ///
    /// # Cancellation
    ///
    /// Dropping the future stops the work at its next charge; the owner is held until then.
    pub async fn off_thread<O: Send + 'static, T: Send + 'static>(
        &self,
        owner: O,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(O, T), CallError> {
        self.offload.run(owner, Arc::clone(&self.account), self.deadline, work).await
    }
}
