//! A worker whose code runs in a child process.

use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use callboard_codec::{DecodeLimits, Envelope, Format, Value};
use callboard_core::{Batch, Failure, Replica, Worker, WorkerExit};

use crate::child::ChildProcess;
use crate::config::ProcessConfig;
use crate::frame::{Frame, FrameReader, write_frame};
use crate::message::{self, CallHead, FromChild, ItemError, PROTOCOL, Start, ToChild};

/// The node's side of one child.
pub(crate) struct ProcessWorker {
    child: ChildProcess,
    reader: FrameReader,
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
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, InvalidData};
        match error.kind() {
            BrokenPipe | ConnectionReset => Self::Ended,
            InvalidData => Self::Broken(error.to_string()),
            _ => Self::Broken(format!("its socket failed: {error}")),
        }
    }
}

type FailureOrOutput = Result<Value, Failure>;

impl ProcessWorker {
    /// Starts a child and waits until it is ready.
    pub(crate) fn start(config: &ProcessConfig, replica: &Replica) -> Result<Self, Failure> {
        let mut worker = Self {
            child: ChildProcess::start(config, replica)?,
            reader: FrameReader::new(config.max_bytes),
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
        match worker.send(&start, &[]).and_then(|()| worker.until_ready(config.start_timeout)) {
            Ok(()) => {
                worker.child.set_busy(false);
                Ok(worker)
            }
            Err(lost) => Err(worker.not_started(lost, config)),
        }
    }

    fn not_started(&mut self, lost: Lost, config: &ProcessConfig) -> Failure {
        let exit = self.end(lost);
        let failure = Failure::new(format!("`{}`: {exit}", config.shown()));
        match exit.trace() {
            // The start's error is one text: its caller is a person.
            Some(trace) => Failure::new(format!("{failure}\n{trace}")).with_trace(trace),
            None => failure,
        }
    }

    /// Ends the child and says how it ended.
    fn end(&mut self, lost: Lost) -> WorkerExit {
        if let Lost::Broken(cause) = lost {
            self.child.kill_for(cause);
        }
        self.child.exit()
    }

    fn until_ready(&mut self, timeout: Duration) -> Result<(), Lost> {
        let end = Instant::now() + timeout;
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
                    let trace = trace.map(|trace| format!("\n{trace}")).unwrap_or_default();
                    return Err(Lost::Broken(format!("it could not start: {message}{trace}")));
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

    fn run(&mut self, batch: &Batch<Value>) -> Result<Vec<FailureOrOutput>, Lost> {
        // An input that cannot be encoded fails alone; the child gets the others.
        let inputs: Vec<Result<Envelope, Failure>> =
            batch.iter().map(|item| item.to_envelope().map_err(Failure::from)).collect();
        let sent: Vec<usize> = (0..batch.len()).filter(|index| inputs[*index].is_ok()).collect();
        let answers = if sent.is_empty() { Vec::new() } else { self.exchange(batch, &sent, &inputs)? };
        let mut answers = answers.into_iter();
        let missing = || Err(Failure::new("the worker did not answer"));
        Ok(inputs.into_iter().map(|input| input.map_or_else(Err, |_| answers.next().unwrap_or_else(missing))).collect())
    }

    /// Sends the items with these indices, and waits for their outcomes.
    fn exchange(
        &mut self,
        batch: &Batch<Value>,
        sent: &[usize],
        inputs: &[Result<Envelope, Failure>],
    ) -> Result<Vec<FailureOrOutput>, Lost> {
        let id = self.next_id;
        self.next_id += 1;
        let items = sent.iter().map(|index| call_head(batch, *index)).collect();
        let parts: Vec<&Envelope> = inputs.iter().flatten().collect();
        self.send(&ToChild::Batch { id, items }, &parts)?;
        let end = self.timeout.map(|timeout| (Instant::now() + timeout, timeout));
        let mut is_cancelled = vec![false; sent.len()];
        let tick = |worker: &mut Self| {
            if let Some((end, timeout)) = end
                && Instant::now() >= end
            {
                return Err(Lost::Broken(format!("it did not answer within the stage's timeout of {timeout:?}")));
            }
            for (item, index) in sent.iter().enumerate() {
                if !is_cancelled[item] && batch.context(*index).is_cancelled() {
                    is_cancelled[item] = true;
                    worker.send(&ToChild::Cancel { id, item }, &[])?;
                }
            }
            Ok(())
        };
        let (frame, errors) = self.outcomes(id, tick)?;
        if errors.len() != sent.len() {
            let (got, expected) = (errors.len(), sent.len());
            return Err(Lost::Broken(format!("it answered {got} outcomes for {expected} items")));
        }
        if errors.iter().filter(|error| error.is_none()).count() != frame.parts.len() {
            return Err(Lost::Broken("it answered another number of outputs than of successes".to_owned()));
        }
        let mut parts = frame.parts.iter();
        let outcome = |error: Option<ItemError>| match error {
            Some(error) => Ok(Err(failure(error))),
            None => parts.next().map_or_else(|| Err("an output is missing".to_owned()), read_output),
        };
        errors.into_iter().map(outcome).collect::<Result<_, _>>().map_err(Lost::Broken)
    }

    /// Waits for the outcomes of the running batch.
    fn outcomes(
        &mut self,
        running: u64,
        mut tick: impl FnMut(&mut Self) -> Result<(), Lost>,
    ) -> Result<(Frame, Vec<Option<ItemError>>), Lost> {
        loop {
            let frame = self.receive(&mut tick)?;
            match head(&frame)? {
                FromChild::Outcomes { id, items } if id == running => return Ok((frame, items)),
                FromChild::Outcomes { id, .. } | FromChild::Output { id, .. } => {
                    return Err(Lost::Broken(format!("it answered batch {id} while batch {running} ran")));
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

    fn send(&mut self, message: &ToChild, parts: &[&Envelope]) -> Result<(), Lost> {
        let head = message::encode(message).map_err(|error| Lost::Broken(error.to_string()))?;
        let parts = parts.iter().map(|part| (part.len(), part.parts()));
        Ok(write_frame(self.child.stream.get_mut(), &head, parts)?)
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

impl Worker for ProcessWorker {
    type In = Value;
    type Out = Value;

    fn call(&mut self, batch: Batch<Value>) -> Vec<FailureOrOutput> {
        self.child.set_busy(true);
        match self.run(&batch) {
            Ok(outcomes) => {
                self.child.set_busy(false);
                outcomes
            }
            Err(lost) => self.end(lost).unwind(),
        }
    }

    fn cleanup(&mut self) {
        self.child.set_busy(true);
        if self.send(&ToChild::Stop, &[]).is_ok() {
            self.child.wait(self.stop_timeout);
        }
    }
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

fn read_output(part: &Bytes) -> Result<FailureOrOutput, String> {
    let output = Value::decode(Format::Envelope, part, &DecodeLimits::default());
    output.map(Ok).map_err(|error| format!("its output is not an envelope: {error}"))
}

fn failure(error: ItemError) -> Failure {
    let ItemError { message, invalid, status, error_type, details, retry_after_ms, trace } = error;
    let mut failure = if invalid { Failure::invalid_input(message) } else { Failure::new(message) };
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
