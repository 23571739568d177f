//! Values, tensors and formats: how data looks inside Callboard, and how it crosses a border.
//!
//! ```text
//!   bytes at a border              inside the process                  at user code
//!
//!   JSON ────┐                  ┌──────────────────────┐           ┌── &T      a Rust type
//!            ├── DataType ────▶ │       Payload        │ ──────────┤
//!   msgpack ─┘   (limits)       │ Arc<T> or Arc<Value> │           └── &Value  when no type describes it
//!            ◀── Payload::encode└──────────────────────┘
//! ```
//!
//! * [`Payload`] is what travels: a shared Rust value. Stages of one process hand it on without encoding; it is encoded only
//!   where it leaves the process.
//! * [`DataType`] describes what a route takes: a JSON Schema, and the fast way from bytes to that very type.
//! * [`Value`] is the dynamic value, [`Tensor`] the array in it, viewed through `ndarray` without a copy.
//! * [`DecodeLimits`] bounds what any input may cost; [`DecodeError`] says which field, which byte and which limit.
//!
//! ```
//! use callboard_codec::{DecodeLimits, Format, Map, Tensor, Value};
//! use ndarray::array;
//!
//! let image = Tensor::from_array(array![[0.0_f32, 0.5], [0.5, 1.0]]);
//! let value = Value::from(Map::from_iter([("id", Value::from(7)), ("image", Value::from(image))]));
//!
//! // MessagePack brings every value back as it was.
//! let bytes = value.encode(Format::Msgpack)?;
//! assert_eq!(Value::decode(Format::Msgpack, &bytes, &DecodeLimits::default()).unwrap(), value);
//!
//! // JSON is for people: a tensor becomes nested lists.
//! assert_eq!(value.encode(Format::Json)?, r#"{"id":7,"image":[[0.0,0.5],[0.5,1.0]]}"#);
//! # Ok::<(), callboard_codec::EncodeError>(())
//! ```
//!
//! This crate knows bytes and values only: no sockets, no clocks, no runtime.

#[cfg(feature = "arrow")]
mod data_frame;
mod data_type;
pub mod envelope;
mod error;
mod format;
pub mod json;
mod limits;
mod matching;
mod media_type;
pub mod msgpack;
pub mod npy;
mod payload;
mod tensor;
mod value;

#[cfg(feature = "arrow")]
pub use data_frame::{DataFrame, DataFrameError, Series};
pub use data_type::{DataType, RawBody};
pub use envelope::{Envelope, EnvelopeDecoder};
pub use error::{DecodeError, DecodeErrorKind, EncodeError, ExceededLimit};
pub use format::Format;
pub use limits::{DecodeLimits, MAX_DEPTH};
pub use matching::Joined;
pub use media_type::MediaType;
pub use payload::{Data, Payload};
pub use tensor::{DType, Element, MAX_RANK, StrTensor, Tensor, TensorError};
pub use value::{Map, MapIntoIter, MapIter, Scalar, Value};
