//! A worker whose code runs in a child process.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bytes::Bytes;
use callboard_codec::{DecodeLimits, Envelope, Format, Value};
use callboard_core::{Batch, Failure, Outputs, Replica, StreamWorker, Worker, WorkerExit};

use crate::child::ChildProcess;
use crate::config::ProcessConfig;
use crate::frame::{Frame, FrameReader, limits, write_frame};
use crate::message::{self, CallHead, FromChild, ItemError, PROTOCOL, Start, ToChild};

/// The status of an input that does not have the service's type.
const INVALID_STATUS: u16 = 422;

/// The node's side of one child.
pub(crate) struct ProcessWorker {
    child: ChildProcess,
    reader: FrameReader,
    limits: DecodeLimits,
    next_id: u64,
    timeout: Option<Duration>,
    stop_timeout: Duration,
    stage: String,
    replica: usize,
}

/// Why a child did not answer.
enum Lost {
    /// It has closed its socket.
    Ended,
    /// It must be killed.
    Broken(String),
    /// It says that it cannot start.
    NotStarted { message: String, trace: String },
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, InvalidData, TimedOut};
        match error.kind() {
            BrokenPipe | ConnectionReset => Self::Ended,
            InvalidData => Self::Broken(error.to_string()),
            TimedOut => Self::Broken("it did not read what it was sent within its timeout".to_owned()),
            _ => Self::Broken(format!("its socket failed: {error}")),
        }
    }
}

impl ProcessWorker {
    /// Starts a child and waits until it is ready.
    pub(crate) fn start(config: &ProcessConfig, replica: &Replica) -> Result<Self, Failure> {
        let mut worker = Self {
            child: ChildProcess::start(config, replica)?,
            reader: FrameReader::new(config.max_bytes),
            limits: limits(config.max_bytes),
            next_id: 0,
            timeout: replica.timeout(),
            stop_timeout: config.stop_timeout,
            stage: replica.stage().to_string(),
            replica: replica.index(),
        };
        let start = ToChild::Start(Start {
            protocol: PROTOCOL,
            stage: replica.stage().to_string(),
            replica: replica.index(),
            generation: replica.generation(),
            max_batch_size: replica.max_batch_size(),
            max_bytes: config.max_bytes,
            settings: replica.settings().clone(),
        });
        match worker.until_ready(&start, config.start_timeout) {
            Ok(()) => {
                worker.child.set_busy(false);
                Ok(worker)
            }
            Err(lost) => Err(worker.not_started(lost, config)),
        }
    }

    /// The error of a start: one line, of which the log has the details.
    fn not_started(&mut self, lost: Lost, config: &ProcessConfig) -> Failure {
        let reason = match lost {
            Lost::NotStarted { message, trace } => {
                let (stage, replica) = (&self.stage, self.replica);
                trace.lines().for_each(|line| tracing::error!(stage, replica, "{line}"));
                format!("could not start: {message}")
            }
            lost => {
                let exit = self.end(lost);
                let last = exit.trace().and_then(|lines| lines.lines().last());
                last.map_or_else(|| exit.reason().to_owned(), |last| format!("{}: {last}", exit.reason()))
            }
        };
        Failure::new(format!("`{}`: {reason}", config.shown()))
    }

    /// Ends the child and says how it ended.
    fn end(&mut self, lost: Lost) -> WorkerExit {
        if let Lost::Broken(cause) = lost {
            self.child.kill_for(cause);
        }
        self.child.exit()
    }

