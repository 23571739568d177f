//! Outcomes on their way to an event loop: many share one wake-up.
//!
//! A call that ends puts its outcome into an [inbox](crate::inbox), which the event loop watches. So no thread but the
//! loop's ever waits for the interpreter.
//!
//! * **Full:** the list is as long as the number of open calls, each of which has a task that waits for it.
//! * **Cancelled:** the call's future is dropped, and its outcome is not delivered.

use std::collections::HashMap;

use bytes::Bytes;
use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::ending::Inside;
use crate::envelope::joined;
use crate::failure::Fault;
use crate::inbox::Inbox;
use crate::own::Own;

/// The chunks of an output; `None`: the stream has ended.
pub(crate) type Outcome = Result<Option<Vec<Bytes>>, Fault>;

/// The open calls of one event loop, which watches [`fileno`](Self::fileno) and calls [`deliver`](Self::deliver).
#[derive(Debug)]
#[pyclass(frozen, module = "callboard._native")]
pub(crate) struct Completions {
    calls: Own<Mutex<OpenCalls>>,
    ended: Inbox<(u64, Outcome)>,
}

#[derive(Debug, Default)]
struct OpenCalls {
    next: u64,
    calls: HashMap<u64, OpenCall>,
}

#[derive(Debug)]
struct OpenCall {
    future: Py<PyAny>,
    request_id: Option<String>,
    task: AbortHandle,
}

#[pymethods]
impl Completions {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self { calls: Own::new(Mutex::default()), ended: Inbox::new()? })
    }

    /// The socket that is readable while there are outcomes.
    fn fileno(&self) -> i32 {
        self.ended.fileno()
    }

    /// Delivers the outcomes. Only the event loop's thread may call it.
    fn deliver(&self, py: Python<'_>) -> PyResult<()> {
        let _inside = Inside::enter(py);
        let Ok(calls) = self.calls.get() else { return Ok(()) };
        for (number, outcome) in self.ended.take() {
            let Some(call) = calls.lock().calls.remove(&number) else { continue };
            set(py, &call.future, to_python(py, outcome, call.request_id.as_deref()))?;
        }
        Ok(())
    }

    /// Cancels all open calls, which fail. Only the event loop's thread may call it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let _inside = Inside::enter(py);
        let Ok(calls) = self.calls.get() else { return Ok(()) };
        let open = std::mem::take(&mut calls.lock().calls);
        for call in open.into_values() {
            call.task.abort();
            let error = Fault::Closed.exception(py, call.request_id.as_deref());
            set(py, &call.future, Err(error))?;
        }
        Ok(())
    }

    /// Cancels this call on its node, unless it has ended.
    fn cancel(&self, number: u64) {
        let Ok(calls) = self.calls.get() else { return };
        if let Some(call) = calls.lock().calls.remove(&number) {
            call.task.abort();
        }
    }
}

impl Completions {
    /// Runs a call, whose outcome goes to this future.
    pub(crate) fn spawn(
        &self,
        runtime: &Handle,
        (future, request_id): (Py<PyAny>, Option<String>),
        calling: impl Future<Output = Outcome> + Send + 'static,
    ) -> Result<u64, Fault> {
        let mut open = self.calls.get()?.lock();
        let number = open.next;
        open.next += 1;
        let ended = self.ended.messages()?;
        let task = runtime.spawn(async move { ended.push((number, calling.await)) }).abort_handle();
        open.calls.insert(number, OpenCall { future, request_id, task });
        Ok(number)
    }
}

/// Completes a future, unless it was cancelled in this turn of the loop.
fn set(py: Python<'_>, future: &Py<PyAny>, outcome: PyResult<Option<Bound<'_, PyBytes>>>) -> PyResult<()> {
    let future = future.bind(py);
    let set = match outcome {
        Ok(output) => future.call_method1(intern!(py, "set_result"), (output,)),
        Err(error) => future.call_method1(intern!(py, "set_exception"), (error.into_value(py),)),
    };
    match set {
        Ok(_none) => Ok(()),
        Err(_) if future.call_method0(intern!(py, "done"))?.extract()? => Ok(()),
        Err(error) => Err(error),
    }
}

fn to_python<'py>(
    py: Python<'py>,
    outcome: Outcome,
    request_id: Option<&str>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    match outcome {
        Ok(None) => Ok(None),
        Ok(Some(chunks)) => joined(py, &chunks).map(Some),
        Err(fault) => Err(fault.exception(py, request_id)),
    }
}
