//! The API keys. Only their hashes are kept: no dump and no log contains a key.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use callboard_codec::{edited_text, hex};
use callboard_core::CallOptions;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use thiserror::Error;

use super::rate_limit::{RateLimit, RateLimitError};
use crate::runtime::file_watch::read_bounded;

/// The keys of an edge, by name. Clones share them.
///
/// ```
/// use callboard_http::ApiKeys;
///
/// let keys = ApiKeys::parse("
///     web     dGhpcyBpcyBub3QgYSBrZXk                              20/s
///     batch   sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
/// ")?;
/// assert_eq!(keys.len(), 2);
/// # Ok::<(), callboard_http::ApiKeysError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ApiKeys(Arc<KeyTable>);

#[derive(PartialEq, Eq, Hash)]
struct KeyTable {
    keys: Vec<ApiKey>,
    /// The indices of the keys by the prefixes of their hashes.
    by_prefix: Vec<(u64, usize)>,
    /// Their indices in the order of their names.
    by_name: Vec<usize>,
    /// The file that they were read from.
    file: Option<PathBuf>,
}

#[derive(PartialEq, Eq, Hash)]
struct ApiKey {
    name: Box<str>,
    hash: Hash,
    limit: Option<RateLimit>,
}

type Hash = [u8; 32];

/// Shorter keys can be guessed.
const LEAST_KEY_CHARS: usize = 16;

/// A longer text is not a key: perhaps a certificate, pasted by mistake.
const MOST_KEY_CHARS: usize = 256;

/// More keys belong into a database, in a proxy.
const MOST_KEYS: usize = 10_000;

/// Room for this many keys of the longest kind, with names and comments.
const MAX_FILE_BYTES: u64 = 4 << 20;

const HASHED: &str = "sha256:";

impl ApiKeys {
    /// Reads keys, one per line: a name for logs; the key (16 to 256 visible ASCII characters), or `sha256:` and its
    /// hash in hexadecimal; and an optional [limit](RateLimit). Empty lines and text after `#` are skipped.
    ///
    /// # Errors
    ///
    /// The number of the first invalid line. A message never contains what may be a key.
    pub fn parse(text: &str) -> Result<Self, ApiKeysError> {
        Self::parse_from(text, None)
    }

    /// Reads the keys in this file, as [`parse`](Self::parse) does. An edge reloads them when the file changes
    /// ([`api_keys_reload_interval`](crate::HttpConfig::api_keys_reload_interval)): removed keys are refused from then
    /// on, and the others keep the count of their limit.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, and the errors of `parse`.
    pub fn read(file: impl Into<PathBuf>) -> Result<Self, ApiKeysError> {
        let file = file.into();
        let unreadable = |reason: String| ApiKeysError::Read { file: file.clone(), reason };
        let content = read_bounded(&file, MAX_FILE_BYTES).map_err(|error| unreadable(error.to_string()))?;
        let text = String::from_utf8(content).map_err(|_| unreadable("it is not UTF-8".to_owned()))?;
        Self::parse_from(&text, Some(file))
    }

    /// The file that they were read from, if any.
    pub(super) fn file(&self) -> Option<&Path> {
        self.0.file.as_deref()
    }

    fn parse_from(text: &str, file: Option<PathBuf>) -> Result<Self, ApiKeysError> {
        let mut keys: Vec<ApiKey> = Vec::new();
        let (mut names, mut hashes) = (HashSet::new(), HashSet::new());
        let text = edited_text(text);
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.split('#').next().unwrap_or_default();
            let mut words = content.split_whitespace();
            let Some(name) = words.next() else { continue };
            if name.len() > CallOptions::MAX_CALLER_BYTES {
                return Err(ApiKeysError::LongName { line });
            }
            let key = words.next().ok_or(ApiKeysError::NoKey { line })?;
            let hash = hash_of(key).ok_or(ApiKeysError::BadKey { line })?;
            let limit = words.next().map(RateLimit::parse).transpose();
            let limit = limit.map_err(|source| ApiKeysError::BadLimit { line, source })?;
            if words.next().is_some() {
                return Err(ApiKeysError::TooMuch { line });
            }
            if !(names.insert(name) && hashes.insert(hash)) {
                return Err(ApiKeysError::Twice { line });
            }
            if keys.len() == MOST_KEYS {
                return Err(ApiKeysError::TooMany { most: MOST_KEYS });
            }
            keys.push(ApiKey { name: name.into(), hash, limit });
        }
        if keys.is_empty() {
            return Err(ApiKeysError::None);
        }
        let mut by_prefix: Vec<(u64, usize)> = keys.iter().map(|key| prefix_of(&key.hash)).zip(0..).collect();
        by_prefix.sort_unstable();
        let mut by_name: Vec<usize> = (0..keys.len()).collect();
        by_name.sort_unstable_by_key(|index| &keys[*index].name);
        Ok(Self(Arc::new(KeyTable { keys, by_prefix, by_name, file })))
    }

    /// The number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.keys.len()
    }

    /// Never true: without a key no request would be allowed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.keys.is_empty()
    }

    /// The index of this key. It is found by the prefix of its hash, which clients cannot choose, and compared in full.
    pub(super) fn find(&self, key: &[u8]) -> Option<usize> {
        let hash: Hash = Sha256::digest(key).into();
        let (by_prefix, prefix) = (&self.0.by_prefix, prefix_of(hash.as_ref()));
        let first = by_prefix.partition_point(|(other, _)| *other < prefix);
        let alike = by_prefix[first..].iter().take_while(|(other, _)| *other == prefix);
        let mut found = None;
        for (_, index) in alike {
            if bool::from(self.0.keys[*index].hash.as_slice().ct_eq(hash.as_ref())) {
                found = Some(*index);
            }
        }
        found
    }

    pub(super) fn name(&self, index: usize) -> &str {
        self.0.keys.get(index).map_or("", |key| &key.name)
    }

    /// The index of the key with this name.
    pub(super) fn named(&self, name: &str) -> Option<usize> {
        let KeyTable { keys, by_name, .. } = &*self.0;
        let found = by_name.binary_search_by(|index| (*keys[*index].name).cmp(name));
        found.ok().map(|position| by_name[position])
    }

    pub(super) fn limits(&self) -> impl Iterator<Item = Option<RateLimit>> {
        self.0.keys.iter().map(|key| key.limit)
    }
}

