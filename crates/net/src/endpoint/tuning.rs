//! The settings of the transport, as measured.

use std::sync::Arc;
use std::time::Duration;

use quinn::congestion::CubicConfig;
use quinn::{IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};

use super::windows::USUAL_WINDOW_BYTES;

/// Settings of the QUIC transport. The defaults are for machines that are milliseconds apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// How long a connection with calls in hand may leave keep-alives unanswered before it is closed: its other side is
    /// *lost*. Default 3 s, from the first of them on. Each side counts by itself: for the calls that it waits for, or
    /// that it runs. Only this detects a lost machine or a cut wire for calls that may not run again, so it bounds how
    /// long they can hang; a killed process is noticed sooner if its machine reports the port as closed. A shorter
    /// pause of a process or a line loses no call. Should be at least ten times `keep_alive`.
    ///
    /// Without calls a connection is closed after 30 s of silence, or twice this time if that is longer.
    pub idle_timeout: Duration,
    /// How long nothing may arrive on a connection with calls in hand, or keep-alives may have no answer, before its
    /// node counts as *silent*. Default 0.9 s. Nothing is lost then: new calls go to other nodes, calls that may run
    /// again are repeated there, within the retry budget, and the first outcome counts. A shorter time repeats more
    /// calls for nothing, a longer one makes calls to a dead machine slower. More than `keep_alive`; from
    /// `idle_timeout` on, no node is ever silent.
    pub silent_after: Duration,
    /// The interval of keep-alives on a connection with calls in hand on which nothing arrives, and for 10 s after the
    /// last call. Default 0.2 s; costs two packets each time. Without calls it is 10 s.
    pub keep_alive: Duration,
    /// The most unread bytes of one stream. Default 8 MiB: 25 Gbit/s at 1.5 ms.
    pub stream_window_bytes: u32,
    /// The same over all streams of an incoming connection while bodies of its calls arrive. Default 32 MiB. Otherwise
    /// it has 1 MiB, and 128 KiB before its first admitted call. On outgoing connections only the streams have windows,
    /// so that a reader that pauses does not delay the others.
    pub connection_window_bytes: u32,
    /// The most bytes that all incoming connections together may have unread beyond their 128 KiB. Default 128 MiB, and
    /// never more than half of the node's `max_in_flight_bytes`. Threat: memory; quinn's own default is no limit. When
    /// it is used up, bodies arrive at 128 KiB per round trip. Raise it for many large bodies over long lines.
    pub windows_bytes: u64,
    /// The most open streams of a peer, each with up to 32 calls. Default 256. A connection begins with 16, and with
    /// one before its hello; it gets more when its calls are admitted and need them. Further calls wait at the caller,
    /// within their deadlines.
    pub max_streams: u32,
    /// The most connections before their hello. Default 1,024; further ones are refused. Threat: floods of first
    /// packets. From a quarter of it on, callers must first prove their address, which costs them a round trip.
    pub max_half_open: usize,
    /// The most of them from one proven address (IPv6: one /64). Default 128. Threat: one machine that uses up the
    /// limit. If all callers share one address, such as a NAT, set it to `max_half_open`.
    pub max_half_open_per_address: usize,
    /// Whether connections have no other watch than QUIC's own keep-alive and idle timeout, at the times above, as
    /// those of earlier versions had. Default no.
    #[cfg(feature = "testing")]
    pub keeps_alive_by_quic: bool,
    /// Injected faults, for tests. Default none.
    #[cfg(feature = "testing")]
    pub faults: Option<super::faults::Faults>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            idle_timeout: Duration::from_secs(3),
            silent_after: Duration::from_millis(900),
            keep_alive: Duration::from_millis(200),
            stream_window_bytes: 8 << 20,
            connection_window_bytes: 32 << 20,
            windows_bytes: 128 << 20,
            max_streams: 256,
            max_half_open: 1024,
            max_half_open_per_address: 128,
            #[cfg(feature = "testing")]
            keeps_alive_by_quic: false,
            #[cfg(feature = "testing")]
            faults: None,
        }
    }
}

