//! The threads and the client of one process, and how a thread waits for them.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use callboard_net::{Client, ClientBuilder, ConnectError, Identity};
use pyo3::{PyResult, Python};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::OnceCell;

use crate::ending::Inside;
use crate::failure::Fault;
use crate::own::Own;

/// How often a waiting thread looks for signals, such as Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// The address to connect to, and the settings of the connection.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) url: String,
    /// The directory of the identity; `None`: that of this user on this machine.
    pub(crate) cluster: Option<PathBuf>,
    pub(crate) builder: ClientBuilder,
}

/// The threads and the client of one process.
#[derive(Debug)]
pub(crate) struct Link {
    settings: Settings,
    running: Own<Running>,
}

#[derive(Debug)]
struct Running {
    runtime: Runtime,
    client: OnceCell<Client>,
}

impl Link {
    pub(crate) fn new(settings: &Settings) -> PyResult<Self> {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).thread_name("callboard-client").enable_all().build()?;
        let running = Own::new(Running { runtime, client: OnceCell::new() });
        Ok(Self { settings: settings.clone(), running })
    }

    /// Whether this process has started it.
    pub(crate) fn is_own(&self) -> bool {
        self.running.get().is_ok()
    }

    /// The client, if it is connected.
    pub(crate) fn connected(&self) -> Option<Client> {
        self.running.get().ok()?.client.get().cloned()
    }

    pub(crate) fn runtime(&self) -> Result<&Handle, Fault> {
        self.running.get().map(|running| running.runtime.handle())
    }

    /// The client, connected. After a failed try, the next call tries again.
    pub(crate) async fn client(&self) -> Result<&Client, Fault> {
        let running = self.running.get()?;
        let connect = || async { self.settings.connect().await.map_err(Arc::new) };
        Ok(running.client.get_or_try_init(connect).await?)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let Some(running) = self.running.take() else { return };
        drop(running.client);
        running.runtime.shutdown_background();
    }
}

impl Settings {
    async fn connect(&self) -> Result<Client, ConnectError> {
        let mut builder = self.builder.clone();
        if let Some(directory) = &self.cluster {
            builder = builder.identity(Identity::open(directory)?);
        }
        builder.connect(&self.url).await
    }
}

/// Waits on this thread, detached from the interpreter. Signals end the wait with their exception.
pub(crate) fn block_on<T: Send>(
    py: Python<'_>,
    mut inside: Inside,
    link: &Link,
    work: impl Future<Output = T> + Send,
) -> PyResult<(Inside, T)> {
    let runtime = link.runtime().map_err(|fault| fault.exception(py, None))?;
    let mut work = pin!(work);
    loop {
        let waiting = || runtime.block_on(async { tokio::time::timeout(SIGNALS_EVERY, work.as_mut()).await });
        match inside.away(py, waiting) {
            (inside, Ok(done)) => return Ok((inside, done)),
            (back, Err(_elapsed)) => inside = back,
        }
        py.check_signals()?;
    }
}
