//! Translates between core's types and wire frames: options, outcomes, errors. No other module does this.

use std::time::Duration;

use bytes::Bytes;
use callboard_codec::wire::{Call, Fail, Load, Origin, ResponseHead, Times};
use callboard_codec::{DecodeLimits, Envelope, Format, Value};
use callboard_core::edge::{ErrorParts, RequestFields, Route};
use callboard_core::timeline::SpanId;
use callboard_core::{
    CallError, CallOptions, Deadline, ErrorKind, ErrorReason, Instant, Priority, ResponseFields, SessionKey, StageName,
    Timing,
};

use crate::offload;

/// The name by which all nodes know a node: that in its certificate, `member`; under the development identity, which
/// has none, each process has its own. `None` for a node without name and generation.
pub(crate) fn known_name(member: &str, node: &str, generation: u64) -> Option<String> {
    match (member, generation) {
        ("", 0) => None,
        ("", generation) => Some(format!("{node}@{generation}")),
        (member, _) => Some(member.to_owned()),
    }
}

/// The generation in the [known name](known_name) of a node under the development identity. The name in a certificate
/// has none, even if it reads like one.
pub(crate) fn generation_of(known_name: &str) -> Option<u64> {
    known_name.rsplit_once('@')?.1.parse().ok()
}

/// A header without fields.
#[derive(serde::Serialize)]
pub(crate) struct EmptyHeader {}

/// The longest details of an error. Longer ones are dropped: they belong into an output.
const MAX_DETAILS_BYTES: usize = 1 << 20;

/// The most bytes of an error's texts with which its headers are sent, too.
const MAX_TEXT_BESIDE_HEADERS: usize = 48 << 10;

/// The error of an input that is too large.
pub(crate) fn too_large(message: String) -> CallError {
    let mut parts = ErrorParts::new(ErrorKind::InvalidInput, message);
    parts.reason = Some(ErrorReason::TooLarge);
    parts.status = ErrorReason::TooLarge.http_status();
    parts.into()
}

/// Writes a caller's options into a call's header, with the time that is left now.
pub(crate) fn put_options(call: &mut Call, options: &CallOptions, now: Instant) {
    if let Some(deadline) = options.deadline_from(now) {
        // 0 means no deadline, so a part of a millisecond counts as one.
        call.millis_left = millis(deadline.remaining(now)).max(1);
    }
    call.priority = match options.priority() {
        None => 0,
        Some(Priority::High) => 1,
        Some(Priority::Normal) => 2,
        Some(Priority::Low) => 3,
    };
    call.session = options.session().map_or(0, SessionKey::number);
    call.first_item_millis = options.first_item_timeout().map_or(0, millis);
    call.traceparent = options.traceparent().unwrap_or_default();
    if options.has_origin() {
        call.request_id = options.request_id().unwrap_or_default().to_owned();
        call.origin = origin(options);
    }
}

/// The facts in a caller's options for user code, if there are any. The options have been checked.
fn origin(options: &CallOptions) -> Option<Box<Origin>> {
    if options.caller().is_none() && options.attribute_bytes() == 0 {
        return None;
    }
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    Some(Box::new(Origin {
        caller: text(options.caller()),
        path: text(options.path()),
        method: text(options.method()),
        client: text(options.client_address()),
        headers: owned(options.headers()),
        query: owned(options.query_pairs()),
        tags: owned(options.tags()),
    }))
}

