//! A child and its socket on the runtime: its start, and the frames that it sends until its end.

use std::io;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use callboard_core::edge::off_the_runtime;
use callboard_core::{Failure, Replica};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, SemaphorePermit};
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

/// Waits for the turn of a start, if it has one.
async fn turn(generation: u64) -> Option<SemaphorePermit<'static>> {
    // The semaphore is never closed.
    if generation > 0 { None } else { turns().acquire().await.ok() }
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
        let turn = turn(replica.generation()).await;
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
        let both = Self::of_child(child, config).map_err(|error| config.cannot_start(&error));
        let (mut connection, mut writer) = both?;
        let offers_memory = offers_memory(config);
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

    /// Both sides of the socket of a child.
    pub(crate) fn of_child(child: ChildProcess, config: &ProcessConfig) -> io::Result<(Self, FrameWriter)> {
        let socket = child.stream.get_ref().try_clone()?;
        socket.set_nonblocking(true)?;
        let socket = Arc::new(UnixStream::from_std(socket)?);
        let mut reader = FrameReader::new(config.max_batch_bytes);
        if offers_memory(config) {
            reader.set_memories(Incoming::new(ReadMode::Copies));
        }
        Ok((Self { child, socket: Arc::clone(&socket), reader }, FrameWriter::new(socket)))
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

fn offers_memory(config: &ProcessConfig) -> bool {
    config.shared_memory && shared_memory::IS_SUPPORTED
}

pub(crate) fn head(frame: &Frame) -> Result<FromChild, LostReason> {
    let decoded = off_the_runtime(frame.head.len(), || FromChild::decode(&frame.head));
    decoded.map_err(|error| LostReason::Broken(format!("it sent a message that is not known: {error}")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::config::ProcessMethod;
    use crate::message::encode;
    use crate::testing::{CapturedLog, WaitingNode};

    /// A child that sends these messages, and then waits.
    fn that_sends(messages: &[Json]) -> ProcessConfig {
        let frame = |message: &Json| {
            let head = encode(message).unwrap();
            let counts = [u32::try_from(head.len()).unwrap(), 0].map(u32::to_le_bytes).concat();
            [counts, head].concat()
        };
        let bytes = messages.iter().flat_map(frame).map(|byte| format!("\\{byte:03o}")).collect::<String>();
        ProcessConfig::new(["sh".to_owned(), "-c".to_owned(), format!("printf '{bytes}' >&0; exec sleep 1000")])
    }

    async fn start(config: &ProcessConfig, is_streaming: bool) -> Result<AgreedTerms, String> {
        let node = WaitingNode::start().await;
        let started = Connection::start(config, &Arc::new(ForkServer::new(config)), &node.replica, is_streaming).await;
        started.map(|(_, _, agreed)| agreed).map_err(|failure| failure.message().to_owned())
    }

    fn ready(more: &Json) -> Json {
        let mut message = json!({ "type": "ready", "protocol": 1, "worker": "a test" });
        message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        message
    }

    #[tokio::test]
    async fn a_child_gets_what_it_offers_and_its_stage_asks_for() {
        let no_memory = |agreed: AgreedTerms| (agreed.max_batches, agreed.ahead, agreed.shares_memory);
        for (concurrency, offer, expected) in [
            (None, json!({}), (1, 0, false)),
            (None, json!({ "max_batches": 9, "ahead": 9, "shared_memory": true }), (1, AHEAD, true)),
            (NonZeroU32::new(4), json!({ "max_batches": 9, "ahead": 9 }), (4, 0, false)),
            (NonZeroU32::new(4), json!({ "max_batches": 3 }), (3, 0, false)),
            (NonZeroU32::new(4), json!({ "max_batches": 0 }), (1, 0, false)),
        ] {
            let config = ProcessConfig { concurrency, ..that_sends(&[ready(&offer)]) };
            assert_eq!(start(&config, false).await.map(no_memory), Ok(expected), "{offer}");
        }
    }

    #[tokio::test]
    async fn only_the_first_life_of_a_replica_has_a_turn() {
        assert!(turn(0).await.is_some() && turn(1).await.is_none() && turn(2).await.is_none());
    }

    #[tokio::test]
    async fn memory_is_shared_if_both_sides_can() {
        let node = WaitingNode::start().await;
        for (of_stage, of_child) in [(true, true), (true, false), (false, true), (false, false)] {
            let child = that_sends(&[ready(&json!({ "shared_memory": of_child }))]);
            let config = ProcessConfig { shared_memory: of_stage, ..child };
            let server = Arc::new(ForkServer::new(&config));
            let (_, writer, _) = Connection::start(&config, &server, &node.replica, false).await.unwrap();
            let is_shared = of_stage && of_child && shared_memory::IS_SUPPORTED;
            assert_eq!(writer.memories.is_some(), is_shared, "{of_stage} {of_child}");
        }
    }

    #[tokio::test]
    async fn a_start_may_be_preceded_by_records_and_phases() {
        let (log, _capturing) = CapturedLog::start();
        let record = json!({ "type": "log", "level": "info", "message": "it loads", "request_id": "r" });
        let phase = json!({ "type": "starting", "phase": "loads" });
        assert!(start(&that_sends(&[phase, record, ready(&json!({}))]), false).await.is_ok());
        let text = log.text();
        assert!(text.contains("it loads") && !text.contains("request_id"), "{text}");
    }

    #[tokio::test]
    async fn a_child_that_cannot_be_used_does_not_start() {
        let methods = |config: ProcessConfig| {
            let method = ProcessMethod { name: "other".to_owned(), timeout: None, contract: Default::default() };
            ProcessConfig { methods: [("other".to_owned(), method)].into(), ..config }
        };
        let several = |config: ProcessConfig| ProcessConfig { concurrency: NonZeroU32::new(4), ..config };
        let (ready, outcomes) = (|| ready(&json!({})), json!({ "type": "outcomes", "id": 0, "items": [] }));
        let (answered, called) = ("it answered before it was ready", "it called before it was ready");
        let call = json!({ "type": "call", "id": 0, "batch": 0, "item": null, "route": "/" });
        for (config, is_streaming, reason) in [
            (that_sends(&[json!({ "type": "ready", "protocol": 2 })]), false, "it speaks version 2 of the protocol"),
            (methods(that_sends(&[ready()])), false, "it runs one method, and its stage has 2"),
            (several(that_sends(&[ready()])), true, "a concurrency of 4, and its worker streams one batch"),
            (that_sends(&[json!({ "type": "failed", "message": "no weights", "trace": "t" })]), false, ": no weights"),
            (that_sends(&[outcomes]), false, answered),
            (that_sends(&[json!({ "type": "pong" })]), false, answered),
            (that_sends(&[call]), false, called),
            (that_sends(&[json!({ "type": "cancel_call", "id": 0 })]), false, called),
            (that_sends(&[json!({ "type": "greeting" })]), false, "it sent a message that is not known"),
        ] {
            let error = start(&config, is_streaming).await.unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(start(&several(that_sends(&[ready()])), false).await.is_ok(), "it has one output");
        let runs = that_sends(&[self::ready(&json!({ "methods": true }))]);
        assert!(start(&methods(runs), false).await.is_ok());
    }

    #[tokio::test]
    async fn a_child_that_is_silent_is_late() {
        let config = ProcessConfig { start_timeout: Some(Duration::from_millis(150)), ..that_sends(&[]) };
        let error = start(&config, false).await.unwrap_err();
        assert!(error.contains("it was not ready within 150ms (start_timeout)"), "{error}");
    }

    #[tokio::test]
    async fn what_a_child_says_before_its_end_is_read() {
        let mut config = that_sends(&[json!({ "type": "pong" }), json!({ "type": "starting", "phase": "ends" })]);
        let last = config.command.last_mut().unwrap();
        *last = last.to_string_lossy().replace("exec sleep 1000", "exit 3").into();
        let node = WaitingNode::start().await;
        let child = ChildProcess::start(&config, &ForkServer::new(&config), &node.replica).unwrap();
        let (mut connection, _writer) = Connection::of_child(child, &config).unwrap();
        assert!(connection.child.has_ended_within(Duration::from_secs(10)));
        let mut heads = Vec::new();
        let lost = loop {
            match connection.next().await {
                Ok(Some(frame)) => heads.push(head(&frame).unwrap()),
                Ok(None) => {}
                Err(lost) => break lost,
            }
        };
        assert!(matches!(&heads[..], [FromChild::Pong, FromChild::Starting(_)]) && matches!(lost, LostReason::Ended));
    }

    /// What comes of a child that runs this, within some seconds. `is_sent`: it is there when the child is looked at.
    async fn next_of(script: &str, is_sent: bool) -> Result<Frame, LostReason> {
        let config = ProcessConfig::new(["sh", "-c", script]);
        let node = WaitingNode::start().await;
        let child = ChildProcess::start(&config, &ForkServer::new(&config), &node.replica).unwrap();
        let (mut connection, _writer) = Connection::of_child(child, &config).unwrap();
        if is_sent {
            connection.socket.readable().await.unwrap();
        }
        let next = async {
            loop {
                if let Some(frame) = connection.next().await? {
                    return Ok(frame);
                }
            }
        };
        timeout(Duration::from_secs(5), next).await.expect("it says something")
    }

    #[tokio::test]
    async fn a_frame_may_come_in_pieces() {
        let script =
            r"printf '\002\000\000\000' >&0; sleep 0.2; printf '\000\000\000\000h' >&0; sleep 0.2; printf 'i' >&0";
        assert_eq!(next_of(script, false).await.unwrap().head, "hi");
    }

    #[tokio::test]
    async fn a_frame_that_breaks_the_rules_is_the_fault_of_the_child_also_after_a_silence() {
        for (pause, is_sent) in [("", true), ("sleep 0.3; ", false)] {
            let garbage = format!(r"{pause}printf '\377\377\377\377\000\000\000\000' >&0; exec sleep 1000");
            let lost = next_of(&garbage, is_sent).await.unwrap_err();
            assert!(matches!(&lost, LostReason::Broken(why) if why.contains("4294967295 bytes")), "{lost:?}");
        }
    }

    /// The socket stays open in a process that has left the group.
    #[tokio::test]
    async fn a_child_has_ended_although_another_process_has_its_socket() {
        let lost = next_of("exec 3<&0; setsid sleep 8 & exit 3", false).await.unwrap_err();
        assert!(matches!(lost, LostReason::Ended), "{lost:?}");
    }

    #[tokio::test]
    async fn a_child_that_says_nothing_for_a_moment_is_asked_again() {
        let node = WaitingNode::start().await;
        let begin = Instant::now();
        assert!(matches!(node.silent_child().next().await, Ok(None)));
        assert!(begin.elapsed() >= LOOK_INTERVAL);
    }
}
