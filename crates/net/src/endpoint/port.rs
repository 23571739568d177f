//! Asks a machine whether a UDP port is in use: faster than QUIC, which notices a dead process only by its silence.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::UdpSocket;

/// Completes when the system reports that no process has the port; otherwise never.
pub(crate) async fn port_closed(address: SocketAddr) -> io::Error {
    match probe(address).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => error,
        // A process has it, or the machine gives no answer.
        _ => std::future::pending().await,
    }
}

async fn probe(address: SocketAddr) -> io::Result<()> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(address).await?;
    // Too short for a QUIC packet: an endpoint drops it.
    socket.send(&[0]).await?;
    socket.recv(&mut [0; 1]).await.map(|_| ())
}
