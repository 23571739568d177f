//! Closures as workers: they have no state, so all replicas of a stage share one.

use std::sync::Arc;

use callboard_codec::{Data, Payload};

use super::erased::{DynWorker, Item, ItemOutcome, UnreadableItems, WrongCount, read_input};
use super::{Batch, span};
use crate::call::{CallContext, Flight};
use crate::clock;
use crate::containment::contain;
use crate::error::Failure;
use crate::id::StageName;

/// What a closure does with a batch.
impl<F> DynWorker for F
where
    F: FnMut(&StageName, &mut Vec<Item>, &mut Vec<ItemOutcome>) -> Result<(), WrongCount> + Send,
{
    fn run(
        &mut self,
        stage: &StageName,
        items: &mut Vec<Item>,
        outcomes: &mut Vec<ItemOutcome>,
    ) -> Result<(), WrongCount> {
        self(stage, items, outcomes)
    }
}

/// A closure over one item and its call.
pub(crate) fn each_closure<F, In: Data, Out: Data>(function: Arc<F>) -> Box<dyn DynWorker>
where
    F: Fn(&In, &Arc<Flight>, &StageName) -> Result<Out, Failure> + Send + Sync + 'static,
{
    Box::new(move |stage: &StageName, items: &mut Vec<Item>, outcomes: &mut Vec<ItemOutcome>| {
        let is_alone = items.len() == 1;
        for (position, item) in items.drain(..).enumerate() {
            // The first item was checked when the batch began; the items before this one may have taken time.
            if position > 0 && !item.flight.is_wanted(clock::now()) {
                outcomes.push(ItemOutcome::NotRun);
                continue;
            }
            let _entered = (!is_alone).then(|| span::for_member(stage, &item.flight).entered());
            let input = read_input::<In>(item.payload, &item.flight);
            let result = input.and_then(|input| function(&input, &item.flight, stage));
            outcomes.push(result.map(Payload::new).into());
        }
        Ok(())
    })
}

/// A closure over one item, whose panic is that item's outcome: the worker has no state to break.
pub(crate) fn contained_closure<F, In: Data, Out: Data>(function: Arc<F>) -> Box<dyn DynWorker>
where
    F: Fn(&In, &CallContext) -> Result<Out, Failure> + Send + Sync + 'static,
{
    Box::new(move |stage: &StageName, items: &mut Vec<Item>, outcomes: &mut Vec<ItemOutcome>| {
        outcomes.extend(items.drain(..).map(|item| {
            let result = contain(|| {
                let input = read_input::<In>(item.payload, &item.flight)?;
                function(&input, &CallContext::new(&item.flight, stage)).map(Payload::new)
            });
            result.map_or_else(|words| ItemOutcome::Panicked(Box::new(words)), Into::into)
        }));
        Ok(())
    })
}

/// A closure over a batch.
pub(crate) fn batch_closure<F, In: Data, Out: Data>(function: Arc<F>) -> Box<dyn DynWorker>
where
    F: Fn(Batch<In>) -> Vec<Result<Out, Failure>> + Send + Sync + 'static,
{
    Box::new(move |stage: &StageName, items: &mut Vec<Item>, outcomes: &mut Vec<ItemOutcome>| {
        let (batch, unreadable) = UnreadableItems::separate(stage, items.drain(..));
        let results = if batch.is_empty() { Vec::new() } else { function(batch) };
        unreadable.lay_out(results, outcomes)
    })
}
