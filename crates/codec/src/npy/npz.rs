//! `.npz`: a zip archive of `.npy` files, each under its name.
//!
//! Only what NumPy writes is read: stored or deflated members, a central directory at the end, no encryption, no
//! spanning. A stored member is used in place. Deflated members are unpacked only after the sum of their claimed sizes
//! is within the limits, each into a buffer of its claimed size; the checksum must agree. Source: PKWARE's APPNOTE 6.3.
//!
//! Members are written stored, each aligned like a separate `.npy` file.

use bytes::Bytes;
use miniz_oxide::inflate::{TINFLStatus, decompress_slice_iter_to_slice};

use crate::error::{DecodeError, EncodeError};
use crate::limits::Budget;
use crate::out::ChargedBuffer;
use crate::value::tensor::view::AlignedZeros;
use crate::value::{Map, Value};

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const LOCAL_BYTES: usize = 30;
const CENTRAL_BYTES: usize = 46;
const END_BYTES: usize = 22;
/// The longest comment after the end record.
const MAX_COMMENT_BYTES: usize = 65_535;
const STORED: u16 = 0;
const DEFLATED: u16 = 8;
/// Instead of a size: the size is in the Zip64 extra field.
const IN_ZIP64: u32 = u32::MAX;
/// Overhead of an array: its entry in the map, its name, tensor and buffer.
const MEMBER_BYTES: usize = 512;

/// A member as the central directory describes it.
struct Member {
    name: String,
    method: u16,
    checksum: u32,
    packed: usize,
    unpacked: usize,
    local_at: usize,
}

/// Reads all arrays into a map, by their names without `.npy`.
pub(crate) fn decode(bytes: &Bytes, budget: &mut Budget<'_>) -> Result<Value, DecodeError> {
    let members = directory(bytes, budget)?;
    let mut map = Map::with_capacity(members.len());
    let mut last_end = 0;
    let mut in_order: Vec<&Member> = members.iter().collect();
    in_order.sort_by_key(|member| member.local_at);
    for member in in_order {
        // A zip bomb may share bytes between members to pass a limit on each.
        let data = member.span(bytes)?;
        if member.local_at < last_end {
            return Err(DecodeError::malformed("members that overlap").in_key(&member.name).at_offset(member.local_at));
        }
        last_end = data.end;
    }
    for member in members {
        let data = member.span(bytes)?;
        let start = data.start;
        let value = member.unpack(bytes.slice(data)).and_then(|file| {
            let stored = member.method == STORED;
            // Offsets inside a deflated member are not offsets in the input.
            super::decode(&file, budget)
                .map_err(|error| if stored { error.shifted(start) } else { error.without_offset() })
        });
        let value = value.map_err(|error| error.at_offset(start).in_key(&member.name))?;
        map.insert(member.name, value);
    }
    Ok(Value::Map(map))
}

fn malformed(message: &str, at: usize) -> DecodeError {
    DecodeError::malformed(message).at_offset(at)
}

/// Reads numbers off a record whose bytes are all there.
struct ZipRecord<'a> {
    record: &'a [u8],
}

impl ZipRecord<'_> {
    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        *self.record[at..].first_chunk().expect("a field of the record")
    }

    fn len(&self, at: usize) -> usize {
        usize::from(self.u16(at))
    }
}

fn record(bytes: &[u8], at: usize, len: usize, signature: u32) -> Result<ZipRecord<'_>, DecodeError> {
    let record = at.checked_add(len).and_then(|end| bytes.get(at..end));
    let fields =
        ZipRecord { record: record.ok_or_else(|| malformed("a zip record beyond the input", at.min(bytes.len())))? };
    if fields.u32(0) == signature { Ok(fields) } else { Err(malformed("not the zip record that was expected", at)) }
}

/// The start of the end record: the last match whose comment ends with the input.
fn end_of_directory(bytes: &[u8]) -> Result<usize, DecodeError> {
    let last = bytes.len().checked_sub(END_BYTES).ok_or_else(|| malformed("too short for .npz", 0))?;
    let first = last.saturating_sub(MAX_COMMENT_BYTES);
    let found = (first..=last)
        .rev()
        .find(|at| record(bytes, *at, END_BYTES, END).is_ok_and(|end| at + END_BYTES + end.len(20) == bytes.len()));
    found.ok_or_else(|| malformed("not .npz: no end of a zip directory", bytes.len()))
}

