//! A running child as its callers see it: they hand batches over, and read the answers.
//!
//! ```text
//!  batch ──► writer task ──► Unix socket ──► child
//!    ▲                                         │
//!    └───── open batches ◄── reader task ◄─────┘
//! ```
//!
//! The reader task owns the child; both tasks end with it.
//!
//! * **Full:** a batch waits until the child has room: for the batches that it works on, and one ahead.
//! * **Late:** its callers are answered, and it is cancelled.
//! * **Cancelled:** the child is told. The room is free when the child answers.

use std::sync::Arc;
use std::time::Duration;

use callboard_codec::DecodeLimits;
use callboard_core::{CallContext, Failure, Instant, Replica, Turn, WorkerExit};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;

use crate::batch::{BatchPart, call_heads};
use crate::calls::{Caller, MAX_OPEN, MAX_UNWRITTEN, cancel_item};
use crate::config::ProcessMethod;
use crate::connection::AgreedTerms;
use crate::frame::limits;
use crate::lost::ChildEnd;
use crate::message::{CREDIT, ResponseHead, ToChild};
use crate::open::{Answer, OpenBatch, OpenBatches, SharedBatches};
use crate::reader::Reader;
use crate::room::OutputRoom;
use crate::spare::ChildStarter;
use crate::writer::OutgoingFrame;

/// The most frames of one batch that wait to be written: the batch, its cancellation, and credit. A child that reads
/// nothing gets little credit.
const FRAMES_OF_BATCH: usize = 8;

/// The answers of a batch that wait for its caller: outputs, and the outcome.
pub(crate) const ANSWERS: usize = CREDIT + 1;

/// Outputs that nobody has read are counted in units of this many bytes.
const UNREAD_UNIT: u64 = 1024;

/// A child that reads no frame for this time, and for the stage's timeout, is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// The interval at which a batch of several items checks whether a caller left.
const TICK: Duration = Duration::from_millis(20);

/// The callers' side of a child.
pub(crate) struct RunningChild {
    frames: mpsc::Sender<OutgoingFrame>,
    open: Arc<SharedBatches>,
    /// As many batches as the child takes.
    room: Arc<Semaphore>,
    pub(crate) limits: DecodeLimits,
    /// The most items of a batch for the child.
    pub(crate) max_items: usize,
    /// How the child has ended.
    ended: watch::Receiver<Option<ChildEnd>>,
    /// The timeout of the child's own stage.
    timeout: Option<Duration>,
    stop_timeout: Duration,
}

impl RunningChild {
    pub(crate) async fn start(
        children: &ChildStarter,
        replica: &Arc<Replica>,
        is_streaming: bool,
    ) -> Result<Self, Failure> {
        let config = &children.config;
        let (connection, writer, agreed) = children.start(replica, is_streaming).await?;
        let meter = connection.child.meter();
        replica.measure_usage_by(move || meter.measure());
        let AgreedTerms { max_batches, ahead, .. } = agreed;
        let is_serial = config.concurrency().is_none();
        let batches = max_batches + ahead;
        let (frames, outgoing) = mpsc::channel(places_of(batches));
        let (has_ended, ended) = watch::channel(None);
        let open = Arc::new(Mutex::new(OpenBatches::new(is_serial)));
        let max_bytes = config.max_batch_bytes;
        let limits = limits(max_bytes);
        let reader = Reader {
            connection,
            open: Arc::clone(&open),
            writer: tokio::spawn(writer.run(outgoing)),
            frames: frames.downgrade(),
            caller: Caller {
                open: Arc::clone(&open),
                frames: frames.downgrade(),
                limits: limits.clone(),
                unwritten: OutputRoom::new(max_bytes, max_bytes.div_ceil(MAX_UNWRITTEN as u64)),
            },
            is_streaming,
            unread: OutputRoom::new(max_bytes, UNREAD_UNIT),
            last_call: None,
            stuck_after: replica.timeout().unwrap_or_default().max(STUCK_AFTER),
            silence_timeout: config.silence_timeout,
            stop_timeout: config.stop_timeout,
            exit_port: replica.exit_port(),
            reporter: replica.sample_reporter(),
        };
        tokio::spawn(reader.run(has_ended));
        let room = Arc::new(Semaphore::new(batches));
        let max_items = if is_serial { usize::MAX } else { 1 };
        let (timeout, stop_timeout) = (replica.timeout(), config.stop_timeout);
        Ok(Self { frames, open, room, limits, max_items, ended, timeout, stop_timeout })
    }

