//! The calls of one request to a model, over any transport.
//!
//! A request to a model of samples may have many items, along a first axis of every array. Each item is a call with its
//! own permit and queue entry, so that it is batched with other calls; the response joins their outcomes. The first
//! failure fails the request and cancels the other calls.
//!
//! * **Full:** the first call has the permit of the body. The others that may run at a time are admitted before any
//!   runs, so a request that is refused has not begun; further ones are admitted as those before them end.

use std::sync::Arc;

use callboard_codec::{DecodeLimits, Payload, Value};
use callboard_core::edge::{Admission, Route};
use callboard_core::{CacheUse, CallOptions, ErrorKind, LocalClient, SessionKey, Timing};
use callboard_http::protocol::{ApiError, CodecBudget, LARGE_BYTES};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::array::Array;
use super::model::Model;

/// A model, and the node that runs it.
#[derive(Clone, Copy, Debug)]
pub struct ModelRun<'a> {
    /// The node.
    pub client: &'a LocalClient,
    /// The limits of values that are made of arrays.
    pub limits: &'a DecodeLimits,
    /// The route of the model.
    pub route: &'a Arc<Route>,
    /// The model.
    pub model: &'a Arc<Model>,
}

/// The outcome of a request.
#[derive(Debug)]
pub struct Ran {
    /// The outputs of the model.
    pub outputs: Vec<Array>,
    /// The times of the slowest item.
    pub timing: Timing,
    /// What the response caches did: a hit if they had the answer of every item.
    pub cache_use: Option<CacheUse>,
}

/// The memory of an item: its permit, its queue entry, its future.
pub(crate) const ITEM_BYTES: usize = 2048;

/// The memory of an item's array besides its elements.
const ARRAY_BYTES: usize = 256;

/// The most items of one request that run at a time: several batches, and no queue that others cannot enter.
const MAX_RUNNING: usize = 256;

/// The outcomes of the calls of all items, in their order, all of the same session if there is one. `admission` is that
/// of the body, whose bytes its account keeps.
pub(crate) async fn run_all<I, T, F>(
    client: &LocalClient,
    route: &Arc<Route>,
    admission: Admission,
    session: Option<SessionKey>,
    items: Vec<I>,
    run: impl Fn(Admission, I) -> F,
) -> Result<Vec<T>, ApiError>
where
    F: Future<Output = Result<T, ApiError>>,
{
    let (edge, calls) = (client.edge(), items.len());
    // The items of a request do not take each other's places.
    let most = route.max_in_flight().map_or(MAX_RUNNING, |most| most.get().min(MAX_RUNNING));
    let mut admissions = vec![admission];
    while admissions.len() < calls.min(most) {
        admissions.push(edge.admit_session(route, 0, session)?);
    }
    let (admitted, run) = (admissions.into_iter().map(Some).chain(std::iter::repeat_with(|| None)), &run);
    let runs = items.into_iter().zip(admitted).map(|(item, admission)| {
        // Boxed, so that moving many of them moves pointers.
        Box::pin(async move {
            let admission = match admission {
                Some(admission) => admission,
                None => edge.admit_session(route, 0, session)?,
            };
            run(admission, item).await
        })
    });
    let outcomes: Result<Vec<T>, ApiError> = stream::iter(runs).buffered(most).try_collect().await;
    outcomes.map_err(|error| error.of_one_of(calls, client, route))
}

