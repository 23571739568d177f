//! Frames: a head and its parts, with all lengths known before them.
//!
//! Lengths are checked against the limits before anything is allocated, and memory grows only as bytes arrive. The
//! parts lie in the stream, or in shared memory.

use std::io::{self, Write};

use bytes::Bytes;
use callboard_codec::{DecodeLimits, MAX_DEPTH};

use crate::shared_memory::{Incoming, MemoryError};
use crate::socket::Source;

/// The most bytes of a head.
pub(crate) const MAX_HEAD_BYTES: usize = 4 * 1024 * 1024;

/// The most parts of a frame.
const MAX_PARTS: usize = 65_536;

/// The most bytes that are allocated before they have arrived.
const GROWTH_BYTES: usize = 1024 * 1024;

/// The bytes that are allocated first.
const FIRST_BYTES: usize = 8 * 1024;

/// The bytes of the first two lengths.
const START_BYTES: usize = 8;

/// Frames of at most this many bytes are sent in one piece.
pub(crate) const ONE_PIECE_BYTES: usize = 64 * 1024;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) head: Bytes,
    pub(crate) parts: Vec<Bytes>,
}

/// The sender broke the protocol.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a frame's head has {0} bytes, more than {MAX_HEAD_BYTES}")]
    Head(usize),
    #[error("a frame has {0} parts, more than {MAX_PARTS}")]
    Parts(usize),
    #[error("a frame has {bytes} bytes, more than the limit of {limit} (max_bytes)")]
    Bytes { bytes: u64, limit: u64 },
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// Sends a frame. Each part may be in pieces. All of them lie in `memory` already unless this is 0.
pub(crate) fn write_frame<'p>(
    stream: &mut impl Write,
    head: &[u8],
    parts: impl ExactSizeIterator<Item = (usize, &'p [Bytes])> + Clone,
    memory: u8,
) -> io::Result<()> {
    let lengths = parts.clone().map(|(bytes, _)| bytes);
    let all: usize = lengths.clone().sum();
    let mut start = frame_start(head, lengths, memory)?;
    if memory != 0 {
        return stream.write_all(&start);
    }
    let pieces = parts.flat_map(|(_, pieces)| pieces);
    if start.len() + all <= ONE_PIECE_BYTES {
        pieces.for_each(|piece| start.extend_from_slice(piece));
        return stream.write_all(&start);
    }
    stream.write_all(&start)?;
    pieces.into_iter().try_for_each(|piece| stream.write_all(piece))
}

/// The bytes of a frame before its parts, which have these lengths.
pub(crate) fn frame_start(
    head: &[u8],
    lengths: impl ExactSizeIterator<Item = usize>,
    memory: u8,
) -> io::Result<Vec<u8>> {
    let mut start = Vec::with_capacity(START_BYTES + 8 * lengths.len() + head.len());
    start.extend_from_slice(&u32::try_from(head.len()).map_err(io::Error::other)?.to_le_bytes());
    start.extend_from_slice(&u32::try_from(lengths.len()).map_err(io::Error::other)?.to_le_bytes()[..3]);
    start.push(memory);
    lengths.for_each(|bytes| start.extend_from_slice(&(bytes as u64).to_le_bytes()));
    start.extend_from_slice(head);
    Ok(start)
}

/// Reads frames from a stream that may have no more bytes for now.
#[derive(Debug)]
pub(crate) struct FrameReader {
    max_bytes: u64,
    memories: Option<Incoming>,
    section: Section,
    buffer: Vec<u8>,
    /// The memory that the parts lie in, or 0.
    memory: u8,
    lengths: Vec<usize>,
    frame: Frame,
}

/// The part of a frame that the buffer is filled with.
#[derive(Clone, Copy, Debug)]
enum Section {
    Start,
    Lengths { head: usize, parts: usize },
    Head(usize),
    Parts,
}

