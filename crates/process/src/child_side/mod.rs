//! The child's side of the protocol, for workers in Rust.
//!
//! ```text
//!  node ──► messages ──► batches ──► serve: one item after the other, on the caller's thread
//!    ▲                           └─► replica: a stage of this program, synchronous or asynchronous
//!    └───── node ◄── outcomes ◄──────┘
//! ```
//!
//! [`serve_worker`] serves a function in a program of its own, [`replica`] an isolated stage of the node's program.

mod calls;
mod log;
mod messages;
mod node;
pub(crate) mod replica;
mod serve;

pub use serve::serve_worker;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::stdio::dup2_stdin;

/// Why a worker in a child process could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeWorkerError {
    /// Standard input is not the socket of a node: start this program as the command of a stage.
    #[error("standard input is not the socket of a node")]
    NoSocket(#[source] io::Error),
    /// The socket failed.
    #[error("the socket of the node failed")]
    Socket(#[from] io::Error),
    /// The node sent something unexpected.
    #[error("the node broke the protocol: {0}")]
    Protocol(String),
}

impl ServeWorkerError {
    fn protocol(why: impl ToString) -> Self {
        Self::Protocol(why.to_string())
    }
}

/// Takes the socket from standard input, where nothing else may read or close it.
pub(crate) fn take_socket() -> io::Result<UnixStream> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.peer_addr()?;
    dup2_stdin(OwnedFd::from(File::open("/dev/null")?))?;
    Ok(socket)
}

#[cfg(test)]
mod tests;
