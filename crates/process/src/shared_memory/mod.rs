//! Memory that a node and its child share, for frames of many bytes: `docs/worker-protocol.md`, "Shared memory".
//!
//! The sender of a frame writes the parts into memory of its own, which the receiver has as a descriptor. The first
//! byte says whether the receiver uses the memory; the sender writes into it again when it does not. Memory that stays
//! is what makes this fast: the system takes longer to clear fresh pages than to copy into old ones.
//!
//! **What may go wrong between two processes.** The node makes no reference into the memory of a child: it copies what
//! is there, and checks the copy, which is its own. A child that writes meanwhile spoils only its own
//! answer. A child reads the memory of its node in place, because it trusts its node. Both accept only memory that is
//! sealed against shrinking: otherwise a page of it could vanish, which would end the reader by SIGBUS.
#![allow(unsafe_code, reason = "mapped memory is a pointer; the three uses of it are below")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use callboard_core::edge::off_the_runtime;
use memmap2::{MmapMut, MmapOptions, MmapRaw};
use parking_lot::Mutex;

/// Whether this system has sealed memory.
pub(crate) const IS_SUPPORTED: bool = cfg!(target_os = "linux");

/// The highest number of a memory.
const MAX_NUMBER: u8 = 4;

/// Set in the number of a memory that is new.
const IS_NEW: u8 = 0x80;

/// Frames with fewer bytes go through the socket, which is as fast.
const LEAST_BYTES: usize = 256 * 1024;

/// The offset of the first part. The first byte is not 0 while the receiver uses the memory.
const FIRST_PART: usize = 64;

/// Each part begins at a multiple of this, as envelopes need it.
const ALIGNMENT: usize = 64;

/// How many memories a sender has: it writes one while the receiver may still use the other.
const OWN_MEMORIES: usize = 2;

/// After this many frames in a row that need less than a quarter of it, a memory is replaced by a smaller one.
const SMALL_USES: u32 = 32;

/// A child that keeps values of this many memories gets copies from then on: each has a descriptor.
const MAX_MAPPED: usize = 64;

/// From this size on, a copy lies in memory that is used again, for which the system is asked for huge pages.
const HUGE_BYTES: usize = 2 * 1024 * 1024;

/// The sender of a memory broke the protocol.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryError {
    #[error("a frame lies in shared memory, which was not agreed upon")]
    NotAgreed,
    #[error("a frame lies in memory {0}, which is not known")]
    Unknown(u8),
    #[error("a frame has new memory, but no descriptor")]
    NoDescriptor,
    #[error("a descriptor came that belongs to no frame")]
    StrayDescriptor,
    #[error("a descriptor is not memory that is sealed against shrinking")]
    NotSealed,
    #[error("a frame needs {needed} bytes of a memory that has {bytes}")]
    TooSmall { needed: usize, bytes: usize },
    #[error("a memory has {bytes} bytes, more than {limit}: twice what a frame may need (max_bytes)")]
    TooLarge { bytes: usize, limit: usize },
    #[error("shared memory cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// The places of parts of these lengths.
fn places(lengths: impl IntoIterator<Item = usize>) -> Option<Vec<Range<usize>>> {
    let mut end = FIRST_PART;
    let place = |length: usize| {
        let start = end.checked_next_multiple_of(ALIGNMENT)?;
        end = start.checked_add(length)?;
        Some(start..end)
    };
    lengths.into_iter().map(place).collect()
}

/// The most bytes of a memory for frames of at most these bytes and parts: senders at most double their need.
fn most_bytes((max_bytes, max_parts): (u64, usize)) -> usize {
    let between = max_parts.saturating_mul(ALIGNMENT).saturating_add(FIRST_PART);
    usize::try_from(max_bytes).unwrap_or(usize::MAX).saturating_add(between).saturating_mul(2)
}

// ---- The sender -----------------------------------------------------------------------------------------------------

/// Memories that this process writes.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    memories: [Option<OwnMemory>; OWN_MEMORIES],
    /// The index of the memory to give up when the receiver uses all.
    oldest: usize,
}

/// The fields of a frame about its memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryFields {
    /// Its number, and whether it is new. 0: the parts go through the socket.
    pub(crate) memory: u8,
    /// For the receiver of a new one.
    pub(crate) descriptor: Option<OwnedFd>,
}

