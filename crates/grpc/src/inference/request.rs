//! From a `ModelInferRequest` to the arrays of a model. Pure.
//!
//! The message is read field by field, twice: once for its model, and once for its arrays when the model is known.
//! Nothing is kept for a field but an array that the model has. Raw bytes are shared with the message. Numbers of
//! inputs, outputs and axes are bounded.

use bytes::Bytes;
use callboard_codec::{DecodeLimits, MAX_RANK, Value};
use callboard_oip::parts::{InferRequest, InputReader, InputSlot, MAX_TENSORS, Model, Parameters, Refusal, shown};

use super::contents;
use crate::wire::{FieldResult, FieldValue, Fields, MAX_TEXT_BYTES, Malformed, WRONG_TYPE};

/// The fields of the message.
mod field {
    pub(super) const MODEL_NAME: u32 = 1;
    pub(super) const MODEL_VERSION: u32 = 2;
    pub(super) const ID: u32 = 3;
    pub(super) const PARAMETERS: u32 = 4;
    pub(super) const INPUTS: u32 = 5;
    pub(super) const OUTPUTS: u32 = 6;
    pub(super) const RAW: u32 = 7;
}

/// A message whose fields are well-formed, with the name of its model.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestMessage {
    message: Bytes,
    pub(crate) model: String,
    /// Empty for the version that the server chooses.
    pub(crate) version: String,
    pub(crate) id: String,
    parameters: usize,
    inputs: usize,
    outputs: usize,
    raw: usize,
    /// The bytes of its raw contents.
    raw_bytes: usize,
}

/// The most fields of a message, so that finding its model is a short work. Parameters are fields as well.
const MAX_FIELDS: usize = 8192;

/// A request whose arrays were read.
#[derive(Debug)]
pub(crate) struct ReadRequest {
    pub(crate) request: InferRequest,
    /// Whether its inputs came as numbers of their type, and none as raw bytes. Then the answer does so as well.
    pub(crate) is_typed: bool,
}

impl RequestMessage {
    /// Reads the name of the model, and checks the message as far as that goes without the model.
    pub(crate) fn read(message: Bytes) -> Result<Self, Refusal> {
        let mut read = Self { message: message.clone(), ..Self::default() };
        for (index, field) in Fields::new(message).enumerate() {
            let (number, value) = field?;
            if index == MAX_FIELDS {
                return Err(Refusal::new(format!("a request has at most {MAX_FIELDS} arrays and parameters")));
            }
            match number {
                field::MODEL_NAME => read.model = value.short_text()?,
                field::MODEL_VERSION => read.version = value.short_text()?,
                field::ID => read.id = value.short_text()?,
                field::RAW => read.raw_bytes += value.bytes()?.len(),
                field::PARAMETERS | field::INPUTS | field::OUTPUTS => {
                    value.bytes()?;
                }
                _ => {}
            }
            let (what, count) = match number {
                field::INPUTS => ("inputs", &mut read.inputs),
                field::RAW => ("raw_input_contents", &mut read.raw),
                field::OUTPUTS => ("outputs", &mut read.outputs),
                field::PARAMETERS => {
                    read.parameters += 1;
                    continue;
                }
                _ => continue,
            };
            *count += 1;
            if *count > MAX_TENSORS {
                return Err(Refusal::new(format!("a request has at most {MAX_TENSORS} {what}")));
            }
        }
        Ok(read)
    }

    /// The length of the message.
    pub(crate) fn bytes(&self) -> usize {
        self.message.len()
    }

    /// The length without raw contents.
    pub(crate) fn head_bytes(&self) -> usize {
        self.message.len() - self.raw_bytes
    }

    /// Whether its inputs are raw bytes, which are shared.
    pub(crate) fn is_raw(&self) -> bool {
        self.raw > 0
    }

