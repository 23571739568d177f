//! What an authority has written down: its tokens, who has used them, and its members. Files of one line in its directory.
//!
//! A use of a token and a name are claimed by linking a file, whole, to where none may be yet, which the system does for one of several
//! at once: no process holds a lock, and a token is not used once too often by two processes, nor by one that dies. A use belongs to one
//! key under one name, and stays spent when that member is removed. Files are small and as many as there are uses and members; tokens
//! that are over are removed when the next one is made. What cannot be read holds up nothing but itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use callboard_codec::{DecodeLimits, Format, Payload, Value};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::authority::MAX_LIFE;
use super::certificate::Role;
use super::error::IdentityError;
use super::files::{
    claim_private_file, failed, private_directory, read_private, remove_private_file, replace_private_file,
};
use super::removed::Removed;

/// More uses than this are no join but a public service.
pub(super) const MAX_USES: u32 = 1_000;

/// A removed member is remembered for so much longer than its certificates hold.
const REMOVED_FOR_LONGER: Duration = Duration::from_secs(3600);

/// Who has a use whose member was removed: nobody, which is no key and no name.
const NOBODY: &str = "removed";

/// What is kept of a token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Token {
    pub(super) role: String,
    pub(super) uses: u32,
    /// When it ends, in seconds since 1970.
    pub(super) expires: u64,
    /// How long its certificates hold, in seconds.
    #[serde(rename = "life")]
    pub(super) certificate_life: u64,
    /// What its proofs are checked with: nobody can join with it.
    pub(super) public_key: String,
    /// It was taken back. The record stays until it is over, so that its holder is told what has become of it.
    #[serde(default)]
    pub(super) revoked: bool,
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
    /// The id of the token with which it has joined.
    #[serde(default)]
    pub(super) token: String,
    /// How long its certificates hold, in seconds; 0 where that was not written down.
    #[serde(default, rename = "life")]
    pub(super) certificate_life: u64,
}

/// Entries with their names, and what is wrong with those that cannot be read.
pub(super) type Read = (Vec<(String, Entry)>, Vec<IdentityError>);

/// The directory of an authority.
#[derive(Clone, Debug)]
pub(super) struct Register {
    tokens: PathBuf,
    members: PathBuf,
    /// One file for each member that was removed, by its id, until its last certificate is over.
    removed: PathBuf,
}

impl Register {
    pub(super) fn new(directory: &Path) -> Self {
        let [tokens, members, removed] = ["tokens", "members", "removed"].map(|name| directory.join(name));
        Self { tokens, members, removed }
    }

    /// Keeps a new token, and forgets those that are over.
    pub(super) fn add_token(&self, id: &str, token: &Token, now: SystemTime) -> Result<(), IdentityError> {
        private_directory(&self.tokens).map_err(|source| failed(&self.tokens, source))?;
        self.sweep(now);
        let path = self.tokens.join(id);
        claim_private_file(&path, &written(token)?).map_err(|source| failed(&path, source))
    }

    /// The token of this id, which comes from outside.
    pub(super) fn token(&self, id: &str) -> Result<Option<Token>, IdentityError> {
        if is_token_id(id) { read(&self.tokens.join(id)) } else { Ok(None) }
    }

    /// Takes a token back: nobody joins with it any more. One that cannot be read is removed. `false`: there is none.
    pub(super) fn revoke(&self, id: &str) -> Result<bool, IdentityError> {
        let path = self.tokens.join(id);
        match self.token(id) {
            Ok(None) => Ok(false),
            Ok(Some(token)) => {
                replace_private_file(&path, &written(&Token { revoked: true, ..token })?)?;
                Ok(true)
            }
            Err(_) => remove_private_file(&path).map_err(|source| failed(&path, source)),
        }
    }

