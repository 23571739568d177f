//! The records of an authority: tokens, their uses, and members. Each is a file of one line in its directory.
//!
//! A use of a token and a name are claimed by linking a complete file to a path that must not exist. The system lets
//! one of several processes succeed, so no lock is held, and no crash uses a token once too often. A use belongs to one
//! key under one name, and stays spent when the member is removed. Expired tokens are removed when the next one is
//! made. A record that cannot be read affects only itself.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use callboard_codec::{DecodeLimits, Format, Payload, Value};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::MAX_LIFE;
use super::removed::{MAX_KNOWN, REMOVED_MARGIN, RemovedMembers, latest_end};
use crate::certificate::{Member, Role};
use crate::clock::seconds;
use crate::error::{IdentityError, failed};
use crate::files::{
    Claim, claim_private_file, private_directory, read_private, remove_private_file, replace_private_file,
};

/// The most uses of a token: with more it would be a public service.
pub(super) const MAX_USES: u32 = 1_000;

/// The holder of a use whose member was removed: neither a key nor a name.
const NO_HOLDER: &str = "removed";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TokenRecord {
    pub(super) role: String,
    pub(super) uses: u32,
    /// The time of its end, in seconds since 1970.
    pub(super) expires: u64,
    /// The life of its certificates, in seconds.
    #[serde(rename = "life")]
    pub(super) certificate_life: u64,
    /// Verifies the token's proofs; it does not allow joining.
    pub(super) public_key: String,
    /// Whether it was revoked. The record stays until the token expires, so that its holder gets the right error.
    #[serde(default)]
    pub(super) revoked: bool,
}

/// The record of a member, which has a certificate and may renew it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct MemberRecord {
    pub(super) id: String,
    pub(super) role: String,
    /// The key with which it joined. The same key may ask again when the answer was lost.
    pub(super) joined_with: String,
    /// The time at which it joined, in seconds since 1970.
    pub(super) joined: u64,
    /// The id of the token with which it joined.
    #[serde(default)]
    pub(super) token: String,
    /// The life of its certificates, in seconds; 0 in records that do not have it.
    #[serde(default, rename = "life")]
    pub(super) certificate_life: u64,
}

impl MemberRecord {
    /// That of a member that has joined elsewhere.
    pub(super) fn of(member: &Member, now: SystemTime) -> Self {
        Self {
            id: member.id.clone(),
            role: member.role.to_string(),
            joined_with: String::new(),
            joined: seconds(now),
            token: String::new(),
            certificate_life: member.life.as_secs(),
        }
    }
}

/// Records by name, and the errors of records that cannot be read.
pub(super) type MemberRecords = (Vec<(String, MemberRecord)>, Vec<IdentityError>);

/// The directory of an authority.
#[derive(Clone, Debug)]
pub(super) struct MemberStore {
    tokens: PathBuf,
    members: PathBuf,
    /// One file for each removed member, by its id, until its last certificate expires. Of a member whose record could
    /// not be read, by its name and an ending.
    removed: PathBuf,
}

/// Follows the end in the file of a removal that another issuer has ordered.
const HEARD: &str = " heard";

/// Ends the name of such a file. An id has no dot.
const BY_NAME: &str = ".name";

impl MemberStore {
    pub(super) fn new(directory: &Path) -> Self {
        let [tokens, members, removed] = ["tokens", "members", "removed"].map(|name| directory.join(name));
        Self { tokens, members, removed }
    }

    /// Stores a new token, and removes expired ones.
    pub(super) fn add_token(&self, id: &str, token: &TokenRecord, now: SystemTime) -> Result<(), IdentityError> {
        private_directory(&self.tokens).map_err(|source| failed(&self.tokens, source))?;
        self.sweep(now);
        let path = self.tokens.join(id);
        claim_private_file(&path, &encoded(token)?).map_err(|source| failed(&path, source))
    }

