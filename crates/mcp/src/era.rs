//! The two eras of the protocol: since 2026-07-28 every request says its version itself; before, a handshake did. Pure.
//!
//! Both are served at one path without a session. A request belongs to the new era if its header names a version that no
//! handshake has, or if its body names one at all.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use callboard_http::axum::http::{HeaderMap, HeaderValue};
use serde_json::json;

use crate::rpc::{HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND, Message, RpcError, UNSUPPORTED_VERSION};

/// The versions of requests without a handshake.
pub(crate) const STATELESS: [&str; 1] = ["2026-07-28"];

/// The versions of the handshake, the newest first. The last has another transport, and is only told apart.
const HANDSHAKE: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// The method whose answer tells a client of the new era what there is.
pub(crate) const DISCOVER: &str = "server/discover";

pub(crate) const PROTOCOL_VERSION: &str = "mcp-protocol-version";
pub(crate) const METHOD: &str = "mcp-method";
pub(crate) const NAME: &str = "mcp-name";

/// The era of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    /// It says its version itself.
    Stateless,
    /// A handshake has come before.
    Handshake,
}

impl Era {
    pub(crate) fn of(headers: &HeaderMap, message: &Message) -> Self {
        let says_version = message.params.meta.as_ref().is_some_and(|meta| meta.version.is_some());
        let is_new = match header(headers, PROTOCOL_VERSION) {
            Some(version) => !HANDSHAKE.contains(&version),
            None => message.method == DISCOVER,
        };
        if is_new || says_version { Self::Stateless } else { Self::Handshake }
    }

    /// The HTTP status of an error. Clients of the new era tell by it whether the server is of their era.
    pub(crate) fn status_of(self, code: i32) -> u16 {
        use crate::rpc::{INVALID_REQUEST, PARSE_ERROR};
        match (code, self) {
            (PARSE_ERROR | INVALID_REQUEST | HEADER_MISMATCH | UNSUPPORTED_VERSION, _) => 400,
            (INVALID_PARAMS, Self::Stateless) => 400,
            (METHOD_NOT_FOUND, Self::Stateless) => 404,
            _ => 200,
        }
    }
}

/// The version that a handshake agrees on: the client's, or the newest.
pub(crate) fn agreed(requested: Option<&str>) -> &'static str {
    let [newest, ..] = HANDSHAKE;
    HANDSHAKE.into_iter().take(3).find(|known| Some(*known) == requested).unwrap_or(newest)
}

/// Checks what every message of the new era has to say, in the order in which clients expect the errors.
///
/// # Errors
///
/// The first thing that is missing, or that header and body say differently.
pub(crate) fn check(headers: &HeaderMap, message: &Message) -> Result<(), RpcError> {
    for name in [PROTOCOL_VERSION, METHOD, NAME] {
        if headers.get_all(name).iter().nth(1).is_some() {
            return Err(RpcError::new(HEADER_MISMATCH, format!("the header `{name}` is given twice")));
        }
    }
    let said = header(headers, PROTOCOL_VERSION);
    if message.id.is_none() {
        // Nothing is said of the headers of notifications but the version.
        return said.map_or(Ok(()), check_version);
    }
    let meta = message.params.meta.as_ref();
    let missing = |what: &str| {
        RpcError::new(INVALID_PARAMS, format!("`params._meta` must have `io.modelcontextprotocol/{what}`"))
    };
    let version = meta.and_then(|meta| meta.version.as_deref()).ok_or_else(|| missing("protocolVersion"))?;
    if !meta.is_some_and(|meta| meta.has_capabilities) {
        return Err(missing("clientCapabilities"));
    }
    let agree = |name: &str, in_header: Option<&str>, in_body: &str| match in_header {
        Some(value) if value == in_body => Ok(()),
        Some(_) => Err(RpcError::new(HEADER_MISMATCH, format!("the header `{name}` and the body differ"))),
        None => Err(RpcError::new(HEADER_MISMATCH, format!("the header `{name}` is missing"))),
    };
    agree(PROTOCOL_VERSION, said, version)?;
    agree(METHOD, header(headers, METHOD), &message.method)?;
    if let (true, Some(name)) = (message.method == "tools/call", &message.params.name) {
        agree(NAME, header(headers, NAME).and_then(decoded).as_deref(), name)?;
    }
    check_version(version)
}

fn check_version(requested: &str) -> Result<(), RpcError> {
    if STATELESS.contains(&requested) {
        return Ok(());
    }
    let data = json!({ "supported": STATELESS, "requested": requested });
    Err(RpcError { data: Some(data), ..RpcError::new(UNSUPPORTED_VERSION, "this protocol version is not supported") })
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    // What is no text equals nothing of the body.
    headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or_default().trim_matches([' ', '\t']))
}

