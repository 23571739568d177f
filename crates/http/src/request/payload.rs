//! Decoding and encoding at the expense of the call, off the runtime's threads when there is much of it.
//!
//! Work that takes a millisecond would keep its thread from answering anybody else, but a hand-over to another thread takes longer than
//! most work. How much it is shows only as it is done: a body of a kilobyte may unpack to megabytes. So work begins on the spot with an
//! allowance of [`LARGE_BYTES`] for what it allocates; where that does not suffice it is stopped, and begun again elsewhere
//! ([`LocalClient::offload`]).

use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::{
    Account, DataType, DecodeErrorKind, DecodeLimits, Format, Map, Payload, Value, charged_to, charged_up_to,
};
use callboard_core::{Admission, Deadline, ErrorKind, LocalClient, Route};

use crate::call::functions;
use crate::error::ApiError;
use crate::request::coding::Coding;
use crate::request::form_fields;
use crate::request::multipart::Form;

/// What does not fit its type is told field by field up to this size; beyond it the first has to do.
pub(crate) const EXPLAINED_BYTES: usize = 1024 * 1024;

/// About a millisecond of JSON.
pub(crate) const LARGE_BYTES: usize = 256 * 1024;

/// An answer below this is part of what a connection takes.
const HELD_FROM_BYTES: usize = 4 * 1024;

/// Bytes of an answer that are not sent yet, and the account that pays for them.
struct Held {
    bytes: Bytes,
    _account: Arc<dyn Account>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// At whose expense something is decoded or encoded, and until when.
pub(crate) struct Expense<'a> {
    client: &'a LocalClient,
    account: Arc<dyn Account>,
    deadline: Deadline,
}

impl<'a> Expense<'a> {
    /// Of a call that was let in. What is done when the admission is gone keeps the account.
    pub(crate) fn of(client: &'a LocalClient, admission: &Admission, deadline: Deadline) -> Self {
        Self { client, account: admission.account(), deadline }
    }

    /// Of something that is no call yet.
    pub(crate) fn own(client: &'a LocalClient, account: Arc<dyn Account>, deadline: Deadline) -> Self {
        Self { client, account, deadline }
    }

    /// Charges bytes that are held beside what is decoded and encoded.
    pub(crate) fn charge(&self, bytes: usize) -> Result<(), ApiError> {
        self.account.charge(bytes).map_err(ApiError::from)
    }

    /// What `read` makes of a body. Where nothing shares the body any more, what it was charged is given back: what it
    /// became is charged by itself. That of a short body is not worth its lock, and goes back with the rest.
    async fn read<T: Send + 'static>(
        &self,
        admission: Admission,
        body: Bytes,
        read: impl Fn(&Bytes) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(Admission, T), ApiError> {
        let length = body.len();
        let kept = (length >= HELD_FROM_BYTES).then(|| body.clone());
        let (admission, read) = self.run(admission, length, move || read(&body)).await?;
        if let Some(body) = kept.filter(Bytes::is_unique) {
            drop(body);
            self.account.refund(length);
        }
        Ok((admission, read?))
    }

    /// Charges these bytes in the place of all that was charged so far: the outcome is written, and all else of the
    /// call is gone. Nothing holds the account for the sake of a short answer, which so gives it all back in a moment.
    pub(crate) fn settle(&self, bytes: usize) -> Result<(), ApiError> {
        if bytes < HELD_FROM_BYTES {
            return Ok(());
        }
        self.account.refund_all();
        self.charge(bytes)
    }

    /// Whether an answer of so many bytes may be packed: its packer, a copy, and what it is packed to are charged until the answer is
    /// [settled](Self::settle) again. Where there is no memory for that, it is sent as it is.
    pub(crate) fn may_pack(&self, coding: Coding, bytes: usize) -> bool {
        self.account.charge(bytes.saturating_mul(2).saturating_add(coding.packer_bytes())).is_ok()
    }

    /// The same bytes, for which the account is kept until they are sent.
    pub(crate) fn held(&self, bytes: Bytes) -> Bytes {
        match bytes.len() < HELD_FROM_BYTES {
            true => bytes,
            false => Bytes::from_owner(Held { bytes, _account: Arc::clone(&self.account) }),
        }
    }

    /// Runs `work`, on `bytes` that are known of: on the spot where it turns out to be little, else on a thread that serves nobody
    /// else. That thread holds `owner` until the work returns; what was begun on the spot is begun again there.
    pub(crate) async fn run<O: Send + 'static, T: Send + 'static>(
        &self,
        owner: O,
        bytes: usize,
        work: impl Fn() -> T + Send + 'static,
    ) -> Result<(O, T), ApiError> {
        if bytes < LARGE_BYTES
            && let Some(done) = charged_up_to(LARGE_BYTES, &self.account, &work)
        {
            return Ok((owner, done));
        }
        Box::pin(self.elsewhere(owner, work)).await
    }

