//! `multipart/form-data` as a map: one entry per field name, in the order of the parts.
//!
//! A part is what it says it is: with the content type of a format (JSON, msgpack, npy, …) the decoded value, with a file name or
//! any other content type the bytes, else text. A name that comes more than once becomes a list. The body's limits hold for
//! all parts together, and so do those of what they decode to.
//!
//! What comes before the first part, and the head of each, is looked through again whenever more of it comes. So it is handed
//! on in small pieces, and is **too long** (400) after [`MAX_HEAD_BYTES`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use callboard_codec::{DecodeLimits, Format, Map, Value};
use futures_util::{Stream, stream};
use multer::{Field, Multipart};
use tokio::task::yield_now;

use super::body::{Incoming, RequestBody};
use crate::convert;
use crate::error::ApiError;

/// More parts than any form has; each costs more than its bytes.
const MAX_PARTS: usize = 1024;

/// Ten times what a part has to say of itself.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// How much is handed on at once, and so how much of the next part may lie behind the end of one.
const PIECE_BYTES: usize = 16 * 1024;

/// All parts of a form.
#[derive(Debug)]
pub(crate) struct Form {
    pub(crate) fields: Map,
    /// What these parts have left of the limits.
    pub(crate) left: DecodeLimits,
}

impl Form {
    /// The bytes of the texts that came as fields.
    pub(crate) fn text_bytes(&self) -> usize {
        let of_text = |value: &Value| value.as_str().map_or(0, str::len);
        let of_field = |value: &Value| match value {
            Value::List(items) => items.iter().map(of_text).sum(),
            other => of_text(other),
        };
        self.fields.iter().map(|(_, value)| of_field(value)).sum()
    }
}

/// Reads all parts.
pub(crate) async fn read<B: RequestBody>(
    body: Incoming<'_, B>,
    boundary: String,
    limits: &DecodeLimits,
) -> Result<Form, ApiError> {
    let search = Arc::new(Search::default());
    let mut parts = Multipart::new(pieces(body, Arc::clone(&search)), boundary);
    let mut fields: Vec<(String, Vec<Value>)> = Vec::new();
    let mut left = limits.clone();
    for _ in 0..=MAX_PARTS {
        search.begin();
        let Some(part) = parts.next_field().await.map_err(fault)? else {
            return Ok(Form { fields: into_map(fields), left });
        };
        search.end();
        let name = name_of(&part)?;
        let value = value_of(part, &name, &left).await?;
        left = left.left_after(&value);
        match fields.iter_mut().find(|(seen, _)| *seen == name) {
            Some((_, values)) => values.push(value),
            None => fields.push((name, vec![value])),
        }
    }
    Err(ApiError::bad_multipart(format!("the form has more than {MAX_PARTS} parts")))
}

/// How much of a head may still come.
#[derive(Debug, Default)]
struct Search {
    /// `usize::MAX` while no head is looked for.
    left: AtomicUsize,
}

impl Search {
    fn begin(&self) {
        self.left.store(MAX_HEAD_BYTES, Ordering::Relaxed);
    }

    fn end(&self) {
        self.left.store(usize::MAX, Ordering::Relaxed);
    }

    /// One more piece is wanted; the one that found the head has ended the search.
    fn allows(&self, piece: usize) -> bool {
        match self.left.load(Ordering::Relaxed) {
            usize::MAX => true,
            0 => false,
            left => {
                self.left.store(left.saturating_sub(piece), Ordering::Relaxed);
                true
            }
        }
    }
}

/// The body in small pieces with a pause behind each: multer takes whatever is there before it looks at any of it.
fn pieces<B: RequestBody>(
    body: Incoming<'_, B>,
    search: Arc<Search>,
) -> impl Stream<Item = Result<Bytes, Broken>> + Send {
    let begun = (body, Bytes::new(), false);
    stream::try_unfold(begun, move |(mut body, mut chunk, is_later)| {
        let search = Arc::clone(&search);
        async move {
            if is_later {
                yield_now().await;
            }
            if chunk.is_empty() {
                match body.chunk().await.map_err(Broken)? {
                    Some(more) => chunk = more,
                    None => return Ok(None),
                }
            }
            let piece = chunk.split_to(PIECE_BYTES.min(chunk.len()));
            if !search.allows(piece.len()) {
                let message =
                    format!("the head of a part, or what is before the first, exceeds {MAX_HEAD_BYTES} bytes");
                return Err(Broken(ApiError::bad_multipart(message)));
            }
            Ok(Some((piece, (body, chunk, true))))
        }
    })
}

fn name_of(part: &Field<'_>) -> Result<String, ApiError> {
    match part.name() {
        Some(name) if !name.is_empty() => Ok(name.to_owned()),
        _ => Err(ApiError::bad_multipart(format!("part {} has no name", part.index()))),
    }
}

async fn value_of(part: Field<'_>, name: &str, left: &DecodeLimits) -> Result<Value, ApiError> {
    let content_type = part.content_type().map(|mime| mime.essence_str().to_owned());
    let is_file = part.file_name().is_some();
    let bytes = part.bytes().await.map_err(fault)?;
    let format = content_type.as_deref().and_then(Format::from_media_type);
    if let Some(format) = format {
        return convert::decode_part(format, bytes, left).await.map_err(|error| error.in_part(name));
    }
    let is_text = !is_file && content_type.is_none_or(|essence| essence.starts_with("text/"));
    if !is_text {
        return Ok(Value::Bytes(bytes));
    }
    match String::from_utf8(bytes.into()) {
        Ok(text) => Ok(Value::Str(text)),
        Err(_) => Err(ApiError::bad_multipart(format!("part `{name}` is text but not UTF-8; send bytes as a file"))),
    }
}

fn into_map(fields: Vec<(String, Vec<Value>)>) -> Map {
    let entries = fields.into_iter().map(|(name, mut values)| match (values.pop(), values.is_empty()) {
        (Some(only), true) => (name, only),
        (last, _) => (name, Value::List(values.into_iter().chain(last).collect())),
    });
    entries.collect()
}

/// An error of ours on its way through multer.
#[derive(Debug, thiserror::Error)]
#[error("the body could not be read")]
struct Broken(ApiError);

/// Our own errors come back as they went in; multer's say what is wrong with the form.
fn fault(error: multer::Error) -> ApiError {
    match error {
        multer::Error::StreamReadFailed(cause) => match cause.downcast::<Broken>() {
            Ok(ours) => ours.0,
            Err(other) => ApiError::broken_body(&*other),
        },
        other => ApiError::bad_multipart(other.to_string()),
    }
}
