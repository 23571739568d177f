//! So many requests over loopback, one after the other, and nothing else: something to count instructions of.
//!
//! `benches/metrics-cost.sh` runs it under callgrind. With `log` behind the number there is an access log, written as the command
//! line writes it, into memory. The client does next to nothing, on a thread of its own.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use callboard_core::{App, Stage};
use callboard_http::{AccessLog, AccessRecord, AccessSink, HttpConfig, serve};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

const REQUEST: &[u8] =
    b"POST /add HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n7";

/// The end of the answer: nothing else has to be looked for.
const ANSWERED: &[u8] = b"\r\n\r\n8";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let requests: u32 = arguments.next().map_or(Ok(1_000), |text| text.parse())?;
    let has_log = arguments.next().is_some_and(|word| word == "log");
    let lines = Lines::default();
    log_the_rest()?;
    let mut config = HttpConfig::default();
    if has_log {
        config.access_log = AccessLog::To(Arc::new(lines.clone()));
    }

    let node = App::new().route("/add", Stage::each("add", |n: &u64| Ok(n + 1))).start().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (done, asked) = oneshot::channel();
    std::thread::spawn(move || done.send(ask(address, requests)));
    serve(listener, node.client(), config, async {
        asked.await.expect("the client tells how it went").expect("answers")
    })
    .await?;
    let written = lines.0.lock().unwrap_or_else(PoisonError::into_inner).lines;
    assert_eq!(written, if has_log { requests } else { 0 }, "a line for each request");
    Ok(())
}

fn ask(address: SocketAddr, requests: u32) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut answer = [0; 4096];
    for _ in 0..requests {
        stream.write_all(REQUEST)?;
        let mut length = 0;
        while !answer[..length].ends_with(ANSWERED) {
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
