//! Decoding and encoding at the expense of the call, off the runtime's threads when there is much of it.
//!
//! Work that takes a millisecond would keep its thread from answering anybody else, but a hand-over to another thread takes longer than
//! most work. How much it is shows only as it is done: a body of a kilobyte may unpack to megabytes. So work begins on the spot with an
//! allowance of [`LARGE_BYTES`] for what it allocates; where that does not suffice it is stopped, and begun again elsewhere
//! ([`LocalClient::offload`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use callboard_codec::{
    Account, ChargeError, DataType, DecodeErrorKind, DecodeLimits, EncodeError, Format, Map, Payload, Value, charged_to,
};
use callboard_core::{Admission, Deadline, ErrorKind, LocalClient, Route};

use crate::coding::{self, Coding};
use crate::error::ApiError;
use crate::functions;
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

    /// Gives back what a body was charged that nothing shares any more: it was read, and what it became is charged by itself.
    fn release(&self, body: Bytes) {
        if body.is_unique() {
            let bytes = body.len();
            drop(body);
            self.account.refund(bytes);
        }
    }

    /// Charges these bytes in the place of all that was charged so far: the outcome is written, and all else of the call is gone.
    pub(crate) fn settle(&self, bytes: usize) -> Result<(), ApiError> {
        self.account.refund_all();
        self.charge(if bytes < HELD_FROM_BYTES { 0 } else { bytes })
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
        if bytes < LARGE_BYTES {
            let spot = Arc::new(OnTheSpot::new(&self.account));
            let account: Arc<dyn Account> = spot.clone();
            let done = charged_to(&account, &work);
            if !spot.is_exceeded() {
                return Ok((owner, done));
            }
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

/// The call's account with an allowance for one piece of work on a runtime thread.
struct OnTheSpot {
    account: Arc<dyn Account>,
    left: AtomicUsize,
    exceeded: AtomicBool,
}

impl OnTheSpot {
    fn new(account: &Arc<dyn Account>) -> Self {
        Self { account: Arc::clone(account), left: AtomicUsize::new(LARGE_BYTES), exceeded: AtomicBool::new(false) }
    }

    fn is_exceeded(&self) -> bool {
        self.exceeded.load(Ordering::Relaxed)
    }
}

impl Account for OnTheSpot {
    fn charge(&self, bytes: usize) -> Result<(), ChargeError> {
        match self.left.load(Ordering::Relaxed).checked_sub(bytes) {
            Some(left) => {
                self.account.charge(bytes)?;
                self.left.store(left, Ordering::Relaxed);
                Ok(())
            }
            None => {
                self.exceeded.store(true, Ordering::Relaxed);
                // Given up here: what was charged so far is not kept.
                Err(ChargeError::Stopped)
            }
        }
    }

    fn refund(&self, bytes: usize) {
        self.account.refund(bytes);
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for OnTheSpot {
    /// Work that was given up has dropped all that it made.
    fn drop(&mut self) {
        if self.is_exceeded() {
            self.account.refund(LARGE_BYTES.saturating_sub(*self.left.get_mut()));
        }
    }
}

/// The payload that these bytes mean to `route`.
pub(crate) async fn decode(
    expense: &Expense<'_>,
    admission: Admission,
    route: &Arc<Route>,
    format: Format,
    bytes: Bytes,
    limits: &DecodeLimits,
) -> Result<(Admission, Payload), ApiError> {
    let (route, limits) = (Arc::clone(route), limits.clone());
    let (length, body) = (bytes.len(), bytes.clone());
    let read = move || payload(route.input(), format, &bytes, &limits);
    let (admission, payload) = expense.run(admission, length, read).await?;
    expense.release(body);
    Ok((admission, payload?))
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
pub(crate) async fn decode_call(
    expense: &Expense<'_>,
    admission: Admission,
    route: &Arc<Route>,
    format: Format,
    bytes: Bytes,
    limits: &DecodeLimits,
) -> Result<(Admission, Payload), ApiError> {
    let (route, limits) = (Arc::clone(route), limits.clone());
    let (length, body) = (bytes.len(), bytes.clone());
    let read = move || functions::decode(&route, format, &bytes, &limits);
    let (admission, payload) = expense.run(admission, length, read).await?;
    expense.release(body);
    Ok((admission, payload?))
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
    expense.charge(bytes)?;
    let read = move || read(&route, form_fields::fit(form.decode(&limits)?, route.input().schema()));
    let (admission, payload) = expense.run(admission, bytes, read).await?;
    Ok((admission, payload?))
}

/// The value that these bytes mean, whatever it is for.
pub(crate) async fn decode_value(
    expense: &Expense<'_>,
    admission: Admission,
    format: Format,
    bytes: Bytes,
    limits: &DecodeLimits,
) -> Result<(Admission, Value), ApiError> {
    let limits = limits.clone();
    let length = bytes.len();
    let (admission, value) = expense.run(admission, length, move || Value::decode(format, &bytes, &limits)).await?;
    Ok((admission, value?))
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

/// The bytes of an answer. The outer error is the server's, the inner one says why this format does not hold the outcome.
pub(crate) async fn encode(
    expense: &Expense<'_>,
    payload: Payload,
    format: Format,
) -> Result<Result<Bytes, EncodeError>, ApiError> {
    let ((), bytes) = expense.run((), payload.size_up_to(LARGE_BYTES), move || payload.encode(format)).await?;
    Ok(bytes)
}

/// The same bytes, packed.
pub(crate) async fn pack(expense: &Expense<'_>, bytes: Bytes, coding: Coding) -> Result<Bytes, ApiError> {
    let length = bytes.len();
    let ((), packed) = expense.run((), length, move || coding::pack(coding, &bytes)).await?;
    packed.map_err(|error| ApiError::of_kind(ErrorKind::Internal, format!("the answer cannot be packed: {error}")))
}
