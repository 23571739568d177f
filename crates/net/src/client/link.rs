//! One connection to a node, greeted.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use callboard_codec::wire::{FrameKind, FrameLimits, Hello, ResetCode, VERSION, Welcome, frame_head};
use callboard_core::{CallError, DEFAULT_TIMEOUT, MAX_TIMEOUT};
use parking_lot::Mutex;
use quinn::{Connection, ConnectionError, RecvStream};
use tokio::net::UdpSocket;

use super::fault::too_large;
use super::offers::{MAX_OFFERS_BYTES, Offers, Screening, StageOffer};
use super::packer::Packer;
use super::way::Apart;
use crate::endpoint::{ConnectFault, Transport};
use crate::identity::{Clock, Identity, Member, Validity};
use crate::refusal::{explained, is_passing, tls_word};
use crate::stream::{Incoming, Outgoing};

/// The word for a member that was removed.
const REMOVED: &str = "removed_member";

/// A connection that may carry calls.
#[derive(Debug)]
pub(crate) struct Link {
    connection: Connection,
    welcome: Welcome,
    /// What the node offers, as it last said.
    offers: ArcSwap<Offers>,
    /// The stream on which it said so.
    newest_offers: Mutex<Option<u64>>,
    /// Who the node is, and what it may offer.
    member: String,
    screening: Screening,
    going_away: AtomicBool,
    /// The connection is gone. Each call asks, and to ask the connection is to wait for whoever is at it.
    is_closed: AtomicBool,
    /// Small calls, which go together.
    packer: Packer,
    /// Calls that do not, although they are small.
    apart: Apart,
    /// Cloned by each stream that is open for calls.
    streams: Arc<()>,
    /// Until when new calls go on it, and when it ends: either side's certificate is over then.
    retires: SystemTime,
    ends: SystemTime,
    clock: Clock,
    /// Between the two: until then calls go on it while a new link is made.
    outlived_at: SystemTime,
    /// The stream of the greeting, open for as long as the connection is wanted.
    _control: (Outgoing, Incoming),
}

/// What one says of oneself in a hello; a client that is no node says nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Greeting {
    pub(crate) node: String,
    pub(crate) generation: u64,
    /// Where peers reach this node.
    pub(crate) address: Option<SocketAddr>,
}

/// Why there is no link to an address.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum LinkFault {
    /// Nobody is there who takes calls: it may come.
    #[error("{address}: {reason}")]
    Absent { address: SocketAddr, reason: String },
    /// Somebody is there and says no: it will not change by waiting.
    #[error("{address} refused: {reason}")]
    Refused { address: SocketAddr, reason: String },
    /// A younger node of this one's name is there: of several that live under one identity, this one is not wanted.
    #[error("{address} refused: {}", explained("stale_generation"))]
    Stale { address: SocketAddr },
    /// The client itself is at its end.
    #[error("the client is closed")]
    Closed,
}

impl Link {
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    pub(super) fn packer(&self) -> &Packer {
        &self.packer
    }

    pub(super) fn apart(&self) -> &Apart {
        &self.apart
    }

    pub(super) fn streams(&self) -> &Arc<()> {
        &self.streams
    }

    /// How many calls wait to be sent, and how many streams are open for calls.
    #[cfg(feature = "testing")]
    pub(crate) fn in_hand(&self) -> (usize, usize) {
        (self.packer.waiting(), Arc::strong_count(&self.streams).saturating_sub(2))
    }

    /// Whether the node takes an input of so many bytes.
    pub(super) fn check_input(&self, bytes: usize) -> Result<(), CallError> {
        let limit = self.welcome.max_body_bytes;
        match limit > 0 && bytes as u64 > limit {
            true => Err(too_large(format!("the input has {bytes} bytes: the node takes {limit} (max_body_bytes)"))),
            false => Ok(()),
        }
    }

