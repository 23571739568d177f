//! The settings of a client: identity, timeouts, limits of replies; and the wait for the first node.
//!
//! * **Late:** the client waits for a node that is not up yet, up to the start-up wait. It resolves the names again
//!   before each try, so a host that has moved is found. A host whose name is gone, and a node that refuses, end the
//!   wait at once. A port without a process may belong to a node that is starting, so the wait goes on. Later, names
//!   are resolved again whenever no address answers.
//! * **Cancelled:** dropping the future ends everything that it started.

use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::DecodeLimits;
use callboard_codec::wire::FrameLimits;
use callboard_core::{Instant, RetryPolicy};
use callboard_identity::{Identity, IdentityError, QuicUrl};
use futures_util::FutureExt;
use parking_lot::Mutex;

use super::connection::{ConnectFailure, OwnHello};
use super::connection_pool::{ConnectionPool, Resolver};
use super::error::ConnectError;
use super::{Absence, Client, Inner};
use crate::endpoint::{Transport, Tuning};
use crate::join::spawn_renewal;

/// The settings of a client. Made by [`Client::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct ClientBuilder {
    identity: Option<Identity>,
    start_up_wait: Duration,
    connect_timeout: Duration,
    retry: RetryPolicy,
    credit: u32,
    frames: FrameLimits,
    decode: DecodeLimits,
    tuning: Tuning,
}

/// Long enough for a node that loads a model, short enough to notice a wrong port.
const DEFAULT_START_UP_WAIT: Duration = Duration::from_secs(10);
/// Many round trips, even around the world.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The unread outputs of a stream: hides a round trip, holds little.
const DEFAULT_CREDIT: u32 = 16;

impl ClientBuilder {
    pub(super) fn new() -> Self {
        Self {
            identity: None,
            start_up_wait: DEFAULT_START_UP_WAIT,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            retry: RetryPolicy::default(),
            credit: DEFAULT_CREDIT,
            frames: FrameLimits::default(),
            decode: DecodeLimits::default(),
            tuning: Tuning::default(),
        }
    }

    /// The identity to present. Default: the development identity, which is for this machine only.
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// How long to wait for a node that is not up yet, and how long the calls of streams wait together for a node that
    /// went away. Default 10 s; zero tries each address once. A host name without an address and a node that refuses
    /// end the wait.
    pub fn start_up_wait(mut self, wait: Duration) -> Self {
        self.start_up_wait = wait;
        self
    }

    /// The longest time for one handshake. Default 2 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How a call is made again that was refused, or lost where it may run again. Beside it all calls of the client
    /// have one budget for retries. Calls of a stream wait for room until their deadline, unless this is
    /// [`RetryPolicy::never`]. The [options of a call](callboard_core::CallOptions::with_retry) may have their own policy.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// The most attempts of a call; see [`RetryPolicy::attempts`].
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.retry = self.retry.attempts(attempts);
        self
    }

    /// The most unread outputs of a stream; beyond them the worker waits. Default 16, at least 1.
    pub fn credit(mut self, outputs: u32) -> Self {
        self.credit = outputs.max(1);
        self
    }

    /// The limits of decoding a reply.
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
        let resolver = move || {
            let url = Arc::clone(&url);
            async move { url.resolve(limit).await }.boxed()
        };
        self.connect_to(Box::new(resolver)).await
    }

    /// Connects to the first address of the resolver that answers.
    async fn connect_to(self, resolver: Resolver) -> Result<Client, ConnectError> {
        let addresses = resolver().await?;
        let identity = match &self.identity {
            Some(identity) => identity.clone(),
            None => {
                // Checked before a development identity is made that would be of no use.
                if let Some(address) = addresses.iter().copied().find(|address| !address.ip().is_loopback()) {
                    return Err(IdentityError::LoopbackOnly { address }.into());
                }
                Identity::development()?
            }
        };
        let transport = Arc::new(Transport::calling(identity, &self.tuning)?);
        spawn_renewal(&transport, Vec::new);
        let pool = self.connected_pool(transport, addresses, &resolver).await?;
        pool.set_resolver(resolver);
        let Self { start_up_wait, retry, credit, frames, decode, .. } = self;
        let (retries, absence) = (Mutex::default(), Mutex::new(Absence::new(start_up_wait)));
        Ok(Client { inner: Arc::new(Inner { pool, retries, absence, retry, credit, frames, decode }) })
    }

    /// Tries until a node answers, a try fails for good, or the wait is over. Without a wait, each address is tried
    /// once.
    async fn connected_pool(
        &self,
        transport: Arc<Transport>,
        mut addresses: Vec<SocketAddr>,
        resolver: &Resolver,
    ) -> Result<ConnectionPool, ConnectError> {
        let wait = self.start_up_wait;
        let started = Instant::now();
        let until = started + wait;
        let new_pool = |addresses| {
            ConnectionPool::new(Arc::clone(&transport), addresses, OwnHello::default(), self.connect_timeout)
        };
        let mut pool = new_pool(addresses.clone());
        let mut last = "no answer".to_owned();
        let mut attempt = 0_u32;
        loop {
            attempt = attempt.saturating_add(1);
            let connected = tokio::select! {
                biased;
                connected = pool.connection() => connected,
                () = tokio::time::sleep_until(until), if !wait.is_zero() => {
                    return Err(ConnectError::NoAnswer { waited: elapsed(started), last });
                }
            };
            let Err(failure) = connected else { return Ok(pool) };
            last = failure.to_string();
            let pause = self.retry.pause(attempt, fastrand::f64());
            match failure {
                ConnectFailure::Refused { address, reason } => return Err(ConnectError::Refused { address, reason }),
                // Does not happen to clients, which have no generation.
                ConnectFailure::Stale { address } => return Err(ConnectError::Refused { address, reason: last }),
                _ if Instant::now() + pause > until => {
                    return Err(ConnectError::NoAnswer { waited: elapsed(started), last });
                }
                ConnectFailure::Absent { .. } | ConnectFailure::Closed => tokio::time::sleep(pause).await,
            }
            let found = tokio::select! {
                biased;
                found = resolver() => found?,
                () = tokio::time::sleep_until(until) => {
                    return Err(ConnectError::NoAnswer { waited: elapsed(started), last });
                }
            };
            if found != addresses {
                pool = new_pool(found.clone());
                addresses = found;
            }
        }
    }
}

