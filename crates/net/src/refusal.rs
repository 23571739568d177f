//! The words with which connections are refused, and what to do about each.
//!
//! A refusal is one word, the same in the metrics, in the log, and in what the refused side hears; what to do about it is told to people
//! on both sides. What TLS refuses has no word of ours on the wire but an alert, which becomes one here, whichever side has raised it.

use std::error::Error;

use quinn::ConnectionError;

use crate::endpoint::tls_alert;

/// TLS alerts (RFC 8446, B.2).
const ALERTS: [(u64, &str); 11] = [
    (40, "no_certificate"),
    (42, "bad_certificate"),
    // Of another use than it is shown for: a client's, where a node's is expected.
    (43, "wrong_role"),
    (44, "revoked_certificate"),
    (45, "expired_certificate"),
    (46, "unknown_certificate"),
    (48, "unknown_authority"),
    // A certificate that names the right authority, and is not signed by it.
    (51, "unknown_authority"),
    (109, "no_certificate"),
    (116, "no_certificate"),
    (120, "other_protocol"),
];

/// How rustls says that a certificate is not valid yet, for which TLS has no alert of its own.
const NOT_YET: &str = "not valid yet";

/// The word for what TLS has refused, on this side or the other.
pub(crate) fn tls_word(error: &ConnectionError) -> Option<&'static str> {
    let alert = tls_alert(error)?;
    let said = match error {
        ConnectionError::TransportError(error) => error.reason.clone(),
        ConnectionError::ConnectionClosed(close) => String::from_utf8_lossy(&close.reason).into_owned(),
        _ => String::new(),
    };
    let word = ALERTS.iter().find(|(known, _)| *known == alert).map_or("handshake", |(_, word)| *word);
    Some(if word == "expired_certificate" && said.contains(NOT_YET) { "not_yet_valid_certificate" } else { word })
}

/// What the refused side can do about it; nothing for a word that a later version may have.
pub(crate) fn advice(word: &str) -> &'static str {
    match word {
        "unknown_authority" | "bad_certificate" | "unknown_certificate" => {
            "the certificate is not of this cluster's authority: join the cluster (`callboard cluster join`) and name that identity \
             (`--cluster DIR`)"
        }
        "other_cluster" => "it is of another cluster: name the identity of its cluster (`--cluster DIR`)",
        "expired_certificate" => {
            "the certificate has expired: join again with a new token, and see why it was not renewed in time"
        }
        "not_yet_valid_certificate" => "the certificate is not valid yet: set the clocks of both machines right",
        "no_certificate" => "a certificate is needed: join the cluster first (`callboard cluster join`)",
        "wrong_role" => {
            "the certificate's role does not allow that: join with a token of role node (`callboard cluster token`)"
        }
        "other_name" => "the certificate is of a node of another name",
        "outlived_certificate" => "the certificate has expired meanwhile: connect again with the one in its place",
        "other_protocol" => {
            "nothing of that protocol is spoken there: to join, name the node that serves the authority's directory"
        }
        "no_common_version" => "there is no version that both speak: bring the older one up to date",
        "too_many" | "busy" => "it has as many connections as it takes: try again later",
        "revoked_certificate" => "the certificate was taken back: join again with a new token",
        _ => "",
    }
}

/// A word with what to do about it.
pub(crate) fn explained(word: &str) -> String {
    match advice(word) {
        "" => word.to_owned(),
        advice => format!("{word}: {advice}"),
    }
}

/// An error with what is behind it, on one line.
pub(crate) fn with_sources(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
