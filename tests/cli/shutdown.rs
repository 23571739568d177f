//! The end of a server: in order on request, at once when forced.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use callboard::net::Identity;
use callboard::{Caller, Client};

use crate::quic::labels;
use crate::support::{Answer, PATIENCE, Server, callboard, directory, run};

/// A request of which the first half was sent; the server has begun to read it.
struct HalfSent {
    stream: TcpStream,
    rest: Vec<u8>,
}

impl HalfSent {
    fn begin(server: &Server) -> Self {
        let mut stream = server.connect();
        let body = fs::read("examples/digits/seven.png").unwrap();
        write!(
            stream,
            "POST /digits HTTP/1.1\r\nhost: test\r\ncontent-type: image/png\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .unwrap();
        let (first, rest) = body.split_at(body.len() / 2);
        stream.write_all(first).unwrap();
        let half = Self { stream, rest: rest.to_vec() };
        half.wait_until_admitted(server);
        half
    }

    /// Waits until the server counts the request as in flight: a later request must not overtake it.
    fn wait_until_admitted(&self, server: &Server) {
        while !server.request("GET /metrics HTTP/1.1", b"").body.contains("callboard_in_flight 1") {}
    }

    fn finish(mut self) -> Answer {
        self.stream.write_all(&self.rest).unwrap();
        Answer::read(self.stream)
    }
}

#[test]
fn ends_with_code_0_when_nothing_is_in_hand() {
    for signal in ["TERM", "INT"] {
        let mut server = Server::digits(&[]);
        server.signal(signal);
        server.wait_for(&format!("SIG{signal}"));
        assert_eq!(server.wait(), Some(0), "{:#?}", server.said);
        assert_eq!(server.said.last().map(String::as_str), Some("stopped"));
    }
}

#[test]
fn finishes_the_request_in_hand_before_it_ends() {
    let mut server = Server::digits(&[]);
    let half = HalfSent::begin(&server);
    server.signal("TERM");
    server.wait_for("SIGTERM");
    let answer = half.finish();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.body.contains(r#""label":"7""#), "{answer:?}");
    assert!(answer.head.contains("connection: close"), "the client learns to go elsewhere: {answer:?}");
    assert_eq!(server.wait(), Some(0), "{:#?}", server.said);
}

/// Sends requests on new connections until one is refused. Every answer must be a success.
fn ask_until_it_is_over(address: SocketAddr, picture: &[u8], answered: &AtomicUsize) {
    let head = format!(
        "POST /digits HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: image/png\r\ncontent-length: {}\r\n\r\n",
        picture.len()
    );
    while let Ok(mut stream) = TcpStream::connect(address) {
        let mut answer = Vec::new();
        let asked = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(picture));
        let heard = asked.and_then(|()| stream.read_to_end(&mut answer));
        if answer.is_empty() {
            // The connection was in the kernel's queue when the listener closed: no request was started, and any client
            // retries.
            return;
        }
        let answer = String::from_utf8_lossy(&answer);
        assert!(heard.is_ok() && answer.starts_with("HTTP/1.1 200") && answer.contains(r#""label":"7""#), "{answer}");
        answered.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn no_request_fails_when_it_ends_under_load() {
    let mut server = Server::digits(&[]);
    let address = server.connect().peer_addr().unwrap();
    let picture = fs::read("examples/digits/seven.png").unwrap();
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| ask_until_it_is_over(address, &picture, &answered));
        }
        while answered.load(Ordering::SeqCst) < 50 {
            std::thread::yield_now();
        }
        server.signal("TERM");
    });
    assert_eq!(server.wait(), Some(0), "{:#?}", server.said);
    assert_eq!(server.said.last().map(String::as_str), Some("stopped"));
}

#[test]
fn gives_up_after_the_drain_time_and_says_so() {
    let mut server = Server::digits(&["--drain", "100ms"]);
    let half = HalfSent::begin(&server);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(1), "{:#?}", server.said);
    let last = server.said.last().expect("a last line");
    assert_eq!(last, "callboard: the drain time was over with 1 call unfinished");
    drop(half);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut server = Server::digits(&[]);
    let half = HalfSent::begin(&server);
    server.signal("TERM");
    server.wait_for("SIGTERM");
    server.signal("INT");
    assert_eq!(server.wait(), Some(1), "{:#?}", server.said);
    assert_eq!(server.said.last().map(String::as_str), Some("callboard: SIGINT again: ended at once"));
    drop(half);
}

/// Longer than any test may take.
const FOR_EVER: [&str; 2] = ["--drain-delay", "1h"];

#[test]
fn is_served_on_for_the_delay_while_its_readiness_says_no() {
    let mut server = Server::digits(&FOR_EVER);
    server.signal("TERM");
    server.wait_for("SIGTERM: not ready, serving for 3600s, then finishing the running calls");
    assert_eq!(server.request("GET /readyz HTTP/1.1", b"").status, 503);
    assert_eq!(HalfSent::begin(&server).finish().status, 200);
    server.signal("INT");
    assert_eq!(server.wait(), Some(1), "the second signal waits for nothing: {:#?}", server.said);
}

#[test]
fn a_signal_of_a_terminal_does_not_wait_for_a_balancer() {
    let mut server = Server::digits(&FOR_EVER);
    server.signal("INT");
    assert_eq!(server.wait(), Some(0), "{:#?}", server.said);
}

