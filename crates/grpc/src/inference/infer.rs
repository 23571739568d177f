//! `ModelInfer`: one request to a model, as an outline.
//!
//! The message names the model, so it is read before the route is known: its bytes are held on an account of their own,
//! within the largest limit of any route. Then the limit of its own route holds, and its calls take their permits as any
//! others.

use std::sync::Arc;

use bytes::Bytes;
use callboard_core::edge::{Admission, HeldBytes, Route};
use callboard_core::{CallOptions, Deadline, Instant, LocalClient, Timing};
use callboard_http::HttpConfig;
use callboard_http::protocol::{ApiError, CallOrigin, CodecBudget, ContentCoding, RequestHead, RequestParts};
use callboard_oip::InferenceProtocol;
use callboard_oip::parts::{Array, InferRequest, Model, ModelRun, Ran};

use super::models::version;
use super::request::{ReadRequest, RequestMessage};
use super::response::{self, AnswerForm, AnswerHead};
use crate::framing::{framed, unimplemented};

/// The request of a call, and what makes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller<'a> {
    pub(crate) client: &'a LocalClient,
    pub(crate) config: &'a HttpConfig,
    pub(crate) inference: &'a InferenceProtocol,
    pub(crate) origin: CallOrigin<'a>,
    pub(crate) request: RequestParts<'a>,
    pub(crate) head: &'a RequestHead<'a>,
    /// The coding of the answers, if they are long.
    pub(crate) coding: Option<ContentCoding>,
}

/// A message whose model is known.
#[derive(Debug)]
pub(crate) struct ModelMessage {
    pub(crate) message: RequestMessage,
    pub(crate) route: Arc<Route>,
    pub(crate) model: Arc<Model>,
}

/// A framed answer, with the times of its call.
pub(crate) struct InferAnswer {
    pub(crate) pieces: Vec<Bytes>,
    pub(crate) timing: Timing,
}

/// A request whose call can be made.
pub(crate) struct Admitted<'a> {
    pub(crate) budget: CodecBudget<'a>,
    pub(crate) admission: Admission,
    pub(crate) read: ReadRequest,
    pub(crate) options: CallOptions,
    pub(crate) deadline: Deadline,
}

impl<'a> Caller<'a> {
    /// Finds the model of a message.
    pub(crate) fn model_of(&self, bytes: Bytes) -> Result<ModelMessage, ApiError> {
        let length = bytes.len() as u64;
        let message = RequestMessage::read(bytes)?;
        let (route, model) = self.inference.model(self.client, &message.model, version(&message.version)?)?;
        let own_limit = self.config.max_body_bytes_of(route.name());
        if length > own_limit {
            return Err(ApiError::body_too_large(own_limit).about(route.name()));
        }
        Ok(ModelMessage { message, route, model })
    }

    /// Answers one request to a model that does not stream.
    pub(crate) async fn infer(
        &self,
        of: &ModelMessage,
        account: &Arc<HeldBytes>,
        arrived_at: Instant,
        form: AnswerForm,
    ) -> Result<InferAnswer, ApiError> {
        if of.route.streams() {
            let name = of.model.name();
            return Err(unimplemented(format!("model '{name}' answers with a stream: use ModelStreamInfer")));
        }
        let Admitted { budget, admission, read, options, .. } = self.admit(of, account, arrived_at).await?;
        let ReadRequest { request: InferRequest { id, inputs, outputs: requested, rows, .. }, is_typed } = read;
        let run = self.run_of(of);
        let Ran { outputs, timing, .. } = run.run(&budget, admission, &options, inputs, rows).await?;
        of.model.inferred();
        let answer = AnswerHead { id, requested, is_typed, form };
        Ok(InferAnswer { pieces: self.written(of, &budget, &answer, outputs).await?, timing })
    }

    pub(crate) fn run_of<'b>(&'b self, of: &'b ModelMessage) -> ModelRun<'b> {
        ModelRun { client: self.client, limits: &self.config.decode, route: &of.route, model: &of.model }
    }

    /// Takes the permit of a request and reads its arrays.
    pub(crate) async fn admit(
        &self,
        of: &ModelMessage,
        account: &Arc<HeldBytes>,
        arrived_at: Instant,
    ) -> Result<Admitted<'a>, ApiError> {
        let edge = self.client.edge();
        let deadline = Deadline::after(arrived_at, edge.timeout_of(&of.route, self.head.timeout));
        let options = self.origin.call_options(&of.route, self.request, deadline, self.head)?;
        let admission = edge.admit_arrived(&of.route, 0, arrived_at, options.session())?;
        let budget = edge.codec_budget(Arc::clone(account) as _, deadline);
        budget.charge(options.attribute_bytes())?;
        let (admission, read) = self.arrays(of, &budget, admission).await?;
        // The first call was counted with the request.
        if let Some(holder) = self.origin.key_holder {
            holder.take(read.request.rows.saturating_sub(1)).map_err(|over| over.error)?;
        }
        let options = read.request.parameters.apply(options, &admission);
        Ok(Admitted { budget, admission, read, options, deadline })
    }

    /// An answer, framed.
    pub(crate) async fn written(
        &self,
        of: &ModelMessage,
        budget: &CodecBudget<'_>,
        answer: &AnswerHead,
        outputs: Vec<Array>,
    ) -> Result<Vec<Bytes>, ApiError> {
        let cost = response::cost(&outputs, &answer.requested, answer.is_typed);
        budget.charge_outcome(cost)?;
        let (model, answer) = (Arc::clone(&of.model), answer.clone());
        let pieces = budget.run_outcome(cost, move || response::pieces(&model, &answer, &outputs)).await??;
        framed(pieces, self.coding, self.config.compress_from_bytes, budget).await
    }

    /// Reads the arrays of a message, on another thread if that is much work. Raw numbers are shared.
    async fn arrays<O: Send + 'static>(
        &self,
        of: &ModelMessage,
        budget: &CodecBudget<'_>,
        owner: O,
    ) -> Result<(O, ReadRequest), ApiError> {
        let bytes = of.message.bytes();
        let looked_at = if of.model.takes_elements() { bytes } else { of.message.head_bytes() };
        // A byte may be a whole number of eight.
        if !of.message.is_raw() {
            budget.charge(bytes.saturating_mul(TYPED_PER_BYTE))?;
        }
        let (message, model, limits) = (of.message.clone(), Arc::clone(&of.model), self.config.decode.clone());
        let (owner, read) = budget.run(owner, looked_at, move || message.arrays(&model, &limits)).await?;
        Ok((owner, read?))
    }
}

/// The most memory for a byte of typed contents: `00` is an element of INT64.
const TYPED_PER_BYTE: usize = 8;