/// Shows names only.
impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys.iter().map(|key| &key.name)).finish()
    }
}

/// Enough of a hash to find it.
fn prefix_of(hash: &[u8]) -> u64 {
    hash.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

fn hash_of(key: &str) -> Option<Hash> {
    if let Some(digits) = key.strip_prefix(HASHED) {
        return hex::decode(digits.as_bytes());
    }
    let fits =
        (LEAST_KEY_CHARS..=MOST_KEY_CHARS).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| Sha256::digest(key.as_bytes()).into())
}

/// The reason why keys cannot be read. Lines count from 1.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ApiKeysError {
    /// Add a key, or set no keys: no client could call anything.
    #[error("there is no key")]
    None,
    /// Use a shorter name.
    #[error("line {line}: a name has at most {} bytes", CallOptions::MAX_CALLER_BYTES)]
    LongName {
        /// The line.
        line: usize,
    },
    /// Write the key after its name.
    #[error("line {line}: a name without a key")]
    NoKey {
        /// The line.
        line: usize,
    },
    /// Use a longer key, such as from `openssl rand -base64 32`.
    #[error(
        "line {line}: a key has {LEAST_KEY_CHARS} to {MOST_KEY_CHARS} visible ASCII characters, or is `sha256:` and 64 \
         hexadecimal digits"
    )]
    BadKey {
        /// The line.
        line: usize,
    },
    /// Correct the limit.
    #[error("line {line}: the third word is the key's limit")]
    BadLimit {
        /// The line.
        line: usize,
        /// The form of a limit.
        #[source]
        source: RateLimitError,
    },
    /// Remove the spaces in the name or key.
    #[error("line {line}: more than a name, a key and a limit")]
    TooMuch {
        /// The line.
        line: usize,
    },
    /// Delete or rename one of the two.
    #[error("line {line}: this name or this key has been there before")]
    Twice {
        /// The second of the two lines.
        line: usize,
    },
    /// Correct the path, or the permissions of the file.
    #[error("cannot read {}: {reason}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Let a proxy check keys.
    #[error("there are more than {most} keys")]
    TooMany {
        /// The limit.
        most: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef";

    #[test]
    fn finds_a_key_by_itself_and_by_its_hash() {
        let hex: String = Sha256::digest(b"fedcba9876543210").iter().map(|byte| format!("{byte:02x}")).collect();
        let keys = ApiKeys::parse(&format!("# ours\nweb {KEY} 5/s # a browser\n\nbatch sha256:{hex}\n")).unwrap();
        let name = |key: &[u8]| keys.find(key).map(|index| keys.name(index));
        assert_eq!(name(KEY.as_bytes()), Some("web"));
        assert_eq!(name(b"fedcba9876543210"), Some("batch"));
        assert_eq!(name(b"0123456789abcdee"), None);
        assert_eq!(name(b""), None);
        assert_eq!([keys.named("web"), keys.named("batch"), keys.named("we")], [Some(0), Some(1), None]);
        assert_eq!(keys.limits().map(|limit| limit.is_some()).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn a_file_of_any_editor_is_read() {
        for text in [format!("\u{feff}# ours\r\nweb {KEY}\r\n"), format!("\u{feff}web {KEY}")] {
            let keys = ApiKeys::parse(&text).unwrap();
            assert_eq!(keys.find(KEY.as_bytes()).map(|index| keys.name(index)), Some("web"));
        }
    }

    #[test]
    fn an_error_names_its_line_and_never_repeats_a_key() {
        let error = |text: &str| ApiKeys::parse(text).unwrap_err();
        assert_eq!(error("# nothing"), ApiKeysError::None);
        assert_eq!(error("web"), ApiKeysError::NoKey { line: 1 });
        assert_eq!(error(&format!("{} {KEY}", "n".repeat(257))), ApiKeysError::LongName { line: 1 });
        assert_eq!(error("\nweb short-secret"), ApiKeysError::BadKey { line: 2 });
        assert_eq!(error("web sha256:12"), ApiKeysError::BadKey { line: 1 });
        assert!(matches!(error(&format!("web {KEY} often")), ApiKeysError::BadLimit { line: 1, .. }));
        assert_eq!(error(&format!("web {KEY} 1/s more")), ApiKeysError::TooMuch { line: 1 });
        assert_eq!(error(&format!("web {KEY}\nother {KEY}")), ApiKeysError::Twice { line: 2 });
        assert_eq!(error(&format!("web {KEY}\nweb {KEY}x")), ApiKeysError::Twice { line: 2 });
        assert!(!error("web short-secret").to_string().contains("short-secret"));
        let shown = format!("{:?}", ApiKeys::parse(&format!("web {KEY}")).unwrap());
        assert_eq!(shown, "{\"web\"}");
    }
}