impl FrameReader {
    pub(crate) fn new(max_bytes: u64) -> Self {
        let (buffer, lengths) = (Vec::new(), Vec::new());
        let (section, frame) = (Section::Start, Frame::default());
        Self { max_bytes, memories: None, section, buffer, memory: 0, lengths, frame }
    }

    /// Lets frames lie in shared memory.
    pub(crate) fn set_memories(&mut self, memories: Incoming) {
        self.memories = Some(memories);
    }

    /// Changes the limit of frames that have not begun.
    pub(crate) fn set_max_bytes(&mut self, max_bytes: u64) {
        self.max_bytes = max_bytes;
    }

    /// Reads until a frame is complete. `None`: the stream has ended. An error of kind `WouldBlock` or `TimedOut` loses
    /// nothing: the next call continues.
    pub(crate) fn read(&mut self, stream: &mut impl Source) -> io::Result<Option<Frame>> {
        let broken = |error: FrameError| io::Error::new(io::ErrorKind::InvalidData, error);
        loop {
            if matches!(self.section, Section::Parts) && self.memory != 0 {
                self.take_memory(stream).map_err(|error| broken(error.into()))?;
            }
            let needed = match self.section {
                Section::Start => START_BYTES,
                Section::Lengths { parts, .. } => 8 * parts,
                Section::Head(bytes) => bytes,
                Section::Parts => match self.lengths.get(self.frame.parts.len()) {
                    Some(bytes) => *bytes,
                    None => {
                        self.section = Section::Start;
                        if stream.has_stray_descriptor() {
                            return Err(broken(MemoryError::StrayDescriptor.into()));
                        }
                        return Ok(Some(std::mem::take(&mut self.frame)));
                    }
                },
            };
            if !self.fill(stream, needed)? {
                return Ok(None);
            }
            self.take().map_err(broken)?;
        }
    }

    /// Takes the parts from shared memory.
    fn take_memory(&mut self, stream: &mut impl Source) -> Result<(), MemoryError> {
        let memory = std::mem::take(&mut self.memory);
        let memories = self.memories.as_mut().ok_or(MemoryError::NotAgreed)?;
        let descriptor = if Incoming::is_new(memory) {
            Some(stream.take_descriptor().ok_or(MemoryError::NoDescriptor)?)
        } else {
            None
        };
        self.frame.parts = memories.read(memory, descriptor, &self.lengths, (self.max_bytes, MAX_PARTS))?;
        Ok(())
    }

    /// Whether the stream had this many bytes.
    fn fill(&mut self, stream: &mut impl Source, needed: usize) -> io::Result<bool> {
        while self.buffer.len() < needed {
            let have = self.buffer.len();
            let growth = have.clamp(FIRST_BYTES, GROWTH_BYTES);
            self.buffer.resize(needed.min(have + growth), 0);
            let read = loop {
                match stream.read(&mut self.buffer[have..]) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    read => break read,
                }
            };
            self.buffer.truncate(have + read.as_ref().map_or(0, |read| *read));
            if read? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The buffer is full.
    fn take(&mut self) -> Result<(), FrameError> {
        let buffer = std::mem::take(&mut self.buffer);
        self.section = match self.section {
            Section::Start => {
                let (head, parts) = (number(&buffer[..4]), number(&buffer[4..7]));
                self.memory = buffer[7];
                let (head, parts) = (saturated(head), saturated(parts));
                if head > MAX_HEAD_BYTES {
                    return Err(FrameError::Head(head));
                }
                if parts > MAX_PARTS {
                    return Err(FrameError::Parts(parts));
                }
                Section::Lengths { head, parts }
            }
            Section::Lengths { head, .. } => {
                let lengths = buffer.chunks_exact(8).map(number);
                let bytes = lengths.clone().fold(0, u64::saturating_add);
                if bytes > self.max_bytes {
                    return Err(FrameError::Bytes { bytes, limit: self.max_bytes });
                }
                self.lengths = lengths.map(saturated).collect();
                Section::Head(head)
            }
            Section::Head(_) => {
                self.frame.head = buffer.into();
                Section::Parts
            }
            Section::Parts => {
                self.frame.parts.push(buffer.into());
                Section::Parts
            }
        };
        Ok(())
    }
}

/// Up to eight bytes, little-endian.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| (number << 8) + u64::from(*byte))
}

