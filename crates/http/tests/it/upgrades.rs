//! Upgrades of connections to the protocol of a program, over TCP and TLS.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::{IntoResponse, Response};
use callboard_http::protocol::{
    ApiError, Claims, Protocol, ProtocolAnswer, ProtocolRequest, RequestContext, UpgradedSocket,
};
use callboard_http::{ApiInfo, ApiKeys, Cors, HttpConfig, HttpEdge, RateLimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

use crate::support::app::app;
use crate::support::{Raw, Server, TEST_TIMEOUT, bind, config};
use crate::tls::{CertificateFiles, connect};

/// Sends back what it gets, and one line when the node is about to end. It panics at a `!`.
#[derive(Debug)]
struct Echo;

impl Protocol for Echo {
    fn name(&self) -> &str {
        "the echo protocol"
    }

    fn claims(&self) -> Claims {
        Claims { paths: &["/echo"], upgrades: &["echo"], ..Claims::default() }
    }

    fn answer<'a>(&'a self, context: RequestContext<'a>, request: ProtocolRequest<'a>) -> ProtocolAnswer<'a> {
        Box::pin(async move {
            Ok(match context.upgrade(request.head, &["echo"])? {
                Some(upgrade) => upgrade.accept(echo),
                None => "not upgraded".into_response(),
            })
        })
    }

    fn error_response(&self, error: ApiError) -> Response {
        (error.status(), format!("no echo: {}", error.message())).into_response()
    }
}

async fn echo(mut socket: UpgradedSocket) {
    let mut withdrawn = pin!(socket.withdrawn());
    let (mut is_told, mut buffer) = (false, [0; 1024]);
    loop {
        let piece = tokio::select! {
            read = socket.read(&mut buffer) => match read {
                Ok(count @ 1..) => &buffer[..count],
                _ => break,
            },
            () = &mut withdrawn, if !is_told => {
                is_told = true;
                b"leaving\n"
            }
        };
        assert!(!piece.contains(&b'!'), "the panic of a protocol, as expected");
        if socket.write_all(piece).await.is_err() || socket.flush().await.is_err() {
            break;
        }
    }
    _ = socket.shutdown().await;
}

async fn server(config: HttpConfig) -> Server {
    Server::for_app_beside(app(), config, vec![Arc::new(Echo)], |_| ()).await
}

/// The head of a request for an upgrade, with further lines.
fn head(path: &str, lines: &str) -> String {
    let asked = "connection: keep-alive, Upgrade\r\nupgrade: other/2, Echo\r\n";
    format!("GET {path} HTTP/1.1\r\nhost: test\r\n{asked}{lines}\r\n")
}

/// A connection on which the server has switched to the echo protocol.
async fn upgraded(server: &Server, path: &str) -> Raw {
    let mut client = server.connect().await;
    client.send(head(path, "")).await;
    assert_eq!(client.answer().await.status, 101);
    client
}

/// Whether the other side sends back what it gets.
async fn assert_echo(client: &mut Raw, text: &str) {
    client.send(text).await;
    client.read_past(text).await;
}

#[tokio::test]
async fn after_the_upgrade_the_socket_belongs_to_its_protocol() {
    let server = server(HttpConfig::default()).await;
    let mut client = server.connect().await;
    // Bytes that come with the head are the first of the other protocol.
    client.send(head("/echo", "") + "early").await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("upgrade")), (101, Some("echo")));
    assert_eq!(answer.header("connection"), Some("upgrade"));
    assert!(answer.header("x-request-id").is_some());
    client.read_past("early").await;
    assert_echo(&mut client, "GET / HTTP/1.1\r\n\r\n").await;
    server.metric_becomes("callboard_http_connections_upgraded", 1.0).await;
    client.socket.shutdown().await.unwrap();
    assert_eq!(client.closed().await, b"");
    server.metric_becomes("callboard_http_connections_upgraded", 0.0).await;
}

