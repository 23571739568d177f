//! TLS on the listener, with a client that trusts exactly one expected certificate.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use callboard_http::{HttpConfig, HttpServeError, TlsConfig, serve_router};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use crate::support::{Server, TEST_TIMEOUT, bind, config};

const SHORT: Duration = Duration::from_millis(50);

/// A certificate for `localhost` in two files of a temporary directory.
pub(crate) struct CertificateFiles {
    directory: PathBuf,
}

impl CertificateFiles {
    pub(crate) fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("callboard-tls-{}-{name}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        Self { directory }
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.directory.join("certificate.pem")
    }

    fn key(&self) -> PathBuf {
        self.directory.join("key.pem")
    }

    /// Writes a new pair and returns its certificate.
    pub(crate) fn renew(&self) -> CertificateDer<'static> {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(self.certificate(), cert.pem()).unwrap();
        fs::write(self.key(), signing_key.serialize_pem()).unwrap();
        cert.der().clone()
    }

    pub(crate) fn config(&self) -> HttpConfig {
        let mut tls = TlsConfig::new(self.certificate(), self.key());
        tls.reload_interval = SHORT;
        config(|c| c.tls = Some(tls))
    }
}

impl Drop for CertificateFiles {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.directory);
    }
}

/// A handshake that succeeds only with this certificate.
pub(crate) async fn connect(
    server: &Server,
    certificate: &CertificateDer<'static>,
    protocol: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let client = client.with_safe_default_protocol_versions().unwrap();
    let mut client = client.with_root_certificates(roots).with_no_client_auth();
    client.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let socket = TcpStream::connect(server.address).await?;
    TlsConnector::from(Arc::new(client)).connect(ServerName::try_from("localhost").unwrap(), socket).await
}

type Http1 = hyper::client::conn::http1::SendRequest<Empty<Bytes>>;

