//! The client against the edge on both protocols, and against servers of other protocols.

use bytes::Bytes;
use callboard_http::HttpConfig;
use callboard_http_client::{Call, ClientError, Connection, Origin, Protocol};
use tokio::io::AsyncWriteExt;

use crate::support::app::app;
use crate::support::{Server, bind};

const PROTOCOLS: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

fn origin(address: std::net::SocketAddr) -> Origin {
    format!("http://{address}").parse().unwrap()
}

fn greet(name: &str) -> Call {
    Call {
        method: "POST".to_owned(),
        route: "/greet".to_owned(),
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        body: Bytes::from(format!("{{\"name\":\"{name}\"}}")),
    }
}

#[tokio::test]
async fn a_connection_carries_several_calls_in_turn_on_both_protocols() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let origin = origin(server.address);
    for protocol in PROTOCOLS {
        let mut connection = Connection::open(&origin, protocol).await.unwrap();
        for name in ["Ada", "Bob"] {
            let request = greet(name).prepare(&origin, protocol).unwrap();
            let answer = connection.send(&request).await.unwrap();
            assert_eq!((answer.status(), answer.reason()), (200, "OK"));
            assert_eq!(answer.header("content-type"), Some("application/json"));
            assert!(answer.headers().any(|(name, _)| name == "x-request-id"));
            assert_eq!(answer.bytes(1024).await.unwrap(), format!("{{\"text\":\"hello {name}\"}}"));
        }
        assert!(!connection.is_closed());
        assert_eq!(connection.share().is_some(), protocol == Protocol::Http2);
    }
}

#[tokio::test]
async fn an_answer_longer_than_the_limit_of_its_reader_is_an_error() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let origin = origin(server.address);
    let request = greet("Ada").prepare(&origin, Protocol::Http1).unwrap();
    let mut connection = Connection::open(&origin, Protocol::Http1).await.unwrap();
    let answer = connection.send(&request).await.unwrap();
    assert!(matches!(answer.bytes(3).await, Err(ClientError::TooLong { limit: 3 })));

    let mut connection = Connection::open(&origin, Protocol::Http1).await.unwrap();
    assert_eq!(connection.send(&request).await.unwrap().discard().await.unwrap(), 20);
}

#[tokio::test]
async fn a_refused_connection_names_its_address() {
    let address = bind().await.local_addr().unwrap();
    let error = Connection::open(&origin(address), Protocol::Http1).await.unwrap_err();
    assert_eq!(error.as_str(), "connect");
    assert_eq!(error.to_string(), format!("could not connect to {address}"));
}

#[tokio::test]
async fn a_truncated_answer_and_a_foreign_protocol_are_different_errors() {
    for (answer_bytes, expected) in [
        ("", "closed"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", "closed"),
        ("SSH-2.0-OpenSSH_9.9\r\n\r\n", "protocol"),
    ] {
        let listener = bind().await;
        let origin = origin(listener.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 1];
            tokio::io::AsyncReadExt::read_exact(&mut stream, &mut head).await.unwrap();
            stream.write_all(answer_bytes.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            // Reads everything that the client sent, so that closing causes no reset.
            tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.unwrap();
        });
        let mut connection = Connection::open(&origin, Protocol::Http1).await.unwrap();
        let request = greet("Ada").prepare(&origin, Protocol::Http1).unwrap();
        let outcome = async { connection.send(&request).await?.discard().await }.await;
        assert_eq!(outcome.unwrap_err().as_str(), expected, "{answer_bytes:?}");
        drop(connection);
        serving.await.unwrap();
    }
}
