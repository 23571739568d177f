//! The two kinds of programs that have these commands.

/// The program that runs: the `callboard` binary serves a target; another program serves its own app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Callboard,
    Own,
}
