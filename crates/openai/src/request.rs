//! One request to a model, as an outline: its body is read and decoded, then its model is looked up.
//!
//! The body names the model, so it is read before the route is known: its bytes are held on an account of their own,
//! within the largest limit of any route. Then the limit of its own route holds, and its calls take their permits as any
//! others.

use std::sync::Arc;

use callboard_codec::{Account, Format, Map, Payload, Value};
use callboard_core::edge::{Admission, Route};
use callboard_core::{CallOptions, Deadline, Task};
use callboard_http::axum::http::request::Parts;
use callboard_http::protocol::{
    ApiError, CodecBudget, HeldBytes, ProtocolRequest, RequestContext, RequestHead, ResponseCompression, UnroutedForm,
    UnroutedRequest,
};

use crate::convert::{Convert, convert_within};
use crate::error::invalid;
use crate::input::{InputForm, main_fields};
use crate::models;

/// The fields that this crate reads, beside the main fields of the tasks.
const OF_REQUESTS: [&str; 12] = [
    "dimensions",
    "documents",
    "encoding_format",
    "n",
    "response_format",
    "return_documents",
    "stop",
    "stream",
    "stream_format",
    "stream_options",
    "top_n",
    "model",
];

/// The model that a request names.
fn model_of(named: Option<&Value>) -> Result<String, ApiError> {
    match named {
        Some(Value::Str(model)) => Ok(model.clone()),
        Some(other) => Err(invalid(format!("`model` must be a text, not {}", other.kind()))),
        None => Err(invalid("`model` is required: `GET /v1/models` lists the models")),
    }
}

/// What is known of a request when its body was read.
struct ReadBody<'r> {
    parts: &'r Parts,
    head: RequestHead<'r>,
    length: u64,
    account: Arc<HeldBytes>,
    compression: ResponseCompression,
}

/// A request that was read.
pub(crate) struct ModelRequest<'a> {
    pub(crate) context: RequestContext<'a>,
    pub(crate) task: Task,
    pub(crate) route: Arc<Route>,
    /// The name that the client has sent.
    pub(crate) model: String,
    /// The fields that the route or this crate takes, as they were sent.
    pub(crate) fields: Map,
    pub(crate) options: CallOptions,
    pub(crate) deadline: Deadline,
    pub(crate) compression: ResponseCompression,
    /// Pays for the fields and for what is made of them.
    pub(crate) account: Arc<HeldBytes>,
}

impl<'a> ModelRequest<'a> {
    /// Reads a request in OpenAI's form.
    pub(crate) async fn read(
        context: RequestContext<'a>,
        task: Task,
        request: ProtocolRequest<'_>,
    ) -> Result<Self, ApiError> {
        Self::read_with(context, task, request, |fields, _, _| Ok(fields)).await
    }

    /// Reads a request of another API; `convert` runs where the body is decoded.
    pub(crate) async fn read_as(
        context: RequestContext<'a>,
        task: Task,
        request: ProtocolRequest<'_>,
        convert: Convert,
    ) -> Result<Self, ApiError> {
        let convert = move |fields, length, account: &dyn Account| convert_within(fields, length, account, convert);
        Self::read_with(context, task, request, convert).await
    }

    async fn read_with(
        context: RequestContext<'a>,
        task: Task,
        request: ProtocolRequest<'_>,
        convert: impl Fn(Map, usize, &dyn Account) -> Result<Map, ApiError> + Send + 'static,
    ) -> Result<Self, ApiError> {
        let parts = request.head;
        let UnroutedRequest { head, bytes, account, budget, compression } = context.read_unrouted(request).await?;
        let length = bytes.len() as u64;
        let (decode, payer) = (context.config.decode.clone(), Arc::clone(&account));
        let read = move |bytes: &bytes::Bytes| match Value::decode(Format::Json, bytes, &decode)? {
            Value::Map(fields) => convert(fields, bytes.len(), &*payer),
            other => Err(invalid(format!("the body must be an object, not {}", other.kind()))),
        };
        let ((), fields) = budget.read((), bytes, read).await?;
        let model = model_of(fields.get("model"))?;
        let read = ReadBody { parts, head, length, account, compression };
        Self::routed(context, task, model, read, |_| fields)
    }

