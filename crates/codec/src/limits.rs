//! Bounds the cost of decoding: one set of limits for every format.
//!
//! A decoder asks its [`Budget`] *before* it allocates or descends. When a limit is reached, decoding ends with a
//! [`DecodeError`] of kind [`LimitExceeded`](crate::DecodeErrorKind::LimitExceeded) that names the limit, its setting
//! and the place in the input. Nothing is truncated and nothing is retried.

use crate::account::{charge, release};
use crate::error::DecodeError;

/// The deepest nesting that any decoder or encoder follows, even if [`DecodeLimits::max_depth`] is larger.
///
/// Values are trees: dropping, cloning and comparing one recurses as deep as it is nested, so this constant keeps all
/// of these well inside the 2 MiB stack of an ordinary thread.
pub const MAX_DEPTH: usize = 512;

/// The limits of a decoder. Each field names its threat and the error message for the sender.
///
/// ```
/// use callboard_codec::{DecodeLimits, Format, Value};
///
/// let limits = DecodeLimits { max_depth: 2, ..DecodeLimits::default() };
/// let error = Value::decode(Format::Json, &"[[[1]]]".into(), &limits).unwrap_err();
/// assert_eq!(error.limit().map(|limit| limit.name), Some("max_depth"));
/// assert_eq!(error.path(), "$[0][0]");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Largest input in bytes. Threat: a body that fills the memory. A byte string or an array is a slice of the input,
    /// so no other limit bounds it. Default: 64 MiB, the default body limit of the edges. Message: `input of N bytes
    /// exceeds max_bytes = M`.
    pub max_bytes: usize,
    /// Deepest nesting of lists and maps. Threat: a stack overflow, which would end the process. Default: 128; values
    /// above [`MAX_DEPTH`] count as [`MAX_DEPTH`], and a typed JSON input ends at 127, where serde_json does.
    /// Message: `nesting exceeds max_depth = M`.
    pub max_depth: usize,
    /// Most list items and map entries in one input, counted over all levels. Threat: amplification; two bytes of input
    /// (`0,`) become a value of 40 bytes. Default: 1,048,576, some 40 MiB of values. The numbers of a tensor count here
    /// only if they come as nested lists. Pairs with `max_tree_bytes`.
    /// Message: `more elements than max_elements = M`.
    pub max_elements: usize,
    /// Longest string or map key in bytes. Threat: one text that fills the memory and the logs. Default: 16 MiB.
    /// Message: `string of N bytes exceeds max_string_bytes = M`.
    pub max_string_bytes: usize,
    /// Most memory for structure: the nodes of a dynamic tree, and 1 KiB for each column of each batch of a frame.
    /// Text, byte strings, elements and cells are not structure; they take at most the input's size again.
    ///
    /// Threat: amplification, as above. Room for the next item counts too: at any moment decoding takes at most 2 ×
    /// input + 64 KiB + this limit (and what compressed input unpacks to). Data without structure (a tensor, a byte
    /// string, an array in any format) takes at most 2 × input + 64 KiB. A Rust type allocates by its serde
    /// implementation: at most what its lists announce, which is held against the rest of the input. A byte of a
    /// dynamic tree may become a value of 40 bytes, and never more than 160 bytes of structure.
    ///
    /// Default: 64 MiB, the most elements in one list while it grows. Lower it together with `max_elements`.
    /// Message: `more structure than max_tree_bytes = M`.
    pub max_tree_bytes: usize,
    /// Most bytes that the compressed parts of one input may claim to unpack to, together, with the memory for
    /// unpacking (an LZ4 frame may ask for 8 MiB). Threat: a few bytes that become gigabytes. Default: 256 MiB.
    /// Message: `N bytes unpacked exceed max_decompressed_bytes = M`.
    pub max_decompressed_bytes: usize,
}

const MIB: usize = 1 << 20;

/// Equals the default body limit of the edges, so that every admitted body can be decoded.
const DEFAULT_MAX_BYTES: usize = 64 * MIB;
/// Close to serde_json's own limit (127), so that dynamic and typed routes refuse the same inputs.
const DEFAULT_MAX_DEPTH: usize = 128;
/// A 224 × 224 × 3 image as nested lists has 150,528 numbers; six of them fit.
const DEFAULT_MAX_ELEMENTS: usize = 1 << 20;
/// A list of the most elements, 40 bytes each, and the list of half that length that it grew from.
const DEFAULT_MAX_TREE_BYTES: usize = 64 * MIB;
/// Four times the input, the usual best compression of tables.
const DEFAULT_MAX_DECOMPRESSED_BYTES: usize = 256 * MIB;
/// Room for a 12 MB picture as base64.
const DEFAULT_MAX_STRING_BYTES: usize = 16 * MIB;

