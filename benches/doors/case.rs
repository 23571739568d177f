//! What is compared: the requests of each side, and what is asked of their ratio.

use bytes::Bytes;
use callboard_http_client::{Call, Protocol};
use prost::Message;
use serde_json::{Value, json};

use super::messages::{InferTensor, ModelInferRequest};
use super::served::{TOKENS, VECTOR};
use super::server::Kind;

/// A door, and the shortest way to the same work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    GrpcSmall,
    GrpcLarge,
    Embeddings,
    Chat,
    Mcp,
    LoadPage,
}

/// The requests of one side.
pub(crate) struct Side {
    pub(crate) name: &'static str,
    pub(crate) server: Kind,
    pub(crate) protocol: Protocol,
    pub(crate) call: Call,
    /// An answer is longer than this.
    pub(crate) answer_bytes: u64,
}

/// A ratio: of this side with that one.
pub(crate) struct Comparison {
    pub(crate) of: usize,
    pub(crate) with: usize,
    /// Of requests/s.
    pub(crate) least_speed: Option<f64>,
    /// Of the server's CPU for a request.
    pub(crate) most_cpu: Option<f64>,
}

impl Case {
    pub(crate) const ALL: [Self; 6] =
        [Self::GrpcSmall, Self::GrpcLarge, Self::Embeddings, Self::Chat, Self::Mcp, Self::LoadPage];

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|case| case.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::GrpcSmall => "grpc-small",
            Self::GrpcLarge => "grpc-large",
            Self::Embeddings => "embeddings",
            Self::Chat => "chat",
            Self::Mcp => "mcp",
            Self::LoadPage => "load-page",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::GrpcSmall => "Open Inference Protocol, a tensor of 100 B there and back",
            Self::GrpcLarge => "Open Inference Protocol, a tensor of 1 MiB there and back",
            Self::Embeddings => "a vector of 256 numbers for a text",
            Self::Chat => "a stream of 512 tokens",
            Self::Mcp => "a tool of two numbers",
            Self::LoadPage => "the page of the load",
        }
    }

    /// All sides; those that the door is compared with come first.
    pub(crate) fn sides(self) -> Vec<Side> {
        match self {
            Self::GrpcSmall => tensors(100),
            Self::GrpcLarge => tensors(1 << 20),
            Self::Embeddings => vec![
                json_side("the route as plain JSON", "/embed", &json!(TEXT), VECTOR as u64),
                json_side(
                    "/v1/embeddings",
                    "/v1/embeddings",
                    &json!({ "model": "embed", "input": TEXT }),
                    VECTOR as u64,
                ),
            ],
            Self::Chat => {
                let body =
                    json!({ "model": "chat", "stream": true, "messages": [{ "role": "user", "content": TEXT }] });
                let mut events = json_side("the route as events", "/chat", &body, TOKENS as u64);
                events.call.headers.push(("accept".to_owned(), "text/event-stream".to_owned()));
                let door = "/v1/chat/completions, streamed";
                vec![events, json_side(door, "/v1/chat/completions", &body, TOKENS as u64)]
            }
            Self::Mcp => {
                let arguments = json!({ "left": 20, "right": 22 });
                let message = json!({
                    "jsonrpc": "2.0", "id": 1, "method": "tools/call",
                    "params": { "name": "add", "arguments": arguments },
                });
                let mut tool = json_side("MCP tools/call", "/mcp", &message, 20);
                let headers =
                    [("accept", "application/json, text/event-stream"), ("mcp-protocol-version", "2025-11-25")];
                tool.call.headers.extend(headers.map(|(name, value)| (name.to_owned(), value.to_owned())));
                vec![json_side("the route as plain JSON", "/add", &arguments, 1), tool]
            }
            Self::LoadPage => vec![page_side("/livez", 1), page_side("/metrics/load", 100)],
        }
    }

    pub(crate) fn comparisons(self) -> Vec<Comparison> {
        let door = |least_speed, most_cpu| Comparison { of: 1, with: 0, least_speed, most_cpu };
        match self {
            Self::GrpcSmall | Self::GrpcLarge => vec![
                Comparison { of: 2, with: 0, least_speed: Some(0.9), most_cpu: Some(1.25) },
                Comparison { of: 2, with: 1, least_speed: Some(0.95), most_cpu: None },
            ],
            Self::Embeddings => vec![door(Some(0.9), None)],
            Self::Chat => vec![door(Some(0.92), None)],
            Self::Mcp => vec![door(None, Some(1.15))],
            Self::LoadPage => vec![door(None, None)],
        }
    }

    /// Asked of the last side: the server's CPU for a request, in microseconds.
    pub(crate) fn most_cpu_micros(self) -> Option<f64> {
        (self == Self::LoadPage).then_some(20.0)
    }
}

const TEXT: &str = "a sentence of the usual length, with a name and a number such as 42";

/// A page of our server, on a connection of HTTP/1.1 for each caller.
fn page_side(path: &'static str, answer_bytes: u64) -> Side {
    let call = Call { method: "GET".to_owned(), headers: Vec::new(), ..Call::post(path, "", "") };
    Side { name: path, server: Kind::Callboard, protocol: Protocol::Http1, call, answer_bytes }
}

/// A request of JSON to our server, on a connection of HTTP/1.1 for each caller.
fn json_side(name: &'static str, path: &str, body: &Value, answer_bytes: u64) -> Side {
    let call = Call::post(path, "application/json", body.to_string());
    Side { name, server: Kind::Callboard, protocol: Protocol::Http1, call, answer_bytes }
}

/// The same tensor to tonic, to our Open Inference Protocol over HTTP, and to our gRPC; all over HTTP/2.
fn tensors(bytes: usize) -> Vec<Side> {
    let elements = bytes / size_of::<f32>();
    let data: Bytes = (0..elements).flat_map(|n| (n as f32).to_le_bytes()).collect::<Vec<u8>>().into();
    let side =
        |name, server, call| Side { name, server, protocol: Protocol::Http2, call, answer_bytes: data.len() as u64 };
    let grpc = grpc_call(elements, &data);
    vec![
        side("bare tonic", Kind::Tonic, grpc.clone()),
        side("our OIP over HTTP/2, binary", Kind::Callboard, http_call(elements, &data)),
        side("our gRPC", Kind::Callboard, grpc),
    ]
}

fn grpc_call(elements: usize, data: &Bytes) -> Call {
    let input = InferTensor {
        name: "x".to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![1, elements as i64],
        ..InferTensor::default()
    };
    let request = ModelInferRequest {
        model_name: "array".to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![data.clone()],
        ..ModelInferRequest::default()
    };
    let message = request.encode_to_vec();
    let prefix = u32::try_from(message.len()).unwrap().to_be_bytes();
    let body = [&[0][..], &prefix, &message].concat();
    let mut call = Call::post("/inference.GRPCInferenceService/ModelInfer", "application/grpc", body);
    call.headers.push(("te".to_owned(), "trailers".to_owned()));
    call
}

fn http_call(elements: usize, data: &Bytes) -> Call {
    let head = json!({
        "inputs": [{
            "name": "x", "shape": [1, elements], "datatype": "FP32", "parameters": { "binary_data_size": data.len() },
        }],
        "parameters": { "binary_data_output": true },
    });
    let head = head.to_string();
    let body = [head.as_bytes(), data].concat();
    let mut call = Call::post("/v2/models/array/infer", "application/octet-stream", body);
    call.headers.push(("inference-header-content-length".to_owned(), head.len().to_string()));
    call
}
