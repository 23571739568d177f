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
//! * [`Payload`] is a shared Rust value. Stages of one process pass it on without encoding; it is encoded only when it
//!   leaves the process.
//! * [`DataType`] describes the input of a route: a JSON Schema, and the fast way from bytes to that type.
//! * [`Value`] is the dynamic value; in it a [`Tensor`] is viewed through `ndarray`, and a [`DataFrame`] holds Arrow
//!   record batches, both without a copy.
//! * [`Format`] names the encodings: JSON, MessagePack, the [envelope], `.npy`, `.npz`, Arrow.
//!   [`MediaType::choose`] picks one for an `Accept` header.
//! * [`DecodeLimits`] bounds the cost of any input; [`DecodeError`] names the field, the byte and the limit.
//!
//! ```
//! use callboard_codec::{DecodeLimits, Format, Map, Tensor, Value};
//! use ndarray::array;
//!
//! let image = Tensor::from_array(array![[0.0_f32, 0.5], [0.5, 1.0]]);
//! let value = Value::from(Map::from_iter([("id", Value::from(7)), ("image", Value::from(image))]));
//!
//! // MessagePack brings every value back as it was.
//! let limits = DecodeLimits::default();
//! let bytes = value.encode(Format::Msgpack)?;
//! assert_eq!(Value::decode(Format::Msgpack, &bytes, &limits).unwrap(), value);
//!
//! // In JSON a tensor becomes nested lists.
//! assert_eq!(value.encode(Format::Json)?, r#"{"id":7,"image":[[0.0,0.5],[0.5,1.0]]}"#);
//!
//! // An envelope is sent in pieces that share the value's memory. Reading one buffer shares that buffer.
//! let large = Value::from(Tensor::from_vec(&[1000], vec![0.5_f32; 1000]).unwrap());
//! let received = large.to_envelope()?.into_bytes();
//! assert_eq!(Value::decode(Format::Envelope, &received, &limits).unwrap(), large);
//!
//! // An error names the place.
//! let error = Value::decode(Format::Json, &r#"{"image": [1, NaN]}"#.into(), &limits).unwrap_err();
//! assert_eq!((error.path(), error.offset()), ("$.image[1]", Some(14)));
//! # Ok::<(), callboard_codec::EncodeError>(())
//! ```
//!
//! `docs/wire.md` lists every type with its forms in JSON, MessagePack, Python and Arrow. This crate knows bytes
//! and values only: no sockets, no clocks, no runtime.
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `arrow` | yes | [`DataFrame`], [`Series`], and Arrow IPC as a stream and a file |
//! | `arrow-compression` | yes | reading Arrow buffers that are compressed by LZ4 or ZSTD; builds a C library |

mod account;
mod data_type;
mod default_value;
mod edited;
mod encoded;
pub mod envelope;
mod error;
mod format;
pub mod hex;
pub mod json;
mod limited;
mod limits;
mod local;
mod matching;
mod media;
mod media_type;
mod metered;
pub mod msgpack;
pub mod npy;
mod out;
mod payload;
mod quoting;
mod serde_impls;
mod tensor_fields;
mod typed;
mod value;
pub mod wire;
mod words;

pub use account::{Account, ChargeError, ExceededLimit, STEP_BYTES, charged_to, charged_up_to};
pub use data_type::{DataType, Parameters, RawBody};
pub use edited::edited_text;
pub use encoded::Encoded;
pub use envelope::{Envelope, EnvelopeDecoder};
pub use error::{DecodeError, DecodeErrorKind, EncodeError, EncodeErrorKind};
pub use format::Format;
pub use limited::limited;
pub use limits::{DecodeLimits, MAX_DEPTH};
pub use local::Local;
pub use matching::JoinedItems;
pub use media::{Media, NotBase64};
pub use media_type::MediaType;
pub use payload::Payload;
pub use tensor_fields::{TensorField, TensorFields};
pub use typed::Data;
#[cfg(feature = "arrow")]
pub use value::data_frame::{DataFrame, DataFrameError, Series};
pub use value::tensor::{AlignedBuffer, DType, Element, MAX_RANK, StrTensor, Tensor, TensorError};
pub use value::{Map, MapIntoIter, MapIter, Scalar, Value};
