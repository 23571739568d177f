//! The output of a function as a response of a relay.
//!
//! Lengths come before what they count, so all messages are measured first. Arrays and frames are pieces of their own.

use std::vec::IntoIter;

use bytes::{BufMut, Bytes, BytesMut};
use callboard_codec::{EncodeError, Format, Payload, Scalar, Value};
use prost::encoding::{encode_varint, encoded_len_varint};

use super::{MAX_MESSAGES, kind};

/// The reason why an output has no response.
#[derive(Debug)]
pub(super) enum Unwritten {
    /// A part of it has no `Payload`.
    NoForm(String),
    /// It cannot be encoded, or the node has no room for it.
    Encode(EncodeError),
}

impl From<EncodeError> for Unwritten {
    fn from(error: EncodeError) -> Self {
        Self::Encode(error)
    }
}

/// The wire types.
const VARINT: u32 = 0;
const BYTES: u32 = 2;
const FIXED32: u32 = 5;

/// The pieces of a `KaggleEvaluationResponse` with this output.
///
/// # Errors
///
/// A part of the output has no `Payload`.
pub(super) fn response(output: &Payload) -> Result<Vec<Bytes>, Unwritten> {
    let value = output.to_value()?;
    let mut measured = Measured::default();
    measured.payload(&value, 1)?;
    let mut writer = Writer {
        lengths: measured.lengths.into_iter(),
        leaves: measured.leaves.into_iter(),
        written: BytesMut::new(),
        pieces: Vec::new(),
    };
    writer.message(1, |writer| writer.payload(&value));
    writer.flush();
    Ok(writer.pieces)
}

/// The lengths of all messages in the order in which they are written, and the bytes of the large leaves.
#[derive(Default)]
struct Measured {
    lengths: Vec<usize>,
    leaves: Vec<(u32, Bytes)>,
}

impl Measured {
    /// Measures a message, and gives its length with that of its key and of the length itself.
    fn message(&mut self, inner: impl FnOnce(&mut Self) -> Result<usize, Unwritten>) -> Result<usize, Unwritten> {
        let place = self.lengths.len();
        self.lengths.push(0);
        let length = inner(self)?;
        self.lengths[place] = length;
        Ok(with_length(length))
    }

    /// The length of a field with a `Payload` in this many messages.
    fn payload(&mut self, value: &Value, depth: usize) -> Result<usize, Unwritten> {
        let deepest = depth + usize::from(matches!(value, Value::List(_) | Value::Tuple(_) | Value::Map(_)));
        if deepest > MAX_MESSAGES {
            return Err(unsupported("nesting beyond what readers of protobuf take"));
        }
        self.message(|measured| measured.value(value, depth))
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<usize, Unwritten> {
        Ok(match value {
            Value::Null | Value::Bool(_) => 2,
            Value::Int(number) => 1 + encoded_len_varint(zigzag(*number)),
            Value::Float(_) => 5,
            Value::Str(text) => with_length(text.len()),
            Value::List(items) | Value::Tuple(items) => self.message(|measured| {
                items.iter().try_fold(0, |length, item| Ok(length + measured.payload(item, depth + 2)?))
            })?,
            Value::Map(map) => self.message(|measured| {
                map.iter().try_fold(0, |length, (key, item)| {
                    let entry =
                        measured.message(|measured| Ok(with_length(key.len()) + measured.payload(item, depth + 3)?));
                    Ok(length + entry?)
                })
            })?,
            leaf => {
                let (number, bytes) = leaf_of(leaf)?;
                let length = key_len(number) + encoded_len_varint(bytes.len() as u64) + bytes.len();
                self.leaves.push((number, bytes));
                length
            }
        })
    }
}

/// The number and the bytes of a value that is not written by itself.
fn leaf_of(value: &Value) -> Result<(u32, Bytes), Unwritten> {
    Ok(match value {
        Value::Bytes(bytes) => (kind::BYTES_IO, bytes.clone()),
        Value::Scalar(Scalar::BF16(_)) => {
            return Err(unsupported("a scalar of bfloat16, to which NumPy gives no name"));
        }
        Value::Scalar(scalar) => (kind::SCALAR, Value::Tensor(scalar.to_tensor()).encode(Format::Npy)?),
        Value::Tensor(_) | Value::StrTensor(_) => (kind::ARRAY, value.encode(Format::Npy)?),
        Value::UInt(number) => return Err(unsupported(&format!("the integer {number}, beyond 64 bits with a sign,"))),
        #[cfg(feature = "arrow")]
        Value::DataFrame(frame) => match packed(frame) {
            Some(packed) => packed,
            None => (kind::POLARS_FRAME, value.encode(Format::ArrowStream)?),
        },
        #[cfg(feature = "arrow")]
        Value::Series(series) => {
            packed(series.as_frame()).ok_or_else(|| unsupported("a series, which only Python sends"))?
        }
        other => return Err(unsupported(&format!("a value of kind {}", other.kind()))),
    })
}

/// What Python has packed as the gateway reads it.
#[cfg(feature = "arrow")]
fn packed(frame: &callboard_codec::DataFrame) -> Option<(u32, Bytes)> {
    let (library, form, bytes) = frame.as_packed()?;
    let known = super::PACKED.iter().find(|(_, of, as_form)| (*of, *as_form) == (&*library, &*form));
    known.map(|(number, ..)| (*number, bytes))
}

struct Writer {
    lengths: IntoIter<usize>,
    leaves: IntoIter<(u32, Bytes)>,
    /// What no piece has yet.
    written: BytesMut,
    pieces: Vec<Bytes>,
}

impl Writer {
    fn message(&mut self, number: u32, inner: impl FnOnce(&mut Self)) {
        let length = self.lengths.next().unwrap_or_default();
        self.key(number, BYTES);
        encode_varint(length as u64, &mut self.written);
        inner(self);
    }

