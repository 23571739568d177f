//! One message of a node as a line for the host. Pure.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::rpc::Id;

/// A line without its end.
#[derive(Debug)]
pub(super) enum Passed {
    /// Ends the exchange.
    Answer(Vec<u8>),
    /// Progress.
    Notification(Vec<u8>),
}

#[derive(Deserialize)]
struct AnswerJson<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct RefusalJson<'a> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    error: &'a RawValue,
}

/// The line of a message; `None` if it is none. A refusal by a guard of the edge, which had not read the id, gets the
/// id of its request: a host would wait for it for ever.
pub(super) fn passed(id: &Id, mut message: Vec<u8>) -> Option<Passed> {
    let AnswerJson { id: said, method, result, error } = serde_json::from_slice(&message).ok()?;
    match (result, error) {
        (None, None) if method.is_some() && said.is_none() => {}
        (None, Some(error)) if said.is_none() => {
            let refusal = RefusalJson { jsonrpc: "2.0", id: id.as_raw(), error };
            return Some(Passed::Answer(on_one_line(serde_json::to_vec(&refusal).ok()?)));
        }
        (Some(_), None) | (None, Some(_)) => {
            message = on_one_line(message);
            return Some(Passed::Answer(message));
        }
        _ => return None,
    }
    Some(Passed::Notification(on_one_line(message)))
}

/// In JSON a line break is only ever between tokens.
fn on_one_line(mut json: Vec<u8>) -> Vec<u8> {
    for byte in &mut json {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    json
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::rpc;

    fn id() -> Id {
        rpc::read(&Bytes::from_static(br#"{"jsonrpc":"2.0","id":"a","method":"ping"}"#)).unwrap().id.unwrap()
    }

    #[test]
    fn each_message_is_one_line_and_a_refusal_gets_its_id() {
        for (message, is_answer, line) in [
            (
                "{\"jsonrpc\":\"2.0\",\r\n\"id\":7,\"result\":{}}",
                true,
                "{\"jsonrpc\":\"2.0\",  \"id\":7,\"result\":{}}",
            ),
            (
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no key"}}"#,
                true,
                r#"{"jsonrpc":"2.0","id":"a","error":{"code":-32000,"message":"no key"}}"#,
            ),
            (r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#, false, ""),
        ] {
            let (passed_line, kind) = match passed(&id(), message.into()).unwrap() {
                Passed::Answer(line) => (line, true),
                Passed::Notification(line) => (line, false),
            };
            assert_eq!(kind, is_answer, "{message}");
            let expected = if line.is_empty() { message } else { line };
            assert_eq!(String::from_utf8(passed_line).unwrap(), expected);
        }
        for other in ["", "<html>", "[]", "{}", r#"{"id":1,"method":"sampling/createMessage"}"#] {
            assert!(passed(&id(), other.into()).is_none(), "{other}");
        }
    }
}
