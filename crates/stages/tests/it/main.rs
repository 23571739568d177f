//! The built-in stages in a node.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail as its assertions do")]

mod digits;
mod labels;
