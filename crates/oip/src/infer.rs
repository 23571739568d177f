//! One inference request over HTTP, as an outline: checks come before the body is read.

use std::sync::Arc;

use bytes::Bytes;
use callboard_core::edge::{Admission, Route};
use callboard_core::{CallOptions, Deadline};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{
    ApiError, BodyLimits, CodecBudget, IncomingBody, PendingAdmission, ProtocolRequest, RequestContext, RequestHead,
    ResponseCompression, SERVER_TIMING, announced_length, insert_cache_status, server_timing,
};

use super::error::Refusal;
use super::model::Model;
use super::request::{BodyLayout, InferRequest};
use super::response::InferResponse;
use super::run::{ModelRun, Ran};

#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelCall<'a> {
    pub(crate) context: RequestContext<'a>,
    pub(crate) route: &'a Arc<Route>,
    pub(crate) model: &'a Arc<Model>,
}

impl<'a> ModelCall<'a> {
    /// What runs its items.
    fn to_run(self) -> ModelRun<'a> {
        let Self { context: RequestContext { client, config, .. }, route, model } = self;
        ModelRun { client, limits: &config.decode, route, model }
    }
}

/// Answers `POST …/infer`.
pub(crate) async fn infer(call: ModelCall<'_>, request: ProtocolRequest<'_>) -> Result<Response, ApiError> {
    if call.route.streams() {
        return Err(
            Refusal::new(format!("model '{}' answers with a stream: use 'generate_stream'", call.model.name)).into()
        );
    }
    let layout = BodyLayout::from_headers(&request.head.headers)?;
    let AdmittedBody { bytes, admission, budget, options, compression, .. } = read_body(call, layout, request).await?;
    let (admission, request) = parse(call, &budget, admission, layout, bytes).await?;
    let InferRequest { id, parameters, inputs, outputs: requested, rows } = request;
    // The first call was counted with the request.
    if let Some(holder) = call.context.key_holder {
        holder.take(rows.saturating_sub(1)).map_err(|over| over.error)?;
    }
    let options = parameters.apply(options, &admission);

    let Ran { outputs, timing, cache_use } = call.to_run().run(&budget, admission, &options, inputs, rows).await?;
    call.model.inferred();

    let is_binary = requested.iter().any(|requested| requested.is_binary);
    let model = Arc::clone(call.model);
    // Shared bytes cost nothing; text and ranking do.
    let worked_on = requested.iter().filter(|requested| !requested.is_binary || requested.classes.is_some());
    let worked_on: usize = worked_on.map(|requested| outputs[requested.index].data.len()).sum();
    // Numbers are longer as text, at most by this factor.
    budget.charge_outcome(worked_on.saturating_mul(JSON_PER_BYTE))?;
    let write = move || InferResponse::try_new(&model, id.as_deref(), &outputs, &requested);
    let written = budget.run_outcome(worked_on, write).await?;
    let mut response = written?.into_response(is_binary, &compression, &budget).await?;
    response.headers_mut().insert(SERVER_TIMING, server_timing(&timing));
    insert_cache_status(response.headers_mut(), cache_use);
    Ok(response)
}

/// A body that was admitted and read.
pub(crate) struct AdmittedBody<'a> {
    pub(crate) bytes: Bytes,
    pub(crate) admission: Admission,
    /// Pays for decoding and encoding.
    pub(crate) budget: CodecBudget<'a>,
    pub(crate) options: CallOptions,
    pub(crate) deadline: Deadline,
    /// How the response may be compressed.
    pub(crate) compression: ResponseCompression,
}

/// Admits a request and reads its body.
pub(crate) async fn read_body<'a>(
    call: ModelCall<'a>,
    layout: BodyLayout,
    request: ProtocolRequest<'_>,
) -> Result<AdmittedBody<'a>, ApiError> {
    let RequestContext { client, config, start, .. } = call.context;
    let ProtocolRequest { head: parts, body } = request;
    let head = RequestHead::read(&parts.headers)?;
    let compression = ResponseCompression::new(head.accept_encoding.as_deref(), config);
    let max_bytes = config.max_body_bytes_of(call.route.name());
    let announced = announced_length(&*body, max_bytes)?;
    // The length of a decompressed body is not announced.
    if let Some(bytes) = announced.filter(|_| head.coding.is_none()) {
        layout.check(bytes)?;
    }
    let coding = head.coding;
    let mut pending = PendingAdmission::new(client, call.route, start, head.session);
    let deadline = pending.deadline(head.timeout);
    let read = (&parts.uri, &parts.headers, &parts.extensions);
    let options = call.context.call_options(call.route, read, deadline, &head)?;
    let limits = BodyLimits { max_bytes, pace: config.body_pace(deadline) };
    let bytes = {
        let mut body = IncomingBody::new(body, announced, &mut pending, limits)?.decoded(coding);
        body.collect_aligned_at(layout.arrays_at()).await?
    };
    let admission = pending.into_admission()?;
    let budget = client.edge().codec_budget(admission.account(), deadline);
    budget.charge(options.attribute_bytes())?;
    Ok(AdmittedBody { bytes, admission, budget, options, deadline, compression })
}

/// Parses JSON and single elements, on another thread if they are large. Numbers are shared.
async fn parse(
    call: ModelCall<'_>,
    budget: &CodecBudget<'_>,
    admission: Admission,
    layout: BodyLayout,
    bytes: Bytes,
) -> Result<(Admission, InferRequest), ApiError> {
    let looked_at = match layout {
        _ if call.model.takes_elements() => bytes.len(),
        BodyLayout::Json => bytes.len(),
        BodyLayout::Binary(length) => length,
        BodyLayout::Raw => 0,
    };
    let model = Arc::clone(call.model);
    let limits = call.context.config.decode.clone();
    // Each byte of JSON may be an input with a name, a shape and parameters; each element has at most sixteen bytes.
    budget.charge(looked_at.saturating_mul(HEAD_PER_BYTE))?;
    let read = move || InferRequest::read(&model, layout, &bytes, &limits);
    let (admission, request) = budget.run(admission, looked_at, read).await?;
    Ok((admission, request?))
}

/// The most memory per byte of JSON: `{},` is an input of some 200 bytes, `0,` an element of eight.
const HEAD_PER_BYTE: usize = 8;

/// The most text per byte of a tensor: `-128,`.
pub(crate) const JSON_PER_BYTE: usize = 5;
