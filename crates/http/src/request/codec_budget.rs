//! Decoding and encoding at the expense of the call, off the runtime's threads if it is large.
//!
//! A millisecond of work would block its thread for other requests, but most work is shorter than a change of threads.
//! The size shows only during the work: a body of a kilobyte may decode to megabytes. So work begins on the current
//! thread with an allowance of [`LARGE_BYTES`] for its allocations. If that is not enough, it is stopped and starts
//! again on another thread ([`EdgeHandle::offload`](callboard_core::edge::EdgeHandle::offload)).

use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::{Account, charged_to, charged_up_to};
use callboard_core::edge::{Admission, LARGE_BYTES};
use callboard_core::{Deadline, LocalClient};

use crate::error::ApiError;

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

/// Decodes and encodes at the expense of an account, until a deadline.
pub struct CodecBudget<'a> {
    client: &'a LocalClient,
    pub(super) account: Arc<dyn Account>,
    deadline: Deadline,
}

impl std::fmt::Debug for CodecBudget<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CodecBudget").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl<'a> CodecBudget<'a> {
    /// At the expense of an admitted call. Work that outlives the admission keeps the account.
    #[must_use]
    pub fn for_admission(client: &'a LocalClient, admission: &Admission, deadline: Deadline) -> Self {
        Self { client, account: admission.account(), deadline }
    }

    /// At the expense of an account that belongs to no call.
    pub fn new(client: &'a LocalClient, account: Arc<dyn Account>, deadline: Deadline) -> Self {
        Self { client, account, deadline }
    }

    /// Charges bytes that are held besides decoded and encoded data.
    ///
    /// # Errors
    ///
    /// The account has no room.
    pub fn charge(&self, bytes: usize) -> Result<(), ApiError> {
        self.account.charge(bytes).map_err(ApiError::from)
    }

    /// Charges bytes of an outcome. The call has run, so without room it may not be sent again.
    ///
    /// # Errors
    ///
    /// The account has no room.
    pub fn charge_outcome(&self, bytes: usize) -> Result<(), ApiError> {
        self.account.charge(bytes).map_err(|error| ApiError::unencodable(error.into()))
    }

    /// Runs `read` on a body. If nothing else shares the body afterwards, its charge is refunded, because the result
    /// was charged by itself. The refund of a short body would cost more than it frees.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        admission: Admission,
        body: Bytes,
        read: impl Fn(&Bytes) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(Admission, T), ApiError> {
        let length = body.len();
        let handle = (length >= CHARGED_FROM_BYTES).then(|| body.clone());
        let (admission, read) = self.run(admission, length, move || read(&body)).await?;
        if let Some(body) = handle.filter(Bytes::is_unique) {
            drop(body);
            self.account.refund(length);
        }
        Ok((admission, read?))
    }

    /// Replaces all charges so far by these bytes: the response is encoded, and all other data of the call is gone. A
    /// short response charges nothing, because it frees its account in a moment.
    ///
    /// # Errors
    ///
    /// The account has no room.
    pub fn settle(&self, bytes: usize) -> Result<(), ApiError> {
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
    pub fn charged(&self, bytes: Bytes) -> Bytes {
        if bytes.len() < CHARGED_FROM_BYTES {
            bytes
        } else {
            Bytes::from_owner(ChargedBytes { bytes, _account: Arc::clone(&self.account) })
        }
    }

    /// Runs `work`, which reads `bytes` at least: on the current thread if it turns out to be small, else again on
    /// another thread. That thread holds `owner` until the work returns.
    ///
    /// # Errors
    ///
    /// The deadline passed, or the node has no room.
    pub async fn run<O: Send + 'static, T: Send + 'static>(
        &self,
        owner: O,
        bytes: usize,
        work: impl Fn() -> T + Send + 'static,
    ) -> Result<(O, T), ApiError> {
        if bytes < LARGE_BYTES
            && let Some(done) = charged_up_to(LARGE_BYTES, &self.account, &work)
        {
            return Ok((owner, done));
        }
        Box::pin(self.off_thread(owner, work)).await
    }

    /// As [`run`](Self::run), for an outcome. The call has run, so without room or time it may not be sent again.
    ///
    /// # Errors
    ///
    /// The deadline passed, or the node has no room.
    pub async fn run_outcome<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl Fn() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let done = self.run((), bytes, work).await;
        done.map(|((), done)| done).map_err(ApiError::after_the_call)
    }

    /// Runs `work` on another thread, which holds `owner` until it returns.
    ///
    /// # Errors
    ///
    /// The deadline passed, or the node has no room.
    pub async fn off_thread<O: Send + 'static, T: Send + 'static>(
        &self,
        owner: O,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(O, T), ApiError> {
        Ok(self.client.edge().offload(owner, Arc::clone(&self.account), self.deadline, work).await?)
    }

    /// Runs work that cannot be repeated, on a thread by its known size.
    ///
    /// # Errors
    ///
    /// The deadline passed, or the node has no room.
    pub async fn run_once<O: Send + 'static, T: Send + 'static>(
        &self,
        owner: O,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(O, T), ApiError> {
        if bytes < LARGE_BYTES {
            Ok((owner, charged_to(&self.account, work)))
        } else {
            Box::pin(self.off_thread(owner, work)).await
        }
    }
}
