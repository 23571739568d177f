//! The messages of gossip: those of SWIM, of the exchange of lists, and of reports.
//!
//! ```text
//! message    version u8 (1), kind u8, then
//! 1 SWIM     a message of SWIM, which begins with its source identity
//! 2 digest   source identity, u64
//! 3 buckets  source identity, 64 u64
//! 4 members  source identity, mask u64, 1 if an answer is wanted u8, count u16, that many members
//! 5 buckets  source identity, 64 u64: of the versions of reports
//! 6 versions source identity, mask u64, 1 if an answer is wanted u8, count u16, that many versions
//! 7 ask      source identity, the version of the receiver's report that the sender has u64
//! 8 report   source identity, its version u64, length u16, the report of the source
//! 9 removals source identity, 1 if an answer is wanted u8, count u8, that many versions of signed lists
//! 10 removed source identity, length u16, a signed list of removed members
//! ```
//!
//! The kinds from 5 on go only to members with the feature `reports`, those from 9 on to members with `removals`.

use bytes::{BufMut, Bytes};
use callboard_identity::MAX_SIGNED_BYTES;
use foca::Member;

use super::codec::{Reader, put_id, put_list_version, put_member, put_version};
use super::digest::{BUCKETS, Buckets};
use super::error::GossipError;
use super::identity::MemberId;
use super::removals::ListVersion;
use super::report_codec::MAX_REPORT_BYTES;
use super::reports::Version;
use super::swim::Swim;

/// The version of gossip. The layout is positional: a change of it is a new version.
pub(super) const VERSION: u8 = 1;

/// The longest message.
pub(crate) const MAX_MESSAGE_BYTES: usize = 64 << 10;

/// A message of one member to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Gossip {
    Swim(Box<Swim>),
    /// The sum of the sender's list.
    Digest(u64),
    /// The sums of the parts of the sender's list.
    Buckets(Box<Buckets>),
    /// The members of some buckets.
    Members {
        mask: u64,
        wants_answer: bool,
        members: Vec<Member<MemberId>>,
    },
    /// The sums of the parts of the sender's versions.
    ReportBuckets(Box<Buckets>),
    /// Versions of reports that the sender has, in some buckets.
    Versions {
        mask: u64,
        wants_answer: bool,
        versions: Vec<Version>,
    },
    /// Asks for the receiver's report, if it is newer than this.
    Ask(u64),
    /// The sender's own report.
    Report {
        version: u64,
        bytes: Bytes,
    },
    /// The versions of the signed lists that the sender has.
    Removals {
        wants_answer: bool,
        versions: Vec<ListVersion>,
    },
    /// A signed list of removed members.
    Removed(Bytes),
}

/// A message with its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sourced {
    pub(super) source: MemberId,
    pub(super) gossip: Gossip,
}

