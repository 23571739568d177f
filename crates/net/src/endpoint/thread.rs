//! The thread of an endpoint, with its own runtime, and quinn's view of that runtime.

use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::thread;
use std::time::{Duration, Instant};

use quinn::{AsyncTimer, AsyncUdpSocket, Endpoint, Runtime, TokioRuntime};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

#[cfg(feature = "testing")]
use super::faults::Faults;
use super::inline_driver::spawn_inline;
use super::suspend_guard::guard;

/// How long the last packets of a closed endpoint may take to leave.
pub(crate) const LAST_PACKETS: Duration = Duration::from_millis(250);

/// A thread that runs tasks until its handle is dropped.
#[derive(Debug)]
pub(super) struct EndpointThread {
    handle: Handle,
    stop: Option<oneshot::Sender<Option<Endpoint>>>,
}

impl EndpointThread {
    pub(super) fn spawn() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<Option<Endpoint>>();
        thread::Builder::new().name("callboard-quic".to_owned()).spawn(move || {
            runtime.block_on(async {
                if let Ok(Some(endpoint)) = stopped.await {
                    let _ = tokio::time::timeout(LAST_PACKETS, endpoint.wait_idle()).await;
                }
            });
        })?;
        Ok(Self { handle, stop: Some(stop) })
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(super) fn runtime(&self) -> EndpointRuntime {
        EndpointRuntime {
            handle: self.handle.clone(),
            #[cfg(feature = "testing")]
            faults: None,
            has_endpoint: AtomicBool::new(false),
        }
    }

    /// Ends the thread after the endpoint's last packets, without waiting for it here.
    pub(super) fn stop_after(&mut self, endpoint: Endpoint) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(Some(endpoint));
        }
    }
}

/// quinn's runtime: the drivers of connections run on the endpoint's thread, whichever thread connects or accepts.
#[derive(Debug)]
pub(super) struct EndpointRuntime {
    handle: Handle,
    #[cfg(feature = "testing")]
    faults: Option<Faults>,
    /// Whether the endpoint's own task was spawned, which is the first and receives packets.
    has_endpoint: AtomicBool,
}

#[cfg(feature = "testing")]
impl EndpointRuntime {
    /// The same runtime with these faults.
    pub(super) fn with_faults(self, faults: Option<Faults>) -> Self {
        Self { faults, ..self }
    }
}

impl Runtime for EndpointRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let _entered = self.handle.enter();
        Box::pin(Timer { at, set_for: at, timer: TokioRuntime.new_timer(at) })
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        if self.has_endpoint.swap(true, Ordering::Relaxed) {
            spawn_inline(&self.handle, future);
        } else {
            self.handle.spawn(future);
        }
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        #[cfg(unix)]
        let socket = super::socket::socket(socket, &self.handle)?;
        #[cfg(not(unix))]
        let socket = {
            let _entered = self.handle.enter();
            TokioRuntime.wrap_udp_socket(socket)?
        };
        let socket = guard(socket, &self.handle);
        #[cfg(feature = "testing")]
        let socket = match &self.faults {
            None => socket,
            Some(faults) => faults.wrap(socket, self.handle.clone()),
        };
        Ok(socket)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

/// A timer that is reset only to earlier times. With each packet the next deadline comes nearer and moves away again;
/// without this, each change would wake the thread.
#[derive(Debug)]
struct Timer {
    at: Instant,
    /// The time that the inner timer is set for, never later than `at`.
    set_for: Instant,
    timer: Pin<Box<dyn AsyncTimer>>,
}

impl AsyncTimer for Timer {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        self.at = at;
        if at < self.set_for {
            self.set_for = at;
            self.timer.as_mut().reset(at);
        }
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(context));
            let at = self.at;
            if at <= self.set_for {
                return Poll::Ready(());
            }
            self.set_for = at;
            self.timer.as_mut().reset(at);
        }
    }
}
