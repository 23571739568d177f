//! A server under limits, observed from outside: liveness, memory, processor time, gauges.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::adder::slow_adder;
use crate::http1::{self, Request};

/// The limit of the private memory of the process, in KiB: allocating more ends the process.
const DATA_LIMIT_KIB: u32 = 1 << 20;

/// The interval of memory samples.
const SAMPLE: Duration = Duration::from_millis(20);

/// The kernel's unit of processor time.
const TICK: Duration = Duration::from_millis(10);

/// Longer than a start takes on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The paths of the binaries, and the expected speed.
pub(crate) struct Binaries {
    pub(crate) callboard: PathBuf,
    pub(crate) typed: PathBuf,
    pub(crate) is_release: bool,
}

pub(crate) static BINARIES: LazyLock<Binaries> = LazyLock::new(|| {
    let named = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let callboard = named("CALLBOARD_HOSTILE_BINARY").expect("a binary to attack is named");
    let next_to_callboard = || callboard.parent().expect("a binary lies in a directory").join("hostile_server");
    let typed = named("CALLBOARD_HOSTILE_SERVER").unwrap_or_else(next_to_callboard);
    let is_release = callboard.iter().any(|part| part == "release");
    Binaries { callboard, typed, is_release }
});

/// One directory for the files and the identity of this run.
pub(crate) fn directory() -> &'static Path {
    static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hostile-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory for the tests");
        path
    });
    &DIRECTORY
}

/// The served routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// The `callboard` binary with `callboard.toml` of this directory: a picture model, `/keep` and `/pick` for any
    /// value.
    Files,
    /// The routes of `server.rs`.
    Types,
    /// The `callboard` binary with `gateway.toml` of this directory: `/bomb` runs on a peer.
    Gateway,
    /// The `callboard` binary with a directory of models that takes uploads.
    Models,
    /// The same beside `/slow`, of which there are two versions: their answers are their numbers.
    Versions,
    /// The `callboard` binary with `children.toml` of this directory: a child that does what its items say.
    #[cfg(target_os = "linux")]
    Children,
    /// The `callboard` binary with `python.toml` of this directory: services in Python.
    #[cfg(target_os = "linux")]
    Python,
}

/// The environment of the services in Python; `None` after a line with the reason.
#[cfg(target_os = "linux")]
pub(crate) fn python_environment() -> Option<PathBuf> {
    let environment = std::env::var_os("CALLBOARD_HOSTILE_PYTHON").map(PathBuf::from);
    if environment.is_none() {
        println!("skipped: CALLBOARD_HOSTILE_PYTHON names no environment of Python");
    }
    environment
}

/// A running server. It is killed when it is dropped.
pub(crate) struct Node {
    child: Child,
    stderr_lines: Arc<Mutex<Vec<String>>>,
    watch: MemoryWatch,
    pub(crate) http: SocketAddr,
    pub(crate) quic: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Node {
    /// Starts the server under its limits and waits until it listens. `args` are extra arguments.
    pub(crate) fn start(served: Served, args: &[String]) -> Self {
        let (binary, file) = match served {
            Served::Files => {
                (&BINARIES.callboard, Some(write_config("callboard.toml", include_str!("callboard.toml"))))
            }
            Served::Gateway => (&BINARIES.callboard, Some(write_config("gateway.toml", include_str!("gateway.toml")))),
            Served::Models => (&BINARIES.callboard, Some(directory_of_models(&[]))),
            Served::Versions => (&BINARIES.callboard, Some(directory_of_models(&[1, 2]))),
            Served::Types => (&BINARIES.typed, None),
            #[cfg(target_os = "linux")]
            Served::Children => {
                (&BINARIES.callboard, Some(write_config("children.toml", include_str!("children.toml"))))
            }
            #[cfg(target_os = "linux")]
            Served::Python => (&BINARIES.callboard, Some(write_config("python.toml", include_str!("python.toml")))),
        };
        assert!(binary.exists(), "{} is not there: build it first, see tests/hostile/main.rs", binary.display());
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -d {DATA_LIMIT_KIB}; exec \"$0\" \"$@\"")]).arg(binary).arg("serve");
        command.args(file).args(["--http", "127.0.0.1:0", "--quic", "127.0.0.1:0"]);
        command.args(["--admin", "127.0.0.1:0", "--access-log", "false"]).args(args);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CALLBOARD_")) {
            command.env_remove(name);
        }
        #[cfg(target_os = "linux")]
        if served == Served::Python {
            command.env("VIRTUAL_ENV", python_environment().expect("an environment of Python"));
            command.env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/python/src"));
        }
        command.env("XDG_STATE_HOME", directory()).env("RUST_BACKTRACE", "0");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr_lines = listen(child.stderr.take().expect("a pipe"));
        let deadline = Instant::now() + START_LIMIT;
        let mut address_after = |text: &str| loop {
            let found = stderr_lines
                .lock()
                .unwrap()
                .iter()
                .find_map(|line| line.split_once(text))
                .map(|(_, rest)| rest.to_owned());
            match found {
                Some(rest) => {
                    break rest.split(' ').next().and_then(|address| address.parse().ok()).expect("an address");
                }
                None if Instant::now() > deadline || child.try_wait().unwrap().is_some() => {
                    panic!("never printed {text:?}: {:#?}", stderr_lines.lock().unwrap())
                }
                None => thread::sleep(Duration::from_millis(2)),
            }
        };
        let [http, quic, admin] =
            ["listening on http://", "listening on quic://", "admin on http://"].map(&mut address_after);
        let watch = MemoryWatch::start(child.id());
        let node = Self { child, stderr_lines, watch, http, quic, admin };
        // A gateway is ready once it has linked its peer.
        while node.get("/readyz").is_none() {
            assert!(Instant::now() < deadline, "never ready: {:#?}", node.stderr_lines.lock().unwrap());
            thread::sleep(Duration::from_millis(10));
        }
        node
    }

    /// The body of a 200 answer at this path.
    fn get(&self, path: &str) -> Option<String> {
        http1::get(self.http, Ipv4Addr::new(127, 0, 0, 4), &Request::get(path), Duration::from_secs(1)).ok()
    }

    /// Its exit, if it has ended.
    pub(crate) fn death(&mut self) -> Option<String> {
        let status = self.child.try_wait().expect("a child to ask for")?;
        let stderr_lines = self.stderr_lines.lock().unwrap();
        let last_lines: Vec<&str> = stderr_lines.iter().rev().take(3).rev().map(String::as_str).collect();
        Some(format!("{status}, after {last_lines:?}"))
    }

    /// The lines that it has printed so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.stderr_lines.lock().unwrap().clone()
    }

    /// The most resident memory so far, in bytes.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.watch.peak_bytes.load(Ordering::Relaxed)
    }

    /// The most address space so far, in bytes.
    pub(crate) fn peak_address_space(&self) -> u64 {
        self.watch.peak_address_space.load(Ordering::Relaxed)
    }

    /// The most threads so far.
    pub(crate) fn peak_threads(&self) -> u64 {
        self.watch.peak_threads.load(Ordering::Relaxed)
    }

    /// The processor time so far. `None` after its end.
    pub(crate) fn processor_time(&self) -> Option<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        // The name of the program may contain spaces; it ends with the last bracket.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |index: usize| fields.get(index)?.parse::<u32>().ok();
        Some(TICK * (ticks(11)? + ticks(12)?))
    }

    /// Calls and bytes in flight, from its metrics. `None` without an answer.
    pub(crate) fn in_flight(&self) -> Option<(u64, u64)> {
        let text = self.get("/metrics")?;
        let gauge = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        Some((gauge("callboard_in_flight ")?, gauge("callboard_in_flight_bytes ")?))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Records the output of the server.
fn listen(pipe: ChildStderr) -> Arc<Mutex<Vec<String>>> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            sink.lock().unwrap().push(line);
        }
    });
    lines
}