#[tokio::test]
async fn an_upgrade_over_tls_stays_encrypted() {
    let files = CertificateFiles::new("upgrades");
    let certificate = files.renew();
    let server = server(files.config()).await;
    let mut client = connect(&server, &certificate, "http/1.1").await.unwrap();
    client.write_all((head("/echo", "") + "over tls").as_bytes()).await.unwrap();
    let mut received = Vec::new();
    let reading = async {
        while !received.ends_with(b"over tls") {
            assert!(client.read_buf(&mut received).await.unwrap() > 0, "closed early");
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, reading).await.unwrap();
    assert!(received.starts_with(b"HTTP/1.1 101 "));
    client.shutdown().await.unwrap();
    // The end comes with `close_notify`: the connection was not cut.
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn an_upgrade_that_is_not_offered_is_answered_as_any_other_request() {
    let server = server(HttpConfig::default()).await;
    let asks = [("connection", "upgrade"), ("upgrade", "websocket"), ("content-type", "application/json")];
    let mut client = server.connect().await;
    for _ in 0..2 {
        let answer = client.post("/mirror", &asks, "1").await;
        assert_eq!((answer.status, answer.text()), (200, "1"));
    }
    let asks = [("connection", "upgrade"), ("upgrade", "echo"), ("content-type", "application/json")];
    assert_eq!(client.post("/mirror", &asks, "1").await.status, 200, "a call of a route");
    assert_eq!(client.post("/echo", &asks, "1").await.text(), "not upgraded", "a body would have to be read first");
    for (request, status) in [
        (head("/echo", "").replace("Echo", "websocket"), 200),
        (head("/echo", "").replace("Upgrade\r\n", "x\r\n"), 200),
        (head("/echo", "").replace("HTTP/1.1", "HTTP/1.0"), 200),
        (head("/mirror", "").replace("Echo", "websocket"), 405),
        (head("/v1/call/mirror", ""), 405),
        (head("/nowhere", ""), 404),
    ] {
        let mut client = server.connect().await;
        client.send(&request).await;
        assert_eq!(client.answer().await.status, status, "{request}");
    }
}

#[tokio::test]
async fn a_protocol_gets_the_upgrades_of_routes_that_it_claims() {
    let server = server(HttpConfig::default()).await;
    assert_echo(&mut upgraded(&server, "/mirror").await, "on a route").await;
}

#[tokio::test]
async fn a_connection_that_was_not_upgraded_is_closed_in_order() {
    let files = CertificateFiles::new("not-upgraded");
    let certificate = files.renew();
    let server = server(files.config()).await;
    let mut client = connect(&server, &certificate, "http/1.1").await.unwrap();
    client.write_all(head("/livez", "connection: close\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // Without `close_notify` this is an error.
    tokio::time::timeout(TEST_TIMEOUT, client.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
}

#[tokio::test]
async fn the_number_of_upgraded_connections_is_limited() {
    let server = server(config(|config| config.max_connections = 3)).await;
    let mut first = upgraded(&server, "/echo").await;
    let mut second = server.connect().await;
    let message = "1 connections are upgraded to other protocols, half of `http.max_connections`";
    second.send(head("/echo", "")).await;
    let refused = second.answer().await;
    assert_eq!((refused.status, refused.text()), (429, &*format!("no echo: {message}")));
    second.send(head("/mirror", "")).await;
    let refused = second.answer().await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert_eq!(refused.problem()["message"], message);
    assert_eq!(second.get("/livez").await.status, 200, "the connection goes on");
    assert_echo(&mut first, "a").await;
    drop(first);
    server.metric_becomes("callboard_http_connections_upgraded", 0.0).await;
    second.send(head("/echo", "")).await;
    assert_eq!(second.answer().await.status, 101);
}

#[tokio::test]
async fn an_upgrade_passes_the_guards_of_a_request() {
    let status = async |server: &Server, lines: &str| {
        let mut client = server.connect().await;
        client.send(head("/echo", lines)).await;
        client.answer().await.status
    };
    let open = server(HttpConfig::default()).await;
    assert_eq!(status(&open, "origin: http://test\r\n").await, 101, "its own page");
    for foreign in ["http://evil.example.org", "null", "https://test.example.org"] {
        assert_eq!(status(&open, &format!("origin: {foreign}\r\n")).await, 403, "{foreign}");
    }
    let mut client = open.connect().await;
    client.send(head("/echo", "").replace("host: test", "host: evil.example.org")).await;
    assert_eq!(client.answer().await.status, 403, "a foreign name of this machine");

    let guarded = server(config(|config| {
        config.api_keys = Some(ApiKeys::parse("ann a-key-that-is-long-enough-for-it").unwrap());
        config.rate_limit = Some(RateLimit::parse("2/h").unwrap());
        config.cors = Some(Cors::parse(["https://app.example.org"]).unwrap());
    }))
    .await;
    let key = "authorization: Bearer a-key-that-is-long-enough-for-it\r\n";
    assert_eq!(status(&guarded, "").await, 401);
    assert_eq!(status(&guarded, &format!("{key}origin: https://app.example.org\r\n")).await, 101);
    assert_eq!(status(&guarded, key).await, 101);
    assert_eq!(status(&guarded, key).await, 429, "beyond the rate of the key");
}

#[tokio::test]
async fn timeouts_of_idle_connections_and_of_heads_do_not_end_a_socket() {
    const SHORT: Duration = Duration::from_millis(30);
    let server = server(config(|config| (config.idle_timeout, config.header_read_timeout) = (SHORT, SHORT))).await;
    let mut client = upgraded(&server, "/echo").await;
    // Connections that began later end by these timeouts.
    for begun in ["", "GET / HT"] {
        let mut silent = server.connect().await;
        silent.send(begun).await;
        silent.closed().await;
    }
    assert_echo(&mut client, "still here").await;
}

#[tokio::test]
async fn a_withdrawn_node_tells_its_sockets_and_still_serves_them() {
    let (edges, mut edge) = oneshot::channel();
    let prepare = |edge: &HttpEdge| edges.send(edge.clone()).unwrap();
    let server = Server::for_app_beside(app(), HttpConfig::default(), vec![Arc::new(Echo)], prepare).await;
    let mut client = upgraded(&server, "/echo").await;
    assert_echo(&mut client, "before").await;
    edge.try_recv().unwrap().withdraw();
    client.read_past("leaving").await;
    assert_echo(&mut client, "after").await;
    // A load balancer learns of it later.
    upgraded(&server, "/echo").await.read_past("leaving").await;
}

#[tokio::test]
async fn a_shutdown_tells_a_socket_and_waits_for_its_end() {
    let mut server = server(config(|config| config.shutdown_grace = TEST_TIMEOUT)).await;
    let mut client = upgraded(&server, "/echo").await;
    server.begin_shutdown();
    client.read_past("leaving").await;
    assert_echo(&mut client, "within the grace period").await;
    assert!(!server.is_ended());
    drop(client);
    server.ended().await;
}

#[tokio::test]
async fn the_end_of_the_grace_period_cuts_a_socket() {
    let mut server = server(config(|config| config.shutdown_grace = Duration::from_millis(50))).await;
    let mut client = upgraded(&server, "/echo").await;
    server.begin_shutdown();
    assert_eq!(client.closed().await, b"leaving\n");
    server.ended().await;
}

#[tokio::test]
async fn a_panic_of_a_protocol_ends_its_socket_only() {
    let server = server(config(|config| config.max_connections = 5)).await;
    let mut other = upgraded(&server, "/echo").await;
    let mut client = upgraded(&server, "/echo").await;
    client.send("!").await;
    assert_eq!(client.closed().await, b"");
    assert_echo(&mut other, "alive").await;
    server.metric_becomes("callboard_http_connections_upgraded", 1.0).await;
    assert_echo(&mut upgraded(&server, "/echo").await, "its permit is free").await;
}

#[tokio::test]
async fn an_edge_in_a_router_upgrades_only_connections_of_this_server() {
    let node = app().start().await.unwrap();
    let edge = HttpEdge::try_new(node.client(), HttpConfig::default(), ApiInfo::default(), vec![Arc::new(Echo)]);
    let router = Router::new().fallback_service(edge.unwrap());
    let own = Server::for_router(router.clone(), HttpConfig::default()).await;
    assert_echo(&mut upgraded(&own, "/echo").await, "mounted").await;

    let listener = bind().await;
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async { axum::serve(listener, router).await });
    let mut client = Raw::connect(address).await;
    client.send(head("/echo", "").replace("host: test", "host: localhost")).await;
    assert_eq!(client.answer().await.text(), "not upgraded");
    serving.abort();
}