    /// How long a call of this route takes at most whose caller says nothing: as the node has it.
    pub(super) fn default_timeout(&self, route: &str) -> Duration {
        let own = self.offers.load().timeout(route);
        let node = || Some(self.welcome.timeout_millis).filter(|millis| *millis > 0).map(Duration::from_millis);
        own.or_else(node).unwrap_or(DEFAULT_TIMEOUT).min(MAX_TIMEOUT)
    }

    /// Whether this route, or the function of this name, answers with many outputs.
    pub(super) fn streams_route(&self, route: &str) -> bool {
        self.offers.load().streams(route)
    }

    /// Whether all that runs for this route, or the function of this name, may run twice.
    pub(super) fn may_run_again(&self, route: &str) -> bool {
        self.offers.load().may_run_again(route)
    }

    /// The stages that the node runs for others.
    pub(crate) fn offered_stages(&self) -> Vec<String> {
        self.offers.load().stages()
    }

    /// What the node says of this stage, if it runs it.
    pub(crate) fn offer_of_stage(&self, stage: &str) -> Option<StageOffer> {
        self.offers.load().stage(stage)
    }

    /// Whether new calls may go on it.
    pub(crate) fn is_usable(&self) -> bool {
        !self.going_away.load(Ordering::Acquire) && !self.is_closed.load(Ordering::Acquire) && !self.is_outlived()
    }

    /// Whether its certificates are as good as over: there is one in its place, or there should be.
    pub(crate) fn is_outlived(&self) -> bool {
        self.clock.now() >= self.outlived_at
    }

    /// Resolves when it is time for another one in its place: there are certificates that hold for longer.
    pub(crate) async fn retired(&self) {
        until(self.retires, self.clock).await;
    }

    /// Connects and greets.
    pub(crate) async fn open(
        transport: &Transport,
        address: SocketAddr,
        (greeting, screening): (&Greeting, &Screening),
        limit: Duration,
    ) -> Result<Arc<Self>, LinkFault> {
        let absent = |reason: String| LinkFault::Absent { address, reason };
        let connecting = transport.connect(address).map_err(|fault| match fault {
            ConnectFault::Identity(error) => LinkFault::Refused { address, reason: error.to_string() },
            ConnectFault::Connect(error) => absent(error.to_string()),
        })?;
        let own = transport.identity().validity();
        let greeted = async {
            let connection = connecting.await.map_err(|error| connection_fault(address, &error))?;
            Self::greet(transport, connection, address, (greeting, screening), own).await
        };
        tokio::select! {
            biased;
            linked = greeted => linked,
            error = port_refuses(address) => Err(absent(error.to_string())),
            () = tokio::time::sleep(limit) => Err(absent(format!("no answer within {limit:?}"))),
        }
    }

