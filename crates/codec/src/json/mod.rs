//! JSON (RFC 8259) to [`Value`](crate::Value) and back.
//!
//! Types that JSON has are exact. Other types take the nearest form when written, and keep that form when read back:
//!
//! | value | as JSON | and back |
//! |---|---|---|
//! | `Null`, `Bool`, `Str`, `List`, `Map` | as they are; key order is kept | the same |
//! | `Int`, `UInt` | a number without point or exponent | the same, over all of i64 and u64 |
//! | `Float` | the shortest digits that read back the same; always with a point or exponent (`1.0`, `-0.0`, `1e300`) | the same bits |
//! | `Float` NaN, ±Infinity | refused with an [`EncodeError`](crate::EncodeError) that names the place | `NaN` in the input is malformed |
//! | integer beyond 64 bits | – | refused: a float would lose its last digits unnoticed |
//! | a number where the schema of a [`Value`](crate::Value) says `"format": "decimal"` | – | `Str` of its digits, unless it is an integer of 64 bits |
//! | `-0` | – | `Float(-0.0)`: an integer has no negative zero |
//! | `Bytes` | base64 text (RFC 4648, padded) | `Str` |
//! | `Tuple` | a list | `List` |
//! | `Scalar` | a number or bool; an f32 in its own shortest digits | `Int`, `UInt`, `Float` or `Bool` |
//! | `Tensor` | nested lists, row-major; its element alone when it has no axes; a complex number is a pair of its parts | `List` |
//! | `StrTensor` | nested lists of text | `List` |
//! | `DataFrame` | a map of columns, each a list of its cells | `Map` |
//! | `Series` | a list of its cells | `List` |
//!
//! Cells of a frame are numbers, texts, `null`, lists and maps; binary cells are base64, dates and times ISO 8601,
//! decimals text with all their digits, categorical cells their value.
//!
//! A type with a [`Tensor`](crate::Tensor) field reads nested lists or `{"dtype", "shape", "data"}`
//! (see [`Tensor::from_value`](crate::Tensor::from_value)). Native Rust types follow serde_json's rules, except
//! that a non-finite float is refused with its place, as in a [`Value`](crate::Value), and not written as `null`.
//!
//! Also refused: duplicate keys, anything after the value, unpaired surrogates, raw control characters in text,
//! comments, and input beyond [`DecodeLimits`](crate::DecodeLimits). Depth is counted, so `[[[[…` ends in an error and
//! not in a stack overflow.

mod decimals;
mod decode;
mod encode;
mod transcode;
mod tree;

pub(crate) use decimals::Decimals;
pub(crate) use decode::{decode, decode_digits};
pub(crate) use encode::encode;
pub(crate) use transcode::transcode;
pub(crate) use tree::to_tree;