impl Sourced {
    /// Reads a message.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, GossipError> {
        if bytes.len() > MAX_MESSAGE_BYTES {
            return Err(GossipError::TooLarge { bytes: bytes.len(), max: MAX_MESSAGE_BYTES });
        }
        let mut reader = Reader::new(bytes);
        let version = reader.u8("the version")?;
        if version != VERSION {
            return Err(GossipError::Version { found: version, known: VERSION });
        }
        let kind = reader.u8("the kind")?;
        if kind == 1 {
            let swim = Swim::read(reader.rest())?;
            return Ok(Self { source: swim.header.src.clone(), gossip: Gossip::Swim(Box::new(swim)) });
        }
        let source = reader.id()?;
        let gossip = match kind {
            2 => Gossip::Digest(reader.u64("a digest")?),
            3 => Gossip::Buckets(buckets(&mut reader)?),
            4 => {
                let (mask, wants_answer) = (reader.u64("a mask")?, reader.u8("the answer flag")? != 0);
                let mut members = Vec::new();
                for _ in 0..reader.u16("a count of members")? {
                    members.push(reader.member()?);
                }
                Gossip::Members { mask, wants_answer, members }
            }
            5 => Gossip::ReportBuckets(buckets(&mut reader)?),
            6 => {
                let (mask, wants_answer) = (reader.u64("a mask")?, reader.u8("the answer flag")? != 0);
                let mut versions = Vec::new();
                for _ in 0..reader.u16("a count of versions")? {
                    versions.push(reader.version()?);
                }
                Gossip::Versions { mask, wants_answer, versions }
            }
            7 => Gossip::Ask(reader.u64("a version of a report")?),
            8 => {
                let (version, length) = (reader.u64("a version of a report")?, reader.u16("the length of a report")?);
                if usize::from(length) > MAX_REPORT_BYTES {
                    let (field, limit) = ("the length of a report", "up to 32768");
                    return Err(GossipError::Invalid { field, found: length.into(), limit });
                }
                let bytes = Bytes::copy_from_slice(reader.bytes(length.into(), "a report")?);
                Gossip::Report { version, bytes }
            }
            9 => {
                let wants_answer = reader.u8("the answer flag")? != 0;
                let mut versions = Vec::new();
                for _ in 0..reader.u8("a count of lists")? {
                    versions.push(reader.list_version()?);
                }
                Gossip::Removals { wants_answer, versions }
            }
            10 => {
                let length = reader.u16("the length of a list")?;
                if usize::from(length) > MAX_SIGNED_BYTES {
                    let (field, limit) = ("the length of a list", "up to 32768");
                    return Err(GossipError::Invalid { field, found: length.into(), limit });
                }
                Gossip::Removed(Bytes::copy_from_slice(reader.bytes(length.into(), "a list")?))
            }
            found => {
                return Err(GossipError::Invalid { field: "the kind", found: found.into(), limit: "from 1 to 10" });
            }
        };
        reader.end()?;
        Ok(Self { source, gossip })
    }

    /// Its bytes.
    pub(super) fn to_bytes(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u8(VERSION);
        let mut begin = |kind: u8| {
            out.put_u8(kind);
            put_id(&mut out, &self.source);
        };
        match &self.gossip {
            Gossip::Swim(swim) => return swim_bytes(&swim.to_bytes().unwrap_or_default()),
            Gossip::Digest(digest) => {
                begin(2);
                out.put_u64(*digest);
            }
            Gossip::Buckets(buckets) | Gossip::ReportBuckets(buckets) => {
                begin(if matches!(self.gossip, Gossip::Buckets(_)) { 3 } else { 5 });
                buckets.0.iter().for_each(|bucket| out.put_u64(*bucket));
            }
            Gossip::Members { mask, wants_answer, members } => {
                begin(4);
                out.put_u64(*mask);
                out.put_u8((*wants_answer).into());
                // The list of one message is cut to a fraction of this.
                out.put_u16(members.len() as u16);
                members.iter().for_each(|member| put_member(&mut out, member));
            }
            Gossip::Versions { mask, wants_answer, versions } => {
                begin(6);
                out.put_u64(*mask);
                out.put_u8((*wants_answer).into());
                out.put_u16(versions.len() as u16);
                versions.iter().for_each(|version| put_version(&mut out, version));
            }
            Gossip::Ask(has) => {
                begin(7);
                out.put_u64(*has);
            }
            Gossip::Report { version, bytes } => {
                begin(8);
                out.put_u64(*version);
                // A report has at most 32 KiB.
                out.put_u16(bytes.len() as u16);
                out.put_slice(bytes);
            }
            Gossip::Removals { wants_answer, versions } => {
                begin(9);
                out.put_u8((*wants_answer).into());
                // There are at most 64.
                out.put_u8(versions.len() as u8);
                versions.iter().for_each(|version| put_list_version(&mut out, version));
            }
            Gossip::Removed(list) => {
                begin(10);
                // A list has at most 32 KiB.
                out.put_u16(list.len() as u16);
                out.put_slice(list);
            }
        }
        debug_assert!(out.len() <= MAX_MESSAGE_BYTES && BUCKETS == 64);
        out.into()
    }
}

fn buckets(reader: &mut Reader<'_>) -> Result<Box<Buckets>, GossipError> {
    let mut buckets = Box::<Buckets>::default();
    for bucket in &mut buckets.0 {
        *bucket = reader.u64("a bucket")?;
    }
    Ok(buckets)
}

/// A message of SWIM with its head.
pub(super) fn swim_bytes(swim: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(2 + swim.len());
    out.put_slice(&[VERSION, 1]);
    out.put_slice(swim);
    out.into()
}
