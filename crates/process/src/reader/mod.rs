//! The task that reads the frames of a child, and ends the child.
//!
//! * **Full:** unread outputs pause the child; results that the child does not read end it.
//! * **Late:** a child whose batch exceeds the stage's timeout is killed after its callers were answered. A child that
//!   works on several batches is killed if it is silent for the longest of their timeouts, or for its
//!   [`silence_timeout`](crate::ProcessConfig::silence_timeout), even after a ping; what other threads of it may send
//!   does not count.
//! * **Leaving:** a child that has announced its end has the time of a stop for work after its answers; its log is
//!   read.
//! * **Ended:** batches that began are lost with the reason; the others are given back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_core::{ExitPort, SampleReporter, WorkerExit};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout};

use crate::calls::{Caller, MAX_OPEN};
use crate::connection::{Connection, LOOK_INTERVAL, head};
use crate::credit::CallCredit;
use crate::frame::Frame;
use crate::lost::{ChildEnd, LostReason};
use crate::message::{
    CREDIT, CallCreditMessage, CancelCallMessage, FromChild, ItemError, OutcomesMessage, OutputMessage, ResponseHead,
    ToChild,
};
use crate::open::{Answer, OpenBatch, SharedBatches};
use crate::room::OutputRoom;
use crate::samples::MetricsMessage;
use crate::writer::OutgoingFrame;

/// How long a child with open batches has been silent.
#[derive(Default)]
struct SilenceTimer {
    since: Option<Instant>,
    is_pinged: bool,
}

/// The periodic checks of a child, and their findings.
struct PeriodicChecks {
    last: Instant,
    /// The last check found a reason to end the child.
    is_suspected: bool,
}

/// Reads the frames of the child, and ends the child.
pub(crate) struct Reader {
    pub(crate) connection: Connection,
    pub(crate) open: Arc<SharedBatches>,
    /// Ends when it cannot write, and with this.
    pub(crate) writer: JoinHandle<std::io::Result<()>>,
    /// Weak: the task ends when the worker is dropped.
    pub(crate) frames: mpsc::WeakSender<OutgoingFrame>,
    pub(crate) caller: Caller,
    /// Whether items have streams of outputs.
    pub(crate) is_streaming: bool,
    /// Room for outputs that are not read.
    pub(crate) unread: OutputRoom,
    /// The id of the child's last call.
    pub(crate) last_call: Option<u64>,
    /// A child that reads no frame for this time is stuck.
    pub(crate) stuck_after: Duration,
    /// The longest silence with a batch that has no timeout.
    pub(crate) silence_timeout: Option<Duration>,
    pub(crate) stop_timeout: Duration,
    pub(crate) exit_port: ExitPort,
    /// Takes what user code of the child counts. Its gauges end with this.
    pub(crate) reporter: SampleReporter,
}

impl SilenceTimer {
    /// Whether it has lasted for `limit`. Calls `ping` once, after half of it.
    fn is_too_long(&mut self, limit: Duration, ping: impl FnOnce()) -> bool {
        let silence = self.since.get_or_insert_with(Instant::now).elapsed();
        if silence >= limit / 2 && !self.is_pinged {
            self.is_pinged = true;
            ping();
        }
        silence >= limit
    }
}

impl PeriodicChecks {
    /// Checks the child, if it is time, also if it is never silent. Such a child has until the next check, because the
    /// frames that it already sent are read first.
    fn at(
        &mut self,
        now: Instant,
        is_silent: bool,
        look: impl FnOnce() -> Result<(), LostReason>,
    ) -> Result<(), LostReason> {
        if now.duration_since(self.last) < LOOK_INTERVAL {
            return Ok(());
        }
        self.last = now;
        match look() {
            Err(lost) if is_silent || self.is_suspected => Err(lost),
            looked => {
                self.is_suspected = looked.is_err();
                Ok(())
            }
        }
    }
}

impl Reader {
    /// Reads until the end, and publishes its reason.
    pub(crate) async fn run(mut self, ended: watch::Sender<Option<ChildEnd>>) {
        let lost = self.read().await;
        let is_announced = matches!(lost, Some(LostReason::Leaving));
        if is_announced {
            self.let_leave().await;
        }
        let Self { mut connection, open, writer, exit_port, .. } = self;
        open.lock().is_leaving = true;
        // Waits briefly for the exit status.
        let exit = spawn_blocking(move || lost.map(|lost| lost.end(&mut connection.child)));
        let exit = match exit.await {
            Ok(exit) => exit,
            Err(error) => Some(WorkerExit::new(format!("its end failed: {error}"))),
        };
        // It may wait for a process that has the child's socket and does not read.
        writer.abort();
        let told = exit.clone().unwrap_or_else(|| WorkerExit::new("its replica has ended"));
        let _ = ended.send(Some(ChildEnd { exit: told, is_announced }));
        // Their callers read the reason.
        let (closed, had_batch) = {
            let mut open = open.lock();
            (open.close(), open.had_batch())
        };
        drop(closed);
        if let Some(exit) = exit {
            exit_port.report(&exit, had_batch);
        }
    }