/// The silence after which QUIC closes a connection, for connections without calls. The first keep-alive of the silence
/// starts it again, so the end is 30 s after the last packet. With calls, `Link` watches. QUIC takes the shorter
/// timeout of both sides: a peer of an earlier version offers 3 s, and sends a keep-alive every 0.2 s by itself.
const QUIET_IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// The silence after which QUIC sends a keep-alive, which it repeats until it is acknowledged. Routers that translate
/// addresses forget a line after thirty seconds or more.
const QUIET_KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The buffer for received QUIC datagrams. They are empty and are not read; when it is full, QUIC drops the oldest.
const DATAGRAM_BUFFER_BYTES: usize = 256;

/// A longer timeout would not detect failures.
const LONGEST_IDLE: Duration = Duration::from_secs(600);

/// The largest packet that path MTU discovery tries. Ten packets go to the system at once, and it drops what exceeds 64
/// KiB without an error.
pub(super) const LARGEST_PACKET_BYTES: u16 = 6_500;

/// The initial congestion window: ten packets, as in RFC 9002 (7.2). quinn's own is ten of its smallest packets, which
/// are two of ours: the close of a new connection with unsent data would wait for it, and never leave.
const FIRST_WINDOW_BYTES: u64 = 10 * LARGEST_PACKET_BYTES as u64;

/// One-way streams, on which a node notifies its callers. Callers have none.
const ONE_WAY_STREAMS: u32 = 8;

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{knob} is {found}, and may be {limit}")]
pub struct TuningError {
    knob: &'static str,
    found: String,
    limit: &'static str,
}

impl Tuning {
    /// Refuses values that QUIC would interpret differently, such as zero for no limit.
    pub(crate) fn check(&self) -> Result<(), TuningError> {
        let wrong = |knob, found: String, limit| Err(TuningError { knob, found, limit });
        if self.idle_timeout.is_zero() || self.idle_timeout > LONGEST_IDLE {
            return wrong("idle_timeout", format!("{:?}", self.idle_timeout), "more than zero and at most 600 s");
        }
        if self.keep_alive.is_zero() || self.keep_alive >= self.idle_timeout {
            return wrong("keep_alive", format!("{:?}", self.keep_alive), "more than zero and less than idle_timeout");
        }
        if self.silent_after <= self.keep_alive {
            return wrong("silent_after", format!("{:?}", self.silent_after), "more than keep_alive");
        }
        let windows = [
            ("stream_window_bytes", self.stream_window_bytes),
            ("connection_window_bytes", self.connection_window_bytes),
        ];
        // At least one frame's header, which is read as a whole.
        if let Some((knob, found)) = windows.into_iter().find(|(_, bytes)| !(1 << 16..=1 << 30).contains(bytes)) {
            return wrong(knob, found.to_string(), "from 65536 to 1073741824");
        }
        if !(1..=1 << 20).contains(&self.max_streams) {
            return wrong("max_streams", self.max_streams.to_string(), "from 1 to 1048576");
        }
        if self.max_half_open == 0 {
            return wrong("max_half_open", "0".to_owned(), "1 or more");
        }
        if self.max_half_open_per_address == 0 {
            return wrong("max_half_open_per_address", "0".to_owned(), "1 or more");
        }
        Ok(())
    }

    /// For outgoing connections.
    pub(crate) fn calling(&self) -> Arc<TransportConfig> {
        let mut config = self.transport();
        let window = u64::from(self.stream_window_bytes) * u64::from(self.max_streams.max(1));
        config
            .receive_window(VarInt::from_u64(window).unwrap_or(VarInt::MAX))
            .max_concurrent_uni_streams(VarInt::from_u32(ONE_WAY_STREAMS));
        Arc::new(config)
    }

