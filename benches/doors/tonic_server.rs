//! The bare server: tonic with its own accept loop and its defaults, and a handler that gives the arrays back.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{Service, http};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use super::messages::{ModelInferRequest, ModelInferResponse};

/// Binds a socket, and serves it until the runtime ends.
pub(crate) fn start() -> SocketAddr {
    let loopback: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let incoming = TcpIncoming::bind(loopback).unwrap().with_nodelay(Some(true));
    let address = incoming.local_addr().unwrap();
    tokio::spawn(Server::builder().serve_with_incoming(Inference, incoming));
    address
}

fn infer(request: ModelInferRequest) -> ModelInferResponse {
    ModelInferResponse {
        model_name: request.model_name,
        model_version: "1".to_owned(),
        id: request.id,
        outputs: request.inputs,
        raw_output_contents: request.raw_input_contents,
        ..ModelInferResponse::default()
    }
}

#[derive(Clone)]
struct Inference;

impl Service<http::Request<tonic::body::Body>> for Inference {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(async move {
            let infer = |request: Request<ModelInferRequest>| async move {
                Ok::<_, Status>(Response::new(infer(request.into_inner())))
            };
            let codec = ProstCodec(PhantomData::<(ModelInferResponse, ModelInferRequest)>);
            Ok(tonic::server::Grpc::new(codec).unary(Unary(infer), request).await)
        })
    }
}

/// A function as a service of one request.
struct Unary<F>(F);

impl<F, A> tonic::server::UnaryService<ModelInferRequest> for Unary<F>
where
    F: FnMut(Request<ModelInferRequest>) -> A,
    A: Future<Output = Result<Response<ModelInferResponse>, Status>>,
{
    type Response = ModelInferResponse;
    type Future = A;

    fn call(&mut self, request: Request<ModelInferRequest>) -> A {
        (self.0)(request)
    }
}

/// What the crate `tonic-prost` has, in as many lines.
struct ProstCodec<T>(PhantomData<T>);

impl<E, D> Codec for ProstCodec<(E, D)>
where
    E: Message + 'static,
    D: Message + Default + 'static,
{
    type Encode = E;
    type Decode = D;
    type Encoder = ProstCodec<E>;
    type Decoder = ProstCodec<D>;

    fn encoder(&mut self) -> ProstCodec<E> {
        ProstCodec(PhantomData)
    }

    fn decoder(&mut self) -> ProstCodec<D> {
        ProstCodec(PhantomData)
    }
}

impl<E: Message> Encoder for ProstCodec<E> {
    type Item = E;
    type Error = Status;

    fn encode(&mut self, item: E, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

impl<D: Message + Default> Decoder for ProstCodec<D> {
    type Item = D;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<D>, Status> {
        D::decode(buffer).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
