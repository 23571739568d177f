//! The load: connections that each send a request, read its answer, and send the next.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::server::ServerProcess;
use super::workload::Workload;

/// The measurements of one server under one load.
pub(crate) struct Measured {
    latencies_ns: Histogram<u64>,
    elapsed: Duration,
    cpu_seconds: f64,
    waits: u64,
}

impl Measured {
    pub(crate) fn requests_per_second(&self) -> f64 {
        self.latencies_ns.len() as f64 / self.elapsed.as_secs_f64()
    }

    pub(crate) fn p50(&self) -> f64 {
        self.latencies_ns.value_at_quantile(0.5) as f64 / 1e3
    }

    pub(crate) fn p99(&self) -> f64 {
        self.latencies_ns.value_at_quantile(0.99) as f64 / 1e3
    }

    /// In microseconds.
    pub(crate) fn cpu_per_request(&self) -> f64 {
        self.cpu_seconds * 1e6 / self.latencies_ns.len() as f64
    }

    pub(crate) fn waits_per_request(&self) -> f64 {
        self.waits as f64 / self.latencies_ns.len() as f64
    }
}

/// Loads `server` for `duration`, after a fifth of that to warm up.
pub(crate) fn run(server: &ServerProcess, workload: Workload, connections: usize, duration: Duration) -> Measured {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Built once before the measurement: a mebibyte of JSON takes longer to write than to send.
    let load = Load { address: server.address, workload, request: workload.request().into() };
    runtime.block_on(async {
        drive(&load, connections, duration / 5).await;
        let (cpu, waits, start) = (server.cpu_seconds(), server.waits(), Instant::now());
        let latencies_ns = drive(&load, connections, duration).await;
        let elapsed = start.elapsed();
        let (cpu_seconds, waits) = (server.cpu_seconds() - cpu, server.waits() - waits);
        Measured { latencies_ns, elapsed, cpu_seconds, waits }
    })
}

/// The requests of every connection.
#[derive(Clone)]
struct Load {
    address: SocketAddr,
    workload: Workload,
    request: Arc<[u8]>,
}

async fn drive(load: &Load, connections: usize, duration: Duration) -> Histogram<u64> {
    let deadline = Instant::now() + duration;
    let mut tasks: JoinSet<Histogram<u64>> = (0..connections).map(|_| closed_loop(load.clone(), deadline)).collect();
    let mut merged = histogram();
    while let Some(latencies) = tasks.join_next().await {
        merged.add(latencies.unwrap()).unwrap();
    }
    merged
}

async fn closed_loop(load: Load, deadline: Instant) -> Histogram<u64> {
    let Load { address, workload, request } = load;
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.set_nodelay(true).unwrap();
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut latencies = histogram();
    let mut start = Instant::now();
    while start < deadline {
        socket.write_all(&request).await.unwrap();
        read_answer(&mut socket, workload, &mut buffer).await;
        let end = Instant::now();
        latencies.record((end - start).as_nanos() as u64).unwrap();
        start = end;
    }
    latencies
}

/// More than any answer.
const BUFFER_BYTES: usize = 4 << 20;

/// Reads one answer and checks it.
async fn read_answer(socket: &mut TcpStream, workload: Workload, buffer: &mut [u8]) {
    let mut filled = 0;
    loop {
        let read = socket.read(&mut buffer[filled..]).await.unwrap();
        assert!(read > 0, "the server closed the connection");
        filled += read;
        let answer = &buffer[..filled];
        if workload.is_answered(answer) {
            assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", excerpt(answer));
            return;
        }
        assert!(filled < buffer.len(), "not the answer: {}", excerpt(answer));
    }
}

fn excerpt(answer: &[u8]) -> String {
    String::from_utf8_lossy(&answer[..answer.len().min(500)]).into_owned()
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap()
}