impl ModelRun<'_> {
    /// Runs all items of a request.
    ///
    /// # Errors
    ///
    /// That of the first item that fails.
    pub async fn run(
        self,
        budget: &CodecBudget<'_>,
        admission: Admission,
        options: &CallOptions,
        inputs: Vec<Option<Array>>,
        rows: usize,
    ) -> Result<Ran, ApiError> {
        if !self.model.is_batched() {
            let (outputs, timing, cache_use) = self.run_item(budget, admission, options.clone(), inputs).await?;
            return Ok(Ran { outputs, timing, cache_use });
        }
        // Besides the elements, which the items share.
        budget.charge(rows.saturating_mul(inputs.len().saturating_mul(ARRAY_BYTES).saturating_add(ITEM_BYTES)))?;
        let items = items_of(inputs, rows);
        let run = |admission, item| self.run_item(budget, admission, options.clone(), item);
        let ran = run_all(self.client, self.route, admission, options.session(), items, run).await?;
        let (mut outcomes, mut timing, mut cache_use) = (Vec::with_capacity(rows), Timing::default(), None);
        for (outputs, of_item, used) in ran {
            outcomes.push(outputs);
            timing = std::cmp::max_by_key(timing, of_item, Timing::total);
            cache_use = cache_use.max(used);
        }
        Ok(Ran { outputs: stacked(self.model, outcomes)?, timing, cache_use })
    }

    async fn run_item(
        self,
        budget: &CodecBudget<'_>,
        admission: Admission,
        options: CallOptions,
        arrays: Vec<Option<Array>>,
    ) -> Result<(Vec<Array>, Timing, Option<CacheUse>), ApiError> {
        let (admission, payload) = self.payload(budget, admission, arrays).await?;
        let (reply, call_of_item) = self.client.edge().submit_unwritten(admission, payload, options).await?;
        let (timing, cache_use) = (reply.timing, call_of_item.cache_use());
        // The outcome of an item does not depend on the response to the whole request.
        call_of_item.end(Ok(()));
        Ok((self.outputs(budget, reply.payload).await?, timing, cache_use))
    }

    /// The payload of one item: its arrays without the axis of items.
    ///
    /// # Errors
    ///
    /// The arrays do not make up the input of the route, the deadline passed, or the node has no room.
    pub async fn payload(
        self,
        budget: &CodecBudget<'_>,
        admission: Admission,
        arrays: Vec<Option<Array>>,
    ) -> Result<(Admission, Payload), ApiError> {
        let input = self.route.input();
        let bytes: usize = arrays.iter().flatten().map(|array| array.data.len()).sum();
        // Numbers by name are a value already: nothing is converted, whatever their size.
        let is_value_already = input.tensors().is_some() && !self.model.takes_elements();
        if is_value_already || bytes < LARGE_BYTES {
            let value = self.model.inputs.value(arrays, self.limits)?;
            return Ok((admission, input.from_value(value)?));
        }
        let (model, route) = (Arc::clone(self.model), Arc::clone(self.route));
        let limits = self.limits.clone();
        let convert = move || -> Result<Payload, ApiError> {
            let value = model.inputs.value(arrays, &limits)?;
            Ok(route.input().from_value(value)?)
        };
        let (admission, payload) = budget.off_thread(admission, convert).await?;
        Ok((admission, payload?))
    }

    /// The outputs in the outcome of one item.
    ///
    /// # Errors
    ///
    /// The outcome is not of the type of the route, or the node has no room.
    pub async fn outputs(self, budget: &CodecBudget<'_>, payload: Payload) -> Result<Vec<Array>, ApiError> {
        let model = Arc::clone(self.model);
        // Arrays of numbers in a value are shared; other data is converted, on another thread if it is large.
        if payload.is::<Value>() && !model.outputs.has_elements() {
            return arrays_of(&model, &payload);
        }
        let bytes = payload.size_up_to(LARGE_BYTES);
        budget.run_outcome(bytes, move || arrays_of(&model, &payload)).await?
    }
}

/// The arrays of each item, without the first axis.
#[must_use]
pub fn items_of(inputs: Vec<Option<Array>>, rows: usize) -> Vec<Vec<Option<Array>>> {
    let mut items: Vec<Vec<Option<Array>>> = vec![Vec::with_capacity(inputs.len()); rows];
    for array in inputs {
        match array {
            Some(array) => items.iter_mut().zip(array.rows()).for_each(|(item, row)| item.push(Some(row))),
            None => items.iter_mut().for_each(|item| item.push(None)),
        }
    }
    items
}

fn stacked(model: &Model, outcomes: Vec<Vec<Array>>) -> Result<Vec<Array>, ApiError> {
    let stack = |index: usize| {
        let rows: Vec<Array> = outcomes.iter().map(|outcome| outcome[index].clone()).collect();
        Array::stack(&rows).ok_or_else(|| {
            let name = &model.outputs.fields[index].name;
            let message = format!("the items' outputs `{name}` differ in shape: send one item at a time");
            ApiError::new(ErrorKind::Internal, message)
        })
    };
    (0..model.outputs.fields.len()).map(stack).collect()
}

/// The outputs in the outcome of a call.
fn arrays_of(model: &Model, payload: &Payload) -> Result<Vec<Array>, ApiError> {
    let value = payload.to_value().map_err(ApiError::unencodable)?;
    model.outputs.arrays(&value).map_err(|error| {
        ApiError::new(
            ErrorKind::Internal,
            format!("the outputs of model '{}' do not fit its type: {error}", model.name),
        )
    })
}