    /// Reads the arrays.
    pub(crate) fn arrays(&self, model: &Model, limits: &DecodeLimits) -> Result<ReadRequest, Refusal> {
        let mut reader = InputReader::new(model, limits.max_elements);
        let mut raw = self.fields(field::RAW, self.raw);
        for input in self.fields(field::INPUTS, self.inputs) {
            let Input { name, datatype, shape, parameters, contents } = Input::read(input)?;
            let data = if self.is_raw() { raw.next() } else { None };
            let read = |slot: InputSlot<'_>| {
                parameters.checked()?;
                self.data(slot, contents, data)
            };
            reader.push(&name, &datatype, lengths(&name, &shape)?, read)?;
        }
        if self.is_raw() && self.raw != self.inputs {
            let (raw, inputs) = (self.raw, self.inputs);
            return Err(Refusal::new(format!("{raw} entries of raw_input_contents for {inputs} inputs")));
        }
        let mut parameters = Parameters::default();
        for entry in self.fields(field::PARAMETERS, self.parameters) {
            take_parameter(&mut parameters, entry)?;
        }
        let mut outputs = Vec::new();
        for output in self.fields(field::OUTPUTS, self.outputs) {
            outputs.push(requested_output(output)?);
        }
        let id = Some(self.id.clone());
        Ok(ReadRequest { request: reader.finish(id, parameters, outputs)?, is_typed: !self.is_raw() })
    }

    /// The packed elements of one input.
    fn data(&self, slot: InputSlot<'_>, contents: Option<Bytes>, raw: Option<Bytes>) -> Result<Bytes, Refusal> {
        match (raw, contents) {
            (Some(_), Some(_)) => Err(Refusal::new(format!(
                "contents field must not be specified when using raw_input_contents for input '{}'",
                slot.name
            ))),
            (Some(raw), None) => Ok(raw),
            (None, _) if self.is_raw() => Err(Refusal::new(format!(
                "input '{}' has no entry of raw_input_contents: {} for {} inputs",
                slot.name, self.raw, self.inputs
            ))),
            (None, contents) => contents::packed(slot, contents.unwrap_or_default()),
        }
    }

    /// The messages of this field, which has as many. Their types were checked. The message is not read beyond them.
    fn fields(&self, wanted: u32, count: usize) -> impl Iterator<Item = Bytes> {
        let of = move |field: FieldResult| match field {
            Ok((number, FieldValue::Bytes(bytes))) if number == wanted => Some(bytes),
            _ => None,
        };
        Fields::new(self.message.clone()).filter_map(of).take(count)
    }
}

/// One `InferInputTensor`.
#[derive(Debug, Default)]
struct Input {
    name: String,
    datatype: String,
    shape: Vec<i64>,
    parameters: Parameters,
    contents: Option<Bytes>,
}

impl Input {
    fn read(message: Bytes) -> Result<Self, Refusal> {
        let mut input = Self::default();
        for field in Fields::new(message) {
            match field? {
                (1, value) => input.name = value.short_text()?,
                (2, value) => input.datatype = value.short_text()?,
                (3, value) => value.varints(|axis| input.push_axis(axis))?,
                (4, value) => take_parameter(&mut input.parameters, value.bytes()?)?,
                (5, value) => input.contents = Some(value.bytes()?),
                _ => {}
            }
        }
        Ok(input)
    }

    fn push_axis(&mut self, axis: u64) -> Result<(), Refusal> {
        if self.shape.len() == MAX_RANK {
            return Err(Refusal::new(format!("input '{}' has more than {MAX_RANK} axes", shown(&self.name))));
        }
        self.shape.push(axis.cast_signed());
        Ok(())
    }
}

fn lengths(name: &str, shape: &[i64]) -> Result<Vec<usize>, Refusal> {
    let shape = shape.iter().map(|axis| usize::try_from(*axis)).collect::<Result<_, _>>();
    shape.map_err(|_| Refusal::new(format!("input '{}' has an axis of less than 0 elements", shown(name))))
}

/// The name of a requested output, with its parameters.
fn requested_output(message: Bytes) -> Result<(String, Parameters), Refusal> {
    let (mut name, mut parameters) = (String::new(), Parameters::default());
    for field in Fields::new(message) {
        match field? {
            (1, value) => name = value.short_text()?,
            (2, value) => take_parameter(&mut parameters, value.bytes()?)?,
            _ => {}
        }
    }
    Ok((name, parameters))
}

/// Takes one entry of a map from names to `InferParameter`.
fn take_parameter(parameters: &mut Parameters, entry: Bytes) -> Result<(), Refusal> {
    let (mut key, mut value) = (String::new(), Value::Null);
    for field in short_message(entry) {
        match field? {
            (1, name) => key = name.short_text()?,
            (2, choice) => value = parameter(choice.bytes()?)?,
            _ => {}
        }
    }
    parameters.take(&key, &value);
    Ok(())
}

/// The fields of a message that has one or two.
fn short_message(message: Bytes) -> impl Iterator<Item = FieldResult> {
    let refused = |index| (index == 16).then_some(Err(Malformed::new("a parameter has more than 16 fields")));
    Fields::new(message).take(17).enumerate().map(move |(index, field)| refused(index).unwrap_or(field))
}

fn parameter(message: Bytes) -> Result<Value, Malformed> {
    let mut value = Value::Null;
    for field in short_message(message) {
        value = match field? {
            (1, FieldValue::Varint(flag)) => Value::Bool(flag != 0),
            (2, FieldValue::Varint(number)) => Value::Int(number.cast_signed()),
            (3, FieldValue::Bytes(long)) if long.len() > MAX_TEXT_BYTES => Value::Null,
            (3, text) => Value::Str(text.text()?),
            (4, FieldValue::Fixed64(bits)) => Value::Float(f64::from_bits(bits)),
            (5, FieldValue::Varint(number)) => Value::UInt(number),
            (1..=5, _) => return Err(WRONG_TYPE),
            _ => value,
        };
    }
    Ok(value)
}
