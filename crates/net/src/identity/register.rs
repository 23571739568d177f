//! What an authority has written down: its tokens, who has used them, and its members. Files of one line in its directory.
//!
//! A use of a token and a name are claimed by making a file that may not be there yet, which the system does for one of several at
//! once: no process holds a lock, and a token is not used once too often by two processes, nor by one that dies. Files are small and as
//! many as there are uses and members; tokens that are over are removed when the next one is made.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use callboard_codec::{DecodeLimits, Format, Payload, Value};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::certificate::Role;
use super::error::IdentityError;
use super::files::{failed, private_directory, private_file, read_private};

/// More uses than this are no join but a public service.
pub(super) const MAX_USES: u32 = 1_000;

/// What is kept of a token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Token {
    pub(super) role: String,
    pub(super) uses: u32,
    /// When it ends, in seconds since 1970.
    pub(super) expires: u64,
    /// How long its certificates hold, in seconds.
    pub(super) life: u64,
    /// What its proofs are checked with: nobody can join with it.
    pub(super) public_key: String,
}

/// A member of the cluster: who has a certificate, and may have it renewed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) id: String,
    pub(super) role: String,
    /// The key with which it has joined: who asks again because no answer came is the same one.
    pub(super) joined_with: String,
    /// When it has joined, in seconds since 1970.
    pub(super) joined: u64,
}

/// The directory of an authority.
#[derive(Clone, Debug)]
pub(super) struct Register {
    tokens: PathBuf,
    members: PathBuf,
}

impl Register {
    pub(super) fn new(directory: &Path) -> Self {
        Self { tokens: directory.join("tokens"), members: directory.join("members") }
    }

    /// Keeps a new token, and forgets those that are over.
    pub(super) fn add_token(&self, id: &str, token: &Token, now: SystemTime) -> Result<(), IdentityError> {
        private_directory(&self.tokens).map_err(|source| failed(&self.tokens, source))?;
        self.sweep(now);
        let path = self.tokens.join(id);
        private_file(&path, &written(token)?).map_err(|source| failed(&path, source))
    }

    /// The token of this id, which comes from outside.
    pub(super) fn token(&self, id: &str) -> Result<Option<Token>, IdentityError> {
        let is_id = id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_id { read(&self.tokens.join(id)) } else { Ok(None) }
    }

    /// Takes one use of a token for whoever has this key; the same one that asks again has it already. `false`: all are taken.
    pub(super) fn claim_use(&self, id: &str, token: &Token, key: &str) -> Result<bool, IdentityError> {
        for number in 1..=token.uses.min(MAX_USES) {
            let path = self.tokens.join(format!("{id}.{number}"));
            match private_file(&path, key) {
                Ok(()) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    if read_private(&path)? == key {
                        return Ok(true);
                    }
                }
                Err(source) => return Err(failed(&path, source)),
            }
        }
        Ok(false)
    }

    /// The member of this name, which comes from outside and is a label.
    pub(super) fn member(&self, name: &str) -> Result<Option<Entry>, IdentityError> {
        read(&self.members.join(name))
    }

    /// Takes a name. `false`: it is taken.
    pub(super) fn claim_name(&self, name: &str, entry: &Entry) -> Result<bool, IdentityError> {
        private_directory(&self.members).map_err(|source| failed(&self.members, source))?;
        let path = self.members.join(name);
        match private_file(&path, &written(entry)?) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(source) => Err(failed(&path, source)),
        }
    }

    /// Forgets a member. `false`: there is none of that name.
    pub(super) fn remove_member(&self, name: &str) -> Result<bool, IdentityError> {
        let path = self.members.join(name);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(failed(&path, source)),
        }
    }

    /// Every member with its name, in the order of names.
    pub(super) fn members(&self) -> Result<Vec<(String, Entry)>, IdentityError> {
        let mut members = Vec::new();
        for name in names(&self.members)? {
            if let Some(entry) = self.member(&name)? {
                members.push((name, entry));
            }
        }
        members.sort_by(|(left, _), (right, _)| left.cmp(right));
        Ok(members)
    }

    /// Best effort: one that is left is refused all the same.
    fn sweep(&self, now: SystemTime) {
        let names = names(&self.tokens).unwrap_or_default();
        let is_over = |id: &str| matches!(self.token(id), Ok(Some(token)) if is_over(&token, now));
        for id in names.iter().filter(|id| is_over(id)) {
            for name in
                names.iter().filter(|name| name.strip_prefix(id.as_str()).is_some_and(|rest| rest.starts_with('.')))
            {
                let _ = fs::remove_file(self.tokens.join(name));
            }
            let _ = fs::remove_file(self.tokens.join(id));
        }
    }
}

