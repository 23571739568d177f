//! The list of removed members whose certificates are still valid, and its text form.

use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::certificate::Member;
use crate::clock::seconds;

/// The longest list as text: some 9,000 members removed within the life of a certificate.
pub const MAX_LIST_BYTES: usize = 256 << 10;

/// The most entries that a node knows: as many as the longest text has. Threat: an issuer that signs without end.
const MAX_KNOWN: usize = 9_000;

/// The ids of removed members, with the second since 1970 at which the last of their certificates expires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovedMembers(BTreeMap<String, u64>);

impl RemovedMembers {
    pub(crate) fn new(ids: impl IntoIterator<Item = (String, u64)>) -> Self {
        Self(ids.into_iter().collect())
    }

    /// The entries that expire last, as many as this; of ids of another form none.
    pub(crate) fn latest(&self, most: usize) -> Vec<(u64, u64)> {
        let number = |(id, until): (&String, &u64)| Some((u64::from_str_radix(id, 16).ok()?, *until));
        let mut entries: Vec<_> = self.0.iter().filter_map(number).collect();
        entries.sort_by_key(|(_, until)| std::cmp::Reverse(*until));
        entries.truncate(most);
        entries
    }

    /// The entries of both that have not expired: of too many, those that expire last.
    pub(crate) fn union(&self, other: &Self, now: SystemTime) -> Self {
        let now = seconds(now);
        let mut all = self.0.clone();
        for (id, until) in &other.0 {
            let known = all.entry(id.clone()).or_default();
            *known = (*known).max(*until);
        }
        all.retain(|_, until| *until > now);
        while all.len() > MAX_KNOWN {
            let first = all.iter().min_by_key(|(_, until)| **until).map(|(id, _)| id.clone());
            first.and_then(|id| all.remove(&id));
        }
        Self(all)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &u64)> {
        self.0.iter()
    }

    /// Whether the member of this id was removed.
    #[must_use]
    pub fn contains(&self, id: &str) -> bool {
        self.0.contains_key(id)
    }

    /// Whether this member was removed, or the issuer of its certificate.
    #[must_use]
    pub fn excludes(&self, member: &Member) -> bool {
        self.contains(&member.id) || (!member.issuer.is_empty() && self.contains(&member.issuer))
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
    fn lists_are_merged_by_their_union_in_any_order_and_within_bounds() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let list =
            |entries: &[(&str, u64)]| RemovedMembers::new(entries.iter().map(|(id, at)| ((*id).to_owned(), *at)));
        let (one, other) = (list(&[("a", 2_000), ("b", 3_000), ("over", 1_000)]), list(&[("a", 4_000), ("c", 5_000)]));
        let all = list(&[("a", 4_000), ("b", 3_000), ("c", 5_000)]);
        assert_eq!((one.union(&other, now), other.union(&one, now)), (all.clone(), all.clone()));
        assert_eq!(all.union(&one, now), all, "an old list changes nothing");
        let many = RemovedMembers::new((0..MAX_KNOWN as u64 + 9).map(|n| (format!("{n:016x}"), 10_000 + n)));
        let kept = RemovedMembers::default().union(&many, now);
        assert_eq!(kept.0.len(), MAX_KNOWN);
        assert!(!kept.contains(&format!("{:016x}", 8)) && kept.contains(&format!("{:016x}", 9)));
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
