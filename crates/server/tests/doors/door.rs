//! The doors through which the models of a test are called, and how each of them ends a stream.

use serde_json::json;

use crate::send::{Answer, Call, Version, field};

/// A way to call a route that streams.
pub(crate) struct Door {
    pub(crate) name: &'static str,
    pub(crate) call: Call,
    end: End,
}

/// How clients know that a stream is over, and that it failed.
enum End {
    /// By the last event: texts that only a whole stream and only a failed one has.
    Event { whole: &'static str, failed: &'static str },
    /// By the end of the body, unless the last event has this text: the protocol has no other end.
    Body { failed: &'static str },
    /// By the status after the last message. Where requests share a stream, an error is a message.
    GrpcStatus,
}

/// What a stream says of itself at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Whole,
    Failed,
    /// Its client cannot tell.
    Silently,
}

impl Door {
    pub(crate) fn ended(&self, answer: &Answer) -> Ended {
        let (is_whole, is_failed) = match self.end {
            End::Event { whole, failed } => (answer.text().contains(whole), answer.text().contains(failed)),
            End::Body { failed } => (!answer.text().contains(failed), answer.text().contains(failed)),
            End::GrpcStatus => {
                let (status, is_told) = (answer.header("grpc-status"), answer.text().contains("the node is ending"));
                (status == Some("0") && !is_told, is_told || status.is_some_and(|status| status != "0"))
            }
        };
        match (is_whole, is_failed) {
            (true, false) => Ended::Whole,
            (false, true) => Ended::Failed,
            _ => Ended::Silently,
        }
    }

    fn event(name: &'static str, call: Call, whole: &'static str, failed: &'static str) -> Self {
        Self { name, call, end: End::Event { whole, failed } }
    }

    fn grpc(name: &'static str, path: &str, message: &[u8]) -> Self {
        Self { name, call: Call::grpc(path, message), end: End::GrpcStatus }
    }
}

/// A form with a recording, which pages of other sites may send without asking.
pub(crate) fn recording(fields: &[(&str, &str)]) -> Call {
    let mut body = "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF".to_owned();
    for (name, value) in fields {
        body += &format!("\r\n--b\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}");
    }
    body += "\r\n--b--\r\n";
    Call::post(Version::Http1, "/v1/audio/transcriptions", "multipart/form-data; boundary=b", body)
}

/// A tensor of one number, as a request of the Open Inference Protocol over gRPC.
pub(crate) fn infer(model: &str) -> Vec<u8> {
    let tensor = [field(1, b"input"), field(2, b"FP64"), field(3, &[1])].concat();
    [field(1, model.as_bytes()), field(5, &tensor), field(7, &7_f64.to_le_bytes())].concat()
}

/// A call of a tool with progress. Its client cancels it by leaving: that of the handshake may lose a connection and
/// mean nothing by it.
pub(crate) fn tool(name: &str) -> Call {
    const VERSION: &str = "2026-07-28";
    let meta = json!({
        "progressToken": 1,
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({ "name": name, "arguments": { "input": 7.0 }, "_meta": meta });
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let call = Call::json("/mcp", &message).with("accept", "application/json, text/event-stream");
    call.with("mcp-protocol-version", VERSION).with("mcp-method", "tools/call").with("mcp-name", name)
}

/// Every door that answers at once, with its name, to the models of [`crate::models::whole`].
pub(crate) fn whole() -> Vec<(&'static str, Call)> {
    let json = |path: &str, body| Call::json(path, &body);
    let chat = json!({ "model": "any", "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 9 });
    let rank = json!({ "model": "rank", "query": "a", "documents": ["a"] });
    let inputs = json!([{ "name": "input", "datatype": "FP64", "shape": [1], "data": [7.0] }]);
    let embed = |format| json!({ "model": "embed", "input": ["a"], "encoding_format": format });
    vec![
        ("a route", json("/any", json!("hi"))),
        ("a function", json("/v1/call/any", json!({ "args": ["hi"] }))),
        ("chat", json("/v1/chat/completions", chat.clone())),
        ("responses", json("/v1/responses", json!({ "model": "any", "input": "hi" }))),
        ("messages", json("/v1/messages", chat)),
        ("embeddings", json("/v1/embeddings", embed("float"))),
        ("embeddings in base64", json("/v1/embeddings", embed("base64"))),
        ("moderations", json("/v1/moderations", json!({ "model": "rude", "input": "a" }))),
        ("images", json("/v1/images/generations", json!({ "model": "draw", "prompt": "a" }))),
        ("rerank", json("/v1/rerank", rank.clone())),
        ("Cohere's rerank", json("/v2/rerank", rank)),
        ("infer", json("/v2/models/number/infer", json!({ "inputs": inputs }))),
        ("predict", json("/v1/models/number:predict", json!({ "instances": [7.0] }))),
        ("a tool", tool("number")),
        ("ModelInfer", Call::grpc("/inference.GRPCInferenceService/ModelInfer", &infer("number"))),
        (
            "callboard.v1 Call",
            Call::grpc("/callboard.v1.Inference/Call", &[field(1, b"/any"), field(3, b"\"hi\"")].concat()),
        ),
    ]
}

/// Every door that streams, to the models of [`crate::models`].
pub(crate) fn streaming() -> Vec<Door> {
    let json = |path: &str, body| Call::json(path, &body);
    let message = json!([{ "role": "user", "content": "hi" }]);
    let chat = json!({ "model": "chat", "messages": message, "max_tokens": 9, "stream": true });
    let complete = json!({ "model": "complete", "prompt": "hi", "stream": true });
    let response = json!({ "model": "chat", "input": "hi", "stream": true });
    let speech = json!({ "model": "speak", "input": "hi", "voice": "a", "stream_format": "sse" });
    let plain = || json("/plain", json!("hi"));
    let http2 = Call { version: Version::Http2, ..plain().with("accept", "text/event-stream") };
    let call = [field(1, b"/plain"), field(3, b"\"hi\"")].concat();
    vec![
        Door::event("events", plain().with("accept", "text/event-stream"), "event: end\n", "event: error\n"),
        Door::event("events over HTTP/2", http2, "event: end\n", "event: error\n"),
        Door::event("chat", json("/v1/chat/completions", chat.clone()), "data: [DONE]\n", "\"error\":"),
        Door::event("completions", json("/v1/completions", complete), "data: [DONE]\n", "\"error\":"),
        Door::event(
            "responses",
            json("/v1/responses", response),
            "event: response.completed\n",
            "event: response.failed\n",
        ),
        Door::event("messages", json("/v1/messages", chat), "event: message_stop\n", "event: error\n"),
        Door::event(
            "transcriptions",
            recording(&[("model", "hear"), ("stream", "true")]),
            "\"transcript.text.done\"",
            "\"error\":",
        ),
        Door::event("speech", json("/v1/audio/speech", speech), "\"speech.audio.done\"", "\"error\":"),
        Door::event("a tool", tool("plain"), "\"isError\":false", "\"isError\":true"),
        Door {
            name: "generate_stream",
            call: json("/v2/models/numbers/generate_stream", json!({ "input": 7.0 })),
            end: End::Body { failed: "\"error\":" },
        },
        Door::grpc("ModelStreamInfer", "/inference.GRPCInferenceService/ModelStreamInfer", &infer("numbers")),
        Door::grpc("callboard.v1 Stream", "/callboard.v1.Inference/Stream", &call),
    ]
}
