//! One line of a host as a message for a node: its body, and the headers that say the same. Pure.

use bytes::Bytes;
use callboard_http::axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::exchange::HostMessage;
use crate::era::{METHOD, NAME, PROTOCOL_VERSION, encoded};
use crate::rpc::{self, Id, Message};

/// Tells a node that a closed connection is a cancel, also for a message of the handshake's era: the bridge closes one
/// only if its host has cancelled, or is gone.
pub(crate) const CLOSING_CANCELS: HeaderName = HeaderName::from_static("callboard-closing-cancels");

/// What a line is.
#[derive(Debug)]
pub(crate) enum Line {
    Request(HostRequest),
    /// The request that the host no longer waits for.
    Cancel(Id),
    /// A blank line, another notification, or an answer: a node asks nothing, and notifications change nothing on it.
    Ignored,
    /// No message; the answer says why.
    Refused(Vec<u8>),
}

#[derive(Debug)]
pub(crate) struct HostRequest {
    pub(crate) id: Id,
    pub(crate) message: HostMessage,
}

/// Reads a line.
pub(crate) fn read(line: Bytes) -> Line {
    if line.iter().all(u8::is_ascii_whitespace) {
        return Line::Ignored;
    }
    match rpc::read(&line) {
        Ok(Message { id: Some(id), method, params }) => {
            let version = params.meta.and_then(|meta| meta.version);
            let headers = headers(version.as_deref(), &method, params.name.as_deref());
            Line::Request(HostRequest { id, message: HostMessage { headers, body: line } })
        }
        Ok(Message { id: None, method, params }) => match params.cancelled {
            Some(id) if method == "notifications/cancelled" => Line::Cancel(id),
            _ => Line::Ignored,
        },
        Err(_) if is_answer(&line) => Line::Ignored,
        Err((id, error)) => Line::Refused(rpc::error(id.as_ref(), &error)),
    }
}

/// The headers of a message. A value that no header can have is left out, and the node says what is missing.
fn headers(version: Option<&str>, method: &str, name: Option<&str>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CLOSING_CANCELS, HeaderValue::from_static("1"));
    let Some(version) = version else { return headers };
    let mut insert = |header: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(header, value);
        }
    };
    insert(PROTOCOL_VERSION, version);
    insert(METHOD, method);
    if let (Some(name), "tools/call") = (name, method) {
        insert(NAME, &encoded(name));
    }
    headers
}

fn is_answer(line: &Bytes) -> bool {
    #[derive(Deserialize)]
    struct Members<'a> {
        #[serde(borrow, default)]
        method: Option<&'a RawValue>,
        #[serde(borrow, default)]
        result: Option<&'a RawValue>,
        #[serde(borrow, default)]
        error: Option<&'a RawValue>,
    }
    serde_json::from_slice::<Members<'_>>(line)
        .is_ok_and(|members| members.method.is_none() && (members.result.is_some() || members.error.is_some()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn line(message: &Value) -> Line {
        read(message.to_string().into())
    }

    fn lines_of(headers: &HeaderMap) -> Vec<(&str, &str)> {
        headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect()
    }

    #[test]
    fn a_request_of_the_new_era_has_the_headers_that_its_body_says() {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}
        });
        let params = json!({ "name": "täg", "_meta": meta });
        let Line::Request(request) =
            line(&json!({ "jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": params }))
        else {
            panic!("a request")
        };
        let expected = [
            ("callboard-closing-cancels", "1"),
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "tools/call"),
            ("mcp-name", "=?base64?dMOkZw==?="),
        ];
        assert_eq!(lines_of(&request.message.headers), expected);
        let message = rpc::read(&request.message.body).unwrap();
        assert_eq!(crate::era::check(&request.message.headers, &message), Ok(()));

        let Line::Request(old) = line(&json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" })) else {
            panic!("a request")
        };
        assert_eq!(lines_of(&old.message.headers), expected[..1]);
    }

    #[test]
    fn a_cancel_names_its_request_and_answers_are_ignored() {
        let cancel = |id: Value| {
            line(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } }))
        };
        let Line::Cancel(id) = cancel(json!("a")) else { panic!("a cancel") };
        let Line::Request(request) = line(&json!({ "jsonrpc": "2.0", "id": "a", "method": "ping" })) else {
            panic!("a request")
        };
        assert!(id == request.id);
        assert!(matches!(cancel(json!([])), Line::Ignored));
        for ignored in [
            json!({ "jsonrpc": "2.0", "id": 1, "result": {} }),
            json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": 1, "message": "" } }),
            json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
        ] {
            assert!(matches!(line(&ignored), Line::Ignored), "{ignored}");
        }
        assert!(matches!(read(Bytes::from_static(b" \r")), Line::Ignored));
        assert!(matches!(read(Bytes::from_static(b"{")), Line::Refused(_)));
        assert!(matches!(read(Bytes::from_static(b"[]")), Line::Refused(_)));
    }
}
