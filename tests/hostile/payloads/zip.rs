//! Zip archives by hand: false, overlapping, or very many members.

use super::deflate;

/// The bytes before the name of a member.
const LOCAL_BYTES: usize = 30;

/// A member as its records describe it.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    name: String,
    method: u16,
    checksum: u32,
    size: u32,
    data: Vec<u8>,
}

impl Member {
    pub(crate) fn stored(name: String, data: &[u8]) -> Self {
        Self { name, method: 0, checksum: checksum(data), size: data.len() as u32, data: data.to_vec() }
    }

    pub(crate) fn deflated(name: String, data: &[u8]) -> Self {
        Self { method: 8, data: deflate(data), ..Self::stored(name, data) }
    }

    /// The same bytes under another name.
    pub(crate) fn named(&self, name: String) -> Self {
        Self { name, ..self.clone() }
    }

    fn fields(&self) -> Vec<u8> {
        let mut record = [20_u16, 0, self.method, 0, 33].map(u16::to_le_bytes).concat();
        record.extend([self.checksum, self.data.len() as u32, self.size].map(u32::to_le_bytes).concat());
        record.extend_from_slice(&(self.name.len() as u16).to_le_bytes());
        record
    }
}

fn checksum(data: &[u8]) -> u32 {
    let mut sum = flate2::Crc::new();
    sum.update(data);
    sum.sum()
}

/// An archive of these members.
pub(crate) fn archive(members: &[Member]) -> Vec<u8> {
    let (mut file, mut offsets) = (Vec::new(), Vec::new());
    for member in members {
        offsets.push(file.len() as u32);
        file.extend_from_slice(b"PK\x03\x04");
        file.extend(member.fields());
        file.extend_from_slice(&[0, 0]);
        file.extend_from_slice(member.name.as_bytes());
        file.extend_from_slice(&member.data);
    }
    with_directory(file, members, &offsets)
}

/// An archive in which every name refers to the bytes of the first member.
pub(crate) fn overlapping(member: &Member, names: usize) -> Vec<u8> {
    let file = archive(std::slice::from_ref(member));
    let end = LOCAL_BYTES + member.name.len() + member.data.len();
    let members: Vec<Member> = (0..names).map(|index| member.named(format!("{index}.npy"))).collect();
    with_directory(file[..end].to_vec(), &members, &vec![0; names])
}

fn with_directory(mut file: Vec<u8>, members: &[Member], offsets: &[u32]) -> Vec<u8> {
    let start = file.len() as u32;
    for (member, offset) in members.iter().zip(offsets) {
        file.extend_from_slice(b"PK\x01\x02\x14\x00");
        file.extend(member.fields());
        file.extend_from_slice(&[0; 12]);
        file.extend_from_slice(&offset.to_le_bytes());
        file.extend_from_slice(member.name.as_bytes());
    }
    let bytes = file.len() as u32 - start;
    let count = members.len() as u16;
    file.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    file.extend([count, count].map(u16::to_le_bytes).concat());
    file.extend([bytes, start].map(u32::to_le_bytes).concat());
    file.extend_from_slice(&[0, 0]);
    file
}

/// An archive with one member. Its Zip64 field announces 2^40 bytes, packed and unpacked.
pub(crate) fn zip64() -> Vec<u8> {
    let extra = [&[1_u8, 0, 16, 0][..], &(1_u64 << 40).to_le_bytes(), &(1_u64 << 40).to_le_bytes()].concat();
    let record = |signature: &[u8], rest: &[u8]| {
        let mut record = signature.to_vec();
        record.extend([45_u16, 0, 8, 0, 33].map(u16::to_le_bytes).concat());
        record.extend([0_u32, u32::MAX, u32::MAX].map(u32::to_le_bytes).concat());
        record.extend([5_u16, extra.len() as u16].map(u16::to_le_bytes).concat());
        [&record, rest, b"x.npy", &extra].concat()
    };
    let mut file = record(b"PK\x03\x04", &[]);
    file.extend(deflate(&[0; 1000]));
    let start = file.len() as u32;
    let central = record(b"PK\x01\x02\x2d\x00", &[0; 14]);
    file.extend_from_slice(&central);
    file.extend_from_slice(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
    file.extend([central.len() as u32, start].map(u32::to_le_bytes).concat());
    file.extend_from_slice(&[0, 0]);
    file
}