impl Default for DecodeLimits {
    fn default() -> Self {
        Self {
            max_bytes: DEFAULT_MAX_BYTES,
            max_depth: DEFAULT_MAX_DEPTH,
            max_elements: DEFAULT_MAX_ELEMENTS,
            max_string_bytes: DEFAULT_MAX_STRING_BYTES,
            max_tree_bytes: DEFAULT_MAX_TREE_BYTES,
            max_decompressed_bytes: DEFAULT_MAX_DECOMPRESSED_BYTES,
        }
    }
}

impl DecodeLimits {
    /// No limit but the depth, for bytes of this process or that were checked before. Decoded values are still charged.
    pub const UNLIMITED: Self = Self {
        max_bytes: usize::MAX,
        max_depth: MAX_DEPTH,
        max_elements: usize::MAX,
        max_string_bytes: usize::MAX,
        max_tree_bytes: usize::MAX,
        max_decompressed_bytes: usize::MAX,
    };

    /// Refuses an input longer than [`max_bytes`](Self::max_bytes), before it is read.
    pub(crate) fn check_bytes(&self, len: usize) -> Result<(), DecodeError> {
        check("max_bytes", self.max_bytes, len, |len| format!("input of {len} bytes exceeds"))
    }

    /// The effective depth limit.
    pub(crate) fn depth(&self) -> usize {
        self.max_depth.min(MAX_DEPTH)
    }
}

/// Refuses more bytes than a limit allows.
#[inline]
fn check(name: &'static str, max: usize, bytes: usize, words: fn(usize) -> String) -> Result<(), DecodeError> {
    if bytes > max { Err(DecodeError::limit_exceeded(name, max, words(bytes))) } else { Ok(()) }
}

/// The remaining limits while one input is decoded.
#[derive(Debug)]
pub(crate) struct Budget<'a> {
    limits: &'a DecodeLimits,
    elements: usize,
    memory: usize,
    decompressed: usize,
    #[cfg(feature = "arrow")]
    pub(crate) frames: FrameWork,
}

impl<'a> Budget<'a> {
    pub(crate) fn new(limits: &'a DecodeLimits) -> Self {
        let (elements, memory) = (limits.max_elements, limits.max_tree_bytes);
        Self {
            limits,
            elements,
            memory,
            decompressed: 0,
            #[cfg(feature = "arrow")]
            frames: FrameWork::default(),
        }
    }

    /// Spends `count` elements; called before room for them is reserved.
    pub(crate) fn take_elements(&mut self, count: usize) -> Result<(), DecodeError> {
        let Some(left) = self.elements.checked_sub(count) else {
            let max = self.limits.max_elements;
            return Err(DecodeError::limit_exceeded("max_elements", max, "more elements than".to_owned()));
        };
        self.elements = left;
        Ok(())
    }

    /// Allows a container at `depth`, counted from 1 for the outermost one.
    pub(crate) fn check_depth(&self, depth: usize) -> Result<(), DecodeError> {
        if depth > self.limits.depth() {
            return Err(DecodeError::too_deep(self.limits.depth()));
        }
        Ok(())
    }

    pub(crate) fn check_string(&self, len: usize) -> Result<(), DecodeError> {
        check("max_string_bytes", self.limits.max_string_bytes, len, |len| format!("string of {len} bytes exceeds"))
    }

    /// Spends and charges the unpacked size that a compressed part claims.
    pub(crate) fn take_decompressed(&mut self, bytes: usize) -> Result<(), DecodeError> {
        self.decompressed = self.decompressed.saturating_add(bytes);
        self.check_decompressing(0)?;
        Ok(charge(bytes)?)
    }

    /// Allows memory that is taken only while a compressed part is unpacked.
    pub(crate) fn check_decompressing(&self, working: usize) -> Result<(), DecodeError> {
        let (max, total) = (self.limits.max_decompressed_bytes, self.decompressed.saturating_add(working));
        check("max_decompressed_bytes", max, total, |total| format!("{total} bytes unpacked exceed"))
    }

    /// Spends memory on structure; called before it is allocated.
    pub(crate) fn take_memory(&mut self, bytes: usize) -> Result<(), DecodeError> {
        let left = self.left_after(bytes)?;
        charge(bytes)?;
        self.memory = left;
        Ok(())
    }