    /// Gives a child that has announced its end the time of a stop for its work after answers, and reads what it logs.
    async fn let_leave(&mut self) {
        {
            let mut open = self.open.lock();
            open.is_leaving = true;
            // A child with a single batch ends by itself.
            if !open.is_serial
                && let Some(frames) = self.frames.upgrade()
            {
                open.send(&frames, OutgoingFrame::new(&ToChild::stop(self.stop_timeout), Vec::new()));
            }
        }
        let _ = timeout(self.stop_timeout, self.read()).await;
    }

    /// Reads until the child is lost. `None`: the worker has been dropped.
    async fn read(&mut self) -> Option<LostReason> {
        let mut silence = SilenceTimer::default();
        let mut looks = PeriodicChecks { last: Instant::now(), is_suspected: false };
        loop {
            let received = self.connection.next().await;
            let frames = self.frames.upgrade()?;
            // Results of the child's calls are written before more calls are read.
            if frames.capacity() < MAX_OPEN
                && let Err(lost) = self.until_room(&frames).await
            {
                return Some(lost);
            }
            if self.open.lock().is_stuck {
                return Some(LostReason::does_not_read());
            }
            let is_silent = matches!(received, Ok(None));
            let taken = match received {
                Ok(Some(frame)) => self.take(frame, &mut silence).await,
                Ok(None) => Ok(()),
                Err(lost) => Err(lost),
            };
            if let Err(lost) = taken {
                return Some(lost);
            }
            if let Err(lost) = looks.at(Instant::now(), is_silent, || self.look(&frames, &mut silence)) {
                return Some(lost);
            }
            tokio::task::consume_budget().await;
        }
    }

    /// Waits until there is room for the results of as many calls as a child may have.
    async fn until_room(&self, frames: &mpsc::Sender<OutgoingFrame>) -> Result<(), LostReason> {
        let since = Instant::now();
        while timeout(LOOK_INTERVAL, frames.reserve_many(MAX_OPEN)).await.is_err() {
            if since.elapsed() >= self.stuck_after {
                return Err(LostReason::does_not_read());
            }
            // Its frames are not read meanwhile.
            self.look(frames, &mut SilenceTimer::default())?;
        }
        Ok(())
    }

    /// Periodic checks, also while the child sends.
    fn look(&self, frames: &mpsc::Sender<OutgoingFrame>, silence: &mut SilenceTimer) -> Result<(), LostReason> {
        // A child that has ended reads nothing either, and its last frames and its end say more.
        if self.writer.is_finished() && !self.connection.child.has_ended() {
            return Err(LostReason::broken("it does not read any more"));
        }
        self.connection.child.log_left_out();
        let is_idle = self.open.lock().is_empty();
        if let Some(excess) = self.connection.child.why_to_end(is_idle) {
            return Err(LostReason::Broken(excess));
        }
        let mut open = self.open.lock();
        open.send_cancels(frames);
        if open.is_serial {
            let late = |limit| format!("its batch has lasted longer than the stage's timeout of {limit:?}");
            return open.overdue().map_or(Ok(()), |limit: Duration| Err(LostReason::Broken(late(limit))));
        }
        let Some(limit) = open.longest_silence(self.silence_timeout) else { return Ok(()) };
        if silence.is_too_long(limit, || open.send(frames, OutgoingFrame::new(&ToChild::Ping, Vec::new()))) {
            return Err(LostReason::Broken(format!("it has said nothing for {limit:?}")));
        }
        Ok(())
    }

    async fn take(&mut self, mut frame: Frame, silence: &mut SilenceTimer) -> Result<(), LostReason> {
        let message = head(&frame)?;
        // Other threads of a child whose work has stopped may still send these.
        if !matches!(message, FromChild::Log(_) | FromChild::Metrics(_) | FromChild::Starting(_)) {
            *silence = SilenceTimer::default();
        }
        match message {
            FromChild::Output(OutputMessage { id, item, response }) => {
                let [part] = <[_; 1]>::try_from(frame.parts).map_err(|_| LostReason::unexpected_answer())?;
                if !self.is_streaming {
                    return Err(LostReason::broken("it answered with a stream, and the stage gives one output"));
                }
                self.take_output(id, item, part, response).await
            }
            FromChild::Outcomes(outcomes) => self.take_outcomes(outcomes, frame.parts).await,
            FromChild::Log(record) => {
                self.connection.child.log(record, |id| self.open.lock().has_request(id));
                Ok(())
            }
            FromChild::Metrics(MetricsMessage { samples }) => {
                for sample in samples {
                    let sample = sample.sample();
                    let no_value = || LostReason::broken("a sample of it has one of `add`, `set` and `observed`");
                    self.reporter.report(sample.ok_or_else(no_value)?);
                }
                Ok(())
            }
            FromChild::Call(call) => {
                if frame.parts.len() != 1 || self.last_call.replace(call.id).is_some_and(|last| last >= call.id) {
                    return Err(LostReason::broken(
                        "a call of it has one input, and an id above those of its earlier calls",
                    ));
                }
                let credit = call.credit.map(|outputs| CallCredit::try_new(outputs, call.credit_bytes));
                if matches!(credit, Some(None)) {
                    return Err(LostReason::excess_credit());
                }
                self.caller.make(call, credit.flatten(), &frame.parts.remove(0));
                Ok(())
            }
            FromChild::CallCredit(CallCreditMessage { id, outputs, bytes }) => {
                // The call may be over.
                let open = self.open.lock();
                let credit = open.made.get(&id).and_then(|made| made.credit.as_ref());
                if credit.is_none_or(|credit| credit.give(outputs, bytes)) {
                    return Ok(());
                }
                Err(LostReason::excess_credit())
            }
            FromChild::CancelCall(CancelCallMessage { id }) => {
                let cancelled = self.open.lock().made.remove(&id);
                drop(cancelled);
                Ok(())
            }
            // Another thread of the child may have sent it while it became ready.
            FromChild::Starting(_) => Ok(()),
            FromChild::Pong if !self.open.lock().is_serial => Ok(()),
            FromChild::Pong => Err(LostReason::unexpected_answer()),
            FromChild::Ready(_) | FromChild::Failed(_) => {
                Err(LostReason::broken("it said twice whether it has started"))
            }
        }
    }

