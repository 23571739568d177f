//! Errors of requests, in the words that clients of the protocol know.

use std::fmt;

use callboard_http::axum::http::StatusCode;

use callboard_http::protocol::ApiError;

/// A request that is refused: 400, or 501 for a feature that is not offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    message: String,
    is_unsupported: bool,
}

/// The most characters of a client's text that are repeated to it.
const MAX_SHOWN_CHARS: usize = 64;

impl Refusal {
    /// 400 with this message.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_unsupported: false }
    }

    /// 501: a feature that is not offered.
    #[must_use]
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_unsupported: true }
    }

    pub(crate) fn unknown_input(name: &str, model: &str, known: &str) -> Self {
        Self::new(format!("unexpected inference input '{}' for model '{model}': it takes {known}", shown(name)))
    }

    pub(crate) fn unknown_output(name: &str, model: &str, known: &str) -> Self {
        Self::new(format!("unexpected inference output '{}' for model '{model}': it gives {known}", shown(name)))
    }

    pub(crate) fn wrong_size(name: &str, expected: usize, got: usize) -> Self {
        Self::new(format!("input '{}' got unexpected byte size {got}, expecting {expected} bytes", shown(name)))
    }

    /// 400: an input has another number of elements than its shape says.
    #[must_use]
    pub fn wrong_count(name: &str, expected: usize, got: usize) -> Self {
        let elements = if got == 1 { "element" } else { "elements" };
        Self::new(format!("unexpected size for input '{}': {got} {elements}, expecting {expected}", shown(name)))
    }

    pub(crate) fn too_many_elements(name: &str, count: usize, most: usize) -> Self {
        Self::new(format!("input '{}' has {count} elements of BYTES, more than max_elements = {most}", shown(name)))
    }

    pub(crate) fn shape_too_large(name: &str, shape: &[usize]) -> Self {
        Self::new(format!("shape {shape:?} of input '{}' is too large to be held", shown(name)))
    }

    pub(crate) fn broken_element(name: &str, index: usize, missing: usize) -> Self {
        Self::new(format!(
            "incomplete BYTES data for input '{}': element {index} lacks {missing} of its bytes",
            shown(name)
        ))
    }

    pub(crate) fn unparsable(name: &str, why: impl fmt::Display) -> Self {
        Self::new(format!("unable to parse 'data' of input '{}': {why}", shown(name)))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let (status, error_type) = if refusal.is_unsupported {
            (StatusCode::NOT_IMPLEMENTED, "unsupported")
        } else {
            (StatusCode::BAD_REQUEST, "bad_inference_request")
        };
        Self::with_status(status, error_type, refusal.message)
    }
}

/// A client's text, shortened.
#[must_use]
pub fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN_CHARS).collect()
}
