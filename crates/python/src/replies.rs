//! The outputs of a streaming call, for a thread or an event loop.
//!
//! The client grants the node credit for a few outputs, and more as they are read, so a slow reader makes the worker
//! wait.

use std::sync::Arc;

use bytes::Bytes;
use callboard_core::CallOptions;
use callboard_net::{EncodedCall, ResponseStream};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::sync::Mutex;

use crate::completions::{Completions, Outcome};
use crate::ending::Inside;
use crate::envelope::joined;
use crate::failure::Fault;
use crate::link::{Link, block_on};
use crate::own::Own;

/// Reads one output after the other. Closing it cancels the call on the node.
#[pyclass(frozen, module = "callboard._native")]
pub(crate) struct Replies {
    link: Arc<Link>,
    phase: Own<Arc<Mutex<Phase>>>,
    request_id: Option<String>,
}

enum Phase {
    Waiting(Box<(EncodedCall, CallOptions)>),
    Open(ResponseStream<Vec<Bytes>>),
    Ended,
}

impl Replies {
    pub(crate) fn new(link: Arc<Link>, call: EncodedCall, options: CallOptions, request_id: Option<String>) -> Self {
        let phase = Phase::Waiting(Box::new((call, options)));
        Self { link, phase: Own::new(Arc::new(Mutex::new(phase))), request_id }
    }
}

#[pymethods]
impl Replies {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let next = self.next().map_err(|fault| fault.exception(py, None))?;
        let (_inside, outcome) = block_on(py, Inside::enter(py), &self.link, next)?;
        match outcome {
            Ok(chunks) => chunks.map(|chunks| joined(py, &chunks)).transpose(),
            Err(fault) => Err(fault.exception(py, self.request_id.as_deref())),
        }
    }

    /// Gives the next output to a future of an event loop: `None` after the last one. Returns its number there.
    fn next_async(&self, py: Python<'_>, completions: &Completions, future: Py<PyAny>) -> PyResult<u64> {
        let _inside = Inside::enter(py);
        let spawn = || completions.spawn(self.link.runtime()?, (future, self.request_id.clone()), self.next()?);
        spawn().map_err(|fault| fault.exception(py, None))
    }

    /// Cancels the call, unless it has ended.
    fn close(&self) {
        if let (Ok(runtime), Ok(phase)) = (self.link.runtime(), self.phase.get().cloned()) {
            // A reader that was cancelled a moment ago may still hold it.
            runtime.spawn(async move { *phase.lock().await = Phase::Ended });
        }
    }
}

impl Replies {
    fn next(&self) -> Result<impl Future<Output = Outcome> + use<>, Fault> {
        Ok(next(Arc::clone(&self.link), Arc::clone(self.phase.get()?)))
    }
}

async fn next(link: Arc<Link>, phase: Arc<Mutex<Phase>>) -> Outcome {
    let mut phase = phase.lock().await;
    if let Phase::Waiting(waiting) = &*phase {
        let (call, options) = (**waiting).clone();
        let client = link.client().await?;
        *phase = Phase::Open(client.exchange_encoded_streaming(call, options));
    }
    let Phase::Open(outputs) = &mut *phase else { return Ok(None) };
    let output = outputs.next().await.transpose();
    if !matches!(output, Ok(Some(_))) {
        *phase = Phase::Ended;
    }
    Ok(output?.map(|response| response.output))
}
