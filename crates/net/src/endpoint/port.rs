//! Asks a machine whether a UDP port is in use: faster than QUIC, which notices a dead process only by its silence.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::UdpSocket;

/// How long a first answer is awaited before the next question, and at most.
const FIRST_PATIENCE: Duration = Duration::from_millis(50);
const LONGEST_PATIENCE: Duration = Duration::from_secs(1);

/// The longest wait for the answer of a machine. No answer is none.
const PROBE_TIMEOUT: Duration = Duration::from_millis(20);

/// Whether the system reports at once that no process has the port.
pub(crate) async fn is_port_closed(address: SocketAddr) -> bool {
    tokio::time::timeout(PROBE_TIMEOUT, port_closed(address)).await.is_ok()
}

/// Completes when the system reports that no process has the port; otherwise never.
async fn port_closed(address: SocketAddr) -> io::Error {
    match probe(address).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => error,
        // A process has it, or the machine gives no answer.
        _ => std::future::pending().await,
    }
}

/// As [`port_closed`], also when the process leaves the port later: it is asked again, ever more rarely.
pub(crate) async fn port_closes(address: SocketAddr) -> io::Error {
    let mut patience = FIRST_PATIENCE;
    loop {
        if let Ok(error) = tokio::time::timeout(patience, port_closed(address)).await {
            return error;
        }
        patience = (2 * patience).min(LONGEST_PATIENCE);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_that_is_left_after_the_first_question_is_found_closed() {
        let process = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = process.local_addr().unwrap();
        let closes = port_closes(address);
        tokio::pin!(closes);
        assert!(tokio::time::timeout(Duration::ZERO, &mut closes).await.is_err());
        assert!(process.recv(&mut [0; 1]).await.is_ok(), "it was asked");
        drop(process);
        let error = tokio::time::timeout(Duration::from_secs(60), closes).await.unwrap();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