fn directory(bytes: &[u8], budget: &mut Budget<'_>) -> Result<Vec<Member>, DecodeError> {
    let end_at = end_of_directory(bytes)?;
    let end = record(bytes, end_at, END_BYTES, END)?;
    if end.u16(4) != 0 || end.u16(6) != 0 || end.u16(8) != end.u16(10) {
        return Err(DecodeError::unsupported("a zip archive in several parts").at_offset(end_at));
    }
    if end.u16(10) == u16::MAX || end.u32(16) == IN_ZIP64 {
        return Err(DecodeError::unsupported("a zip archive of 65,535 members or 4 GiB").at_offset(end_at));
    }
    let count = end.len(10);
    budget.take_elements(count).map_err(|error| error.at_offset(end_at))?;
    budget.take_memory(count * MEMBER_BYTES).map_err(|error| error.at_offset(end_at))?;
    let mut at = usize::try_from(end.u32(16)).unwrap_or(usize::MAX);
    let mut members: Vec<Member> = Vec::new();
    let mut names = std::collections::HashSet::new();
    for _ in 0..count {
        let (member, next) = Member::read(bytes, at)?;
        if !names.insert(member.name.clone()) {
            return Err(malformed("the same name twice", at).in_key(&member.name));
        }
        if member.method == DEFLATED {
            budget.take_decompressed(member.unpacked).map_err(|error| error.in_key(&member.name).at_offset(at))?;
        }
        members.push(member);
        at = next;
    }
    if at == end_at {
        Ok(members)
    } else {
        Err(malformed("a zip directory that does not end where its end is", at.min(bytes.len())))
    }
}

impl Member {
    /// Reads one entry of the directory. Returns the start of the next.
    fn read(bytes: &[u8], at: usize) -> Result<(Self, usize), DecodeError> {
        let fields = record(bytes, at, CENTRAL_BYTES, CENTRAL)?;
        let name_at = at + CENTRAL_BYTES;
        let extra_at = name_at + fields.len(28);
        let next = extra_at + fields.len(30) + fields.len(32);
        let beyond = || malformed("a zip record beyond the input", at);
        let name = bytes.get(name_at..extra_at).ok_or_else(beyond)?;
        let extra = bytes.get(extra_at..extra_at + fields.len(30)).ok_or_else(beyond)?;
        let name = std::str::from_utf8(name).map_err(|_| malformed("a name that is not UTF-8", name_at))?;
        let name = name.strip_suffix(".npy").unwrap_or(name).to_owned();
        if fields.u16(8) & 1 != 0 {
            return Err(DecodeError::unsupported("an encrypted member").in_key(&name).at_offset(at));
        }
        let sizes = Zip64::read(extra, fields.u32(24), fields.u32(20), fields.u32(42));
        let [unpacked, packed, local_at] = sizes.ok_or_else(|| malformed("a broken size", at).in_key(&name))?;
        let method = fields.u16(10);
        if ![STORED, DEFLATED].contains(&method) {
            return Err(DecodeError::unsupported(format!("zip method {method}")).in_key(&name).at_offset(at));
        }
        if method == STORED && packed != unpacked {
            return Err(malformed("a stored member of two sizes", at).in_key(&name));
        }
        Ok((Self { name, method, checksum: fields.u32(16), packed, unpacked, local_at }, next))
    }

    /// The range of the member's bytes, after its own header.
    fn span(&self, bytes: &[u8]) -> Result<std::ops::Range<usize>, DecodeError> {
        let fields = record(bytes, self.local_at, LOCAL_BYTES, LOCAL).map_err(|error| error.in_key(&self.name))?;
        let start = self.local_at + LOCAL_BYTES + fields.len(26) + fields.len(28);
        let end = start.checked_add(self.packed).filter(|end| *end <= bytes.len());
        end.map(|end| start..end)
            .ok_or_else(|| malformed("a member beyond the input", self.local_at).in_key(&self.name))
    }

    fn unpack(&self, packed: Bytes) -> Result<Bytes, DecodeError> {
        let file = match self.method {
            STORED => packed,
            _ => {
                // Deflate reaches 1032 : 1; a larger claim is refused before a buffer is allocated.
                if self.unpacked / MAX_RATIO > packed.len() {
                    return Err(DecodeError::malformed("a member that cannot unpack to the size it claims"));
                }
                let mut buffer = AlignedZeros::zeroed(self.unpacked);
                let input = std::iter::once(&packed[..]);
                let written = decompress_slice_iter_to_slice(buffer.bytes_mut(), input, false, true);
                match written {
                    Ok(len) if len == self.unpacked => buffer.into_bytes(),
                    Ok(_) | Err(TINFLStatus::HasMoreOutput) => {
                        return Err(DecodeError::malformed("a member that unpacks to another size than it claims"));
                    }
                    Err(_) => return Err(DecodeError::malformed("a member that is not deflated as it says")),
                }
            }
        };
        if crc32fast::hash(&file) == self.checksum {
            Ok(file)
        } else {
            Err(DecodeError::malformed("a member whose checksum does not agree"))
        }
    }
}