    fn left_after(&self, bytes: usize) -> Result<usize, DecodeError> {
        self.memory.checked_sub(bytes).ok_or_else(|| {
            let max = self.limits.max_tree_bytes;
            DecodeError::limit_exceeded("max_tree_bytes", max, "more structure than".to_owned())
        })
    }

    /// Gives back memory that was freed.
    pub(crate) fn give_memory(&mut self, bytes: usize) {
        self.memory += bytes;
        release(bytes);
    }

    /// Spends memory on structure that a later decoder will allocate and be charged for.
    pub(crate) fn claim(&mut self, bytes: usize) -> Result<(), DecodeError> {
        self.memory = self.left_after(bytes)?;
        Ok(())
    }

    /// Gives back claimed memory.
    pub(crate) fn give_claimed(&mut self, bytes: usize) {
        self.memory += bytes;
    }

    /// Claims what [`make_room`](Self::make_room) would take for one more item of a list, and returns its capacity.
    pub(crate) fn claim_room<T>(&mut self, (len, capacity): (usize, usize), room: usize) -> Result<usize, DecodeError> {
        if len < capacity {
            return Ok(capacity);
        }
        let room = room.max(len + 1);
        self.claim(room.saturating_mul(size_of::<T>()))?;
        self.give_claimed(capacity * size_of::<T>());
        Ok(room)
    }

    /// Runs a decoder whose result is dropped. What it spent stays spent, but is not charged any more.
    pub(crate) fn discard<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<(), DecodeError> {
        let (memory, decompressed) = (self.memory, self.decompressed);
        let read = read(self).map(drop);
        release((memory - self.memory).saturating_add(self.decompressed - decompressed));
        read
    }

    /// Charges a text that is copied from the input, with the allocator's minimum.
    pub(crate) fn take_text(&self, len: usize) -> Result<(), DecodeError> {
        match len {
            0 => Ok(()),
            _ => Ok(charge(len.max(LEAST_TEXT_BYTES))?),
        }
    }

    /// Makes room for one more item, or for `expected` items. Old and new room are counted while both exist.
    #[inline]
    pub(crate) fn make_room<T>(&mut self, items: &mut Vec<T>, expected: usize) -> Result<(), DecodeError> {
        if items.len() < items.capacity() { Ok(()) } else { self.grow(items, expected) }
    }

    #[cold]
    fn grow<T>(&mut self, items: &mut Vec<T>, expected: usize) -> Result<(), DecodeError> {
        let before = items.capacity();
        self.make_room_for(items, next_room(before, expected))
    }

    /// Makes room for `room` items in all, if the list is full.
    pub(crate) fn make_room_for<T>(&mut self, items: &mut Vec<T>, room: usize) -> Result<(), DecodeError> {
        let (len, before) = (items.len(), items.capacity());
        if len < before {
            return Ok(());
        }
        let room = room.max(len + 1);
        self.take_memory(room.saturating_mul(size_of::<T>()))?;
        items.reserve_exact(room - len);
        self.give_memory(before * size_of::<T>());
        Ok(())
    }

    /// Gives back the unused room of a finished list, if it is half of it or more. The first room stays: allocators
    /// keep such small rests for themselves, so they would be memory that nothing is charged for.
    pub(crate) fn trim<T>(&mut self, items: &mut Vec<T>) {
        let before = items.capacity();
        if before > LEAST_ROOM && items.len() * 2 <= before {
            items.shrink_to_fit();
            self.give_memory((before - items.capacity()) * size_of::<T>());
        }
    }
}

/// The next capacity of a full list. A list of known length gets exactly that room.
pub(crate) fn next_room(before: usize, expected: usize) -> usize {
    match expected.checked_sub(before) {
        Some(_) if expected > 0 => before.saturating_mul(2).max(MAX_EXPECTED).min(expected),
        _ => before.saturating_mul(2).max(LEAST_ROOM),
    }
}

/// The smallest block that allocators give.
pub(crate) const LEAST_TEXT_BYTES: usize = 24;
/// The most room for an announced length.
const MAX_EXPECTED: usize = 256;
/// The first room of a list of unknown length.
const LEAST_ROOM: usize = 4;

/// Work of a reader of frames that is not in proportion to their bytes.
#[cfg(feature = "arrow")]
#[derive(Debug, Default)]
pub(crate) struct FrameWork {
    empty_rows: usize,
    lookups: usize,
    blocks: usize,
    viewed: usize,
}

