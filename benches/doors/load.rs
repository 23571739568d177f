//! The load: callers that each send a request, read its answer, and send the next.

use std::time::{Duration, Instant};

use callboard_http_client::{Connection, Origin, Prepared, Protocol};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use super::case::Side;
use super::server::{ServerProcess, own_cpu_seconds};

/// The measurements of one side under one load.
pub(crate) struct Measured {
    latencies_ns: Histogram<u64>,
    elapsed: Duration,
    server_seconds: f64,
    load_seconds: f64,
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

    /// For each request, in microseconds.
    pub(crate) fn server_cpu(&self) -> f64 {
        self.server_seconds * 1e6 / self.latencies_ns.len() as f64
    }

    /// That of the measuring process.
    pub(crate) fn load_cpu(&self) -> f64 {
        self.load_seconds * 1e6 / self.latencies_ns.len() as f64
    }
}

/// The requests of every caller.
pub(crate) struct Load {
    origin: Origin,
    protocol: Protocol,
    request: Prepared,
    answer_bytes: u64,
    callers: usize,
    connections: usize,
}

impl Load {
    pub(crate) fn new(server: &ServerProcess, side: &Side, callers: usize, connections: usize) -> Self {
        let origin: Origin = format!("http://{}", server.address).parse().unwrap();
        let protocol = side.protocol;
        let request = side.call.prepare(&origin, protocol).unwrap();
        Self { request, origin, protocol, answer_bytes: side.answer_bytes, callers, connections }
    }

    /// Loads `server` for `duration`, after a fifth of that to warm up.
    pub(crate) fn run(&self, server: &ServerProcess, duration: Duration) -> Measured {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let connections = self.connect().await;
            let connections = self.drive(connections, duration / 5).await.1;
            let (server_cpu, load_cpu, start) = (server.cpu_seconds(), own_cpu_seconds(), Instant::now());
            let (latencies_ns, _) = self.drive(connections, duration).await;
            Measured {
                latencies_ns,
                elapsed: start.elapsed(),
                server_seconds: server.cpu_seconds() - server_cpu,
                load_seconds: own_cpu_seconds() - load_cpu,
            }
        })
    }

    /// A connection for each caller; over HTTP/2 they share some.
    async fn connect(&self) -> Vec<Connection> {
        let mut opened: Vec<Connection> = Vec::new();
        for caller in 0..self.callers {
            let shared = (caller >= self.connections).then(|| opened[caller % self.connections].share()).flatten();
            opened.push(match shared {
                Some(connection) => connection,
                None => Connection::open(&self.origin, self.protocol).await.unwrap(),
            });
        }
        opened
    }

    async fn drive(&self, connections: Vec<Connection>, duration: Duration) -> (Histogram<u64>, Vec<Connection>) {
        let deadline = Instant::now() + duration;
        let mut callers: JoinSet<(Histogram<u64>, Connection)> = connections
            .into_iter()
            .map(|connection| closed_loop(connection, self.request.clone(), self.answer_bytes, deadline))
            .collect();
        let (mut merged, mut connections) = (histogram(), Vec::new());
        while let Some(caller) = callers.join_next().await {
            let (latencies, connection) = caller.unwrap();
            merged.add(latencies).unwrap();
            connections.push(connection);
        }
        (merged, connections)
    }
}

async fn closed_loop(
    mut connection: Connection,
    request: Prepared,
    answer_bytes: u64,
    deadline: Instant,
) -> (Histogram<u64>, Connection) {
    let mut latencies = histogram();
    let mut start = Instant::now();
    while start < deadline {
        let answer = connection.send(&request).await.unwrap();
        let status = answer.status();
        let length = answer.discard().await.unwrap();
        // A call of gRPC that fails has status 200 and no message.
        assert!(status == 200 && length >= answer_bytes, "status {status}, {length} bytes");
        let end = Instant::now();
        latencies.record((end - start).as_nanos() as u64).unwrap();
        start = end;
    }
    (latencies, connection)
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap()
}
