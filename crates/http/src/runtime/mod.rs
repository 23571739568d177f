//! Sharing of threads between tasks, the shutdown signal, and the watch on files.

pub(crate) mod coop;
pub(crate) mod file_watch;
pub(crate) mod shutdown;
