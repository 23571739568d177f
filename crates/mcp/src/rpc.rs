//! JSON-RPC 2.0: the one message of a body, and the answers to it. Pure.
//!
//! The body is walked without a tree: of its members only those that this crate reads are kept, and the arguments of a
//! tool stay a part of the body. Texts that are kept are short, so a message costs no more than its own bytes.

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer};
use serde::{Deserialize as DeriveDeserialize, Serialize};
use serde_json::Value as Json;
use serde_json::value::RawValue;

/// The codes of JSON-RPC, and those of the protocol.
pub(crate) const PARSE_ERROR: i32 = -32700;
pub(crate) const INVALID_REQUEST: i32 = -32600;
pub(crate) const METHOD_NOT_FOUND: i32 = -32601;
pub(crate) const INVALID_PARAMS: i32 = -32602;
pub(crate) const INTERNAL_ERROR: i32 = -32603;
pub(crate) const HEADER_MISMATCH: i32 = -32020;
pub(crate) const UNSUPPORTED_VERSION: i32 = -32022;
/// A refusal before the message was read: by a guard, or for lack of room.
pub(crate) const REFUSED: i32 = -32000;

/// The longest JSON of a text that is kept.
const MAX_TEXT_BYTES: usize = 1024;

/// The id of a request, as it was sent: a text or a number.
#[derive(Clone, Debug)]
pub(crate) struct Id(Box<RawValue>);

impl Id {
    pub(crate) fn as_raw(&self) -> &RawValue {
        &self.0
    }
}

/// As they were sent: a client writes the id of its request in one way.
impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

/// An error of JSON-RPC.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RpcError {
    pub(crate) code: i32,
    pub(crate) message: String,
    pub(crate) data: Option<Json>,
}

impl RpcError {
    pub(crate) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }
}

/// A request, or a notification, which has no id.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) id: Option<Id>,
    pub(crate) method: String,
    pub(crate) params: Params,
}

/// The parameters that the methods of this crate read.
#[derive(Debug, Default)]
pub(crate) struct Params {
    pub(crate) meta: Option<Meta>,
    /// The tool.
    pub(crate) name: Option<String>,
    /// The arguments of the tool, as a part of the body.
    pub(crate) arguments: Option<Bytes>,
    /// The version that a handshake asks for.
    pub(crate) protocol_version: Option<String>,
    /// The request that `notifications/cancelled` names, if it is an id.
    pub(crate) cancelled: Option<Id>,
}

/// What `_meta` of a request says.
#[derive(Debug, Default)]
pub(crate) struct Meta {
    /// A version that is no text counts as empty.
    pub(crate) version: Option<String>,
    pub(crate) has_capabilities: bool,
    /// A text or a number, as it was sent.
    pub(crate) progress_token: Option<Box<RawValue>>,
}

#[derive(DeriveDeserialize)]
struct MessageJson<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
}

#[derive(Default, DeriveDeserialize)]
struct ParamsJson<'a> {
    #[serde(borrow, default, deserialize_with = "present", rename = "_meta")]
    meta: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    name: Option<&'a RawValue>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present", rename = "protocolVersion")]
    protocol_version: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "requestId")]
    request_id: Option<&'a RawValue>,
}

#[derive(DeriveDeserialize)]
struct MetaJson<'a> {
    #[serde(borrow, default, deserialize_with = "present", rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present", rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present", rename = "progressToken")]
    progress_token: Option<&'a RawValue>,
}

/// A member that is there, also if it is null.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Reads the message of a body.
///
/// # Errors
///
/// No JSON, or no single message of JSON-RPC; with the id, if it was read by then.
pub(crate) fn read(body: &Bytes) -> Result<Message, (Option<Id>, RpcError)> {
    let invalid = |message: &str| RpcError::new(INVALID_REQUEST, message);
    let MessageJson { jsonrpc, id, method, params } = members(body).map_err(|error| (None, error))?;
    let id = match id.map(|raw| is_text_or_number(raw).then(|| Id(raw.to_owned()))) {
        None => None,
        Some(Some(id)) => Some(id),
        Some(None) => {
            let message = format!("`id` must be a number, or a text of at most {MAX_TEXT_BYTES} bytes of JSON");
            return Err((None, invalid(&message)));
        }
    };
    let with_id = |error| (id.clone(), error);
    if jsonrpc.and_then(text).as_deref() != Some("2.0") {
        return Err(with_id(invalid("`jsonrpc` must be \"2.0\"")));
    }
    let method = method.and_then(text);
    let method = method.ok_or_else(|| with_id(invalid("`method` must be a text: this server sends no requests")))?;
    let params = match params {
        None => Params::default(),
        Some(params) => self::params(body, params).map_err(with_id)?,
    };
    Ok(Message { id, method, params })
}