    /// Takes one use of a token for whoever has this key and is to have this name; the same one that asks again has it already. `false`:
    /// all are taken.
    pub(super) fn claim_use(&self, id: &str, token: &Token, key: &str, name: &str) -> Result<bool, IdentityError> {
        let holder = holder(key, name);
        for number in 1..=token.uses.min(MAX_USES) {
            let path = self.tokens.join(format!("{id}.{number}"));
            if !path.exists() {
                match claim_private_file(&path, &holder) {
                    Ok(()) => return Ok(true),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(source) => return Err(failed(&path, source)),
                }
            }
            // One that cannot be read is spent.
            if read_private(&path).is_ok_and(|held_by| held_by == holder) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Where a token is kept.
    pub(super) fn token_path(&self, id: &str) -> PathBuf {
        self.tokens.join(id)
    }

    /// Where a member's entry is kept.
    pub(super) fn member_path(&self, name: &str) -> PathBuf {
        self.members.join(name)
    }

    /// The member of this name, which comes from outside and is a label.
    pub(super) fn member(&self, name: &str) -> Result<Option<Entry>, IdentityError> {
        read(&self.members.join(name))
    }

    /// Takes a name. `false`: it is taken.
    pub(super) fn claim_name(&self, name: &str, entry: &Entry) -> Result<bool, IdentityError> {
        private_directory(&self.members).map_err(|source| failed(&self.members, source))?;
        let path = self.members.join(name);
        match claim_private_file(&path, &written(entry)?) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(source) => Err(failed(&path, source)),
        }
    }

    /// Forgets a member, whatever is in its entry. The uses that it has had stay spent, and are nobody's: first, so that who is removed
    /// never is there without a name and with a use. `false`: there is none of that name.
    pub(super) fn remove_member(&self, name: &str, now: SystemTime) -> Result<bool, IdentityError> {
        let path = self.members.join(name);
        if !path.exists() {
            return Ok(false);
        }
        // Before anything else: who is no member any more is refused. Nobody knows the id in an entry that cannot be read.
        if let Ok(Some(entry)) = self.member(name)
            && is_token_id(&entry.id)
        {
            self.add_removed(&entry, now)?;
        }
        for file in names(&self.tokens)?.iter().filter(|file| file.contains('.')) {
            let path = self.tokens.join(file);
            // One that cannot be read is nobody's already.
            if read_private(&path).is_ok_and(|held_by| held_by.ends_with(&holder("", name))) {
                replace_private_file(&path, NOBODY)?;
            }
        }
        remove_private_file(&path).map_err(|source| failed(&path, source))
    }

    fn add_removed(&self, entry: &Entry, now: SystemTime) -> Result<(), IdentityError> {
        private_directory(&self.removed).map_err(|source| failed(&self.removed, source))?;
        let life = match entry.certificate_life {
            0 => MAX_LIFE,
            seconds => Duration::from_secs(seconds),
        };
        // One that is being given at this moment, by a clock that is a little ahead, is refused as well.
        let until = seconds(now + life + REMOVED_FOR_LONGER);
        replace_private_file(&self.removed.join(&entry.id), &until.to_string())
    }

    /// Those who were removed and whose certificates still hold. Others are forgotten.
    pub(super) fn removed(&self, now: SystemTime) -> Result<Removed, IdentityError> {
        let mut removed = Vec::new();
        for id in names(&self.removed)? {
            let path = self.removed.join(&id);
            // One that cannot be read is of somebody who was removed all the same.
            let until = read_private(&path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX);
            match until > seconds(now) {
                true => removed.push((id, until)),
                false => drop(remove_private_file(&path)),
            }
        }
        Ok(Removed::new(removed))
    }

    /// Every member with its name, in the order of names, and what cannot be read in the place of one.
    pub(super) fn members(&self) -> Result<Read, IdentityError> {
        let (mut members, mut damaged) = (Vec::new(), Vec::new());
        let mut names = names(&self.members)?;
        names.sort();
        for name in names {
            match self.member(&name) {
                Ok(Some(entry)) => members.push((name, entry)),
                // Removed meanwhile.
                Ok(None) => {}
                Err(error) => damaged.push(error),
            }
        }
        Ok((members, damaged))
    }

    /// Best effort: one that is left is refused all the same. A token goes before its uses: were it the other way round, who has just
    /// read it could take one that was taken before.
    fn sweep(&self, now: SystemTime) {
        let names = names(&self.tokens).unwrap_or_default();
        let is_over = |id: &str| matches!(self.token(id), Ok(Some(token)) if is_over(&token, now));
        for id in names.iter().filter(|id| is_over(id)) {
            let _ = fs::remove_file(self.tokens.join(id));
        }
        // Those that were taken when their token was gone already, too.
        for (id, name) in names.iter().filter_map(|name| Some((name.split_once('.')?.0, name))) {
            if !self.tokens.join(id).exists() {
                let _ = fs::remove_file(self.tokens.join(name));
            }
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

/// Whether this is what a token's id looks like: what comes from outside names no other file.
fn is_token_id(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Who has a use: a key has no space in it, nor has a name.
fn holder(key: &str, name: &str) -> String {
    format!("{key} {name}")
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
    record.map(Some).map_err(|error| IdentityError::DamagedRecord { path: path.to_owned(), reason: error.to_string() })
}

/// The role of a record, which is in this file.
pub(super) fn role(text: &str, path: &Path) -> Result<Role, IdentityError> {
    text.parse()
        .map_err(|reason: &str| IdentityError::DamagedRecord { path: path.to_owned(), reason: reason.to_owned() })
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
        Token {
            role: "node".to_owned(),
            uses,
            expires,
            certificate_life: 60,
            public_key: "00".to_owned(),
            revoked: false,
        }
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
                    scope.spawn(move || register.claim_use(ID, token, &format!("key-{key}"), "name").unwrap())
                })
                .collect();
            claiming.into_iter().map(|claimed| usize::from(claimed.join().unwrap())).sum()
        });
        assert_eq!(claimed, 3);
        let first = fs::read_to_string(register.tokens.join(format!("{ID}.1"))).unwrap();
        let (key, name) = first.split_once(' ').unwrap();
        assert!(register.claim_use(ID, &token, key, name).unwrap(), "who asks again has its use already");
        assert!(!register.claim_use(ID, &token, key, "another").unwrap(), "under another name it is another one");
        assert_eq!(names(&register.tokens).unwrap().len(), 4);
        let left = fs::read_dir(&register.tokens).unwrap().count();
        assert_eq!(left, 4, "drafts are gone");
    }