/// A value that may be written as `=?base64?…?=`; `None` if it is not what its sender can have meant.
fn decoded(value: &str) -> Option<String> {
    let Some(inner) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(value.to_owned());
    };
    String::from_utf8(STANDARD.decode(inner).ok()?).ok()
}

/// A value as [`decoded`] reads it: in base64 if a header cannot have it, or would have it differently.
pub(crate) fn encoded(value: &str) -> String {
    let is_plain = value.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        && value.trim_matches([' ', '\t']) == value
        && !value.starts_with("=?base64?");
    if is_plain { value.to_owned() } else { format!("=?base64?{}?=", STANDARD.encode(value)) }
}

#[cfg(test)]
mod tests {
    use callboard_http::axum::http::HeaderName;

    use super::*;
    use crate::rpc;

    fn message(method: &str, version: Option<&str>, name: Option<&str>) -> Message {
        let mut params = json!({});
        if let Some(version) = version {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": version,
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        if let Some(name) = name {
            params["name"] = json!(name);
        }
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        rpc::read(&body.to_string().into()).unwrap()
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_version_that_no_handshake_has_makes_a_request_new() {
        for (header, method, version, era) in [
            (Some("2026-07-28"), "ping", None, Era::Stateless),
            (Some("1900-01-01"), "ping", None, Era::Stateless),
            (Some(" 2025-06-18 "), "ping", None, Era::Handshake),
            (Some("2024-11-05"), "ping", None, Era::Handshake),
            (Some("2025-11-25"), "ping", Some("2026-07-28"), Era::Stateless),
            (None, "initialize", None, Era::Handshake),
            (None, "tools/list", Some("2026-07-28"), Era::Stateless),
            (None, DISCOVER, None, Era::Stateless),
        ] {
            let lines: Vec<_> = header.into_iter().map(|version| (PROTOCOL_VERSION, version)).collect();
            assert_eq!(Era::of(&headers(&lines), &message(method, version, None)), era, "{header:?} {method}");
        }
    }

    #[test]
    fn header_and_body_have_to_agree() {
        let code =
            |lines: &[(&'static str, &str)], message: &Message| check(&headers(lines), message).map_err(|e| e.code);
        let version = (PROTOCOL_VERSION, "2026-07-28");
        let call = message("tools/call", Some("2026-07-28"), Some("täg"));
        let method = (METHOD, "tools/call");
        assert_eq!(code(&[version, method, (NAME, "=?base64?dMOkZw==?=")], &call), Ok(()));
        for lines in [
            &[][..],
            &[version, method],
            &[version, (NAME, "=?base64?dMOkZw==?=")],
            &[method, (NAME, "=?base64?dMOkZw==?=")],
            &[version, method, (NAME, "tag")],
            &[version, method, (NAME, "=?base64?!?=")],
            &[version, (METHOD, "tools/list"), (NAME, "=?base64?dMOkZw==?=")],
            &[(PROTOCOL_VERSION, "2026-07-29"), method, (NAME, "=?base64?dMOkZw==?=")],
            &[version, method, method, (NAME, "=?base64?dMOkZw==?=")],
        ] {
            assert_eq!(code(lines, &call), Err(HEADER_MISMATCH), "{lines:?}");
        }
        assert_eq!(code(&[version, method], &message("tools/call", None, None)), Err(INVALID_PARAMS));
        let old = message("tools/list", Some("1900-01-01"), None);
        let error = check(&headers(&[(PROTOCOL_VERSION, "1900-01-01"), (METHOD, "tools/list")]), &old).unwrap_err();
        assert_eq!(error.code, UNSUPPORTED_VERSION);
        assert_eq!(error.data, Some(json!({ "supported": ["2026-07-28"], "requested": "1900-01-01" })));
    }

    #[test]
    fn an_encoded_value_is_read_back() {
        for value in ["a", "a b", " a", "", "täg", "=?base64?YQ==?=", "a\u{7f}", "a\n"] {
            let header = HeaderValue::from_str(&encoded(value)).unwrap();
            let read = headers(&[(NAME, header.to_str().unwrap())]);
            assert_eq!(super::header(&read, NAME).and_then(decoded).as_deref(), Some(value));
        }
    }

    #[test]
    fn a_handshake_agrees_on_the_version_of_the_client_if_it_is_known() {
        for (requested, version) in [
            (Some("2025-03-26"), "2025-03-26"),
            (Some("2025-06-18"), "2025-06-18"),
            (Some("2024-11-05"), "2025-11-25"),
            (Some("2026-07-28"), "2025-11-25"),
            (None, "2025-11-25"),
        ] {
            assert_eq!(agreed(requested), version, "{requested:?}");
        }
    }
}
