//! `multipart/form-data` as a map: one entry per field name, in the order of the parts.
//!
//! A part with the content type of a format (JSON, msgpack, npy, …) is the decoded value; with a file name, another
//! content type or bytes that are no UTF-8 it is bytes, else text. The route's schema may still take a text for a file
//! ([`form_fields`](super::form_fields)). A name that comes more than once becomes a list. The limits of the body, and
//! of decoded values, apply to all parts together.
//!
//! multer scans the text before the first part, and the head of each part, again with each piece. So it gets small
//! pieces, and a head is **too long** (400) after [`MAX_HEAD_BYTES`].
//!
//! Each part is copied into a buffer of its own length: a view of multer's buffer would keep neighbouring parts, and a
//! growing buffer has spare capacity that is not charged. Charged besides the body: [`PART_BYTES`] for each part, the
//! length of a part once more while its pieces are joined, and a large chunk while parts are copied out of it. multer's
//! own buffer is not charged: it holds at most one head and one piece.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::HeaderMap;
use bytes::Bytes;
use callboard_codec::{Account, DataType, DecodeLimits, Format, Map, Payload, Value};
use callboard_core::edge::HeldBytes;
use callboard_telemetry::truncate_for_log;
use futures_util::{Stream, stream};
use indexmap::IndexMap;
use multer::{Field, Multipart};
use tokio::task::yield_now;

use super::body::{Arrival, IncomingBody, RequestBody};
use super::body_buffer::BodyBuffer;
use super::disposition::Disposition;
use super::form_fields;
use crate::error::ApiError;

/// Enough for any form. Each part costs more memory than its bytes.
const MAX_PARTS: usize = 1024;

/// The memory of a part besides its name and bytes: its entry, the spare capacity of the map, and its list of parts.
const PART_BYTES: u64 = 512;

/// The memory of a part's value besides its bytes: its entry in the map, and a copy of its name.
const VALUE_BYTES: usize = 256;

/// The longest name of a part.
const MAX_NAME_BYTES: usize = 1024;

/// Ten times the length of a usual head.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// The size of the pieces, and so the most that may be read beyond the end of a part.
const PIECE_BYTES: usize = 16 * 1024;

/// The parts of a form.
#[derive(Debug)]
pub(crate) struct MultipartForm {
    /// By name, in their order.
    parts: IndexMap<String, Vec<Part>>,
    /// [`PART_BYTES`] for each part.
    _held: HeldBytes,
}

#[derive(Debug)]
struct Part {
    /// The format of a part with the content type of a format.
    format: Option<Format>,
    is_text: bool,
    bytes: Bytes,
}

/// The values of all parts of a form, by name.
#[derive(Debug)]
pub struct FormFields {
    pub(crate) values: Map,
    /// The remaining limits after these parts.
    pub(crate) remaining_limits: DecodeLimits,
}

impl FormFields {
    /// The value of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// The fields for an input of this type: a text becomes what the type wants, such as a number.
    #[must_use]
    pub fn fit(self, input: &DataType) -> Map {
        form_fields::fit(self, input)
    }

    /// The same values, of a name that ends with `[]` under the name before it, as some clients write lists.
    #[must_use]
    pub fn without_brackets(self) -> Self {
        let values = self.values.into_iter().map(|(name, value)| match name.strip_suffix("[]") {
            Some(name) => (name.to_owned(), value),
            None => (name, value),
        });
        Self { values: values.collect(), ..self }
    }
}

impl MultipartForm {
    /// The bytes of the parts that are decoded or checked; other parts are taken as they are.
    pub(crate) fn read_bytes(&self) -> usize {
        let read = self.parts.values().flatten().filter(|part| part.is_text || part.format.is_some());
        read.map(|part| part.bytes.len()).sum()
    }

    /// The memory of the values of all parts, without the data that is decoded from parts with a format.
    pub(crate) fn value_bytes(&self) -> usize {
        let parts: usize = self.parts.values().map(Vec::len).sum();
        self.read_bytes() + parts * VALUE_BYTES
    }

