//! How a process has ended, in words.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::program::LastLines;

/// "exited with code 3", "was killed by signal 9 (SIGKILL), possibly out of memory".
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}{}", name(signal)),
        (None, None) => "ended".to_owned(),
    }
}

/// The words of runtimes that lack memory.
const LACK: [&str; 5] = ["MemoryError", "out of memory", "memory allocation of", "bad_alloc", "Cannot allocate memory"];

/// Whether a process with a memory limit has ended for lack of memory: its last words say so. A limit of the address
/// space refuses memory, and does not kill.
pub(crate) fn lacked_memory(status: ExitStatus, lines: &LastLines) -> bool {
    !status.success() && lines.say(&LACK)
}

fn name(signal: i32) -> &'static str {
    match signal {
        4 => " (SIGILL): this processor lacks an instruction that it uses",
        6 => " (SIGABRT): it aborted itself",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL), possibly out of memory",
        11 => " (SIGSEGV): native code read memory that it does not own",
        15 => " (SIGTERM)",
        24 => " (SIGXCPU)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use super::*;

    #[test]
    fn codes_and_signals_are_explained() {
        assert_eq!(describe(ExitStatus::from_raw(3 << 8)), "exited with code 3");
        assert_eq!(describe(ExitStatus::from_raw(9)), "was killed by signal 9 (SIGKILL), possibly out of memory");
        assert_eq!(describe(ExitStatus::from_raw(10)), "was killed by signal 10");
        for (signal, name) in [
            (4, "(SIGILL): this processor"),
            (6, "(SIGABRT): it aborted itself"),
            (7, "(SIGBUS)"),
            (8, "(SIGFPE)"),
            (11, "(SIGSEGV): native code"),
            (15, "(SIGTERM)"),
            (24, "(SIGXCPU)"),
        ] {
            let said = describe(ExitStatus::from_raw(signal));
            assert!(said.starts_with(&format!("was killed by signal {signal} {name}")), "{said}");
        }
        // Stopped, which is no end.
        assert_eq!(describe(ExitStatus::from_raw(0x137f)), "ended");
    }

    #[test]
    fn a_lack_of_memory_is_known_by_the_last_words() {
        let said = |line: &str| {
            let (lines, (reading, mut writing)) = (LastLines::default(), io::pipe().unwrap());
            let frame = "   3: std::alloc::rust_oom\n             at ./library/std/src/alloc.rs:9:1\n";
            write!(writing, "{line}\nstack backtrace:\n{}note: run it again\n", frame.repeat(20)).unwrap();
            drop(writing);
            lines.read(reading, &io::pipe().unwrap().0, |_| {});
            lines
        };
        let aborted = ExitStatus::from_raw(6);
        assert!(lacked_memory(aborted, &said("memory allocation of 1024 bytes failed")));
        assert!(lacked_memory(
            ExitStatus::from_raw(1 << 8),
            &said("numpy._core._exceptions._ArrayMemoryError: Unable")
        ));
        assert!(!lacked_memory(aborted, &said("double free")));
        assert!(!lacked_memory(ExitStatus::from_raw(0), &said("out of memory")));
    }
}
