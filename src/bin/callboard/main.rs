//! The `callboard` binary. Everything it does is in the library, so that programs with an app of their own can do it, too.

use std::process::ExitCode;

fn main() -> ExitCode {
    callboard::cli::main()
}