#[cfg(feature = "arrow")]
impl FrameWork {
    /// Spends rows without bytes in the input: they are free to claim but take time to visit.
    pub(crate) fn take_empty_rows(&mut self, rows: usize) -> Result<(), DecodeError> {
        self.empty_rows = self.empty_rows.saturating_add(rows);
        if self.empty_rows <= MAX_EMPTY_ROWS {
            Ok(())
        } else {
            Err(DecodeError::malformed(format!(
                "{} rows without bytes are more than {MAX_EMPTY_ROWS}",
                self.empty_rows
            )))
        }
    }

    /// Spends look-ups, whose number is a product of two lengths in the input.
    pub(crate) fn take_lookups(&mut self, lookups: usize) -> Result<(), DecodeError> {
        self.lookups = self.lookups.saturating_add(lookups);
        if self.lookups <= MAX_LOOKUPS {
            Ok(())
        } else {
            Err(DecodeError::malformed(format!("more than {MAX_LOOKUPS} dictionary messages × columns")))
        }
    }

    /// Spends room that a decompressor clears for each compressed part, even for a small one.
    pub(crate) fn take_blocks(&mut self, bytes: usize) -> Result<(), DecodeError> {
        self.blocks = self.blocks.saturating_add(bytes);
        if self.blocks <= MAX_BLOCK_BYTES {
            Ok(())
        } else {
            Err(DecodeError::malformed(format!(
                "blocks of compressed buffers need more than {MAX_BLOCK_BYTES} bytes: compress in smaller blocks"
            )))
        }
    }

    /// Spends bytes that views of texts refer to: each byte is read once for every view of it.
    pub(crate) fn take_viewed(&mut self, bytes: usize) -> Result<(), DecodeError> {
        self.viewed = self.viewed.saturating_add(bytes);
        if self.viewed <= MAX_VIEWED_BYTES {
            Ok(())
        } else {
            Err(DecodeError::malformed(format!(
                "views of {} bytes of text are more than {MAX_VIEWED_BYTES}",
                self.viewed
            )))
        }
    }
}

