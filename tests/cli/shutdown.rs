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
use crate::support::{Answer, Server, TEST_TIMEOUT, callboard, directory, ignores_hangups, run};

/// A request whose first half was sent and admitted.
struct HalfSent {
    stream: TcpStream,
    rest: Vec<u8>,
}

impl HalfSent {
    fn begin(server: &Server) -> Self {
        Self::begin_with(server, "")
    }

    /// Of a client that closes its connection, where the server does not.
    fn begin_last(server: &Server) -> Self {
        Self::begin_with(server, "connection: close\r\n")
    }

    fn begin_with(server: &Server, line: &str) -> Self {
        let mut stream = server.connect();
        let body = fs::read("examples/digits/seven.png").unwrap();
        write!(
            stream,
            "POST /digits HTTP/1.1\r\nhost: test\r\n{line}content-type: image/png\r\ncontent-length: {}\r\n\r\n",
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
fn an_idle_server_ends_with_code_0() {
    for signal in ["TERM", "INT", "QUIT", "HUP"] {
        if signal == "HUP" && ignores_hangups() {
            continue;
        }
        let mut server = Server::digits(&[]);
        server.signal(signal);
        server.wait_for(&format!("SIG{signal}"));
        assert_eq!(server.wait(), Some(0), "{:#?}", server.stderr_lines);
        assert_eq!(server.stderr_lines.last().map(String::as_str), Some("stopped"));
    }
}

#[test]
fn a_server_finishes_its_running_request_before_it_ends() {
    let mut server = Server::digits(&[]);
    let half = HalfSent::begin(&server);
    server.signal("TERM");
    server.wait_for("SIGTERM");
    while TcpStream::connect(&server.address).is_ok() {
        std::thread::yield_now();
    }
    let answer = half.finish();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.body.contains(r#""label":"7""#), "{answer:?}");
    assert!(answer.head.contains("connection: close"), "the client must open a new connection: {answer:?}");
    assert_eq!(server.wait(), Some(0), "{:#?}", server.stderr_lines);
}

/// A terminal that closes hangs up, and Ctrl-\ quits; tools that rotate logs send the others.
#[test]
fn a_hangup_and_a_quit_finish_the_running_request_and_user_signals_do_nothing() {
    for signal in ["HUP", "QUIT"] {
        if signal == "HUP" && ignores_hangups() {
            continue;
        }
        let mut server = Server::digits(&[]);
        server.signals(&["USR1", "USR2"]);
        let half = HalfSent::begin(&server);
        server.signal(signal);
        server.wait_for(&format!("SIG{signal}"));
        assert_eq!(half.finish().status, 200, "{signal}");
        assert_eq!(server.wait(), Some(0), "{:#?}", server.stderr_lines);
    }
}

/// As `nohup` starts it.
#[cfg(target_os = "linux")]
#[test]
fn a_server_that_was_started_to_ignore_a_hangup_goes_on() {
    let serve =
        callboard(["serve", "examples/digits", "--http", "127.0.0.1:0", "--admin", "none", "--drain-delay", "0s"]);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(serve.get_program()).args(serve.get_args());
    command.envs(serve.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut server = Server::start(crate::support::without_settings(command));
    server.signal("HUP");
    assert_eq!(HalfSent::begin_last(&server).finish().status, 200);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0), "{:#?}", server.stderr_lines);
}

/// Sends requests on new connections until one is refused. Every answer must be a success.
fn request_until_closed(address: SocketAddr, picture: &[u8], answered: &AtomicUsize) {
    let head = format!(
        "POST /digits HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: image/png\r\ncontent-length: {}\r\n\r\n",
        picture.len()
    );
    while let Ok(mut stream) = TcpStream::connect(address) {
        let mut answer = Vec::new();
        let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(picture));
        let received = sent.and_then(|()| stream.read_to_end(&mut answer));
        if answer.is_empty() {
            // The connection was in the kernel's queue when the listener closed: no request was started.
            return;
        }
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            received.is_ok() && answer.starts_with("HTTP/1.1 200") && answer.contains(r#""label":"7""#),
            "{answer}"
        );
        answered.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn no_request_fails_when_a_server_ends_under_load() {
    let mut server = Server::digits(&[]);
    let address = server.connect().peer_addr().unwrap();
    let picture = fs::read("examples/digits/seven.png").unwrap();
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| request_until_closed(address, &picture, &answered));
        }
        while answered.load(Ordering::SeqCst) < 50 {
            std::thread::yield_now();
        }
        server.signal("TERM");
    });
    assert_eq!(server.wait(), Some(0), "{:#?}", server.stderr_lines);
    assert_eq!(server.stderr_lines.last().map(String::as_str), Some("stopped"));
}

