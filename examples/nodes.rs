//! A gateway and its workers, in Rust: three processes, joined over QUIC. One worker is killed, and no call is lost.
//!
//! Run with `cargo run --example nodes`. Each worker is its own process (this program with the argument `worker`).
//! The same from files, without a program: `examples/gateway`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use callboard::net::{Cluster, Identity, NetConfig, QuicEdge, StaticView};
use callboard::prelude::*;
use callboard::{Contract, Drained};
use futures_util::future::join_all;

type Problem = Box<dyn std::error::Error>;

/// For one user on one machine. Between machines: `callboard cluster init`, and `Identity::load`.
fn edge() -> Result<QuicEdge, Problem> {
    Ok(QuicEdge::bind("127.0.0.1:0".parse()?, Identity::development()?, NetConfig::default())?)
}

/// A worker: it runs the stage `square`. Its contract says that a lost call may run again on another node.
async fn worker() -> Result<(), Problem> {
    let square = Stage::each("square", |number: &i64| Ok(number * number)).contract(Contract::Pure);
    let app = App::new().route("/square", square);
    let server = Server::builder().quic(edge()?).start(app, "127.0.0.1:0").await?;
    let quic = server.quic().ok_or("a server with an edge")?;
    println!("{}", quic.address());
    std::io::stdout().flush()?;
    // Runs until the gateway ends. A real program would wait for a signal.
    let gateway_ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let _drained = server.run_until(async { _ = gateway_ended.await }, Duration::from_secs(5)).await;
    Ok(())
}

/// The gateway: it runs `next` itself, and the workers run `square`.
async fn gateway(workers: &[SocketAddr]) -> Result<Server, Problem> {
    let next = Stage::each("next", |number: &i64| Ok(number + 1));
    let pipeline = Pipeline::from(next).then(Pipeline::<i64, i64>::remote("square"));
    let app = App::new().route("/next-square", pipeline);
    let peers = StaticView::try_new(workers.iter().copied())?;
    let server = Server::builder().quic_with_peers(edge()?, |edge| Cluster::start(edge, Arc::new(peers)));
    Ok(server.start(app, "127.0.0.1:0").await?)
}

#[tokio::main]
async fn main() -> Result<(), Problem> {
    if std::env::args().nth(1).as_deref() == Some("worker") {
        return worker().await;
    }
    let (first, second) = (WorkerProcess::start()?, WorkerProcess::start()?);
    let server = gateway(&[first.address, second.address]).await?;
    println!("gateway on http://{}, workers on {} and {}", server.address(), first.address, second.address);
    // The gateway is ready when its stages can run; balancers ask this at /readyz.
    tokio::time::timeout(Duration::from_secs(20), is_ready(&server)).await?;

    // The stage is pure, so calls in flight on the killed worker run again on the other worker.
    let client = server.client();
    let call = async |number: i64| client.call::<_, i64>("/next-square", number).await;
    let mut first = Some(first);
    for round in 0..10_i64 {
        let killing = first.take_if(|_| round == 5).map(|worker| tokio::task::spawn_blocking(move || drop(worker)));
        let numbers = round * 20..(round + 1) * 20;
        for (number, square) in numbers.clone().zip(join_all(numbers.map(call)).await) {
            assert_eq!(square?, (number + 1) * (number + 1));
        }
        if let Some(killing) = killing {
            killing.await?;
        }
    }
    println!("200 calls are answered, and one worker is dead");
    let stage = &server.node().health().remote_stages[0];
    assert!(stage.ready, "{stage:?}");
    assert_eq!(server.shutdown(Duration::from_secs(5)).await, Drained::Completely);
    Ok(())
}

async fn is_ready(server: &Server) {
    while !server.node().health().ready {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A worker's process. It is killed when dropped.
struct WorkerProcess {
    process: Child,
    address: SocketAddr,
}

impl WorkerProcess {
    fn start() -> Result<Self, Problem> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut process = command.arg("worker").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().ok_or("a pipe")?).read_line(&mut line)?;
        Ok(Self { process, address: line.trim().parse()? })
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
