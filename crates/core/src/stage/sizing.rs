//! The cost of a stage's inputs, and the splitting of inputs that are too large.
//!
//! These functions are user code and run in the caller's own future, before anything queues: the cost once per input, a
//! split only for an input that is too large for one batch. They should be quick: count, do not compute.

use std::fmt;
use std::sync::Arc;

use callboard_codec::{Data, Payload};

use crate::error::Failure;

/// The maximum cost of one entry. A larger result of a cost function counts as this, so that sums over any queue fit.
const MOST_COST: u64 = 1 << 40;

type CostFn = dyn Fn(Payload) -> Result<(Payload, u64), Failure> + Send + Sync;
type SplitFn = dyn Fn(Payload, u64) -> Result<Vec<Payload>, Failure> + Send + Sync;
type JoinFn = dyn Fn(Vec<Payload>) -> Result<Payload, Failure> + Send + Sync;

/// The functions without their types. By default every input costs 1 and is one piece.
#[derive(Clone, Default)]
pub(crate) struct Sizing {
    cost: Option<Arc<CostFn>>,
    splitting: Option<Splitting>,
}

/// How an input is split, and how the outputs of its parts are joined.
#[derive(Clone)]
pub(crate) struct Splitting {
    split: Arc<SplitFn>,
    join: Arc<JoinFn>,
}

impl Sizing {
    pub(super) fn with_cost<In: Data>(self, cost: impl Fn(&In) -> u64 + Send + Sync + 'static) -> Self {
        let cost = move |payload: Payload| {
            // An input of another type is converted here instead of at the worker: once, either way.
            let input = read::<In>(payload)?;
            let cost = cost(&input).min(MOST_COST);
            Ok((Payload::from_arc(input), cost))
        };
        Self { cost: Some(Arc::new(cost)), ..self }
    }

    pub(super) fn with_splitting<In, Out>(
        self,
        split: impl Fn(&In, u64) -> Result<Vec<In>, Failure> + Send + Sync + 'static,
        join: impl Fn(Vec<Out>) -> Result<Out, Failure> + Send + Sync + 'static,
    ) -> Self
    where
        In: Data,
        Out: Data + Clone,
    {
        let split = move |payload, max_cost| {
            let parts = split(&*read::<In>(payload)?, max_cost)?;
            Ok(parts.into_iter().map(Payload::new).collect())
        };
        let join = move |outputs: Vec<Payload>| {
            let outputs = outputs.into_iter().map(|output| read::<Out>(output).map(Arc::unwrap_or_clone));
            Ok(Payload::new(join(outputs.collect::<Result<_, _>>()?)?))
        };
        Self { splitting: Some(Splitting { split: Arc::new(split), join: Arc::new(join) }), ..self }
    }

    pub(crate) fn has_cost(&self) -> bool {
        self.cost.is_some()
    }

    /// The cost of an input. Gives the input back as the type that the stage takes.
    pub(crate) fn cost(&self, payload: Payload) -> Result<(Payload, u64), Failure> {
        match &self.cost {
            Some(cost) => cost(payload),
            None => Ok((payload, 1)),
        }
    }

    pub(crate) fn splitting(&self) -> Option<&Splitting> {
        self.splitting.as_ref()
    }
}

impl Splitting {
    /// Parts that cost at most `max_cost` each, in order.
    pub(crate) fn split(&self, payload: Payload, max_cost: u64) -> Result<Vec<Payload>, Failure> {
        (self.split)(payload, max_cost)
    }

    /// Joins the outputs of the parts, in order.
    pub(crate) fn join(&self, outputs: Vec<Payload>) -> Result<Payload, Failure> {
        (self.join)(outputs)
    }
}

fn read<T: Data>(payload: Payload) -> Result<Arc<T>, Failure> {
    payload.into_arc::<T>().map_err(|error| Failure::invalid_input(error.to_string()))
}

impl fmt::Debug for Sizing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cost, splits) = (self.cost.is_some(), self.splitting.is_some());
        f.debug_struct("Sizing").field("cost", &cost).field("splits", &splits).finish()
    }
}
