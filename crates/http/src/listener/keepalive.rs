//! TCP keep-alive: closes connections whose client's machine or network is gone.
//!
//! A quiet stream has no timer of its own, and would hold its permit for ever.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// The probes after the first half of the time. A client that answers none of them is gone.
const PROBES: u32 = 5;

/// The kernel counts in seconds.
const LEAST: Duration = Duration::from_secs(1);

/// Ends the connection with an error once its client has not answered the kernel for about `silence`: neither a probe
/// of an idle connection nor sent bytes.
pub(super) fn set_keepalive(socket: &TcpStream, silence: Duration) -> io::Result<()> {
    let options = SockRef::from(socket);
    let interval = (silence / (2 * PROBES)).max(LEAST);
    let keepalive = TcpKeepalive::new().with_time((silence / 2).max(LEAST)).with_interval(interval);
    options.set_tcp_keepalive(&keepalive.with_retries(PROBES))?;
    // Without this, Linux retransmits unacknowledged bytes for a quarter of an hour and sends no probes.
    #[cfg(target_os = "linux")]
    options.set_tcp_user_timeout(Some(silence.max(LEAST)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_is_told_within_the_silence() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (socket, _client) = (accepted.unwrap().0, client.unwrap());
        for (seconds, time, interval) in [(90, 45, 9), (1, 1, 1)] {
            set_keepalive(&socket, Duration::from_secs(seconds)).unwrap();
            let options = SockRef::from(&socket);
            assert!(options.keepalive().unwrap());
            assert_eq!(options.tcp_keepalive_time().unwrap(), Duration::from_secs(time));
            assert_eq!(options.tcp_keepalive_interval().unwrap(), Duration::from_secs(interval));
            assert_eq!(options.tcp_keepalive_retries().unwrap(), PROBES);
            #[cfg(target_os = "linux")]
            assert_eq!(options.tcp_user_timeout().unwrap(), Some(Duration::from_secs(seconds)));
        }
    }
}