/// Whether a token has expired.
pub(super) fn is_over(token: &Token, now: SystemTime) -> bool {
    seconds(now) >= token.expires
}

/// Since 1970.
pub(super) fn seconds(moment: SystemTime) -> u64 {
    moment.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

fn names(directory: &Path) -> Result<Vec<String>, IdentityError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(failed(directory, source)),
    };
    Ok(entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.'))
        .collect())
}

fn written<T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static>(
    record: &T,
) -> Result<String, IdentityError> {
    let encoded = Payload::new(record.clone()).encode(Format::Json);
    let encoded = encoded.map_err(|error| IdentityError::Unusable(error.into()))?;
    Ok(format!("{}\n", String::from_utf8_lossy(&encoded)))
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, IdentityError> {
    if !path.exists() {
        return Ok(None);
    }
    let text = read_private(path)?;
    let record =
        Value::decode(Format::Json, &text.into(), &DecodeLimits::default()).and_then(|value| value.deserialize());
    record.map(Some).map_err(|error| IdentityError::Damaged { path: path.to_owned(), reason: error.to_string() })
}

/// The role of a record.
pub(super) fn role(text: &str, path: &Path) -> Result<Role, IdentityError> {
    text.parse().map_err(|reason: &str| IdentityError::Damaged { path: path.to_owned(), reason: reason.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(name: &str) -> Register {
        let directory = std::env::temp_dir().join(format!("callboard-register-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        private_directory(&directory).unwrap();
        Register::new(&directory)
    }

    fn token(uses: u32, expires: u64) -> Token {
        Token { role: "node".to_owned(), uses, expires, life: 60, public_key: "00".to_owned() }
    }

    const ID: &str = "0123456789abcdef";

    #[test]
    fn many_at_once_have_no_more_uses_than_there_are_and_each_key_has_one() {
        let register = register("uses");
        let token = token(3, u64::MAX);
        register.add_token(ID, &token, UNIX_EPOCH).unwrap();
        let claimed: usize = std::thread::scope(|scope| {
            let claiming: Vec<_> = (0..16)
                .map(|key| {
                    let (register, token) = (&register, &token);
                    scope.spawn(move || register.claim_use(ID, token, &format!("key {key}")).unwrap())
                })
                .collect();
            claiming.into_iter().map(|claimed| usize::from(claimed.join().unwrap())).sum()
        });
        assert_eq!(claimed, 3);
        let first = fs::read_to_string(register.tokens.join(format!("{ID}.1"))).unwrap();
        assert!(register.claim_use(ID, &token, &first).unwrap(), "who asks again has its use already");
    }

    #[test]
    fn a_token_that_is_over_goes_with_its_uses_when_the_next_one_comes() {
        let register = register("sweep");
        let old = token(2, 100);
        register.add_token(ID, &old, UNIX_EPOCH).unwrap();
        assert!(register.claim_use(ID, &old, "key").unwrap());
        let now = UNIX_EPOCH + Duration::from_secs(100);
        assert!(is_over(&old, now) && !is_over(&old, now - Duration::from_secs(1)));
        register.add_token("fedcba9876543210", &token(1, 200), now).unwrap();
        assert_eq!(register.token(ID).unwrap(), None);
        assert_eq!(names(&register.tokens).unwrap(), ["fedcba9876543210"]);
    }

    #[test]
    fn an_id_from_outside_names_no_other_file() {
        let register = register("path");
        for id in ["../authority.key", "", "..", "0123456789abcdeg", "0123456789abcdef.1"] {
            assert_eq!(register.token(id).unwrap(), None, "{id}");
        }
    }
}