    /// Reads a form, whose texts become what the type of the route wants.
    pub(crate) async fn read_form(
        context: RequestContext<'a>,
        task: Task,
        request: ProtocolRequest<'_>,
    ) -> Result<Self, ApiError> {
        let parts = request.head;
        let UnroutedForm { head, fields, length, account, compression } = context.read_unrouted_form(request).await?;
        let model = model_of(fields.get("model"))?;
        let read = ReadBody { parts, head, length, account, compression };
        Self::routed(context, task, model, read, |route| {
            let mut fields = fields.without_brackets().fit(route.input());
            // The route may take it as a text.
            if let Some(Value::Str(stream)) = fields.get("stream")
                && let Ok(stream) = stream.to_ascii_lowercase().parse::<bool>()
            {
                fields.insert("stream", stream);
            }
            fields
        })
    }

    fn routed(
        context: RequestContext<'a>,
        task: Task,
        model: String,
        read: ReadBody<'_>,
        fields: impl FnOnce(&Route) -> Map,
    ) -> Result<Self, ApiError> {
        let RequestContext { client, config, start, .. } = context;
        let ReadBody { parts, head, length, account, compression } = read;
        let route = models::find(client, &model, task)?;
        let own_limit = config.max_body_bytes_of(route.name());
        if length > own_limit {
            return Err(ApiError::body_too_large(own_limit).about(route.name()));
        }
        // What the route does not take is not carried along.
        let form = InputForm::of(task, route.input().schema());
        let is_kept = |name: &str| form.takes(name) || OF_REQUESTS.contains(&name) || main_fields(task).contains(&name);
        let fields = fields(&route).into_iter().filter(|(name, _)| is_kept(name)).collect();
        let deadline = Deadline::after(start, client.edge().timeout_of(&route, head.timeout));
        let request = (&parts.uri, &parts.headers, &parts.extensions);
        let options = context.call_options(&route, request, deadline, &head)?;
        Ok(Self { context, task, route, model, fields, options, deadline, compression, account })
    }

    /// Pays for what is made of the request.
    pub(crate) fn budget(&self) -> CodecBudget<'a> {
        self.context.client.edge().codec_budget(Arc::clone(&self.account) as _, self.deadline)
    }

    /// Takes the permit of one call with this input.
    pub(crate) async fn admit(&self, input: Value) -> Result<(Admission, Payload), ApiError> {
        let admission = self.context.client.edge().admit_session(&self.route, 0, self.options.session())?;
        callboard_http::protocol::from_value(&self.budget(), admission, &self.route, input).await
    }

    /// Counts the calls of the request against the limit of the key. The first was counted with the request.
    pub(crate) fn take_calls(&self, calls: usize) -> Result<(), ApiError> {
        match self.context.key_holder {
            Some(holder) => holder.take(calls.saturating_sub(1)).map_err(|over| over.error),
            None => Ok(()),
        }
    }

    /// The whole number in this field, within these bounds.
    pub(crate) fn count(&self, name: &str, bounds: std::ops::RangeInclusive<u64>) -> Result<Option<u64>, ApiError> {
        let value = match self.fields.get(name) {
            None | Some(Value::Null) => return Ok(None),
            Some(value) => value,
        };
        let count = value.as_u64().filter(|count| bounds.contains(count));
        let refused =
            || invalid(format!("`{name}` must be a whole number from {} to {}", bounds.start(), bounds.end()));
        count.map(Some).ok_or_else(refused)
    }

    /// What an error of one of `calls` says of the request: others may have run, and would run again.
    pub(crate) fn error_of(&self, calls: usize, error: ApiError) -> ApiError {
        error.of_one_of(calls, self.context.client, &self.route)
    }

    /// Whether this field is true.
    pub(crate) fn is_set(&self, name: &str) -> Result<bool, ApiError> {
        match self.fields.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(set)) => Ok(*set),
            Some(other) => Err(invalid(format!("`{name}` must be true or false, not {}", other.kind()))),
        }
    }

    /// Takes the required field of this name out of the request.
    pub(crate) fn take(&mut self, name: &str) -> Result<Value, ApiError> {
        self.required(name)?;
        Ok(self.fields.remove(name).unwrap_or_default())
    }

    /// The memory of what a call takes of the fields that all calls of the request have.
    pub(crate) fn shared_bytes(&self, form: &InputForm<'_>) -> usize {
        let is_main = |name: &str| main_fields(self.task).contains(&name);
        let taken = self.fields.iter().filter(|(name, _)| form.takes(name) && !is_main(name));
        taken.map(|(name, value)| name.len().saturating_add(value.resident_bytes())).fold(0, usize::saturating_add)
    }

    /// The required field of this name.
    pub(crate) fn required(&self, name: &str) -> Result<&Value, ApiError> {
        match self.fields.get(name) {
            None | Some(Value::Null) => Err(invalid(format!("`{name}` is required"))),
            Some(value) => Ok(value),
        }
    }
}