    /// Hands a part of a batch to the child, when it has room for it. Without a `method` it is that of the child's
    /// stage.
    ///
    /// # Errors
    ///
    /// If the child ends, or has ended, and does not begin with it.
    pub(crate) async fn begin(
        &self,
        part: BatchPart,
        method: Option<&ProcessMethod>,
        turn: Turn,
    ) -> Result<RunningPart<'_>, ChildEnd> {
        let BatchPart { indices, contexts, inputs } = part;
        let contexts: Arc<[CallContext]> = contexts.into();
        // The semaphore is never closed.
        let Ok(room) = Arc::clone(&self.room).acquire_owned().await else { return Err(self.end().await) };
        let (answers, receiver) = mpsc::channel(ANSWERS);
        let id = {
            let mut open = self.open.lock();
            if open.is_leaving {
                None
            } else {
                let items = call_heads(&contexts);
                let timeout = method.map_or(self.timeout, |method| method.timeout);
                let id = open.add(OpenBatch::new(Arc::clone(&contexts), answers, turn, timeout, room));
                let method = method.map(|method| method.name.clone());
                open.send(&self.frames, OutgoingFrame::new(&ToChild::Batch { id, method, items }, inputs));
                Some(id)
            }
        };
        let Some(id) = id else { return Err(self.end().await) };
        let is_cancelled = vec![false; indices.len()];
        Ok(RunningPart {
            child: self,
            id,
            indices,
            contexts,
            answers: receiver,
            is_cancelled,
            taken: 0,
            is_over: false,
        })
    }

    /// How the child has ended. It has ended, or is about to.
    async fn end(&self) -> ChildEnd {
        let mut ended = self.ended.clone();
        let end = ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        end.unwrap_or_else(|| ChildEnd { exit: WorkerExit::new("its child has ended"), is_announced: false })
    }

    /// Lets the child clean up. It is killed when this is dropped.
    pub(crate) async fn stop(&self) {
        let stop = OutgoingFrame::new(&ToChild::stop(self.stop_timeout), Vec::new());
        self.open.lock().send(&self.frames, stop);
        let _ = timeout(self.stop_timeout, self.end()).await;
    }
}

/// The places of the queue of frames: those of all batches, the results of all open calls and of as many that follow,
/// and outputs of calls.
fn places_of(batches: usize) -> usize {
    FRAMES_OF_BATCH * batches + 2 * MAX_OPEN + MAX_UNWRITTEN
}

/// A part of a batch in the child. Cancels it when it is dropped before its outcomes.
pub(crate) struct RunningPart<'c> {
    child: &'c RunningChild,
    id: u64,
    /// The indices of its items in their batch.
    pub(crate) indices: Vec<usize>,
    /// Shared with the reader.
    pub(crate) contexts: Arc<[CallContext]>,
    answers: mpsc::Receiver<Answer>,
    /// For each item, whether the child knows that its caller left.
    is_cancelled: Vec<bool>,
    /// Outputs taken since the child was last given credit.
    taken: usize,
    is_over: bool,
}

impl RunningPart<'_> {
    /// The next answer of the child.
    ///
    /// # Errors
    ///
    /// If the child has ended.
    pub(crate) async fn next(&mut self) -> Result<Answer, ChildEnd> {
        loop {
            // The future of a single item is dropped when its caller leaves.
            let answer = match self.contexts.len() {
                1 => self.answers.recv().await,
                _ => match timeout(TICK, self.answers.recv()).await {
                    Ok(answer) => answer,
                    Err(_) => {
                        self.cancel_unwanted();
                        continue;
                    }
                },
            };
            self.is_over = !matches!(answer, Some(Answer::Output { .. }));
            return match answer {
                Some(answer) => Ok(answer),
                None => Err(self.child.end().await),
            };
        }
    }

    /// Tells the child which callers left.
    fn cancel_unwanted(&mut self) {
        let now = Instant::now();
        self.cancel(|context| !context.is_wanted(now));
    }

    fn cancel(&mut self, is_unwanted: impl Fn(&CallContext) -> bool) {
        let left: Vec<usize> = (0..self.contexts.len())
            .filter(|item| !self.is_cancelled[*item] && is_unwanted(&self.contexts[*item]))
            .collect();
        if left.is_empty() {
            return;
        }
        left.iter().for_each(|item| self.is_cancelled[*item] = true);
        let is_last = !self.is_cancelled.contains(&false);
        let mut open = self.child.open.lock();
        for item in &left {
            cancel_item(&mut open, &self.child.frames, self.id, *item, is_last);
        }
        open.cancel(&self.child.frames, self.id, left.into_iter());
    }

    /// The code of an item has chosen this of its answer.
    pub(crate) fn choose_response(&self, item: usize, response: Option<ResponseHead>) {
        if let (Some(response), Some(context)) = (response, self.contexts.get(item)) {
            context.set_response(response.into());
        }
    }

    pub(crate) fn choose_responses(&self, responses: Vec<Option<ResponseHead>>) {
        responses.into_iter().enumerate().for_each(|(item, response)| self.choose_response(item, response));
    }

    /// The caller has taken an output: a child with several batches may send more.
    pub(crate) fn give_credit(&mut self) {
        self.taken += 1;
        let mut open = self.child.open.lock();
        if self.taken == CREDIT / 2 && !open.is_serial {
            let credit = ToChild::Credit { id: self.id, item: 0, outputs: self.taken };
            open.send(&self.child.frames, OutgoingFrame::new(&credit, Vec::new()));
            self.taken = 0;
        }
    }
}

impl Drop for RunningPart<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.cancel(|_| true);
            self.child.open.lock().give_up(self.id);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
