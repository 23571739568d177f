//! Writes a [`Value`] as JSON text, by the table in the module's documentation.
//!
//! Depth is counted on the way down, so that a value built by hand ends in an error and not in a stack overflow.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::Serialize;

use crate::error::EncodeError;
use crate::limits::MAX_DEPTH;
use crate::out::ChargedBuffer;
use crate::serde_impls::scalar::PlainScalar;
#[cfg(feature = "arrow")]
use crate::value::data_frame::DataFrame;
use crate::value::tensor::{Element, Tensor, with_element};
use crate::value::{Map, Scalar, Value};

/// Writes the value without any white space.
pub(crate) fn encode(value: &Value) -> Result<Bytes, EncodeError> {
    let mut out = ChargedBuffer::new(128);
    write(&mut out, value, 0)?;
    Ok(out.into_bytes()?)
}

pub(super) fn write(out: &mut ChargedBuffer, value: &Value, depth: usize) -> Result<(), EncodeError> {
    if depth > MAX_DEPTH {
        return Err(EncodeError::too_deep(value.kind(), MAX_DEPTH));
    }
    match value {
        Value::Null => leaf(out, &()),
        Value::Bool(value) => leaf(out, value),
        Value::Int(value) => leaf(out, value),
        Value::UInt(value) => leaf(out, value),
        Value::Float(value) => write_number(out, (*value).into()),
        Value::Str(text) => leaf(out, text),
        Value::Bytes(bytes) => write_base64(out, bytes),
        Value::List(items) | Value::Tuple(items) => {
            write_list(out, items.len(), |out, index| write(out, &items[index], depth + 1))
        }
        Value::Map(map) => write_map(out, map, depth + 1),
        Value::Scalar(value) => write_number(out, *value),
        Value::Tensor(tensor) => write_tensor(out, tensor),
        Value::StrTensor(tensor) => write_texts(out, tensor.shape(), &mut tensor.iter()),
        #[cfg(feature = "arrow")]
        Value::DataFrame(frame) => write_frame(out, frame, depth + 1),
        #[cfg(feature = "arrow")]
        Value::Series(series) => write_column(out, series.as_frame(), 0, depth + 1),
    }
}

fn write_map(out: &mut ChargedBuffer, map: &Map, depth: usize) -> Result<(), EncodeError> {
    out.push(b'{');
    out.check()?;
    for (index, (key, value)) in map.iter().enumerate() {
        separate(out, index);
        leaf(out, key)?;
        out.push(b':');
        write(out, value, depth).map_err(|error| error.in_key(key))?;
    }
    out.push(b'}');
    Ok(())
}

pub(super) fn write_list<F>(out: &mut ChargedBuffer, len: usize, mut item: F) -> Result<(), EncodeError>
where
    F: FnMut(&mut ChargedBuffer, usize) -> Result<(), EncodeError>,
{
    out.push(b'[');
    out.check()?; // A leaf ends with an error by itself; brackets alone would go on.
    for index in 0..len {
        separate(out, index);
        item(out, index).map_err(|error| error.in_index(index))?;
    }
    out.push(b']');
    Ok(())
}

/// Base64 has no character that JSON escapes.
pub(super) fn write_base64(out: &mut ChargedBuffer, bytes: &[u8]) -> Result<(), EncodeError> {
    let len = base64::encoded_len(bytes.len(), true).unwrap_or(usize::MAX);
    out.push(b'"');
    let start = out.len();
    out.extend_with(0, len);
    out.check()?;
    let written = BASE64.encode_slice(bytes, &mut out.bytes_mut()[start..]);
    written.expect("as much room as the encoded form takes");
    out.push(b'"');
    Ok(out.check()?)
}

/// A map of columns. Each is made into cells in slices of its rows, which are freed when they are written.
#[cfg(feature = "arrow")]
fn write_frame(out: &mut ChargedBuffer, frame: &DataFrame, depth: usize) -> Result<(), EncodeError> {
    frame.check_names()?;
    out.push(b'{');
    for (index, field) in frame.schema().fields().iter().enumerate() {
        separate(out, index);
        leaf(out, field.name())?;
        out.push(b':');
        write_column(out, frame, index, depth + 1).map_err(|error| error.in_key(field.name()))?;
    }
    out.push(b'}');
    Ok(out.check()?)
}

#[cfg(feature = "arrow")]
fn write_column(out: &mut ChargedBuffer, frame: &DataFrame, column: usize, depth: usize) -> Result<(), EncodeError> {
    out.push(b'[');
    let mut row = 0;
    for slice in frame.slices(column) {
        for cell in slice?.iter() {
            separate(out, row);
            write(out, cell, depth).map_err(|error| error.in_index(row))?;
            row += 1;
        }
    }
    out.push(b']');
    Ok(out.check()?)
}

fn write_tensor(out: &mut ChargedBuffer, tensor: &Tensor) -> Result<(), EncodeError> {
    with_element!(tensor.dtype(), T => {
        let elements = tensor.as_slice::<T>().expect("asked for the tensor's own dtype");
        write_axis(out, tensor.shape(), elements)
    })
}

/// One row of a tensor; recurses once per axis.
fn write_axis<T: Element>(out: &mut ChargedBuffer, shape: &[usize], elements: &[T]) -> Result<(), EncodeError> {
    let Some((len, shape)) = shape.split_first() else {
        return write_number(out, elements[0].to_scalar());
    };
    let row = elements.len().checked_div(*len).unwrap_or(0);
    write_list(out, *len, |out, index| write_axis(out, shape, &elements[index * row..][..row]))
}

/// One row of texts; recurses once per axis.
fn write_texts<'a, I: Iterator<Item = &'a str>>(
    out: &mut ChargedBuffer,
    shape: &[usize],
    texts: &mut I,
) -> Result<(), EncodeError> {
    match shape.split_first() {
        None => leaf(out, texts.next().expect("as many texts as the shape says")),
        Some((len, shape)) => write_list(out, *len, |out, _| write_texts(out, shape, texts)),
    }
}

/// serde_json would write a NaN as `null`, which reads like a missing number.
fn write_number(out: &mut ChargedBuffer, number: Scalar) -> Result<(), EncodeError> {
    if number.is_finite() {
        leaf(out, &PlainScalar(number))
    } else {
        let shown = number.as_f64().map_or_else(|| format!("{:?}", number.plain()), |number| number.to_string());
        Err(EncodeError::new("float", format!("JSON has no form for {shown}")))
    }
}

pub(super) fn separate(out: &mut ChargedBuffer, index: usize) {
    if index > 0 {
        out.push(b',');
    }
}

/// Writes a text or number by serde_json.
pub(super) fn leaf<T: Serialize + ?Sized>(out: &mut ChargedBuffer, leaf: &T) -> Result<(), EncodeError> {
    serde_json::to_writer(&mut *out, leaf).map_err(|error| match out.check() {
        Err(refused) => refused.into(),
        Ok(()) => EncodeError::new("", error.to_string()),
    })
}