/// Like `timeout` and others: a signal to the server and to its whole group.
#[test]
fn a_signal_that_comes_twice_at_once_asks_and_does_not_insist() {
    let mut server = Server::digits(&[]);
    let half = HalfSent::begin(&server);
    server.signals(&["TERM", "TERM"]);
    server.wait_for("SIGTERM");
    assert_eq!(half.finish().status, 200);
    assert_eq!(server.wait(), Some(0), "{:#?}", server.said);
}

/// More log lines than the queue of the test and the largest pipe hold together.
fn fill_stderr(server: &Server) {
    let path = "x".repeat(200);
    let stream = server.connect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for left in (0..5000).rev() {
                let end = if left == 0 { "connection: close\r\n" } else { "" };
                write!(&stream, "GET /{path} HTTP/1.1\r\nhost: test\r\n{end}\r\n").unwrap();
            }
        });
        assert_eq!(Answer::read(stream.try_clone().unwrap()).status, 404);
    });
}

#[test]
fn a_signal_works_without_a_reader_of_stderr() {
    let mut server = Server::digits(&[]);
    fill_stderr(&server);
    server.signal("TERM");
    assert_eq!(server.wait_deaf(), Some(0));

    let mut server = Server::digits(&[]);
    let half = HalfSent::begin(&server);
    fill_stderr(&server);
    server.signals(&["TERM", "INT"]);
    assert_eq!(server.wait_deaf(), Some(1), "the second one insists");
    drop(half);
}

/// Like an orchestrator: a hook requests the drain, then comes the signal.
#[test]
fn after_a_drain_request_the_second_signal_ends_at_once() {
    let begin = || {
        let mut server = Server::digits(&["--admin", "127.0.0.1:0"]);
        let admin = server.wait_for("admin on ");
        let half = HalfSent::begin(&server);
        assert!(run(&["call", &admin, "/v1/drain", "--method", "POST"]).status.success());
        server.wait_for("asked to drain");
        server.signal("TERM");
        server.wait_for("SIGTERM: finishing the running calls");
        (server, half)
    };
    let (mut server, half) = begin();
    assert_eq!(half.finish().status, 200);
    assert_eq!(server.wait(), Some(0), "{:#?}", server.said);

    let (mut server, half) = begin();
    server.signal("INT");
    assert_eq!(server.wait(), Some(1), "{:#?}", server.said);
    assert_eq!(server.said.last().map(String::as_str), Some("callboard: SIGINT again: ended at once"));
    drop(half);
}

/// The node's counter of this name, summed over all labels.
fn counted(server: &Server, name: &str) -> f64 {
    let metrics = server.request("GET /metrics HTTP/1.1", b"").body;
    let lines = metrics.lines().filter(|line| line.starts_with(name) && !line.starts_with('#'));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Two linked nodes, each with its own revision of the stage, so half of the calls to either run on the other one. When
/// one node ends, calls over QUIC are in flight from its callers, from its peer, and to its peer.
#[test]
fn a_node_that_ends_under_calls_over_quic_fails_none_here_or_there() {
    let state = directory();
    let start = |revision: u32, words: &[&str]| {
        let mut command =
            callboard(["serve", "--log", "callboard_net=info", "--http", "127.0.0.1:0"].iter().chain(words));
        command.arg(labels(revision, r#"["one", "other"]"#, [1, 1])).env("XDG_STATE_HOME", &state);
        let mut server = Server::start(command);
        let address = server.wait_for("listening on quic://").split(' ').next().unwrap().to_owned();
        (server, address)
    };
    let (mut first, left) = start(2, &["--quic", "127.0.0.1:0"]);
    let (mut second, right) = start(1, &["--quic", "127.0.0.1:0", "--join", &left]);
    second.wait_for("connected to a peer");
    first.wait_for("connected to a peer");

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let identity = Identity::development_in(&state.join("callboard/development")).unwrap();
    let (over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let calling: Vec<_> = (0..8)
        .map(|_| {
            let (over, done, identity) = (Arc::clone(&over), Arc::clone(&done), identity.clone());
            let url = format!("quic://{left},{right}");
            runtime.spawn(async move {
                let client = Client::builder().identity(identity).start_up_wait(PATIENCE).connect(&url).await.unwrap();
                while !over.load(Ordering::SeqCst) {
                    let told = client.call::<_, serde_json::Value>("/name", [0.9_f32, 0.1]).await;
                    let told = told.unwrap_or_else(|error| panic!("{error}"));
                    assert_eq!(told["label"], "one", "{told}");
                    done.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let wait_for = |what: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !what() {
            let failed = calling.iter().any(tokio::task::JoinHandle::is_finished);
            assert!(!failed && begun.elapsed() < PATIENCE, "a call has failed, or none comes");
        }
    };
    wait_for(&|| {
        counted(&first, "callboard_requests_total") >= 50.0 && counted(&second, "callboard_net_streams_total") >= 20.0
    });
    first.signal("TERM");
    assert_eq!(first.wait(), Some(0), "{:#?}", first.said);
    assert_eq!(first.said.last().map(String::as_str), Some("stopped"));
    // The remaining node now runs all of them.
    let so_far = done.load(Ordering::SeqCst);
    wait_for(&|| done.load(Ordering::SeqCst) >= so_far + 100);
    over.store(true, Ordering::SeqCst);
    for caller in calling {
        runtime.block_on(caller).unwrap();
    }
    second.signal("TERM");
    assert_eq!(second.wait(), Some(0), "{:#?}", second.said);
}
