//! A client of HTTP/1.1 and HTTP/2 that reads answers with their trailers, which have the status of gRPC.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value as Json;
use tokio::net::TcpStream;

/// The timeout of each wait. Only a failing test reaches it.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) version: Version,
    pub(crate) method: Method,
    /// The host that it names. Default: the address of the server.
    pub(crate) host: Option<String>,
    pub(crate) path: String,
    pub(crate) media_type: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Bytes,
}

impl Call {
    pub(crate) fn get(path: &str) -> Self {
        Self { method: Method::GET, ..Self::post(Version::Http1, path, "text/plain", "") }
    }

    pub(crate) fn json(path: &str, body: &Json) -> Self {
        Self::post(Version::Http1, path, "application/json", body.to_string())
    }

    /// A call of gRPC with one message.
    pub(crate) fn grpc(path: &str, message: &[u8]) -> Self {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        Self::post(Version::Http2, path, "application/grpc", [&[0], &length[..], message].concat())
    }

    pub(crate) fn post(version: Version, path: &str, media_type: &str, body: impl Into<Bytes>) -> Self {
        let (path, media_type) = (path.into(), media_type.into());
        Self { version, method: Method::POST, host: None, path, media_type, headers: Vec::new(), body: body.into() }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sends it on a connection of its own, and waits for the head of its answer.
    pub(crate) async fn open(&self, address: SocketAddr) -> Response<Incoming> {
        let mut request = Request::builder().method(self.method.clone()).header(CONTENT_TYPE, &self.media_type);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let (body, socket) = (Full::new(self.body.clone()), TcpStream::connect(address).await.unwrap());
        let host = self.host.clone().unwrap_or_else(|| address.to_string());
        let answered = async {
            match self.version {
                Version::Http1 => {
                    let (mut client, connection) = http1::handshake(TokioIo::new(socket)).await.unwrap();
                    tokio::spawn(connection);
                    client.send_request(request.header(HOST, host).uri(&self.path).body(body).unwrap()).await
                }
                Version::Http2 => {
                    let socket = TokioIo::new(socket);
                    let (mut client, connection) = http2::handshake(TokioExecutor::new(), socket).await.unwrap();
                    tokio::spawn(connection);
                    let uri = format!("http://{host}{}", self.path);
                    client.send_request(request.uri(uri).body(body).unwrap()).await
                }
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, answered).await.expect("an answer").unwrap()
    }

    pub(crate) async fn send(&self, address: SocketAddr) -> Answer {
        Answer::read(self.open(address).await).await
    }
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    /// Reads the rest of an answer. Its trailers join its headers.
    pub(crate) async fn read(response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        let collected = tokio::time::timeout(TEST_TIMEOUT, body.collect()).await.expect("an end");
        let collected = collected.expect("a whole body");
        let mut headers = head.headers;
        headers.extend(collected.trailers().cloned().unwrap_or_default());
        Self { status: head.status.as_u16(), headers, body: collected.to_bytes() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The status over HTTP, or as HTTP has it, of a call of gRPC.
    pub(crate) fn status(&self) -> u16 {
        match self.header("grpc-status") {
            None | Some("0") => self.status,
            Some("8") => 429,
            Some("7") => 403,
            Some("16") => 401,
            Some(_) => 500,
        }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Json {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

/// A field of protobuf with a length.
pub(crate) fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap();
    let length: &[u8] = match u8::try_from(length) {
        Ok(length) if length < 0x80 => &[length],
        _ => &[(length & 0x7f) as u8 | 0x80, u8::try_from(length >> 7).unwrap()],
    };
    [&[number << 3 | 2], length, bytes].concat()
}
