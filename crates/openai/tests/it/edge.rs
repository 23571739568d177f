//! Requests to a node with models, and their answers.

use callboard_http::axum::body::{Body, to_bytes};
use callboard_http::axum::http::Request;
use serde_json::Value;
use tower::Service as _;

pub(crate) use crate::fuzz::edge::Served;

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: callboard_http::axum::http::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The JSON of each event, and whether `[DONE]` is the last one.
    pub(crate) fn events(&self) -> (Vec<Value>, bool) {
        let lines = self.text.lines().filter_map(|line| line.strip_prefix("data: "));
        let mut events: Vec<&str> = lines.collect();
        let is_done = events.pop_if(|last| *last == "[DONE]").is_some();
        (events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect(), is_done)
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }

    /// The message of a refusal with this status and code.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: &str) -> String {
        let body = self.json();
        assert_eq!((self.status, body["error"]["code"].as_str()), (status, Some(code)), "{}", self.text);
        body["error"]["message"].as_str().unwrap().to_owned()
    }
}

impl Served {
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, body.to_string()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, String::new()).await
    }

    /// Asks for a completion with a body of another media type.
    pub(crate) async fn send_as(&self, content_type: &str, body: &'static str) -> Answer {
        self.request("POST", "/v1/completions", content_type, body.into()).await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: impl Into<Body>) -> Answer {
        self.request(method, path, "application/json", body.into()).await
    }

    /// Posts a form with a file of these bytes and these fields.
    pub(crate) async fn post_form(&self, path: &str, file: &[u8], fields: &[(&str, &str)]) -> Answer {
        let mut body = b"--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n".to_vec();
        body.extend_from_slice(file);
        for (name, value) in fields {
            let part = format!("\r\n--b\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}");
            body.extend_from_slice(part.as_bytes());
        }
        body.extend_from_slice(b"\r\n--b--\r\n");
        self.request("POST", path, "multipart/form-data; boundary=b", body.into()).await
    }

    /// Posts JSON with further headers.
    pub(crate) async fn post_with(&self, path: &str, body: &Value, headers: &[(&str, &str)]) -> Answer {
        let request = Request::post(path).header("host", "localhost").header("content-type", "application/json");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        self.answer(request.body(body.to_string().into()).unwrap()).await
    }

    async fn request(&self, method: &str, path: &str, content_type: &str, body: Body) -> Answer {
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        self.answer(request.header("content-type", content_type).body(body).unwrap()).await
    }

    async fn answer(&self, request: Request<Body>) -> Answer {
        let response = self.edge.clone().call(request).await.unwrap();
        let (head, body) = response.into_parts();
        let text = String::from_utf8(to_bytes(body, 1 << 24).await.unwrap().to_vec()).unwrap();
        Answer { status: head.status.as_u16(), headers: head.headers, text }
    }
}
