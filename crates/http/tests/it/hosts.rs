//! A request must name exactly one valid host, on every listener.

use std::net::SocketAddr;

use callboard_http::HttpConfig;
use tokio::io::AsyncWriteExt;

use crate::admin::AdminServer;
use crate::support::app::app;
use crate::support::frames::Frames;
use crate::support::{Raw, Server};

/// The head of a request without its end, and the status of its answer on a loopback listener.
const HEADS: [(&str, u16); 26] = [
    ("GET /livez HTTP/1.1\r\nhost: localhost", 200),
    ("GET /livez HTTP/1.1\r\nhost: LOCALHOST:8001", 200),
    ("GET /livez HTTP/1.1\r\nhost: test", 200),
    ("GET /livez HTTP/1.1\r\nhost: 127.0.0.1:8001", 200),
    ("GET /livez HTTP/1.1\r\nhost: [::1]", 200),
    ("GET /livez HTTP/1.1\r\nhost: [::1]:8001", 200),
    ("GET http://localhost:8001/livez HTTP/1.1\r\nhost: localhost:8001", 200),
    ("GET /livez HTTP/1.0", 200),
    // Another name that resolves to loopback: DNS rebinding by a web page.
    ("GET /livez HTTP/1.1\r\nhost: evil.example.org", 403),
    ("GET http://evil.example.org/livez HTTP/1.1\r\nhost: evil.example.org", 403),
    // No host, and several hosts.
    ("GET /livez HTTP/1.1", 400),
    ("GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: localhost", 400),
    ("GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: evil.example.org", 400),
    ("GET /livez HTTP/1.0\r\nhost: localhost\r\nhost: evil.example.org", 400),
    ("GET /livez HTTP/1.1\r\nhost: localhost, evil.example.org", 400),
    ("GET http://localhost/livez HTTP/1.1\r\nhost: evil.example.org", 400),
    ("GET http://evil.example.org/livez HTTP/1.1\r\nhost: localhost", 400),
    ("GET http://localhost/livez HTTP/1.1", 400),
    // Not a valid host.
    ("GET /livez HTTP/1.1\r\nhost: [[::1]]", 400),
    ("GET /livez HTTP/1.1\r\nhost: [::1", 400),
    ("GET /livez HTTP/1.1\r\nhost: ::1", 400),
    ("GET /livez HTTP/1.1\r\nhost: [localhost]", 400),
    ("GET /livez HTTP/1.1\r\nhost: user@localhost", 400),
    ("GET /livez HTTP/1.1\r\nhost: localhost:80:80", 400),
    ("GET /livez HTTP/1.1\r\nhost: localhost:65536", 400),
    ("GET /livez HTTP/1.1\r\nhost: localhost/evil", 400),
];

async fn check_hosts(address: SocketAddr, listener: &str) {
    for (head, status) in HEADS {
        let mut client = Raw::connect(address).await;
        client.send(format!("{head}\r\nconnection: close\r\n\r\n")).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, status, "{listener}: {head}: {answer:?}");
        if status == 400 {
            assert_eq!(answer.problem()["error_type"], "bad_header", "{listener}: {head}");
        }
    }
}

#[tokio::test]
async fn the_edge_answers_requests_with_one_valid_host_only() {
    check_hosts(Server::for_app(app(), HttpConfig::default()).await.address, "edge").await;
}

#[tokio::test]
async fn the_admin_listener_answers_requests_with_one_valid_host_only() {
    check_hosts(AdminServer::start(app(), HttpConfig::default()).await.address, "admin").await;
}

#[tokio::test]
async fn over_http2_the_authority_and_the_host_must_agree() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let admin = AdminServer::start(app(), HttpConfig::default()).await;
    for address in [server.address, admin.address] {
        for (names, status) in [
            (&[(":authority", "localhost")][..], 200),
            (&[(":authority", "localhost"), ("host", "LocalHost")], 200),
            (&[("host", "localhost")], 200),
            (&[], 400),
            (&[(":authority", "localhost"), ("host", "evil.example.org")], 400),
            (&[(":authority", "evil.example.org"), ("host", "localhost")], 400),
            (&[(":authority", "localhost:1"), ("host", "localhost:2")], 400),
            (&[("host", "localhost"), ("host", "localhost")], 400),
            (&[(":authority", "user@localhost")], 400),
            (&[("host", "[[::1]]")], 400),
        ] {
            let mut client = Frames::connect(address).await;
            let fields = [&[(":method", "GET"), (":scheme", "http"), (":path", "/livez")], names].concat();
            let request = client.request(&fields);
            client.socket.write_all(&request).await.unwrap();
            assert_eq!(client.status().await, Some(status), "{names:?}");
        }
    }
}
