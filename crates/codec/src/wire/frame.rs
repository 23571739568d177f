//! Writes and reads the head of a frame: the fixed prelude and the header.

use bytes::{BufMut, Bytes};
use rmp::Marker;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::WireError;
use super::header::{Call, Done};
use super::quick;
use super::reader::FrameLimits;
use crate::limits::DecodeLimits;
use crate::typed::msgpack;

const MAGIC: [u8; 3] = *b"CBQ";

/// The newest version of the protocol that this side speaks. Hello and welcome agree on one.
pub const VERSION: u8 = 1;

/// The layout of frames: the byte after the magic number. It is not the protocol's version: hello and welcome have
/// layout 1 in every version, because they are read before the version is known.
const LAYOUT: u8 = 1;

/// The length of the prelude.
pub const PRELUDE_BYTES: usize = 20;

crate::words! {
    /// The kind of a frame.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum FrameKind {
        /// The first frame of a connection, by the side that opened it.
        Hello = 1 => "hello",
        /// The answer to it.
        Welcome = 2 => "welcome",
        /// One call, or one question to an actor; its body is the input.
        Call = 3 => "call",
        /// Cancels one call of a stream that several calls share. No header, no body.
        Cancel = 4 => "cancel",
        /// One output of a streaming call.
        Item = 5 => "item",
        /// A call's successful outcome; its body is the output, unless it streamed.
        Done = 6 => "done",
        /// A call's outcome that is an error; its body has the details from user code.
        Fail = 7 => "fail",
        /// The reader of a streaming call has room for more outputs.
        Credit = 8 => "credit",
        /// The node takes no new work on this connection.
        Goaway = 9 => "goaway",
        /// The offers of a node and its load.
        Offers = 10 => "offers",
        /// Asks for a certificate with a token; its body is a request for one, in PEM.
        Join = 11 => "join",
        /// Asks for a new certificate instead of the presented one; its body is a request for one, in PEM.
        Renew = 12 => "renew",
        /// The answer to both; its body is the certificate, and the authority's, in PEM.
        Certificate = 13 => "certificate",
        /// A message of membership, on a one-way stream between nodes that both have the feature `gossip`; in its body.
        Gossip = 14 => "gossip",
        /// The sender cannot connect to the address that the receiver advertises; on a one-way stream.
        Unreachable = 15 => "unreachable",
        /// Asks a node what it knows of its cluster; no header, no body. Answered as a call is.
        Status = 16 => "status",
        /// Asks a node to finish its calls and end; no header, no body. Answered as a call is, before that.
        Drain = 17 => "drain",
    }
}

impl FrameKind {
    /// The number on the wire, never given to another kind.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }
}

/// The head of a frame with this header. Exactly `body_bytes` of body must follow.
///
/// # Errors
///
/// When the header's own `Serialize` fails, or it is longer than any reader takes.
pub fn frame_head<H: Serialize>(
    kind: FrameKind,
    entry: u16,
    header: &H,
    body_bytes: usize,
) -> Result<Bytes, WireError> {
    Ok(written(kind, entry, header, body_bytes, 0)?.into())
}

/// A whole frame in one piece, without its entry number yet.
///
/// Small frames are sent together: a copy costs less than a separate piece.
#[derive(Debug)]
pub struct LooseFrame {
    bytes: Vec<u8>,
}

#[expect(clippy::len_without_is_empty, reason = "no frame is empty")]
impl LooseFrame {
    /// A frame with this header and this body.
    ///
    /// # Errors
    ///
    /// As [`frame_head`].
    pub fn new<H: Serialize>(kind: FrameKind, header: &H, body: &[Bytes]) -> Result<Self, WireError> {
        let body_bytes = body.iter().map(Bytes::len).sum();
        let mut bytes = written(kind, 0, header, body_bytes, body_bytes)?;
        body.iter().for_each(|piece| bytes.extend_from_slice(piece));
        Ok(Self { bytes })
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Reads the header, changes it and writes it again.
    ///
    /// # Errors
    ///
    /// When the header is not of this type, or as [`frame_head`]. Then the frame is unchanged.
    pub fn change_header<H>(&mut self, kind: FrameKind, change: impl FnOnce(&mut H)) -> Result<(), WireError>
    where
        H: Serialize + DeserializeOwned + Default,
    {
        let body_at = PRELUDE_BYTES + self.header_bytes();
        let (header, body) = (Bytes::copy_from_slice(&self.bytes[PRELUDE_BYTES..body_at]), &self.bytes[body_at..]);
        let mut header: H = FrameHead { kind, entry: 0, body_bytes: body.len(), header }.header()?;
        change(&mut header);
        let mut bytes = written(kind, 0, &header, body.len(), body.len())?;
        bytes.extend_from_slice(body);
        self.bytes = bytes;
        Ok(())
    }

    /// Appends the frame with its entry number.
    pub fn append_to(&self, out: &mut Vec<u8>, entry: u16) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        out[start + ENTRY_AT..start + ENTRY_AT + 2].copy_from_slice(&entry.to_le_bytes());
    }

