//! Bytes of identities and members: big-endian, without padding.
//!
//! ```text
//! identity   name length u8, name, 4 or 6 u8, IP address, port u16, generation u64, bump u32
//! member     identity, incarnation u16, state u8 (0 alive, 1 suspect, 2 down)
//! version    name length u8, name, generation u64, version u64
//! version of a signed list   id length u8 (0 for the root), id of its issuer, version u64
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bytes::BufMut;
use foca::{Member, State};

use super::error::GossipError;
use super::identity::{MAX_NAME_BYTES, MemberId};
use super::removals::{ListVersion, MAX_ISSUER_BYTES};
use super::reports::Version;

/// Reads from the front of bytes from outside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.0
    }

    fn take<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], GossipError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(GossipError::Truncated { field })?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, GossipError> {
        self.take(field).map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, GossipError> {
        self.take(field).map(u16::from_be_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, GossipError> {
        self.take(field).map(u64::from_be_bytes)
    }

    /// This many bytes.
    pub(super) fn bytes(&mut self, length: usize, field: &'static str) -> Result<&'a [u8], GossipError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(GossipError::Truncated { field })?;
        self.0 = rest;
        Ok(taken)
    }

    fn name(&mut self) -> Result<Arc<str>, GossipError> {
        let length = self.u8("the length of a name")?;
        let invalid = |field, limit| GossipError::Invalid { field, found: length.into(), limit };
        if !(1..=MAX_NAME_BYTES).contains(&length.into()) {
            return Err(invalid("the length of a name", "from 1 to 64"));
        }
        let name = std::str::from_utf8(self.bytes(length.into(), "a name")?).ok();
        let name = name.filter(|name| name.chars().all(|c| c.is_ascii_graphic()));
        name.map(Arc::from).ok_or_else(|| invalid("a name with this length", "visible ASCII"))
    }

    pub(super) fn id(&mut self) -> Result<MemberId, GossipError> {
        let name = self.name()?;
        let field = "an address";
        let ip = match self.u8(field)? {
            4 => IpAddr::V4(Ipv4Addr::from(self.take::<4>(field)?)),
            6 => IpAddr::V6(Ipv6Addr::from(self.take::<16>(field)?)),
            found => {
                let limit = "4 or 6";
                return Err(GossipError::Invalid { field: "the kind of an address", found: found.into(), limit });
            }
        };
        // One address has one form, so that it is recognized.
        let address = SocketAddr::new(ip.to_canonical(), self.u16(field)?);
        let generation = self.u64("a generation")?;
        let bump = u32::from_be_bytes(self.take("a bump")?);
        Ok(MemberId { name, address, generation, bump })
    }

    pub(super) fn version(&mut self) -> Result<Version, GossipError> {
        let name = self.name()?;
        let (generation, version) = (self.u64("a generation")?, self.u64("a version of a report")?);
        Ok(Version { name, generation, version })
    }

    pub(super) fn list_version(&mut self) -> Result<ListVersion, GossipError> {
        let length = self.u8("the length of an issuer's id")?;
        let invalid = |field, limit| GossipError::Invalid { field, found: length.into(), limit };
        if usize::from(length) > MAX_ISSUER_BYTES {
            return Err(invalid("the length of an issuer's id", "up to 16"));
        }
        let issuer = std::str::from_utf8(self.bytes(length.into(), "an issuer's id")?).ok();
        let issuer = issuer.filter(|id| id.chars().all(|c| c.is_ascii_graphic()));
        let issuer = issuer.ok_or_else(|| invalid("an issuer's id with this length", "visible ASCII"))?.to_owned();
        Ok(ListVersion { issuer, version: self.u64("a version of a list")? })
    }

    pub(super) fn member(&mut self) -> Result<Member<MemberId>, GossipError> {
        let id = self.id()?;
        let incarnation = self.u16("an incarnation")?;
        let state = match self.u8("a state")? {
            0 => State::Alive,
            1 => State::Suspect,
            2 => State::Down,
            found => {
                let limit = "0, 1 or 2";
                return Err(GossipError::Invalid { field: "a state", found: found.into(), limit });
            }
        };
        Ok(Member::new(id, incarnation, state))
    }

    /// Checks that nothing is left.
    pub(super) fn end(self) -> Result<(), GossipError> {
        if self.0.is_empty() { Ok(()) } else { Err(GossipError::TrailingBytes) }
    }
}

/// The length of an encoded identity.
pub(super) fn id_bytes(id: &MemberId) -> usize {
    let ip = if id.address.is_ipv4() { 4 } else { 16 };
    1 + id.name.len() + 1 + ip + 2 + 8 + 4
}

/// The length of an encoded member.
pub(super) fn member_bytes(member: &Member<MemberId>) -> usize {
    id_bytes(member.id()) + 3
}

/// The length of an encoded version.
pub(super) fn version_bytes(version: &Version) -> usize {
    1 + version.name.len() + 8 + 8
}

/// Writes a name, of at most 64 bytes.
fn put_name(out: &mut impl BufMut, name: &str) {
    out.put_u8(name.len() as u8);
    out.put_slice(name.as_bytes());
}

/// Writes a version.
pub(super) fn put_version(out: &mut impl BufMut, version: &Version) {
    put_name(out, &version.name);
    out.put_u64(version.generation);
    out.put_u64(version.version);
}

/// Writes the version of a signed list.
pub(super) fn put_list_version(out: &mut impl BufMut, version: &ListVersion) {
    put_name(out, &version.issuer);
    out.put_u64(version.version);
}

/// Writes an identity.
pub(super) fn put_id(out: &mut impl BufMut, id: &MemberId) {
    put_name(out, &id.name);
    match id.address.ip() {
        IpAddr::V4(ip) => {
            out.put_u8(4);
            out.put_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.put_u8(6);
            out.put_slice(&ip.octets());
        }
    }
    out.put_u16(id.address.port());
    out.put_u64(id.generation);
    out.put_u32(id.bump);
}

/// Writes a member.
pub(super) fn put_member(out: &mut impl BufMut, member: &Member<MemberId>) {
    put_id(out, member.id());
    out.put_u16(member.incarnation());
    out.put_u8(match member.state() {
        State::Alive => 0,
        State::Suspect => 1,
        State::Down => 2,
    });
}