/// The time since then, in whole milliseconds for people.
fn elapsed(started: Instant) -> Duration {
    Duration::from_millis(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::UdpSocket;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use callboard_core::{App, Caller, Node, Stage};
    use callboard_identity::AddressError;

    use super::*;
    use crate::{CallFailure, NetConfig, QuicEdge};

    const LONG: Duration = Duration::from_secs(60);

    fn unused_address() -> SocketAddr {
        UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    fn identity(name: &str) -> Identity {
        let directory = std::env::temp_dir().join(format!("callboard-{name}-{}", std::process::id()));
        let identity = Identity::development_in(&directory.join("development")).unwrap();
        std::fs::remove_dir_all(directory).unwrap();
        identity
    }

    /// A resolver that returns one address after the other, then none; and the number of its calls.
    fn found_at<const N: usize>(addresses: [SocketAddr; N]) -> (Arc<AtomicUsize>, Resolver) {
        let lookups = Arc::new(AtomicUsize::new(0));
        let counting = Arc::clone(&lookups);
        let resolver = move || {
            let found = addresses.get(counting.fetch_add(1, Ordering::SeqCst)).copied();
            let unresolved = || {
                let source = io::Error::other("Name or service not known");
                AddressError::Unresolved { host: "node:4433".to_owned(), source }
            };
            std::future::ready(found.map(|address| vec![address]).ok_or_else(unresolved)).boxed()
        };
        (lookups, Box::new(resolver))
    }

    fn patient(identity: Identity) -> ClientBuilder {
        ClientBuilder::new().identity(identity).start_up_wait(LONG).connect_timeout(LONG)
    }

    #[tokio::test]
    async fn a_host_whose_name_no_longer_resolves_ends_the_wait() {
        let (lookups, resolver) = found_at([unused_address(), unused_address()]);
        let error = patient(identity("gone")).connect_to(resolver).await.unwrap_err();
        assert!(matches!(error, ConnectError::Address(AddressError::Unresolved { .. })), "{error:?}");
        assert_eq!(lookups.load(Ordering::SeqCst), 3);
    }

    async fn serve(identity: &Identity) -> (QuicEdge, Node) {
        let edge = QuicEdge::bind("127.0.0.1:0".parse().unwrap(), identity.clone(), NetConfig::default()).unwrap();
        let node = App::new().route("/shout", Stage::each("shout", |text: &String| Ok(text.to_uppercase())));
        let node = node.start().await.unwrap();
        edge.open(node.client());
        (edge, node)
    }

    #[tokio::test]
    async fn a_host_that_moves_during_the_wait_is_found() {
        let identity = identity("moves");
        let (edge, _node) = serve(&identity).await;
        let (_, resolver) = found_at([unused_address(), edge.address()]);
        let client = patient(identity).connect_to(resolver).await.unwrap();
        assert_eq!(client.call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
    }

    #[tokio::test]
    async fn a_host_that_has_moved_since_the_last_call_is_found() {
        let identity = identity("moved");
        let (before, _node) = serve(&identity).await;
        let (after, _other) = serve(&identity).await;
        let (lookups, resolver) = found_at([before.address(), before.address(), after.address()]);
        let client = patient(identity).attempts(1).connect_to(resolver).await.unwrap();
        assert_eq!(client.call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
        before.shutdown(LONG).await;
        // The node ended, and the name still has its address.
        let error = client.call::<_, String>("/shout", "a".to_owned()).await.unwrap_err();
        assert_eq!(
            (CallFailure::classify(&error), lookups.load(Ordering::SeqCst)),
            (CallFailure::NeverStarted, 2),
            "{error}"
        );
        for _ in 0..3 {
            assert_eq!(client.call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
        }
        assert_eq!(lookups.load(Ordering::SeqCst), 3);
    }
}
