//! The requests to the servers, and how to find the end of an answer.

use callboard_codec::{Format, Tensor, Value};

use super::server::BODY;

/// The kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// A hundred bytes of JSON in both directions.
    Echo,
    /// An array of a mebibyte in MessagePack, in both directions.
    Tensor,
    /// A hundred server-sent events.
    Events,
    /// An array of a mebibyte by the Open Inference Protocol, in binary, in both directions.
    Oip,
    /// The same array by the same protocol as JSON.
    OipJson,
}

impl Workload {
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        [Self::Echo, Self::Tensor, Self::Events, Self::Oip, Self::OipJson]
            .into_iter()
            .find(|workload| workload.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Tensor => "tensor",
            Self::Events => "events",
            Self::Oip => "oip",
            Self::OipJson => "oip-json",
        }
    }

    /// The whole request, head and body.
    pub(crate) fn request(self) -> Vec<u8> {
        let (path, media_type, accept, body) = match self {
            Self::Echo => ("/echo", "application/json", "*/*", BODY.as_bytes().to_vec()),
            Self::Tensor => ("/tensor", "application/msgpack", "application/msgpack", tensor()),
            Self::Events => ("/events", "application/json", "text/event-stream", EVENTS.to_string().into_bytes()),
            Self::Oip => (OIP_PATH, "application/octet-stream", "*/*", [oip_head().into_bytes(), bytes()].concat()),
            Self::OipJson => (OIP_PATH, "application/json", "*/*", oip_json().into_bytes()),
        };
        let (length, json) = (body.len(), self.json_bytes());
        let json = json.map_or_else(String::new, |bytes| format!("inference-header-content-length: {bytes}\r\n"));
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: {media_type}\r\naccept: {accept}\r\n{json}content-length: {length}\r\n\r\n"
        );
        [head.into_bytes(), body].concat()
    }

    /// The length of the JSON part, if arrays follow it.
    fn json_bytes(self) -> Option<usize> {
        (self == Self::Oip).then(|| oip_head().len())
    }

    /// Whether the answer is complete; with one request at a time, its end is the end of the data.
    pub(crate) fn is_answered(self, answer: &[u8]) -> bool {
        match self {
            Self::Echo => answer.ends_with(BODY.as_bytes()),
            Self::Tensor => answer.len() > TENSOR_BYTES && answer.len() >= head_bytes(answer) + tensor_answer_bytes(),
            Self::Events => answer.ends_with(b"\r\n0\r\n\r\n"),
            Self::Oip => answer.len() > TENSOR_BYTES && answer.len() >= head_bytes(answer) + body_bytes(answer),
            Self::OipJson => answer.ends_with(b"]}]}"),
        }
    }
}

/// The number of events per request.
pub(crate) const EVENTS: u64 = 100;

const TENSOR_BYTES: usize = 1 << 20;

/// The model that returns its array.
pub(crate) const OIP_PATH: &str = "/v2/models/array/infer";

fn elements() -> Vec<f32> {
    (0..TENSOR_BYTES / size_of::<f32>()).map(|n| n as f32).collect()
}

fn bytes() -> Vec<u8> {
    elements().into_iter().flat_map(f32::to_le_bytes).collect()
}

fn oip_head() -> String {
    format!(
        r#"{{"inputs":[{{"name":"x","shape":[512,512],"datatype":"FP32","parameters":{{"binary_data_size":{TENSOR_BYTES}}}}}],"parameters":{{"binary_data_output":true}}}}"#
    )
}

fn oip_json() -> String {
    let data = serde_json::to_string(&elements()).unwrap();
    format!(r#"{{"inputs":[{{"name":"x","shape":[512,512],"datatype":"FP32","data":{data}}}]}}"#)
}

fn tensor() -> Vec<u8> {
    let tensor = Tensor::from_vec(&[512, 512], elements()).unwrap();
    Value::Tensor(tensor).encode(Format::Msgpack).unwrap().into()
}

/// The extension's head, the header of the tensor, and its elements.
fn tensor_answer_bytes() -> usize {
    6 + 8 + 2 * 8 + TENSOR_BYTES
}

fn head_bytes(answer: &[u8]) -> usize {
    answer.windows(4).position(|four| four == b"\r\n\r\n").map_or(usize::MAX / 2, |position| position + 4)
}

/// The content length in the head of either server.
fn body_bytes(answer: &[u8]) -> usize {
    let head = String::from_utf8_lossy(&answer[..head_bytes(answer).min(answer.len())]).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.and_then(|length| length.parse().ok()).unwrap_or(usize::MAX / 2)
}
