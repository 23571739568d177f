//! The forms of a stream: server-sent events, lines of JSON, frames with an envelope each, and plain text.
//!
//! Each form distinguishes a complete stream, a stream that ended with an error, and a truncated one; plain text does
//! not tell the last two apart. `docs/wire.md` draws them.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::Write as _;

use axum::http::header::HeaderValue;
use bytes::Bytes;
use callboard_codec::{DataType, EncodeError, Format, MediaType, Payload};
use callboard_core::edge::CodecBudget;

use super::send_buffer::SendBuffer;
use crate::error::ApiError;
use crate::request::media::{TEXT_PLAIN, plain_types};
use crate::respond::ReplyForm;
use crate::respond::frame::{Frame, FrameKind};
use crate::respond::whole::text_of;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamForm {
    /// Server-sent events (HTML, §9.2), for browsers.
    Events,
    /// One JSON document per line, for shells.
    Lines,
    /// An envelope per frame, which holds every value.
    Envelopes,
    /// Texts, one behind the other.
    Text,
}

/// All forms, the default first. The last is for outputs that may be texts.
static FORMS: [StreamForm; 4] = [StreamForm::Events, StreamForm::Lines, StreamForm::Envelopes, StreamForm::Text];

impl StreamForm {
    /// Its name in `Accept` and `Content-Type`.
    pub(crate) const fn media_type(self) -> &'static str {
        match self {
            Self::Events => "text/event-stream",
            Self::Lines => "application/x-ndjson",
            Self::Envelopes => ENVELOPE_STREAM,
            Self::Text => TEXT_PLAIN,
        }
    }

    /// Its `Content-Type`.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Text => ReplyForm::Text.content_type(),
            Self::Events | Self::Lines | Self::Envelopes => self.media_type(),
        }
    }

    /// The forms of a stream of outputs of this type, the default first.
    pub(crate) fn all_of(output: &DataType) -> &'static [Self] {
        let has_text = plain_types(output).any(|plain| plain == TEXT_PLAIN);
        &FORMS[..FORMS.len() - usize::from(!has_text)]
    }

    /// The form that `accept` prefers, or a 406 that lists all.
    pub(crate) fn from_accept(accept: Option<&Cow<'_, HeaderValue>>, output: &DataType) -> Result<Self, ApiError> {
        let Some(accept) = accept else { return Ok(Self::Events) };
        let forms = Self::all_of(output);
        let media_types = &FORMS.map(Self::media_type)[..forms.len()];
        MediaType::choose_index(accept.to_str().unwrap_or("-"), media_types)
            .map(|index| forms[index])
            .ok_or_else(|| ApiError::not_acceptable(&media_types.join(", ")))
    }

    /// Whether the form has comments, which can break a silence.
    pub(crate) const fn has_heartbeats(self) -> bool {
        matches!(self, Self::Events)
    }

    /// Whether each item is written as JSON.
    pub(crate) const fn is_json(self) -> bool {
        matches!(self, Self::Events | Self::Lines)
    }
}

/// Frames with an envelope each.
pub(crate) const ENVELOPE_STREAM: &str = "application/vnd.callboard.envelope-stream";

/// An outcome that is encoded.
#[derive(Debug)]
pub(super) enum EncodedItem {
    /// On one line.
    Json(Bytes),
    Text(Bytes),
    Frame(Frame),
}

impl EncodedItem {
    pub(super) fn try_new(payload: &Payload, form: StreamForm) -> Result<Self, EncodeError> {
        if form == StreamForm::Envelopes {
            return Frame::try_new(FrameKind::Value, payload.to_envelope()?).map(Self::Frame);
        }
        if form == StreamForm::Text {
            return text_of(payload).map(|text| Self::Text(text.into()));
        }
        let json = payload.encode(Format::Json)?;
        Ok(Self::Json(match one_line(&json) {
            Cow::Borrowed(_) => json,
            Cow::Owned(line) => line.into(),
        }))
    }

