//! So many requests over loopback, one after the other, and nothing else: something to count instructions of.
//!
//! `benches/metrics-cost.sh` and `benches/cost-since.sh` run it under callgrind. With `log` behind the number there is
//! an access log, written as the command line writes it, into memory; with `tensor` each request is an array of a
//! mebibyte that comes back. The client does next to nothing, on a thread of its own.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use callboard_codec::Tensor;
use callboard_core::{App, Stage};
use callboard_http::{AccessLog, AccessRecord, AccessSink, HttpConfig, serve};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// What is asked, and the end of the answer: nothing else has to be looked for.
struct Exchange {
    request: Vec<u8>,
    answered: Vec<u8>,
}

impl Exchange {
    fn number() -> Self {
        let head =
            "POST /add HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n";
        Self { request: [head.as_bytes(), b"7"].concat(), answered: b"\r\n\r\n8".to_vec() }
    }

    /// 2¹⁸ numbers of four bytes, of which only the last few are not zero.
    fn tensor() -> Self {
        let header = format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (262144,), }");
        let answered: Vec<u8> = [1.5_f32, -2.5, 3.5].into_iter().flat_map(f32::to_le_bytes).collect();
        let zeros = vec![0; (1 << 20) - answered.len()];
        let body = [b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes(), &zeros, &answered].concat();
        let media = "application/x-npy";
        let fields = format!("content-type: {media}\r\naccept: {media}\r\ncontent-length: {}", body.len());
        let head = format!("POST /echo HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n\r\n");
        Self { request: [head.as_bytes(), &body].concat(), answered }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let requests: u32 = arguments.next().map_or(Ok(1_000), |text| text.parse())?;
    let word = arguments.next().unwrap_or_default();
    let has_log = word == "log";
    let exchange = if word == "tensor" { Exchange::tensor() } else { Exchange::number() };
    let lines = Lines::default();
    log_the_rest()?;
    let mut config = HttpConfig::default();
    if has_log {
        config.access_log = AccessLog::To(Arc::new(lines.clone()));
    }

    let app = App::new().route("/add", Stage::each("add", |n: &u64| Ok(n + 1)));
    let node = app.route("/echo", Stage::each("echo", |tensor: &Tensor| Ok(tensor.clone()))).start().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (done, asked) = oneshot::channel();
    std::thread::spawn(move || done.send(ask(address, requests, &exchange)));
    serve(listener, node.client(), config, async {
        asked.await.expect("the client tells how it went").expect("answers")
    })
    .await?;
    let written = lines.0.lock().unwrap_or_else(PoisonError::into_inner).lines;
    assert_eq!(written, if has_log { requests } else { 0 }, "a line for each request");
    Ok(())
}

fn ask(address: SocketAddr, requests: u32, exchange: &Exchange) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut answer = vec![0; exchange.request.len() + 4096];
    for _ in 0..requests {
        stream.write_all(&exchange.request)?;
        let mut length = 0;
        while !answer[..length].ends_with(&exchange.answered) {
            match stream.read(&mut answer[length..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => length += read,
            }
        }
    }
    Ok(())
}

/// As `callboard serve` does.
fn log_the_rest() -> Result<(), Box<dyn std::error::Error>> {
    let filter = Targets::new().with_default(LevelFilter::WARN);
    let others = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_filter(filter);
    tracing_subscriber::registry().with(others).try_init()?;
    Ok(())
}

/// Where lines gather, as those of the command line do until its thread writes them.
#[derive(Clone, Debug, Default)]
struct Lines(Arc<Mutex<Gathered>>);

#[derive(Debug, Default)]
struct Gathered {
    text: Vec<u8>,
    lines: u32,
}

impl AccessSink for Lines {
    fn put(&self, record: &AccessRecord<'_>) {
        let mut gathered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if gathered.text.len() > 64 * 1024 {
            gathered.text.clear();
        }
        record.write_line(&mut gathered.text);
        gathered.lines += 1;
    }
}
