//! The items of a batch as parts of frames, and its outcomes as checked parts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::{DecodeError, DecodeLimits, Encoded, Envelope};
use callboard_core::edge::{ErrorParts, off_the_runtime};
use callboard_core::{CallContext, CallError, CallOptions, ErrorKind, Failure, Instant, SessionKey, StageName};

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
    batch: impl ExactSizeIterator<Item = (Arc<Encoded>, CallContext)>,
    max_items: usize,
    max_bytes: usize,
) -> (Vec<BatchPart>, Vec<Option<Result<Encoded, Failure>>>) {
    let (mut all, mut part, mut bytes, mut head_bytes) = (Vec::new(), BatchPart::default(), 0, 0);
    let mut outcomes = Vec::with_capacity(batch.len());
    for (index, (item, context)) in batch.enumerate() {
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
        method: context.method().map(str::to_owned),
        client: context.client_address().map(str::to_owned),
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

#[cfg(test)]
mod tests {
    use std::iter;
    use std::sync::LazyLock;

    use callboard_codec::{Format, Value};
    use callboard_core::Deadline;

    use super::*;
    use crate::testing::WaitingNode;

    static SMALL: LazyLock<Arc<Encoded>> = LazyLock::new(|| item(50));

    /// An item whose envelope has this many bytes.
    fn item(bytes: usize) -> Arc<Encoded> {
        let encoded = |length: usize| Value::from("x".repeat(length)).encode(Format::Envelope).unwrap();
        let item = (0..bytes).rev().map(encoded).find(|item| item.len() == bytes).unwrap();
        Arc::new(Encoded::read(&item, &DecodeLimits::default()).unwrap())
    }

    /// Divides items of these bytes, which all have this context: the indices of the parts, and those that failed.
    fn divided(context: &CallContext, items: &[usize], max_items: usize) -> (Vec<Vec<usize>>, Vec<usize>) {
        let batch: Vec<_> = items.iter().map(|bytes| (item(*bytes), context.clone())).collect();
        let (parts, outcomes) = divide(batch.into_iter(), max_items, 1000);
        assert_eq!(outcomes.len(), items.len());
        for part in &parts {
            assert!(part.contexts.len() == part.indices.len() && part.inputs.len() == part.indices.len());
            assert!(part.indices.iter().zip(&part.inputs).all(|(index, input)| input.len() == items[*index]));
        }
        let failed = (0..items.len()).filter(|index| outcomes[*index].is_some()).collect();
        (parts.into_iter().map(|part| part.indices).collect(), failed)
    }

    #[tokio::test]
    async fn a_batch_is_divided_by_bytes_and_by_items() {
        let mut node = WaitingNode::start().await;
        let context = node.call().await;
        let divided = |items: &[usize], max_items: usize| divided(&context, items, max_items);
        for (items, max_items, parts, failed) in [
            (&[][..], 9, &[][..], &[][..]),
            (&[500, 500], 9, &[&[0, 1][..]], &[]),
            (&[500, 501], 9, &[&[0], &[1]], &[]),
            (&[1000, 200, 300, 500, 200], 9, &[&[0], &[1, 2, 3], &[4]], &[]),
            (&[1001, 200, 2000, 200], 9, &[&[1, 3]], &[0, 2]),
            (&[200, 200, 200, 200, 200], 2, &[&[0, 1], &[2, 3], &[4]], &[]),
            (&[200, 200], 1, &[&[0], &[1]], &[]),
            (&[1001], 1, &[], &[0]),
        ] {
            assert_eq!(divided(items, max_items), (parts.iter().map(|part| part.to_vec()).collect(), failed.to_vec()));
        }
        let failure = part_of(&item(1001), 1000).unwrap_err();
        assert_eq!(failure.kind(), ErrorKind::InvalidInput);
        assert_eq!(failure.message(), "the item has 1001 bytes, more than 1000 (max_batch_bytes)");
    }

    #[tokio::test]
    async fn a_part_has_no_more_items_than_a_frame_and_attributes_than_a_head() {
        let mut node = WaitingNode::start().await;
        let plain = node.call().await;
        let small = iter::repeat_with(|| (Arc::clone(&SMALL), plain.clone())).take(MAX_ITEMS + 1).collect::<Vec<_>>();
        let (parts, _) = divide(small.into_iter(), usize::MAX, 1 << 30);
        assert_eq!(parts.iter().map(|part| part.indices.len()).collect::<Vec<_>>(), [MAX_ITEMS, 1]);
        let options = CallOptions::new().with_tag("name", "x".repeat(4096 - PAIR_LENGTHS_BYTES - 4));
        let tagged = node.call_with(options).await;
        assert_eq!(tagged.attribute_bytes() + PAIR_LENGTHS_BYTES, 4096, "as many fill a head exactly");
        let most = MAX_ATTRIBUTE_BYTES_OF_PART / 4096;
        let many = iter::repeat_with(|| (Arc::clone(&SMALL), tagged.clone())).take(2 * most + 1).collect::<Vec<_>>();
        let (parts, _) = divide(many.into_iter(), usize::MAX, 1 << 30);
        assert_eq!(parts.iter().map(|part| part.indices.len()).collect::<Vec<_>>(), [most, most, 1]);
    }

    #[tokio::test]
    async fn the_head_of_a_call_says_what_its_caller_gave() {
        let mut node = WaitingNode::start().await;
        let options = CallOptions::new()
            .with_request_id("r-1")
            .with_caller("ada")
            .with_header("a", "1")
            .with_header("b", "2")
            .with_query("q", "3")
            .with_tag("t", "5")
            .with_path("/p")
            .with_method("PUT")
            .with_client_address("10.0.0.7")
            .with_session_key(SessionKey::from("s"))
            .with_deadline(Deadline::after(Instant::now(), Duration::from_secs(1000)));
        let context = node.call_with(options).await;
        let head = call_heads(std::slice::from_ref(&context)).remove(0);
        assert!((900_000..=1_000_000).contains(&head.remaining_ms.unwrap()), "{head:?}");
        assert_eq!((head.request_id.as_deref(), head.caller.as_deref()), (Some("r-1"), Some("ada")));
        assert_eq!((head.route.as_deref(), head.path.as_deref()), (Some("/child"), Some("/p")));
        assert_eq!((head.method.as_deref(), head.client.as_deref()), (Some("PUT"), Some("10.0.0.7")));
        assert_eq!(head.session, context.session().map(SessionKey::number));
        let pairs = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>()
        };
        assert_eq!((head.headers, head.tags), (pairs(&[("a", "1"), ("b", "2")]), pairs(&[("t", "5")])));
        assert_eq!((head.query, head.session.is_some()), (pairs(&[("q", "3")]), true));
        assert_eq!(by_name([("q", "3"), ("q", "4")].into_iter()), pairs(&[("q", "3")]), "the first of a name");
    }

    #[tokio::test]
    async fn an_outcome_is_an_error_or_the_next_part() {
        let mut node = WaitingNode::start().await;
        let context = node.call().await;
        let (parts, limits) =
            ([SMALL.envelope().clone().into_bytes(), Bytes::from_static(b"no envelope")], DecodeLimits::default());
        let mut parts = parts.into_iter();
        let mut outcome = |error| outcome(error, &mut parts, &context, &limits);
        let error = || Some(ItemError { message: "m".to_owned(), ..ItemError::default() });
        assert_eq!(outcome(error()).unwrap_err().message(), "m");
        assert_eq!(outcome(None).unwrap().envelope().len(), 50);
        for _ in 0..2 {
            let failure = outcome(None).unwrap_err();
            assert!(failure.message().starts_with("the worker's output cannot be read: "), "{failure:?}");
        }
    }

    #[test]
    fn an_error_of_a_child_keeps_its_parts() {
        let error = || ItemError { message: "m".to_owned(), ..ItemError::default() };
        let parts = |error: ItemError| failure(error).into_parts();
        let plain = parts(error());
        assert_eq!((plain.kind, &*plain.message, plain.status), (ErrorKind::Failed, "m", None));
        let invalid = parts(ItemError { invalid: true, ..error() });
        assert_eq!((invalid.kind, invalid.status), (ErrorKind::InvalidInput, Some(INVALID_STATUS)));
        let passed_on = |kind: &str| {
            parts(ItemError { kind: Some(kind.to_owned()), stage: Some("s".to_owned()), invalid: true, ..error() })
        };
        let passed = passed_on("overloaded");
        assert_eq!((passed.kind, passed.stage), (ErrorKind::Overloaded, Some(StageName::new("s"))));
        assert_eq!(passed_on("no kind").kind, ErrorKind::InvalidInput);
        let whole = parts(ItemError {
            status: Some(418),
            error_type: Some("t".to_owned()),
            details: Some(Value::from(7)),
            retry_after_ms: Some(1500),
            headers: vec![("x-a".to_owned(), "b".to_owned())],
            trace: Some("line".to_owned()),
            ..error()
        });
        assert_eq!((whole.status, whole.error_type.as_deref()), (Some(418), Some("t")));
        assert_eq!((whole.details, whole.retry_after), (Some(Value::from(7)), Some(Duration::from_millis(1500))));
        assert_eq!(whole.headers, [("x-a".to_owned(), "b".to_owned())]);
        assert_eq!(whole.remote_trace.as_deref(), Some("line"));
    }
}
