//! Workers without their types: a pool can run any worker.
//!
//! The adapter turns payloads into the worker's inputs and its outputs into payloads. An input of another type is
//! decoded; if that fails, only its item fails.

use std::sync::Arc;

use callboard_codec::{Data, Payload};

use super::streaming::OutputSender;
use super::{Batch, Worker};
use crate::call::Flight;
use crate::containment::CaughtPanic;
use crate::error::{CallError, Failure};
use crate::id::StageName;

/// One item for a worker.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) payload: Payload,
    pub(crate) flight: Arc<Flight>,
    /// The channel for a streaming stage's outputs.
    pub(crate) outputs: Option<OutputSender>,
}

#[derive(Debug)]
pub(crate) enum ItemOutcome {
    Done(Payload),
    Failed(Failure),
    /// User code panicked for this item alone, and the worker continues.
    Panicked(Box<CaughtPanic>),
    /// Its caller left, or its deadline passed, before its turn in the batch.
    NotRun,
    /// Its deadline passed during its run.
    Late,
}

impl From<Result<Payload, Failure>> for ItemOutcome {
    fn from(result: Result<Payload, Failure>) -> Self {
        match result {
            Ok(payload) => Self::Done(payload),
            Err(failure) => Self::Failed(failure),
        }
    }
}

/// The worker broke its contract: the count of results is not the count of items.
#[derive(Debug, thiserror::Error)]
#[error("the worker returned {got} results for {expected} items")]
pub(crate) struct WrongCount {
    pub(crate) expected: usize,
    pub(crate) got: usize,
}

/// A worker without its types.
pub(crate) trait DynWorker: Send {
    fn warmup(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Runs the batch for `stage`: takes all `items` and pushes one outcome for each, in order.
    fn run(
        &mut self,
        stage: &StageName,
        items: &mut Vec<Item>,
        outcomes: &mut Vec<ItemOutcome>,
    ) -> Result<(), WrongCount>;

    fn cleanup(&mut self) {}
}

/// Reads a payload as `In`: in place if it has this type, else decoded at the expense of its call.
pub(crate) fn read_input<In: Data>(payload: Payload, flight: &Flight) -> Result<Arc<In>, Failure> {
    let read = match payload.downcast::<In>() {
        Ok(input) => return Ok(input),
        Err(other) => flight.convert(|| other.clone().into_arc::<In>()),
    };
    read.map_err(|panic| Failure::from(CallError::in_conversion(&panic)))?.map_err(Failure::from_decode_error)
}

/// The adapter for the [`Worker`] trait.
#[derive(Debug)]
pub(crate) struct Erased<W>(pub(crate) W);

impl<W: Worker> DynWorker for Erased<W> {
    fn warmup(&mut self) -> Result<(), Failure> {
        self.0.warmup()
    }

    fn run(
        &mut self,
        stage: &StageName,
        items: &mut Vec<Item>,
        outcomes: &mut Vec<ItemOutcome>,
    ) -> Result<(), WrongCount> {
        let (batch, unreadable) = UnreadableItems::separate(stage, items.drain(..));
        let results = if batch.is_empty() { Vec::new() } else { self.0.call(batch) };
        unreadable.lay_out(results, outcomes)
    }

    fn cleanup(&mut self) {
        self.0.cleanup();
    }
}

/// The items that failed before the worker's call.
pub(crate) struct UnreadableItems {
    expected: usize,
    /// The position and failure of each unreadable item, to restore the order of the outcomes.
    failed: Vec<(usize, Failure)>,
}

impl UnreadableItems {
    /// Reads the items. Unreadable items do not enter the batch.
    pub(crate) fn separate<In: Data>(
        stage: &StageName,
        items: impl IntoIterator<Item = Item, IntoIter: ExactSizeIterator>,
    ) -> (Batch<In>, Self) {
        let items = items.into_iter();
        let mut batch = Batch::with_capacity(stage, items.len());
        let mut failed = Vec::new();
        for (position, item) in items.enumerate() {
            match read_input::<In>(item.payload, &item.flight) {
                Ok(input) => batch.push(input, item.flight),
                Err(failure) => failed.push((position, failure)),
            }
        }
        let expected = batch.len();
        (batch, Self { expected, failed })
    }

    /// Pushes one outcome per item, in the items' order.
    pub(crate) fn lay_out<Out: Data>(
        self,
        results: Vec<Result<Out, Failure>>,
        outcomes: &mut Vec<ItemOutcome>,
    ) -> Result<(), WrongCount> {
        if results.len() != self.expected {
            return Err(WrongCount { expected: self.expected, got: results.len() });
        }
        let mut failed = self.failed.into_iter().peekable();
        let mut results = results.into_iter();
        loop {
            let at = outcomes.len();
            if let Some((_, failure)) = failed.next_if(|(position, _)| *position == at) {
                outcomes.push(ItemOutcome::Failed(failure));
            } else if let Some(result) = results.next() {
                outcomes.push(result.map(Payload::new).into());
            } else {
                return Ok(());
            }
        }
    }
}
