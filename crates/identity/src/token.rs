//! A token for joining a cluster: its text, and the proof of having it.
//!
//! ```text
//!  cbt1-PIN-ID-SECRET        in hexadecimal digits: 16, 8 and 16 bytes
//!        │   │    └── never crosses the wire, and the authority does not keep it
//!        │   └─────── identifies the token at the authority
//!        └─────────── the pin of the authority's certificate: only that authority may receive the proof
//! ```
//!
//! The secret is the seed of a signing key (Ed25519, RFC 8032). The authority stores only the public key, so its files
//! are not enough to join. The signed text contains a secret of the TLS connection (an exporter, RFC 9266), so a
//! recorded or forwarded proof is invalid on another connection; and the certificate request, so the proof is invalid
//! for another key.

use std::fmt;
use std::str::FromStr;

use callboard_codec::hex;
use ring::rand::SecureRandom;
use ring::signature::{ED25519, ED25519_PUBLIC_KEY_LEN, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use ring::{digest, rand};

use crate::error::IdentityError;

/// The beginning of every token.
const PREFIX: &str = "cbt1-";

/// The label of the connection's exported secret.
pub const EXPORTER_LABEL: &[u8] = b"EXPORTER-callboard-join-1";

/// The length of an Ed25519 signature.
const SIGNATURE_BYTES: usize = 64;

/// The length of the exported secret.
pub const EXPORTED_BYTES: usize = 32;

/// Lets its holder join a cluster once, or as often as it allows. Treat it as a password: any holder may join.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    pin: [u8; 16],
    id: [u8; 8],
    secret: [u8; 16],
}

/// The text is not a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a token: expected cbt1-… as `callboard cluster token` prints it, in one piece")]
pub struct InvalidToken;

impl JoinToken {
    pub(crate) fn generate(pin: [u8; 16]) -> Result<Self, IdentityError> {
        let (mut id, mut secret) = ([0; 8], [0; 16]);
        let random = rand::SystemRandom::new();
        let filled = random.fill(&mut id).and_then(|()| random.fill(&mut secret));
        filled.map_err(|_| IdentityError::no_random())?;
        Ok(Self { pin, id, secret })
    }

    /// The pin of the authority's certificate.
    #[must_use]
    pub fn pin(&self) -> [u8; 16] {
        self.pin
    }

    /// Identifies the token at its authority.
    #[must_use]
    pub fn id(&self) -> String {
        hex::encode(&self.id)
    }

    /// The public key that the authority stores.
    pub(crate) fn public_key(&self) -> String {
        hex::encode(self.key().public_key().as_ref())
    }

    /// Proves the token on the connection that exported these bytes, for this name and request only.
    #[must_use]
    pub fn proof(&self, exported: &[u8; EXPORTED_BYTES], name: &str, request: &[u8]) -> String {
        hex::encode(self.key().sign(&signed(exported, name, request)).as_ref())
    }

    fn key(&self) -> Ed25519KeyPair {
        let seed = digest::digest(&digest::SHA256, &[b"callboard join token".as_slice(), &self.secret].concat());
        Ed25519KeyPair::from_seed_unchecked(seed.as_ref()).expect("a digest has the length of a seed")
    }
}

/// Whether the proof was made by the token with this public key.
pub(crate) fn is_proven(
    public_key: &str,
    proof: &str,
    exported: &[u8; EXPORTED_BYTES],
    name: &str,
    request: &[u8],
) -> bool {
    let key: Option<[u8; ED25519_PUBLIC_KEY_LEN]> = hex::decode(public_key.as_bytes());
    let proof: Option<[u8; SIGNATURE_BYTES]> = hex::decode(proof.as_bytes());
    let (Some(key), Some(proof)) = (key, proof) else { return false };
    UnparsedPublicKey::new(&ED25519, key).verify(&signed(exported, name, request), &proof).is_ok()
}

fn signed(exported: &[u8; EXPORTED_BYTES], name: &str, request: &[u8]) -> Vec<u8> {
    let digest = |bytes: &[u8]| digest::digest(&digest::SHA256, bytes);
    // Each part has a fixed length.
    [b"callboard join 1", exported.as_slice(), digest(name.as_bytes()).as_ref(), digest(request).as_ref()].concat()
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}-{}-{}", hex::encode(&self.pin), hex::encode(&self.id), hex::encode(&self.secret))
    }
}

/// Shows the id, never the secret.
impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl FromStr for JoinToken {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let mut parts = text.trim().strip_prefix(PREFIX).ok_or(InvalidToken)?.split('-');
        let token = Self { pin: part(parts.next())?, id: part(parts.next())?, secret: part(parts.next())? };
        parts.next().map_or(Ok(token), |_| Err(InvalidToken))
    }
}

fn part<const N: usize>(text: Option<&str>) -> Result<[u8; N], InvalidToken> {
    text.and_then(|digits| hex::decode(digits.as_bytes())).ok_or(InvalidToken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_round_trips_through_its_text_and_hides_its_secret() {
        let token = JoinToken::generate([7; 16]).unwrap();
        let text = token.to_string();
        assert_eq!(text.parse::<JoinToken>().unwrap(), token);
        assert_eq!(format!(" {text}\n").parse::<JoinToken>().unwrap(), token);
        let secret = text.rsplit('-').next().unwrap();
        assert!(!format!("{token:?}").contains(secret));
        assert!(!token.public_key().contains(secret));
    }

    #[test]
    fn an_invalid_token_is_refused() {
        let token = JoinToken::generate([7; 16]).unwrap().to_string();
        let wrong =
            ["", "cbt1-", "cbt1-00-00-00", &token[5..], &token[..token.len() - 1], &format!("{token}-00"), "cbt1-é"];
        for text in wrong {
            assert_eq!(text.parse::<JoinToken>(), Err(InvalidToken), "{text}");
        }
    }

    #[test]
    fn a_proof_is_valid_for_one_connection_one_name_and_one_request() {
        let (token, other) = (JoinToken::generate([7; 16]).unwrap(), JoinToken::generate([7; 16]).unwrap());
        let proof = token.proof(&[1; 32], "left", b"request");
        let proven = |key: &str, exported: u8, name: &str, request: &[u8]| {
            is_proven(key, &proof, &[exported; 32], name, request)
        };
        assert!(proven(&token.public_key(), 1, "left", b"request"));
        assert!(!proven(&token.public_key(), 2, "left", b"request"));
        assert!(!proven(&token.public_key(), 1, "right", b"request"));
        assert!(!proven(&token.public_key(), 1, "left", b"another"));
        assert!(!proven(&other.public_key(), 1, "left", b"request"));
        assert!(!is_proven("no digits", &proof, &[1; 32], "left", b"request"));
        assert!(!is_proven(&token.public_key(), "é", &[1; 32], "left", b"request"));
    }
}
