//! The list of removed members whose certificates are still valid, and its text form.

use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::clock::seconds;

/// The longest list as text: some 9,000 members removed within the life of a certificate.
pub const MAX_LIST_BYTES: usize = 256 << 10;

/// The ids of removed members, with the second since 1970 at which the last of their certificates expires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovedMembers(BTreeMap<String, u64>);

impl RemovedMembers {
    pub(crate) fn new(ids: impl IntoIterator<Item = (String, u64)>) -> Self {
        Self(ids.into_iter().collect())
    }

    /// Whether the member of this id was removed.
    #[must_use]
    pub fn contains(&self, id: &str) -> bool {
        self.0.contains_key(id)
    }

    /// One line for each member. If the text would be too long, members whose certificates expire first are left out.
    pub(crate) fn to_text(&self) -> String {
        let mut ids: Vec<_> = self.0.iter().collect();
        ids.sort_by(|(_, one), (_, other)| other.cmp(one));
        let mut text = String::new();
        for (id, until) in ids {
            let line = format!("{id} {until}\n");
            if text.len() + line.len() > MAX_LIST_BYTES {
                break;
            }
            text += &line;
        }
        text
    }

    /// Reads the text; entries that have expired are left out. `None`: the text is no list.
    pub(crate) fn from_text(text: &str, now: SystemTime) -> Option<Self> {
        let now = seconds(now);
        let mut ids = BTreeMap::new();
        for line in text.lines() {
            let (id, until) = line.split_once(' ')?;
            let until: u64 = until.parse().ok()?;
            if until > now {
                ids.insert(id.to_owned(), until);
            }
        }
        Some(Self(ids))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_list_is_read_as_it_is_written_without_expired_entries() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let removed = RemovedMembers::new([("a".to_owned(), 1_001), ("b".to_owned(), 5_000), ("c".to_owned(), 1_000)]);
        let read = RemovedMembers::from_text(&removed.to_text(), now).unwrap();
        assert!(read.contains("a") && read.contains("b") && !read.contains("c") && !read.contains(""));
        assert_eq!(RemovedMembers::from_text("", now), Some(RemovedMembers::default()));
        assert_eq!(RemovedMembers::from_text("a", now), None);
        assert_eq!(RemovedMembers::from_text("a b", now), None);
    }

    #[test]
    fn a_long_list_keeps_the_entries_that_expire_last() {
        let all = (0..20_000).map(|n| (format!("{n:016x}"), 10_000_000 + n));
        let text = RemovedMembers::new(all).to_text();
        assert!(text.len() <= MAX_LIST_BYTES && text.len() > MAX_LIST_BYTES - 64);
        let read = RemovedMembers::from_text(&text, SystemTime::UNIX_EPOCH).unwrap();
        assert!(read.contains(&format!("{:016x}", 19_999)) && !read.contains(&format!("{:016x}", 0)));
    }
}
