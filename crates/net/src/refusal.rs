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

/// As much as anybody needs to know it by, in characters.
const QUOTED: usize = 64;

/// How rustls says that a certificate is not valid yet, for which TLS has no alert of its own.
const NOT_YET: &str = "not valid yet";

/// Every word with which a connection is refused, and those among them that say what a hello was instead of one.
const WORDS: [&str; 47] = [
    "unknown_authority",
    "unknown_certificate",
    "bad_certificate",
    "revoked_certificate",
    "expired_certificate",
    "outlived_certificate",
    "not_yet_valid_certificate",
    "no_certificate",
    "other_cluster",
    "wrong_role",
    "other_role",
    "other_name",
    "other_protocol",
    "quic_version",
    "no_common_version",
    "stale_generation",
    "no_hello",
    "not_a_frame",
    "version",
    "kind",
    "flags",
    "header",
    "header_too_large",
    "body_too_large",
    "truncated",
    "encode",
    "refused",
    "hello_timeout",
    "timed_out",
    "left",
    "lost",
    "closed",
    "handshake",
    "too_many",
    "busy",
    "starting",
    "no_request",
    "bad_request",
    "unknown_token",
    "expired_token",
    "used_up_token",
    "revoked_token",
    "replayed_token",
    "name_taken",
    "bad_name",
    "removed_member",
    "authority_failed",
];

/// Refusals that are over a moment later, or at another address.
const PASSING: [&str; 4] = ["busy", "too_many", "authority_failed", "hello_timeout"];

/// Whether who is refused with this word may come again.
pub(crate) fn is_passing(word: &str) -> bool {
    PASSING.contains(&word)
}

/// Whether the page for operators has this word.
pub(crate) fn is_told(word: &str) -> bool {
    WORDS.contains(&word)
}

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
             (`--cluster DIR`); without one, be the same user on the same machine"
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
        "stale_generation" => {
            "a node that began later is there under the same name: one identity per node. After a start with the clock set back, wait \
             until the connections of the earlier process are gone (the idle timeout, 3 s)"
        }
        "too_many" | "busy" => "it has as many connections as it takes: try again later",
        "starting" => "its stages are not up yet: wait for it, or call another node",
        "removed_member" => "it was removed from the cluster: join again with a new token",
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

/// What somebody else has written, for a line of the log or of a terminal: without anything that moves a cursor, and not for ever.
pub(crate) fn quoted(text: &str) -> String {
    let beginning: String = text.chars().take(QUOTED).collect();
    format!("{beginning:?}{}", if beginning.len() < text.len() { "…" } else { "" })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_for_operators_has_every_word_and_no_other() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
        let page = std::fs::read_to_string(page).expect("a page");
        let rows = page.lines().skip_while(|line| !line.starts_with("| reason | what it says |")).skip(2);
        let rows = rows.take_while(|line| line.starts_with('|'));
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        let told: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        let of =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(of(&told), of(&WORDS));
        assert!(ALERTS.iter().all(|(_, word)| is_told(word)));
        assert!(PASSING.into_iter().all(is_told));
    }

    #[test]
    fn what_others_have_written_is_short_and_moves_no_cursor() {
        assert_eq!(quoted("left"), "\"left\"");
        assert_eq!(quoted("a\u{1b}[2J\nb"), "\"a\\u{1b}[2J\\nb\"");
        let long = quoted(&"\u{7}".repeat(65_000));
        assert!(long.ends_with("\"…") && long.len() < 500, "{long}");
        assert!(quoted(&"x".repeat(64)).ends_with("x\""));
    }
}
