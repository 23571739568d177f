//! User code: workers, closures and asynchronous functions, all run through one interface without types.
//!
//! A worker is called with one batch at a time and gives one outcome per item. The unit of start, restart and
//! scheduling is a **replica** of a stage, see `pool/` and `executor/`.

mod asynchronous;
mod batch;
mod clock_hold;
mod closure;
mod erased;
mod exit;
mod replica;
pub(crate) mod span;
mod streaming;
mod turn;

pub use asynchronous::AsyncWorker;
pub use batch::Batch;
pub use exit::ExitPort;
pub(crate) use replica::NotePort;
pub use replica::Replica;
pub use streaming::{AsyncStreamWorker, NotEmitted, Outputs, StreamWorker};
pub use turn::Turn;

pub(crate) use asynchronous::{AsyncClosure, DynAsyncWorker, ErasedAsync, warm_up};
pub(crate) use clock_hold::{ClockHold, hold_during};
pub(crate) use closure::{batch_closure, contained_closure, each_closure};
pub(crate) use erased::{DynWorker, Erased, Item, ItemOutcome, WrongCount};
pub(crate) use streaming::{ErasedAsyncStream, ErasedStream, OutputSender, StreamClosure};

use callboard_codec::Data;

use crate::error::Failure;

/// User code with state: built inside its replica, called with batches until the node drains.
///
/// # Contract
///
/// * [`call`](Self::call) returns **one outcome per item, in order**. A different count is an error for all of them,
///   because results could not be matched to items.
/// * An `Err` is the answer to that item only. A panic ends the replica: return failures instead.
/// * A worker is called by one thread at a time and never twice at once; it may keep buffers between calls.
///
/// A typical mistake: one bad item fails the whole batch.
///
/// ```
/// # use callboard_core::{Batch, Failure};
/// # struct Parse;
/// # impl Parse {
/// // Wrong: the first unreadable item answers for all of them.
/// fn call_wrong(&mut self, batch: Batch<String>) -> Vec<Result<i64, Failure>> {
///     let parsed: Result<Vec<i64>, _> = batch.iter().map(|text| text.parse::<i64>()).collect();
///     match parsed {
///         Ok(numbers) => numbers.into_iter().map(Ok).collect(),
///         Err(error) => batch.iter().map(|_| Err(Failure::from(error.clone()))).collect(),
///     }
/// }
///
/// // Right: each item has its own outcome.
/// fn call(&mut self, batch: Batch<String>) -> Vec<Result<i64, Failure>> {
///     batch.iter().map(|text| Ok(text.parse::<i64>()?)).collect()
/// }
/// # }
/// ```
///
/// # Cancellation
///
/// A caller that leaves does not interrupt `call`. Long calls should check [`Batch::context`] and skip items for which
/// [`CallContext::is_cancelled`](crate::CallContext::is_cancelled) is true; the results of these items are dropped.
///
/// # Panics
///
/// A panic ends the replica; all entries of its batch get `WorkerFailed` and the supervisor decides on a restart.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `Worker`",
    label = "does not implement `Worker`",
    note = "`impl Worker` for it: the types `In` and `Out`, and `call`, which takes a `Batch`",
    note = "an `AsyncWorker` goes to `Stage::async_worker`, a `StreamWorker` to `StreamStage::worker`, a function over \
            one item to `Stage::each`"
)]
pub trait Worker: Send + 'static {
    /// The type of an item.
    type In: Data;
    /// The type of an item's output.
    type Out: Data;

    /// Runs one batch.
    fn call(&mut self, batch: Batch<Self::In>) -> Vec<Result<Self::Out, Failure>>;

    /// Runs once after construction, before the replica counts as ready.
    ///
    /// # Errors
    ///
    /// A failure here is a failed start.
    fn warmup(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Runs once when the replica is stopped in good order. Not after a panic.
    fn cleanup(&mut self) {}
}