    /// The token of this id, which may be any text.
    pub(super) fn token(&self, id: &str) -> Result<Option<TokenRecord>, IdentityError> {
        if is_id(id) { read(&self.tokens.join(id)) } else { Ok(None) }
    }

    /// Revokes a token; a record that cannot be read is removed. `false`: there is no such token.
    pub(super) fn revoke(&self, id: &str) -> Result<bool, IdentityError> {
        let path = self.tokens.join(id);
        match self.token(id) {
            Ok(None) => Ok(false),
            Ok(Some(token)) => {
                replace_private_file(&path, &encoded(&TokenRecord { revoked: true, ..token })?)?;
                Ok(true)
            }
            Err(_) => remove_private_file(&path).map_err(|source| failed(&path, source)),
        }
    }

    /// Claims a use of a token for this key and name; the same holder gets the same use again. `false`: all uses are
    /// taken.
    pub(super) fn claim_use(
        &self,
        id: &str,
        token: &TokenRecord,
        key: &str,
        name: &str,
    ) -> Result<bool, IdentityError> {
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
            // A use that cannot be read is spent.
            if read_private(&path).is_ok_and(|held_by| held_by == holder) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The file of a token.
    pub(super) fn token_path(&self, id: &str) -> PathBuf {
        self.tokens.join(id)
    }

    /// The file of a member.
    pub(super) fn member_path(&self, name: &str) -> PathBuf {
        self.members.join(name)
    }

    /// The member of this name, which must be a label.
    pub(super) fn member(&self, name: &str) -> Result<Option<MemberRecord>, IdentityError> {
        read(&self.members.join(name))
    }

    /// Writes the record of a new member, and does not claim the name yet. So a disk without room refuses it before a
    /// use of a token is claimed.
    pub(super) fn prepare_name(&self, name: &str, record: &MemberRecord) -> Result<Claim, IdentityError> {
        private_directory(&self.members).map_err(|source| failed(&self.members, source))?;
        let path = self.members.join(name);
        Claim::prepare(&path, &encoded(record)?).map_err(|source| failed(&path, source))
    }

    /// Claims a name. `false`: it is taken.
    pub(super) fn claim_name(&self, name: &str, record: &MemberRecord) -> Result<bool, IdentityError> {
        make_claim(&self.prepare_name(name, record)?)
    }

    /// Removes a member, also if its record is damaged. Its uses are taken from it first and stay spent, so that it
    /// never has a use without a name. `false`: there is no such member.
    pub(super) fn remove_member(&self, name: &str, now: SystemTime) -> Result<bool, IdentityError> {
        let path = self.members.join(name);
        // An id without a record here.
        if !path.exists() && is_id(name) {
            self.add_removed(name, end_of_life(0, now), "")?;
            self.forget(&[name])?;
            return Ok(true);
        }
        if !path.exists() {
            return Ok(false);
        }
        // First, so that the member is refused from now on. The id in a damaged record is unknown.
        match self.member(name) {
            Ok(Some(record)) if is_id(&record.id) => {
                self.add_removed(&record.id, end_of_life(record.certificate_life, now), "")?;
            }
            _ => self.add_removed(&format!("{name}{BY_NAME}"), end_of_life(0, now), "")?,
        }
        for file in names(&self.tokens)?.iter().filter(|file| file.contains('.')) {
            let path = self.tokens.join(file);
            // An unreadable use has no holder.
            if read_private(&path).is_ok_and(|held_by| held_by.ends_with(&holder("", name))) {
                replace_private_file(&path, NO_HOLDER)?;
            }
        }
        remove_private_file(&path).map_err(|source| failed(&path, source))
    }

    fn add_removed(&self, file: &str, until: u64, whose: &str) -> Result<(), IdentityError> {
        private_directory(&self.removed).map_err(|source| failed(&self.removed, source))?;
        replace_private_file(&self.removed.join(file), &format!("{until}{whose}"))
    }

    /// Whether the member was removed here. A name that was removed without its id may have joined again since: then it
    /// has a record.
    pub(super) fn is_removed(&self, member: &Member) -> bool {
        let is_there = |file: &str| self.removed.join(file).exists();
        let by_id = [&member.id].into_iter().chain(member.issuers()).any(|id| is_id(id) && is_there(id));
        let by_name = || is_there(&format!("{}{BY_NAME}", member.name)) && !self.members.join(&member.name).exists();
        by_id || by_name()
    }

    /// Adds removals that another issuer has ordered, while there is room, and forgets those members. Returns how many
    /// were new.
    pub(super) fn take_over(&self, removed: &RemovedMembers, now: SystemTime) -> Result<usize, IdentityError> {
        let known = self.removed(now)?;
        let news = removed.iter().filter(|(id, _)| is_id(id) && !known.contains(id));
        let news: Vec<_> = news.take(MAX_KNOWN.saturating_sub(known.iter().count())).collect();
        if news.is_empty() {
            return Ok(0);
        }
        news.iter().try_for_each(|(id, until)| self.add_removed(id, (**until).min(latest_end(now)), HEARD))?;
        self.forget(&news.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>())?;
        Ok(news.len())
    }

    /// Removes the records of these ids.
    fn forget(&self, ids: &[&str]) -> Result<(), IdentityError> {
        for (name, record) in self.members()?.0 {
            if ids.contains(&record.id.as_str()) {
                let path = self.members.join(&name);
                remove_private_file(&path).map_err(|source| failed(&path, source))?;
            }
        }
        Ok(())
    }

    /// The removed members whose certificates are still valid. Others are forgotten.
    pub(super) fn removed(&self, now: SystemTime) -> Result<RemovedMembers, IdentityError> {
        let (mut removed, mut own) = (Vec::new(), BTreeSet::new());
        for id in names(&self.removed)? {
            let path = self.removed.join(&id);
            // The file stands for a removed member, also if it cannot be read.
            let text = read_private(&path).unwrap_or_default();
            let (end, is_own) = text.strip_suffix(HEARD).map_or((text.as_str(), true), |end| (end, false));
            let until = end.trim().parse().unwrap_or(u64::MAX);
            if until > seconds(now) {
                if is_id(&id) {
                    if is_own {
                        own.insert(id.clone());
                    }
                    removed.push((id, until));
                }
            } else {
                let _ = remove_private_file(&path);
            }
        }
        Ok(RemovedMembers::new(removed).current(now).with_own(own))
    }

    /// Every member, sorted by name, and the errors of records that cannot be read.
    pub(super) fn members(&self) -> Result<MemberRecords, IdentityError> {
        let (mut members, mut damaged) = (Vec::new(), Vec::new());
        let mut names = names(&self.members)?;
        names.sort();
        for name in names {
            match self.member(&name) {
                Ok(Some(record)) => members.push((name, record)),
                // Removed meanwhile.
                Ok(None) => {}
                Err(error) => damaged.push(error),
            }
        }
        Ok((members, damaged))
    }

    /// Removes expired tokens. Best effort: an expired token is refused anyway. A token is removed before its uses:
    /// otherwise a process that has just read it could claim a use that was taken before.
    fn sweep(&self, now: SystemTime) {
        let names = names(&self.tokens).unwrap_or_default();
        let is_expired = |id: &str| matches!(self.token(id), Ok(Some(token)) if is_expired(&token, now));
        for id in names.iter().filter(|id| is_expired(id)) {
            let _ = fs::remove_file(self.tokens.join(id));
        }
        // Also uses that were claimed after their token was removed.
        for (id, name) in names.iter().filter_map(|name| Some((name.split_once('.')?.0, name))) {
            if !self.tokens.join(id).exists() {
                let _ = fs::remove_file(self.tokens.join(name));
            }
        }
    }
}

/// Whether a token has expired.
pub(super) fn is_expired(token: &TokenRecord, now: SystemTime) -> bool {
    seconds(now) >= token.expires
}

/// Until when a member is remembered that is removed now. The margin covers a certificate that is being issued at this
/// moment by a clock that is ahead.
fn end_of_life(certificate_life: u64, now: SystemTime) -> u64 {
    let life = match certificate_life {
        0 => MAX_LIFE,
        // A record may be of a certificate that another issuer has made up.
        seconds => Duration::from_secs(seconds).min(MAX_LIFE),
    };
    seconds(now + life + REMOVED_MARGIN)
}

/// Whether the text has the form of an id, so that text of others cannot name another file.
fn is_id(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The holder of a use. Neither a key nor a name has a space.
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

/// `false`: the name is taken.
pub(super) fn make_claim(claim: &Claim) -> Result<bool, IdentityError> {
    match claim.make() {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(source) => Err(failed(claim.path(), source)),
    }
}

fn encoded<T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static>(
    record: &T,
) -> Result<String, IdentityError> {
    let text = Payload::new(record.clone()).encode(Format::Json);
    let text = text.map_err(|error| IdentityError::Unusable(error.into()))?;
    Ok(format!("{}\n", String::from_utf8_lossy(&text)))
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

/// The role in the record of this file.
pub(super) fn role(text: &str, path: &Path) -> Result<Role, IdentityError> {
    text.parse()
        .map_err(|reason: &str| IdentityError::DamagedRecord { path: path.to_owned(), reason: reason.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn store(name: &str) -> MemberStore {
        let directory = std::env::temp_dir().join(format!("callboard-member-store-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        private_directory(&directory).unwrap();
        MemberStore::new(&directory)
    }

    fn token(uses: u32, expires: u64) -> TokenRecord {
        TokenRecord {
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
    fn concurrent_claims_never_exceed_the_uses_and_each_key_has_one() {
        let store = store("uses");
        let token = token(3, u64::MAX);
        store.add_token(ID, &token, UNIX_EPOCH).unwrap();
        let claimed: usize = std::thread::scope(|scope| {
            let claiming: Vec<_> = (0..16)
                .map(|key| {
                    let (store, token) = (&store, &token);
                    scope.spawn(move || store.claim_use(ID, token, &format!("key-{key}"), "name").unwrap())
                })
                .collect();
            claiming.into_iter().map(|claimed| usize::from(claimed.join().unwrap())).sum()
        });
        assert_eq!(claimed, 3);
        let first = fs::read_to_string(store.tokens.join(format!("{ID}.1"))).unwrap();
        let (key, name) = first.split_once(' ').unwrap();
        assert!(store.claim_use(ID, &token, key, name).unwrap(), "a repeated request needs no further use");
        assert!(!store.claim_use(ID, &token, key, "another").unwrap(), "another name is another member");
        assert_eq!(names(&store.tokens).unwrap().len(), 4);
        let left = fs::read_dir(&store.tokens).unwrap().count();
        assert_eq!(left, 4, "drafts are deleted");
    }

    fn record() -> MemberRecord {
        MemberRecord {
            id: "1".to_owned(),
            role: "node".to_owned(),
            joined_with: "key".to_owned(),
            joined: 0,
            token: ID.to_owned(),
            certificate_life: 60,
        }
    }

    #[test]
    fn a_removed_member_is_remembered_longer_than_its_certificates_are_valid() {
        let store = store("remembered");
        let now = UNIX_EPOCH + Duration::from_secs(1_000);
        for (name, id, certificate_life) in [("left", ID, 60), ("right", "fedcba9876543210", 0)] {
            let record = MemberRecord { id: id.to_owned(), certificate_life, ..record() };
            assert!(store.claim_name(name, &record).unwrap());
            assert!(!store.removed(now).unwrap().contains(id));
            assert!(store.remove_member(name, now).unwrap());
            assert!(store.removed(now).unwrap().contains(id));
        }
        let over = now + Duration::from_secs(60) + REMOVED_MARGIN;
        assert!(store.removed(over - Duration::from_secs(1)).unwrap().contains(ID));
        let removed = store.removed(over).unwrap();
        assert!(!removed.contains(ID) && removed.contains("fedcba9876543210"), "an entry of unknown life");
        assert!(!store.removed.join(ID).exists());
    }

    #[test]
    fn removing_a_member_removes_its_use_and_no_other() {
        let store = store("removed");
        let token = token(2, u64::MAX);
        store.add_token(ID, &token, UNIX_EPOCH).unwrap();
        for name in ["left", "far-left"] {
            assert!(store.claim_use(ID, &token, "key", name).unwrap());
            assert!(store.claim_name(name, &record()).unwrap());
        }
        assert!(store.remove_member("left", UNIX_EPOCH).unwrap());
        assert!(!store.remove_member("left", UNIX_EPOCH).unwrap());
        assert!(!store.claim_use(ID, &token, "key", "left").unwrap());
        assert!(store.claim_use(ID, &token, "key", "far-left").unwrap());
    }

    #[test]
    fn a_damaged_entry_is_named_and_skipped_and_can_be_removed() {
        let store = store("damaged");
        assert!(store.claim_name("left", &record()).unwrap());
        assert!(store.claim_name("right", &record()).unwrap());
        fs::write(store.members.join("left"), "").unwrap();
        let (members, damaged) = store.members().unwrap();
        assert_eq!(members, [("right".to_owned(), record())]);
        let [IdentityError::DamagedRecord { path, .. }] = &damaged[..] else { panic!("{damaged:?}") };
        assert_eq!(*path, store.members.join("left"));
        assert!(!damaged[0].to_string().contains("directory"), "{}", damaged[0]);
        assert!(store.remove_member("left", UNIX_EPOCH).unwrap());
        assert!(store.claim_name("left", &record()).unwrap());
    }

    #[test]
    fn an_expired_token_is_deleted_with_its_uses_when_the_next_one_is_added() {
        let store = store("sweep");
        let old = token(2, 100);
        store.add_token(ID, &old, UNIX_EPOCH).unwrap();
        assert!(store.claim_use(ID, &old, "key", "name").unwrap());
        let now = UNIX_EPOCH + Duration::from_secs(100);
        assert!(is_expired(&old, now) && !is_expired(&old, now - Duration::from_secs(1)));
        store.add_token("fedcba9876543210", &token(1, 200), now).unwrap();
        assert_eq!(store.token(ID).unwrap(), None);
        assert_eq!(names(&store.tokens).unwrap(), ["fedcba9876543210"]);
        // Claimed by a process that had read the token just before; and a use of a token that is still valid.
        assert!(store.claim_use(ID, &old, "key", "name").unwrap());
        assert!(store.claim_use("fedcba9876543210", &token(1, 200), "key", "name").unwrap());
        store.sweep(now);
        let mut left = names(&store.tokens).unwrap();
        left.sort();
        assert_eq!(left, ["fedcba9876543210", "fedcba9876543210.1"]);
    }

    #[test]
    fn a_revoked_token_remains_stored_and_a_damaged_one_is_deleted() {
        let store = store("revoked");
        store.add_token(ID, &token(2, 100), UNIX_EPOCH).unwrap();
        assert!(store.revoke(ID).unwrap());
        assert_eq!(store.token(ID).unwrap(), Some(TokenRecord { revoked: true, ..token(2, 100) }));
        for none in ["fedcba9876543210", "../members", ""] {
            assert!(!store.revoke(none).unwrap(), "{none}");
        }
        fs::write(store.tokens.join(ID), "{").unwrap();
        assert!(store.revoke(ID).unwrap());
        assert_eq!(store.token(ID).unwrap(), None);
    }

    #[test]
    fn an_id_cannot_name_another_file() {
        let store = store("path");
        for id in ["../authority.key", "", "..", "0123456789abcdeg", "0123456789abcdef.1"] {
            assert_eq!(store.token(id).unwrap(), None, "{id}");
        }
    }
}
