//! The messages of SWIM, and foca's use of their bytes.
//!
//! ```text
//! message    source identity, its incarnation u16, destination identity, tag u8, fields of the tag,
//!            and except for an announcement: count u16, that many members
//! tags       0 ping n · 1 ack n · 2 ping request: identity, n · 3 indirect ping: identity, n · 4 indirect ack: identity,
//!            n · 5 forwarded ack: identity, n · 6 announce · 7 feed · 8 gossip · 9 broadcast · 10 turn undead
//! ```

use bytes::{Buf, BufMut};
use foca::{Codec, Header, Member, Message};

use super::codec::{Reader, id_bytes, member_bytes, put_id, put_member};
use super::error::GossipError;
use super::identity::MemberId;

/// Encodes for foca.
#[derive(Clone, Copy, Debug)]
pub(super) struct SwimCodec;

impl Codec<MemberId> for SwimCodec {
    type Error = GossipError;

    fn encode_header(&mut self, header: &Header<MemberId>, mut out: impl BufMut) -> Result<(), GossipError> {
        let (tag, number, about) = match &header.message {
            Message::Ping(number) => (0, Some(*number), None),
            Message::Ack(number) => (1, Some(*number), None),
            Message::PingReq { target, probe_number } => (2, Some(*probe_number), Some(target)),
            Message::IndirectPing { origin, probe_number } => (3, Some(*probe_number), Some(origin)),
            Message::IndirectAck { target, probe_number } => (4, Some(*probe_number), Some(target)),
            Message::ForwardedAck { origin, probe_number } => (5, Some(*probe_number), Some(origin)),
            Message::Announce => (6, None, None),
            Message::Feed => (7, None, None),
            Message::Gossip => (8, None, None),
            Message::Broadcast => (9, None, None),
            Message::TurnUndead => (10, None, None),
        };
        let bytes = id_bytes(&header.src) + id_bytes(&header.dst) + about.map_or(0, id_bytes) + 4;
        if out.remaining_mut() < bytes {
            return Err(GossipError::NoRoom { field: "a header" });
        }
        put_id(&mut out, &header.src);
        out.put_u16(header.src_incarnation);
        put_id(&mut out, &header.dst);
        out.put_u8(tag);
        if let Some(id) = about {
            put_id(&mut out, id);
        }
        if let Some(number) = number {
            out.put_u8(number);
        }
        Ok(())
    }

    fn decode_header(&mut self, mut bytes: impl Buf) -> Result<Header<MemberId>, GossipError> {
        let mut reader = Reader::new(bytes.chunk());
        let header = read_header(&mut reader)?;
        let read = bytes.remaining() - reader.rest().len();
        bytes.advance(read);
        Ok(header)
    }

    fn encode_member(&mut self, member: &Member<MemberId>, mut out: impl BufMut) -> Result<(), GossipError> {
        if out.remaining_mut() < member_bytes(member) {
            return Err(GossipError::NoRoom { field: "a member" });
        }
        put_member(&mut out, member);
        Ok(())
    }

    fn decode_member(&mut self, mut bytes: impl Buf) -> Result<Member<MemberId>, GossipError> {
        let mut reader = Reader::new(bytes.chunk());
        let member = reader.member()?;
        let read = bytes.remaining() - reader.rest().len();
        bytes.advance(read);
        Ok(member)
    }
}

fn read_header(reader: &mut Reader<'_>) -> Result<Header<MemberId>, GossipError> {
    let src = reader.id()?;
    let src_incarnation = reader.u16("an incarnation")?;
    let dst = reader.id()?;
    let tag = reader.u8("a tag")?;
    let about = if (2..=5).contains(&tag) { Some(reader.id()?) } else { None };
    let number = if tag <= 5 { reader.u8("a probe number")? } else { 0 };
    let message = match (tag, about) {
        (0, _) => Message::Ping(number),
        (1, _) => Message::Ack(number),
        (2, Some(target)) => Message::PingReq { target, probe_number: number },
        (3, Some(origin)) => Message::IndirectPing { origin, probe_number: number },
        (4, Some(target)) => Message::IndirectAck { target, probe_number: number },
        (5, Some(origin)) => Message::ForwardedAck { origin, probe_number: number },
        (6, _) => Message::Announce,
        (7, _) => Message::Feed,
        (8, _) => Message::Gossip,
        (9, _) => Message::Broadcast,
        (10, _) => Message::TurnUndead,
        (found, _) => {
            return Err(GossipError::Invalid { field: "a tag", found: found.into(), limit: "from 0 to 10" });
        }
    };
    Ok(Header { src, src_incarnation, dst, message })
}

/// A decoded message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Swim {
    pub(super) header: Header<MemberId>,
    pub(super) members: Vec<Member<MemberId>>,
}

impl Swim {
    /// Reads a message to its end.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, GossipError> {
        let mut reader = Reader::new(bytes);
        let header = read_header(&mut reader)?;
        let mut members = Vec::new();
        if !reader.rest().is_empty() {
            // Grows as members are read: the count is not trusted.
            for _ in 0..reader.u16("a count of members")? {
                members.push(reader.member()?);
            }
        }
        reader.end()?;
        Ok(Self { header, members })
    }

    /// Its bytes.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, GossipError> {
        let mut out = Vec::new();
        SwimCodec.encode_header(&self.header, &mut out)?;
        if !matches!(self.header.message, Message::Announce | Message::TurnUndead | Message::Broadcast) {
            // No more than were read, so at most a u16.
            out.put_u16(self.members.len() as u16);
            self.members.iter().for_each(|member| put_member(&mut out, member));
        }
        Ok(out)
    }
}
