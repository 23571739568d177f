//! The requests: those by which the doors are called, and others that a change may lead to.

use std::fmt;
use std::io::Write as _;

use axum::body::Body;
use axum::http::{Request, Version as HttpVersion};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use crate::door::{infer, recording, streaming, tool, whole};
use crate::mutate::{Random, mutate};
use crate::send::{Call, Version, field};

/// Most requests are short, so that there are many of them.
const USUAL_BYTES: usize = 2048;

/// One in 32 requests may be as long as [`MOST_BYTES`].
const LONG_ONE_OF: usize = 32;

const MOST_BYTES: usize = 1 << 19;

/// The bytes before a message of gRPC.
const PREFIX: usize = 5;

/// A request with a changed body.
#[derive(Clone)]
pub(crate) struct Changed {
    call: Call,
}

/// Requests that every door answers.
pub(crate) fn seeds() -> Vec<Changed> {
    let mut calls: Vec<Call> = whole().into_iter().map(|(_, call)| call).collect();
    calls.extend(streaming().into_iter().map(|door| door.call));
    calls.push(recording(&[("model", "hear"), ("response_format", "text"), ("timestamp_granularities[]", "word")]));
    let message = |method: &str, params: serde_json::Value| {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        Call::json("/mcp", &message)
            .with("accept", "application/json, text/event-stream")
            .with("mcp-protocol-version", "2025-11-25")
    };
    let info = json!({ "name": "c", "version": "1" });
    let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info });
    calls.push(message("initialize", hello));
    calls.push(message("tools/list", json!({})));
    calls.push(message("tools/call", json!({ "name": "number", "arguments": { "input": 7.0 } })));
    calls.push(tool("plain"));
    let grpc = [
        ("/inference.GRPCInferenceService/ModelMetadata", field(1, b"number")),
        ("/inference.GRPCInferenceService/ModelConfig", field(1, b"number")),
        ("/inference.GRPCInferenceService/ModelStatistics", field(1, b"number")),
        ("/inference.GRPCInferenceService/RepositoryIndex", Vec::new()),
        ("/grpc.health.v1.Health/Check", Vec::new()),
        ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", field(7, b"")),
        ("/kaggle_evaluation_client.KaggleEvaluationService/Send", relayed()),
    ];
    calls.extend(grpc.map(|(path, message)| Call::grpc(path, &message)));
    let twice = Call::grpc("/inference.GRPCInferenceService/ModelStreamInfer", &infer("number"));
    let body = [&twice.body[..], &twice.body].concat().into();
    calls.push(Call { body, ..twice });
    let chat = json!({ "model": "any", "messages": [{ "role": "user", "content": [{ "type": "text", "text": "a" }] }],
        "n": 2, "stop": ["b"], "tools": [{ "type": "function", "function": { "name": "f", "parameters": {} } }] });
    calls.push(Call::json("/v1/chat/completions", &chat));
    calls.push(Call::json("/v1/embeddings", &json!({ "model": "embed", "input": ["a", "b", "c"] })));
    calls
        .push(Call::json("/v1/rerank", &json!({ "model": "rank", "query": "a", "documents": ["a", { "text": "b" }] })));
    calls.into_iter().map(|call| Changed { call }).collect()
}

/// A call of a function with a list of a text, in the words of the relay.
fn relayed() -> Vec<u8> {
    let text = field(1, b"hi");
    let list = field(6, &field(1, &text));
    [field(1, b"any"), field(2, &list)].concat()
}

impl Changed {
    /// One of the seeds, with some changes.
    pub(crate) fn of(seeds: &[Self], random: &mut Random) -> Self {
        let Self { mut call } = seeds[random.below(seeds.len())].clone();
        let most = if random.below(LONG_ONE_OF) == 0 { MOST_BYTES } else { USUAL_BYTES };
        // With its own prefix most changes of a message would be refused by their length.
        let is_framed = call.version == Version::Http2 && call.body.len() > PREFIX && random.below(8) > 0;
        let mut bytes = call.body.to_vec();
        let start = if is_framed { PREFIX - 1 } else { 0 };
        let mut changed = bytes.split_off(start);
        for _ in 0..=random.below(5) {
            mutate(&mut changed, random, most);
        }
        bytes.append(&mut changed);
        if is_framed && call.media_type == "application/grpc" {
            bytes.drain(..PREFIX);
            let is_packed = random.below(4) == 0;
            if is_packed {
                bytes = gzip(&bytes);
                call = call.with("grpc-encoding", "gzip").with("grpc-accept-encoding", "gzip");
            }
            let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
            bytes = [&[u8::from(is_packed)][..], &length, &bytes].concat();
        } else if call.version == Version::Http1 && random.below(4) == 0 {
            bytes = gzip(&bytes);
            call = call.with("content-encoding", "gzip");
        }
        call.body = bytes.into();
        Self { call }
    }

    pub(crate) fn body_bytes(&self) -> usize {
        self.call.body.len()
    }

    /// The request. Its body is allocated here.
    pub(crate) fn request(&self) -> Request<Body> {
        let Call { version, method, path, media_type, headers, body, .. } = &self.call;
        let mut request = Request::builder().method(method.clone()).header("content-type", media_type);
        request = match version {
            Version::Http1 => request.uri(path).header("host", "localhost"),
            Version::Http2 => request.uri(format!("http://localhost{path}")).version(HttpVersion::HTTP_2),
        };
        for (name, value) in headers {
            request = request.header(name, value);
        }
        request.body(Body::from(Bytes::copy_from_slice(body))).unwrap()
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

impl fmt::Debug for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { path, headers, body, .. } = &self.call;
        let shown = &body[..body.len().min(400)];
        write!(f, "{} bytes to {path} with {headers:?}: {}", body.len(), shown.escape_ascii())
    }
}
