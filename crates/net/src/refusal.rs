//! Reasons for refusing a connection, their words, and advice for the refused side.
//!
//! A reason is one word in the metrics, in the log, and in the close frame that the refused side receives. Advice is
//! added for people on both sides. TLS refuses with an alert, which becomes a reason on either side.

use callboard_codec::wire::{ResetCode, WireError};
use callboard_codec::words;
use callboard_identity::JoinDenied;
use quinn::{Connection, ConnectionError, VarInt};

words! {
    /// The reason why a connection is refused.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(crate) enum RefusalReason {
        UnknownAuthority => "unknown_authority",
        UnknownCertificate => "unknown_certificate",
        BadCertificate => "bad_certificate",
        RevokedCertificate => "revoked_certificate",
        ExpiredCertificate => "expired_certificate",
        OutlivedCertificate => "outlived_certificate",
        NotYetValidCertificate => "not_yet_valid_certificate",
        NoCertificate => "no_certificate",
        OtherCluster => "other_cluster",
        WrongRole => "wrong_role",
        OtherRole => "other_role",
        OtherName => "other_name",
        OtherProtocol => "other_protocol",
        QuicVersion => "quic_version",
        NoCommonVersion => "no_common_version",
        StaleGeneration => "stale_generation",
        NoHello => "no_hello",
        NotAFrame => "not_a_frame",
        FrameVersion => "version",
        FrameKind => "kind",
        FrameFlags => "flags",
        FrameHeader => "header",
        HeaderTooLarge => "header_too_large",
        BodyTooLarge => "body_too_large",
        Truncated => "truncated",
        Encode => "encode",
        Refused => "refused",
        HelloTimeout => "hello_timeout",
        TimedOut => "timed_out",
        Left => "left",
        Lost => "lost",
        Closed => "closed",
        Handshake => "handshake",
        TooMany => "too_many",
        Busy => "busy",
        Starting => "starting",
        NoRequest => "no_request",
        BadRequest => "bad_request",
        UnknownToken => "unknown_token",
        ExpiredToken => "expired_token",
        UsedUpToken => "used_up_token",
        RevokedToken => "revoked_token",
        ReplayedToken => "replayed_token",
        NameTaken => "name_taken",
        BadName => "bad_name",
        RemovedMember => "removed_member",
        EndingIssuer => "ending_issuer",
        AuthorityFailed => "authority_failed",
    }
}

impl RefusalReason {
    /// The reason of a word. `None`: a later version may have further words.
    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word)
    }

    /// The reason of a TLS alert (RFC 8446, B.2) that ended a handshake. `None`: TLS did not end it.
    pub(crate) fn from_tls(error: &ConnectionError) -> Option<Self> {
        let (alert, text) = tls_alert(error)?;
        Some(match alert {
            40 | 109 | 116 => Self::NoCertificate,
            42 => Self::BadCertificate,
            // The certificate does not allow this use: a client's, where a node's is expected.
            43 => Self::WrongRole,
            44 => Self::RevokedCertificate,
            // TLS has no separate alert for a certificate that is not valid yet; rustls says so in the text.
            45 if text.contains("not valid yet") => Self::NotYetValidCertificate,
            45 => Self::ExpiredCertificate,
            46 => Self::UnknownCertificate,
            // 51: the certificate names the right authority, but its signature is wrong.
            48 | 51 => Self::UnknownAuthority,
            120 => Self::OtherProtocol,
            _ => Self::Handshake,
        })
    }

    /// The reason of a handshake that failed.
    pub(crate) fn from_handshake(error: &ConnectionError) -> Self {
        Self::from_tls(error).unwrap_or(match error {
            ConnectionError::TransportError(_) => Self::Handshake,
            ConnectionError::TimedOut => Self::TimedOut,
            ConnectionError::ApplicationClosed(_) | ConnectionError::ConnectionClosed(_) | ConnectionError::Reset => {
                Self::Left
            }
            ConnectionError::VersionMismatch => Self::QuicVersion,
            ConnectionError::LocallyClosed | ConnectionError::CidsExhausted => Self::Closed,
        })
    }

    /// Whether the refused side may succeed later, or at another address.
    pub(crate) fn is_transient(self) -> bool {
        matches!(self, Self::Busy | Self::TooMany | Self::EndingIssuer | Self::AuthorityFailed | Self::HelloTimeout)
    }

    /// Advice for the refused side; empty if there is none.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            Self::UnknownAuthority | Self::BadCertificate | Self::UnknownCertificate => {
                "the certificate is not of this cluster's authority: join the cluster (`callboard cluster join`) and name that \
                 identity (`--cluster DIR`); without one, be the same user on the same machine"
            }
            Self::OtherCluster => "it is of another cluster: name the identity of its cluster (`--cluster DIR`)",
            Self::ExpiredCertificate => {
                "the certificate has expired: join again with a new token, and see why it was not renewed in time"
            }
            Self::NotYetValidCertificate => "the certificate is not valid yet: set the clocks of both machines right",
            Self::NoCertificate => "a certificate is needed: join the cluster first (`callboard cluster join`)",
            Self::WrongRole => {
                "the certificate's role does not allow that: join with a token of role node (`callboard cluster token`)"
            }
            Self::OtherName => "the certificate is of a node of another name",
            Self::OutlivedCertificate => {
                "the certificate expired while the connection was open: connect again with the renewed one"
            }
            Self::OtherProtocol => {
                "the node does not speak that protocol: to join, name the node that serves the authority's directory"
            }
            Self::NoCommonVersion => "the two sides have no common version: update the older one",
            Self::StaleGeneration => {
                "a node that began later is connected under the same name: use one identity per node. After a start with the \
                 clock set back, wait until the connections of the earlier process are gone (`quic.idle_timeout`, 3 s by default)"
            }
            Self::TooMany | Self::Busy => "the node is at its limit of connections: try again later",
            Self::Starting => "its stages are not up yet: wait for it, or call another node",
            Self::RemovedMember => "it was removed from the cluster: join again with a new token",
            Self::RevokedCertificate => "the certificate was revoked: join again with a new token",
            _ => "",
        }
    }

    /// Its word and advice.
    pub(crate) fn explained(self) -> String {
        explained(self.as_str())
    }

    /// Closes a connection for this reason.
    pub(crate) fn close(self, connection: &Connection) {
        let code = match self {
            Self::StaleGeneration => ResetCode::StaleGeneration,
            // The caller may wait for the node.
            Self::Starting => ResetCode::Draining,
            _ => ResetCode::Refused,
        };
        connection.close(VarInt::from_u32(code.number()), self.as_str().as_bytes());
    }
}