/// The members of a message. A body that is no message is read a second time, to say what is wrong with it.
fn members(body: &[u8]) -> Result<MessageJson<'_>, RpcError> {
    let invalid = |message: &str| RpcError::new(INVALID_REQUEST, message);
    // A list would be read as the members in their order.
    let may_be_object = body.trim_ascii_start().first() == Some(&b'{');
    if may_be_object
        && let Ok(message) =
            std::str::from_utf8(body).map_err(drop).and_then(|text| serde_json::from_str(text).map_err(drop))
    {
        return Ok(message);
    }
    let json: &RawValue = serde_json::from_slice(body)
        .map_err(|error| RpcError::new(PARSE_ERROR, format!("the body is not JSON: {error}")))?;
    if !is_object(json) {
        return Err(invalid("the body must be one JSON-RPC request or notification, not a list"));
    }
    serde_json::from_str(json.get()).map_err(|error| invalid(&format!("not JSON-RPC: {error}")))
}

fn params(body: &Bytes, json: &RawValue) -> Result<Params, RpcError> {
    let invalid = |message: &str| RpcError::new(INVALID_PARAMS, message);
    if !is_object(json) {
        return Err(invalid("`params` must be an object"));
    }
    let params: ParamsJson<'_> =
        serde_json::from_str(json.get()).map_err(|error| invalid(&format!("`params`: {error}")))?;
    let text_of = |name: &str, raw: Option<&RawValue>| match raw {
        None => Ok(None),
        Some(raw) => text(raw)
            .map(Some)
            .ok_or_else(|| invalid(&format!("`{name}` must be a text of at most {MAX_TEXT_BYTES} bytes of JSON"))),
    };
    if params.arguments.is_some_and(|arguments| !is_object(arguments)) {
        return Err(invalid("`arguments` must be an object"));
    }
    let arguments = params.arguments.map(|arguments| body.slice_ref(arguments.get().as_bytes()));
    let meta = match params.meta {
        Some(meta) if is_object(meta) => Some(self::meta(meta)?),
        Some(_) => return Err(invalid("`_meta` must be an object")),
        None => None,
    };
    let name = text_of("name", params.name)?;
    let protocol_version = text_of("protocolVersion", params.protocol_version)?;
    let cancelled = params.request_id.filter(|id| is_text_or_number(id)).map(|id| Id(id.to_owned()));
    Ok(Params { meta, name, arguments, protocol_version, cancelled })
}

fn meta(json: &RawValue) -> Result<Meta, RpcError> {
    let invalid = |message: String| RpcError::new(INVALID_PARAMS, message);
    let meta: MetaJson<'_> = serde_json::from_str(json.get()).map_err(|error| invalid(format!("`_meta`: {error}")))?;
    if meta.progress_token.is_some_and(|token| !is_text_or_number(token)) {
        return Err(invalid(format!(
            "`progressToken` must be a number, or a text of at most {MAX_TEXT_BYTES} bytes of JSON"
        )));
    }
    Ok(Meta {
        version: meta.version.map(|version| text(version).unwrap_or_default()),
        has_capabilities: meta.capabilities.is_some_and(is_object),
        progress_token: meta.progress_token.map(ToOwned::to_owned),
    })
}

/// The value of one member of an object, as a part of the same bytes; `None` if it is missing.
pub(crate) fn member(object: &Bytes, name: &str) -> Option<Bytes> {
    struct Member<'n>(&'n str);

    impl<'de> serde::de::Visitor<'de> for Member<'_> {
        type Value = Option<&'de RawValue>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut found = None;
            while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                if key == self.0 {
                    found = Some(map.next_value()?);
                } else {
                    map.next_value::<serde::de::IgnoredAny>()?;
                }
            }
            Ok(found)
        }
    }

    let mut reader = serde_json::Deserializer::from_slice(object);
    let found = Deserializer::deserialize_map(&mut reader, Member(name)).ok()??;
    Some(object.slice_ref(found.get().as_bytes()))
}

fn is_object(json: &RawValue) -> bool {
    json.get().starts_with('{')
}

fn is_text_or_number(json: &RawValue) -> bool {
    let is_kind = json.get().starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit());
    is_kind && json.get().len() <= MAX_TEXT_BYTES
}

fn text(json: &RawValue) -> Option<String> {
    (json.get().len() <= MAX_TEXT_BYTES).then(|| serde_json::from_str(json.get()).ok()).flatten()
}

