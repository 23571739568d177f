//! Callboard's routes inside your own axum router: one port, one listener, your handlers next to them.
//!
//! Run with `cargo run --example mount`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use callboard::http::{HttpEdge, Problem};
use callboard::prelude::*;
use callboard::{Drained, RouteSpec};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A handler of your own that calls a stage: nothing is encoded, and an error is answered as by the edge.
async fn mine(State(edge): State<HttpEdge>, Path(text): Path<String>) -> Result<String, Problem> {
    Ok(edge.client()?.call("/shout", text).await?)
}

/// What a layer of your own knows of a request, for your handlers and for the stages of routes that list it.
#[derive(Clone)]
struct Tenant(&'static str);

async fn with_tenant(mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(Tenant("acme"));
    next.run(request).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let shout = Stage::each("shout", |text: &String| Ok(text.to_uppercase()));
    let greet = Stage::each_with_context("greet", |name: &String, context: &CallContext| {
        let tenant = context.extension::<Tenant>().ok_or_else(|| Failure::invalid_input("no tenant"))?;
        Ok(format!("{} greets {name}", tenant.0))
    });
    let app = App::new().route("/shout", shout).mount(RouteSpec::new("/greet", greet).extension::<Tenant>());
    let server = Server::builder()
        // The edge is a `tower::Service`. As the fallback it serves all other paths: its routes, `/docs`, `/metrics`,
        // `/livez`.
        .mount(|edge| {
            let router = Router::new().route("/mine/{text}", get(mine)).with_state(edge.clone()).fallback_service(edge);
            router.layer(from_fn(with_tenant))
        })
        .start(app, "127.0.0.1:0")
        .await?;
    let address = server.address();

    let custom = send(address, "GET /mine/hi HTTP/1.1", "").await?;
    println!("GET /mine/hi: {custom}");
    assert_eq!(custom, "HI");

    let reply = send(address, "POST /shout HTTP/1.1\r\ncontent-type: application/json", "\"hello\"").await?;
    println!("POST /shout: {reply}");
    assert_eq!(reply, "\"HELLO\"");

    let reply = send(address, "POST /greet HTTP/1.1\r\ncontent-type: application/json", "\"Ada\"").await?;
    println!("POST /greet: {reply}");
    assert_eq!(reply, "\"acme greets Ada\"");

    let document = send(address, "GET /openapi.json HTTP/1.1", "").await?;
    assert!(
        document.contains("\"/shout\"") && !document.contains("\"/mine\""),
        "the document lists only the routes of the node"
    );

    // Requests of both are finished before the node ends.
    assert_eq!(server.shutdown(Duration::from_secs(5)).await, Drained::Completely);
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
