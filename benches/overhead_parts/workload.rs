//! What is asked of the servers, and how an answer to it ends.

use callboard_codec::{Format, Tensor, Value};

use super::server::BODY;

/// Which requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// A hundred bytes of JSON, there and back.
    Echo,
    /// An array of a mebibyte in MessagePack, there and back.
    Tensor,
    /// A hundred server-sent events.
    Events,
}

impl Workload {
    pub(crate) fn of(name: &str) -> Option<Self> {
        [Self::Echo, Self::Tensor, Self::Events].into_iter().find(|workload| workload.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Tensor => "tensor",
            Self::Events => "events",
        }
    }

    /// The whole request, head and body.
    pub(crate) fn request(self) -> Vec<u8> {
        let (path, media_type, accept, body) = match self {
            Self::Echo => ("/echo", "application/json", "*/*", BODY.as_bytes().to_vec()),
            Self::Tensor => ("/tensor", "application/msgpack", "application/msgpack", tensor()),
            Self::Events => ("/events", "application/json", "text/event-stream", EVENTS.to_string().into_bytes()),
        };
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: {media_type}\r\naccept: {accept}\r\ncontent-length: {length}\r\n\r\n"
        );
        [head.into_bytes(), body].concat()
    }

    /// Whether this is the whole of an answer; with no more than one request under way, its end is the end of what came.
    pub(crate) fn is_answered(self, answer: &[u8]) -> bool {
        match self {
            Self::Echo => answer.ends_with(BODY.as_bytes()),
            Self::Tensor => answer.len() > TENSOR_BYTES && answer.len() >= head_bytes(answer) + tensor_answer_bytes(),
            Self::Events => answer.ends_with(b"\r\n0\r\n\r\n"),
        }
    }
}

/// How many events one request asks for.
pub(crate) const EVENTS: u64 = 100;

const TENSOR_BYTES: usize = 1 << 20;

fn tensor() -> Vec<u8> {
    let elements: Vec<f32> = (0..TENSOR_BYTES / size_of::<f32>()).map(|n| n as f32).collect();
    let tensor = Tensor::from_vec(&[512, 512], elements).unwrap();
    Value::Tensor(tensor).encode(Format::Msgpack).unwrap().into()
}

/// The extension's head, the header of the tensor, and its elements.
fn tensor_answer_bytes() -> usize {
    6 + 8 + 2 * 8 + TENSOR_BYTES
}

fn head_bytes(answer: &[u8]) -> usize {
    answer.windows(4).position(|four| four == b"\r\n\r\n").map_or(usize::MAX / 2, |at| at + 4)
}