    fn until_ready(&mut self, start: &ToChild, timeout: Duration) -> Result<(), Lost> {
        let end = Instant::now() + timeout;
        self.send(start, &[], Some(end))?;
        let tick = |_: &mut Self| {
            let is_late = Instant::now() >= end;
            if is_late { Err(Lost::Broken(format!("it was not ready within {timeout:?}"))) } else { Ok(()) }
        };
        loop {
            let frame = self.receive(tick)?;
            match head(&frame)? {
                FromChild::Ready { protocol: PROTOCOL, worker } => {
                    let (stage, replica) = (&self.stage, self.replica);
                    tracing::debug!(stage, replica, worker, "the child is ready");
                    return Ok(());
                }
                FromChild::Ready { protocol, .. } => {
                    return Err(Lost::Broken(format!("it speaks version {protocol} of the protocol, not {PROTOCOL}")));
                }
                FromChild::Failed { message, trace } => {
                    return Err(Lost::NotStarted { message, trace: trace.unwrap_or_default() });
                }
                FromChild::Log { level, target, message, request_id } => {
                    self.log(&level, &target, &message, request_id.as_deref());
                }
                FromChild::Output { .. } | FromChild::Outcomes { .. } => {
                    return Err(Lost::Broken("it answered before it was ready".to_owned()));
                }
            }
        }
    }

    /// Runs a batch whose inputs can all be sent: sends it, passes outputs on, tells the child of callers that leave, and
    /// waits for the outcomes.
    fn exchange(
        &mut self,
        calls: Vec<CallHead>,
        inputs: &[Envelope],
        callers: &mut dyn Callers,
    ) -> Result<(Frame, Vec<Option<ItemError>>), Lost> {
        let running = self.next_id;
        self.next_id += 1;
        let end = self.timeout.and_then(|timeout| Some((Instant::now().checked_add(timeout)?, timeout)));
        let until = end.map(|(end, _)| end);
        self.send(&ToChild::Batch { id: running, items: calls }, inputs, until)?;
        let mut is_cancelled = vec![false; inputs.len()];
        loop {
            let frame = self.receive(|worker| {
                if let Some((end, timeout)) = end
                    && Instant::now() >= end
                {
                    return Err(Lost::Broken(format!("it did not answer within the stage's timeout of {timeout:?}")));
                }
                for (item, is_cancelled) in is_cancelled.iter_mut().enumerate() {
                    if !*is_cancelled && callers.has_left(item) {
                        *is_cancelled = true;
                        worker.send(&ToChild::Cancel { id: running, item }, &[], until)?;
                    }
                }
                Ok(())
            })?;
            match head(&frame)? {
                FromChild::Outcomes { id, items } if id == running => {
                    if items.len() == inputs.len() {
                        return Ok((frame, items));
                    }
                    let (got, expected) = (items.len(), inputs.len());
                    return Err(Lost::Broken(format!("it answered {got} outcomes for {expected} items")));
                }
                FromChild::Output { id, item } if id == running && item < inputs.len() && frame.parts.len() == 1 => {
                    callers.take_output(item, read_output(&frame.parts[0], &self.limits)?)?;
                }
                FromChild::Outcomes { .. } | FromChild::Output { .. } => {
                    return Err(Lost::Broken("it answered what it was not asked".to_owned()));
                }
                FromChild::Log { level, target, message, request_id } => {
                    self.log(&level, &target, &message, request_id.as_deref());
                }
                FromChild::Ready { .. } | FromChild::Failed { .. } => {
                    return Err(Lost::Broken("it said twice whether it has started".to_owned()));
                }
            }
        }
    }

    /// Runs a batch and marks the child as busy meanwhile. A child that is lost ends the replica.
    fn run<T>(&mut self, exchange: impl FnOnce(&mut Self) -> Result<T, Lost>) -> T {
        self.child.set_busy(true);
        match exchange(self) {
            Ok(outcomes) => {
                self.child.set_busy(false);
                outcomes
            }
            Err(lost) => self.end(lost).unwind(),
        }
    }

    fn stop(&mut self) {
        self.child.set_busy(true);
        if self.send(&ToChild::Stop, &[], Instant::now().checked_add(self.stop_timeout)).is_ok() {
            self.child.wait(self.stop_timeout);
        }
    }

    /// Sends a frame. A child that has not read it until `end` must be killed.
    fn send(&self, message: &ToChild, parts: &[Envelope], end: Option<Instant>) -> Result<(), Lost> {
        let head = message::encode(message).map_err(|error| Lost::Broken(error.to_string()))?;
        let parts = parts.iter().map(|part| (part.len(), part.parts()));
        Ok(write_frame(&mut PatientWriter { stream: self.child.stream.get_ref(), end }, &head, parts)?)
    }