const MAX_RATIO: usize = 1032;

/// Sizes that do not fit the record, in the order of the record.
struct Zip64;

impl Zip64 {
    fn read(mut extra: &[u8], unpacked: u32, packed: u32, local_at: u32) -> Option<[usize; 3]> {
        let mut wide: &[u8] = &[];
        while let Some((head, rest)) = extra.split_first_chunk::<4>() {
            let len = usize::from(u16::from_le_bytes([head[2], head[3]]));
            let (field, rest) = rest.split_at_checked(len)?;
            if head[..2] == [1, 0] {
                wide = field;
            }
            extra = rest;
        }
        let mut size = |narrow: u32| {
            if narrow != IN_ZIP64 {
                return usize::try_from(narrow).ok();
            }
            let (first, rest) = wide.split_first_chunk::<8>()?;
            wide = rest;
            usize::try_from(u64::from_le_bytes(*first)).ok()
        };
        Some([size(unpacked)?, size(packed)?, size(local_at)?])
    }
}

/// Writes a map of arrays.
pub(crate) fn encode(value: &Value) -> Result<Bytes, EncodeError> {
    let map = value.as_map().ok_or_else(|| EncodeError::new(value.kind(), ".npz is a map of arrays"))?;
    let too_many = || EncodeError::new("npz", "65,535 arrays or 4 GiB are beyond it");
    let count = u16::try_from(map.len()).ok().filter(|count| *count < u16::MAX).ok_or_else(too_many)?;
    let (mut out, mut directory) = (ChargedBuffer::new(0), ChargedBuffer::new(0));
    for (name, array) in map {
        let too_large = || EncodeError::new("npz", "names of 64 KiB and archives of 4 GiB are beyond it").in_key(name);
        let name_len = u16::try_from(name.len() + SUFFIX.len()).map_err(|_| too_large())?;
        let at = out.len();
        // An extra field of zeros brings the elements to where they are aligned.
        let unpadded = at + LOCAL_BYTES + usize::from(name_len) + 4;
        let padding = (unpadded.next_multiple_of(super::header::ALIGNMENT) - unpadded) as u16;
        out.extend_from_slice(&LOCAL.to_le_bytes());
        let common_at = out.len();
        out.extend_from_slice(&common(0, 0, name_len)); // Checksum and size are known when the array is written.
        out.extend_from_slice(&(padding + 4).to_le_bytes());
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(SUFFIX);
        out.extend_from_slice(&PADDING.to_le_bytes());
        out.extend_from_slice(&padding.to_le_bytes());
        out.extend_with(0, usize::from(padding));
        let start = out.len();
        super::write(&mut out, array).map_err(|error| error.in_key(name))?;
        out.check()?;
        let file = &out.as_slice()[start..];
        let common = common(crc32fast::hash(file), u32::try_from(file.len()).map_err(|_| too_large())?, name_len);
        out.bytes_mut()[common_at..][..common.len()].copy_from_slice(&common);
        directory.extend_from_slice(&CENTRAL.to_le_bytes());
        directory.extend_from_slice(&VERSION.to_le_bytes());
        directory.extend_from_slice(&common);
        directory.extend_from_slice(&[0; 12]); // no extra, no comment, first part, no attributes
        directory.extend_from_slice(&u32::try_from(at).map_err(|_| too_large())?.to_le_bytes());
        directory.extend_from_slice(name.as_bytes());
        directory.extend_from_slice(SUFFIX);
        directory.check()?;
    }
    let at = u32::try_from(out.len()).map_err(|_| too_many())?;
    let len = u32::try_from(directory.len()).map_err(|_| too_many())?;
    out.extend_from_slice(directory.as_slice());
    out.extend_from_slice(&END.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&at.to_le_bytes());
    out.extend_from_slice(&[0; 2]);
    Ok(out.into_bytes()?)
}

/// The suffix that NumPy appends to the name of an array.
const SUFFIX: &[u8] = b".npy";
/// Zip 2.0.
const VERSION: u16 = 20;
/// The flag for names in UTF-8.
const UTF8: u16 = 1 << 11;
/// An extra field that readers skip: Android's zipalign uses it for the same.
const PADDING: u16 = 0xd935;
/// The first day that zip knows.
const DATE: u16 = 0x0021;

