//! How a process has ended, in words.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// "exited with code 3", "was killed by signal 9 (SIGKILL), possibly out of memory".
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}{}", name(signal)),
        (None, None) => "ended".to_owned(),
    }
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
    use super::*;

    #[test]
    fn codes_and_signals_are_explained() {
        assert_eq!(describe(ExitStatus::from_raw(3 << 8)), "exited with code 3");
        assert_eq!(describe(ExitStatus::from_raw(9)), "was killed by signal 9 (SIGKILL), possibly out of memory");
        assert_eq!(describe(ExitStatus::from_raw(10)), "was killed by signal 10");
    }
}
