//! The messages of gossip: those of SWIM, and those of the exchange of lists.
//!
//! ```text
//! message    version u8 (1), kind u8, then
//! 1 SWIM     a message of SWIM, which begins with its source identity
//! 2 digest   source identity, u64
//! 3 buckets  source identity, 64 u64
//! 4 members  source identity, mask u64, 1 if an answer is wanted u8, count u16, that many members
//! ```

use bytes::{BufMut, Bytes};
use foca::Member;

use super::codec::{Reader, put_id, put_member};
use super::digest::{BUCKETS, Buckets};
use super::error::GossipError;
use super::identity::MemberId;
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
            3 => {
                let mut buckets = Box::<Buckets>::default();
                for bucket in &mut buckets.0 {
                    *bucket = reader.u64("a bucket")?;
                }
                Gossip::Buckets(buckets)
            }
            4 => {
                let (mask, wants_answer) = (reader.u64("a mask")?, reader.u8("the answer flag")? != 0);
                let mut members = Vec::new();
                for _ in 0..reader.u16("a count of members")? {
                    members.push(reader.member()?);
                }
                Gossip::Members { mask, wants_answer, members }
            }
            found => {
                return Err(GossipError::Invalid { field: "the kind", found: found.into(), limit: "from 1 to 4" });
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
            Gossip::Buckets(buckets) => {
                begin(3);
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
        }
        debug_assert!(out.len() <= MAX_MESSAGE_BYTES && BUCKETS == 64);
        out.into()
    }
}

/// A message of SWIM with its head.
pub(super) fn swim_bytes(swim: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(2 + swim.len());
    out.put_slice(&[VERSION, 1]);
    out.put_slice(swim);
    out.into()
}
