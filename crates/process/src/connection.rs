//! A child and its socket on the runtime: its start, and the frames that it sends until its end.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use callboard_core::edge::off_the_runtime;
use callboard_core::{Failure, Replica};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::child::ChildProcess;
use crate::config::ProcessConfig;
use crate::fork_server::ForkServer;
use crate::frame::{Frame, FrameReader};
use crate::lost::LostReason;
use crate::message::{
    AHEAD, CREDIT, FailedMessage, FromChild, PROTOCOL, ReadyMessage, Start, StartingMessage, ToChild,
};
use crate::shared_memory::{self, Incoming, Outgoing, ReadMode};
use crate::socket::is_not_ready;
use crate::start_watch::{StartWatch, processor_time};
use crate::writer::{FrameWriter, OutgoingFrame};

/// How often the reader looks for the end of a child whose socket stays open in another process, and at its callers.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A start that takes longer lets the next one begin: a start that hangs must not hold up the replicas of other stages.
const LONGEST_TURN: Duration = Duration::from_secs(10);

/// The turns of first starts.
fn turns() -> &'static Semaphore {
    static TURNS: OnceLock<Semaphore> = OnceLock::new();
    TURNS.get_or_init(|| Semaphore::new(std::thread::available_parallelism().map_or(1, NonZeroUsize::get)))
}

/// The reading side of a child that is ready.
pub(crate) struct Connection {
    pub(crate) child: ChildProcess,
    socket: Arc<UnixStream>,
    reader: FrameReader,
}

/// The terms that a child and its node agreed upon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AgreedTerms {
    /// The batches that it works on at once.
    pub(crate) max_batches: usize,
    /// The batches beside them that it takes before their turn.
    pub(crate) ahead: usize,
    pub(crate) shares_memory: bool,
}

impl Connection {
    /// Starts a child, and waits until it is ready. The first lives of replicas have turns: as many start at a time as
    /// there are processors, because more would all be late together. A restart waits for no other stage.
    pub(crate) async fn start(
        config: &ProcessConfig,
        fork_server: &Arc<ForkServer>,
        replica: &Replica,
        is_streaming: bool,
    ) -> Result<(Self, FrameWriter, AgreedTerms), Failure> {
        let start = Self::start_now(config, fork_server, replica, is_streaming);
        if replica.generation() > 0 {
            return start.await;
        }
        let turn = turns().acquire().await;
        tokio::pin!(start);
        match timeout(LONGEST_TURN, &mut start).await {
            Ok(started) => started,
            Err(_) => {
                drop(turn);
                start.await
            }
        }
    }

    async fn start_now(
        config: &ProcessConfig,
        fork_server: &Arc<ForkServer>,
        replica: &Replica,
        is_streaming: bool,
    ) -> Result<(Self, FrameWriter, AgreedTerms), Failure> {
        let (own, fork_server, of_replica) = (config.clone(), Arc::clone(fork_server), replica.clone());
        let child = spawn_blocking(move || ChildProcess::start(&own, &fork_server, &of_replica));
        let child = child.await.map_err(|error| config.not_started(&error.to_string()))??;
        let socket = child.stream.get_ref().try_clone().and_then(|socket| {
            socket.set_nonblocking(true)?;
            UnixStream::from_std(socket)
        });
        let socket = Arc::new(socket.map_err(|error| config.cannot_start(&error))?);
        let mut reader = FrameReader::new(config.max_batch_bytes);
        let offers_memory = config.shared_memory && shared_memory::IS_SUPPORTED;
        if offers_memory {
            reader.set_memories(Incoming::new(ReadMode::Copies));
        }
        let mut connection = Self { child, socket: Arc::clone(&socket), reader };
        let mut writer = FrameWriter::new(socket);
        let calls = config.concurrency();
        let start = Start {
            max_batches: calls.map(NonZeroU32::get),
            credit: calls.map(|_| CREDIT),
            ahead: calls.is_none().then_some(AHEAD),
            shared_memory: offers_memory,
            ..Start::new(config, replica)
        };
        let watch = StartWatch::new(config.start_timeout, Instant::now());
        let ready = connection.until_ready(&mut writer, start, watch, replica).await.and_then(|agreed| match calls {
            Some(calls) if is_streaming && agreed.max_batches == 1 => Err(LostReason::knows_no_credit(calls)),
            _ => Ok(agreed),
        });
        match ready {
            Ok(agreed) => {
                writer.memories = (offers_memory && agreed.shares_memory).then(Outgoing::default);
                Ok((connection, writer, agreed))
            }
            Err(lost) => {
                let own = config.clone();
                let ended = spawn_blocking(move || lost.not_started(&mut connection.child, &own));
                Err(ended.await.unwrap_or_else(|error| config.not_started(&error.to_string())))
            }
        }
    }