#[test]
fn an_exceeded_drain_time_is_an_error() {
    let mut server = Server::digits(&["--drain", "100ms"]);
    let half = HalfSent::begin(&server);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(1), "{:#?}", server.stderr_lines);
    let last = server.stderr_lines.last().expect("a last line");
    assert_eq!(last, "callboard: the drain time was over with 1 call unfinished");
    drop(half);
}

#[test]
fn a_second_signal_ends_the_server_at_once() {
    let mut server = Server::digits(&[]);
    let half = HalfSent::begin(&server);
    server.signal("TERM");
    server.wait_for("SIGTERM");
    server.signal("INT");
    assert_eq!(server.wait(), Some(1), "{:#?}", server.stderr_lines);
    assert_eq!(server.stderr_lines.last().map(String::as_str), Some("callboard: SIGINT again: ended at once"));
    drop(half);
}

/// Longer than any test may take.
const LONG_DELAY: [&str; 2] = ["--drain-delay", "1h"];

#[test]
fn requests_are_served_during_the_drain_delay_while_the_server_is_not_ready() {
    let mut server = Server::digits(&LONG_DELAY);
    server.signal("TERM");
    server.wait_for("SIGTERM: not ready, serving for 3600s, then finishing the running calls");
    assert_eq!(server.request("GET /readyz HTTP/1.1", b"").status, 503);
    assert_eq!(HalfSent::begin_last(&server).finish().status, 200);
    server.signal("INT");
    assert_eq!(server.wait(), Some(1), "the second signal does not wait: {:#?}", server.stderr_lines);
}

#[test]
fn an_interrupt_skips_the_drain_delay() {
    let mut server = Server::digits(&LONG_DELAY);
    server.signal("INT");
    assert_eq!(server.wait(), Some(0), "{:#?}", server.stderr_lines);
}

/// `timeout` and others signal the server and its whole group.
#[test]
fn the_same_signal_twice_at_once_counts_once() {
    let mut server = Server::digits(&[]);
    let half = HalfSent::begin(&server);
    server.signals(&["TERM", "TERM"]);
    server.wait_for("SIGTERM");
    assert_eq!(half.finish().status, 200);
    assert_eq!(server.wait(), Some(0), "{:#?}", server.stderr_lines);
}

