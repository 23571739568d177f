//! The list of removed members whose certificates are still valid, and its text form.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use super::MAX_LIFE;
use crate::certificate::Member;
use crate::clock::seconds;

/// The longest list as text: some 9,000 members removed within the life of a certificate.
pub const MAX_LIST_BYTES: usize = 256 << 10;

/// The most entries that are added up: as many as the longest text has. Threat: an issuer that lists without end.
pub(super) const MAX_KNOWN: usize = 9_000;

/// How long a removed member is remembered after its last certificate expires.
pub(super) const REMOVED_MARGIN: Duration = Duration::from_secs(3600);

/// The latest end of an entry: no certificate is valid for longer. Threat: an issuer whose entries never end.
pub(super) fn latest_end(now: SystemTime) -> u64 {
    seconds(now + MAX_LIFE + REMOVED_MARGIN)
}

/// The ids of removed members, with the second since 1970 at which the last of their certificates expires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovedMembers {
    ids: BTreeMap<String, u64>,
    /// Those of them that this issuer has removed itself: where there is no room for all, these come first.
    own: BTreeSet<String>,
}

impl RemovedMembers {
    pub(crate) fn new(ids: impl IntoIterator<Item = (String, u64)>) -> Self {
        Self { ids: ids.into_iter().collect(), own: BTreeSet::new() }
    }

    /// The same, of which this issuer has removed these itself.
    pub(super) fn with_own(self, own: BTreeSet<String>) -> Self {
        Self { own, ..self }
    }

    /// The entries of the issuer's own, then those that expire last.
    fn by_weight(&self) -> Vec<(&String, &u64)> {
        let mut entries: Vec<_> = self.ids.iter().collect();
        entries.sort_by_key(|(id, until)| std::cmp::Reverse((self.own.contains(*id), **until)));
        entries
    }

    /// The entries of most weight, as many as this; of ids of another form none.
    pub(crate) fn latest(&self, most: usize) -> Vec<(u64, u64)> {
        let number = |(id, until): (&String, &u64)| Some((u64::from_str_radix(id, 16).ok()?, *until));
        self.by_weight().into_iter().filter_map(number).take(most).collect()
    }

    /// Without the entries that have expired, none of which ends later than any certificate.
    pub(crate) fn current(mut self, now: SystemTime) -> Self {
        let latest = latest_end(now);
        self.ids.values_mut().for_each(|until| *until = (*until).min(latest));
        self.ids.retain(|_, until| *until > seconds(now));
        self.own.retain(|id| self.ids.contains_key(id));
        self
    }

    /// Adds the entries of another list: its issuer's own, and further ones while there is room.
    pub(crate) fn add(&mut self, other: &Self, most: usize) {
        for (id, until) in other.by_weight() {
            let is_own = other.own.contains(id);
            if let Some(known) = self.ids.get_mut(id) {
                *known = (*known).max(*until);
            } else if is_own || self.ids.len() < most {
                self.ids.insert(id.clone(), *until);
            }
            if is_own {
                self.own.insert(id.clone());
            }
        }
    }

    /// The current entries of both.
    pub(crate) fn union(&self, other: &Self, now: SystemTime) -> Self {
        let mut all = self.clone().current(now);
        all.add(&other.clone().current(now), MAX_KNOWN);
        all
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &u64)> {
        self.ids.iter()
    }

    /// Whether the member of this id was removed.
    #[must_use]
    pub fn contains(&self, id: &str) -> bool {
        self.ids.contains_key(id)
    }

    /// Whether this member was removed, or an issuer through which its certificate came.
    #[must_use]
    pub fn excludes(&self, member: &Member) -> bool {
        self.contains(&member.id) || member.issuers().any(|id| self.contains(id))
    }

    /// One line for each member. If the text would be too long, those of least weight are left out.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for (id, until) in self.by_weight() {
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
        let mut ids = BTreeMap::new();
        for line in text.lines() {
            let (id, until) = line.split_once(' ')?;
            let until: u64 = until.parse().ok()?;
            ids.insert(id.to_owned(), until);
        }
        Some(Self::new(ids).current(now))
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
        assert_eq!(kept.ids.len(), MAX_KNOWN);
        assert!(!kept.contains(&format!("{:016x}", 8)) && kept.contains(&format!("{:016x}", 9)));
    }

    /// An issuer that lists what it likes takes no place from what is known, and from what this issuer has removed.
    #[test]
    fn entries_without_end_evict_nothing_and_end_with_the_longest_certificate() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let mut known = RemovedMembers::new([("a".to_owned(), 2_000)]);
        for version in 0..3 {
            let entry = |n| (format!("{:016x}", version * 1_500 + n), u64::MAX);
            known.add(&RemovedMembers::new((0..1_500).map(entry)).current(now), 1_000);
        }
        assert!(known.contains("a") && known.ids.len() == 1_000);
        assert!(known.clone().current(now + MAX_LIFE + REMOVED_MARGIN).is_empty());
        let own = known.with_own(BTreeSet::from(["a".to_owned()]));
        assert!(own.to_text().starts_with("a 2000\n"));
        assert_eq!(own.latest(1), [(0xa, 2_000)]);
    }

    #[test]
    fn a_long_list_keeps_the_entries_that_expire_last() {
        let all = (0..20_000).map(|n| (format!("{n:016x}"), 10_000_000 + n));
        let text = RemovedMembers::new(all).to_text();
        assert!(text.len() <= MAX_LIST_BYTES && text.len() > MAX_LIST_BYTES - 64);
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(9_000_000);
        let read = RemovedMembers::from_text(&text, now).unwrap();
        assert!(read.contains(&format!("{:016x}", 19_999)) && !read.contains(&format!("{:016x}", 0)));
    }
}
