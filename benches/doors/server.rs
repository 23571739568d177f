//! A server in its own process, and how the measuring process asks for its CPU time.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use rustix::time::{ClockId, clock_gettime};

use super::{served, tonic_server};

/// The kind of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// tonic and prost, nothing else.
    Tonic,
    /// A node with every door.
    Callboard,
}

impl Kind {
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        [Self::Tonic, Self::Callboard].into_iter().find(|kind| kind.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Tonic => "tonic",
            Self::Callboard => "callboard",
        }
    }
}

/// Serves until stdin ends, which is the end of the measuring process. Answers each line with the CPU time of this
/// process.
pub(crate) fn run(kind: Kind) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let address = runtime.block_on(async {
        match kind {
            Kind::Tonic => tonic_server::start(),
            Kind::Callboard => served::start().await,
        }
    });
    println!("{address}");
    for _ in std::io::stdin().lines() {
        println!("{}", own_cpu_seconds());
    }
}

/// User and system time of all threads of this process so far, as `getrusage` has it, to the nanosecond.
pub(crate) fn own_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A server in its own process.
pub(crate) struct ServerProcess {
    pub(crate) kind: Kind,
    pub(crate) address: SocketAddr,
    process: Child,
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

impl ServerProcess {
    pub(crate) fn start(kind: Kind) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["serve", kind.name()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let address = line(&mut output).parse().expect("the server prints its address");
        let pipes = Mutex::new((process.stdin.take().unwrap(), output));
        Self { kind, address, process, pipes }
    }

    /// User and system time of all its threads so far.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let (input, output) = &mut *self.pipes.lock().unwrap();
        input.write_all(b"cpu\n").unwrap();
        line(output).parse().unwrap()
    }
}

fn line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line.trim().to_owned()
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
