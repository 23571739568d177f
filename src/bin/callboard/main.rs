//! The `callboard` binary. Its code is in a library, so that programs with their own app can use it.

use std::process::ExitCode;

fn main() -> ExitCode {
    callboard::cli::main()
}
