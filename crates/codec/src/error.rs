//! Errors of decoding and encoding, with their place: field, byte and limit.
//!
//! Both errors are one pointer wide, so that a `Result` on the request path stays small; the rest is in a box that only
//! a failure allocates. A decoder reports the fault, and each outer level adds its step of the path, so that success
//! pays nothing for it.

use std::fmt::{self, Write as _};

use crate::account::{ChargeError, ExceededLimit};
use crate::quoting::Shortened;

/// The reason why an input was refused. `kind()` decides the reaction, `Display` is for the sender.
///
/// ```
/// use callboard_codec::{DecodeErrorKind, DecodeLimits, Format, Value};
///
/// let input = r#"{"image": {"pixels": [1, 2, 3, NaN]}}"#;
/// let error = Value::decode(Format::Json, &input.into(), &DecodeLimits::default()).unwrap_err();
/// assert_eq!(error.kind(), DecodeErrorKind::Malformed);
/// assert_eq!(error.path(), "$.image.pixels[3]");
/// let message = "NaN and Infinity are not JSON: send null or a string at $.image.pixels[3] (byte 31)";
/// assert_eq!(error.to_string(), message);
/// ```
#[derive(Debug)]
pub struct DecodeError(Box<DecodeErrorInner>);

#[derive(Debug)]
struct DecodeErrorInner {
    kind: DecodeErrorKind,
    message: String,
    path: String,
    offset: Option<usize>,
    limit: Option<ExceededLimit>,
}

/// The kind of a [`DecodeError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// The bytes are not of the claimed format, end too early, or continue after the end. Remedy: repair the sender.
    Malformed,
    /// Well-formed, but not of the expected type: a missing field, a string for a number, a wrong shape. Remedy: read
    /// the schema of the route. (Litmus test: would another route accept these bytes? Then it is a mismatch, else
    /// malformed.)
    Mismatch,
    /// One of [`DecodeLimits`](crate::DecodeLimits) was reached. Remedy: send less, or raise the limit that `limit()`
    /// names.
    LimitExceeded,
    /// A part of the format that is not supported: an unknown extension type, an unknown dtype.
    Unsupported,
    /// Other calls hold the memory budget at the moment. Remedy: try again later. (Litmus test: would the same input be
    /// read on an idle node? Then it is this, else `LimitExceeded`.)
    Exhausted,
    /// The work was stopped: the call was cancelled, or its deadline passed.
    Stopped,
}

impl DecodeError {
    /// The kind of the fault.
    #[must_use]
    pub fn kind(&self) -> DecodeErrorKind {
        self.0.kind
    }

