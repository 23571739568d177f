//! A server on a free port and a client that says exactly the bytes it is told to.

pub(crate) mod raw;

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use callboard_http::{HttpConfig, ServeError, serve_router};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) use self::raw::Raw;

/// How long anything may take that should happen at once; reached only by a failing test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A server that stops when told to.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Server {
    /// A bare axum router behind the accept loop.
    pub(crate) async fn of_router(router: Router, config: HttpConfig) -> Self {
        Self::spawn(bind().await, |listener, stopped| {
            serve_router(listener, router, config, stopped)
        })
    }

    pub(crate) fn spawn<F>(
        listener: TcpListener,
        serve: impl FnOnce(TcpListener, Stopped) -> F,
    ) -> Self
    where
        F: Future<Output = Result<(), ServeError>> + Send + 'static,
    {
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped: Stopped = Box::pin(async { _ = stopped.await });
        Self {
            address,
            stop: Some(stop),
            serving: tokio::spawn(serve(listener, stopped)),
        }
    }

    pub(crate) async fn connect(&self) -> Raw {
        Raw::connect(self.address).await
    }

    /// Asks the server to stop, without waiting for it.
    pub(crate) fn begin_shutdown(&mut self) {
        drop(self.stop.take());
    }

    /// Waits for the end of a server that was asked to stop.
    pub(crate) async fn ended(self) {
        tokio::time::timeout(PATIENCE, self.serving)
            .await
            .expect("the server ends")
            .expect("the server does not panic")
            .expect("the server ends well");
    }
}

pub(crate) type Stopped = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) async fn bind() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}
