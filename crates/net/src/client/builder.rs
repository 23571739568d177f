//! How a client is made: whom it shows itself as, how patient it is, what it lets replies cost; and the wait for the first node.
//!
//! * **Late:** a node that is not there yet is waited for, up to the start-up wait. Its names are looked up again before each try: a
//!   host whose name is gone ends the wait at once, and one that has moved is looked for where it is now. A node that is there and
//!   refuses ends it at once as well. A port that nobody has yet may be a node that is starting: it is waited for. Behind the wait, names
//!   are looked up again whenever none of the addresses answers.
//! * **Cancelled:** dropping the future ends all that it has begun.

use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::DecodeLimits;
use callboard_codec::wire::FrameLimits;
use callboard_core::Instant;
use futures_util::FutureExt;
use parking_lot::Mutex;

use super::address::QuicUrl;
use super::error::ConnectError;
use super::link::{Greeting, LinkFault};
use super::links::{Links, LookUp};
use super::{Client, FIRST_PAUSE, Inner, LONGEST_PAUSE};
use crate::endpoint::{Transport, Tuning};
use crate::identity::{Identity, IdentityError};

/// How a client connects and calls. Made by [`Client::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct ClientBuilder {
    identity: Option<Identity>,
    start_up_wait: Duration,
    connect_timeout: Duration,
    attempts: u32,
    credit: u32,
    frames: FrameLimits,
    decode: DecodeLimits,
    tuning: Tuning,
}

/// Long enough for a node that loads a model, short enough for whoever mistyped a port.
const DEFAULT_START_UP_WAIT: Duration = Duration::from_secs(10);
/// Many round trips, even around the world.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// One lost connection and one node that drains are got over.
const DEFAULT_ATTEMPTS: u32 = 3;
/// Outputs on their way to a reader: hides a round trip, holds little.
const DEFAULT_CREDIT: u32 = 16;

impl ClientBuilder {
    pub(super) fn new() -> Self {
        Self {
            identity: None,
            start_up_wait: DEFAULT_START_UP_WAIT,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            attempts: DEFAULT_ATTEMPTS,
            credit: DEFAULT_CREDIT,
            frames: FrameLimits::default(),
            decode: DecodeLimits::default(),
            tuning: Tuning::default(),
        }
    }

    /// The identity to show. Default: the development identity, which is for this machine only.
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// How long to wait for a node that is not there yet. Default 10 s; zero tries each address once. A host name
    /// without an address and a node that refuses end the wait.
    pub fn start_up_wait(mut self, wait: Duration) -> Self {
        self.start_up_wait = wait;
        self
    }

    /// The longest time for one handshake. Default 2 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The most attempts for a call that was not started. Default 3, at least 1.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// The most unread outputs of a stream; beyond them the worker waits. Default 16, at least 1.
    pub fn credit(mut self, outputs: u32) -> Self {
        self.credit = outputs.max(1);
        self
    }

    /// What decoding a reply may cost.
    pub fn decode_limits(mut self, limits: DecodeLimits) -> Self {
        self.frames.max_body_bytes = limits.max_bytes;
        self.decode = limits;
        self
    }

    /// How QUIC is tuned.
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// Connects to the first node that answers.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`].
    pub async fn connect(self, url: &str) -> Result<Client, ConnectError> {
        let url = Arc::new(QuicUrl::from_str(url)?);
        let limit = self.start_up_wait.max(self.connect_timeout);
        let look_up = move || {
            let url = Arc::clone(&url);
            async move { url.resolve(limit).await }.boxed()
        };
        self.connect_to(Box::new(look_up)).await
    }

    /// Connects to the first that answers of the addresses that `look_up` gives, each time that it is asked.
    async fn connect_to(self, look_up: LookUp) -> Result<Client, ConnectError> {
        let addresses = look_up().await?;
        let identity = match &self.identity {
            Some(identity) => identity.clone(),
            None => {
                // Before one is made that is of no use.
                if let Some(address) = addresses.iter().copied().find(|address| !address.ip().is_loopback()) {
                    return Err(IdentityError::LoopbackOnly { address }.into());
                }
                Identity::development()?
            }
        };
        let transport = Arc::new(Transport::reaching(identity, &self.tuning)?);
        let links = self.first_links(transport, addresses, &look_up).await?;
        links.find_again_by(look_up);
        let Self { attempts, credit, frames, decode, .. } = self;
        Ok(Client { inner: Arc::new(Inner { links, retries: Mutex::default(), attempts, credit, frames, decode }) })
    }