    async fn greet(
        transport: &Transport,
        connection: Connection,
        address: SocketAddr,
        (greeting, screening): (&Greeting, &Screening),
        own: Validity,
    ) -> Result<Arc<Self>, LinkFault> {
        let lost = |connection: &Connection, reason: &str| match connection.close_reason() {
            Some(error) => connection_fault(address, &error),
            None => LinkFault::Absent { address, reason: reason.to_owned() },
        };
        let theirs = Member::of_peer(&connection);
        if theirs.as_ref().is_some_and(|member| transport.identity().is_removed(member)) {
            connection.close(crate::endpoint::code(ResetCode::Refused), REMOVED.as_bytes());
            return Err(LinkFault::Refused { address, reason: explained(REMOVED) });
        }
        let (send, receive) = connection.open_bi().await.map_err(|error| connection_fault(address, &error))?;
        let limits = FrameLimits { max_body_bytes: MAX_OFFERS_BYTES, ..FrameLimits::default() };
        let (mut outgoing, mut incoming) = (Outgoing::new(send), Incoming::new(receive, limits));
        let hello = Hello {
            min_version: 1,
            max_version: VERSION,
            cluster: transport.identity().cluster().to_owned(),
            node: greeting.node.clone(),
            generation: greeting.generation,
            address: greeting.address.map(|address| address.to_string()).unwrap_or_default(),
            build: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let refused = |reason: String| LinkFault::Refused { address, reason };
        let head = frame_head(FrameKind::Hello, 0, &hello, 0).map_err(|error| refused(error.to_string()))?;
        if outgoing.write(&mut [head]).await.is_err() {
            return Err(lost(&connection, "left during the greeting"));
        }
        let head = match incoming.next_head().await {
            Ok(Some(head)) if head.kind == FrameKind::Welcome => head,
            Ok(_) => return Err(refused("no welcome".to_owned())),
            Err(_) => return Err(lost(&connection, "left during the greeting")),
        };
        let welcome: Welcome = head.header().map_err(|error| refused(error.to_string()))?;
        if !(hello.min_version..=hello.max_version).contains(&welcome.version) {
            return Err(refused(format!("it answers in version {}, which was not offered", welcome.version)));
        }
        let Ok(body) = incoming.short_body(&head).await else {
            return Err(lost(&connection, "left during the greeting"));
        };
        let (member, screening) =
            (theirs.as_ref().map(|member| member.name.clone()).unwrap_or_default(), screening.clone());
        let offers = Offers::read(body, member.clone(), Arc::clone(&screening.rules)).await;
        screening.tell(address, &member, &offers, &Offers::default());
        let offers = ArcSwap::from_pointee(offers);
        let going_away = AtomicBool::new(welcome.draining);
        let streams = Arc::default();
        let packer = Packer::spawn(transport.runtime(), connection.clone(), Arc::clone(&streams));
        let (apart, control) = (Apart::default(), (outgoing, incoming));
        let validity = theirs.as_ref().map(|member| member.validity);
        let clock = transport.identity().clock();
        let (retires, ends) = retirement(&own, validity.as_ref(), clock.now());
        let outlived_at = retires + ends.duration_since(retires).unwrap_or_default() / 2;
        let link = Arc::new(Self {
            connection,
            welcome,
            offers,
            newest_offers: Mutex::default(),
            member,
            screening,
            going_away,
            is_closed: AtomicBool::new(false),
            packer,
            apart,
            streams,
            retires,
            ends,
            clock,
            outlived_at,
            _control: control,
        });
        let id = theirs.map(|member| member.id).unwrap_or_default();
        let hearing = hear(Arc::downgrade(&link), link.connection.clone(), transport.identity().clone(), id);
        transport.runtime().spawn(hearing);
        Ok(link)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.connection.close(crate::endpoint::code(ResetCode::Done), b"");
    }
}

/// When a link is to be replaced, and when it ends. What is made when that time has come already is kept to its end: there is nothing
/// better yet.
fn retirement(own: &Validity, theirs: Option<&Validity>, now: SystemTime) -> (SystemTime, SystemTime) {
    let sooner = theirs.filter(|theirs| theirs.not_after < own.not_after).unwrap_or(own);
    let ends = sooner.not_after;
    let retires = ends - sooner.life() / 6;
    (if retires > now { retires } else { ends }, ends)
}

async fn until(moment: SystemTime, clock: Clock) {
    while let Ok(left) = moment.duration_since(clock.now()) {
        // The clock of the system may be set.
        tokio::time::sleep(left.min(Duration::from_secs(30))).await;
        if left.is_zero() {
            return;
        }
    }
}

/// Takes what the node says without being asked, and ends the connection with its certificates.
async fn hear(link: Weak<Link>, connection: Connection, identity: Identity, id: String) {
    let Some((ends, clock)) = link.upgrade().map(|link| (link.ends, link.clock)) else { return };
    tokio::select! {
        () = hear_all(link.clone(), &connection) => {}
        () = until_port_closed(&link, &connection) => connection.close(crate::endpoint::code(ResetCode::Done), b"port_closed"),
        () = identity.until_removed(&id) => connection.close(crate::endpoint::code(ResetCode::Refused), REMOVED.as_bytes()),
        () = until(ends, clock) => connection.close(crate::endpoint::code(ResetCode::Refused), b"outlived_certificate"),
    }
    if let Some(link) = link.upgrade() {
        link.is_closed.store(true, Ordering::Release);
    }
}

/// One that does not end keeps nobody else from being heard: there are no more of
/// them at once than one-way streams.
async fn hear_all(link: Weak<Link>, connection: &Connection) {
    while let Ok(stream) = connection.accept_uni().await {
        tokio::spawn(hear_one(link.clone(), stream));
    }
}

async fn hear_one(link: Weak<Link>, stream: RecvStream) {
    let number = stream.id().index();
    let limits = FrameLimits { max_body_bytes: MAX_OFFERS_BYTES, ..FrameLimits::default() };
    let mut incoming = Incoming::new(stream, limits);
    let Ok(Some(head)) = incoming.next_head().await else { return };
    let Ok(body) = incoming.short_body(&head).await else { return };
    let Some(link) = link.upgrade() else { return };
    match head.kind {
        FrameKind::Goaway => link.going_away.store(true, Ordering::Release),
        FrameKind::Offers => {
            let (member, rules) = (link.member.clone(), Arc::clone(&link.screening.rules));
            let offers = Arc::new(Offers::read(body, member, rules).await);
            let mut newest = link.newest_offers.lock();
            // What was said later may be here sooner.
            if newest.is_none_or(|newest| newest < number) {
                *newest = Some(number);
                link.screening.tell(link.connection.remote_address(), &link.member, &offers, &link.offers.load());
                link.offers.store(offers);
            }
        }
        // What a later version says besides.
        _ => {}
    }
}

fn connection_fault(address: SocketAddr, error: &ConnectionError) -> LinkFault {
    let refused = |reason: String| LinkFault::Refused { address, reason };
    // TLS says no, on either side: a certificate that is not of the cluster, or too old.
    if let Some(word) = tls_word(error) {
        return refused(explained(word));
    }
    match error {
        ConnectionError::ApplicationClosed(close) => {
            let reason = String::from_utf8_lossy(&close.reason).into_owned();
            match ResetCode::from_number(close.error_code.into_inner()) {
                Some(ResetCode::Refused) if is_passing(&reason) => {
                    LinkFault::Absent { address, reason: explained(&reason) }
                }
                Some(ResetCode::Refused) => refused(explained(&reason)),
                Some(ResetCode::StaleGeneration) => LinkFault::Stale { address },
                _ => LinkFault::Absent { address, reason: format!("closed: {}", explained(&reason)) },
            }
        }
        error => LinkFault::Absent { address, reason: error.to_string() },
    }
}

/// Resolves when the system says that nobody has the port, which QUIC itself would only notice by silence.
pub(crate) async fn port_refuses(address: SocketAddr) -> io::Error {
    match ask_port(address).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => error,
        // Somebody has it, or nothing is known.
        _ => std::future::pending().await,
    }
}

