//! The square of `cases.py` on axum alone, without batches, workers or Python: what an edge on hyper has at most here.
//!
//! Its argument is the port. `run.py` starts it.

use std::net::Ipv4Addr;

use axum::routing::post;
use axum::serve::ListenerExt as _;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

#[derive(Deserialize)]
struct Item {
    x: f64,
}

#[derive(Serialize)]
struct Square {
    y: f64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port: u16 = std::env::args().nth(1).ok_or("expected a port")?.parse()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    let square = post(|Json(item): Json<Item>| async move { Json(Square { y: item.x * item.x }) });
    Ok(axum::serve(listener, Router::new().route("/square", square)).await?)
}
