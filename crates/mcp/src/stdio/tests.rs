//! The session, with nodes that do one thing.

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::stream;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, DuplexStream, ReadHalf, WriteHalf, duplex, split};

use super::*;

/// More than any test needs.
const MAX_TURNS: usize = 100_000;

/// Does what the method of the message says.
#[derive(Clone, Default)]
struct Puppet {
    running: Arc<AtomicUsize>,
}

struct Runs(Arc<AtomicUsize>);

impl Drop for Runs {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn body(pieces: Vec<Result<&'static str, &'static str>>) -> AnswerBody {
    let pieces = pieces.into_iter().map(|piece| piece.map(|text| Bytes::from_static(text.as_bytes())));
    Box::pin(stream::iter(pieces.map(|piece| piece.map_err(str::to_owned)).collect::<Vec<_>>()))
}

impl MessageExchange for Puppet {
    async fn post(&self, message: HostMessage) -> Result<PostedAnswer, ExchangeError> {
        self.running.fetch_add(1, Ordering::SeqCst);
        let _runs = Runs(Arc::clone(&self.running));
        let method = rpc::read(&message.body).unwrap().method;
        let answer = |status, media_type: &str, pieces| Ok(PostedAnswer::new(status, media_type, body(pieces)));
        let result = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}";
        match method.as_str() {
            "ready" => answer(200, "application/json", vec![Ok(result)]),
            "slow" => {
                tokio::time::sleep(Duration::from_millis(900)).await;
                answer(200, "application/json", vec![Ok(result)])
            }
            "never" => pending().await,
            "panics" => panic!("as it was asked to"),
            "down" => Err(ExchangeError::NotSent("it is down".to_owned())),
            "breaks" => answer(200, "application/json", vec![Ok("{"), Err("it broke")]),
            "page" => answer(502, "text/html", vec![Ok("<html>")]),
            "keyless" => answer(
                401,
                "application/json",
                vec![Ok("{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32000,\"message\":\"no key\"}}")],
            ),
            "stream" => answer(
                200,
                "text/event-stream; charset=utf-8",
                vec![
                    Ok(": beat\n\nda"),
                    Ok("ta: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n"),
                    Ok("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n"),
                ],
            ),
            "cut" => answer(200, "text/event-stream", vec![Ok("data: {\"jsonrpc\":\"2.0\",\"method\":\"a\"}\n\n")]),
            _ => panic!("no such trick"),
        }
    }
}

struct Host {
    lines: BufReader<ReadHalf<DuplexStream>>,
    input: WriteHalf<DuplexStream>,
    puppet: Puppet,
    served: tokio::task::JoinHandle<io::Result<()>>,
}

impl Host {
    fn start() -> Self {
        let (host, server) = duplex(1 << 16);
        let (input, output) = split(server);
        let (lines, writer) = split(host);
        let puppet = Puppet::default();
        let served = tokio::spawn(serve_stdio(input, output, puppet.clone(), 1000));
        Self { lines: BufReader::new(lines), input: writer, puppet, served }
    }

    async fn send(&mut self, message: &Value) {
        self.input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn ask(&mut self, method: &str, id: &Value) {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method })).await;
    }

    async fn line(&mut self) -> Value {
        let mut line = String::new();
        assert!(self.lines.read_line(&mut line).await.unwrap() > 0, "the output ended");
        serde_json::from_str(&line).unwrap()
    }

    /// Waits for turns of the runtime: its time is paused, and does not pass while somebody is ready.
    async fn running(&self, count: usize) {
        for _ in 0..MAX_TURNS {
            if self.puppet.running.load(Ordering::SeqCst) == count {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{} requests run, not {count}", self.puppet.running.load(Ordering::SeqCst));
    }
}

#[tokio::test(start_paused = true)]
async fn every_request_gets_one_answer() {
    let mut host = Host::start();
    for (method, code, part) in [
        ("down", REFUSED, "it is down"),
        ("panics", INTERNAL_ERROR, "may have run"),
        ("breaks", INTERNAL_ERROR, "may have run: it broke"),
        ("page", INTERNAL_ERROR, "status 502"),
        ("keyless", -32000, "no key"),
    ] {
        host.ask(method, &json!(method)).await;
        let answer = host.line().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(method), &json!(code)), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(part), "{answer}");
    }
    host.ask("stream", &json!(1)).await;
    assert_eq!(host.line().await["method"], "notifications/progress");
    assert_eq!(host.line().await["result"], json!({}));
    host.ask("cut", &json!(2)).await;
    assert_eq!(host.line().await["method"], "a");
    assert!(host.line().await["error"]["message"].as_str().unwrap().contains("ended without it"));
    host.input.write_all(b"{\n").await.unwrap();
    assert_eq!(host.line().await["error"]["code"], rpc::PARSE_ERROR);
    host.send(&json!("long".repeat(1000))).await;
    assert_eq!(host.line().await["error"]["code"], INVALID_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_drops_its_request_and_no_other() {
    let mut host = Host::start();
    host.ask("never", &json!(1)).await;
    host.ask("never", &json!("1")).await;
    host.running(2).await;
    let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": "1" } });
    host.send(&cancelled).await;
    host.running(1).await;
    host.ask("ready", &json!(1)).await;
    assert_eq!(host.line().await["result"], json!({}), "nothing is said of the cancelled one");
}

#[tokio::test(start_paused = true)]
async fn requests_beyond_the_bound_are_refused() {
    let mut host = Host::start();
    for id in 0..MAX_IN_HAND {
        host.ask("never", &json!(id)).await;
    }
    host.ask("ready", &json!("one more")).await;
    let answer = host.line().await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("one more"), &json!(REFUSED)));
}

#[tokio::test(start_paused = true)]
async fn after_the_end_of_the_input_answers_have_a_second() {
    let mut host = Host::start();
    host.ask("slow", &json!(1)).await;
    host.ask("never", &json!(2)).await;
    host.running(2).await;
    host.input.shutdown().await.unwrap();
    assert_eq!(host.line().await["result"], json!({}));
    let mut rest = String::new();
    let began = tokio::time::Instant::now();
    host.served.await.unwrap().unwrap();
    assert!(began.elapsed() <= LAST_ANSWERS);
    host.lines.read_to_string(&mut rest).await.unwrap();
    assert_eq!((rest.as_str(), host.puppet.running.load(Ordering::SeqCst)), ("", 0));
}

#[tokio::test(start_paused = true)]
async fn a_host_that_reads_nothing_more_is_an_end() {
    let host = Host::start();
    let Host { lines, mut input, puppet, served } = host;
    input.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"never\"}\n").await.unwrap();
    input.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ready\"}\n").await.unwrap();
    drop((lines, input));
    served.await.unwrap().unwrap();
    assert_eq!(puppet.running.load(Ordering::SeqCst), 0);
}
