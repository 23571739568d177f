//! A gRPC echo of raw bytes by tonic, over TLS 1.3 with certificates on both sides, from keys of the same kind as ours.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::runtime::Handle;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{Service, http};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

const NAME: &str = "node.callboard";
const MAX_BYTES: usize = 2 << 20;
/// As our streams and connections have them.
const WINDOWS: (u32, u32) = (8 << 20, 32 << 20);

#[derive(Clone)]
pub(crate) struct Tonic {
    client: tonic::client::Grpc<Channel>,
}

impl Tonic {
    pub(crate) async fn start(there: &Handle) -> Self {
        let authority_key = KeyPair::generate().unwrap();
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let root = Certificate::from_pem(authority.clone().self_signed(&authority_key).unwrap().pem());
        let issuer = Issuer::new(authority, authority_key);
        let issue = || {
            let key = KeyPair::generate().unwrap();
            let certificate = CertificateParams::new(vec![NAME.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
            Identity::from_pem(certificate.pem(), key.serialize_pem())
        };
        let tls = ServerTlsConfig::new().identity(issue()).client_ca_root(root.clone());
        let serving = there.spawn(async move {
            let loopback: SocketAddr = "127.0.0.1:0".parse().unwrap();
            let incoming = TcpIncoming::bind(loopback).unwrap().with_nodelay(Some(true));
            let address = incoming.local_addr().unwrap();
            let server = Server::builder()
                .tls_config(tls)
                .unwrap()
                .initial_stream_window_size(WINDOWS.0)
                .initial_connection_window_size(WINDOWS.1);
            tokio::spawn(server.serve_with_incoming(Echo, incoming));
            address
        });
        let address = serving.await.unwrap();
        let tls = ClientTlsConfig::new().identity(issue()).ca_certificate(root).domain_name(NAME);
        let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap().tls_config(tls).unwrap();
        let endpoint =
            endpoint.tcp_nodelay(true).initial_stream_window_size(WINDOWS.0).initial_connection_window_size(WINDOWS.1);
        let client = tonic::client::Grpc::new(endpoint.connect().await.unwrap());
        Self { client: client.max_decoding_message_size(MAX_BYTES) }
    }

    pub(crate) async fn call(&mut self, payload: Bytes) -> usize {
        self.client.ready().await.unwrap();
        let path = PathAndQuery::from_static("/echo.Echo/Echo");
        let answer: Response<Bytes> = self.client.unary(Request::new(payload), path, Raw).await.unwrap();
        answer.into_inner().len()
    }
}

#[derive(Clone)]
struct Echo;

type Answering =
    Pin<Box<dyn Future<Output = Result<http::Response<tonic::body::Body>, std::convert::Infallible>> + Send>>;

impl Service<http::Request<tonic::body::Body>> for Echo {
    type Response = http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Answering {
        Box::pin(async move {
            let echo = |request: Request<Bytes>| async move { Ok::<_, Status>(Response::new(request.into_inner())) };
            let mut grpc = tonic::server::Grpc::new(Raw).max_decoding_message_size(MAX_BYTES);
            Ok(grpc.unary(Unary(echo), request).await)
        })
    }
}

/// A function as a service of one request.
struct Unary<F>(F);

impl<F, A> tonic::server::UnaryService<Bytes> for Unary<F>
where
    F: FnMut(Request<Bytes>) -> A,
    A: Future<Output = Result<Response<Bytes>, Status>>,
{
    type Response = Bytes;
    type Future = A;

    fn call(&mut self, request: Request<Bytes>) -> A {
        (self.0)(request)
    }
}

/// Bytes as they are: what is measured is not protobuf.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let bytes = buffer.remaining();
        Ok(Some(buffer.copy_to_bytes(bytes)))
    }
}
