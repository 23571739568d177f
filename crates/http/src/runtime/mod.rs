//! Sharing of threads between tasks, polls of a connection, the shutdown signal, and the watch on files.

pub(crate) mod coop;
pub(crate) mod file_watch;
pub(crate) mod repoll;
pub(crate) mod shutdown;
