//! Closures as workers.

use std::marker::PhantomData;
use std::sync::Arc;

use callboard_codec::{Data, Payload};

use super::erased::{DynWorker, Item, ItemOutcome, WrongCount, read_input};
use super::{Batch, Worker, span};
use crate::call::{CallContext, Flight};
use crate::clock;
use crate::containment::contain;
use crate::error::Failure;
use crate::id::StageName;

/// A closure over one item and its call. All replicas share it.
pub(crate) struct EachClosure<F, In, Out> {
    function: Arc<F>,
    types: PhantomData<fn(&In) -> Out>,
}

impl<F, In, Out> EachClosure<F, In, Out> {
    pub(crate) fn new(function: Arc<F>) -> Self {
        Self { function, types: PhantomData }
    }
}

impl<F, In, Out> DynWorker for EachClosure<F, In, Out>
where
    F: Fn(&In, &Arc<Flight>, &StageName) -> Result<Out, Failure> + Send + Sync + 'static,
    In: Data,
    Out: Data,
{
    fn run(
        &mut self,
        stage: &StageName,
        items: &mut Vec<Item>,
        outcomes: &mut Vec<ItemOutcome>,
    ) -> Result<(), WrongCount> {
        let is_alone = items.len() == 1;
        for (position, item) in items.drain(..).enumerate() {
            // The first item was checked when the batch began; the items before this one may have taken time.
            if position > 0 && !item.flight.is_wanted(clock::now()) {
                outcomes.push(ItemOutcome::NotRun);
                continue;
            }
            let _entered = (!is_alone).then(|| span::for_member(stage, &item.flight).entered());
            let input = read_input::<In>(item.payload, &item.flight);
            let result = input.and_then(|input| (self.function)(&input, &item.flight, stage));
            outcomes.push(result.map(Payload::new).into());
        }
        Ok(())
    }
}

/// A closure over one item, whose panic is that item's outcome: the worker has no state to break. All replicas share
/// it.
pub(crate) struct ContainedClosure<F, In, Out> {
    function: Arc<F>,
    types: PhantomData<fn(&In) -> Out>,
}

impl<F, In, Out> ContainedClosure<F, In, Out> {
    pub(crate) fn new(function: Arc<F>) -> Self {
        Self { function, types: PhantomData }
    }
}

impl<F, In, Out> DynWorker for ContainedClosure<F, In, Out>
where
    F: Fn(&In, &CallContext) -> Result<Out, Failure> + Send + Sync + 'static,
    In: Data,
    Out: Data,
{
    fn run(
        &mut self,
        stage: &StageName,
        items: &mut Vec<Item>,
        outcomes: &mut Vec<ItemOutcome>,
    ) -> Result<(), WrongCount> {
        outcomes.extend(items.drain(..).map(|item| {
            let result = contain(|| {
                let input = read_input::<In>(item.payload, &item.flight)?;
                (self.function)(&input, &CallContext::new(&item.flight, stage)).map(Payload::new)
            });
            result.map_or_else(|words| ItemOutcome::Panicked(Box::new(words)), Into::into)
        }));
        Ok(())
    }
}

/// A closure over a batch. All replicas share it.
pub(crate) struct BatchClosure<F, In, Out> {
    function: Arc<F>,
    types: PhantomData<fn(In) -> Out>,
}

impl<F, In, Out> BatchClosure<F, In, Out> {
    pub(crate) fn new(function: Arc<F>) -> Self {
        Self { function, types: PhantomData }
    }
}

impl<F, In, Out> Worker for BatchClosure<F, In, Out>
where
    F: Fn(Batch<In>) -> Vec<Result<Out, Failure>> + Send + Sync + 'static,
    In: Data,
    Out: Data,
{
    type In = In;
    type Out = Out;

    fn call(&mut self, batch: Batch<In>) -> Vec<Result<Out, Failure>> {
        (self.function)(batch)
    }
}
