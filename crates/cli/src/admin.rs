//! The admin listener of `callboard serve`. It is bound with the other sockets, serves once the node runs, and closes
//! last.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use callboard_config::{AdminAddress, Plan};
use callboard_core::NodeHandle;
use callboard_http::{Admin, HttpConfig, HttpEdge, ModelRepository, serve_admin};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::error::CliError;
use crate::log_lines::LogLines;
use crate::service::admin_config;

/// The default address, next to the edge's own.
pub(crate) const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8001);

/// A bound socket that does not serve yet.
#[derive(Debug)]
pub(crate) struct AdminSocket {
    listener: TcpListener,
    config: HttpConfig,
}

/// The listener, open until it is dropped.
#[derive(Debug)]
pub(crate) struct AdminServer {
    pub(crate) address: SocketAddr,
    admin: Admin,
    serving: JoinHandle<()>,
}

impl AdminSocket {
    /// Binds the address of the plan. The default address may be in use by another node of this machine: then there is
    /// no admin listener, and the start-up lines say so.
    pub(crate) async fn bind(plan: &Plan) -> Result<Option<Self>, CliError> {
        let (address, is_default) = match plan.settings.admin.value {
            AdminAddress::Off => return Ok(None),
            AdminAddress::Auto => (DEFAULT_ADDRESS, true),
            AdminAddress::At(address) => (address, false),
        };
        match TcpListener::bind(address).await {
            Ok(listener) => {
                let config = admin_config(plan, address.ip().is_loopback())?;
                Ok(Some(Self { listener, config }))
            }
            Err(error) if is_default && error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(CliError::not_listening(address, "admin", &error)),
        }
    }

    /// Starts to serve.
    pub(crate) fn open(
        self,
        node: NodeHandle,
        edge: &HttpEdge,
        models: Option<Arc<dyn ModelRepository>>,
        lines: LogLines,
    ) -> Result<AdminServer, CliError> {
        let Self { listener, config } = self;
        let address = listener.local_addr().map_err(|error| CliError::because("the admin listener", &error))?;
        let admin = Admin::new(node, edge);
        models.into_iter().for_each(|models| admin.load_from(models));
        // It ends when it is dropped: it is the last part to end, so that the end can be observed.
        let serving = serve_admin(listener, admin.clone(), config, std::future::pending::<Duration>());
        let serving = tokio::spawn(async move {
            if let Err(error) = serving.await {
                lines.note(CliError::because("the admin listener", &error));
            }
        });
        Ok(AdminServer { address, admin, serving })
    }
}

impl AdminServer {
    /// Completes when a request asks for the drain; never, if there is no admin listener.
    pub(crate) async fn drain_asked(server: Option<&Self>) {
        match server {
            Some(server) => server.admin.drain_asked().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
