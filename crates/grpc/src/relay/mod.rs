//! The evaluation relay: a gateway of Kaggle's evaluations calls functions of this node, as those of its own server.
//!
//! ```text
//! Send {name, args, kwargs} ── read.rs ──► arguments ──► the route of this name ──► output ── write.rs ──► {payload}
//! ```
//!
//! There is one method, `Send`, and a value of any of its types is a `Payload`, whose numbers are in `kind`. The
//! service answers where [`HttpConfig::relay`](callboard_http::HttpConfig::relay) is on.
//!
//! * **Full:** a message is refused by its prefix, and by the number and depth of its values before they are made.
//! * **One at a time:** a function has one call of a relay at a time, since participants keep state. Others wait, with
//!   their permits, until their deadline. A call that its gateway has left ends its turn, though its code may still
//!   run.
//! * **Late:** a gateway gives its first call no deadline: it has the longest time that the node and the route allow.
//! * **Blame:** the gateway reads two texts in the status `UNKNOWN`: one of a function that is missing, one of a
//!   function that failed (`blame.rs`). What the edge refuses has the status of any call.

mod blame;
#[cfg(any(test, feature = "fuzz"))]
mod fuzz;
mod read;
mod turns;
mod write;

use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::Payload;
use callboard_core::edge::{LARGE_BYTES, Route};
use callboard_core::{Deadline, FunctionCall, Timing};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{ApiError, CalledRoute, ContentCoding, SERVER_TIMING, server_timing};

use self::read::SendMessage;
pub(crate) use self::turns::Turns;
use crate::reader::{Message, invalid};
use crate::{GrpcCall, answer, framing};

#[cfg(feature = "fuzz")]
pub use self::fuzz::decode_relay_request;

/// The name of the service.
pub(crate) const SERVICE: &str = "kaggle_evaluation_client.KaggleEvaluationService";

/// The tag of a call by a relay. By it Python packs frames of pandas, and series, as its gateways read them.
const TAG: &str = "callboard-relay";

/// The numbers of the types in a `Payload`.
mod kind {
    pub(super) const STR: u32 = 1;
    pub(super) const BOOL: u32 = 2;
    pub(super) const INT: u32 = 3;
    pub(super) const FLOAT: u32 = 4;
    pub(super) const NONE: u32 = 5;
    pub(super) const LIST: u32 = 6;
    pub(super) const TUPLE: u32 = 7;
    pub(super) const DICT: u32 = 8;
    pub(super) const PANDAS_FRAME: u32 = 9;
    pub(super) const POLARS_FRAME: u32 = 10;
    pub(super) const PANDAS_SERIES: u32 = 11;
    pub(super) const POLARS_SERIES: u32 = 12;
    pub(super) const ARRAY: u32 = 13;
    pub(super) const SCALAR: u32 = 14;
    pub(super) const BYTES_IO: u32 = 15;
    pub(super) const ENUM: u32 = 17;
    pub(super) const DATACLASS: u32 = 18;
    pub(super) const PYDANTIC_MODEL: u32 = 19;
}

/// The libraries and forms of values that only Python reads, with their numbers. The first two are series.
const PACKED: [(u32, &str, &str); 6] = [
    (kind::PANDAS_SERIES, "pandas", "series"),
    (kind::POLARS_SERIES, "polars", "series"),
    (kind::PANDAS_FRAME, "pandas", "parquet"),
    (kind::ENUM, "enum", "model"),
    (kind::DATACLASS, "dataclass", "model"),
    (kind::PYDANTIC_MODEL, "pydantic", "model"),
];

/// The deepest nesting of messages. Readers of protobuf stop there, also those of the gateway.
const MAX_MESSAGES: usize = 100;

impl GrpcCall<'_> {
    /// Answers `Send`.
    pub(crate) async fn send(self) -> Result<Response, ApiError> {
        let Self { protocol, context, head, request, answer_coding: coding, .. } = self;
        let (client, config, arrived_at) = (context.client, context.config, context.start);
        let Message { bytes, account } = self.reader(config.largest_body_bytes()).only().await?;
        let (edge, length) = (client.edge(), bytes.len());
        let message = SendMessage::read(bytes)?;
        let route = blame::find_function(client, &message.name)?;
        let own_limit = config.max_body_bytes_of(route.name());
        if length as u64 > own_limit {
            return Err(ApiError::body_too_large(own_limit).about(route.name()));
        }
        let timeout = request.timeout.unwrap_or_else(|| edge.limits().max_timeout);
        let deadline = Deadline::after(arrived_at, edge.timeout_of(&route, Some(timeout)));
        let parts = (&head.uri, &head.headers, &head.extensions);
        let options = context.call_options(&route, parts, deadline, request)?.with_tag(TAG, "1");
        let admission = edge.admit_arrived(&route, 0, arrived_at, options.session())?;
        let budget = edge.codec_budget(account, deadline);
        budget.charge(options.attribute_bytes())?;

        let limits = config.decode.clone();
        let (counted, own) = (message.clone(), limits.clone());
        let (admission, counted) = budget.run(admission, length, move || counted.count(&own)).await?;
        budget.charge(counted?.bytes.saturating_add(length))?;
        let of = Arc::clone(&route);
        let arguments = move || -> Result<Payload, ApiError> { payload(message.decode(&limits)?, &of) };
        let (admission, payload) = budget.run(admission, length, arguments).await?;
        let payload = payload.map_err(|error| error.about(route.name()))?;

        let _turn = protocol.turns.take(&route, deadline).await?;
        let outcome = edge.submit(admission, payload, options).await;
        let reply = outcome.map_err(|error| blame::of_call(error).about(route.name()))?;
        let cost = reply.payload.size_up_to(LARGE_BYTES);
        let output = reply.payload;
        let written = budget.run_outcome(cost, move || write::response(&output)).await;
        let pieces = written?.map_err(|error| blame::of_output(error).about(route.name()))?;
        let pieces = framing::framed(pieces, coding, config.compress_from_bytes, &budget).await?;
        Ok(answered(pieces, coding, route, &reply.timing))
    }
}

fn answered(pieces: Vec<Bytes>, coding: Option<ContentCoding>, route: Arc<Route>, timing: &Timing) -> Response {
    let mut response = answer::unary(pieces, coding);
    response.headers_mut().insert(SERVER_TIMING, server_timing(timing));
    response.extensions_mut().insert(CalledRoute(route));
    response
}

/// The payload of a call with these arguments. Positional ones get the names that the route knows: a map alone is an
/// argument here, and never all of them.
fn payload(mut call: FunctionCall, route: &Route) -> Result<Payload, ApiError> {
    if let Some(parameters) = route.input().parameters() {
        if call.args.len() > parameters.names.len() {
            let (given, most) = (call.args.len(), parameters.names.len());
            return Err(blame::raised(format!("the function takes {most} arguments, got {given}")));
        }
        for (name, value) in parameters.names.iter().zip(std::mem::take(&mut call.args)) {
            if call.kwargs.insert(name.clone(), value).is_some() {
                return Err(blame::raised(format!("argument `{name}` is given twice")));
            }
        }
    }
    call.into_payload(route).map_err(blame::of_call)
}

/// 3: bytes that are no request of a relay.
fn malformed(message: impl Into<String>) -> ApiError {
    invalid(message.into())
}
