//! MessagePack to [`Value`](crate::Value) and back: every value comes back as it was.
//!
//! | value | as MessagePack | remark |
//! |---|---|---|
//! | `Null`, `Bool`, `Str`, `Bytes`, `List` | nil, bool, str, bin, array | |
//! | `Int`, `UInt` | the shortest integer that holds it | |
//! | `Float` | float 64, bit by bit | a float 32 is read too, and widened |
//! | `Map` | map with str keys | other keys, and the same key twice, are refused |
//! | `Tuple` | extension 1: an array header and the items | |
//! | `Scalar` | extension 2: dtype code, little-endian number | |
//! | `Tensor` | extension 3: header padded to 8 bytes, axes, raw elements | drawn below |
//! | `StrTensor` | extension 4: the same header with dtype 64, then the ends of the texts (u64 LE) and the texts | |
//! | `DataFrame` | extension 5: an Arrow IPC stream | feature `arrow` |
//! | `Series` | extension 6: an Arrow IPC stream of one column | feature `arrow` |
//! | – | extension 7: a segment of an [envelope](crate::envelope), and malformed anywhere else | |
//!
//! Any other extension, timestamps included, is refused as unsupported. Byte strings and tensors are slices of the
//! input, not copies; an unaligned tensor is copied once.
//!
//! Native Rust types are read and written by rmp-serde, structs as maps of their field names, each part in the form
//! that it has in JSON: a map key is text, an integer has 64 bits at most, a `Uuid` is text. Floats may be NaN.
//!
//! ```text
//! scalar   ┌───────┬──────────────────┐
//!          │ dtype │ 1 … 16 bytes, LE │
//!          └───────┴──────────────────┘
//! tensor   ┌───────┬──────┬───────────┬────────────────┬──────────────────────┐
//!          │ dtype │ rank │ 6 × zero  │ rank × u64 LE  │ elements, row-major  │
//!          └───────┴──────┴───────────┴────────────────┴──────────────────────┘
//! dtype    1 bool  2 i8  3 i16  4 i32  5 i64  6 u8  7 u16  8 u32  9 u64  10 f16  11 bf16  12 f32  13 f64
//!          14 c64  15 c128  64 text
//! ```

mod check;
mod decode;
mod encode;
pub(crate) mod ext;
mod keys;
mod late;
mod marker;
mod segments;

pub(crate) use check::{check_body, check_tree};
pub(crate) use decode::{MsgpackDecoder, Token, check, decode, decode_tree};
pub(crate) use encode::{encode, encode_tree};
pub(crate) use keys::OpenKeys;
pub(crate) use late::LateWriter;
pub(crate) use segments::{INLINE_BELOW, Segments};
