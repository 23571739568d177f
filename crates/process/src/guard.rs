//! A guard: a process between a node and a helper, which ends the helper with its node, however that ends.
//!
//! Linux signals the end of a parent only to a child that asked for it, which other programs do not, and never to
//! grandchildren. So the node starts its own program again, as the guard, in a process
//! group of its own. The guard starts the helper in that group and reads a socket that only the node has: a byte is a
//! signal for the helper, and its end is the end of the node, after which the guard kills the group.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{self, Command, ExitStatus};
use std::thread;

use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process, kill_process_group};

use crate::child_side::take_socket;
use crate::isolate::{has_socket, own_program};
use crate::program::GUARD_VARIABLE;

/// As shells say it of a program that cannot be started.
const NOT_STARTED: i32 = 127;

/// Becomes the guard of a helper, if a node has started this process for that; does not return then.
///
/// The first line of a `main` whose helpers are [guarded](crate::HelperConfig::guarded). The commands of Callboard
/// begin with it. A library cannot run before `main`, so what stands above this line runs in each guard as well, with
/// the arguments of the helper instead of the node's: read no arguments there, bind no port and print nothing. Without
/// this line a program becomes the guard where it declares its first guarded [`helper`](crate::helper).
pub fn guard_if_asked() {
    if std::env::var_os(GUARD_VARIABLE).is_some() && has_socket() {
        let code = guard().unwrap_or_else(|error| {
            let _ = writeln!(io::stderr(), "cannot be started: {error}");
            NOT_STARTED
        });
        exit(code);
    }
}

#[expect(clippy::exit, reason = "the process is a guard, and `main` must not go on")]
fn exit(code: i32) -> ! {
    process::exit(code)
}

/// The command of a guard around `command`.
pub(crate) fn guarded(command: &[OsString]) -> Vec<OsString> {
    own_program().command.into_iter().take(1).chain(command.iter().cloned()).collect()
}

fn guard() -> io::Result<i32> {
    // The helper's standard input is empty.
    let node = take_socket()?;
    let mut words = std::env::args_os().skip(1);
    let program = words.next().ok_or(io::ErrorKind::InvalidInput)?;
    let mut helper = Command::new(program).args(words).env_remove(GUARD_VARIABLE).spawn()?;
    let pid = Pid::from_child(&helper);
    thread::Builder::new().name("guard".to_owned()).spawn(move || pass_signals(node, pid))?;
    Ok(end_as(helper.wait()?))
}

/// Passes signals on until the node ends. When the helper ends, this process ends as well, with this thread.
fn pass_signals(mut node: UnixStream, helper: Pid) {
    let mut byte = [0];
    while node.read_exact(&mut byte).is_ok() {
        if let Some(signal) = Signal::from_named_raw(i32::from(byte[0])) {
            let _ = kill_process(helper, signal);
        }
    }
    let _ = kill_process_group(getpgrp(), Signal::KILL);
}

/// Ends as the helper did, so that the node sees its code or its signal.
fn end_as(status: ExitStatus) -> i32 {
    let Some(number) = status.signal() else { return status.code().unwrap_or_default() };
    if let Some(signal) = Signal::from_named_raw(number) {
        // Rust handles the first signal of a crash itself.
        for _ in 0..2 {
            let _ = kill_process(getpid(), signal);
        }
    }
    128 + number
}
