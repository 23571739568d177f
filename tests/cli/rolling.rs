//! A rolling restart by an orchestrator: behind a balancer that polls the readiness, no request is lost.

use std::fs;
use std::io::{self, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::support::{Answer, Server, TEST_TIMEOUT, callboard};

/// The poll interval of the balancer, as in production.
const POLL: Duration = Duration::from_secs(1);

/// The default drain delay, which other tests set to zero.
const DELAY: [&str; 2] = ["--drain-delay", "5s"];

/// A server and its readiness at the last poll.
struct Backend {
    address: String,
    is_ready: bool,
}

/// Forwards connections to the servers that were ready at the last poll.
struct Balancer {
    listener: TcpListener,
    backends: Mutex<Vec<Backend>>,
    /// Notified after each poll of all servers.
    polled: Condvar,
    /// The thread that polls.
    poller: OnceLock<Thread>,
    turn: AtomicUsize,
    is_over: AtomicBool,
}

impl Balancer {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (turn, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (backends, polled, poller) = (Mutex::default(), Condvar::new(), OnceLock::new());
        Self { listener, backends, polled, poller, turn, is_over }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Adds a server, has it polled at once, and returns once it gets requests.
    fn add(&self, server: &Server) {
        let address = server.address.clone();
        self.backends.lock().unwrap().push(Backend { address: address.clone(), is_ready: false });
        self.poller.get().inspect(|poller| poller.unpark());
        let backends = self.backends.lock().unwrap();
        let is_unknown = |backends: &mut Vec<Backend>| {
            !backends.iter().any(|backend| backend.address == address && backend.is_ready)
        };
        let outcome = self.polled.wait_timeout_while(backends, TEST_TIMEOUT, is_unknown).unwrap().1;
        assert!(!outcome.timed_out(), "{address} does not become ready");
    }

    fn remove(&self, server: &Server) {
        self.backends.lock().unwrap().retain(|backend| backend.address != server.address);
    }

    /// Polls all servers repeatedly.
    fn poll(&self) {
        self.poller.set(thread::current()).expect("one thread polls");
        while !self.is_over() {
            let addresses: Vec<_> =
                self.backends.lock().unwrap().iter().map(|backend| backend.address.clone()).collect();
            for address in addresses {
                let is_ready = status_of(&address, "GET /readyz HTTP/1.1\r\n", b"").is_ok_and(|status| status == 200);
                let mut backends = self.backends.lock().unwrap();
                backends.iter_mut().filter(|backend| backend.address == address).for_each(|backend| {
                    backend.is_ready = is_ready;
                });
            }
            self.polled.notify_all();
            thread::park_timeout(POLL);
        }
    }

    /// The next ready server.
    fn pick(&self) -> Option<String> {
        let backends = self.backends.lock().unwrap();
        let ready: Vec<_> = backends.iter().filter(|backend| backend.is_ready).collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        ready.get(turn.checked_rem(ready.len())?).map(|backend| backend.address.clone())
    }

    /// Forwards each accepted connection on its own threads.
    fn forward(&self) {
        thread::scope(|scope| {
            while let Ok((client, _)) = self.listener.accept()
                && !self.is_over()
            {
                scope.spawn(move || {
                    // Without retries: a refused connection is a lost request.
                    let Some(server) = self.pick().and_then(|address| TcpStream::connect(address).ok()) else { return };
                    let (to_server, to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                    scope.spawn(move || copy(&client, &to_server));
                    copy(&server, &to_client);
                });
            }
        });
    }
}

/// Sets the flag when dropped.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Ends a balancer when dropped.
struct StopOnDrop<'a>(&'a Balancer);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        drop(SetOnDrop(&self.0.is_over));
        // The last accepted connection.
        _ = self.0.listener.local_addr().and_then(TcpStream::connect);
    }
}

/// Copies until one side ends, and ends the other side.
fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    _ = io::copy(&mut from, &mut to);
    _ = to.shutdown(Shutdown::Write);
}

/// The status of one request on its own connection.
fn status_of(address: &str, head: &str, body: &[u8]) -> io::Result<u16> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TEST_TIMEOUT))?;
    write!(stream, "{head}host: test\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len())?;
    stream.write_all(body)?;
    let answer = Answer::try_read(stream)?;
    Ok(answer.status)
}

#[test]
fn a_rolling_restart_behind_a_balancer_loses_no_request() {
    let plan = callboard(["serve", "examples/digits", "--explain"]).output().unwrap();
    let plan = String::from_utf8(plan.stdout).unwrap();
    let delay = plan.lines().find(|line| line.contains("limits.drain_delay")).unwrap();
    assert_eq!(delay.split_whitespace().collect::<Vec<_>>()[1..], [DELAY[1], "default"], "{plan}");
    let balancer = Balancer::new();
    let front = balancer.listener.local_addr().unwrap().to_string();
    let picture = fs::read("examples/digits/seven.png").unwrap();
    let (answered, lost) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let load = |is_over: &AtomicBool| {
        while !is_over.load(Ordering::SeqCst) {
            match status_of(&front, "POST /digits HTTP/1.1\r\ncontent-type: image/png\r\n", &picture) {
                Ok(200) => drop(answered.fetch_add(1, Ordering::SeqCst)),
                other => lost.lock().unwrap().push(other),
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| balancer.poll());
        scope.spawn(|| balancer.forward());
        // Ends the threads even if the test fails.
        let _ending = StopOnDrop(&balancer);
        let mut servers = [Server::digits(&DELAY), Server::digits(&DELAY)];
        servers.iter().for_each(|server| balancer.add(server));
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _ending = SetOnDrop(&is_over);
            (0..4).for_each(|_| drop(scope.spawn(|| load(&is_over))));
            for server in &mut servers {
                let before = answered.load(Ordering::SeqCst);
                server.signal("TERM");
                assert_eq!(server.wait(), Some(0), "{:#?}", server.stderr_lines);
                assert!(answered.load(Ordering::SeqCst) > before, "requests are answered during the restart");
                balancer.remove(server);
                *server = Server::digits(&DELAY);
                balancer.add(server);
            }
        });
    });
    let (answered, lost) = (answered.into_inner(), lost.into_inner().unwrap());
    assert!(answered >= 100 && lost.is_empty(), "{answered} answered, lost: {lost:?}");
}
