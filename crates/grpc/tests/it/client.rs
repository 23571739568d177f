//! A server on a free port, and a client of gRPC that sends exact bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use callboard_core::{App, Node};
use callboard_grpc::GrpcProtocol;
use callboard_http::{ApiInfo, HttpConfig, HttpEdge, serve_edge};
use callboard_oip::InferenceProtocol;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::messages::{Infer, Inferred};

/// The timeout of each wait. Only a failing test reaches it.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
pub(crate) const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

type RequestBody = StreamBody<BoxStream<'static, Result<Frame<Bytes>, std::io::Error>>>;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) node: Node,
    pub(crate) edge: HttpEdge,
    pub(crate) inference: Arc<InferenceProtocol>,
    /// Ends the server when it is dropped.
    _stop: oneshot::Sender<()>,
}

/// The default limits with a change.
pub(crate) fn config(change: impl FnOnce(&mut HttpConfig)) -> HttpConfig {
    let mut config = HttpConfig::default();
    change(&mut config);
    config
}

impl Server {
    pub(crate) async fn start(app: App) -> Self {
        Self::with(app, HttpConfig::default()).await
    }

    pub(crate) async fn with(app: App, config: HttpConfig) -> Self {
        let node = app.start().await.unwrap();
        let server = Self::starting(node, config).await;
        server.edge.open(server.node.client()).unwrap();
        server
    }

    /// A server whose edge does not know its node yet.
    pub(crate) async fn starting(node: Node, config: HttpConfig) -> Self {
        let inference = Arc::new(InferenceProtocol::new());
        let protocols = vec![Arc::clone(&inference) as _, Arc::new(GrpcProtocol::new(Arc::clone(&inference))) as _];
        let grace = config.shutdown_grace;
        let edge = HttpEdge::starting(config, ApiInfo::default(), protocols).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move {
            _ = stopped.await;
            grace
        };
        tokio::spawn(serve_edge(listener, edge.clone(), shutdown));
        Self { address, node, edge, inference, _stop: stop }
    }

    pub(crate) async fn connect(&self) -> Client {
        Client::connect(self.address).await
    }

    /// Waits until so many calls are in flight.
    pub(crate) async fn in_flight_becomes(&self, count: usize) {
        let becoming = async {
            while self.node.client().in_flight() != count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, becoming).await.expect("the calls that were expected");
    }
}

/// One connection.
pub(crate) struct Client {
    sender: SendRequest<RequestBody>,
    pub(crate) content_type: &'static str,
    pub(crate) authority: &'static str,
    pub(crate) headers: Vec<(&'static str, String)>,
}

/// An answer with all of its messages.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) body: Bytes,
}

impl Answer {
    fn field(&self, name: &str) -> Option<String> {
        let fields = self.trailers.as_ref().unwrap_or(&self.headers);
        fields.get(name).map(|value| value.to_str().unwrap().to_owned())
    }

    /// The status of gRPC and its text, decoded.
    pub(crate) fn grpc(&self) -> (u8, String) {
        assert_eq!(self.status, 200, "{self:?}");
        assert!(self.headers["content-type"].to_str().unwrap().starts_with("application/grpc"), "{self:?}");
        let message = self.field("grpc-message").unwrap_or_default();
        let message = percent_encoding::percent_decode_str(&message).decode_utf8().unwrap().into_owned();
        (self.field("grpc-status").expect("a status").parse().unwrap(), message)
    }

    pub(crate) fn pushback(&self) -> Option<u64> {
        self.field("grpc-retry-pushback-ms").map(|millis| millis.parse().unwrap())
    }

    /// The bytes of each message, with its flag.
    pub(crate) fn frames(&self) -> Vec<(u8, Bytes)> {
        frames(&mut self.body.clone())
    }

    /// The messages of a call that succeeded.
    #[track_caller]
    pub(crate) fn messages<M: Message + Default>(&self) -> Vec<M> {
        assert_eq!(self.grpc(), (0, String::new()), "{self:?}");
        self.frames().into_iter().map(|(flag, bytes)| (assert_eq!(flag, 0), M::decode(bytes).unwrap()).1).collect()
    }

    #[track_caller]
    pub(crate) fn message<M: Message + Default>(&self) -> M {
        let mut messages = self.messages();
        assert_eq!(messages.len(), 1);
        messages.remove(0)
    }

    /// The text of a refusal with this status, which has no message.
    #[track_caller]
    pub(crate) fn refused(&self, status: u8) -> String {
        let (code, message) = self.grpc();
        assert_eq!((code, self.body.len()), (status, 0), "{message}");
        message
    }
}

/// Takes all complete messages.
pub(crate) fn frames(bytes: &mut Bytes) -> Vec<(u8, Bytes)> {
    let mut frames = Vec::new();
    while let Some(prefix) = bytes.first_chunk::<5>() {
        let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        if bytes.len() < 5 + length {
            break;
        }
        let flag = bytes.get_u8();
        bytes.advance(4);
        frames.push((flag, bytes.split_to(length)));
    }
    frames
}

/// A message with its prefix.
pub(crate) fn framed(message: &[u8]) -> Bytes {
    framed_as(0, message)
}