/// More log lines than the queue of the test and the largest pipe hold together.
fn fill_stderr(server: &Server) {
    let path = "x".repeat(200);
    let stream = server.connect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for remaining in (0..5000).rev() {
                let end = if remaining == 0 { "connection: close\r\n" } else { "" };
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
    assert_eq!(server.wait_without_reading(), Some(0));

    let mut server = Server::digits(&[]);
    let half = HalfSent::begin(&server);
    fill_stderr(&server);
    server.signals(&["TERM", "INT"]);
    assert_eq!(server.wait_without_reading(), Some(1), "the second signal ends it at once");
    drop(half);
}

/// An orchestrator calls a hook that requests the drain, and then sends the signal.
#[test]
fn after_a_drain_request_the_second_signal_ends_at_once() {
    let start = || {
        let mut server = Server::digits(&["--admin", "127.0.0.1:0"]);
        let admin = server.wait_for("admin on ");
        let half = HalfSent::begin(&server);
        assert!(run(&["call", &admin, "/v1/drain", "--method", "POST"]).status.success());
        server.wait_for("asked to drain");
        server.signal("TERM");
        server.wait_for("SIGTERM: finishing the running calls");
        (server, half)
    };
    let (mut server, half) = start();
    assert_eq!(half.finish().status, 200);
    assert_eq!(server.wait(), Some(0), "{:#?}", server.stderr_lines);

    let (mut server, half) = start();
    server.signal("INT");
    assert_eq!(server.wait(), Some(1), "{:#?}", server.stderr_lines);
    assert_eq!(server.stderr_lines.last().map(String::as_str), Some("callboard: SIGINT again: ended at once"));
    drop(half);
}

/// The node's counter of this name, summed over all labels.
fn counter(server: &Server, name: &str) -> f64 {
    let metrics = server.request("GET /metrics HTTP/1.1", b"").body;
    let lines = metrics.lines().filter(|line| line.starts_with(name) && !line.starts_with('#'));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Two connected nodes, each with its own revision of the stage, so each runs half of the calls of the other. When one
/// node ends, calls over QUIC are in flight from its callers, from its peer, and to its peer.
#[test]
fn no_call_over_quic_fails_when_a_node_ends() {
    let state = directory();
    let start = |revision: u32, args: &[&str]| {
        let mut command =
            callboard(["serve", "--log", "callboard_net=info", "--http", "127.0.0.1:0"].iter().chain(args));
        command.arg(labels(revision, r#"["one", "other"]"#, [1, 1])).env("XDG_STATE_HOME", &state);
        let mut server = Server::start(command);
        let address = server.wait_for("listening on quic://").split(' ').next().unwrap().to_owned();
        (server, address)
    };
    let (mut first, first_address) = start(2, &["--quic", "127.0.0.1:0"]);
    let (mut second, second_address) = start(1, &["--quic", "127.0.0.1:0", "--join", &first_address]);
    second.wait_until_printed("connected to a peer");
    first.wait_until_printed("connected to a peer");

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let identity = Identity::development_in(&state.join("callboard/development")).unwrap();
    let (is_over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let (is_over, answered, identity) = (Arc::clone(&is_over), Arc::clone(&answered), identity.clone());
            let url = format!("quic://{first_address},{second_address}");
            runtime.spawn(async move {
                let client =
                    Client::builder().identity(identity).start_up_wait(TEST_TIMEOUT).connect(&url).await.unwrap();
                while !is_over.load(Ordering::SeqCst) {
                    let reply = client.call::<_, serde_json::Value>("/name", [0.9_f32, 0.1]).await;
                    let reply = reply.unwrap_or_else(|error| panic!("{error}"));
                    assert_eq!(reply["label"], "one", "{reply}");
                    answered.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let wait_for = |condition: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !condition() {
            let failed = callers.iter().any(tokio::task::JoinHandle::is_finished);
            assert!(!failed && start.elapsed() < TEST_TIMEOUT, "a call has failed, or no call was made");
        }
    };
    wait_for(&|| {
        counter(&first, "callboard_requests_total") >= 50.0 && counter(&second, "callboard_net_streams_total") >= 20.0
    });
    first.signal("TERM");
    assert_eq!(first.wait(), Some(0), "{:#?}", first.stderr_lines);
    assert_eq!(first.stderr_lines.last().map(String::as_str), Some("stopped"));
    // The remaining node now runs all calls.
    let before = answered.load(Ordering::SeqCst);
    wait_for(&|| answered.load(Ordering::SeqCst) >= before + 100);
    is_over.store(true, Ordering::SeqCst);
    for caller in callers {
        runtime.block_on(caller).unwrap();
    }
    second.signal("TERM");
    assert_eq!(second.wait(), Some(0), "{:#?}", second.stderr_lines);
}
