//! What the reader takes from a child, and when it ends it. The child of these tests is a process that neither reads
//! nor writes: its frames are given to the reader as if they had arrived.

mod answers;
mod calls;
mod ends;

use callboard_codec::{Format, Value};
use callboard_core::{ErrorKind, Turn};
use parking_lot::Mutex;
use rustix::process::{Signal, kill_process};
use serde_json::{Value as Json, json};
use tokio::sync::Semaphore;

use super::*;
use crate::calls::MAX_UNWRITTEN;
use crate::frame::limits;
use crate::message::{self, MAX_CREDIT};
use crate::open::OpenBatches;
use crate::running::ANSWERS;
use crate::testing::{CapturedLog, WaitingNode};

const MAX_BYTES: u64 = 1 << 20;

/// A reader, the queue of its frames, and the node with its calls.
struct Reading {
    reader: Reader,
    silence: SilenceTimer,
    frames: mpsc::Sender<OutgoingFrame>,
    queued: mpsc::Receiver<OutgoingFrame>,
    node: WaitingNode,
}

impl Reading {
    async fn new(is_serial: bool, is_streaming: bool) -> Self {
        let node = WaitingNode::start().await;
        let (frames, queued) = mpsc::channel(2 * MAX_OPEN);
        let open = Arc::new(Mutex::new(OpenBatches::new(is_serial)));
        let caller = Caller {
            open: Arc::clone(&open),
            frames: frames.downgrade(),
            limits: limits(MAX_BYTES),
            unwritten: OutputRoom::new(MAX_BYTES, MAX_BYTES.div_ceil(MAX_UNWRITTEN as u64)),
        };
        let reader = Reader {
            connection: node.silent_child(),
            open,
            writer: tokio::spawn(std::future::pending()),
            frames: frames.downgrade(),
            caller,
            is_streaming,
            unread: OutputRoom::new(MAX_BYTES, 1024),
            last_call: None,
            stuck_after: Duration::from_millis(250),
            silence_timeout: None,
            stop_timeout: Duration::from_millis(20),
            exit_port: node.replica.exit_port(),
            reporter: node.replica.sample_reporter(),
        };
        Self { reader, silence: SilenceTimer::default(), frames, queued, node }
    }

    /// Adds a batch of calls, and returns its id and its answers.
    async fn add(&mut self, items: usize, timeout: Option<Duration>) -> (u64, mpsc::Receiver<Answer>) {
        let mut contexts = Vec::new();
        for _ in 0..items {
            contexts.push(self.node.call().await);
        }
        let (answers, receiver) = mpsc::channel(ANSWERS);
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let batch = OpenBatch::new(contexts.into(), answers, Turn::default(), timeout, room);
        (self.reader.open.lock().add(batch), receiver)
    }

    /// Takes a frame. The error says why the child is lost.
    async fn take(&mut self, head: Json, parts: &[&[u8]]) -> Result<(), String> {
        let parts = parts.iter().map(|part| Bytes::copy_from_slice(part)).collect();
        let frame = Frame { head: message::encode(&head).unwrap().into(), parts };
        self.reader.take(frame, &mut self.silence).await.map_err(why)
    }

    fn look(&mut self) -> Result<(), String> {
        self.reader.look(&self.frames, &mut self.silence).map_err(why)
    }

    /// The types of the messages that were queued for the child.
    fn queued(&mut self) -> Vec<ToChild> {
        std::iter::from_fn(|| self.queued.try_recv().ok()).map(|frame| frame.message()).collect()
    }

    fn restarts(&self) -> u64 {
        self.node.node.describe().stages[0].restarts
    }

    async fn until_restarted(&self) {
        let restarted = async {
            while self.restarts() == 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(10), restarted).await.expect("its replica is started again");
    }

    fn open_calls(&self) -> usize {
        self.reader.open.lock().made.len()
    }
}

fn why(lost: LostReason) -> String {
    match lost {
        LostReason::Broken(why) => why,
        LostReason::Leaving => "it leaves".to_owned(),
        LostReason::Ended => "it has ended".to_owned(),
        LostReason::NotStarted { message, .. } => message,
    }
}

fn broken(why: &str) -> Result<(), String> {
    Err(why.to_owned())
}

const NOT_ASKED: &str = "it answered what it was not asked";