    async fn until_ready(
        &mut self,
        writer: &mut FrameWriter,
        start: Start,
        mut watch: StartWatch,
        replica: &Replica,
    ) -> Result<AgreedTerms, LostReason> {
        let methods = start.methods.len();
        let (wanted, most_ahead) = (start.max_batches.unwrap_or(1) as usize, start.ahead.unwrap_or_default());
        writer.write(&OutgoingFrame::new(&ToChild::Start(start), Vec::new())).await?;
        loop {
            let frame = self.next().await?;
            let looked = watch.look(Instant::now(), || processor_time(self.child.pid()));
            if let Some(waiting) = looked.map_err(LostReason::Broken)? {
                self.child.log_waiting(waiting);
            }
            let Some(frame) = frame else {
                self.child.why_to_end(false).map_or(Ok(()), |excess| Err(LostReason::Broken(excess)))?;
                continue;
            };
            self.child.has_spoken = true;
            match head(&frame)? {
                FromChild::Ready(ready) if ready.protocol == PROTOCOL && methods > 0 && !ready.methods => {
                    return Err(LostReason::Broken(format!(
                        "it runs one method, and its stage has {}: remove `replicas_of`, or use a worker that runs \
                         several",
                        methods + 1
                    )));
                }
                FromChild::Ready(ready) if ready.protocol == PROTOCOL => {
                    self.child.log_note("debug", format!("the child is ready: {}", ready.worker));
                    if let Some(note) = &ready.note {
                        replica.leave_note(note);
                    }
                    let (max_batches, ahead) = (ready.max_batches.clamp(1, wanted), ready.ahead.min(most_ahead));
                    return Ok(AgreedTerms { max_batches, ahead, shares_memory: ready.shared_memory });
                }
                FromChild::Ready(ReadyMessage { protocol, .. }) => {
                    return Err(LostReason::Broken(format!(
                        "it speaks version {protocol} of the protocol, not {PROTOCOL}"
                    )));
                }
                FromChild::Failed(FailedMessage { message, trace }) => {
                    return Err(LostReason::NotStarted { message, trace: trace.unwrap_or_default() });
                }
                FromChild::Starting(StartingMessage { phase }) => watch.says(&phase, Instant::now()),
                // There is no call yet.
                FromChild::Log(record) => self.child.log(record, |_| false),
                FromChild::Output(_) | FromChild::Outcomes(_) | FromChild::Pong | FromChild::Metrics(_) => {
                    return Err(LostReason::broken("it answered before it was ready"));
                }
                FromChild::Call(_) | FromChild::CancelCall(_) | FromChild::CallCredit(_) => {
                    return Err(LostReason::broken("it called before it was ready"));
                }
            }
        }
    }

    /// The next frame. `None`: there was none for a moment.
    pub(crate) async fn next(&mut self) -> Result<Option<Frame>, LostReason> {
        // Looked at before the socket: what a child has sent before its end is read.
        let has_ended = self.child.has_ended();
        let received = if has_ended {
            self.reader.read(&mut self.child.stream)
        } else {
            // The runtime learns that the socket is empty, so that the wait below is one. The reader may hold a whole
            // frame: the socket counts as readable until a read finds it empty, so that frame is returned here.
            self.socket.try_io(Interest::READABLE, || self.reader.read(&mut self.child.stream))
        };
        match received {
            Err(error) if is_not_ready(&error) && has_ended => return Err(LostReason::Ended),
            Err(error) if is_not_ready(&error) => {}
            received => return received?.map(Some).ok_or(LostReason::Ended),
        }
        let Ok(ready) = timeout(LOOK_INTERVAL, self.socket.readable()).await else { return Ok(None) };
        ready?;
        match self.socket.try_io(Interest::READABLE, || self.reader.read(&mut self.child.stream)) {
            Err(error) if is_not_ready(&error) => Ok(None),
            received => received?.map(Some).ok_or(LostReason::Ended),
        }
    }
}

pub(crate) fn head(frame: &Frame) -> Result<FromChild, LostReason> {
    let decoded = off_the_runtime(frame.head.len(), || FromChild::decode(&frame.head));
    decoded.map_err(|error| LostReason::Broken(format!("it sent a message that is not known: {error}")))
}
