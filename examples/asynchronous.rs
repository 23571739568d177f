//! An asynchronous worker: it asks an HTTP service and another route at once, for many calls side by side.
//!
//! Run with `cargo run --example asynchronous`. The service runs in the same program, so that the example needs no
//! network. Your program would use its own HTTP client instead of `get`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::routing;
use callboard::Drained;
use callboard::http::{HttpConfig, serve_router};
use callboard::prelude::*;
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Barrier, mpsc};

/// The service answers when this number of requests wait.
const CONCURRENT: u32 = 6;

/// Reports the weather of a city: the service knows the temperature, the route `/country` knows the country.
struct Report {
    service: SocketAddr,
}

impl AsyncWorker for Report {
    type In = String;
    type Out = String;

    /// The items of a batch run at the same time, and so do several batches; `concurrency` limits the batches.
    async fn call(&self, cities: Batch<String>) -> Vec<Result<String, Failure>> {
        join_all(cities.iter().enumerate().map(|(index, city)| self.report(city, cities.context(index)))).await
    }
}

impl Report {
    /// An error of either request is the outcome of the call: `?` keeps the kind of an inner call's error.
    async fn report(&self, city: &String, context: CallContext) -> Result<String, Failure> {
        // The calls of this client have the deadline of the outer call, and end with it.
        let client = context.client()?;
        let country = async { Ok::<String, Failure>(client.call("/country", city.clone()).await?) };
        let temperature = async { Ok(get(self.service, &format!("/temperature/{city}")).await?) };
        let (country, temperature) = tokio::try_join!(country, temperature)?;
        Ok(format!("{city}, {country}: {temperature} °C"))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (report_held, mut held_requests) = mpsc::channel(8);
    let service = start_service(report_held).await?;
    // However the calls are batched, all of them can wait for the service at once.
    let report = Stage::async_worker("report", move |_: &Replica| Ok(Report { service }))
        .max_batch_size(3)
        .concurrency(CONCURRENT)
        .timeout(Duration::from_secs(20));
    let country = Stage::each("country", |city: &String| match city.as_str() {
        "Atlantis" => Err(Failure::invalid_input("no such city").with_type("UnknownCity")),
        _ => Ok("Peru".to_owned()),
    });
    let node = App::new().route("/report", report).route("/country", country).start().await?;
    let client = node.client();

    let cities = ["Lima", "Cusco", "Ica", "Tacna", "Piura", "Puno"];
    let reports = join_all(cities.map(|city| client.call::<_, String>("/report", city.to_owned()))).await;
    for (city, report) in cities.iter().zip(reports) {
        let report = report?;
        println!("{report}");
        assert_eq!(report, format!("{city}, Peru: 18 °C"));
    }

    // The outcome has the kind and type of the inner call's error, not `worker_failed`.
    let error = client.call::<_, String>("/report", "Atlantis".to_owned()).await.expect_err("no such city");
    println!("Atlantis: {error}");
    assert_eq!((error.kind(), error.error_type()), (ErrorKind::InvalidInput, Some("UnknownCity")));

    // A caller that leaves: the waiting future of the worker is dropped, and with it the request to the service.
    let mut leaves = Box::pin(client.call::<_, String>("/report", "Silent".to_owned()));
    let held = tokio::select! {
        outcome = &mut leaves => return Err(format!("the service does not answer, and the caller got {outcome:?}").into()),
        held = held_requests.recv() => held.ok_or("the service has ended")?,
    };
    drop(leaves);
    held.closed().await;
    println!("the service sees that its caller has left");
    assert_eq!(node.shutdown(Duration::from_secs(5)).await, Drained::Completely);
    Ok(())
}

/// A request that the service never answers: closed when its caller leaves.
type HeldRequest = mpsc::Sender<()>;

/// The service: it answers when [`CONCURRENT`] requests wait, and never answers for the city `Silent`.
async fn start_service(report_held: mpsc::Sender<HeldRequest>) -> std::io::Result<SocketAddr> {
    let together = Arc::new(Barrier::new(CONCURRENT as usize));
    let temperature = async move |Path(city): Path<String>| {
        if city == "Silent" || city == "Atlantis" {
            let (held, mut never) = mpsc::channel(1);
            if city == "Silent" {
                // An error means that the example has ended.
                let _ = report_held.send(held.clone()).await;
            }
            never.recv().await;
        }
        together.wait().await;
        "18"
    };
    let router = Router::new().route("/temperature/{city}", routing::get(temperature));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(serve_router(listener, router, HttpConfig::default(), std::future::pending()));
    Ok(address)
}

/// Sends one request on its own connection, and returns the body of the answer.
async fn get(service: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(service).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {service}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await?;
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or_default();
    if head.starts_with("HTTP/1.1 200") {
        Ok(body.to_owned())
    } else {
        Err(std::io::Error::other(format!("the service answered {head}")))
    }
}