    fn key(&mut self, number: u32, wire_type: u32) {
        encode_varint(u64::from(number << 3 | wire_type), &mut self.written);
    }

    fn text(&mut self, number: u32, text: &str) {
        self.key(number, BYTES);
        encode_varint(text.len() as u64, &mut self.written);
        self.written.put_slice(text.as_bytes());
    }

    /// The fields of a `Payload`.
    fn payload(&mut self, value: &Value) {
        match value {
            Value::Null => self.number(kind::NONE, 1),
            Value::Bool(value) => self.number(kind::BOOL, (*value).into()),
            Value::Int(number) => self.number(kind::INT, zigzag(*number)),
            Value::Float(number) => {
                self.key(kind::FLOAT, FIXED32);
                // As every sender of a relay.
                self.written.put_f32_le(*number as f32);
            }
            Value::Str(text) => self.text(kind::STR, text),
            Value::List(items) => self.items(kind::LIST, items),
            Value::Tuple(items) => self.items(kind::TUPLE, items),
            Value::Map(map) => self.message(kind::DICT, |writer| {
                for (key, item) in map {
                    writer.message(1, |writer| {
                        writer.text(1, key);
                        writer.message(2, |writer| writer.payload(item));
                    });
                }
            }),
            _ => {
                let Some((number, bytes)) = self.leaves.next() else { return };
                self.key(number, BYTES);
                encode_varint(bytes.len() as u64, &mut self.written);
                self.flush();
                self.pieces.push(bytes);
            }
        }
    }

    fn number(&mut self, number: u32, value: u64) {
        self.key(number, VARINT);
        encode_varint(value, &mut self.written);
    }

    fn items(&mut self, number: u32, items: &[Value]) {
        self.message(number, |writer| {
            for item in items {
                writer.message(1, |writer| writer.payload(item));
            }
        });
    }

    fn flush(&mut self) {
        if !self.written.is_empty() {
            self.pieces.push(self.written.split().freeze());
        }
    }
}

const fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63).cast_unsigned()
}

/// The length of a text or message with its key, which has one byte, and its length.
fn with_length(length: usize) -> usize {
    1 + encoded_len_varint(length as u64) + length
}

fn key_len(number: u32) -> usize {
    encoded_len_varint(u64::from(number << 3))
}

fn unsupported(what: &str) -> Unwritten {
    Unwritten::NoForm(format!("{what} has no form in a relay"))
}
