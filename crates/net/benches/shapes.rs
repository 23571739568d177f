//! Which shape should requests to one peer have on QUIC: a stream each, packs that share one, or long-lived lanes?
//!
//! Run with `cargo bench -p callboard-net --bench shapes`. Echo of raw bytes, client and server each on one thread with
//! a runtime of its own, TLS 1.3 between them; CPU is that of both ends together. Rounds are interleaved and the best
//! of each cell counts, because on a shared machine noise only ever adds. `docs/adr/006-requests-on-quic.md` says what
//! follows.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and stops when something is wrong")]

mod hop_parts {
    pub(crate) mod frames;
}

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hdrhistogram::Histogram;
use quinn::{Connection, Endpoint, RecvStream, SendStream, VarInt};
use tokio::sync::{mpsc, oneshot};

use self::hop_parts::frames::{BATCH, Job, call_on_stream, drive_frames, push_frame, read_frames};

const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_millis(700);
const WARM_UP: Duration = Duration::from_millis(200);
const PACK_BYTES: usize = 64 * 1024;
/// Nothing takes longer than a minute.
const LONGEST_MICROS: u64 = 60_000_000;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Stream,
    Pack,
    Lane,
}

const SHAPES: [Shape; 3] = [Shape::Stream, Shape::Pack, Shape::Lane];

fn main() {
    let (server, certificate) = start_server();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(compare(server, certificate));
}

async fn compare(server: SocketAddr, certificate: rustls::pki_types::CertificateDer<'static>) {
    println!("| bytes | callers | connections | shape | requests/s | p50 µs | p99 µs | CPU µs/request |");
    println!("|---|---|---|---|---|---|---|---|");
    let endpoint = client_endpoint(certificate);
    for bytes in [64, 4 << 10, 16 << 10, 64 << 10, 1 << 20] {
        for (callers, connections) in [(1, 1), (64, 1), (64, 2), (64, 4)] {
            let mut best: [Option<Cell>; 3] = [None, None, None];
            for _ in 0..ROUNDS {
                for (shape, best) in SHAPES.into_iter().zip(&mut best) {
                    let cell = measure(&endpoint, server, shape, bytes, callers, connections).await;
                    if best.as_ref().is_none_or(|best| best.per_second < cell.per_second) {
                        *best = Some(cell);
                    }
                }
            }
            for (shape, cell) in SHAPES.into_iter().zip(best) {
                let Cell { per_second, p50, p99, cpu } = cell.unwrap();
                println!(
                    "| {bytes} | {callers} | {connections} | {shape:?} | {per_second:.0} | {p50} | {p99} | {cpu:.1} |"
                );
            }
        }
    }
}

struct Cell {
    per_second: f64,
    p50: u64,
    p99: u64,
    cpu: f64,
}

async fn measure(
    endpoint: &Endpoint,
    server: SocketAddr,
    shape: Shape,
    bytes: usize,
    callers: usize,
    connections: usize,
) -> Cell {
    let mut ways = Vec::new();
    for _ in 0..connections {
        let connection = endpoint.connect(server, "localhost").unwrap().await.unwrap();
        ways.push(Way::open(shape, connection).await);
    }
    let payload = Bytes::from(vec![7; bytes]);
    run(&ways, &payload, callers, WARM_UP).await;
    let cpu = cpu_time();
    let started = Instant::now();
    let latencies = run(&ways, &payload, callers, ROUND).await;
    let (took, cpu) = (started.elapsed(), cpu_time() - cpu);
    for way in ways {
        way.connection.close(VarInt::from_u32(0), b"");
    }
    Cell {
        per_second: latencies.len() as f64 / took.as_secs_f64(),
        p50: latencies.value_at_quantile(0.5),
        p99: latencies.value_at_quantile(0.99),
        cpu: cpu.as_secs_f64() * 1e6 / latencies.len() as f64,
    }
}

async fn run(ways: &[Way], payload: &Bytes, callers: usize, time: Duration) -> Histogram<u64> {
    let until = Instant::now() + time;
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (way, payload) = (ways[caller % ways.len()].clone(), payload.clone());
            tokio::spawn(async move {
                let mut latencies = Histogram::<u64>::new_with_bounds(1, LONGEST_MICROS, 3).unwrap();
                while Instant::now() < until {
                    let started = Instant::now();
                    assert_eq!(way.call(payload.clone()).await, payload.len());
                    latencies.saturating_record(started.elapsed().as_micros() as u64);
                }
                latencies
            })
        })
        .collect();
    let mut all = Histogram::new_with_bounds(1, LONGEST_MICROS, 3).unwrap();
    for task in tasks {
        all.add(task.await.unwrap()).unwrap();
    }
    all
}

/// One connection, and what its shape keeps beside it.
#[derive(Clone)]
struct Way {
    connection: Connection,
    jobs: Option<mpsc::Sender<Job>>,
}