/// The fields that local header and directory share, from the needed version to the length of the name.
fn common(checksum: u32, size: u32, name_len: u16) -> [u8; COMMON_BYTES] {
    let mut out = [0; COMMON_BYTES];
    let (start, rest) = out.split_at_mut(10);
    let (sizes, end) = rest.split_at_mut(12);
    start.copy_from_slice(bytemuck::bytes_of(&[VERSION, UTF8, STORED, 0, DATE].map(u16::to_le)));
    sizes.copy_from_slice(bytemuck::bytes_of(&[checksum, size, size].map(u32::to_le)));
    end.copy_from_slice(&name_len.to_le_bytes());
    out
}

const COMMON_BYTES: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DecodeLimits, Format, Tensor};

    #[test]
    fn arrays_lie_aligned_and_their_names_are_utf_8() {
        let arrays =
            ["a", "a long name of an array"].map(|name| (name, Tensor::from_vec(&[3], vec![1_u8, 2, 3]).unwrap()));
        let written = Value::from(Map::from_iter(arrays)).encode(Format::Npz).unwrap();
        let places = |signature: &[u8]| {
            let at = (0..written.len()).filter(|at| written[*at..].starts_with(signature));
            at.collect::<Vec<_>>()
        };
        let files = places(b"\x93NUMPY");
        assert_eq!(files.len(), 2);
        assert!(files.iter().all(|at| at % 64 == 0), "{files:?}");
        for at in places(&CENTRAL.to_le_bytes()) {
            assert_eq!(written[at + 8..at + 10], [0, 0x08], "bit 11: names in UTF-8");
        }
    }

    fn archive(members: u8) -> Vec<u8> {
        let array = Tensor::from_vec(&[3], vec![1_u8, 2, 3]).unwrap();
        let arrays = (0..members).map(|name| (name.to_string(), array.clone()));
        Value::from(Map::from_iter(arrays)).encode(Format::Npz).unwrap().to_vec()
    }

    fn read(archive: Vec<u8>, limits: &DecodeLimits) -> Result<Value, DecodeError> {
        Value::decode(Format::Npz, &archive.into(), limits)
    }

    #[test]
    fn members_that_share_their_data_are_refused() {
        let mut shared = archive(2);
        let second = (0..shared.len()).rev().find(|at| shared[*at..].starts_with(&CENTRAL.to_le_bytes())).unwrap();
        // The place of the first member.
        shared[second + 42..second + 46].fill(0);
        let error = read(shared, &DecodeLimits::default()).unwrap_err();
        assert_eq!(error.message(), "members that overlap");
    }

    #[test]
    fn each_member_is_charged_before_it_is_read() {
        let limits = |max_tree_bytes| DecodeLimits { max_tree_bytes, ..DecodeLimits::default() };
        assert!(read(archive(20), &limits(20_000)).is_ok());
        let error = read(archive(20), &limits(20 * MEMBER_BYTES - 1)).unwrap_err();
        assert_eq!(error.limit().map(|limit| limit.name), Some("max_tree_bytes"));
    }

    /// The first entry of the directory.
    fn entry(archive: &[u8]) -> usize {
        (0..archive.len()).find(|at| archive[*at..].starts_with(&CENTRAL.to_le_bytes())).unwrap()
    }

    #[test]
    fn false_records_are_refused_with_their_cause() {
        let (size, all) = (archive(2).len(), [0xff; 4]);
        let (first, end) = (entry(&archive(2)), size - END_BYTES);
        let parts = "a zip archive in several parts";
        let large = "a zip archive of 65,535 members or 4 GiB";
        for (at, bytes, cause) in [
            (end + 4, &[1][..], parts),
            (end + 6, &[1], parts),
            (end + 8, &[1], parts),
            (end + 8, &all, large),
            (end + 16, &all, large),
            (first + 8, &[1], "an encrypted member"),
            (first + 10, &[9], "zip method 9"),
            (first + 20, &[1], "a stored member of two sizes"),
            (first + 20, &all, "a broken size"),
            (first + 46, b"1", "the same name twice"),
            (first + 46, b"\xff", "a name that is not UTF-8"),
        ] {
            let mut changed = archive(2);
            changed[at..at + bytes.len()].copy_from_slice(bytes);
            assert_eq!(read(changed, &DecodeLimits::default()).unwrap_err().message(), cause, "{at}: {bytes:?}");
        }
    }

    #[test]
    fn sizes_may_stand_in_the_zip64_field_of_a_member_with_a_comment() {
        let mut wide = archive(2);
        let first = entry(&wide);
        let [packed, unpacked, local_at] = [20, 24, 42].map(|at| {
            let size = u32::from_le_bytes(*wide[first + at..].first_chunk().unwrap());
            wide[first + at..first + at + 4].fill(0xff);
            u64::from(size).to_le_bytes()
        });
        let zip64 = [&[9, 9, 2, 0, 7, 7][..], &[1, 0, 24, 0], &unpacked, &packed, &local_at].concat();
        wide[first + 30] = zip64.len() as u8;
        wide[first + 32] = 3;
        let name_end = first + CENTRAL_BYTES + "0.npy".len();
        wide.splice(name_end..name_end, [&zip64[..], b"abc"].concat());
        let [wide, plain] = [wide, archive(2)].map(|bytes| read(bytes, &DecodeLimits::default()).unwrap());
        assert_eq!(wide, plain);
    }

    /// A byte of an unpacked member is not a byte of the input.
    #[test]
    fn an_error_in_an_array_is_located_in_the_input() {
        let mut stored = archive(1);
        let start = stored.windows(6).position(|window| window == super::super::header::MAGIC).unwrap();
        let first = entry(&stored);
        stored[start + 6] = 9; // The version.
        let checksum = crc32fast::hash(&stored[start..first]).to_le_bytes();
        stored[first + 16..first + 20].copy_from_slice(&checksum);
        let mut deflated = stored.clone();
        let packed = miniz_oxide::deflate::compress_to_vec(&stored[start..first], 6);
        deflated[first + 10] = DEFLATED as u8;
        deflated[first + 20..first + 24].copy_from_slice(&(packed.len() as u32).to_le_bytes());
        let end = deflated.len() - END_BYTES;
        deflated[end + 16..end + 20].copy_from_slice(&((start + packed.len()) as u32).to_le_bytes());
        deflated.splice(start..first, packed);
        for (file, offset) in [(stored, start + 6), (deflated, start)] {
            let error = read(file, &DecodeLimits::default()).unwrap_err();
            assert_eq!((error.message(), error.offset()), (".npy version 9.0", Some(offset)));
        }
    }

    #[test]
    fn a_deflated_member_must_have_its_size_and_checksum() {
        let data = b"some bytes, some bytes";
        let deflated = Bytes::from(miniz_oxide::deflate::compress_to_vec(data, 6));
        let unpack = |packed: &Bytes, unpacked: usize, checksum: u32| {
            let name = String::new();
            let member = Member { name, method: DEFLATED, checksum, packed: packed.len(), unpacked, local_at: 0 };
            member.unpack(packed.clone()).map_err(|error| error.message().to_owned())
        };
        let (len, checksum) = (data.len(), crc32fast::hash(data));
        assert_eq!(unpack(&deflated, len, checksum).unwrap(), &data[..]);
        let other_size = "a member that unpacks to another size than it claims";
        let most = deflated.len() * MAX_RATIO + MAX_RATIO - 1;
        for (unpacked, cause) in [
            (len - 1, other_size),
            (len + 1, other_size),
            (most, other_size),
            (most + 1, "a member that cannot unpack to the size it claims"),
        ] {
            assert_eq!(unpack(&deflated, unpacked, checksum).unwrap_err(), cause, "{unpacked}");
        }
        let broken = "a member that is not deflated as it says";
        assert_eq!(unpack(&Bytes::from_static(&[0xff; 9]), len, checksum).unwrap_err(), broken);
        assert_eq!(unpack(&deflated, len, 7).unwrap_err(), "a member whose checksum does not agree");
    }

    #[test]
    fn an_archive_has_fewer_arrays_than_its_count_can_say() {
        let arrays = (0..u16::MAX).map(|name| (name.to_string(), Value::from(vec![Value::from(1)])));
        let error = Value::from(Map::from_iter(arrays)).encode(Format::Npz).unwrap_err();
        assert_eq!((error.type_name(), error.path()), ("npz", "$"));
    }

    #[test]
    fn an_archive_may_end_with_a_comment() {
        let mut commented = archive(1);
        let len = commented.len();
        commented[len - 2..].copy_from_slice(&5_u16.to_le_bytes());
        commented.extend_from_slice(b"hello");
        let [commented, plain] = [commented, archive(1)].map(|bytes| read(bytes, &DecodeLimits::default()).unwrap());
        assert_eq!(commented, plain);
    }
}