    async fn take_output(
        &self,
        id: u64,
        item: usize,
        part: Bytes,
        response: Option<ResponseHead>,
    ) -> Result<(), LostReason> {
        let (answers, is_serial) = {
            let open = self.open.lock();
            let batch = open.running(id).filter(|batch| item < batch.contexts.len());
            (batch.ok_or_else(LostReason::unexpected_answer)?.answers.clone(), open.is_serial)
        };
        let answer = Answer::Output { item, _unread: self.unread.take(part.len()).await, part, response };
        if is_serial {
            // A reader without credit pauses the child. Without readers the answer is not wanted.
            let _ = answers.send(answer).await;
            return Ok(());
        }
        match answers.try_send(answer) {
            // The outcome has the last place.
            Ok(()) if answers.capacity() == 0 => Err(LostReason::Broken(format!(
                "it sent more than {CREDIT} outputs of an item that were not asked for"
            ))),
            // The caller left.
            Ok(()) | Err(TrySendError::Closed(_)) => Ok(()),
            Err(TrySendError::Full(_)) => Err(LostReason::unexpected_answer()),
        }
    }

    async fn take_outcomes(&self, outcomes: OutcomesMessage, parts: Vec<Bytes>) -> Result<(), LostReason> {
        let OutcomesMessage { id, items: errors, responses, last } = outcomes;
        let (batch, is_over) = self.end_batch(id, &errors, parts.len(), last)?;
        self.log_traces(&batch, &errors);
        // A stream that is not read may have all places taken: its outcome waits for the reader, as its outputs do.
        let _ = batch.answers.send(Answer::Outcomes { errors, parts, responses }).await;
        drop(batch);
        if is_over { Err(LostReason::Leaving) } else { Ok(()) }
    }

    /// Logs the tracebacks of user code: its operator reads them here, whatever its callers are sent. The items of a
    /// batch that failed together have one. That of an inner call was logged by the stage that failed.
    fn log_traces(&self, batch: &OpenBatch, errors: &[Option<ItemError>]) {
        let mut last = None;
        for (error, context) in errors.iter().zip(&*batch.contexts) {
            let Some(trace) =
                error.as_ref().filter(|error| error.kind.is_none()).and_then(|error| error.trace.as_ref())
            else {
                continue;
            };
            if last.replace(trace) != Some(trace) {
                self.connection.child.log_trace("warn", trace, context.request_id());
            }
        }
    }

    /// Takes a batch that the child has answered, and begins with the next. Whether the child ends now.
    fn end_batch(
        &self,
        id: u64,
        errors: &[Option<ItemError>],
        parts: usize,
        last: bool,
    ) -> Result<(OpenBatch, bool), LostReason> {
        let mut open = self.open.lock();
        let batch = open.end(id)?;
        let (count, items) = (errors.len(), batch.contexts.len());
        if count != items {
            let items = if items == 1 { "1 item".to_owned() } else { format!("{items} items") };
            return Err(LostReason::Broken(format!("it answered {count} outcomes for {items}")));
        }
        let successes = errors.iter().filter(|error| error.is_none()).count();
        if self.is_streaming && parts > 0 {
            return Err(LostReason::broken("it answered with single outputs, and the stage streams"));
        }
        // The number of outcomes does not matter if no caller waits for them.
        if !self.is_streaming && parts != successes && !batch.answers.is_closed() {
            return Err(LostReason::broken("it answered another number of outputs than of successes"));
        }
        if last {
            open.is_leaving = true;
            if !open.is_serial {
                // Another replica takes its place; its open batches are finished.
                self.exit_port.report(&WorkerExit::new("the process has said that it ends"), true);
            }
        }
        if open.is_leaving {
            drop(open.take_waiting());
        } else {
            open.begin_next();
        }
        let is_over = open.is_leaving && open.is_empty();
        Ok((batch, is_over))
    }
}

#[cfg(test)]
mod tests;
