//! Runs a command to its end; its error contains its output.
//!
//! A busy machine makes a command slow, and what is slow is not wrong, so the limit is a silence: a command that prints
//! nothing for so long is stuck, and is killed. A command with more than minutes of work prints as it goes.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::tool::REQUIRE;

/// A command that has printed nothing for this time is stuck. Ten times the longest silence on a quiet machine, a
/// compilation by Go.
const STUCK_AFTER: Duration = Duration::from_secs(600);

/// The output of a command that is kept, of either pipe; then the pipe is closed. It ends a command that prints for
/// ever.
const MAX_OUTPUT_BYTES: u64 = 16 << 20;

/// Runs a command; returns its stdout. What it starts is not told which tools the tests need: a node refuses variables
/// that it does not know.
///
/// # Errors
///
/// If it did not start, failed, or was killed because it was stuck; with all its output.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    run_unless_silent(command, STUCK_AFTER)
}

fn run_unless_silent(command: &mut Command, silence: Duration) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let command = command.env_remove(REQUIRE);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = KillOnDrop(child.map_err(|error| format!("{program}: {error}"))?);
    let (printed, progress) = mpsc::sync_channel(1);
    let stdout = collect(child.0.stdout.take().expect("a pipe"), printed.clone());
    let stderr = collect(child.0.stderr.take().expect("a pipe"), printed);

    // Both pipes end when the process does.
    let is_stuck = loop {
        match progress.recv_timeout(silence) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => break true,
        }
    };
    if is_stuck {
        child.kill();
    }
    let status = child.0.wait().map_err(|error| format!("{program}: {error}"))?;
    let (stdout, stderr) = (text(stdout), text(stderr));
    match (is_stuck, status.success()) {
        (false, true) => Ok(stdout),
        (false, false) => Err(format!("{program} ended with {status}:\n{stdout}\n{stderr}")),
        (true, _) => Err(format!("{program} printed nothing for {} s:\n{stdout}\n{stderr}", silence.as_secs())),
    }
}

/// A child that is killed with its test.
struct KillOnDrop(Child);

impl KillOnDrop {
    fn kill(&mut self) {
        // An error means that it has ended already.
        let _ = self.0.kill();
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.kill();
        let _ = self.0.wait();
    }
}

type OutputThread = thread::JoinHandle<Vec<u8>>;

/// Keeps what the pipe gives, and tells of each piece.
fn collect(pipe: impl Read + Send + 'static, printed: mpsc::SyncSender<()>) -> OutputThread {
    thread::spawn(move || {
        let (mut pipe, mut bytes, mut piece) = (pipe.take(MAX_OUTPUT_BYTES), Vec::new(), [0; 4096]);
        // Output before an error still counts.
        while let Ok(length @ 1..) = pipe.read(&mut piece) {
            bytes.extend_from_slice(&piece[..length]);
            // If it is full, the news of an earlier piece is still there.
            let _ = printed.try_send(());
        }
        bytes
    })
}

fn text(thread: OutputThread) -> String {
    String::from_utf8_lossy(&thread.join().expect("a reader does not panic")).trim_end().to_owned()
}

#[test]
fn a_process_that_prints_nothing_is_killed_and_its_output_is_reported() {
    let mut endless = Command::new("sh");
    endless.args(["-c", "echo started; exec sleep 600"]);
    let error = run_unless_silent(&mut endless, Duration::from_secs(3)).unwrap_err();
    assert!(error.contains("printed nothing for 3 s") && error.contains("started"), "{error}");
    let mut failing = Command::new("sh");
    let error = run(failing.args(["-c", "echo reason >&2; exit 3"])).unwrap_err();
    assert!(error.contains("exit status: 3") && error.contains("reason"), "{error}");
}

/// Twice as long as the longest silence, by as many steps as leave each far below it.
#[test]
fn a_slow_process_goes_on_while_it_prints() {
    let mut slow = Command::new("sh");
    slow.args(["-c", "for n in $(seq 24); do echo $n; sleep 0.5; done"]);
    let printed = run_unless_silent(&mut slow, Duration::from_secs(6)).unwrap();
    assert_eq!(printed.lines().count(), 24, "{printed}");
}
