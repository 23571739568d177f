//! From a body to the arrays of a model: JSON, followed by the bytes of binary inputs. Pure.
//!
//! No length in the body is trusted: the parts have to account for every byte, and the shape of each array for its
//! bytes. Nothing is allocated for an announced length. Bytes are shared with the body.

use std::borrow::Cow;

use bytes::Bytes;
use callboard_codec::DecodeLimits;
use callboard_http::axum::http::HeaderMap;

use super::array::{self, Array, push_element};
use super::classes;
use super::data;
use super::datatype::Datatype;
use super::error::{Refusal, shown};
use super::head::{InferHead, InputJson};
use super::model::Model;
use super::parameters::Parameters;
use super::signature::Field;

/// The length of the JSON at the front of a body, in requests and responses.
pub(crate) const INFERENCE_HEADER_CONTENT_LENGTH: &str = "inference-header-content-length";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyLayout {
    /// JSON alone.
    Json,
    /// This many bytes of JSON, then arrays.
    Binary(usize),
    /// The bytes of the one array alone.
    Raw,
}

impl BodyLayout {
    pub(crate) fn from_headers(headers: &HeaderMap) -> Result<Self, Refusal> {
        let mut lines = headers.get_all(INFERENCE_HEADER_CONTENT_LENGTH).iter();
        let wrong = || Refusal::new("header 'Inference-Header-Content-Length' must be one whole number of bytes");
        let Some(line) = lines.next() else { return Ok(Self::Json) };
        let digits =
            line.to_str().ok().filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
        let length: usize = digits.and_then(|digits| digits.parse().ok()).ok_or_else(wrong)?;
        match lines.next() {
            Some(_) => Err(wrong()),
            None if length == 0 => Ok(Self::Raw),
            None => Ok(Self::Binary(length)),
        }
    }

    /// The offset of the first array.
    pub(crate) fn arrays_at(self) -> usize {
        match self {
            Self::Json | Self::Raw => 0,
            Self::Binary(length) => length,
        }
    }

    /// Refuses JSON that is longer than the body.
    pub(crate) fn check(self, body_bytes: u64) -> Result<(), Refusal> {
        match self {
            Self::Binary(length) if length as u64 > body_bytes => Err(Refusal::new(format!(
                "unexpected size for request JSON, expecting {} more bytes",
                length as u64 - body_bytes
            ))),
            _ => Ok(()),
        }
    }
}

/// A parsed request.
#[derive(Debug)]
pub struct InferRequest {
    /// The client's own name for it.
    pub id: Option<String>,
    /// Its parameters.
    pub parameters: Parameters,
    /// One per input of the model; `None` if it was not sent.
    pub inputs: Vec<Option<Array>>,
    /// The outputs of its answer, in their order.
    pub outputs: Vec<RequestedOutput>,
    /// The number of items: the first axis of all arrays, if the model has one.
    pub rows: usize,
}

/// An output that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedOutput {
    /// The index of the model's output.
    pub index: usize,
    /// Over HTTP, whether its elements follow the JSON.
    pub is_binary: bool,
    /// The number of best classes, instead of the array.
    pub classes: Option<usize>,
}

impl RequestedOutput {
    /// The array that answers it: the output of the model, shared, or its best classes.
    ///
    /// # Errors
    ///
    /// The output has no classes.
    pub fn array(&self, model: &Model, outputs: &[Array]) -> Result<Array, Refusal> {
        let array = &outputs[self.index];
        match self.classes {
            None => Ok(array.clone()),
            Some(classes) => classes::classify(model.output_name(self.index), array, classes, model.is_batched()),
        }
    }
}

/// The inputs of a request, as a transport reads them one by one.
#[derive(Debug)]
pub struct InputReader<'m> {
    model: &'m Model,
    inputs: Vec<Option<Array>>,
    max_elements: usize,
}

/// An input whose head was checked, and whose elements are read next.
#[derive(Clone, Copy, Debug)]
pub struct InputSlot<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of its elements.
    pub datatype: Datatype,
    /// Their number, by its shape. At most `max_elements` of `BYTES`; numbers may be announced without a bound.
    pub count: usize,
}