    /// Runs `work` on a thread that serves nobody else, which holds `owner` until it returns.
    pub(crate) async fn elsewhere<O: Send + 'static, T: Send + 'static>(
        &self,
        owner: O,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(O, T), ApiError> {
        Ok(self.client.offload(owner, Arc::clone(&self.account), self.deadline, work).await?)
    }

    /// Runs work that can be done only once: by what is known of its size.
    pub(crate) async fn run_once<O: Send + 'static, T: Send + 'static>(
        &self,
        owner: O,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(O, T), ApiError> {
        match bytes < LARGE_BYTES {
            true => Ok((owner, charged_to(&self.account, work))),
            false => Box::pin(self.elsewhere(owner, work)).await,
        }
    }
}

/// The payload that these bytes mean to `route`.
pub(crate) fn decode(
    expense: &Expense<'_>,
    admission: Admission,
    route: &Arc<Route>,
    format: Format,
    bytes: Bytes,
    limits: &DecodeLimits,
) -> impl Future<Output = Result<(Admission, Payload), ApiError>> {
    let (route, limits) = (Arc::clone(route), limits.clone());
    expense.read(admission, bytes, move |bytes| payload(route.input(), format, bytes, &limits))
}

/// Reads a second time what does not fit, to tell of all of it: a price that only a mistake pays.
fn payload(input: &DataType, format: Format, bytes: &Bytes, limits: &DecodeLimits) -> Result<Payload, ApiError> {
    input.decode(format, bytes, limits).map_err(|error| {
        let is_worth_it = error.kind() == DecodeErrorKind::Mismatch && bytes.len() <= EXPLAINED_BYTES;
        match is_worth_it.then(|| Value::decode(format, bytes, limits)) {
            Some(Ok(value)) => ApiError::unfit(error, input, &value),
            _ => error.into(),
        }
    })
}

/// The payload that this value means to a route with this input. `again` makes the value once more, to tell of all in it that
/// does not fit.
pub(crate) fn payload_from(
    input: &DataType,
    value: Value,
    again: impl FnOnce() -> Option<Value>,
) -> Result<Payload, ApiError> {
    input.from_value(value).map_err(|error| {
        let is_misfit = error.kind() == DecodeErrorKind::Mismatch;
        match is_misfit.then(again).flatten().filter(|value| value.resident_bytes() <= EXPLAINED_BYTES) {
            Some(value) => ApiError::unfit(error, input, &value),
            None => error.into(),
        }
    })
}

/// The same for the fields of a form, which cannot be made once more. Its texts and lists are copied for that; arrays and bytes,
/// which are most of a form, are shared.
pub(crate) fn payload_of_form(input: &DataType, value: Value) -> Result<Payload, ApiError> {
    let kept = (value.resident_bytes() <= EXPLAINED_BYTES).then(|| value.clone());
    payload_from(input, value, || kept)
}

/// The payload that arguments in these bytes are to `route`.
pub(crate) fn decode_call(
    expense: &Expense<'_>,
    admission: Admission,
    route: &Arc<Route>,
    format: Format,
    bytes: Bytes,
    limits: &DecodeLimits,
) -> impl Future<Output = Result<(Admission, Payload), ApiError>> {
    let (route, limits) = (Arc::clone(route), limits.clone());
    expense.read(admission, bytes, move |bytes| functions::decode(&route, format, bytes, &limits))
}

/// The payload that `read` makes of the fields of a form, which are what the schema of `route` says they are.
pub(crate) async fn decode_form(
    expense: &Expense<'_>,
    admission: Admission,
    route: &Arc<Route>,
    form: Form,
    limits: &DecodeLimits,
    read: fn(&Arc<Route>, Map) -> Result<Payload, ApiError>,
) -> Result<(Admission, Payload), ApiError> {
    let (route, limits, bytes) = (Arc::clone(route), limits.clone(), form.read_bytes());
    // The texts among them are copied.
    expense.charge(form.value_bytes())?;
    let read = move || read(&route, form_fields::fit(form.decode(&limits)?, route.input().schema()));
    let (admission, payload) = expense.run(admission, bytes, read).await?;
    Ok((admission, payload?))
}

/// The value that these bytes mean, whatever it is for.
pub(crate) fn decode_value(
    expense: &Expense<'_>,
    admission: Admission,
    format: Format,
    bytes: Bytes,
    limits: &DecodeLimits,
) -> impl Future<Output = Result<(Admission, Value), ApiError>> {
    let limits = limits.clone();
    expense.read(admission, bytes, move |bytes| Ok(Value::decode(format, bytes, &limits)?))
}

/// The payload that this text means to `route`.
pub(crate) async fn from_text(
    expense: &Expense<'_>,
    admission: Admission,
    route: &Arc<Route>,
    bytes: Bytes,
) -> Result<(Admission, Payload), ApiError> {
    let (route, length) = (Arc::clone(route), bytes.len());
    let read = move || {
        let text = String::from_utf8(bytes.into());
        let text = text.map_err(|error| ApiError::bad_text(error.utf8_error().valid_up_to()))?;
        payload_of_form(route.input(), Value::Str(text))
    };
    let (admission, payload) = expense.run_once(admission, length, read).await?;
    let payload = payload?;
    // A value is the body itself; a Rust type has a copy of it, which was charged, and the body is gone.
    if !payload.is::<Value>() {
        expense.account.refund(length);
    }
    Ok((admission, payload))
}

/// The payload that this value means to `route`.
pub(crate) async fn from_value(
    expense: &Expense<'_>,
    admission: Admission,
    route: &Arc<Route>,
    value: Value,
) -> Result<(Admission, Payload), ApiError> {
    let (route, bytes) = (Arc::clone(route), value.resident_bytes());
    let read = move || payload_of_form(route.input(), value);
    let (admission, payload) = expense.run_once(admission, bytes, read).await?;
    Ok((admission, payload?))
}

/// The bytes of an answer, packed.
pub(crate) async fn pack(expense: &Expense<'_>, bytes: Bytes, coding: Coding) -> Result<Bytes, ApiError> {
    let length = bytes.len();
    let ((), packed) = expense.run((), length, move || crate::respond::pack::pack(coding, &bytes)).await?;
    packed.map_err(|error| ApiError::of_kind(ErrorKind::Internal, format!("the answer cannot be packed: {error}")))
}
