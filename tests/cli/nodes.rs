//! Nodes of a cluster as processes: their identities, their stages, and a load on one of them.

use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Answer, Server, TEST_TIMEOUT, callboard, directory, directory_with, run};

/// Under which identity the nodes of a test run.
pub(crate) enum Identities {
    /// That of one user, on loopback.
    Development(PathBuf),
    /// Members that have joined an authority, by their names.
    Cluster(PathBuf),
}

impl Identities {
    pub(crate) fn development() -> Self {
        Self::Development(directory())
    }

    /// A cluster of the member `authority`, which has it, and of these other members.
    pub(crate) fn cluster(names: &[&str]) -> Self {
        let directory = directory();
        let path_of = |name: &str| directory.join(name).to_str().unwrap().to_owned();
        let done = |args: &[&str]| {
            let output = run(args);
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        done(&["cluster", "init", &path_of("authority"), "--name", "lab"]);
        let token = done(&["cluster", "token", &path_of("authority"), "--uses", &names.len().to_string()]);
        fs::write(path_of("token"), token).unwrap();
        let source = format!("@{}", path_of("token"));
        let cluster = Self::Cluster(directory.clone());
        let issuer = Member::start(cluster.command("authority", &file_with(&["issuer"], &[]), "127.0.0.1:0", &[]));
        let url = format!("quic://{}", issuer.quic);
        for name in names {
            done(&["cluster", "join", &source, &url, "--to", &path_of(name), "--name", name]);
        }
        cluster
    }

    /// The command of a node of this name that serves `file`, listens at `quic`, and names the nodes to `join`.
    pub(crate) fn command(&self, name: &str, file: &Path, quic: &str, join: &[&str]) -> Command {
        let log = "warn,callboard_net=info";
        let mut command = callboard(["serve", "--http", "127.0.0.1:0", "--admin", "off", "--log", log, "--quic", quic]);
        command.arg(file);
        if !join.is_empty() {
            command.args(["--join", &join.join(",")]);
        }
        match self {
            Self::Development(state) => command.env("XDG_STATE_HOME", state),
            Self::Cluster(directory) => command.arg("--cluster").arg(directory.join(name)),
        };
        command
    }
}

/// A running node.
pub(crate) struct Member {
    pub(crate) server: Server,
    pub(crate) http: Http,
    /// The address of its QUIC port.
    pub(crate) quic: String,
}

/// A node as its callers over HTTP see it, by its address.
pub(crate) struct Http(String);

impl Member {
    pub(crate) fn start(command: Command) -> Self {
        let mut server = Server::start(command);
        let quic = server.wait_for("listening on quic://").split(' ').next().unwrap().to_owned();
        Self::of(server, quic)
    }

    pub(crate) fn of(server: Server, quic: String) -> Self {
        Self { http: Http(server.address.clone()), server, quic }
    }
}

impl Http {
    /// The value of a metric.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let head = "GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text\r\n";
        let page = request(&self.0, head, "").unwrap().body;
        let line = page.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(' ')?.to_owned()));
        line.unwrap_or_else(|| panic!("no {name} in {page}")).parse::<f64>().unwrap() as u64
    }

    /// Waits until it knows this number of others as up, and is connected to each.
    pub(crate) fn wait_for_members(&self, count: u64) {
        wait_until(|| {
            let known = ["callboard_net_members_up", "callboard_net_peers_connected"].map(|name| self.metric(name));
            if known == [count; 2] { Ok(()) } else { Err(format!("{} knows {known:?}, not {count}", self.0)) }
        });
    }

    /// Waits until a call of the route `/STAGE` is answered by that stage.
    pub(crate) fn wait_for_stage(&self, stage: &str) {
        wait_until(|| match self.call(stage) {
            Ok(answer) if answer.status == 200 && answer.body.contains(stage) => Ok(()),
            other => Err(format!("{}: /{stage}: {other:?}", self.0)),
        });
    }

    /// One call of the route `/STAGE`.
    fn call(&self, stage: &str) -> io::Result<Answer> {
        request(&self.0, &format!("POST /{stage} HTTP/1.1\r\ncontent-type: application/json\r\n"), "[0.9, 0.1]")
    }
}

/// Tries until it succeeds.
pub(crate) fn wait_until(mut tried: impl FnMut() -> Result<(), String>) {
    let start = Instant::now();
    while let Err(reason) = tried() {
        assert!(start.elapsed() < TEST_TIMEOUT, "{reason}");
        pause(Duration::from_millis(20));
    }
}

