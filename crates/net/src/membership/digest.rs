//! The sums of a list of members, or of versions of their reports, by which two nodes find what differs.
//!
//! A list is divided into 64 buckets by the names. The sum of a bucket does not depend on the order of its members, so
//! nothing is sorted. Members that are down do not count: lists forget them at different times.

use foca::{Member, State};

use super::codec::{put_member, put_version};
use super::identity::MemberId;
use super::reports::Version;

pub(super) const BUCKETS: usize = 64;

/// One sum for each bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buckets(pub(super) [u64; BUCKETS]);

impl Default for Buckets {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Buckets {
    pub(super) fn of<'a>(members: impl Iterator<Item = &'a Member<MemberId>>) -> Self {
        let (mut buckets, mut bytes) = (Self::default(), Vec::new());
        for member in members.filter(|member| member.state() != State::Down) {
            bytes.clear();
            put_member(&mut bytes, member);
            buckets.add(&member.id().name, &bytes);
        }
        buckets
    }

    pub(super) fn of_versions(versions: &[Version]) -> Self {
        let (mut buckets, mut bytes) = (Self::default(), Vec::new());
        for version in versions {
            bytes.clear();
            put_version(&mut bytes, version);
            buckets.add(&version.name, &bytes);
        }
        buckets
    }

    fn add(&mut self, name: &str, bytes: &[u8]) {
        let sum = &mut self.0[bucket(name)];
        *sum = sum.wrapping_add(hash(bytes));
    }

    /// The sum of the whole list.
    pub(super) fn digest(&self) -> u64 {
        let bytes: Vec<u8> = self.0.iter().flat_map(|sum| sum.to_be_bytes()).collect();
        hash(&bytes)
    }

    /// The buckets that differ, as bits.
    pub(super) fn difference(&self, other: &Self) -> u64 {
        let differs = self.0.iter().zip(&other.0).enumerate().filter(|(_, (ours, theirs))| ours != theirs);
        differs.fold(0, |mask, (bucket, _)| mask | 1 << bucket)
    }
}

/// The bucket of a name.
pub(super) fn bucket(name: &str) -> usize {
    hash(name.as_bytes()) as usize % BUCKETS
}

/// FNV-1a with a final mix, so that sums of hashes are spread. All nodes compute the same.
fn hash(bytes: &[u8]) -> u64 {
    let fnv = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    let mixed = (fnv ^ fnv >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ mixed >> 33
}