async fn http1(socket: TlsStream<TcpStream>) -> Http1 {
    let (client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn hello_over(client: &mut Http1) -> Bytes {
    client.ready().await.unwrap();
    let request = hyper::Request::get("/").header("host", "localhost").body(Empty::new()).unwrap();
    let response = client.send_request(request).await.unwrap();
    response.into_body().collect().await.unwrap().to_bytes()
}

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

#[tokio::test]
async fn alpn_selects_the_version_that_the_client_requests() {
    let files = CertificateFiles::new("versions");
    let certificate = files.renew();
    let server = Server::for_router(hello(), files.config()).await;

    let socket = connect(&server, &certificate, "http/1.1").await.unwrap();
    assert_eq!(socket.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert_eq!(hello_over(&mut http1(socket).await).await, "hello");

    let socket = connect(&server, &certificate, "h2").await.unwrap();
    assert_eq!(socket.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::get("https://localhost/").body(Empty::<Bytes>::new()).unwrap();
    let response = client.send_request(request).await.unwrap();
    assert_eq!(response.version(), hyper::Version::HTTP_2);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
}

#[tokio::test]
async fn the_index_uses_https_addresses() {
    let files = CertificateFiles::new("index");
    let certificate = files.renew();
    let server = Server::for_app(crate::support::app::app(), files.config()).await;
    let mut client = http1(connect(&server, &certificate, "http/1.1").await.unwrap()).await;
    let page = String::from_utf8(hello_over(&mut client).await.to_vec()).unwrap();
    assert!(page.contains("https://localhost/"), "{page}");
}

/// Connects when the server presents this certificate.
async fn connect_when_renewed(server: &Server, certificate: &CertificateDer<'static>) -> TlsStream<TcpStream> {
    let trying = async {
        loop {
            if let Ok(socket) = connect(server, certificate, "http/1.1").await {
                return socket;
            }
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, trying).await.expect("the certificate is presented in time")
}

#[tokio::test]
async fn a_renewed_certificate_is_served_and_no_connection_is_dropped() {
    let files = CertificateFiles::new("renewed");
    let first = files.renew();
    let server = Server::for_router(hello(), files.config()).await;
    let mut early = http1(connect(&server, &first, "http/1.1").await.unwrap()).await;
    assert_eq!(hello_over(&mut early).await, "hello");

    let second = files.renew();
    let mut late = http1(connect_when_renewed(&server, &second).await).await;
    assert_eq!(hello_over(&mut late).await, "hello");
    assert_eq!(hello_over(&mut early).await, "hello", "an older connection stays open");
    assert!(connect(&server, &first, "http/1.1").await.is_err(), "the old certificate is not presented any more");
}

#[tokio::test]
async fn invalid_files_keep_the_old_certificate() {
    let files = CertificateFiles::new("broken");
    let first = files.renew();
    let server = Server::for_router(hello(), files.config()).await;
    connect(&server, &first, "http/1.1").await.unwrap();
    let key = fs::read(files.key()).unwrap();
    fs::write(files.key(), "no key").unwrap();
    // Long enough for several checks of the file. With the new file, these handshakes would fail.
    for _ in 0..20 {
        connect(&server, &first, "http/1.1").await.unwrap();
        tokio::time::sleep(SHORT / 10).await;
    }
    fs::write(files.key(), key).unwrap();
    let second = files.renew();
    connect_when_renewed(&server, &second).await;
}

#[tokio::test]
async fn a_certificate_with_the_wrong_key_is_refused_at_start() {
    let files = CertificateFiles::new("mismatch");
    files.renew();
    let certificate = fs::read(files.certificate()).unwrap();
    files.renew();
    fs::write(files.certificate(), certificate).unwrap();
    let refused = serve_router(bind().await, hello(), files.config(), std::future::pending()).await.unwrap_err();
    assert!(matches!(refused, HttpServeError::Tls(_)), "{refused}");

    let missing = TlsConfig::new(Path::new("/nowhere/certificate.pem"), files.key());
    let config = config(|c| c.tls = Some(missing));
    let refused = serve_router(bind().await, hello(), config, std::future::pending()).await.unwrap_err();
    let cause = std::error::Error::source(&refused).unwrap().to_string();
    assert_eq!(cause, "cannot read /nowhere/certificate.pem");
}

#[tokio::test]
async fn a_client_that_does_not_finish_the_handshake_is_disconnected() {
    let files = CertificateFiles::new("handshake");
    files.renew();
    let mut config = files.config();
    config.tls.as_mut().unwrap().handshake_timeout = SHORT;
    let server = Server::for_router(hello(), config).await;
    let mut silent = server.connect().await;
    assert_eq!(silent.closed().await, b"");
    let mut half = server.connect().await;
    half.send(b"\x16\x03\x01\x02\x00").await;
    assert_eq!(half.closed().await, b"");
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_is_disconnected() {
    let files = CertificateFiles::new("unread");
    let certificate = files.renew();
    let mut config = files.config();
    config.write_progress_timeout = Duration::from_millis(200);
    let large = Router::new().route("/", get(|| async { vec![b'x'; 64 << 20] }));
    let server = Server::for_router(large, config).await;
    let mut socket = connect(&server, &certificate, "http/1.1").await.unwrap();
    let (tcp, _) = socket.get_ref();
    tcp.set_nodelay(true).unwrap();
    socket.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    // The client does not read until the server has given up: then the answer is truncated.
    let until_closed = async {
        loop {
            tokio::time::sleep(SHORT).await;
            if socket.write_all(b"\r\n").await.is_err() {
                return;
            }
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, until_closed).await.expect("cut in time");
}

/// Head and body in records of their own. A refusal that leaves the connection usable is followed by another request;
/// any other one says that the connection ends, and arrives although the client still sends.
#[tokio::test]
async fn a_refusal_costs_no_answer_over_tls_either() {
    let files = CertificateFiles::new("refusals");
    let certificate = files.renew();
    let server = Server::for_router(hello(), files.config()).await;
    for (head, status, body, goes_on) in [
        ("POST / HTTP/1.1\r\ncontent-length: 1000", "405", vec![b'x'; 1000], true),
        ("POST /nowhere HTTP/1.1\r\ncontent-length: 1000", "404", vec![b'x'; 1000], true),
        ("POST / HTTP/1.1\r\ncontent-length: 90000", "405", vec![b'x'; 90_000], false),
        ("POST / HTTP/1.1\r\ntransfer-encoding: chunked", "405", b"3e8\r\n".to_vec(), false),
    ] {
        let mut socket = connect(&server, &certificate, "http/1.1").await.unwrap();
        for _ in 0..3 {
            socket.write_all(format!("{head}\r\nhost: localhost\r\n\r\n").as_bytes()).await.unwrap();
            socket.write_all(&body).await.unwrap();
            let refused = read_past(&mut socket, "\r\n\r\n").await;
            assert!(refused.starts_with(&format!("HTTP/1.1 {status}")), "{head}: {refused}");
            assert_eq!(!refused.contains("connection: close"), goes_on, "{head}: {refused}");
            if !goes_on {
                break;
            }
            socket.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
            assert!(read_past(&mut socket, "hello").await.starts_with("HTTP/1.1 200"), "{head}");
        }
    }
}

async fn read_past(socket: &mut TlsStream<TcpStream>, text: &str) -> String {
    let mut read = Vec::new();
    while !read.ends_with(text.as_bytes()) {
        let reading = tokio::time::timeout(TEST_TIMEOUT, socket.read_buf(&mut read)).await.expect("bytes in time");
        assert!(reading.unwrap() > 0, "closed after {:?}", String::from_utf8_lossy(&read));
    }
    String::from_utf8(read).unwrap()
}