#[expect(clippy::disallowed_methods, reason = "another process cannot be notified")]
pub(crate) fn pause(lasting: Duration) {
    thread::sleep(lasting);
}

/// A file with stages that run here, each answering with its name, and stages that run elsewhere; a route for each.
pub(crate) fn file_with(local: &[&str], remote: &[&str]) -> PathBuf {
    let local_stages = local.iter().map(|name| {
        let contract = if name.starts_with("once") { "contract = \"at_most_once\"\n" } else { "" };
        format!("[[stage]]\nname = \"{name}\"\nkind = \"labels\"\nnames = [\"{name}\", \"other\"]\n{contract}")
    });
    let remote_stages = remote.iter().map(|name| format!("[[stage]]\nname = \"{name}\"\nkind = \"remote\"\n"));
    let routes = local.iter().chain(remote).map(|name| format!("[[route]]\npath = \"/{name}\"\nstages = \"{name}\"\n"));
    directory_with(&local_stages.chain(remote_stages).chain(routes).collect::<String>())
}

/// One request on its own connection.
fn request(address: &str, head: &str, body: &str) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TEST_TIMEOUT))?;
    write!(stream, "{head}host: test\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())?;
    Answer::try_read(stream)
}

/// A bounded load on the route `/STAGE` of a node.
pub(crate) struct Load<'a> {
    pub(crate) http: &'a Http,
    pub(crate) stage: &'a str,
    /// Called by each thread before its first call.
    pub(crate) enter: &'a (dyn Fn() + Sync),
}

/// What has become of its calls.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    answered: AtomicUsize,
    pub(crate) failed: Mutex<Vec<String>>,
    times: Mutex<Vec<Duration>>,
}

impl Calls {
    /// Waits until further calls are answered.
    pub(crate) fn wait_for_more(&self) {
        let before = self.answered();
        wait_until(|| match self.answered() - before {
            20.. => Ok(()),
            more => Err(format!("{more} further calls are answered")),
        });
    }

    pub(crate) fn answered(&self) -> usize {
        self.answered.load(Ordering::SeqCst)
    }

    /// The longest time of a call.
    pub(crate) fn slowest(&self) -> Duration {
        self.times.lock().unwrap().iter().max().copied().unwrap_or_default()
    }

    /// The time that all but a hundredth of the calls since the last look did not exceed.
    pub(crate) fn p99(&self, seen: &mut usize) -> Duration {
        let mut times = self.times.lock().unwrap()[*seen..].to_vec();
        *seen += times.len();
        times.sort_unstable();
        times[times.len().saturating_sub(1) * 99 / 100]
    }

    fn made(&self, start: Instant, outcome: io::Result<Answer>) {
        self.times.lock().unwrap().push(start.elapsed());
        match outcome {
            Ok(answer) if answer.status == 200 => _ = self.answered.fetch_add(1, Ordering::SeqCst),
            other => self.failed.lock().unwrap().push(format!("{other:?}")),
        }
    }
}

impl Load<'_> {
    /// Calls while something happens, and until further calls are answered after it.
    pub(crate) fn run(&self, happens: impl FnOnce(&Calls)) -> Calls {
        let (calls, is_over) = (Calls::default(), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (self.enter)();
                    while !is_over.load(Ordering::SeqCst) {
                        let start = Instant::now();
                        calls.made(start, self.http.call(self.stage));
                        pause(Duration::from_millis(5));
                    }
                });
            }
            // Ends the load even if the test fails.
            let _ending = SetOnDrop(&is_over);
            happens(&calls);
            calls.wait_for_more();
        });
        calls
    }
}

/// Fails if any call of the load through this node does.
pub(crate) fn under_load(node: &Member, stage: &str, happens: impl FnOnce(&Calls)) -> Calls {
    let calls = Load { http: &node.http, stage, enter: &|| () }.run(happens);
    let failed = calls.failed.lock().unwrap();
    assert!(failed.is_empty(), "{} answered within {:?}, failed: {failed:?}", calls.answered(), calls.slowest());
    drop(failed);
    calls
}

/// Prints a time beside the one that is asked for, and checks it where times are checked: on a machine that does
/// nothing else, with `CALLBOARD_PROMISES=full`.
#[allow(clippy::print_stdout, reason = "the figures of a test")]
pub(crate) fn hold(what: &str, got: Duration, most: Duration) {
    println!("figures: {what}: asked at most {most:.1?}, got {got:.1?}");
    assert!(got <= most || env::var("CALLBOARD_PROMISES").is_err(), "{what}: {got:?}");
}

/// Sets the flag when dropped.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