impl From<&WireError> for RefusalReason {
    fn from(error: &WireError) -> Self {
        match error {
            WireError::NotAFrame { .. } => Self::NotAFrame,
            WireError::Version { .. } => Self::FrameVersion,
            WireError::Kind { .. } => Self::FrameKind,
            WireError::Flags { .. } => Self::FrameFlags,
            WireError::HeaderTooLarge { .. } => Self::HeaderTooLarge,
            WireError::BodyTooLarge { .. } => Self::BodyTooLarge,
            WireError::Truncated { .. } => Self::Truncated,
            WireError::Encode { .. } => Self::Encode,
            WireError::Header { .. } => Self::FrameHeader,
            _ => Self::Refused,
        }
    }
}

impl From<&JoinDenied> for RefusalReason {
    fn from(denied: &JoinDenied) -> Self {
        match denied {
            JoinDenied::OtherCluster => Self::OtherCluster,
            JoinDenied::UnknownToken => Self::UnknownToken,
            JoinDenied::ExpiredToken => Self::ExpiredToken,
            JoinDenied::RevokedToken => Self::RevokedToken,
            JoinDenied::UsedUpToken => Self::UsedUpToken,
            JoinDenied::ReplayedToken => Self::ReplayedToken,
            JoinDenied::InvalidRequest(_) => Self::BadRequest,
            JoinDenied::InvalidName(_) => Self::BadName,
            JoinDenied::EndingIssuer => Self::EndingIssuer,
            JoinDenied::NameTaken(_) => Self::NameTaken,
            JoinDenied::OtherRole(_) => Self::OtherRole,
            JoinDenied::RemovedMember(_) => Self::RemovedMember,
            JoinDenied::NoCertificate => Self::NoCertificate,
            JoinDenied::Failed(_) => Self::AuthorityFailed,
        }
    }
}

/// A word from a peer, with advice where it is a known reason.
pub(crate) fn explained(word: &str) -> String {
    match RefusalReason::from_word(word).map_or("", RefusalReason::advice) {
        "" => word.to_owned(),
        advice => format!("{word}: {advice}"),
    }
}

/// The TLS alert that ended a handshake, raised by either side (RFC 9001, 4.8), and the text with it. In TLS 1.3 the
/// alert of a server that rejects the client's certificate arrives after the client has completed its handshake.
fn tls_alert(error: &ConnectionError) -> Option<(u64, String)> {
    let (number, text) = match error {
        ConnectionError::TransportError(error) => (u64::from(error.code), error.reason.clone()),
        ConnectionError::ConnectionClosed(close) => {
            (u64::from(close.error_code), String::from_utf8_lossy(&close.reason).into_owned())
        }
        _ => return None,
    };
    (0x100..0x200).contains(&number).then(|| (number - 0x100, text))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_operations_page_lists_exactly_the_known_words() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations/clusters.md");
        let page = std::fs::read_to_string(page).expect("a page");
        let rows = page.lines().skip_while(|line| !line.starts_with("| reason | what it says |")).skip(2);
        let rows = rows.take_while(|line| line.starts_with('|'));
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        let documented: BTreeSet<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        assert_eq!(documented, RefusalReason::ALL.iter().map(|reason| reason.as_str()).collect());
    }

    #[test]
    fn a_word_has_its_reason_and_an_unknown_word_has_none() {
        for reason in RefusalReason::ALL {
            assert_eq!(RefusalReason::from_word(reason.as_str()), Some(reason));
        }
        assert_eq!(RefusalReason::from_word("another"), None);
        assert_eq!(explained("another"), "another");
    }
}
