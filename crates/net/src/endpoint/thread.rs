//! The thread of an endpoint, with a runtime of its own, and quinn's view of that runtime.

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

use super::driven::drive;
use super::thaw::thawing;
#[cfg(feature = "testing")]
use crate::testing::Faults;

/// How long the last packets of a closed endpoint may take to leave.
pub(crate) const LAST_PACKETS: Duration = Duration::from_millis(250);

/// A thread that runs tasks until its handle is gone.
#[derive(Debug)]
pub(super) struct OwnThread {
    handle: Handle,
    stop: Option<oneshot::Sender<Option<Endpoint>>>,
}

impl OwnThread {
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

    pub(super) fn runtime(&self) -> OnThread {
        OnThread {
            handle: self.handle.clone(),
            #[cfg(feature = "testing")]
            faults: None,
            has_endpoint: AtomicBool::new(false),
        }
    }

    /// Ends the thread when the endpoint has said its last, without waiting for it here.
    pub(super) fn stop_after(&mut self, endpoint: Endpoint) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(Some(endpoint));
        }
    }
}

/// quinn's runtime: whoever connects or accepts, the connection's own work is done on the thread.
#[derive(Debug)]
pub(super) struct OnThread {
    handle: Handle,
    #[cfg(feature = "testing")]
    faults: Option<Faults>,
    /// The first task is the endpoint's own, who takes what arrives.
    has_endpoint: AtomicBool,
}

#[cfg(feature = "testing")]
impl OnThread {
    /// The same in this weather.
    pub(super) fn with_faults(self, faults: Option<Faults>) -> Self {
        Self { faults, ..self }
    }
}

impl Runtime for OnThread {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let _entered = self.handle.enter();
        Box::pin(Timer { at, set_for: at, timer: TokioRuntime.new_timer(at) })
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        match self.has_endpoint.swap(true, Ordering::Relaxed) {
            true => drive(&self.handle, future),
            false => drop(self.handle.spawn(future)),
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
        let socket = thawing(socket, &self.handle);
        #[cfg(feature = "testing")]
        let socket = match &self.faults {
            None => socket,
            Some(faults) => faults.over(socket, self.handle.clone()),
        };
        Ok(socket)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

/// A timer that is set anew for what is sooner, and not for what is later: with each packet the next moment at which something is due
/// comes nearer and goes away again, and each time that it came nearer the thread would be woken up to know it.
#[derive(Debug)]
struct Timer {
    at: Instant,
    /// Never later than that.
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