    /// Decodes all parts. `exact` is the type by which a part of this name is read if it is JSON with decimals.
    pub(crate) fn decode(
        &self,
        limits: &DecodeLimits,
        exact: impl Fn(&str) -> Option<DataType>,
    ) -> Result<FormFields, ApiError> {
        let mut remaining_limits = limits.clone();
        let mut values = Map::with_capacity(self.parts.len());
        for (name, parts) in &self.parts {
            let mut of_name = Vec::with_capacity(parts.len());
            let exact = exact(name);
            for part in parts {
                let value = part.decode(name, &remaining_limits, exact.as_ref())?;
                remaining_limits = remaining_limits.left_after(&value);
                of_name.push(value);
            }
            let value = match (of_name.pop(), of_name.is_empty()) {
                (Some(only), true) => only,
                (last, _) => Value::List(of_name.into_iter().chain(last).collect()),
            };
            values.insert(name.as_str(), value);
        }
        Ok(FormFields { values, remaining_limits })
    }
}

impl Part {
    fn decode(&self, name: &str, limits: &DecodeLimits, exact: Option<&DataType>) -> Result<Value, ApiError> {
        if let Some(format) = self.format {
            let value = match exact.filter(|_| format == Format::Json) {
                Some(exact) => exact.decode(format, &self.bytes, limits).and_then(Payload::into_inner),
                None => Value::decode(format, &self.bytes, limits),
            };
            return value.map_err(|error| ApiError::from(error).in_part(name));
        }
        if !self.is_text {
            return Ok(Value::Bytes(self.bytes.clone()));
        }
        Ok(std::str::from_utf8(&self.bytes).map_or_else(|_| Value::Bytes(self.bytes.clone()), Value::from))
    }
}

/// Reads all parts without decoding them.
pub(crate) async fn read<A: Arrival + Send, B: RequestBody>(
    body: &mut IncomingBody<'_, A, B>,
    boundary: String,
) -> Result<MultipartForm, ApiError> {
    let held = body.held_bytes();
    let search = Arc::new(HeadScan::default());
    let mut parts = Multipart::new(pieces(body, Arc::clone(&search)), boundary);
    // Clients choose names, so the map is keyed by a random hash.
    let mut fields: IndexMap<String, Vec<Part>> = IndexMap::new();
    for _ in 0..=MAX_PARTS {
        search.begin();
        let Some(mut part) = parts.next_field().await.map_err(fault)? else {
            return Ok(MultipartForm { parts: fields, _held: held });
        };
        search.end();
        held.grow(PART_BYTES)?;
        let disposition = Disposition::of(part.headers());
        let name = name_of(part.index(), disposition.name)?;
        check_encoding(&name, part.headers())?;
        let content_type = part.content_type().map(|mime| mime.essence_str().to_owned());
        let format = content_type.as_deref().and_then(Format::from_media_type);
        let is_text = !disposition.has_file_name && content_type.is_none_or(|essence| essence.starts_with("text/"));
        let bytes = whole(&mut part, &held).await?;
        if disposition.names_no_file && bytes.is_empty() {
            continue;
        }
        fields.entry(name).or_default().push(Part { format, is_text, bytes });
    }
    Err(ApiError::bad_multipart(format!("the form has more than {MAX_PARTS} parts")))
}

/// All bytes of a part, in a separate buffer. They were charged when they arrived.
async fn whole(part: &mut Field<'_>, held: &HeldBytes) -> Result<Bytes, ApiError> {
    let Some(first) = part.chunk().await.map_err(fault)? else { return Ok(Bytes::new()) };
    let mut whole = BodyBuffer::new(None, Bytes::copy_from_slice(&first));
    drop(first);
    while let Some(chunk) = part.chunk().await.map_err(fault)? {
        whole.push(Bytes::copy_from_slice(&chunk)).await;
    }
    // While the pieces are joined, the memory holds the part twice.
    let joined = whole.copies_at_end();
    held.grow(joined)?;
    let whole = whole.finish().await;
    held.refund(usize::try_from(joined).unwrap_or(usize::MAX));
    Ok(whole)
}

