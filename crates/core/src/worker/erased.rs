//! Workers without their types: how a pool of any stage runs any worker.
//!
//! The adapter turns payloads into the worker's inputs and its outputs into payloads. An input of another type is decoded;
//! one that cannot be is the item's own failure.

use std::sync::Arc;

use callboard_codec::{Data, Payload};

use super::{Batch, Worker};
use crate::call::Flight;
use crate::failure::Failure;

/// One item on its way into a worker.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) payload: Payload,
    pub(crate) flight: Arc<Flight>,
}

/// What became of one item.
pub(crate) type ItemOutcome = Result<Payload, Failure>;

/// The worker broke its contract: it gave another number of results than it got items.
#[derive(Debug, thiserror::Error)]
#[error("the worker returned {got} results for {expected} items")]
pub(crate) struct WrongCount {
    pub(crate) expected: usize,
    pub(crate) got: usize,
}

/// A worker whose types are known only inside.
pub(crate) trait DynWorker: Send {
    fn warmup(&mut self) -> Result<(), Failure>;

    /// Runs the batch: takes all `items` and pushes as many outcomes, in order.
    fn run(&mut self, items: &mut Vec<Item>, outcomes: &mut Vec<ItemOutcome>) -> Result<(), WrongCount>;

    fn cleanup(&mut self);
}

/// Reads a payload as `In`, in place where it is one already.
pub(crate) fn read_input<In: Data>(payload: Payload) -> Result<Arc<In>, Failure> {
    payload.into_arc::<In>().map_err(|error| Failure::invalid_input(error.to_string()))
}

/// The adapter for the [`Worker`] trait.
#[derive(Debug)]
pub(crate) struct Erased<W>(pub(crate) W);

impl<W: Worker> DynWorker for Erased<W> {
    fn warmup(&mut self) -> Result<(), Failure> {
        self.0.warmup()
    }

    fn run(&mut self, items: &mut Vec<Item>, outcomes: &mut Vec<ItemOutcome>) -> Result<(), WrongCount> {
        let mut batch = Batch::with_capacity(items.len());
        // Where each refused item stands, so that the others' results can be laid around it.
        let mut refused: Vec<(usize, Failure)> = Vec::new();
        for (position, item) in items.drain(..).enumerate() {
            let checked = read_input::<W::In>(item.payload).and_then(|input| self.0.preprocess(&input).map(|()| input));
            match checked {
                Ok(input) => batch.push(input, item.flight),
                Err(failure) => refused.push((position, failure)),
            }
        }

        let expected = batch.len();
        let results = if expected == 0 { Vec::new() } else { self.0.call(batch) };
        if results.len() != expected {
            return Err(WrongCount { expected, got: results.len() });
        }

        let mut refused = refused.into_iter().peekable();
        let mut results = results.into_iter();
        loop {
            let at = outcomes.len();
            if let Some((_, failure)) = refused.next_if(|(position, _)| *position == at) {
                outcomes.push(Err(failure));
            } else if let Some(result) = results.next() {
                outcomes.push(result.map(Payload::new));
            } else {
                return Ok(());
            }
        }
    }

    fn cleanup(&mut self) {
        self.0.cleanup();
    }
}