    /// The message, without the place.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The place in the value: `$` is the whole value, `$.image.pixels[3]` one number in it.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.0.path
    }

    /// The byte of the input at which the fault was noticed, where the format has bytes.
    #[must_use]
    pub fn offset(&self) -> Option<usize> {
        self.0.offset
    }

    /// The limit that was reached, if one was.
    #[must_use]
    pub fn limit(&self) -> Option<ExceededLimit> {
        self.0.limit
    }

    fn new(kind: DecodeErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(DecodeErrorInner {
            kind,
            message: message.into(),
            path: "$".to_owned(),
            offset: None,
            limit: None,
        }))
    }

    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::new(DecodeErrorKind::Malformed, message)
    }

    pub(crate) fn mismatch(message: impl Into<String>) -> Self {
        Self::new(DecodeErrorKind::Mismatch, message)
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(DecodeErrorKind::Unsupported, message)
    }

    pub(crate) fn limit_exceeded(name: &'static str, max: usize, what: String) -> Self {
        let mut error = Self::new(DecodeErrorKind::LimitExceeded, format!("{what} {name} = {max}"));
        error.0.limit = Some(ExceededLimit { name, max });
        error
    }

    pub(crate) fn too_deep(max_depth: usize) -> Self {
        Self::limit_exceeded("max_depth", max_depth, "nesting exceeds".to_owned())
    }

    /// Sets the byte, unless a deeper level has set it.
    pub(crate) fn at_offset(mut self, offset: usize) -> Self {
        self.0.offset.get_or_insert(offset);
        self
    }

    /// For an error inside a part that starts at `start`: makes its byte count from the start of the input.
    pub(crate) fn shifted(mut self, start: usize) -> Self {
        self.0.offset = Some(self.0.offset.unwrap_or(0) + start);
        self
    }

    /// Removes a byte offset that is not an offset in the input.
    pub(crate) fn without_offset(mut self) -> Self {
        self.0.offset = None;
        self
    }

    /// Puts a map key before the path so far.
    pub(crate) fn in_key(mut self, key: &str) -> Self {
        push_front(&mut self.0.path, &key_step(key));
        self
    }

    /// Puts a list index before the path so far.
    pub(crate) fn in_index(mut self, index: usize) -> Self {
        push_front(&mut self.0.path, &format!("[{index}]"));
        self
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        write_path(f, &self.0.path)?;
        match self.0.offset {
            Some(offset) => write!(f, " (byte {offset})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for DecodeError {}

impl From<ChargeError> for DecodeError {
    fn from(error: ChargeError) -> Self {
        match error {
            ChargeError::TooLarge(ExceededLimit { name, max }) => {
                Self::limit_exceeded(name, max, "what the input becomes takes more memory than".to_owned())
            }
            ChargeError::Exhausted(_) => Self::new(DecodeErrorKind::Exhausted, error.to_string()),
            ChargeError::Stopped => Self::new(DecodeErrorKind::Stopped, error.to_string()),
        }
    }
}

impl serde::de::Error for DecodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::mismatch(Shortened(message).to_string())
    }
}

/// The reason why a value could not be written: always a fault of the sender, with type and place.
#[derive(Debug)]
pub struct EncodeError(Box<EncodeErrorInner>);

#[derive(Debug)]
struct EncodeErrorInner {
    kind: EncodeErrorKind,
    type_name: String,
    message: String,
    path: String,
    limit: Option<ExceededLimit>,
}

/// The kind of an [`EncodeError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EncodeErrorKind {
    /// The format has no form for a part of the value, or the type's own `Serialize` failed. Remedy: another format or
    /// value.
    Unsupported,
    /// The encoded form takes more memory than a limit allows, even in an idle process. Remedy: a denser format, or a
    /// higher limit.
    LimitExceeded,
    /// Other calls hold the memory budget at the moment. Remedy: try again later.
    Exhausted,
    /// The work was stopped: the call was cancelled, or its deadline passed.
    Stopped,
}

impl EncodeError {
    /// The kind of the fault.
    #[must_use]
    pub fn kind(&self) -> EncodeErrorKind {
        self.0.kind
    }

    /// The limit that was reached, if one was.
    #[must_use]
    pub fn limit(&self) -> Option<ExceededLimit> {
        self.0.limit
    }

    /// The Rust type, or the kind of [`Value`](crate::Value), that could not be encoded.
    #[must_use]
    pub fn type_name(&self) -> &str {
        &self.0.type_name
    }

    /// The message, without the place.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The place in the value, as in [`DecodeError::path`].
    #[must_use]
    pub fn path(&self) -> &str {
        &self.0.path
    }

    pub(crate) fn new(type_name: impl Into<String>, message: impl Into<String>) -> Self {
        Self::with_kind(EncodeErrorKind::Unsupported, type_name.into(), message.into())
    }

    fn with_kind(kind: EncodeErrorKind, type_name: String, message: String) -> Self {
        Self(Box::new(EncodeErrorInner { kind, type_name, message, path: "$".to_owned(), limit: None }))
    }

    pub(crate) fn limit_exceeded(name: &'static str, max: usize, what: String) -> Self {
        let mut error =
            Self::with_kind(EncodeErrorKind::LimitExceeded, String::new(), format!("{what} {name} = {max}"));
        error.0.limit = Some(ExceededLimit { name, max });
        error
    }

    pub(crate) fn too_deep(type_name: &str, max_depth: usize) -> Self {
        Self::new(type_name, format!("nested deeper than {max_depth} levels"))
    }