/// The remaining bytes of a head.
#[derive(Debug, Default)]
struct HeadScan {
    /// `usize::MAX` between heads.
    remaining_bytes: AtomicUsize,
}

impl HeadScan {
    fn begin(&self) {
        self.remaining_bytes.store(MAX_HEAD_BYTES, Ordering::Relaxed);
    }

    fn end(&self) {
        self.remaining_bytes.store(usize::MAX, Ordering::Relaxed);
    }

    /// Counts one more piece of a head; `false` beyond the limit.
    fn allows(&self, piece: usize) -> bool {
        match self.remaining_bytes.load(Ordering::Relaxed) {
            usize::MAX => true,
            0 => false,
            remaining => {
                self.remaining_bytes.store(remaining.saturating_sub(piece), Ordering::Relaxed);
                true
            }
        }
    }
}

/// The body in small pieces with a pause after each: multer takes all ready bytes before it parses.
fn pieces<A: Arrival + Send, B: RequestBody>(
    body: &mut IncomingBody<'_, A, B>,
    search: Arc<HeadScan>,
) -> impl Stream<Item = Result<Bytes, BodyError>> + Send {
    // Pays for the current chunk. The charge of the received bytes pays for the parts that are copied out of it.
    let held = body.held_bytes();
    let state = (body, Bytes::new(), held, false);
    stream::try_unfold(state, move |(body, mut chunk, held, is_later)| {
        let search = Arc::clone(&search);
        async move {
            if is_later {
                yield_now().await;
            }
            if chunk.is_empty() {
                held.release();
                match body.chunk().await.map_err(BodyError)? {
                    Some(next) => chunk = next,
                    None => return Ok(None),
                }
                if chunk.len() > PIECE_BYTES {
                    held.grow(chunk.len() as u64).map_err(|error| BodyError(error.into()))?;
                }
            }
            let piece = chunk.split_to(PIECE_BYTES.min(chunk.len()));
            if !search.allows(piece.len()) {
                let message =
                    format!("the head of a part, or what is before the first, exceeds {MAX_HEAD_BYTES} bytes");
                return Err(BodyError(ApiError::bad_multipart(message)));
            }
            Ok(Some((piece, (body, chunk, held, true))))
        }
    })
}

fn name_of(index: usize, name: Option<String>) -> Result<String, ApiError> {
    match name {
        Some(name) if name.len() > MAX_NAME_BYTES => Err(ApiError::bad_multipart(format!(
            "the name of part {index} has {} bytes; at most {MAX_NAME_BYTES} are allowed",
            name.len()
        ))),
        Some(name) if !name.is_empty() => Ok(name),
        _ => Err(ApiError::bad_multipart(format!("part {index} has no name"))),
    }
}

/// The encodings that change no byte. RFC 7578 §4.7 has dropped the others.
const IDENTITY_ENCODINGS: [&str; 3] = ["7bit", "8bit", "binary"];

/// Refuses an encoding of mail: its bytes would be taken for those of the file.
fn check_encoding(name: &str, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(encoding) = headers.get("content-transfer-encoding") else { return Ok(()) };
    let encoding = String::from_utf8_lossy(encoding.as_bytes()).trim().to_ascii_lowercase();
    if IDENTITY_ENCODINGS.contains(&encoding.as_str()) {
        return Ok(());
    }
    let encoding = truncate_for_log(&encoding);
    let message =
        format!("part `{name}`: content-transfer-encoding `{encoding}` is not read; send the bytes as they are");
    Err(ApiError::bad_multipart(message))
}

/// Carries one of our errors through multer.
#[derive(Debug, thiserror::Error)]
#[error("the body could not be read")]
struct BodyError(ApiError);

/// Our error that multer carried, or multer's own.
fn fault(error: multer::Error) -> ApiError {
    match error {
        multer::Error::StreamReadFailed(cause) => match cause.downcast::<BodyError>() {
            Ok(error) => error.0,
            Err(other) => ApiError::broken_body(&*other),
        },
        other => ApiError::bad_multipart(other.to_string()),
    }
}
