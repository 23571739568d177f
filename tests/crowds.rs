//! Many idle and slow clients at once: their cost to the node and to other callers.
//!
//! The binary serves in its own process, so that its memory can be measured. The clients are another process, which
//! this test starts from itself with enough descriptors. The test run has a thousand connections; `just crowds` has ten
//! thousand.

#![cfg(all(feature = "cli", target_os = "linux"))]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "clippy allows it in test functions by itself, but not in what they share"
)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The memory limit of an idle connection: ten thousand connections and the server fit into 150 MB.
const MAX_BYTES_EACH: u64 = 10_000;

const HEAD: &str = "host: test\r\ncontent-type: image/png\r\n";

#[test]
fn a_thousand_idle_connections_cost_little_and_a_thousand_slow_ones_fail_no_call() {
    run_crowd(1_000, Duration::from_millis(500));
}

#[test]
#[ignore = "ten thousand connections: `just crowds`"]
fn ten_thousand_idle_connections_cost_little_and_ten_thousand_slow_ones_fail_no_call() {
    run_crowd(10_000, Duration::from_secs(5));
}

/// Runs both kinds of clients in a process with enough descriptors for this number of connections.
fn run_crowd(size: usize, traffic: Duration) {
    let server = Server::start(size);
    let script = format!("ulimit -n {} && exec \"$0\" --exact crowd_process --ignored --nocapture", size + 1_000);
    let test = std::env::current_exe().unwrap();
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(test);
    command.env("CROWD_ADDRESS", &server.address).env("CROWD_SIZE", size.to_string());
    command.env("CROWD_SERVER", server.child.id().to_string()).env("CROWD_TRAFFIC", traffic.as_millis().to_string());
    let output = command.output().expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    print!("{text}");
}

/// The clients, in the process that [`run_crowd`] starts; does nothing on its own.
#[test]
#[ignore = "started by the others"]
fn crowd_process() {
    let Ok(address) = std::env::var("CROWD_ADDRESS") else { return };
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let (size, traffic) = (number("CROWD_SIZE"), Duration::from_millis(number("CROWD_TRAFFIC")));
    let status = format!("/proc/{}/status", number("CROWD_SERVER"));

    let base = call_for(&address, traffic);
    let before = resident_bytes(&status);
    let mut idle: Vec<TcpStream> = Vec::new();
    for _ in 0..size {
        let mut connection = connect(&address);
        connection.write_all(b"GET /livez HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
        assert_eq!(read_status(&mut connection), 200);
        idle.push(connection);
    }
    // An idle connection soon frees its buffers, which new connections reuse.
    let deadline = Instant::now() + Duration::from_secs(20);
    while gauge(&address, "resting") + 1 < gauge(&address, "open") && Instant::now() < deadline {
        #[expect(clippy::disallowed_methods, reason = "another process cannot be notified")]
        std::thread::sleep(Duration::from_millis(100));
    }
    let after = resident_bytes(&status);
    // On a very busy machine the first connections may already be closed as idle.
    let open = gauge(&address, "open") - 1;
    let each = after.saturating_sub(before) / open;
    println!("{open} idle connections: {each} bytes each, {} MB in all", after / 1_000_000);
    assert!(each <= MAX_BYTES_EACH, "{each} bytes for each connection");
    drop(idle);

    let mut slow: Vec<TcpStream> = (0..size).map(|_| connect(&address)).collect();
    for connection in &mut slow {
        connection.write_all(b"POST /digits HTTP/1.1\r\nhost: te").unwrap();
    }
    let (stop, stopped) = mpsc::channel::<()>();
    let with_slow_clients = std::thread::scope(|scope| {
        let slow_writer = scope.spawn(move || {
            let stopped = stopped;
            // One byte at the slow pace of such clients.
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(Duration::from_secs(1)) {
                for connection in &mut slow {
                    // An error means that the server closed the connection, which is allowed.
                    _ = connection.write_all(b"s");
                }
            }
        });
        let with_slow_clients = call_for(&address, traffic);
        drop(stop);
        slow_writer.join().unwrap();
        with_slow_clients
    });
    println!("alone {}; with {size} slow clients {}", base.summary(), with_slow_clients.summary());
    assert_eq!((base.failed, with_slow_clients.failed), (0, 0), "an honest call failed");
}

/// Honest sequential calls on a few connections.
struct Calls {
    latencies: Vec<Duration>,
    failed: usize,
}

impl Calls {
    fn summary(&self) -> String {
        let percentile = |share: usize| self.latencies[(self.latencies.len() - 1) * share / 100];
        format!(
            "{} calls, p50 {:?}, p99 {:?}, {} failed",
            self.latencies.len(),
            percentile(50),
            percentile(99),
            self.failed
        )
    }
}

fn call_for(address: &str, time: Duration) -> Calls {
    let seven = fs::read("examples/digits/seven.png").unwrap();
    let request = format!("POST /digits HTTP/1.1\r\n{HEAD}content-length: {}\r\n\r\n", seven.len());
    let request = [request.as_bytes(), &seven].concat();
    let end = Instant::now() + time;
    let call_in_turn = || {
        let (mut connection, mut latencies, mut failed) = (connect(address), Vec::new(), 0);
        // At least one call, on any machine.
        while latencies.is_empty() || Instant::now() < end {
            let start = Instant::now();
            connection.write_all(&request).unwrap();
            failed += usize::from(read_status(&mut connection) != 200);
            latencies.push(start.elapsed());
        }
        (latencies, failed)
    };
    let results: Vec<(Vec<Duration>, usize)> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..2).map(|_| scope.spawn(call_in_turn)).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    let failed = results.iter().map(|(_, failed)| failed).sum();
    let mut latencies: Vec<Duration> = results.into_iter().flat_map(|(latencies, _)| latencies).collect();
    latencies.sort_unstable();
    Calls { latencies, failed }
}

fn connect(address: &str) -> TcpStream {
    let connection = TcpStream::connect(address).unwrap();
    connection.set_nodelay(true).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    connection
}

/// Reads one answer with a content-length; returns its status.
fn read_status(connection: &mut TcpStream) -> u16 {
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let read = connection.read(&mut piece).unwrap();
        assert!(read > 0, "closed: {}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&answer);
        let Some((head, _)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
        if answer.len() >= head.len() + 4 + length.parse::<usize>().unwrap() {
            return head.split(' ').nth(1).unwrap().parse().unwrap();
        }
    }
}

/// The server's count of connections, including the one of this request.
fn gauge(address: &str, state: &str) -> u64 {
    let mut connection = connect(address);
    connection.write_all(b"GET /metrics HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    connection.read_to_string(&mut page).unwrap();
    let name = format!("callboard_http_connections_{state} ");
    page.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

fn resident_bytes(status: &str) -> u64 {
    let status = fs::read_to_string(status).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// The binary with enough descriptors. Killed when dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(size: usize) -> Self {
        let limit = (size + 100).to_string();
        let script = format!("ulimit -n {} && exec \"$0\" \"$@\"", size + 1_000);
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_callboard"), "serve", "examples/digits"]);
        command.args(["--http", "127.0.0.1:0", "--admin", "off", "--access-log", "false"]);
        command.args(["--max-connections", &limit, "--max-connections-per-address", &limit]);
        // This variable configures the tests, not the server.
        command.env_remove("CALLBOARD_REQUIRE");
        let mut child = command.stderr(Stdio::piped()).spawn().expect("a shell");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines.find_map(|line| Some(line.ok()?.split_once("listening on http://")?.1.to_owned()));
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address: address.expect("the server prints its address") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