impl<'m> InputReader<'m> {
    /// No inputs yet. An input of `BYTES` has at most `max_elements`.
    #[must_use]
    pub fn new(model: &'m Model, max_elements: usize) -> Self {
        Self { model, inputs: vec![None; model.inputs.fields.len()], max_elements }
    }

    /// Takes an input. `data` gives its packed elements.
    ///
    /// # Errors
    ///
    /// The model has no such input, or the array does not fit it.
    pub fn push(
        &mut self,
        name: &str,
        datatype: &str,
        shape: Vec<usize>,
        data: impl FnOnce(InputSlot<'_>) -> Result<Bytes, Refusal>,
    ) -> Result<(), Refusal> {
        let Self { model, inputs, max_elements } = self;
        let (index, field) =
            model.inputs.field(name).ok_or_else(|| Refusal::unknown_input(name, &model.name, &model.inputs.names()))?;
        if inputs[index].is_some() {
            return Err(Refusal::new(format!("input '{}' is given twice", field.name)));
        }
        let datatype = datatype_of(model, field, datatype)?;
        let shape = without_axis_of_a_scalar(model, field, shape);
        check_shape(model, field, &shape)?;
        let count = array::count(&field.name, &shape)?;
        if datatype == Datatype::Bytes && count > *max_elements {
            return Err(Refusal::too_many_elements(&field.name, count, *max_elements));
        }
        let data = data(InputSlot { name: &field.name, datatype, count })?;
        inputs[index] = Some(Array::try_new(&field.name, datatype, shape, data, *max_elements)?);
        Ok(())
    }

    /// The request with these inputs. Without `outputs` it asks for all of them.
    ///
    /// # Errors
    ///
    /// An input is missing, an output is unknown, or a parameter is invalid.
    pub fn finish<N: AsRef<str>>(
        self,
        id: Option<String>,
        parameters: Parameters,
        outputs: impl IntoIterator<Item = (N, Parameters)>,
    ) -> Result<InferRequest, Refusal> {
        let Self { model, inputs, .. } = self;
        check_all_there(model, &inputs)?;
        let parameters = parameters.checked()?;
        let mut requested: Vec<RequestedOutput> = Vec::new();
        for (name, own) in outputs {
            let next = requested_output(model, &parameters, name.as_ref(), own)?;
            if requested.iter().any(|other| other.index == next.index) {
                return Err(Refusal::new(format!("output '{}' is requested twice", shown(name.as_ref()))));
            }
            requested.push(next);
        }
        if requested.is_empty() {
            requested = all_outputs(model, parameters.binary_data_output.unwrap_or(false));
        }
        let rows = rows_of(model, &inputs)?;
        let id = id.filter(|id| !id.is_empty());
        Ok(InferRequest { id, parameters, inputs, outputs: requested, rows })
    }
}

fn datatype_of(model: &Model, field: &Field, datatype: &str) -> Result<Datatype, Refusal> {
    let parsed = Datatype::parse(datatype).filter(|datatype| *datatype == field.datatype);
    parsed.ok_or_else(|| {
        Refusal::new(format!(
            "inference input '{}' data-type is '{}', but model '{}' expects '{}'",
            field.name,
            shown(datatype),
            model.name,
            field.datatype.name()
        ))
    })
}

impl InferRequest {
    pub(crate) fn read(
        model: &Model,
        layout: BodyLayout,
        body: &Bytes,
        limits: &DecodeLimits,
    ) -> Result<Self, Refusal> {
        layout.check(body.len() as u64)?;
        match layout {
            BodyLayout::Json => Self::from_parts(model, body, Bytes::new(), limits),
            BodyLayout::Binary(length) => Self::from_parts(model, &body.slice(..length), body.slice(length..), limits),
            BodyLayout::Raw => Self::from_raw(model, body),
        }
    }