/// The rounds of a slow model: some milliseconds.
const SLOW_ROUNDS: u64 = 2_000;

/// A directory with one model and these versions of another, and the settings beside them.
fn directory_of_models(versions: &[u8]) -> PathBuf {
    let path = directory().join("models");
    // What an earlier attack has uploaded.
    let _ = fs::remove_dir_all(&path);
    let model = path.join("digits/1/model.onnx");
    fs::create_dir_all(model.parent().expect("it is in a directory")).expect("a directory for the tests");
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits/digits.onnx"), model).expect("a model");
    for version in versions {
        let file = path.join(format!("slow/{version}/model.onnx"));
        fs::create_dir_all(file.parent().expect("it is in a directory")).expect("a directory for the tests");
        fs::write(file, slow_adder(SLOW_ROUNDS, f32::from(*version))).expect("a model");
        let settings = "versions = \"all\"\ndefault = 1\nengine = \"rten\"\n";
        fs::write(path.join("slow/model.toml"), settings).expect("a file for the tests");
    }
    fs::write(path.join("callboard.toml"), include_str!("models.toml")).expect("a file for the tests");
    path
}

/// Writes a configuration file, with the paths of models, typed server and services filled in.
fn write_config(name: &str, text: &str) -> PathBuf {
    let path = directory().join(name);
    let models = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits");
    let app = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile/app.py");
    let text = text.replace("DIGITS", models).replace("SERVER", &BINARIES.typed.to_string_lossy()).replace("APP", app);
    fs::write(&path, text).expect("a file for the tests");
    path
}

/// Samples the memory of a process until it is dropped: a dead process cannot be measured.
struct MemoryWatch {
    peak_bytes: Arc<AtomicU64>,
    peak_address_space: Arc<AtomicU64>,
    peak_threads: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MemoryWatch {
    fn start(id: u32) -> Self {
        let (peak_bytes, peak_address_space, peak_threads) =
            <(Arc<AtomicU64>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let is_over = Arc::<AtomicBool>::default();
        let (bytes, space, threads) =
            (Arc::clone(&peak_bytes), Arc::clone(&peak_address_space), Arc::clone(&peak_threads));
        let over = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
                let number = |name: &str| {
                    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
                    line.split_whitespace().next()?.parse::<u64>().ok()
                };
                bytes.fetch_max(number("VmHWM:").unwrap_or_default() * 1024, Ordering::Relaxed);
                space.fetch_max(number("VmPeak:").unwrap_or_default() * 1024, Ordering::Relaxed);
                threads.fetch_max(number("Threads:").unwrap_or_default(), Ordering::Relaxed);
                thread::sleep(SAMPLE);
            }
        });
        Self { peak_bytes, peak_address_space, peak_threads, is_over, thread: Some(thread) }
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}
