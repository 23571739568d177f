//! Sends the given number of requests over loopback, one after the other: a program whose instructions are counted.
//!
//! `benches/metrics-cost.sh` and `benches/cost-since.sh` run it under callgrind. The argument `log` after the number
//! adds an access log in memory, in the format of the command line. With `batches`, the stage makes batches. With
//! `tensor`, each request is an array of one mebibyte that is returned. With `encoded` or `encoded-large`, each is JSON
//! of 100 bytes or 64 KiB for a stage that takes its input encoded, as one in another process does. The client does
//! little work, on its own thread.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use callboard_codec::{Encoded, Payload, Tensor, Value};
use callboard_core::{App, Stage};
use callboard_http::{AccessLog, AccessRecord, AccessSink, HttpConfig, serve};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// A request, and the end of its answer.
struct Exchange {
    request: Vec<u8>,
    answer_end: Vec<u8>,
}

impl Exchange {
    fn number() -> Self {
        let head =
            "POST /add HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n";
        Self { request: [head.as_bytes(), b"7"].concat(), answer_end: b"\r\n\r\n8".to_vec() }
    }

    /// Texts, a list of texts and one of numbers, as a model takes them.
    fn encoded(items: usize) -> Self {
        let texts = vec![r#""some words""#; items].join(", ");
        let numbers = vec!["0.25, 7"; items].join(", ");
        let body =
            format!(r#"{{"name": "model", "texts": [{texts}], "numbers": [{numbers}], "top": 3, "raw": false}}"#);
        let fields = format!("content-type: application/json\r\ncontent-length: {}", body.len());
        let head = format!("POST /encoded HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n\r\n");
        Self { request: [head.as_bytes(), body.as_bytes()].concat(), answer_end: b"\r\n\r\n8".to_vec() }
    }

    /// 2¹⁸ numbers of four bytes; only the last three are not zero.
    fn tensor() -> Self {
        let header = format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (262144,), }");
        let answer_end: Vec<u8> = [1.5_f32, -2.5, 3.5].into_iter().flat_map(f32::to_le_bytes).collect();
        let zeros = vec![0; (1 << 20) - answer_end.len()];
        let body = [b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes(), &zeros, &answer_end].concat();
        let media = "application/x-npy";
        let fields = format!("content-type: {media}\r\naccept: {media}\r\ncontent-length: {}", body.len());
        let head = format!("POST /echo HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n\r\n");
        Self { request: [head.as_bytes(), &body].concat(), answer_end }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let requests: u32 = arguments.next().map_or(Ok(1_000), |text| text.parse())?;
    let mode = arguments.next().unwrap_or_default();
    let has_log = mode == "log";
    let exchange = match mode.as_str() {
        "tensor" => Exchange::tensor(),
        "encoded" => Exchange::encoded(2),
        "encoded-large" => Exchange::encoded(2850),
        _ => Exchange::number(),
    };
    let lines = Lines::default();
    log_warnings()?;
    let mut config = HttpConfig::default();
    if has_log {
        config.access_log = AccessLog::To(Arc::new(lines.clone()));
    }

    let eight = Payload::new(8).into_inner::<Encoded>()?;
    let encoded = Stage::<Encoded, Encoded>::each("encoded", move |_: &Encoded| Ok(eight.clone()));
    let add = Stage::each("add", |n: &u64| Ok(n + 1));
    let app = App::new().route("/add", if mode == "batches" { add.max_batch_size(32) } else { add });
    let app = app.route("/encoded", encoded.of_types::<Value, Value>());
    let node = app.route("/echo", Stage::each("echo", |tensor: &Tensor| Ok(tensor.clone()))).start().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (report, reported) = oneshot::channel();
    std::thread::spawn(move || report.send(send_requests(address, requests, &exchange)));
    serve(listener, node.client(), config, async {
        reported.await.expect("the client reports its outcome").expect("answers")
    })
    .await?;
    let line_count = lines.0.lock().unwrap_or_else(PoisonError::into_inner).lines;
    assert_eq!(line_count, if has_log { requests } else { 0 }, "a line for each request");
    Ok(())
}

fn send_requests(address: SocketAddr, requests: u32, exchange: &Exchange) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut answer = vec![0; exchange.request.len() + 4096];
    for _ in 0..requests {
        stream.write_all(&exchange.request)?;
        let mut length = 0;
        while !answer[..length].ends_with(&exchange.answer_end) {
            match stream.read(&mut answer[length..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => length += read,
            }
        }
    }
    Ok(())
}

/// As `callboard serve` does.
fn log_warnings() -> Result<(), Box<dyn std::error::Error>> {
    let filter = Targets::new().with_default(LevelFilter::WARN);
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_filter(filter);
    tracing_subscriber::registry().with(layer).try_init()?;
    Ok(())
}

/// Collects lines in memory, like the command line before its thread writes them.
#[derive(Clone, Debug, Default)]
struct Lines(Arc<Mutex<LineBuffer>>);

#[derive(Debug, Default)]
struct LineBuffer {
    text: Vec<u8>,
    lines: u32,
}

impl AccessSink for Lines {
    fn put(&self, record: &AccessRecord<'_>) {
        let mut buffer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.text.len() > 64 * 1024 {
            buffer.text.clear();
        }
        record.write_line(&mut buffer.text);
        buffer.lines += 1;
    }
}