fn owned<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<(String, String)> {
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Adds the facts in a call's header. Of a request to a route only the fields that the route reads; a node that calls
/// stages has chosen them already.
///
/// # Errors
///
/// If there are too many of them.
pub(crate) fn with_origin(
    options: CallOptions,
    origin: Origin,
    called: Option<&Route>,
) -> Result<CallOptions, CallError> {
    let Origin { caller, path, method, client, headers, query, tags } = origin;
    let none = RequestFields::default();
    let fields = called.map(|route| route.request_fields().unwrap_or(&none));
    let headers = headers.into_iter().filter(|(name, _)| fields.is_none_or(|fields| fields.has_header(name)));
    let query = query.into_iter().filter(|(name, _)| fields.is_none_or(|fields| fields.has_query(name)));
    let is_told = fields.is_none_or(|fields| *fields != none);
    let [path, method, client] =
        [path, method, client].map(|fact| Some(fact).filter(|fact| is_told && !fact.is_empty()));
    let caller = Some(caller).filter(|caller| !caller.is_empty());
    let options = caller.into_iter().fold(options, CallOptions::with_caller);
    let options = path.into_iter().fold(options, CallOptions::with_path);
    let options = method.into_iter().fold(options, CallOptions::with_method);
    let options = client.into_iter().fold(options, CallOptions::with_client_address);
    let options = headers.fold(options, |options, (name, value)| options.with_header(name, value));
    let options = query.fold(options, |options, (name, value)| options.with_query(name, value));
    let options = tags.into_iter().fold(options, |options, (name, value)| options.with_tag(name, value));
    options.check().map(|()| options)
}

/// The caller's span, if its trace is recorded. An unreadable `traceparent` is ignored: broken tracing must not break
/// calls.
pub(crate) fn trace_parent(call: &Call) -> Option<SpanId> {
    let (span, flags) = SpanId::parse_traceparent(call.traceparent.as_bytes())?;
    (flags & 1 == 1).then_some(span)
}

/// Reduces a call's remaining time by the age of its header.
pub(crate) fn shorten(call: &mut Call, passed: Duration) {
    if call.millis_left > 0 {
        call.millis_left = call.millis_left.saturating_sub(millis(passed)).max(1);
    }
}

/// The options in a call's header, with times counted from its arrival. An unknown priority means the route's default.
pub(crate) fn options(call: &Call, now: Instant) -> CallOptions {
    let mut options = CallOptions::new();
    if call.millis_left > 0 {
        options = options.with_deadline(Deadline::after(now, Duration::from_millis(call.millis_left)));
    }
    let priority = match call.priority {
        1 => Some(Priority::High),
        2 => Some(Priority::Normal),
        3 => Some(Priority::Low),
        _ => None,
    };
    options = priority.into_iter().fold(options, CallOptions::with_priority);
    if let Some(session) = SessionKey::from_number(call.session) {
        options = options.with_session_key(session);
    }
    // Most calls have neither, so the allocations are avoided.
    if !call.request_id.is_empty() {
        options = options.with_request_id(call.request_id.as_str());
    }
    if !call.traceparent.is_empty() {
        options = options.with_traceparent(call.traceparent.as_str());
    }
    if call.first_item_millis > 0 {
        options = options.with_first_item_timeout(Duration::from_millis(call.first_item_millis));
    }
    options
}

pub(crate) fn times(timing: Timing) -> Times {
    let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    Times { queue: micros(timing.queue), batch: micros(timing.batch), compute: micros(timing.compute) }
}

/// What user code has chosen for an answer.
pub(crate) fn response_head(fields: ResponseFields) -> Box<ResponseHead> {
    Box::new(ResponseHead { status: fields.status().unwrap_or_default(), headers: fields.headers().to_vec() })
}

/// The same; the sender may have any limits.
pub(crate) fn response_fields(head: ResponseHead) -> ResponseFields {
    let fields = ResponseFields::new().with_status(head.status);
    head.headers.into_iter().fold(fields, |fields, (name, value)| fields.with_header(name, value))
}

pub(crate) fn timing(times: Times) -> Timing {
    let [queue, batch, compute] = [times.queue, times.batch, times.compute].map(Duration::from_micros);
    Timing { queue, batch, compute }
}

/// An error as a frame, and its details as the frame's body.
pub(crate) fn fail(error: CallError, load: Load) -> (Fail, Option<Envelope>) {
    let started = error.was_started();
    let parts = error.into_parts();
    let details = parts.details.and_then(|details| details.to_envelope().ok());
    // A header of a frame has a limit, and texts are worth more.
    let texts = parts.message.len() + parts.remote_trace.as_ref().map_or(0, String::len);
    let has_room = texts <= MAX_TEXT_BESIDE_HEADERS;
    let fail = Fail {
        kind: parts.kind.as_str().to_owned(),
        message: parts.message,
        started,
        may_repeat: parts.may_repeat,
        error_type: parts.error_type,
        status: parts.status.or_else(|| parts.reason?.http_status()).unwrap_or(0),
        // 0 means unknown, so "at once" is one millisecond.
        retry_after_millis: parts.retry_after.map_or(0, |after| millis(after).max(1)),
        headers: if has_room { parts.headers } else { Vec::new() },
        remote_trace: parts.remote_trace,
        stage: parts.stage.map(|stage| stage.as_str().to_owned()),
        load,
    };
    (fail, details.filter(|details| details.len() <= MAX_DETAILS_BYTES))
}

/// The error in a peer's frame. An unknown kind becomes `internal`.
pub(crate) fn error(fail: Fail, details: &Bytes) -> CallError {
    let limits = DecodeLimits { max_bytes: MAX_DETAILS_BYTES, ..DecodeLimits::default() };
    // Unreadable details are dropped: the error itself is known.
    let decode = || offload::contain(|| Ok(Value::decode(Format::Envelope, details, &limits)?)).ok();
    let details = if details.is_empty() { None } else { decode() };
    let kind = ErrorKind::from_name(&fail.kind);
    let mut parts = ErrorParts::new(kind.unwrap_or(ErrorKind::Internal), fail.message);
    parts.reason = ErrorReason::from_status(parts.kind, fail.status);
    (parts.started, parts.may_repeat) = (fail.started, fail.may_repeat);
    parts.error_type = fail.error_type;
    parts.status = (fail.status > 0).then_some(fail.status);
    parts.details = details;
    parts.retry_after = (fail.retry_after_millis > 0).then(|| Duration::from_millis(fail.retry_after_millis));
    parts.headers = fail.headers;
    parts.remote_trace = fail.remote_trace;
    parts.stage = fail.stage.as_deref().map(StageName::new);
    parts.into()
}

/// The largest body of a fail frame.
pub(crate) const fn max_details_bytes() -> usize {
    MAX_DETAILS_BYTES
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_as_it_is_written_and_nothing_else_is_read() {
        let read = |traceparent: &str| trace_parent(&Call { traceparent: traceparent.to_owned(), ..Call::default() });
        let span = SpanId { trace: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, span: 0xf0_67aa_0ba9_02b7 };
        assert_eq!(span.traceparent(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        assert_eq!(read(&span.traceparent()), Some(span));
        let none = format!("00-{:032}-{:016}-01", 0, 0);
        for wrong in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-01",
            "00-4BF92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            &none,
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_name_of_a_node_without_a_certificate_has_its_generation() {
        for node in ["", "gpu", "gpu@7", "@"] {
            let name = known_name("", node, 9).expect("it has a generation");
            assert_eq!(generation_of(&name), Some(9), "{name}");
        }
        assert_eq!((known_name("", "", 0), known_name("gpu", "g", 9)), (None, Some("gpu".to_owned())));
        assert_eq!((generation_of("gpu"), generation_of("gpu@"), generation_of("gpu@x")), (None, None, None));
    }

    #[test]
    fn a_call_that_has_waited_has_less_time_and_keeps_a_deadline() {
        let left = |millis_left: u64, passed: u64| {
            let mut call = Call { millis_left, ..Call::default() };
            shorten(&mut call, Duration::from_millis(passed));
            call.millis_left
        };
        assert_eq!([left(100, 30), left(100, 100), left(100, 1_000_000)], [70, 1, 1]);
        assert_eq!(left(0, 30), 0, "no deadline was set");
    }

    #[test]
    fn headers_cross_the_wire_beside_texts_of_a_usual_length() {
        let mut parts = ErrorParts::new(ErrorKind::Failed, "no".to_owned());
        parts.headers = vec![("www-authenticate".to_owned(), "Basic".to_owned())];
        let (sent, _) = fail(parts.clone().into(), Load::default());
        assert_eq!(error(sent, &Bytes::new()).headers(), parts.headers);
        parts.remote_trace = Some("🦀".repeat(8_000));
        parts.message = "🦀".repeat(8_000);
        assert!(fail(parts.into(), Load::default()).0.headers.is_empty());
    }

    #[test]
    fn retry_after_crosses_the_wire_however_short_it_is() {
        for (written, received) in
            [(Some(Duration::from_micros(3)), Some(1)), (Some(Duration::from_millis(20)), Some(20)), (None, None)]
        {
            let mut parts = ErrorParts::new(ErrorKind::Overloaded, "full".to_owned());
            parts.retry_after = written;
            let (fail, _) = fail(parts.into(), Load::default());
            assert_eq!(error(fail, &Bytes::new()).retry_after(), received.map(Duration::from_millis), "{written:?}");
        }
    }
}
