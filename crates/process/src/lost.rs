//! The reasons why a child no longer answers, and how its replica reports the end.

use std::io;
use std::num::NonZeroU32;
use std::time::Duration;

use callboard_core::{Failure, WorkerExit};

use crate::child::ChildProcess;
use crate::config::ProcessConfig;
use crate::message::MAX_CREDIT;
use crate::program::STAGE_VARIABLE;

/// The time that a child has to end once it has announced that, and closed its socket or used up its time.
const LEAVE_GRACE: Duration = Duration::from_millis(500);

/// Why a child did not answer.
#[derive(Debug)]
pub(crate) enum LostReason {
    /// It ended, or closed its socket.
    Ended,
    /// It must be killed.
    Broken(String),
    /// It reported that it cannot start.
    NotStarted { message: String, trace: String },
    /// It announced its end.
    Leaving,
}

/// How a child ended.
#[derive(Clone, Debug)]
pub(crate) struct ChildEnd {
    pub(crate) exit: WorkerExit,
    /// It announced its end: batches that it had not begun did not run.
    pub(crate) is_announced: bool,
}

impl LostReason {
    pub(crate) fn broken(why: impl Into<String>) -> Self {
        Self::Broken(why.into())
    }

    pub(crate) fn unexpected_answer() -> Self {
        Self::broken("it answered what it was not asked")
    }

    pub(crate) fn does_not_read() -> Self {
        Self::broken("it did not read what it was sent")
    }

    pub(crate) fn excess_credit() -> Self {
        Self::Broken(format!(
            "it asked for more than {MAX_CREDIT} outputs of a call or for none, or has read more of it than was sent"
        ))
    }

    /// A child that streams several items at once waits for credit, which a child with a single batch does not know.
    pub(crate) fn knows_no_credit(calls: NonZeroU32) -> Self {
        let message = format!(
            "the stage has a concurrency of {calls}, and its worker streams one batch at a time (it says no \
             max_batches)"
        );
        Self::NotStarted { message, trace: String::new() }
    }

    /// Ends the child, waits for that briefly, and returns how it ended.
    pub(crate) fn end(self, child: &mut ChildProcess) -> WorkerExit {
        match self {
            Self::Broken(cause) => child.kill_for(cause),
            Self::Leaving if child.has_ended_within(LEAVE_GRACE) => {
                child.exit();
                return WorkerExit::new("the process has ended, as it said");
            }
            Self::Leaving => child.kill_for("it has not ended, as it said"),
            Self::Ended | Self::NotStarted { .. } => {}
        }
        child.exit()
    }

    /// The error of a start: one line, of which the log has the details.
    pub(crate) fn not_started(self, child: &mut ChildProcess, config: &ProcessConfig) -> Failure {
        let reason = match self {
            Self::NotStarted { message, trace } => {
                if !trace.is_empty() {
                    child.log_trace("error", &trace, None);
                }
                message
            }
            lost => {
                let exit = lost.end(child);
                match (config.env.get(STAGE_VARIABLE), child.last_lines()) {
                    (Some(stage), last) if !child.has_spoken => {
                        let why = exit.reason();
                        format!("{why}; it has not come to `isolate` of stage `{stage}`; {}", last.all())
                    }
                    // It is in the reason.
                    (_, last) if last.said().is_some() => exit.reason().to_owned(),
                    (_, last) => last
                        .text()
                        .map_or_else(|| exit.reason().to_owned(), |last| format!("{}: {last}", exit.reason())),
                }
            }
        };
        config.not_started(&reason)
    }
}

impl From<io::Error> for LostReason {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, InvalidData};
        match error.kind() {
            BrokenPipe | ConnectionReset => Self::Ended,
            InvalidData => Self::Broken(error.to_string()),
            _ => Self::Broken(format!("its socket failed: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork_server::ForkServer;
    use crate::memory::MemoryLimit;
    use crate::testing::{CapturedLog, WaitingNode};

    /// A child that runs this, whose end is waited for unless it stays.
    fn run(node: &WaitingNode, script: &str) -> (ChildProcess, ProcessConfig) {
        let config = ProcessConfig { memory_limit: MemoryLimit::Unlimited, ..ProcessConfig::new(["sh", "-c", script]) };
        let child = ChildProcess::start(&config, &ForkServer::new(&config), &node.replica).unwrap();
        assert!(script.contains("sleep") || child.has_ended_within(Duration::from_secs(10)));
        (child, config)
    }

    #[tokio::test]
    async fn a_child_ends_as_it_said_or_is_killed_for_the_reason() {
        let node = WaitingNode::start().await;
        let end = |lost: LostReason, script: &str| lost.end(&mut run(&node, script).0).reason().to_owned();
        assert_eq!(end(LostReason::Leaving, "exit 3"), "the process has ended, as it said");
        let stays = "exec sleep 1000";
        assert_eq!(end(LostReason::Leaving, stays), "the process was killed: it has not ended, as it said");
        assert_eq!(end(LostReason::does_not_read(), stays), "the process was killed: it did not read what it was sent");
        assert_eq!(end(LostReason::Ended, "exit 3"), "the process exited with code 3");
    }

    #[tokio::test]
    async fn a_failed_start_is_said_in_one_line() {
        let (log, _capturing) = CapturedLog::start();
        let node = WaitingNode::start().await;
        let not_started = |lost: LostReason, script: &str, of_stage: bool, has_spoken: bool| {
            let (mut child, mut config) = run(&node, script);
            config.label = Some("worker".to_owned());
            if of_stage {
                config.env.insert(STAGE_VARIABLE.to_owned(), "s".to_owned());
            }
            child.has_spoken = has_spoken;
            lost.not_started(&mut child, &config).message().to_owned()
        };
        let said = |trace: &str| LostReason::NotStarted { message: "no weights".to_owned(), trace: trace.to_owned() };
        assert_eq!(not_started(said(""), "exit 3", false, true), "`worker`: no weights");
        assert!(!log.text().contains("callboard_process"), "{}", log.text());
        assert_eq!(not_started(said("a traceback"), "exit 3", false, true), "`worker`: no weights");
        assert!(log.text().contains("ERROR callboard_process::output: a traceback"), "{}", log.text());
        let ended = |script: &str, of_stage: bool, has_spoken: bool| {
            not_started(LostReason::Ended, script, of_stage, has_spoken)
        };
        let with_code = "`worker`: the process exited with code 3";
        assert_eq!(ended("exit 3", false, false), with_code);
        assert_eq!(ended("echo no licence; exit 3", false, false), format!("{with_code}: no licence"));
        let words = "echo callboard.worker: no licence; exit 3";
        assert_eq!(ended(words, false, false), format!("{with_code}: no licence"));
        let isolated = "it has not come to `isolate` of stage `s`; its last lines: no licence";
        assert_eq!(ended("echo no licence; exit 3", true, false), format!("{with_code}; {isolated}"));
        assert_eq!(ended("echo no licence; exit 3", true, true), format!("{with_code}: no licence"));
    }

    #[test]
    fn the_end_of_a_socket_is_that_of_the_child_and_other_errors_are_its_fault() {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, InvalidData, TimedOut};
        let reason = |kind: io::ErrorKind| match LostReason::from(io::Error::new(kind, "why")) {
            LostReason::Ended => "ended".to_owned(),
            LostReason::Broken(reason) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!([reason(BrokenPipe), reason(ConnectionReset)], ["ended", "ended"]);
        assert_eq!([reason(InvalidData), reason(TimedOut)], ["why", "its socket failed: why"]);
    }
}