#[derive(Serialize)]
struct ResultJson<'a, R> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    result: R,
}

#[derive(Serialize)]
struct ErrorJson<'a> {
    jsonrpc: &'static str,
    id: Option<&'a RawValue>,
    error: ErrorFields<'a>,
}

#[derive(Serialize)]
struct ErrorFields<'a> {
    code: i32,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Json>,
}

#[derive(Serialize)]
struct NotificationJson<P> {
    jsonrpc: &'static str,
    method: &'static str,
    params: P,
}

const VERSION: &str = "2.0";

/// The answer to a request.
///
/// # Errors
///
/// The result has no form in JSON.
pub(crate) fn result(id: &Id, result: impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&ResultJson { jsonrpc: VERSION, id: &id.0, result })
}

/// The answer that is an error; without an id, if the request was not read that far.
pub(crate) fn error(id: Option<&Id>, error: &RpcError) -> Vec<u8> {
    let fields = ErrorFields { code: error.code, message: &error.message, data: error.data.as_ref() };
    // Texts and numbers can always be written.
    serde_json::to_vec(&ErrorJson { jsonrpc: VERSION, id: id.map(|id| &*id.0), error: fields }).unwrap_or_default()
}

/// A notification to the client.
pub(crate) fn notification(method: &'static str, params: impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&NotificationJson { jsonrpc: VERSION, method, params })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> (i32, bool) {
        let (id, error) = read(&Bytes::copy_from_slice(body.as_bytes())).unwrap_err();
        (error.code, id.is_some())
    }

    #[test]
    fn a_call_keeps_its_arguments_as_a_part_of_the_body() {
        let body = r#" {"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"x","arguments":{"b": [1]},
            "_meta":{"progressToken":7,"io.modelcontextprotocol/protocolVersion":"v",
            "io.modelcontextprotocol/clientCapabilities":{}}},"more":[[[]]]}"#;
        let body = Bytes::from_static(body.as_bytes());
        let message = read(&body).unwrap();
        let Params { meta, name, arguments, .. } = message.params;
        let (meta, arguments) = (meta.unwrap(), arguments.unwrap());
        assert_eq!((message.method.as_str(), name.as_deref()), ("tools/call", Some("x")));
        assert_eq!((&*arguments, member(&arguments, "b").as_deref()), (&br#"{"b": [1]}"#[..], Some(&b"[1]"[..])));
        assert_eq!((meta.version.as_deref(), meta.has_capabilities), (Some("v"), true));
        assert_eq!(meta.progress_token.unwrap().get(), "7");
        assert_eq!(
            error(message.id.as_ref(), &RpcError::new(1, "no")),
            br#"{"jsonrpc":"2.0","id":"a","error":{"code":1,"message":"no"}}"#
        );
    }

    #[test]
    fn what_is_no_message_has_the_code_of_its_mistake() {
        for (body, code, has_id) in [
            ("", PARSE_ERROR, false),
            ("{", PARSE_ERROR, false),
            ("{} {}", PARSE_ERROR, false),
            ("\u{1}", PARSE_ERROR, false),
            ("[]", INVALID_REQUEST, false),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, INVALID_REQUEST, false),
            ("null", INVALID_REQUEST, false),
            ("{}", INVALID_REQUEST, false),
            (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, INVALID_REQUEST, true),
            (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, INVALID_REQUEST, false),
            (r#"{"jsonrpc":"2.0","id":[],"method":"ping"}"#, INVALID_REQUEST, false),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, INVALID_REQUEST, true),
            (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, INVALID_REQUEST, true),
            (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#, INVALID_REQUEST, false),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#, INVALID_PARAMS, true),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"arguments":[]}}"#, INVALID_PARAMS, true),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"name":1}}"#, INVALID_PARAMS, true),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":1}}"#, INVALID_PARAMS, true),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"progressToken":{}}}}"#,
                INVALID_PARAMS,
                true,
            ),
        ] {
            assert_eq!(refused(body), (code, has_id), "{body}");
        }
        let long = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#, "i".repeat(2000));
        assert_eq!(refused(&long), (INVALID_REQUEST, false));
    }

    #[test]
    fn depth_costs_no_stack() {
        let deep = format!("{}{}", "[".repeat(1_000_000), "]".repeat(1_000_000));
        assert_eq!(refused(&deep), (INVALID_REQUEST, false));
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"arguments":{{"a":{deep}}}}}}}"#);
        let message = read(&body.into()).unwrap();
        assert_eq!(member(&message.params.arguments.unwrap(), "a").map(|deep| deep.len()), Some(2_000_000));
    }
}