    /// Waits for a frame. `tick` is called while there is none.
    fn receive(&mut self, mut tick: impl FnMut(&mut Self) -> Result<(), Lost>) -> Result<Frame, Lost> {
        loop {
            match self.reader.read(&mut self.child.stream) {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => return Err(Lost::Ended),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    tick(self)?
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn log(&self, level: &str, target: &str, message: &str, request_id: Option<&str>) {
        let (stage, replica) = (&self.stage, self.replica);
        match level {
            "error" => tracing::error!(stage, replica, logger = target, request_id, "{message}"),
            "warn" => tracing::warn!(stage, replica, logger = target, request_id, "{message}"),
            "debug" => tracing::debug!(stage, replica, logger = target, request_id, "{message}"),
            _ => tracing::info!(stage, replica, logger = target, request_id, "{message}"),
        }
    }
}

/// Writes to a child that may not read for now.
struct PatientWriter<'s> {
    stream: &'s UnixStream,
    end: Option<Instant>,
}

impl Write for PatientWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.stream.write(bytes) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if self.end.is_some_and(|end| Instant::now() >= end) {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The callers of a running batch.
trait Callers {
    /// Whether the caller of this item has left, or its deadline has passed.
    fn has_left(&mut self, item: usize) -> bool;

    /// Gives the caller of this item an output of a stream.
    fn take_output(&mut self, item: usize, output: Value) -> Result<(), Lost>;
}

/// Callers that wait for one output each.
struct SingleCallers<'b>(&'b Batch<Value>, &'b [usize]);

impl Callers for SingleCallers<'_> {
    fn has_left(&mut self, item: usize) -> bool {
        !self.0.context(self.1[item]).is_wanted(callboard_core::Instant::now())
    }

    fn take_output(&mut self, _: usize, _: Value) -> Result<(), Lost> {
        Err(Lost::Broken("it answered with a stream, and the stage gives one output".to_owned()))
    }
}

impl Worker for ProcessWorker {
    type In = Value;
    type Out = Value;

    fn call(&mut self, batch: Batch<Value>) -> Vec<Result<Value, Failure>> {
        let Sendable { indices, calls, inputs, failures } = Sendable::new(&batch);
        let (mut outcomes, mut answers) = (failures, Vec::new().into_iter());
        if !inputs.is_empty() {
            let answered = self.run(|worker| {
                let (frame, errors) = worker.exchange(calls, &inputs, &mut SingleCallers(&batch, &indices))?;
                outputs(&frame, errors, &worker.limits)
            });
            answers = answered.into_iter();
        }
        outcomes
            .iter_mut()
            .map(|failure| failure.take().map_or_else(|| answers.next().expect("one for each"), Err))
            .collect()
    }

    fn cleanup(&mut self) {
        self.stop();
    }
}

/// A worker that answers each item with a stream.
pub(crate) struct StreamingProcessWorker(pub(crate) ProcessWorker);

/// Callers that read streams.
struct StreamingCallers<'o> {
    outputs: &'o mut Outputs<Value>,
    indices: &'o [usize],
}

impl Callers for StreamingCallers<'_> {
    fn has_left(&mut self, item: usize) -> bool {
        !self.outputs.is_wanted(self.indices[item])
    }

    fn take_output(&mut self, item: usize, output: Value) -> Result<(), Lost> {
        // A caller that has left is noticed at the next tick.
        let _ = self.outputs.emit(self.indices[item], output);
        Ok(())
    }
}

impl StreamWorker for StreamingProcessWorker {
    type In = Value;
    type Out = Value;

