//! How work shares a thread, learns that the server ends, and follows files that change.

pub(crate) mod coop;
pub(crate) mod file_watch;
pub(crate) mod shutdown;