    fn from_parts(model: &Model, json: &Bytes, mut binary: Bytes, limits: &DecodeLimits) -> Result<Self, Refusal> {
        let head = InferHead::parse(json)?;
        let mut inputs = InputReader::new(model, limits.max_elements);
        for input in &head.inputs.0 {
            let shape = input.shape.0.iter().map(|axis| axis.0).collect();
            let data = |slot: InputSlot<'_>| read_data(model, slot, input, &mut binary);
            inputs.push(&input.name, &input.datatype, shape, data)?;
        }
        if !binary.is_empty() {
            return Err(Refusal::new(format!(
                "unexpected additional input data for model '{}': {} bytes after its inputs",
                model.name,
                binary.len()
            )));
        }
        let outputs = head.outputs.map(|outputs| outputs.0).unwrap_or_default();
        let outputs = outputs.into_iter().map(|output| (output.name, output.parameters));
        inputs.finish(head.id.map(Cow::into_owned), head.parameters, outputs)
    }

    /// The body is the only input, as one item. Its shape has to follow from its size and the model.
    fn from_raw(model: &Model, body: &Bytes) -> Result<Self, Refusal> {
        let [field] = &model.inputs.fields[..] else {
            let inputs = model.inputs.fields.len();
            return Err(Refusal::new(format!(
                "a raw binary request needs a model with one input, but '{}' has {inputs}",
                model.name
            )));
        };
        let (shape, data) = match field.datatype.size_bytes() {
            Some(size) => (raw_shape(field, size, body.len())?, body.clone()),
            None => {
                let mut data = bytes::BytesMut::with_capacity(body.len() + array::LENGTH_BYTES);
                push_element(&mut data, body);
                (vec![1; field.shape.as_ref().map_or(1, Vec::len)], data.freeze())
            }
        };
        let shape = if model.is_batched() { std::iter::once(1).chain(shape).collect() } else { shape };
        let array = Array::try_new(&field.name, field.datatype, shape, data, 1)?;
        check_shape(model, field, &array.shape)?;
        let outputs = all_outputs(model, true);
        Ok(Self { id: None, parameters: Parameters::default(), inputs: vec![Some(array)], outputs, rows: 1 })
    }
}

/// The most items of one request. Each takes a queue entry: this is a quarter of a queue's default.
pub(crate) const MAX_ROWS: usize = 256;

/// The number of items, from the first axis of all inputs.
fn rows_of(model: &Model, inputs: &[Option<Array>]) -> Result<usize, Refusal> {
    if !model.is_batched() {
        return Ok(1);
    }
    let mut lengths = inputs.iter().flatten().filter_map(|array| array.shape.first().copied());
    let rows = lengths.next().unwrap_or(1);
    if lengths.any(|other| other != rows) {
        return Err(Refusal::new(format!("inputs of model '{}' differ in their first axis, the batch", model.name)));
    }
    match rows {
        0 => Err(Refusal::new("the first axis, the batch, is empty")),
        rows if rows > MAX_ROWS => {
            Err(Refusal::new(format!("inference request batch-size must be <= {MAX_ROWS} for '{}'", model.name)))
        }
        rows => Ok(rows),
    }
}

/// The packed elements of an input, from the JSON or from the bytes after it.
fn read_data(model: &Model, slot: InputSlot<'_>, input: &InputJson<'_>, binary: &mut Bytes) -> Result<Bytes, Refusal> {
    let InputSlot { name, datatype, count } = slot;
    let parameters = input.parameters.clone().checked()?;
    match (parameters.binary_data_size, input.data) {
        (Some(_), Some(_)) => Err(Refusal::new(format!("input '{name}' has both 'data' and 'binary_data_size'"))),
        (Some(size), None) if size > binary.len() => {
            let missing = size - binary.len();
            Err(Refusal::new(format!(
                "unexpected size for input '{name}', expecting {missing} additional bytes for model '{}'",
                model.name
            )))
        }
        (Some(size), None) => Ok(binary.split_to(size)),
        (None, Some(raw)) => {
            let data = data::read(name, datatype, count, raw)?;
            match datatype {
                Datatype::Bytes if parameters.is_base64 => array::from_base64(name, &data),
                _ => Ok(data),
            }
        }
        (None, None) => Err(Refusal::new(format!(
            "input '{name}' has no data: must specify valid 'Infer-Header-Content-Length' in request header and \
             'binary_data_size' when passing inputs in binary data format"
        ))),
    }
}

fn check_all_there(model: &Model, inputs: &[Option<Array>]) -> Result<(), Refusal> {
    let missing = model.inputs.fields.iter().zip(inputs).find(|(field, array)| field.is_required && array.is_none());
    match missing {
        None => Ok(()),
        Some((field, _)) => Err(Refusal::new(format!(
            "expected {} inputs but got {} inputs for model '{}': input '{}' is missing",
            model.inputs.fields.iter().filter(|field| field.is_required).count(),
            inputs.iter().flatten().count(),
            model.name,
            field.name
        ))),
    }
}

/// A scalar has no axes; clients that cannot send such an array send `[1]`.
fn without_axis_of_a_scalar(model: &Model, field: &Field, mut shape: Vec<usize>) -> Vec<usize> {
    let axes = usize::from(model.is_batched());
    if field.is_scalar() && shape.len() == axes + 1 && shape[axes] == 1 {
        shape.pop();
    }
    shape
}

fn check_shape(model: &Model, field: &Field, shape: &[usize]) -> Result<(), Refusal> {
    let item = match (model.is_batched(), shape.split_first()) {
        (true, Some((_, item))) => Some(item),
        (true, None) => None,
        (false, _) => Some(shape),
    };
    if item.is_some_and(|item| field.fits(item)) {
        return Ok(());
    }
    Err(Refusal::new(format!(
        "unexpected shape for input '{}' for model '{}'. Expected {:?}, got {shape:?}",
        field.name,
        model.name,
        full_shape(model.is_batched(), field)
    )))
}

/// A shape as the protocol writes it, with -1 for any length and for the batch.
pub(crate) fn full_shape(is_batched: bool, field: &Field) -> Vec<i64> {
    let axes = field.shape.as_ref().map(|axes| axes.iter().map(|axis| axis.map_or(-1, |length| length as i64)));
    let batch = is_batched.then_some(-1);
    match axes {
        Some(axes) => batch.into_iter().chain(axes).collect(),
        // The protocol cannot express any number of axes.
        None => batch.into_iter().chain([-1]).collect(),
    }
}

/// The shape of raw bytes. One axis may be open.
fn raw_shape(field: &Field, size: usize, bytes: usize) -> Result<Vec<usize>, Refusal> {
    let unclear = || {
        let message = format!("the shape of input '{}' does not follow from {bytes} raw bytes", field.name);
        Refusal::new(message)
    };
    let axes = field.shape.as_deref().unwrap_or(&[None]);
    let fixed = axes.iter().flatten().try_fold(size, |product, axis| product.checked_mul(*axis)).ok_or_else(unclear)?;
    match axes.iter().filter(|axis| axis.is_none()).count() {
        0 => Ok(axes.iter().flatten().copied().collect()),
        1 if fixed > 0 && bytes.is_multiple_of(fixed) => {
            Ok(axes.iter().map(|axis| axis.unwrap_or(bytes / fixed)).collect())
        }
        _ => Err(unclear()),
    }
}

fn all_outputs(model: &Model, is_binary: bool) -> Vec<RequestedOutput> {
    (0..model.outputs.fields.len()).map(|index| RequestedOutput { index, is_binary, classes: None }).collect()
}

fn requested_output(
    model: &Model,
    request: &Parameters,
    name: &str,
    own: Parameters,
) -> Result<RequestedOutput, Refusal> {
    let own = own.checked()?;
    let found = model.outputs.field(name);
    let (index, field) = found.ok_or_else(|| Refusal::unknown_output(name, &model.name, &model.outputs.names()))?;
    if own.classification.is_some() && field.datatype == Datatype::Bytes {
        return Err(Refusal::new(format!("output '{}' is of BYTES and has no classes", field.name)));
    }
    let is_binary = own.binary_data.or(request.binary_data_output).unwrap_or(false);
    Ok(RequestedOutput { index, is_binary, classes: own.classification })
}