    fn call(&mut self, batch: Batch<Value>, outputs: &mut Outputs<Value>) {
        let Sendable { indices, calls, inputs, failures } = Sendable::new(&batch);
        for (index, failure) in failures.into_iter().enumerate() {
            failure.into_iter().for_each(|failure| outputs.fail(index, failure));
        }
        if inputs.is_empty() {
            return;
        }
        let mut callers = StreamingCallers { outputs, indices: &indices };
        let errors = self.0.run(|worker| match worker.exchange(calls, &inputs, &mut callers)? {
            (frame, errors) if frame.parts.is_empty() => Ok(errors),
            _ => Err(Lost::Broken("it answered with single outputs, and the stage gives streams".to_owned())),
        });
        for (index, error) in indices.iter().zip(errors) {
            error.into_iter().for_each(|error| outputs.fail(*index, failure(error)));
        }
    }

    fn cleanup(&mut self) {
        self.0.stop();
    }
}

/// The items of a batch that can be sent, and the failures of the others.
struct Sendable {
    indices: Vec<usize>,
    calls: Vec<CallHead>,
    inputs: Vec<Envelope>,
    /// For each item of the batch.
    failures: Vec<Option<Failure>>,
}

impl Sendable {
    fn new(batch: &Batch<Value>) -> Self {
        let (mut indices, mut calls, mut inputs) = (Vec::new(), Vec::new(), Vec::new());
        let mut failures: Vec<Option<Failure>> = Vec::with_capacity(batch.len());
        for (index, item) in batch.iter().enumerate() {
            match item.to_envelope() {
                Ok(input) => {
                    indices.push(index);
                    calls.push(call_head(batch, index));
                    inputs.push(input);
                    failures.push(None);
                }
                Err(error) => failures.push(Some(error.into())),
            }
        }
        Self { indices, calls, inputs, failures }
    }
}

/// The outcomes of single outputs: an error, or the next part.
fn outputs(
    frame: &Frame,
    errors: Vec<Option<ItemError>>,
    limits: &DecodeLimits,
) -> Result<Vec<Result<Value, Failure>>, Lost> {
    if errors.iter().filter(|error| error.is_none()).count() != frame.parts.len() {
        return Err(Lost::Broken("it answered another number of outputs than of successes".to_owned()));
    }
    let mut parts = frame.parts.iter();
    let outcome = |error: Option<ItemError>| match error {
        Some(error) => Ok(Err(failure(error))),
        None => read_output(parts.next().expect("as many as successes"), limits).map(Ok),
    };
    errors.into_iter().map(outcome).collect()
}

fn head(frame: &Frame) -> Result<FromChild, Lost> {
    message::decode(&frame.head).map_err(|error| Lost::Broken(format!("it sent a message that is not known: {error}")))
}

fn call_head(batch: &Batch<Value>, index: usize) -> CallHead {
    let context = batch.context(index);
    let remaining = context.deadline().remaining(callboard_core::Instant::now());
    CallHead {
        remaining_ms: u64::try_from(remaining.as_millis()).ok(),
        request_id: context.request_id().map(str::to_owned),
        traceparent: context.traceparent(),
        caller: context.caller().map(str::to_owned),
        route: context.route().map(|route| route.to_string()),
    }
}

fn read_output(part: &Bytes, limits: &DecodeLimits) -> Result<Value, Lost> {
    let output = Value::decode(Format::Envelope, part, limits);
    output.map_err(|error| Lost::Broken(format!("its output is not an envelope: {error}")))
}

fn failure(error: ItemError) -> Failure {
    let ItemError { message, invalid, status, error_type, details, retry_after_ms, trace } = error;
    let mut failure =
        if invalid { Failure::invalid_input(message).with_status(INVALID_STATUS) } else { Failure::new(message) };
    if let Some(status) = status {
        failure = failure.with_status(status);
    }
    if let Some(error_type) = error_type {
        failure = failure.with_type(error_type);
    }
    if let Some(details) = details {
        failure = failure.with_details(details);
    }
    if let Some(after) = retry_after_ms {
        failure = failure.with_retry_after(Duration::from_millis(after));
    }
    match trace {
        Some(trace) => failure.with_trace(trace),
        None => failure,
    }
}