/// The limits of a part's value: those of its frame, as deep as values may be.
pub(crate) fn limits(max_bytes: u64) -> DecodeLimits {
    let max_bytes = saturated(max_bytes);
    DecodeLimits { max_bytes, max_string_bytes: max_bytes, max_depth: MAX_DEPTH, ..DecodeLimits::default() }
}

fn saturated(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    #[cfg(target_os = "linux")]
    use std::{
        fs::File,
        io::BufReader,
        mem::MaybeUninit,
        os::fd::{AsFd, OwnedFd},
        os::unix::net::UnixStream,
    };

    use proptest::prelude::*;
    #[cfg(target_os = "linux")]
    use rustix::{
        fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create},
        net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    };

    use super::*;
    #[cfg(target_os = "linux")]
    use crate::{shared_memory::ReadMode, socket::Inbox};

    impl Source for &[u8] {}

    /// Gives `step` bytes at a time, and is not ready before each.
    struct Slow<'b> {
        bytes: &'b [u8],
        step: usize,
        is_ready: bool,
    }

    impl Source for Slow<'_> {}

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.is_ready = !self.is_ready;
            if self.is_ready {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let bytes = self.step.min(buffer.len()).min(self.bytes.len());
            buffer[..bytes].copy_from_slice(&self.bytes[..bytes]);
            self.bytes = &self.bytes[bytes..];
            Ok(bytes)
        }
    }

    fn read(reader: &mut FrameReader, stream: &mut impl Source) -> io::Result<Option<Frame>> {
        loop {
            match reader.read(stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }

    fn written(head: &[u8], parts: &[Vec<Bytes>]) -> Vec<u8> {
        let mut all = Vec::new();
        let parts = parts.iter().map(|pieces| (pieces.iter().map(Bytes::len).sum(), pieces.as_slice()));
        write_frame(&mut all, head, parts, 0).unwrap();
        all
    }

    /// Counts what is written at once.
    #[derive(Default)]
    struct Writes(Vec<usize>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_small_frame_is_sent_in_one_piece_and_the_parts_of_a_larger_one_are_not_copied() {
        let writes = |bytes: usize| {
            let (pieces, mut writes) =
                (vec![Bytes::from(vec![0; bytes - 7]), Bytes::from(vec![0; 7])], Writes::default());
            write_frame(&mut writes, b"head", [(bytes, pieces.as_slice())].into_iter(), 0).unwrap();
            writes.0
        };
        let start = START_BYTES + 8 + 4;
        let most = ONE_PIECE_BYTES - start;
        assert_eq!(writes(most), [ONE_PIECE_BYTES]);
        assert_eq!(writes(most + 1), [start, most - 6, 7]);
        let mut in_memory = Writes::default();
        write_frame(&mut in_memory, b"head", [(100, &[][..])].into_iter(), 1).unwrap();
        assert_eq!(in_memory.0, [start]);
    }

    /// In one piece of memory: it has the lengths of all parts.
    #[test]
    fn what_comes_before_the_parts_is_written_without_growing() {
        for (head, lengths) in [(&b""[..], &[][..]), (b"head", &[]), (b"head!", &[1, usize::MAX, 3])] {
            let start = frame_start(head, lengths.iter().copied(), 0x82).unwrap();
            let bytes = [&[head.len() as u8, 0, 0, 0, lengths.len() as u8, 0, 0, 0x82][..]];
            let lengths = lengths.iter().map(|length| (*length as u64).to_le_bytes()).collect::<Vec<_>>().concat();
            assert_eq!(start, [bytes[0], &lengths, head].concat());
            assert_eq!(start.capacity(), start.len());
        }
    }

    #[test]
    fn the_value_of_a_part_may_have_the_bytes_of_its_frame() {
        let (small, large) = (limits(7), limits(u64::MAX));
        assert_eq!((small.max_bytes, small.max_string_bytes, small.max_depth), (7, 7, MAX_DEPTH));
        assert_eq!((large.max_bytes, large.max_string_bytes), (usize::MAX, usize::MAX));
    }

    #[test]
    fn a_limit_holds_from_the_next_frame_on() {
        let mut reader = FrameReader::new(0);
        reader.set_max_bytes(2);
        let frame =
            |bytes: u8| [&[0, 0, 0, 0, 1, 0, 0, 0, bytes, 0, 0, 0, 0, 0, 0, 0][..], &vec![7; bytes.into()]].concat();
        assert_eq!(reader.read(&mut &frame(2)[..]).unwrap().unwrap().parts, [vec![7; 2]]);
        let error = reader.read(&mut &frame(3)[..]).unwrap_err().to_string();
        assert_eq!(error, "a frame has 3 bytes, more than the limit of 2 (max_bytes)");
    }

    #[test]
    fn a_read_that_is_interrupted_is_made_again() {
        struct Interrupted<'b>(&'b [u8], bool);
        impl Source for Interrupted<'_> {}
        impl Read for Interrupted<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.1 = !self.1;
                if self.1 { Err(io::ErrorKind::Interrupted.into()) } else { self.0.read(buffer) }
            }
        }
        let bytes = written(b"head", &[]);
        let frame = FrameReader::new(10).read(&mut Interrupted(&bytes, false)).unwrap().unwrap();
        assert_eq!(frame.head, "head");
    }

    #[test]
    fn a_head_and_as_many_parts_as_the_limits_are_read() {
        let read = |start: [u8; 8]| FrameReader::new(10).read(&mut &start[..]).map_err(|error| error.to_string());
        assert_eq!(read([0, 0, 64, 0, 0, 0, 0, 0]), Ok(None), "its 4 MiB have not arrived");
        assert!(read([1, 0, 64, 0, 0, 0, 0, 0]).unwrap_err().contains("a frame's head has 4194305 bytes"));
        assert_eq!(read([0, 0, 0, 0, 0, 0, 1, 0]), Ok(None));
    }

    proptest! {
        #[test]
        fn frames_arrive_as_they_were_sent(
            heads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..4),
            parts in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..3), 0..4),
            step in 1_usize..50,
        ) {
            let parts: Vec<Vec<Bytes>> =
                parts.into_iter().map(|pieces| pieces.into_iter().map(Bytes::from).collect()).collect();
            let all: Vec<u8> = heads.iter().flat_map(|head| written(head, &parts)).collect();
            let (mut stream, mut reader) = (Slow { bytes: &all, step, is_ready: false }, FrameReader::new(1000));
            for head in heads {
                let frame = read(&mut reader, &mut stream).unwrap().unwrap();
                prop_assert_eq!(&frame.head[..], &head[..]);
                let whole: Vec<Bytes> = parts.iter().map(|pieces| pieces.concat().into()).collect();
                prop_assert_eq!(frame.parts, whole);
            }
            prop_assert_eq!(read(&mut reader, &mut stream).unwrap(), None);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = FrameReader::new(1000).read(&mut &bytes[..]);
        }
    }

    /// The reader's answer to a frame with one part of 64 bytes in memory, sent with these descriptors.
    #[cfg(target_os = "linux")]
    fn sent_with(memory: u8, descriptors: &[File], memories: Option<Incoming>) -> String {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut frame = vec![1, 0, 0, 0, u8::from(memory != 0), 0, 0, memory];
        frame.extend([64, 0, 0, 0, 0, 0, 0, 0].repeat(usize::from(memory != 0)));
        frame.push(0xC0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(10))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(&ours, &[io::IoSlice::new(&frame)], &mut control, SendFlags::empty()).unwrap();
        let (mut stream, mut reader) = (BufReader::new(Inbox::new(theirs)), FrameReader::new(1000));
        memories.into_iter().for_each(|memories| reader.set_memories(memories));
        reader.read(&mut stream).map_or_else(|error| error.to_string(), |frame| format!("{:?}", frame.unwrap().parts))
    }

    /// A pipe stays open while a process holds its writing end, so this shows that refused descriptors are closed.
    #[cfg(target_os = "linux")]
    #[test]
    fn descriptors_that_break_the_rules_are_refused_and_closed() {
        let memory = |bytes, seals| {
            let memory = File::from(memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap());
            memory.set_len(bytes).unwrap();
            fcntl_add_seals(&memory, seals).unwrap();
            memory
        };
        let good = || memory(128, SealFlags::SHRINK);
        let pipe = || io::pipe().unwrap();
        let can = || Some(Incoming::new(ReadMode::Copies));
        assert_eq!(sent_with(0x81, &[good()], can()), format!("[{:?}]", Bytes::from(vec![0; 64])));
        for (number, descriptors, memories, reason) in [
            (0, vec![good()], can(), "belongs to no frame"),
            (0, vec![], None, "[]"),
            (0, vec![good()], None, "belongs to no frame"),
            (0x81, vec![good()], None, "not agreed upon"),
            (0x81, vec![], can(), "no descriptor"),
            (0x81, vec![good(), good()], can(), "more than one descriptor"),
            (0x81, (0..9).map(|_| good()).collect(), can(), "more than one descriptor"),
            (0x81, vec![memory(128, SealFlags::empty())], can(), "not memory that is sealed"),
            (0x81, vec![memory(128, SealFlags::WRITE | SealFlags::GROW)], can(), "not memory that is sealed"),
            (0x81, vec![memory(127, SealFlags::SHRINK)], can(), "128 bytes of a memory that has 127"),
            (0x81, vec![File::open("/proc/self/exe").unwrap()], can(), "not memory that is sealed"),
            (0x81, vec![File::open("/dev/zero").unwrap()], can(), "not memory that is sealed"),
            (0x80, vec![good()], can(), "memory 0, which is not known"),
            (0x85, vec![good()], can(), "memory 5, which is not known"),
            (0x01, vec![], can(), "memory 1, which is not known"),
        ] {
            let said = sent_with(number, &descriptors, memories);
            assert!(said.contains(reason), "{reason}: {said}");
        }
        for count in [1, 2, 9] {
            let (mut end, start) = pipe();
            let copies: Vec<File> = (0..count).map(|_| OwnedFd::from(start.try_clone().unwrap()).into()).collect();
            let said = sent_with(0x81, &copies, can());
            assert!(said.contains("not memory") || said.contains("more than one"), "{said}");
            drop((start, copies));
            assert_eq!(end.read(&mut [0]).unwrap(), 0, "all copies are closed");
        }
    }

    #[test]
    fn lengths_beyond_the_limits_are_refused_before_memory_is_taken() {
        let error = |bytes: &[u8]| FrameReader::new(10).read(&mut &*bytes).unwrap_err().to_string();
        assert!(error(&[255; 8]).contains("head"));
        assert!(error(&[0, 0, 0, 0, 1, 0, 1, 0]).contains("65537 parts"));
        assert!(error(&[0, 0, 0, 0, 0, 0, 0, 1]).contains("not agreed"));
        let mut long = vec![0, 0, 0, 0, 2, 0, 0, 0];
        long.extend([10, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert!(error(&long).contains("11 bytes, more than the limit of 10"));
        long[8] = 9;
        assert_eq!(FrameReader::new(10).read(&mut &long[..]).unwrap(), None, "it fits, and has not arrived");
    }

    #[test]
    fn an_announced_part_takes_memory_only_as_it_arrives() {
        let mut reader = FrameReader::new(u64::MAX);
        let mut start = vec![0, 0, 0, 0, 1, 0, 0, 0];
        start.extend((1_u64 << 40).to_le_bytes());
        start.push(7);
        assert_eq!(reader.read(&mut &start[..]).unwrap(), None);
        assert!(reader.buffer.capacity() <= 2 * GROWTH_BYTES);
    }
}
