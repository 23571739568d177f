//! Decoding and encoding at the expense of the call, off the runtime's threads when there is much of it.
//!
//! Work that takes a millisecond would keep its thread from answering anybody else, but a hand-over to another thread takes longer than
//! most work. How much it is shows only as it is done: a body of a kilobyte may unpack to megabytes. So work begins on the spot with an
//! allowance of [`LARGE_BYTES`] for what it allocates; where that does not suffice it is stopped, and begun again elsewhere
//! ([`LocalClient::offload`]).

use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::{Account, charged_to, charged_up_to};
use callboard_core::edge::Admission;
use callboard_core::{Deadline, LocalClient};

use crate::error::ApiError;

/// About a millisecond of JSON.
pub const LARGE_BYTES: usize = 256 * 1024;

/// An answer below this is part of what a connection takes.
const CHARGED_FROM_BYTES: usize = 4 * 1024;

/// Bytes of an answer that are not sent yet, and the account that pays for them.
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
    /// Of a call that was let in. What is done when the admission is gone keeps the account.
    pub fn for_admission(client: &'a LocalClient, admission: &Admission, deadline: Deadline) -> Self {
        Self { client, account: admission.account(), deadline }
    }

    /// Of something that is no call yet.
    pub fn new(client: &'a LocalClient, account: Arc<dyn Account>, deadline: Deadline) -> Self {
        Self { client, account, deadline }
    }

    /// Charges bytes that are held beside what is decoded and encoded.
    pub fn charge(&self, bytes: usize) -> Result<(), ApiError> {
        self.account.charge(bytes).map_err(ApiError::from)
    }

    /// What `read` makes of a body. Where nothing shares the body any more, what it was charged is given back: what it
    /// became is charged by itself. That of a short body is not worth its lock, and goes back with the rest.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        admission: Admission,
        body: Bytes,
        read: impl Fn(&Bytes) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(Admission, T), ApiError> {
        let length = body.len();
        let kept = (length >= CHARGED_FROM_BYTES).then(|| body.clone());
        let (admission, read) = self.run(admission, length, move || read(&body)).await?;
        if let Some(body) = kept.filter(Bytes::is_unique) {
            drop(body);
            self.account.refund(length);
        }
        Ok((admission, read?))
    }

    /// Charges these bytes in the place of all that was charged so far: the outcome is written, and all else of the
    /// call is gone. Nothing holds the account for the sake of a short answer, which so gives it all back in a moment.
    pub fn settle(&self, bytes: usize) -> Result<(), ApiError> {
        if bytes < CHARGED_FROM_BYTES {
            return Ok(());
        }
        self.account.refund_all();
        self.charge(bytes)
    }

    /// Whether an answer of so many bytes may be packed: its packer, a copy, and what it is packed to are charged until the answer is
    /// [settled](Self::settle) again. Where there is no memory for that, it is sent as it is.
    pub fn can_compress(&self, compressor_bytes: usize, bytes: usize) -> bool {
        self.account.charge(bytes.saturating_mul(2).saturating_add(compressor_bytes)).is_ok()
    }

    /// The same bytes, for which the account is kept until they are sent.
    pub fn charged(&self, bytes: Bytes) -> Bytes {
        match bytes.len() < CHARGED_FROM_BYTES {
            true => bytes,
            false => Bytes::from_owner(ChargedBytes { bytes, _account: Arc::clone(&self.account) }),
        }
    }

    /// Runs `work`, on `bytes` that are known of: on the spot where it turns out to be little, else on a thread that serves nobody
    /// else. That thread holds `owner` until the work returns; what was begun on the spot is begun again there.
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

    /// Runs `work` on a thread that serves nobody else, which holds `owner` until it returns.
    pub async fn off_thread<O: Send + 'static, T: Send + 'static>(
        &self,
        owner: O,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(O, T), ApiError> {
        Ok(self.client.offload(owner, Arc::clone(&self.account), self.deadline, work).await?)
    }

    /// Runs work that can be done only once: by what is known of its size.
    pub async fn run_once<O: Send + 'static, T: Send + 'static>(
        &self,
        owner: O,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(O, T), ApiError> {
        match bytes < LARGE_BYTES {
            true => Ok((owner, charged_to(&self.account, work))),
            false => Box::pin(self.off_thread(owner, work)).await,
        }
    }
}
