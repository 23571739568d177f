//! Whether items may share a run: whether the answer to one depends on the others.
//!
//! A model with a free first axis is batched by default, so it has to be shown that this changes no
//! answer. [`graph`] reads the operators, and [`trial`] runs one item alone and beside others as the model is loaded.
//! If either finds a dependence, or neither can tell, the default is to run items one by one, with a warning.

mod graph;
mod nodes;
mod proof;
mod trial;

use std::convert::Infallible;

use crate::model::Items;
use crate::signature::{Axis, BatchAxis, Signature};

pub(crate) use self::trial::{Trial, try_beside_others};

/// What the file tells of the items of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// A part of it makes the answer to an item depend on the others: this one.
    Mixed(String),
    /// Each of its operators computes within the items.
    Apart,
    /// No operator is known to mix items, and not all of them are known to keep them apart.
    Open,
    /// It was not read to its end.
    Unread,
}

impl Items {
    /// Of a model of which only the file is read here. It is tried where it is loaded.
    pub(crate) fn of_file(reading: Reading) -> Self {
        let Ok(items) = Self::of_loaded(reading, || Ok::<_, Infallible>(Trial::Same));
        items
    }

    /// Of a loaded model.
    ///
    /// # Errors
    ///
    /// Those of the trial.
    pub(crate) fn of_loaded<E>(reading: Reading, trial: impl FnOnce() -> Result<Trial, E>) -> Result<Self, E> {
        if let Reading::Mixed(reason) = reading {
            return Ok(Self::Mixed(reason));
        }
        Ok(match (reading, trial()?) {
            (_, Trial::Different(reason)) => Self::Mixed(reason),
            (Reading::Apart, _) | (Reading::Open, Trial::Same) => Self::Apart,
            (_, Trial::Untried(reason)) => Self::Unknown(reason),
            (_, Trial::Same) => Self::Unknown("its graph is too large to be read".to_owned()),
        })
    }
}

/// What the file tells. Items that are whole tensors share no run.
pub(crate) fn read(file: &[u8], signature: &Signature) -> Reading {
    if signature.batch_axis() != BatchAxis::Stacked {
        return Reading::Apart;
    }
    repeated_axis(signature).map_or_else(|| graph::read(file, signature), Reading::Mixed)
}

/// An item with an axis of the batch's name is as long as there are others.
fn repeated_axis(signature: &Signature) -> Option<String> {
    let batch = signature.inputs().iter().find_map(|spec| spec.shape()?.first()?.name())?;
    let specs = signature.inputs().iter().chain(signature.outputs());
    let has_batch = |axes: &&[Axis]| axes.iter().any(|axis| axis.name() == Some(batch));
    let repeated = specs.into_iter().find(|spec| signature.item_axes(spec).as_ref().is_some_and(has_batch))?;
    Some(format!("each item of `{}` has an axis `{batch}`, whose length is the number of items", repeated.name()))
}

#[cfg(test)]
mod tests;