#[derive(Debug)]
struct OwnMemory {
    file: File,
    mapping: MmapRaw,
    /// The bytes from the first for which the system has given memory.
    allocated: usize,
    small_uses: u32,
}

impl Outgoing {
    /// Writes parts, each of which may be in pieces, unless they go through the socket as fast.
    pub(crate) fn place<'p>(&mut self, parts: impl Iterator<Item = (usize, &'p [Bytes])> + Clone) -> MemoryFields {
        if parts.clone().fold(0, |bytes: usize, (length, _)| bytes.saturating_add(length)) < LEAST_BYTES {
            return MemoryFields::default();
        }
        let placed = self.try_place(parts);
        // A system without memory or descriptors for this still has a socket.
        placed.inspect_err(|error| tracing::debug!(%error, "no shared memory")).unwrap_or_default()
    }

    fn try_place<'p>(&mut self, parts: impl Iterator<Item = (usize, &'p [Bytes])> + Clone) -> io::Result<MemoryFields> {
        let places = places(parts.clone().map(|(length, _)| length)).ok_or(io::ErrorKind::OutOfMemory)?;
        let end = places.last().map_or(FIRST_PART, |place| place.end);
        let (index, descriptor) = self.memory(end)?;
        let memory = self.memories[index].as_mut().ok_or(io::ErrorKind::NotFound)?;
        memory.allocate(end)?;
        memory.write(0, &[1]);
        for ((_, pieces), place) in parts.zip(places) {
            let mut offset = place.start;
            for piece in pieces {
                memory.write(offset, piece);
                offset += piece.len();
            }
        }
        let number = u8::try_from(index + 1).map_err(io::Error::other)?;
        Ok(MemoryFields { memory: number | if descriptor.is_some() { IS_NEW } else { 0 }, descriptor })
    }

    /// A memory that the receiver does not use, and its descriptor if it is new.
    fn memory(&mut self, bytes: usize) -> io::Result<(usize, Option<OwnedFd>)> {
        let rank = |index: &usize| match &self.memories[*index] {
            Some(memory) if memory.is_free() => usize::from(memory.mapping.len() < bytes),
            None => 2,
            Some(_) => 3 + usize::from(*index != self.oldest),
        };
        let index = (0..OWN_MEMORIES).min_by_key(rank).unwrap_or_default();
        if let Some(memory) = &mut self.memories[index]
            && memory.mapping.len() >= bytes
            && memory.is_free()
            && memory.is_of_use_for(bytes)
        {
            return Ok((index, None));
        }
        self.oldest = (index + 1) % OWN_MEMORIES;
        let memory = OwnMemory::new(bytes)?;
        let descriptor = memory.file.try_clone()?.into();
        self.memories[index] = Some(memory);
        Ok((index, Some(descriptor)))
    }
}

impl OwnMemory {
    fn new(bytes: usize) -> io::Result<Self> {
        let capacity = bytes.checked_next_power_of_two().ok_or(io::ErrorKind::OutOfMemory)?;
        let file = new_memory(capacity as u64)?;
        let mapping = MmapOptions::new().len(capacity).map_raw(&file)?;
        let mut memory = Self { file, mapping, allocated: 0, small_uses: 0 };
        memory.allocate(bytes)?;
        Ok(memory)
    }

    fn is_free(&self) -> bool {
        let mut state = [1];
        self.file.read_exact_at(&mut state, 0).is_ok() && state == [0]
    }

    /// Whether it is not too large for what frames need lately.
    fn is_of_use_for(&mut self, bytes: usize) -> bool {
        self.small_uses = if bytes > self.mapping.len() / 4 { 0 } else { self.small_uses + 1 };
        self.small_uses < SMALL_USES
    }

    /// Takes the memory from the system, so that a lack of it is an error here and no signal in `write`.
    fn allocate(&mut self, end: usize) -> io::Result<()> {
        if end > self.allocated {
            allocate(&self.file, end as u64)?;
            self.allocated = end;
        }
        Ok(())
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        let is_inside = offset.checked_add(bytes.len()).is_some_and(|end| end <= self.mapping.len());
        assert!(is_inside, "the memory was made for these parts");
        // SAFETY: the target lies inside the mapping, as was just asserted. Its pages stay: the file is sealed against
        // shrinking. `bytes` is in no memory of ours that is written: there are no references into `mapping`, so it
        // does not overlap, and what the other process does there breaks no rule about references.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.mapping.as_mut_ptr().add(offset), bytes.len()) }
    }
}

