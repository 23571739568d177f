//! The admin listener of `callboard serve`: taken with the other sockets, opened when the node is there, closed after it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use callboard_core::NodeHandle;
use callboard_http::{Admin, HttpConfig, HttpEdge, serve_admin};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::error::CliError;
use super::log_lines::LogLines;
use super::service::admin_config;
use crate::config::{AdminAddress, Plan};

/// Where it is when nobody says: next to the edge's own.
const USUAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8001);

/// A socket that nobody answers yet.
#[derive(Debug)]
pub(crate) struct AdminSocket {
    listener: TcpListener,
    config: HttpConfig,
}

/// The listener, open until it is dropped.
#[derive(Debug)]
pub(crate) struct AdminDoor {
    pub(crate) address: SocketAddr,
    admin: Admin,
    serving: JoinHandle<()>,
}

impl AdminSocket {
    /// Takes the socket that the plan asks for. The usual one may be in use by another node on this machine: then there is
    /// none, which the start-up lines tell.
    pub(crate) async fn bind(plan: &Plan) -> Result<Option<Self>, CliError> {
        let (address, is_wish) = match plan.settings.admin.value {
            AdminAddress::Off => return Ok(None),
            AdminAddress::Auto => (USUAL, true),
            AdminAddress::At(address) => (address, false),
        };
        match TcpListener::bind(address).await {
            Ok(listener) => {
                let config = admin_config(plan, address.ip().is_loopback())?;
                Ok(Some(Self { listener, config }))
            }
            Err(error) if is_wish && error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(CliError::not_listening(address, "admin", &error)),
        }
    }

    /// Answers from now on.
    pub(crate) fn open(self, node: NodeHandle, edge: &HttpEdge, lines: LogLines) -> Result<AdminDoor, CliError> {
        let Self { listener, config } = self;
        let address = listener.local_addr().map_err(|error| CliError::because("the admin listener", &error))?;
        let admin = Admin::new(node, edge);
        // Ends by being dropped: it is the last one to go, so that the end itself can be watched.
        let serving = serve_admin(listener, admin.clone(), config, std::future::pending::<Duration>());
        let serving = tokio::spawn(async move {
            if let Err(error) = serving.await {
                lines.note(CliError::because("the admin listener", &error));
            }
        });
        Ok(AdminDoor { address, admin, serving })
    }
}

impl AdminDoor {
    /// Completes when somebody asks for the end; never, where there is no listener.
    pub(crate) async fn drain_asked(door: Option<&Self>) {
        match door {
            Some(door) => door.admin.drain_asked().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for AdminDoor {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