    fn entry() -> Entry {
        Entry {
            id: "1".to_owned(),
            role: "node".to_owned(),
            joined_with: "key".to_owned(),
            joined: 0,
            token: ID.to_owned(),
            certificate_life: 60,
        }
    }

    #[test]
    fn who_is_removed_is_remembered_for_longer_than_its_certificates_hold() {
        let register = register("remembered");
        let now = UNIX_EPOCH + Duration::from_secs(1_000);
        for (name, id, certificate_life) in [("left", ID, 60), ("right", "fedcba9876543210", 0)] {
            let entry = Entry { id: id.to_owned(), certificate_life, ..entry() };
            assert!(register.claim_name(name, &entry).unwrap());
            assert!(!register.removed(now).unwrap().contains(id));
            assert!(register.remove_member(name, now).unwrap());
            assert!(register.removed(now).unwrap().contains(id));
        }
        let over = now + Duration::from_secs(60) + REMOVED_FOR_LONGER;
        assert!(register.removed(over - Duration::from_secs(1)).unwrap().contains(ID));
        let removed = register.removed(over).unwrap();
        assert!(!removed.contains(ID) && removed.contains("fedcba9876543210"), "one of unknown life");
        assert!(!register.removed.join(ID).exists());
    }

    #[test]
    fn who_is_removed_has_no_use_and_leaves_that_of_others() {
        let register = register("removed");
        let token = token(2, u64::MAX);
        register.add_token(ID, &token, UNIX_EPOCH).unwrap();
        for name in ["left", "far-left"] {
            assert!(register.claim_use(ID, &token, "key", name).unwrap());
            assert!(register.claim_name(name, &entry()).unwrap());
        }
        assert!(register.remove_member("left", UNIX_EPOCH).unwrap());
        assert!(!register.remove_member("left", UNIX_EPOCH).unwrap());
        assert!(!register.claim_use(ID, &token, "key", "left").unwrap());
        assert!(register.claim_use(ID, &token, "key", "far-left").unwrap());
    }

    #[test]
    fn a_damaged_entry_is_named_and_passed_over_and_can_be_removed() {
        let register = register("damaged");
        assert!(register.claim_name("left", &entry()).unwrap());
        assert!(register.claim_name("right", &entry()).unwrap());
        fs::write(register.members.join("left"), "").unwrap();
        let (members, damaged) = register.members().unwrap();
        assert_eq!(members, [("right".to_owned(), entry())]);
        let [IdentityError::DamagedRecord { path, .. }] = &damaged[..] else { panic!("{damaged:?}") };
        assert_eq!(*path, register.members.join("left"));
        assert!(!damaged[0].to_string().contains("directory"), "{}", damaged[0]);
        assert!(register.remove_member("left", UNIX_EPOCH).unwrap());
        assert!(register.claim_name("left", &entry()).unwrap());
    }

    #[test]
    fn a_token_that_is_over_goes_with_its_uses_when_the_next_one_comes() {
        let register = register("sweep");
        let old = token(2, 100);
        register.add_token(ID, &old, UNIX_EPOCH).unwrap();
        assert!(register.claim_use(ID, &old, "key", "name").unwrap());
        let now = UNIX_EPOCH + Duration::from_secs(100);
        assert!(is_over(&old, now) && !is_over(&old, now - Duration::from_secs(1)));
        register.add_token("fedcba9876543210", &token(1, 200), now).unwrap();
        assert_eq!(register.token(ID).unwrap(), None);
        assert_eq!(names(&register.tokens).unwrap(), ["fedcba9876543210"]);
        // Taken by who had read the token just before; and one of a token that goes on.
        assert!(register.claim_use(ID, &old, "key", "name").unwrap());
        assert!(register.claim_use("fedcba9876543210", &token(1, 200), "key", "name").unwrap());
        register.sweep(now);
        let mut left = names(&register.tokens).unwrap();
        left.sort();
        assert_eq!(left, ["fedcba9876543210", "fedcba9876543210.1"]);
    }

    #[test]
    fn a_token_that_is_taken_back_is_there_until_it_is_over_and_a_damaged_one_is_not() {
        let register = register("revoked");
        register.add_token(ID, &token(2, 100), UNIX_EPOCH).unwrap();
        assert!(register.revoke(ID).unwrap());
        assert_eq!(register.token(ID).unwrap(), Some(Token { revoked: true, ..token(2, 100) }));
        for none in ["fedcba9876543210", "../members", ""] {
            assert!(!register.revoke(none).unwrap(), "{none}");
        }
        fs::write(register.tokens.join(ID), "{").unwrap();
        assert!(register.revoke(ID).unwrap());
        assert_eq!(register.token(ID).unwrap(), None);
    }

    #[test]
    fn an_id_from_outside_names_no_other_file() {
        let register = register("path");
        for id in ["../authority.key", "", "..", "0123456789abcdeg", "0123456789abcdef.1"] {
            assert_eq!(register.token(id).unwrap(), None, "{id}");
        }
    }
}