impl Way {
    async fn open(shape: Shape, connection: Connection) -> Self {
        let jobs = match shape {
            Shape::Stream => None,
            Shape::Pack => {
                let (sender, jobs) = mpsc::channel(1024);
                tokio::spawn(send_packs(connection.clone(), jobs));
                Some(sender)
            }
            Shape::Lane => {
                let (sender, jobs) = mpsc::channel(1024);
                let (send, receive) = connection.open_bi().await.unwrap();
                tokio::spawn(drive_frames(send, receive, jobs));
                Some(sender)
            }
        };
        Self { connection, jobs }
    }

    async fn call(&self, payload: Bytes) -> usize {
        let Some(jobs) = &self.jobs else {
            return call_on_stream(&self.connection, payload).await;
        };
        let (reply, answer) = oneshot::channel();
        jobs.send((payload, reply)).await.unwrap();
        answer.await.unwrap()
    }
}

/// Takes what is ready in one turn, up to a pack's bounds, and gives it a stream.
async fn send_packs(connection: Connection, mut jobs: mpsc::Receiver<Job>) {
    let mut unread_job = None;
    loop {
        let first = match unread_job.take() {
            Some(job) => job,
            None => match jobs.recv().await {
                Some(job) => job,
                None => return,
            },
        };
        let mut bytes = first.0.len();
        let mut pack: Vec<Job> = vec![first];
        while pack.len() < BATCH
            && let Ok(job) = jobs.try_recv()
        {
            if bytes + job.0.len() > PACK_BYTES {
                unread_job = Some(job);
                break;
            }
            bytes += job.0.len();
            pack.push(job);
        }
        let Ok((send, receive)) = connection.open_bi().await else { return };
        tokio::spawn(exchange_pack(send, receive, pack));
    }
}

async fn exchange_pack(mut send: SendStream, receive: RecvStream, pack: Vec<Job>) {
    let mut waiting = Vec::with_capacity(pack.len());
    let mut chunks = Vec::with_capacity(pack.len() * 2);
    for (id, (payload, reply)) in pack.into_iter().enumerate() {
        push_frame(&mut chunks, id as u32, payload);
        waiting.push(Some(reply));
    }
    send.write_all_chunks(&mut chunks).await.unwrap();
    send.finish().unwrap();
    read_frames(receive, |id, bytes| {
        let _ = waiting[id as usize].take().unwrap().send(bytes.len());
    })
    .await;
}

/// Reads frames and answers them through a queue, as a node does whose answers come in any order.
async fn serve_stream(mut send: SendStream, receive: RecvStream) {
    let (replies, mut ready) = mpsc::channel(1 << 16);
    let reading = async move {
        read_frames(receive, |id, bytes| replies.try_send((id, bytes)).unwrap()).await;
        drop(replies);
    };
    let writing = async move {
        let mut some = Vec::new();
        while ready.recv_many(&mut some, BATCH).await > 0 {
            let mut chunks = Vec::with_capacity(some.len() * 2);
            for (id, payload) in some.drain(..) {
                push_frame(&mut chunks, id, payload);
            }
            if send.write_all_chunks(&mut chunks).await.is_err() {
                return;
            }
        }
        let _ = send.finish();
    };
    tokio::join!(reading, writing);
}

fn start_server() -> (SocketAddr, rustls::pki_types::CertificateDer<'static>) {
    let identity = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = identity.cert.der().clone();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(identity.signing_key.serialize_der());
    let chain = vec![certificate.clone()];
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key.into())
        .unwrap();
    let tls = quinn::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(tls));
    config.transport_config(transport());
    let socket = socket();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let endpoint =
                Endpoint::new(Default::default(), Some(config), socket, Arc::new(quinn::TokioRuntime)).unwrap();
            while let Some(incoming) = endpoint.accept().await {
                tokio::spawn(async move {
                    let connection = incoming.await.unwrap();
                    while let Ok((send, receive)) = connection.accept_bi().await {
                        tokio::spawn(serve_stream(send, receive));
                    }
                });
            }
        });
    });
    (address, certificate)
}

fn client_endpoint(certificate: rustls::pki_types::CertificateDer<'static>) -> Endpoint {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let mut config = quinn::ClientConfig::new(Arc::new(tls));
    config.transport_config(transport());
    let mut endpoint = Endpoint::new(Default::default(), None, socket(), Arc::new(quinn::TokioRuntime)).unwrap();
    endpoint.set_default_client_config(config);
    endpoint
}

fn transport() -> Arc<quinn::TransportConfig> {
    let mut transport = quinn::TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(8 << 20));
    transport.receive_window(VarInt::from_u32(32 << 20));
    transport.send_window(32 << 20);
    transport.max_concurrent_bidi_streams(VarInt::from_u32(1024));
    Arc::new(transport)
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let options = socket2::SockRef::from(&socket);
    options.set_recv_buffer_size(4 << 20).unwrap();
    options.set_send_buffer_size(4 << 20).unwrap();
    socket
}

/// User and system time of this process, in which both ends run.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks = fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>();
    Duration::from_millis(ticks * 10)
}