pub(crate) fn framed_as(flag: u8, message: &[u8]) -> Bytes {
    [&[flag], &(message.len() as u32).to_be_bytes()[..], message].concat().into()
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let socket = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (sender, connection) = handshake(TokioExecutor::new(), socket).await.unwrap();
        tokio::spawn(connection);
        Self { sender, content_type: "application/grpc", authority: "localhost", headers: Vec::new() }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    fn request(&self, path: &str, body: RequestBody) -> impl Future<Output = Response<Incoming>> + use<> {
        let mut request = Request::post(format!("http://{}{path}", self.authority))
            .header("content-type", self.content_type)
            .header("te", "trailers");
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let mut sender = self.sender.clone();
        async move { sender.send_request(request.body(body).unwrap()).await.unwrap() }
    }

    /// Sends these bytes as the body, and reads the whole answer.
    pub(crate) async fn send(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        let body: Bytes = body.into();
        let frames = stream::iter([Ok(Frame::data(body))]);
        let response = self.request(path, StreamBody::new(Box::pin(frames))).await;
        collected(response).await
    }

    /// Sends these bytes and no end.
    pub(crate) async fn stall(&self, path: &str, begun: Bytes) -> Answer {
        let frames = stream::iter([Ok(Frame::data(begun))]).chain(stream::pending());
        let response = self.request(path, StreamBody::new(Box::pin(frames))).await;
        collected(response).await
    }

    /// Calls a method with one message.
    pub(crate) async fn call(&self, path: &str, message: &impl Message) -> Answer {
        self.send(path, framed(&message.encode_to_vec())).await
    }

    /// Asks a method of the inference service.
    pub(crate) async fn ask(&self, method: &str, message: &impl Message) -> Answer {
        self.call(&format!("/inference.GRPCInferenceService/{method}"), message).await
    }

    pub(crate) async fn infer(&self, request: &Infer) -> Answer {
        self.call(INFER, request).await
    }

    #[track_caller]
    pub(crate) fn inferred(&self, request: &Infer) -> impl Future<Output = Inferred> {
        let place = std::panic::Location::caller();
        async move {
            let answer = self.infer(request).await;
            assert_eq!(answer.grpc().0, 0, "{place}: {:?}", answer.grpc());
            answer.message()
        }
    }

    /// Begins a stream, whose requests follow.
    pub(crate) fn open(&self, path: &str) -> Duplex {
        let (sender, receiver) = mpsc::channel::<Bytes>(16);
        let frames =
            stream::unfold(receiver, async |mut receiver| Some((Ok(Frame::data(receiver.recv().await?)), receiver)));
        let waiting = tokio::spawn(self.request(path, StreamBody::new(Box::pin(frames))));
        Duplex {
            sender: Some(sender),
            waiting: Some(waiting),
            response: None,
            rest: Bytes::new(),
            ready: Vec::new(),
            trailers: None,
        }
    }
}

async fn collected(response: Response<Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let collected = tokio::time::timeout(TEST_TIMEOUT, body.collect()).await.expect("an answer").unwrap();
    let trailers = collected.trailers().cloned();
    Answer { status: head.status.as_u16(), headers: head.headers, trailers, body: collected.to_bytes() }
}

/// A stream in both directions.
pub(crate) struct Duplex {
    sender: Option<mpsc::Sender<Bytes>>,
    waiting: Option<JoinHandle<Response<Incoming>>>,
    response: Option<Response<Incoming>>,
    rest: Bytes,
    ready: Vec<Bytes>,
    trailers: Option<HeaderMap>,
}

impl Duplex {
    pub(crate) async fn send(&self, message: &impl Message) {
        self.send_bytes(framed(&message.encode_to_vec())).await;
    }

    pub(crate) async fn send_bytes(&self, bytes: Bytes) {
        self.sender.as_ref().expect("an open stream").send(bytes).await.unwrap();
    }

    /// No request follows.
    pub(crate) fn close(&mut self) {
        self.sender = None;
    }

    /// The next message; `None` at the end.
    pub(crate) async fn next<M: Message + Default>(&mut self) -> Option<M> {
        if let Some(waiting) = self.waiting.take() {
            self.response = Some(tokio::time::timeout(TEST_TIMEOUT, waiting).await.expect("an answer").unwrap());
        }
        while self.ready.is_empty() {
            let body = self.response.as_mut().unwrap().body_mut();
            let next = tokio::time::timeout(TEST_TIMEOUT, body.frame());
            match next.await.expect("an answer")?.unwrap().into_data() {
                Ok(data) => {
                    self.rest = [&self.rest[..], &data].concat().into();
                    self.ready = frames(&mut self.rest).into_iter().map(|(_, bytes)| bytes).collect();
                }
                Err(trailers) => self.trailers = trailers.into_trailers().ok(),
            }
        }
        Some(M::decode(self.ready.remove(0)).unwrap())
    }

    /// The status at the end, after all messages were read.
    pub(crate) async fn status(mut self) -> (u8, String) {
        assert_eq!(self.next::<crate::messages::Empty>().await, None, "no further message");
        let (head, _) = self.response.unwrap().into_parts();
        Answer { status: head.status.as_u16(), headers: head.headers, trailers: self.trailers, body: Bytes::new() }
            .grpc()
    }
}
