//! Runs a command to its end within a limit; its error contains its output.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::tool::REQUIRE;

/// Runs a command; returns its stdout. What it starts is not told which tools the tests need: a node refuses variables
/// that it does not know.
///
/// # Errors
///
/// If it did not start, failed, or was killed at its limit; with all its output.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let command = command.env_remove(REQUIRE);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = KillOnDrop(child.map_err(|error| format!("{program}: {error}"))?);
    let (send_end, receive_end) = mpsc::sync_channel(2);
    let stdout = collect(child.0.stdout.take().expect("a pipe"), send_end.clone());
    let stderr = collect(child.0.stderr.take().expect("a pipe"), send_end);

    // Both pipes end when the process does.
    let in_time = loop {
        match receive_end.recv_timeout(limit) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => break true,
            Err(RecvTimeoutError::Timeout) => break false,
        }
    };
    if !in_time {
        child.kill();
    }
    let status = child.0.wait().map_err(|error| format!("{program}: {error}"))?;
    let (stdout, stderr) = (text(stdout), text(stderr));
    match (in_time, status.success()) {
        (true, true) => Ok(stdout),
        (true, false) => Err(format!("{program} ended with {status}:\n{stdout}\n{stderr}")),
        (false, _) => Err(format!("{program} did not end within {} s:\n{stdout}\n{stderr}", limit.as_secs())),
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

fn collect(mut pipe: impl Read + Send + 'static, ended: mpsc::SyncSender<()>) -> OutputThread {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // Output before an error still counts.
        let _ = pipe.read_to_end(&mut bytes);
        let _ = ended.send(());
        bytes
    })
}

fn text(thread: OutputThread) -> String {
    String::from_utf8_lossy(&thread.join().expect("a reader does not panic")).trim_end().to_owned()
}

#[test]
fn a_process_over_its_time_limit_is_killed_and_its_output_is_reported() {
    let mut endless = Command::new("sh");
    let error = run(endless.args(["-c", "echo started; exec sleep 600"]), Duration::from_secs(3)).unwrap_err();
    assert!(error.contains("did not end within 3 s") && error.contains("started"), "{error}");
    let mut failing = Command::new("sh");
    let error = run(failing.args(["-c", "echo reason >&2; exit 3"]), crate::support::TEST_TIMEOUT).unwrap_err();
    assert!(error.contains("exit status: 3") && error.contains("reason"), "{error}");
}
