//! The items of a batch as parts of frames, and its outcomes as checked parts.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::{DecodeError, DecodeLimits, Encoded, Envelope};
use callboard_core::edge::{ErrorParts, off_the_runtime};
use callboard_core::{Batch, CallContext, CallError, CallOptions, ErrorKind, Failure, Instant, SessionKey, StageName};

use crate::message::{CallHead, INVALID_STATUS, ItemError, MAX_ITEMS};

/// The most bytes of all headers, query parameters and tags in the head of a frame, which has room for 4 MiB.
const MAX_ATTRIBUTE_BYTES_OF_PART: usize = 1024 * 1024;

/// What the lengths of names and values add to those of one item.
const PAIR_LENGTHS_BYTES: usize = 3 * CallOptions::MAX_ATTRIBUTES * 6;

/// Items that one frame can hold.
#[derive(Debug, Default)]
pub(crate) struct BatchPart {
    /// Their indices in the batch.
    pub(crate) indices: Vec<usize>,
    pub(crate) contexts: Vec<CallContext>,
    pub(crate) inputs: Vec<Envelope>,
}

/// Divides a batch into parts of at most `max_items` and `max_bytes`: nearly always one. Items that cannot be sent have
/// failed.
pub(crate) fn divide(
    batch: Batch<Encoded>,
    max_items: usize,
    max_bytes: usize,
) -> (Vec<BatchPart>, Vec<Option<Result<Encoded, Failure>>>) {
    let (mut all, mut part, mut bytes, mut head_bytes) = (Vec::new(), BatchPart::default(), 0, 0);
    let mut outcomes = Vec::with_capacity(batch.len());
    for (index, (item, context)) in batch.into_shared().enumerate() {
        let input = match part_of(&item, max_bytes) {
            Ok(input) => input,
            Err(failure) => {
                outcomes.push(Some(Err(failure)));
                continue;
            }
        };
        let head = match context.attribute_bytes() {
            0 => 0,
            attributes => attributes + PAIR_LENGTHS_BYTES,
        };
        let is_full = part.indices.len() == max_items.min(MAX_ITEMS) || head > MAX_ATTRIBUTE_BYTES_OF_PART - head_bytes;
        if is_full || input.len() > max_bytes - bytes {
            all.push(std::mem::take(&mut part));
            (bytes, head_bytes) = (0, 0);
        }
        bytes += input.len();
        head_bytes += head;
        part.indices.push(index);
        part.contexts.push(context);
        part.inputs.push(input);
        outcomes.push(None);
    }
    if !part.indices.is_empty() {
        all.push(part);
    }
    (all, outcomes)
}

/// An item as a part of a frame.
fn part_of(item: &Encoded, max_bytes: usize) -> Result<Envelope, Failure> {
    let bytes = item.envelope().len();
    if bytes > max_bytes {
        let message = format!("the item has {bytes} bytes, more than {max_bytes} (max_batch_bytes)");
        return Err(Failure::invalid_input(message));
    }
    Ok(item.envelope().clone())
}

/// The calls of items as a child reads them.
pub(crate) fn call_heads(contexts: &[CallContext]) -> Vec<CallHead> {
    let now = Instant::now();
    let head = |context: &CallContext| CallHead {
        remaining_ms: u64::try_from(context.deadline().remaining(now).as_millis()).ok(),
        request_id: context.request_id().map(str::to_owned),
        traceparent: context.traceparent(),
        caller: context.caller().map(str::to_owned),
        route: context.route().map(|route| route.to_string()),
        session: context.session().map(SessionKey::number),
        headers: by_name(context.headers()),
        query: by_name(context.query_pairs()),
        path: context.path().map(str::to_owned),
        tags: by_name(context.tags()),
    };
    contexts.iter().map(head).collect()
}

/// The first value of each name.
fn by_name<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    pairs.for_each(|(name, value)| {
        found.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    });
    found
}

/// The outcome of an item: its error, or the next part. An output that cannot be read is the failure of its item.
pub(crate) fn outcome(
    error: Option<ItemError>,
    parts: &mut impl Iterator<Item = Bytes>,
    context: &CallContext,
    limits: &DecodeLimits,
) -> Result<Encoded, Failure> {
    match (error, parts) {
        (Some(error), _) => Err(failure(error)),
        (None, parts) => read(&parts.next().unwrap_or_default(), context, limits),
    }
}

/// Checks an output, at the expense of its call.
pub(crate) fn read(part: &Bytes, context: &CallContext, limits: &DecodeLimits) -> Result<Encoded, Failure> {
    let refused = |error: DecodeError| Failure::new(format!("the worker's output cannot be read: {error}"));
    let check = || off_the_runtime(part.len(), || Encoded::read(part, limits));
    context.charged(part.len(), check)?.map_err(refused)
}

pub(crate) fn failure(error: ItemError) -> Failure {
    let ItemError {
        message, invalid, kind, stage, status, error_type, details, retry_after_ms, headers, trace, ..
    } = error;
    let mut failure = if let Some(kind) = kind.as_deref().and_then(ErrorKind::from_name) {
        // The error of a call that the child has made, which it passes on.
        let stage = stage.as_deref().map(StageName::new);
        Failure::from(CallError::from(ErrorParts { stage, ..ErrorParts::new(kind, message) }))
    } else if invalid {
        Failure::invalid_input(message).with_status(INVALID_STATUS)
    } else {
        Failure::new(message)
    };
    if let Some(status) = status {
        failure = failure.with_status(status);
    }
    if let Some(error_type) = error_type {
        failure = failure.with_type(error_type);
    }
    if let Some(details) = details {
        failure = failure.with_details(details);
    }
    if let Some(after) = retry_after_ms {
        failure = failure.with_retry_after(Duration::from_millis(after));
    }
    for (name, value) in headers {
        failure = failure.with_header(name, value);
    }
    match trace {
        Some(trace) => failure.with_trace(trace),
        None => failure,
    }
}
