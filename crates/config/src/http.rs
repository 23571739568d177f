//! The settings of the HTTP edge that are fields of its configuration, and mean what they mean there.

use std::time::Duration;

use callboard_http::{HttpConfig, TlsConfig, TrustedProxies};

use super::setting::values::setting_values;
use super::setting::{
    API_KEYS_RELOAD_INTERVAL, BODY_PROGRESS_TIMEOUT, CLOSE_LINGER, HEADER_READ_TIMEOUT, HTTP2_STREAM_WINDOW_BYTES,
    HTTP2_WINDOWS_BYTES, IDLE_TIMEOUT, MAX_CANCELLED_STREAMS, MAX_CONCURRENT_STREAMS, MAX_DECOMPRESSED_BYTES,
    MAX_DEPTH, MAX_ELEMENTS, MAX_HEADER_BYTES, MAX_STRING_BYTES, MAX_TREE_BYTES, MIN_BYTES_PER_SECOND, SHUTDOWN_LINGER,
    TLS_HANDSHAKE_TIMEOUT, TLS_RELOAD_INTERVAL, TRUSTED_PROXIES, WRITE_PROGRESS_TIMEOUT,
};
use super::source::Sourced;

setting_values! {
    /// The limits of the edge, besides those of [`Settings`](super::plan::Settings).
    #[expect(missing_docs, reason = "each is the field of this name in `HttpConfig`, its `decode` or `TlsConfig`")]
    pub struct HttpLimits {
        idle_timeout: Duration = IDLE_TIMEOUT;
        header_read_timeout: Duration = HEADER_READ_TIMEOUT;
        max_header_bytes: u64 = MAX_HEADER_BYTES;
        body_progress_timeout: Duration = BODY_PROGRESS_TIMEOUT;
        write_progress_timeout: Duration = WRITE_PROGRESS_TIMEOUT;
        min_bytes_per_second: u64 = MIN_BYTES_PER_SECOND;
        trusted_proxies: TrustedProxies = TRUSTED_PROXIES;
        max_concurrent_streams: usize = MAX_CONCURRENT_STREAMS;
        http2_stream_window_bytes: u64 = HTTP2_STREAM_WINDOW_BYTES;
        http2_windows_bytes: u64 = HTTP2_WINDOWS_BYTES;
        max_cancelled_streams: usize = MAX_CANCELLED_STREAMS;
        max_depth: usize = MAX_DEPTH;
        max_elements: usize = MAX_ELEMENTS;
        max_string_bytes: u64 = MAX_STRING_BYTES;
        max_tree_bytes: u64 = MAX_TREE_BYTES;
        max_decompressed_bytes: u64 = MAX_DECOMPRESSED_BYTES;
        api_keys_reload_interval: Duration = API_KEYS_RELOAD_INTERVAL;
        tls_handshake_timeout: Duration = TLS_HANDSHAKE_TIMEOUT;
        tls_reload_interval: Duration = TLS_RELOAD_INTERVAL;
        close_linger: Duration = CLOSE_LINGER;
        shutdown_linger: Duration = SHUTDOWN_LINGER;
    }
}

impl HttpLimits {
    /// Sets the fields of the edge.
    pub fn apply(&self, config: &mut HttpConfig) {
        let bytes = |setting: &Sourced<u64>| usize::try_from(setting.value).unwrap_or(usize::MAX);
        let small = |setting: &Sourced<usize>| u32::try_from(setting.value).unwrap_or(u32::MAX);
        config.idle_timeout = self.idle_timeout.value;
        config.header_read_timeout = self.header_read_timeout.value;
        config.max_header_bytes = bytes(&self.max_header_bytes);
        config.body_progress_timeout = self.body_progress_timeout.value;
        config.write_progress_timeout = self.write_progress_timeout.value;
        config.min_bytes_per_second = self.min_bytes_per_second.value;
        config.trusted_proxies = self.trusted_proxies.value.clone();
        config.max_concurrent_streams = small(&self.max_concurrent_streams);
        config.http2_stream_window_bytes = bytes(&self.http2_stream_window_bytes) as u32;
        config.http2_windows_bytes = self.http2_windows_bytes.value;
        config.max_cancelled_streams = small(&self.max_cancelled_streams);
        config.decode.max_depth = self.max_depth.value;
        config.decode.max_elements = self.max_elements.value;
        config.decode.max_string_bytes = bytes(&self.max_string_bytes);
        config.decode.max_tree_bytes = bytes(&self.max_tree_bytes);
        config.decode.max_decompressed_bytes = bytes(&self.max_decompressed_bytes);
        config.api_keys_reload_interval = self.api_keys_reload_interval.value;
        config.close_linger = self.close_linger.value;
        config.shutdown_linger = self.shutdown_linger.value;
        if let Some(tls) = &mut config.tls {
            self.apply_tls(tls);
        }
    }

    /// Sets the timers of a certificate.
    pub fn apply_tls(&self, tls: &mut TlsConfig) {
        tls.handshake_timeout = self.tls_handshake_timeout.value;
        tls.reload_interval = self.tls_reload_interval.value;
    }
}
