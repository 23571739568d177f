//! `callboard._native`: the client over QUIC for Python, and the engine of a node for tests.
//!
//! It carries encoded envelopes, and knows no Python values. `callboard.client.quic` and `callboard._engine` use it.
//!
//! ```text
//!  connection.rs   connects, calls, closes                  options.rs    the options of one call
//!  link.rs         the threads of one process               envelope.rs   bytes of Python as bytes of a call
//!  replies.rs      the outputs of a streaming call          failure.rs    errors as exceptions
//!  completions.rs  outcomes on their way to an event loop   own.rs        what belongs to one process
//!  ending.rs       the end of the interpreter               inbox.rs      messages to Python, with one wake-up
//!  engine.rs       a node whose stages are in Python
//! ```
//!
//! * **Threads.** A connection has two of its own, an engine has one, and none runs Python. A blocking call is driven by
//!   its caller's thread, detached from the interpreter.
//! * **Cancelled:** dropping a call's future tells the node: at Ctrl-C, when its asyncio task is cancelled, and when
//!   its iterator is closed.
//! * **At the end of the interpreter** no thread comes back to it.

#![cfg(unix)]

mod completions;
mod connection;
mod ending;
mod engine;
mod envelope;
mod failure;
mod inbox;
mod link;
mod options;
mod own;
mod replies;

use pyo3::pymodule;

#[pymodule]
mod _native {
    use pyo3::prelude::*;
    use pyo3::wrap_pyfunction;

    #[pymodule_export]
    use crate::completions::Completions;
    #[pymodule_export]
    use crate::connection::Connection;
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::replies::Replies;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let end = wrap_pyfunction!(crate::ending::end, module)?;
        module.py().import("atexit")?.call_method1("register", (end,)).map(drop)
    }
}