    /// Tries until somebody answers, or the wait is over, or it is of no use. Without a wait each address is tried to its end.
    async fn first_links(
        &self,
        transport: Arc<Transport>,
        mut addresses: Vec<SocketAddr>,
        look_up: &LookUp,
    ) -> Result<Links, ConnectError> {
        let wait = self.start_up_wait;
        let begun = Instant::now();
        let until = begun + wait;
        let links_to =
            |addresses| Links::new(Arc::clone(&transport), addresses, Greeting::default(), self.connect_timeout);
        let mut links = links_to(addresses.clone());
        let mut pause = FIRST_PAUSE;
        let mut last = "no answer".to_owned();
        loop {
            let linked = tokio::select! {
                biased;
                linked = links.link() => linked,
                () = tokio::time::sleep_until(until), if !wait.is_zero() => {
                    return Err(ConnectError::NobodyThere { waited: waited(begun), last });
                }
            };
            let Err(fault) = linked else { return Ok(links) };
            last = fault.to_string();
            match fault {
                LinkFault::Refused { address, reason } => return Err(ConnectError::Refused { address, reason }),
                // A client has no name under which there could be a younger one.
                LinkFault::Stale { address } => return Err(ConnectError::Refused { address, reason: last }),
                _ if Instant::now() + pause > until => {
                    return Err(ConnectError::NobodyThere { waited: waited(begun), last });
                }
                LinkFault::Absent { .. } | LinkFault::Closed => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
            let found = tokio::select! {
                biased;
                found = look_up() => found?,
                () = tokio::time::sleep_until(until) => return Err(ConnectError::NobodyThere { waited: waited(begun), last }),
            };
            if found != addresses {
                links = links_to(found.clone());
                addresses = found;
            }
        }
    }
}

/// How long it has been waited, for people.
fn waited(begun: Instant) -> Duration {
    Duration::from_millis(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::UdpSocket;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use callboard_core::{App, Caller, Node, Stage};

    use super::*;
    use crate::{NetConfig, QuicEdge, Trouble};

    const LONG: Duration = Duration::from_secs(60);

    fn nobody() -> SocketAddr {
        UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    fn identity(name: &str) -> Identity {
        let directory = std::env::temp_dir().join(format!("callboard-{name}-{}", std::process::id()));
        let identity = Identity::development_in(&directory.join("development")).unwrap();
        std::fs::remove_dir_all(directory).unwrap();
        identity
    }

    /// One address after the other, as often as it is asked, and how often that was; then the name is gone.
    fn found_at<const N: usize>(addresses: [SocketAddr; N]) -> (Arc<AtomicUsize>, LookUp) {
        let asked = Arc::new(AtomicUsize::new(0));
        let counting = Arc::clone(&asked);
        let look_up = move || {
            let found = addresses.get(counting.fetch_add(1, Ordering::SeqCst)).copied();
            let gone = || {
                let source = io::Error::other("Name or service not known");
                ConnectError::Unresolved { host: "node:4433".to_owned(), source }
            };
            std::future::ready(found.map(|address| vec![address]).ok_or_else(gone)).boxed()
        };
        (asked, Box::new(look_up))
    }

    fn patient(identity: Identity) -> ClientBuilder {
        ClientBuilder::new().identity(identity).start_up_wait(LONG).connect_timeout(LONG)
    }

    #[tokio::test]
    async fn a_host_whose_name_is_gone_is_waited_for_no_longer() {
        let (asked, look_up) = found_at([nobody(), nobody()]);
        let error = patient(identity("gone")).connect_to(look_up).await.unwrap_err();
        assert!(matches!(error, ConnectError::Unresolved { .. }), "{error:?}");
        assert_eq!(asked.load(Ordering::SeqCst), 3);
    }

    async fn serve(identity: &Identity) -> (QuicEdge, Node) {
        let edge = QuicEdge::bind("127.0.0.1:0".parse().unwrap(), identity.clone(), NetConfig::default()).unwrap();
        let node = App::new().route("/shout", Stage::each("shout", |text: &String| Ok(text.to_uppercase())));
        let node = node.start().await.unwrap();
        edge.open(node.client());
        (edge, node)
    }

    #[tokio::test]
    async fn a_host_that_moves_while_it_is_waited_for_is_found_where_it_is() {
        let identity = identity("moves");
        let (edge, _node) = serve(&identity).await;
        let (_, look_up) = found_at([nobody(), edge.address()]);
        let client = patient(identity).connect_to(look_up).await.unwrap();
        assert_eq!(client.call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
    }

    #[tokio::test]
    async fn a_host_that_has_moved_since_it_was_called_is_found_where_it_is() {
        let identity = identity("moved");
        let (before, _node) = serve(&identity).await;
        let (after, _other) = serve(&identity).await;
        let (asked, look_up) = found_at([before.address(), before.address(), after.address()]);
        let client = patient(identity).attempts(1).connect_to(look_up).await.unwrap();
        assert_eq!(client.call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
        before.shutdown(LONG).await;
        // It has left, and its name does not know it yet.
        let error = client.call::<_, String>("/shout", "a".to_owned()).await.unwrap_err();
        assert_eq!((Trouble::of(&error), asked.load(Ordering::SeqCst)), (Trouble::NeverStarted, 2), "{error}");
        for _ in 0..3 {
            assert_eq!(client.call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 3);
    }
}
