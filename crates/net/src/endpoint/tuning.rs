//! The knobs of the transport, as measured.

use std::sync::Arc;
use std::time::Duration;

use quinn::{IdleTimeout, TransportConfig, VarInt};

/// How QUIC is tuned. The defaults are for machines that are milliseconds apart.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// After how long a silence a connection is given up. Default 3 s. It is the only way in which a killed peer or a cut wire is
    /// noticed, so it bounds how long a call can hang on one. Pairs with `keep_alive`: at least four of those.
    pub idle_timeout: Duration,
    /// How often an idle connection says that it lives. Default 0.5 s; costs two packets each time.
    pub keep_alive: Duration,
    /// How many bytes of one stream may be on their way unread. Default 8 MiB: 25 Gbit/s at a millisecond and a half.
    pub stream_window_bytes: u32,
    /// The same over all streams of a connection that somebody else has opened. Default 32 MiB. Threat: memory; quinn's own default is
    /// no limit. On a connection of our own each stream has its window to itself, because its number of streams is ours: a reader that
    /// pauses must not hold up the others.
    pub connection_window_bytes: u32,
    /// How many streams a peer may have open towards us, each a call or a pack of up to 32. Default 256. What is beyond waits at the
    /// caller, within its deadline.
    pub max_streams: u32,
    /// How many handshakes may be under way. Default 1,024. Threat: floods of first packets. From a quarter of it on, callers must
    /// first prove that they are where they say.
    pub max_half_open: usize,
    /// Bad weather, for tests. Default none.
    #[doc(hidden)]
    pub faults: Option<crate::testing::Faults>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            idle_timeout: Duration::from_secs(3),
            keep_alive: Duration::from_millis(500),
            stream_window_bytes: 8 << 20,
            connection_window_bytes: 32 << 20,
            max_streams: 256,
            max_half_open: 1024,
            faults: None,
        }
    }
}

/// Longer silences than this are no failure detection any more.
const LONGEST_IDLE: Duration = Duration::from_secs(600);

/// Streams in one direction, for what a node tells without being asked.
const ONE_WAY_STREAMS: u32 = 8;

impl Tuning {
    /// For connections that we open.
    pub(crate) fn calling(&self) -> Arc<TransportConfig> {
        let mut config = self.transport();
        let window = u64::from(self.stream_window_bytes) * u64::from(self.max_streams.max(1));
        config
            .receive_window(VarInt::from_u64(window).unwrap_or(VarInt::MAX))
            .max_concurrent_uni_streams(VarInt::from_u32(ONE_WAY_STREAMS));
        Arc::new(config)
    }

    /// For connections that others open. Nobody reads what they would tell without being asked.
    pub(crate) fn answering(&self) -> Arc<TransportConfig> {
        let mut config = self.transport();
        config.max_concurrent_uni_streams(VarInt::from_u32(0));
        Arc::new(config)
    }

    fn transport(&self) -> TransportConfig {
        let mut config = TransportConfig::default();
        let idle = IdleTimeout::try_from(self.idle_timeout.min(LONGEST_IDLE)).ok();
        config
            .max_idle_timeout(idle)
            .keep_alive_interval(Some(self.keep_alive))
            .stream_receive_window(VarInt::from_u32(self.stream_window_bytes))
            .receive_window(VarInt::from_u32(self.connection_window_bytes))
            .send_window(self.connection_window_bytes.into())
            .max_concurrent_bidi_streams(VarInt::from_u32(self.max_streams))
            // A call is no video: nothing of ours goes in datagrams.
            .datagram_receive_buffer_size(None);
        config
    }
}