/// Over all batches and dictionaries of a frame.
#[cfg(feature = "arrow")]
const MAX_EMPTY_ROWS: usize = 1 << 20;
/// Each is some 60 ns: a quarter of a second.
#[cfg(feature = "arrow")]
const MAX_LOOKUPS: usize = 1 << 22;
/// A buffer by blocks of 4 MiB, the largest, takes 12 MiB in a few bytes: clearing this much takes about a second.
/// Blocks of 64 KiB, which is usual, make it enough for 20,000 buffers.
#[cfg(feature = "arrow")]
const MAX_BLOCK_BYTES: usize = 6 << 30;
/// Checking this much text takes about half a second.
#[cfg(feature = "arrow")]
const MAX_VIEWED_BYTES: usize = 4 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::testing::charge_of;

    #[test]
    fn the_largest_input_is_accepted_and_a_larger_one_refused() {
        let limits = DecodeLimits { max_bytes: 10, ..DecodeLimits::default() };
        assert!(limits.check_bytes(10).is_ok() && limits.check_bytes(11).is_err());
    }

    #[test]
    fn the_defaults_match_their_docs() {
        let limits = DecodeLimits::default();
        let of_sizes = [limits.max_bytes, limits.max_tree_bytes, limits.max_string_bytes];
        assert_eq!(of_sizes, [67_108_864, 67_108_864, 16_777_216]);
        assert_eq!(
            (limits.max_decompressed_bytes, limits.max_elements, limits.max_depth),
            (268_435_456, 1_048_576, 128)
        );
        #[cfg(feature = "arrow")]
        assert_eq!(
            [MAX_EMPTY_ROWS, MAX_LOOKUPS, MAX_BLOCK_BYTES, MAX_VIEWED_BYTES],
            [1_048_576, 4_194_304, 6_442_450_944, 4_294_967_296]
        );
    }

    /// Each limit at its setting, and one beyond it.
    #[test]
    fn a_budget_allows_its_limits_and_no_more() {
        let limits = DecodeLimits {
            max_depth: 3,
            max_elements: 7,
            max_string_bytes: 5,
            max_tree_bytes: 11,
            max_decompressed_bytes: 13,
            ..DecodeLimits::default()
        };
        let mut budget = Budget::new(&limits);
        let is_limit = |refused: Result<(), DecodeError>, name| {
            assert_eq!(refused.unwrap_err().limit().map(|limit| limit.name), Some(name));
        };
        assert!(budget.check_depth(3).is_ok() && budget.check_string(5).is_ok());
        is_limit(budget.check_depth(4), "max_depth");
        is_limit(budget.check_string(6), "max_string_bytes");
        budget.take_elements(3).unwrap();
        budget.take_elements(4).unwrap();
        is_limit(budget.take_elements(1), "max_elements");
        budget.take_memory(11).unwrap();
        is_limit(budget.take_memory(1), "max_tree_bytes");
        budget.give_memory(2);
        budget.take_memory(2).unwrap();
        is_limit(budget.take_memory(1), "max_tree_bytes");
        budget.take_decompressed(6).unwrap();
        assert!(budget.check_decompressing(7).is_ok());
        is_limit(budget.check_decompressing(8), "max_decompressed_bytes");
        budget.take_decompressed(7).unwrap();
        is_limit(budget.take_decompressed(1), "max_decompressed_bytes");
    }

    #[test]
    fn the_depth_never_exceeds_the_capacity_of_a_stack() {
        let depth = |max_depth| DecodeLimits { max_depth, ..DecodeLimits::default() }.depth();
        assert_eq!([depth(0), depth(7), depth(MAX_DEPTH), depth(MAX_DEPTH + 1)], [0, 7, MAX_DEPTH, MAX_DEPTH]);
    }

    /// The room of a list in items, each time that it grows, and what the budget paid for it in the end.
    fn rooms(items: usize, expected: usize) -> (Vec<usize>, usize) {
        let limits = DecodeLimits::default();
        let mut budget = Budget::new(&limits);
        let (mut list, mut rooms) = (Vec::<u64>::new(), Vec::new());
        for item in 0..items {
            budget.make_room(&mut list, expected).unwrap();
            list.push(item as u64);
            if rooms.last() != Some(&list.capacity()) {
                rooms.push(list.capacity());
            }
        }
        (rooms, limits.max_tree_bytes - budget.memory)
    }

    #[test]
    fn a_list_grows_by_doubling_up_to_its_announced_length() {
        assert_eq!(rooms(9, 0), (vec![4, 8, 16], 16 * 8));
        assert_eq!(rooms(10, 10), (vec![10], 10 * 8));
        assert_eq!(rooms(600, 600), (vec![256, 512, 600], 600 * 8));
        assert_eq!(rooms(600, 300).0, [256, 300, 301, 602], "more than announced");
    }

    #[test]
    fn free_room_is_used_first_and_unused_room_is_returned() {
        let limits = DecodeLimits::default();
        let paid = |budget: &Budget<'_>| limits.max_tree_bytes - budget.memory;
        let mut budget = Budget::new(&limits);
        let mut list = Vec::<u64>::new();
        budget.make_room_for(&mut list, 10).unwrap();
        list.extend(0..5);
        budget.make_room_for(&mut list, 100).unwrap();
        assert_eq!((list.capacity(), paid(&budget)), (10, 80));
        list.push(5);
        budget.trim(&mut list);
        assert_eq!((list.capacity(), paid(&budget)), (10, 80), "more than half is used");
        list.pop();
        budget.trim(&mut list);
        assert_eq!((list.capacity(), paid(&budget)), (5, 40));
        budget.make_room_for(&mut list, 0).unwrap();
        assert_eq!((list.capacity(), paid(&budget)), (6, 48), "at least one more");
    }

    #[test]
    fn a_text_is_charged_with_the_smallest_block() {
        let limits = DecodeLimits::default();
        let charged = |len: usize| charge_of(|| Budget::new(&limits).take_text(len).unwrap());
        assert_eq!([charged(0), charged(1), charged(24), charged(25)], [0, 24, 24, 25]);
    }

    /// All of it, and then one more.
    #[cfg(feature = "arrow")]
    #[test]
    fn the_work_of_frames_is_bounded_over_all_of_them() {
        type Take = fn(&mut FrameWork, usize) -> Result<(), DecodeError>;
        let takes: [(Take, usize); 4] = [
            (FrameWork::take_empty_rows, MAX_EMPTY_ROWS),
            (FrameWork::take_lookups, MAX_LOOKUPS),
            (FrameWork::take_blocks, MAX_BLOCK_BYTES),
            (FrameWork::take_viewed, MAX_VIEWED_BYTES),
        ];
        for (take, most) in takes {
            let mut work = FrameWork::default();
            take(&mut work, most / 2).unwrap();
            take(&mut work, most - most / 2).unwrap();
            assert!(take(&mut work, 1).is_err(), "more than {most}");
        }
    }
}