/// How long a node may be silent that has calls before its machine is asked whether the port is still there.
const ASK_PORT_EVERY: Duration = Duration::from_millis(50);

/// How long the answer may take that comes from the same machine or the next one. None is no answer.
const PORT_ANSWERS_WITHIN: Duration = Duration::from_millis(20);

/// Resolves when a node that has calls is silent and its machine says that nobody has its port: its process is gone.
async fn until_port_closed(link: &Weak<Link>, connection: &Connection) {
    let mut heard = 0;
    loop {
        tokio::time::sleep(ASK_PORT_EVERY).await;
        // The link itself holds one, and its packer.
        let has_calls = link.upgrade().is_some_and(|link| Arc::strong_count(&link.streams) > 2);
        let now = connection.stats().udp_rx.datagrams;
        let is_silent = std::mem::replace(&mut heard, now) == now;
        if is_silent
            && has_calls
            && tokio::time::timeout(PORT_ANSWERS_WITHIN, port_refuses(connection.remote_address())).await.is_ok()
        {
            return;
        }
    }
}

/// Ends with what the machine of this address says of its port, if it says anything.
async fn ask_port(address: SocketAddr) -> io::Result<()> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(address).await?;
    // Too short to be a packet: an endpoint drops it.
    socket.send(&[0]).await?;
    socket.recv(&mut [0; 1]).await.map(|_| ())
}
