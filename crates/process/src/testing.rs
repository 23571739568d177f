//! Parts of a node for unit tests: calls that wait, their replica, a child that does nothing, the log, and a directory.

use std::fs;
use std::future::pending;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use callboard_codec::Value;
use callboard_core::{App, AsyncWorker, Batch, CallContext, CallError, CallOptions, Failure, Node, Replica, Stage};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::subscriber::DefaultGuard;

use crate::child::ChildProcess;
use crate::config::ProcessConfig;
use crate::connection::Connection;
use crate::fork_server::ForkServer;
use crate::memory::MemoryLimit;

/// The most calls of a test.
const MAX_CALLS: usize = 64;

/// A node with a route `/child`, whose calls wait until it is dropped.
pub(crate) struct WaitingNode {
    pub(crate) node: Node,
    pub(crate) replica: Replica,
    begun: mpsc::Receiver<CallContext>,
    calls: Vec<JoinHandle<Result<Value, CallError>>>,
}

struct Waiting(mpsc::Sender<CallContext>);

impl AsyncWorker for Waiting {
    type In = Value;
    type Out = Value;

    async fn call(&self, batch: Batch<Value>) -> Vec<Result<Value, Failure>> {
        for (_, context) in batch.into_shared() {
            self.0.send(context).await.unwrap();
        }
        pending().await
    }
}

impl WaitingNode {
    pub(crate) async fn start() -> Self {
        let ((begins, begun), (replicas, mut built)) = (mpsc::channel(MAX_CALLS), mpsc::channel(MAX_CALLS));
        let worker = move |replica: &Replica| {
            replicas.try_send(replica.clone()).unwrap();
            Ok(Waiting(begins.clone()))
        };
        let stage = Stage::async_worker("child", worker).concurrency(MAX_CALLS as u32);
        let node = App::new().route("/child", stage).start().await.unwrap();
        let replica = built.recv().await.unwrap();
        Self { node, replica, begun, calls: Vec::new() }
    }

    /// The context of a call with the request id `call-N`, of which the first has the number 0.
    pub(crate) async fn call(&mut self) -> CallContext {
        self.call_with(CallOptions::new().with_request_id(format!("call-{}", self.calls.len()))).await
    }

    pub(crate) async fn call_with(&mut self, options: CallOptions) -> CallContext {
        let client = self.node.client();
        let call = async move { client.call_with::<_, Value>("/child", Value::Null, options).await };
        let mut call = tokio::spawn(call);
        let context = tokio::select! {
            begun = self.begun.recv() => begun.unwrap(),
            ended = &mut call => panic!("the call does not wait: {ended:?}"),
        };
        self.calls.push(call);
        context
    }

    /// The caller of this call leaves.
    pub(crate) fn leave(&self, call: usize) {
        self.calls[call].abort();
    }

    /// A connection to a process that neither reads nor writes.
    pub(crate) fn silent_child(&self) -> Connection {
        let mut config = ProcessConfig::new(["sleep", "1000"]);
        config.memory_limit = MemoryLimit::Unlimited;
        let child = ChildProcess::start(&config, &ForkServer::new(&config), &self.replica).unwrap();
        Connection::of_child(child, &config).unwrap().0
    }
}

/// What this thread logs at `info`.
#[derive(Clone, Default)]
pub(crate) struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl CapturedLog {
    /// Captures until the guard is dropped.
    pub(crate) fn start() -> (Self, DefaultGuard) {
        let captured = Self::default();
        let to = captured.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || to.clone()).finish();
        (captured, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }
}

impl Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A directory that is removed at the end of its test.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("callboard-{name}-{}-{count}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn write(&self, file: &str, text: &str) -> PathBuf {
        let path = self.0.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// What a file has; nothing if it is missing.
    pub(crate) fn text(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap_or_default()
    }

    /// An interpreter that is a script for a shell. Another process writes it: a program that is open for writing,
    /// also in a child that another test forks meanwhile, cannot be started.
    pub(crate) fn interpreter(&self, script: &str) -> PathBuf {
        let path = self.0.join("python");
        let mut command = Command::new("sh");
        command.args(["-c", r#"printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod +x "$0""#]).arg(&path).arg(script);
        assert!(command.status().unwrap().success());
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