    /// The same outcome, which keeps the account until it is sent.
    pub(super) fn held(self, budget: &CodecBudget<'_>) -> Result<Self, ApiError> {
        Ok(match self {
            Self::Json(json) => Self::Json(budget.charged(json)),
            Self::Text(text) => Self::Text(budget.charged(text)),
            Self::Frame(frame) => {
                budget.charge_outcome(frame.shared_bytes())?;
                Self::Frame(frame.held(budget))
            }
        })
    }
}

/// Writes one stream.
#[derive(Debug)]
pub(super) struct StreamWriter {
    form: StreamForm,
    /// Items written so far.
    items: u64,
}

impl StreamWriter {
    pub(super) fn new(form: StreamForm) -> Self {
        Self { form, items: 0 }
    }

    pub(super) fn form(&self) -> StreamForm {
        self.form
    }

    /// Writes one outcome.
    pub(super) fn item(&mut self, item: EncodedItem, out: &mut SendBuffer) {
        match item {
            EncodedItem::Json(json) if self.form == StreamForm::Events => {
                let id = self.items;
                event(format_args!("id: {id}\n"), json, out);
            }
            EncodedItem::Json(json) => {
                out.push(json);
                out.last().push(b'\n');
            }
            EncodedItem::Text(text) => out.push(text),
            EncodedItem::Frame(frame) => write(frame, out),
        }
        self.items += 1;
    }

    /// Writes the error that ends the stream. False: the form has no place for it.
    pub(super) fn error(&self, error: &ApiError, request_id: &str, sends_trace: bool, out: &mut SendBuffer) -> bool {
        let problem = || error.to_problem(request_id, sends_trace);
        match self.form {
            StreamForm::Events => event(format_args!("event: error\n"), problem().into(), out),
            StreamForm::Lines => [&b"{\"error\":"[..], &problem(), b"}\n"].iter().for_each(|part| {
                out.last().extend_from_slice(part);
            }),
            StreamForm::Envelopes => write(Frame::from_problem(error, request_id, sends_trace), out),
            StreamForm::Text => return false,
        }
        true
    }

    /// Writes the timeline, in the only form with a place for it.
    pub(super) fn timeline(&self, json: &str, out: &mut SendBuffer) {
        if self.form == StreamForm::Events {
            event(format_args!("event: timeline\n"), Bytes::copy_from_slice(json.as_bytes()), out);
        }
    }

    /// Writes the end of a complete stream.
    pub(super) fn end(&self, out: &mut SendBuffer) {
        match self.form {
            StreamForm::Events => {
                let items = format!("{{\"items\":{}}}", self.items);
                event(format_args!("event: end\n"), items.into(), out);
            }
            // The end of the body marks it: a truncated body has none.
            StreamForm::Lines | StreamForm::Text => {}
            StreamForm::Envelopes => write(Frame::END, out),
        }
    }
}

fn write(frame: Frame, out: &mut SendBuffer) {
    let mut pieces = VecDeque::new();
    frame.write(&mut pieces);
    pieces.into_iter().for_each(|piece| out.push(piece));
}

/// The same JSON on one line. A type that brings its own text (`serde_json`'s `RawValue`) may have line breaks, which
/// mean nothing in JSON but would end a line or an event.
#[must_use]
pub(crate) fn one_line(json: &[u8]) -> Cow<'_, [u8]> {
    if !json.contains(&b'\n') && !json.contains(&b'\r') {
        return json.into();
    }
    json.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }).collect::<Vec<u8>>().into()
}

/// Writes one event with [one line](one_line) of JSON.
fn event(head: std::fmt::Arguments<'_>, json: Bytes, out: &mut SendBuffer) {
    // Writing to memory does not fail.
    let _ = out.last().write_fmt(head);
    out.last().extend_from_slice(b"data: ");
    out.push(json);
    out.last().extend_from_slice(b"\n\n");
}
