//! A connection to a node, or to the first of several that answers. It connects with its first call.
//!
//! * **Full, late, cancelled, lost:** as [`Client`].
//! * **Forked:** threads do not survive a fork, so a forked process connects anew with its first call.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use callboard_codec::DecodeLimits;
use callboard_net::{Client, QuicUrl};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::completions::Completions;
use crate::ending::Inside;
use crate::envelope::{encoded_call, joined};
use crate::failure::Fault;
use crate::link::{Link, Settings, block_on};
use crate::options::{Options, seconds};
use crate::replies::Replies;

/// Carries calls to a node over QUIC. Any number of threads and event loops may use it.
#[derive(Debug)]
#[pyclass(frozen, module = "callboard._native")]
pub(crate) struct Connection {
    settings: Settings,
    link: ArcSwap<Link>,
    is_closed: AtomicBool,
}

#[pymethods]
impl Connection {
    #[new]
    #[pyo3(signature = (
        url, *, cluster=None, start_up_wait=10.0, connect_timeout=2.0, attempts=3, max_reply_bytes=1 << 30,
    ))]
    fn new(
        url: String,
        cluster: Option<PathBuf>,
        start_up_wait: f64,
        connect_timeout: f64,
        attempts: u32,
        max_reply_bytes: usize,
    ) -> PyResult<Self> {
        url.parse::<QuicUrl>().map_err(|error| PyValueError::new_err(error.to_string()))?;
        let builder = Client::builder()
            .start_up_wait(seconds("start_up_wait", start_up_wait)?)
            .connect_timeout(seconds("connect_timeout", connect_timeout)?)
            .attempts(attempts)
            .decode_limits(DecodeLimits { max_bytes: max_reply_bytes, ..DecodeLimits::default() });
        let settings = Settings { url, cluster, builder };
        let link = ArcSwap::from_pointee(Link::new(&settings)?);
        Ok(Self { settings, link, is_closed: AtomicBool::new(false) })
    }

    /// Makes a call, and waits for its outcome. The pieces are an envelope, and so is the output.
    fn call<'py>(
        &self,
        py: Python<'py>,
        route: String,
        pieces: &Bound<'py, PyAny>,
        options: Options,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let inside = Inside::enter(py);
        let link = self.link()?;
        let (call, given) = encoded_call(route, pieces, &options)?;
        let calling = async { Ok(link.client().await?.exchange_encoded(call, given).await?.output) };
        let (_inside, output) = block_on(py, inside, &link, calling)?;
        joined(py, &output.map_err(|fault: Fault| fault.exception(py, options.request_id.as_deref()))?)
    }

    /// Starts a call whose outcome goes to a future of an event loop. Returns its number there, to cancel it.
    fn call_async(
        &self,
        py: Python<'_>,
        completions: &Completions,
        future: Py<PyAny>,
        route: String,
        pieces: &Bound<'_, PyAny>,
        options: Options,
    ) -> PyResult<u64> {
        let _inside = Inside::enter(py);
        let link = self.link()?;
        let (call, given) = encoded_call(route, pieces, &options)?;
        let own = Arc::clone(&link);
        let calling = async move { Ok(Some(own.client().await?.exchange_encoded(call, given).await?.output)) };
        let spawn = || completions.spawn(link.runtime()?, (future, options.request_id), calling);
        spawn().map_err(|fault| fault.exception(py, None))
    }

    /// The outputs of a streaming route, at the pace of their reader. The call starts with the first of them.
    fn replies(&self, route: String, pieces: &Bound<'_, PyAny>, options: Options) -> PyResult<Replies> {
        let _inside = Inside::enter(pieces.py());
        let (call, given) = encoded_call(route, pieces, &options)?;
        Ok(Replies::new(self.link()?, call, given, options.request_id))
    }

    /// Closes the connection, and waits up to a quarter of a second until the node has heard of it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.is_closed.store(true, Ordering::Release);
        let link = self.link.load_full();
        match link.connected() {
            Some(client) => block_on(py, Inside::enter(py), &link, client.close()).map(drop),
            None => Ok(()),
        }
    }
}

impl Connection {
    /// The link of this process.
    fn link(&self) -> PyResult<Arc<Link>> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Python::attach(|py| Fault::Closed.exception(py, None)));
        }
        let link = self.link.load_full();
        if link.is_own() {
            return Ok(link);
        }
        let other = Arc::new(Link::new(&self.settings)?);
        let before = self.link.compare_and_swap(&link, Arc::clone(&other));
        // Another thread of this process may have been faster.
        if Arc::ptr_eq(&before, &link) { Ok(other) } else { Ok(self.link.load_full()) }
    }
}
