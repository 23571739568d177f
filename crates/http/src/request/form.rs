//! A form of either media type, which is not decoded.

use callboard_codec::{DataType, DecodeLimits};

use super::multipart::{FormFields, MultipartForm};
use super::urlencoded::UrlEncodedForm;
use crate::error::ApiError;

/// The body of a form.
#[derive(Debug)]
pub(crate) enum ReceivedForm {
    /// With parts, some of which may be files.
    Multipart(MultipartForm),
    /// With texts.
    UrlEncoded(UrlEncodedForm),
}

impl ReceivedForm {
    /// The bytes that are decoded or checked.
    pub(crate) fn read_bytes(&self) -> usize {
        match self {
            Self::Multipart(form) => form.read_bytes(),
            Self::UrlEncoded(form) => form.read_bytes(),
        }
    }

    /// The memory of all values.
    pub(crate) fn value_bytes(&self) -> usize {
        match self {
            Self::Multipart(form) => form.value_bytes(),
            Self::UrlEncoded(form) => form.value_bytes(),
        }
    }

    /// Decodes all fields. `exact` is the type by which a part of this name is read if it is JSON with decimals.
    pub(crate) fn decode(
        &self,
        limits: &DecodeLimits,
        exact: impl Fn(&str) -> Option<DataType>,
    ) -> Result<FormFields, ApiError> {
        match self {
            Self::Multipart(form) => form.decode(limits, exact),
            Self::UrlEncoded(form) => form.decode(limits),
        }
    }
}