// ---- The receiver ---------------------------------------------------------------------------------------------------

/// How the parts of a frame are taken out of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadMode {
    /// By a copy: the writer is not trusted.
    Copies,
    /// In place: the writer is trusted not to write before it may.
    Views,
}

/// Memories that the other process writes.
#[derive(Debug)]
pub(crate) struct Incoming {
    reading: ReadMode,
    memories: [Option<Arc<TheirMemory>>; MAX_NUMBER as usize],
    /// Each memory that is mapped has one.
    mapped: Arc<()>,
    spare: Spare,
}

/// The memory of the last large copy that is not used any more.
#[derive(Clone, Debug, Default)]
struct Spare(Arc<Mutex<Option<MmapMut>>>);

struct LargeCopy {
    memory: Option<MmapMut>,
    bytes: usize,
    spare: Spare,
}

#[derive(Debug)]
struct TheirMemory {
    file: File,
    bytes: usize,
    /// Without one, the system copies.
    mapping: Option<(MmapRaw, Arc<()>)>,
}

/// The memory of a frame while something refers to it.
struct FrameMemory(Arc<TheirMemory>);

impl Incoming {
    pub(crate) fn new(reading: ReadMode) -> Self {
        Self { reading, memories: [const { None }; MAX_NUMBER as usize], mapped: Arc::new(()), spare: Spare::default() }
    }

    /// The parts of a frame. `descriptor` gives the descriptor of a new memory, which is not larger than a frame of
    /// `largest` bytes and parts needs.
    pub(crate) fn read(
        &mut self,
        memory: u8,
        descriptor: Option<OwnedFd>,
        lengths: &[usize],
        largest: (u64, usize),
    ) -> Result<Vec<Bytes>, MemoryError> {
        let number = memory & !IS_NEW;
        let index = usize::from(number).wrapping_sub(1);
        let slot = self.memories.get_mut(index).ok_or(MemoryError::Unknown(number))?;
        if let Some(descriptor) = descriptor {
            let may_map = Arc::strong_count(&self.mapped) <= MAX_MAPPED;
            let mut memory = TheirMemory::new(descriptor, most_bytes(largest))?;
            if may_map && self.reading == ReadMode::Views {
                memory.map(memory.bytes, &self.mapped);
            }
            *slot = Some(Arc::new(memory));
        }
        let memory = slot.as_mut().ok_or(MemoryError::Unknown(number))?;
        let places = places(lengths.iter().copied());
        let needed = places.as_ref().map_or(usize::MAX, |places| places.last().map_or(FIRST_PART, |place| place.end));
        let places = places.filter(|_| needed <= memory.bytes);
        let places = places.ok_or(MemoryError::TooSmall { needed, bytes: memory.bytes })?;
        if self.reading == ReadMode::Views && memory.mapping.is_some() {
            let all = Bytes::from_owner(FrameMemory(Arc::clone(memory)));
            return Ok(places.into_iter().map(|place| all.slice(place)).collect());
        }
        // A copy has ended before the next one begins: nothing else refers to the memory.
        if let (ReadMode::Copies, Some(memory)) = (self.reading, Arc::get_mut(memory)) {
            memory.map(needed, &self.mapped);
        }
        let copy = || places.into_iter().map(|place| memory.copy(place, &self.spare)).collect::<io::Result<_>>();
        let parts = off_the_runtime(needed, copy)?;
        memory.release();
        Ok(parts)
    }

    /// Whether a frame brings the descriptor of a new memory.
    pub(crate) fn is_new(memory: u8) -> bool {
        memory & IS_NEW != 0
    }
}

impl TheirMemory {
    fn new(descriptor: OwnedFd, limit: usize) -> Result<Self, MemoryError> {
        // Reading any other file may block, or end this process.
        if !is_sealed_memory(&descriptor) {
            return Err(MemoryError::NotSealed);
        }
        let file = File::from(descriptor);
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        // Address space is bounded, too: sparse memory costs its sender nothing.
        if bytes > limit {
            return Err(MemoryError::TooLarge { bytes, limit });
        }
        Ok(Self { file, bytes, mapping: None })
    }

