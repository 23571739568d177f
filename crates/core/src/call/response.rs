//! What user code chooses of a successful answer beside its output.

use serde::Deserialize;

use crate::error::limit_headers;

/// The status and the headers that user code chooses for a successful answer over HTTP; see
/// [`CallContext::set_response`](crate::CallContext::set_response).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseFields {
    status: Option<u16>,
    headers: Vec<(String, String)>,
}

/// What a route says of its successful answers over HTTP, for its clients. Its answers have it where its code chooses
/// nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct DeclaredResponse {
    /// The status; 200 if it says none.
    pub status: Option<u16>,
    /// The media type of an output that is a text or bytes.
    pub media_type: Option<String>,
    /// A line for people.
    pub description: Option<String>,
    /// Whether its code may choose any media type: a request is not refused because of its `accept` if none is
    /// declared.
    #[serde(default)]
    pub chooses_media_type: bool,
}

impl DeclaredResponse {
    /// What two steps of a pipeline say, one after the other: each field is that of the last one that has it. A step
    /// that chooses its media type has none of an earlier one.
    #[must_use]
    pub fn followed_by(self, later: Self) -> Self {
        let media_type = self.media_type.filter(|_| !later.chooses_media_type);
        Self {
            status: later.status.or(self.status),
            media_type: later.media_type.or(media_type),
            description: later.description.or(self.description),
            chooses_media_type: later.chooses_media_type || self.chooses_media_type,
        }
    }

    /// What an answer has of which its code has chosen this.
    pub(crate) fn completed(declared: Option<&Self>, chosen: Option<ResponseFields>) -> Option<ResponseFields> {
        let Some(declared) = declared else { return chosen };
        let mut fields = chosen.unwrap_or_default();
        if let (None, Some(status)) = (fields.status, declared.status) {
            fields = fields.with_status(status);
        }
        match &declared.media_type {
            Some(media_type) if !fields.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(CONTENT_TYPE)) => {
                Some(fields.with_header(CONTENT_TYPE, media_type))
            }
            _ => Some(fields),
        }
    }
}

const CONTENT_TYPE: &str = "content-type";

impl ResponseFields {
    /// Chooses nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses the status, from 200 to 599. Another number is ignored.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = (200..600).contains(&status).then_some(status);
        self
    }

    /// Adds a header. The HTTP edge fails a call whose header is invalid or the edge's own (`content-length` and so on:
    /// `docs/http.md`). `content-type` is the media type of an output that is a text or bytes. A name may be there more
    /// than once, such as `set-cookie`. A header beyond 16, or beyond 2 KiB for all of them, is ignored.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        limit_headers(&mut self.headers);
        self
    }

    /// The chosen status.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// The chosen headers, in order.
    #[must_use]
    pub fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    /// Adds the choice of a later stage: its status, and its headers in the place of those with the same names.
    pub(crate) fn replace_by(&mut self, later: Self) {
        self.status = later.status.or(self.status);
        self.headers.retain(|(name, _)| !later.headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)));
        self.headers.extend(later.headers);
        limit_headers(&mut self.headers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_stage_replaces_what_it_names() {
        let mut fields =
            ResponseFields::new().with_status(201).with_header("x-a", "1").with_header("Set-Cookie", "a=1");
        fields.replace_by(ResponseFields::new().with_header("set-cookie", "b=2").with_header("set-cookie", "c=3"));
        let headers = [("x-a", "1"), ("set-cookie", "b=2"), ("set-cookie", "c=3")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!((fields.status(), fields.headers()), (Some(201), &headers[..]));
        fields.replace_by(ResponseFields::new().with_status(404).with_status(99));
        assert_eq!(fields.status(), Some(201), "a status that HTTP does not have is none");
    }

    #[test]
    fn an_answer_has_what_is_declared_where_its_code_chooses_nothing_else() {
        let media_type = Some("text/csv".to_owned());
        let declared = DeclaredResponse { status: Some(201), media_type, ..DeclaredResponse::default() };
        let completed = |chosen| DeclaredResponse::completed(Some(&declared), chosen);
        let fields = ResponseFields::new().with_status(201).with_header("content-type", "text/csv");
        assert_eq!(completed(None), Some(fields));
        let chosen = ResponseFields::new().with_status(404).with_header("Content-Type", "text/html");
        assert_eq!(completed(Some(chosen.clone())), Some(chosen.clone()));
        assert_eq!(DeclaredResponse::completed(None, Some(chosen.clone())), Some(chosen));
        assert_eq!(DeclaredResponse::completed(None, None), None);
    }

    #[test]
    fn of_two_steps_the_last_one_that_declares_a_field_counts() {
        let said = |status, media_type: Option<&str>, chooses_media_type| {
            let media_type = media_type.map(str::to_owned);
            DeclaredResponse { status, media_type, chooses_media_type, description: None }
        };
        let (first, none) = (said(Some(201), Some("text/csv"), false), said(None, None, false));
        assert_eq!(first.clone().followed_by(none.clone()), first);
        assert_eq!(none.followed_by(first.clone()), first);
        assert_eq!(
            first.clone().followed_by(said(None, Some("text/html"), false)),
            said(Some(201), Some("text/html"), false)
        );
        assert_eq!(
            first.clone().followed_by(said(Some(202), None, true)),
            said(Some(202), None, true),
            "its code chooses"
        );
        assert_eq!(said(None, None, true).followed_by(first), said(Some(201), Some("text/csv"), true));
    }

    #[test]
    fn headers_have_the_limits_of_those_of_an_error() {
        let many = (0..100).fold(ResponseFields::new(), |fields, n| fields.with_header(format!("x-{n}"), "1"));
        assert_eq!(many.headers().len(), 16);
        let long = ResponseFields::new().with_header("x-a", "b".repeat(2_048)).with_header("x-b", "c");
        assert_eq!(long.headers(), [("x-b".to_owned(), "c".to_owned())]);
    }
}
