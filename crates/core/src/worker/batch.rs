//! The items of a worker's call, each with the context of its own call.

use std::ops::Index;
use std::sync::Arc;

use super::Turn;
use crate::call::{CallContext, Flight};
use crate::id::StageName;

/// The items of one call of a worker, never empty.
///
/// Items are shared: a worker reads `&In`. [`into_inputs`](Self::into_inputs) takes the values and clones an item only
/// if it is still shared.
#[derive(Debug)]
pub struct Batch<In> {
    stage: StageName,
    items: Vec<Arc<In>>,
    flights: Vec<Arc<Flight>>,
    turn: Turn,
}

impl<In> Batch<In> {
    pub(crate) fn with_capacity(stage: &StageName, capacity: usize) -> Self {
        let stage = stage.clone();
        Self {
            stage,
            items: Vec::with_capacity(capacity),
            flights: Vec::with_capacity(capacity),
            turn: Turn::default(),
        }
    }

    pub(crate) fn push(&mut self, item: Arc<In>, flight: Arc<Flight>) {
        self.items.push(item);
        self.flights.push(flight);
    }

    pub(crate) fn with_turn(mut self, turn: Turn) -> Self {
        self.turn = turn;
        self
    }

    /// The stage of the items: another one than the worker's own, if its replicas run the stages of others; see
    /// [`Stage::hosted_by`](crate::Stage::hosted_by).
    #[must_use]
    pub fn stage(&self) -> &StageName {
        &self.stage
    }

    /// Its turn, for workers that get batches ahead.
    #[must_use]
    pub fn take_turn(&mut self) -> Turn {
        std::mem::take(&mut self.turn)
    }

    /// The number of items.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is no item. A worker never sees such a batch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The items in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &In> {
        self.items.iter().map(AsRef::as_ref)
    }

    /// The context of the call of the item at `index`.
    ///
    /// # Panics
    ///
    /// If `index` is not below [`len`](Self::len).
    #[must_use]
    pub fn context(&self, index: usize) -> CallContext {
        CallContext::new(&self.flights[index], &self.stage)
    }

    /// The items in order, each with the context of its call. Shares what the batch has.
    #[must_use]
    pub fn into_shared(self) -> impl ExactSizeIterator<Item = (Arc<In>, CallContext)> {
        let stage = self.stage;
        self.items.into_iter().zip(self.flights).map(move |(item, flight)| (item, CallContext::of(flight, &stage)))
    }

    /// The items by value.
    #[must_use]
    pub fn into_inputs(self) -> Vec<In>
    where
        In: Clone,
    {
        self.items.into_iter().map(Arc::unwrap_or_clone).collect()
    }
}

impl<'a, In> IntoIterator for &'a Batch<In> {
    type Item = &'a In;
    type IntoIter = std::iter::Map<std::slice::Iter<'a, Arc<In>>, fn(&'a Arc<In>) -> &'a In>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.iter().map(AsRef::as_ref)
    }
}

impl<In> Index<usize> for Batch<In> {
    type Output = In;

    fn index(&self, index: usize) -> &In {
        &self.items[index]
    }
}