    /// Adds a true field to the header without reading it. Does nothing if the header has 15 fields.
    pub fn add_flag(&mut self, field: &str) {
        let header_bytes = self.header_bytes();
        let fields = self.bytes.get(PRELUDE_BYTES).map(|marker| Marker::from_u8(*marker));
        // Both counts are the low bits of one byte.
        let (Some(Marker::FixMap(fields @ ..15)), Ok(name @ ..32)) = (fields, u8::try_from(field.len())) else {
            return;
        };
        let marker = Marker::FixStr(name).to_u8();
        let added: Vec<u8> = std::iter::once(marker).chain(field.bytes()).chain([Marker::True.to_u8()]).collect();
        self.bytes[PRELUDE_BYTES] = Marker::FixMap(fields + 1).to_u8();
        let length = (header_bytes + added.len()) as u32;
        self.bytes[HEADER_BYTES_AT..HEADER_BYTES_AT + 4].copy_from_slice(&length.to_le_bytes());
        let body_at = PRELUDE_BYTES + header_bytes;
        self.bytes.splice(body_at..body_at, added);
    }

    fn header_bytes(&self) -> usize {
        self.bytes[HEADER_BYTES_AT..HEADER_BYTES_AT + 4].try_into().map_or(0, u32::from_le_bytes) as usize
    }
}

/// Frames that are sent together: small pieces are copied into one, large pieces are shared.
#[derive(Debug, Default)]
pub struct FrameRun {
    pieces: Vec<Bytes>,
    /// The piece that is being filled.
    open: Vec<u8>,
    bytes: usize,
}

impl FrameRun {
    /// Appends a frame.
    ///
    /// # Errors
    ///
    /// As [`frame_head`]. Then nothing is appended.
    pub fn push<H: Serialize>(
        &mut self,
        kind: FrameKind,
        entry: u16,
        header: &H,
        body: &[Bytes],
    ) -> Result<(), WireError> {
        let (body_bytes, before) = (body.iter().map(Bytes::len).sum(), self.open.len());
        let written = append(&mut self.open, kind, entry, header, body_bytes);
        written.inspect_err(|_| self.open.truncate(before))?;
        self.bytes += self.open.len() - before + body_bytes;
        for piece in body {
            if piece.len() < COPIED_BELOW {
                self.open.extend_from_slice(piece);
            } else {
                self.close();
                self.pieces.push(piece.clone());
            }
        }
        Ok(())
    }

    /// Bytes of all frames together.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The frames, to be sent.
    #[must_use]
    pub fn into_pieces(mut self) -> Vec<Bytes> {
        self.close();
        self.pieces
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.pieces.push(std::mem::take(&mut self.open).into());
        }
    }
}

/// Copying less than this costs less than a separate piece, on both sides.
const COPIED_BELOW: usize = 4 << 10;

/// The offset of the entry number in a prelude.
const ENTRY_AT: usize = 6;

/// The offset of the header's length in a prelude.
const HEADER_BYTES_AT: usize = 8;

/// Most headers are shorter.
const USUAL_HEADER_BYTES: usize = 152;

/// A head, in a buffer with `room` more bytes.
fn written<H: Serialize>(
    kind: FrameKind,
    entry: u16,
    header: &H,
    body_bytes: usize,
    room: usize,
) -> Result<Vec<u8>, WireError> {
    let mut head = Vec::with_capacity(PRELUDE_BYTES + USUAL_HEADER_BYTES + room);
    append(&mut head, kind, entry, header, body_bytes)?;
    Ok(head)
}

/// Appends a head. After an error a part of it is there.
fn append<H: Serialize>(
    out: &mut Vec<u8>,
    kind: FrameKind,
    entry: u16,
    header: &H,
    body_bytes: usize,
) -> Result<(), WireError> {
    let start = out.len();
    put_prelude(out, kind, entry, body_bytes);
    msgpack::append(out, header).map_err(|source| WireError::Encode { kind: kind.as_str(), source })?;
    let (bytes, max) = (out.len() - start - PRELUDE_BYTES, FrameLimits::default().max_header_bytes);
    match u32::try_from(bytes) {
        Ok(length) if bytes <= max => {
            let at = start + HEADER_BYTES_AT;
            out[at..at + 4].copy_from_slice(&length.to_le_bytes());
            Ok(())
        }
        _ => Err(WireError::HeaderTooLarge { bytes: bytes as u64, max }),
    }
}