    /// Maps what frames need: the first `needed` bytes, and more when a frame needs more.
    fn map(&mut self, needed: usize, mapped: &Arc<()>) {
        if self.mapping.as_ref().is_none_or(|(mapping, _)| mapping.len() < needed) {
            let bytes = needed.checked_next_power_of_two().unwrap_or(needed).min(self.bytes);
            let mapping = MmapOptions::new().len(bytes).map_raw_read_only(&self.file).ok();
            self.mapping = mapping.map(|mapping| (mapping, Arc::clone(mapped)));
        }
    }

    fn copy(&self, place: Range<usize>, spare: &Spare) -> io::Result<Bytes> {
        if place.len() < HUGE_BYTES {
            let mut copy = vec![0; place.len()];
            self.copy_to(&mut copy, place.start)?;
            return Ok(copy.into());
        }
        let mut memory = spare.take(place.len())?;
        self.copy_to(&mut memory[..place.len()], place.start)?;
        Ok(Bytes::from_owner(LargeCopy { memory: Some(memory), bytes: place.len(), spare: spare.clone() }))
    }

    fn copy_to(&self, target: &mut [u8], offset: usize) -> io::Result<()> {
        let Some((mapping, _)) = &self.mapping else { return self.file.read_exact_at(target, offset as u64) };
        let is_inside = offset.checked_add(target.len()).is_some_and(|end| end <= mapping.len());
        assert!(is_inside, "the place was compared with the size");
        // SAFETY: the source lies inside the mapping, as was just asserted. Its pages stay: the file is sealed against
        // shrinking. There are no references into `mapping`, so `target` does not overlap; the other process may write
        // there, and then any bytes are copied, which is as good as what it may send otherwise.
        unsafe { std::ptr::copy_nonoverlapping(mapping.as_ptr().add(offset), target.as_mut_ptr(), target.len()) }
        Ok(())
    }

    /// Lets the sender write again. A sender that has made this impossible has other memory.
    fn release(&self) {
        let _ = self.file.write_at(&[0], 0);
    }
}

impl Spare {
    fn take(&self, bytes: usize) -> io::Result<MmapMut> {
        let spare = self.0.lock().take_if(|spare| (bytes..=bytes.saturating_mul(4)).contains(&spare.len()));
        if let Some(spare) = spare {
            return Ok(spare);
        }
        let memory = MmapMut::map_anon(bytes)?;
        // Thirty-two page faults instead of sixteen thousand for 64 MiB; without, it is slower.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        Ok(memory)
    }
}

impl AsRef<[u8]> for LargeCopy {
    fn as_ref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| &memory[..self.bytes])
    }
}

impl Drop for LargeCopy {
    fn drop(&mut self) {
        let former = std::mem::replace(&mut *self.spare.0.lock(), self.memory.take());
        // Not under the lock: it takes its time.
        drop(former);
    }
}

impl AsRef<[u8]> for FrameMemory {
    fn as_ref(&self) -> &[u8] {
        let Some((mapping, _)) = &self.0.mapping else { return &[] };
        // SAFETY: the mapping has this many bytes, and lives as long as `self`. Its pages stay: the file is sealed
        // against shrinking. Only the node writes them, and it does not before `release`, which is called when the last
        // view of them is dropped; a child trusts its node.
        unsafe { std::slice::from_raw_parts(mapping.as_ptr(), mapping.len()) }
    }
}

impl Drop for FrameMemory {
    fn drop(&mut self) {
        self.0.release();
    }
}

// ---- The system -----------------------------------------------------------------------------------------------------

/// Memory whose size cannot change.
#[cfg(target_os = "linux")]
fn new_memory(bytes: u64) -> io::Result<File> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    /// Nobody changes the size, and nobody adds a seal against writing.
    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
    let file = File::from(memfd_create("callboard", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(bytes)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}

#[cfg(target_os = "linux")]
fn allocate(file: &File, end: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, end)?)
}

#[cfg(target_os = "linux")]
fn is_sealed_memory(descriptor: &OwnedFd) -> bool {
    use rustix::fs::{FsWord, SealFlags, fcntl_get_seals, fstatfs};
    // Two file systems have seals. On hugetlbfs a page may be missing although the file has its size.
    const TMPFS: FsWord = 0x0102_1994;
    fcntl_get_seals(descriptor).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
        && fstatfs(descriptor).is_ok_and(|system| system.f_type == TMPFS)
}

#[cfg(not(target_os = "linux"))]
fn new_memory(_: u64) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn allocate(_: &File, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn is_sealed_memory(_: &OwnedFd) -> bool {
    false
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