    /// For incoming connections before their hello: one request on one stream, and no one-way streams. After the hello
    /// their [window](super::ConnectionWindow) decides.
    pub(crate) fn answering(&self) -> Arc<TransportConfig> {
        let mut config = self.transport();
        config
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .max_concurrent_bidi_streams(VarInt::from_u32(1))
            .receive_window(VarInt::from_u32(self.connection_window_bytes.min(USUAL_WINDOW_BYTES)));
        Arc::new(config)
    }

    /// The same for an endpoint without a hello.
    #[cfg(feature = "testing")]
    pub(crate) fn answering_known(&self) -> Arc<TransportConfig> {
        let mut config = self.transport();
        config.max_concurrent_uni_streams(VarInt::from_u32(0));
        Arc::new(config)
    }

    fn transport(&self) -> TransportConfig {
        let mut config = TransportConfig::default();
        let mut congestion = CubicConfig::default();
        congestion.initial_window(FIRST_WINDOW_BYTES);
        // The keep-alive adds its own time.
        let quiet_idle = QUIET_IDLE_TIMEOUT.max((2 * self.idle_timeout).saturating_sub(QUIET_KEEP_ALIVE));
        let mut mtu = MtuDiscoveryConfig::default();
        mtu.upper_bound(LARGEST_PACKET_BYTES);
        config
            .max_idle_timeout(IdleTimeout::try_from(quiet_idle).ok())
            .keep_alive_interval(Some(QUIET_KEEP_ALIVE))
            .stream_receive_window(VarInt::from_u32(self.stream_window_bytes))
            .receive_window(VarInt::from_u32(self.connection_window_bytes))
            .send_window(self.connection_window_bytes.into())
            .max_concurrent_bidi_streams(VarInt::from_u32(self.max_streams))
            .mtu_discovery_config(Some(mtu))
            .congestion_controller_factory(Arc::new(congestion))
            // An empty one is a keep-alive. Calls use none.
            .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER_BYTES))
            .datagram_send_buffer_size(DATAGRAM_BUFFER_BYTES);
        #[cfg(feature = "testing")]
        if self.keeps_alive_by_quic {
            config
                .max_idle_timeout(IdleTimeout::try_from(self.idle_timeout).ok())
                .keep_alive_interval(Some(self.keep_alive))
                .datagram_receive_buffer_size(None);
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_setting_is_named_with_its_limit() {
        assert_eq!(Tuning::default().check(), Ok(()));
        let with = |change: &dyn Fn(&mut Tuning)| {
            let mut tuning = Tuning::default();
            change(&mut tuning);
            tuning.check().unwrap_err().to_string()
        };
        let message = with(&|tuning| tuning.idle_timeout = Duration::ZERO);
        assert_eq!(message, "idle_timeout is 0ns, and may be more than zero and at most 600 s");
        assert!(with(&|tuning| tuning.idle_timeout = Duration::from_secs(601)).starts_with("idle_timeout is 601s"));
        assert!(with(&|tuning| tuning.keep_alive = Duration::ZERO).starts_with("keep_alive is 0ns"));
        let message = with(&|tuning| tuning.keep_alive = tuning.idle_timeout);
        assert_eq!(message, "keep_alive is 3s, and may be more than zero and less than idle_timeout");
        let message = with(&|tuning| tuning.silent_after = tuning.keep_alive);
        assert_eq!(message, "silent_after is 200ms, and may be more than keep_alive");
        assert!(with(&|tuning| tuning.stream_window_bytes = 0).starts_with("stream_window_bytes is 0"));
        assert!(with(&|tuning| tuning.connection_window_bytes = 1 << 31).starts_with("connection_window_bytes is"));
        assert!(with(&|tuning| tuning.max_streams = 0).starts_with("max_streams is 0"));
        assert!(with(&|tuning| tuning.max_half_open = 0).starts_with("max_half_open is 0"));
        let message = with(&|tuning| tuning.max_half_open_per_address = 0);
        assert!(message.starts_with("max_half_open_per_address is 0"), "{message}");
    }
}