    /// Sets the type, unless it is set.
    pub(crate) fn with_type(mut self, type_name: &str) -> Self {
        if self.0.type_name.is_empty() {
            type_name.clone_into(&mut self.0.type_name);
        }
        self
    }

    pub(crate) fn in_key(mut self, key: &str) -> Self {
        push_front(&mut self.0.path, &key_step(key));
        self
    }

    pub(crate) fn in_index(mut self, index: usize) -> Self {
        push_front(&mut self.0.path, &format!("[{index}]"));
        self
    }
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.type_name.as_str() {
            "" => write!(f, "cannot encode: {}", self.0.message)?,
            name => write!(f, "cannot encode {name}: {}", self.0.message)?,
        }
        write_path(f, &self.0.path)
    }
}

impl std::error::Error for EncodeError {}

impl From<ChargeError> for EncodeError {
    fn from(error: ChargeError) -> Self {
        match error {
            ChargeError::TooLarge(ExceededLimit { name, max }) => {
                Self::limit_exceeded(name, max, "the encoded form takes more memory than".to_owned())
            }
            ChargeError::Exhausted(_) => Self::with_kind(EncodeErrorKind::Exhausted, String::new(), error.to_string()),
            ChargeError::Stopped => Self::with_kind(EncodeErrorKind::Stopped, String::new(), error.to_string()),
        }
    }
}

/// An encoded value that is written in another form is read first.
impl From<DecodeError> for EncodeError {
    fn from(error: DecodeError) -> Self {
        let kind = match error.kind() {
            DecodeErrorKind::LimitExceeded => EncodeErrorKind::LimitExceeded,
            DecodeErrorKind::Exhausted => EncodeErrorKind::Exhausted,
            DecodeErrorKind::Stopped => EncodeErrorKind::Stopped,
            DecodeErrorKind::Malformed | DecodeErrorKind::Mismatch | DecodeErrorKind::Unsupported => {
                EncodeErrorKind::Unsupported
            }
        };
        let mut other = Self::with_kind(kind, String::new(), error.to_string());
        other.0.limit = error.limit();
        other
    }
}

/// A value that is read as another type is written first.
impl From<EncodeError> for DecodeError {
    fn from(error: EncodeError) -> Self {
        let kind = match error.kind() {
            EncodeErrorKind::Unsupported => DecodeErrorKind::Mismatch,
            EncodeErrorKind::LimitExceeded => DecodeErrorKind::LimitExceeded,
            EncodeErrorKind::Exhausted => DecodeErrorKind::Exhausted,
            EncodeErrorKind::Stopped => DecodeErrorKind::Stopped,
        };
        let mut other = Self::new(kind, error.to_string());
        other.0.limit = error.limit();
        other
    }
}

impl serde::ser::Error for EncodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new("", message.to_string())
    }
}

/// The longest part of a key in a path: a key is input and may be megabytes.
const MAX_KEY_CHARS: usize = 64;
/// The longest path that is printed whole. Depth alone can make thousands of characters.
const MAX_SHOWN_CHARS: usize = 160;

fn push_front(path: &mut String, step: &str) {
    path.insert_str(1, step);
}

/// `.name` for a plain name, `["what ever"]` for anything else.
fn key_step(key: &str) -> String {
    let plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let shown: String = key.chars().take(MAX_KEY_CHARS).collect();
    let more = if shown.len() < key.len() { "…" } else { "" };
    if plain { format!(".{shown}{more}") } else { format!("[{:?}]", format!("{shown}{more}")) }
}

fn write_path(f: &mut fmt::Formatter<'_>, path: &str) -> fmt::Result {
    if path == "$" {
        return Ok(());
    }
    f.write_str(" at ")?;
    let chars = path.chars().count();
    if chars <= MAX_SHOWN_CHARS {
        return f.write_str(path);
    }
    // Head and tail are kept: the outer field and the innermost step.
    path.chars().take(MAX_SHOWN_CHARS / 2).try_for_each(|c| f.write_char(c))?;
    f.write_char('…')?;
    path.chars().skip(chars - MAX_SHOWN_CHARS / 2).try_for_each(|c| f.write_char(c))
}
