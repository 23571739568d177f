//! Callboard's routes inside your own axum router: one port, one listener, your handlers next to them.
//!
//! Run with `cargo run --example mount`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use callboard::Drained;
use callboard::http::{ApiInfo, HttpConfig, HttpEdge, InferenceProtocol, serve_router};
use callboard::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let shout = Stage::each("shout", |text: &String| Ok(text.to_uppercase()));
    let node = App::new().route("/shout", shout).start().await?;

    // The edge is a `tower::Service`. As the fallback it serves all other paths: its routes, `/docs`, `/metrics`,
    // `/livez`.
    let config = HttpConfig::default();
    let edge =
        HttpEdge::try_new(node.client(), config.clone(), ApiInfo::default(), vec![Arc::new(InferenceProtocol::new())])?;
    let router = Router::new().route("/mine", get(|| async { "a custom handler" })).fallback_service(edge);

    // Any server for axum works. This one has the limits of `config`, and finishes running requests at its end.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let shutdown = async { stopped.await.unwrap_or_default() };
    let serving = tokio::spawn(serve_router(listener, router, config, shutdown));

    let custom = send(address, "GET /mine HTTP/1.1", "").await?;
    println!("GET /mine: {custom}");
    assert_eq!(custom, "a custom handler");

    let reply = send(address, "POST /shout HTTP/1.1\r\ncontent-type: application/json", "\"hello\"").await?;
    println!("POST /shout: {reply}");
    assert_eq!(reply, "\"HELLO\"");

    let document = send(address, "GET /openapi.json HTTP/1.1", "").await?;
    assert!(
        document.contains("\"/shout\"") && !document.contains("\"/mine\""),
        "the document lists only the routes of the node"
    );

    // The server ends first, then the node.
    drop(stop);
    serving.await??;
    assert_eq!(node.shutdown(Duration::from_secs(5)).await, Drained::Completely);
    Ok(())
}

/// Sends one request on its own connection, and returns the body of the answer.
async fn send(address: std::net::SocketAddr, head: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request =
        format!("{head}\r\nhost: {address}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}