/// A frame that is nothing but its prelude.
pub(super) fn bare(kind: FrameKind, entry: u16) -> Bytes {
    let mut head = Vec::with_capacity(PRELUDE_BYTES);
    put_prelude(&mut head, kind, entry, 0);
    head.into()
}

/// The fixed part, of a frame without a header.
fn put_prelude(head: &mut Vec<u8>, kind: FrameKind, entry: u16, body_bytes: usize) {
    head.extend_from_slice(&MAGIC);
    head.put_u8(LAYOUT);
    head.put_u8(kind.number());
    head.put_u8(0);
    head.put_u16_le(entry);
    head.put_u32_le(0);
    head.put_u64_le(body_bytes as u64);
}

/// The head of a frame that was received. Its body follows.
#[derive(Clone, Debug)]
pub struct FrameHead {
    /// Its kind.
    pub kind: FrameKind,
    /// The number of its call on the stream.
    pub entry: u16,
    /// The number of bytes of the body, which follows.
    pub body_bytes: usize,
    header: Bytes,
}

impl FrameHead {
    /// Reads the header of a call.
    ///
    /// # Errors
    ///
    /// As [`header`](Self::header).
    pub fn call(&self) -> Result<Call, WireError> {
        quick::call(&self.header).map_or_else(|| self.header(), Ok)
    }

    /// Reads the header of a successful outcome.
    ///
    /// # Errors
    ///
    /// As [`header`](Self::header).
    pub fn done(&self) -> Result<Done, WireError> {
        quick::done(&self.header).map_or_else(|| self.header(), Ok)
    }

    /// Reads the header. Unknown fields are skipped.
    ///
    /// # Errors
    ///
    /// When it is not a MessagePack map, or a field has the wrong type.
    pub fn header<H: DeserializeOwned + Default>(&self) -> Result<H, WireError> {
        if self.header.is_empty() {
            return Ok(H::default());
        }
        msgpack::from_bytes(&self.header, &HEADER_LIMITS)
            .map_err(|source| WireError::Header { kind: self.kind.as_str(), source })
    }
}

/// A header is a map of few levels.
pub(super) const HEADER_LIMITS: DecodeLimits = DecodeLimits {
    max_bytes: MAX_HEADER_BYTES,
    max_depth: 8,
    max_elements: MAX_HEADER_BYTES,
    max_string_bytes: MAX_HEADER_BYTES,
    max_tree_bytes: 16 * MAX_HEADER_BYTES,
    max_decompressed_bytes: 0,
};

/// An error with its trace fits; tables of offers are in bodies.
pub(super) const MAX_HEADER_BYTES: usize = 64 * 1024;

/// The fixed part of a frame.
pub(super) struct FramePrelude {
    kind: FrameKind,
    entry: u16,
    pub(super) header_bytes: usize,
    pub(super) body_bytes: usize,
}

impl FramePrelude {
    pub(super) fn read(bytes: &[u8; PRELUDE_BYTES], limits: &FrameLimits) -> Result<Self, WireError> {
        let [m0, m1, m2, version, kind, flags, e0, e1, h0, h1, h2, h3, body @ ..] = *bytes;
        if [m0, m1, m2] != MAGIC {
            return Err(WireError::NotAFrame { found: [m0, m1, m2] });
        }
        if version != LAYOUT {
            return Err(WireError::Version { found: version, known: LAYOUT });
        }
        let kind = FrameKind::from_number(kind).ok_or(WireError::Kind { found: kind })?;
        if flags != 0 {
            return Err(WireError::Flags { found: flags });
        }
        let header = u32::from_le_bytes([h0, h1, h2, h3]);
        let header_bytes = within(header.into(), limits.max_header_bytes)
            .ok_or_else(|| WireError::HeaderTooLarge { bytes: header.into(), max: limits.max_header_bytes })?;
        let body = u64::from_le_bytes(body);
        let body_bytes = within(body, limits.max_body_bytes)
            .ok_or(WireError::BodyTooLarge { bytes: body, max: limits.max_body_bytes })?;
        Ok(Self { kind, entry: u16::from_le_bytes([e0, e1]), header_bytes, body_bytes })
    }

    pub(super) fn with_header(self, header: Bytes) -> FrameHead {
        FrameHead { kind: self.kind, entry: self.entry, body_bytes: self.body_bytes, header }
    }
}

fn within(bytes: u64, max: usize) -> Option<usize> {
    usize::try_from(bytes).ok().filter(|bytes| *bytes <= max)
}
