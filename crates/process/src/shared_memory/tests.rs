//! Both sides of shared memory in one process: which memory a frame takes, and what is refused.

use std::os::unix::fs::MetadataExt as _;

use super::*;

const LARGE: usize = LEAST_BYTES;

fn part(fill: u8, bytes: usize) -> Vec<Bytes> {
    vec![Bytes::from(vec![fill; bytes / 3]), Bytes::new(), Bytes::from(vec![fill; bytes - bytes / 3])]
}

/// Sends parts of these lengths through memory, and returns its number and what arrives.
fn send(outgoing: &mut Outgoing, incoming: &mut Incoming, fill: u8, lengths: &[usize]) -> (u8, Vec<Bytes>) {
    let parts: Vec<Vec<Bytes>> = lengths.iter().map(|bytes| part(fill, *bytes)).collect();
    let placed = outgoing.place(lengths.iter().copied().zip(parts.iter().map(Vec::as_slice)));
    assert_eq!(Incoming::is_new(placed.memory), placed.descriptor.is_some());
    (placed.memory, incoming.read(placed.memory, placed.descriptor, lengths, (1 << 30, 8)).unwrap())
}

#[test]
fn parts_arrive_as_they_were_sent_by_copies_and_by_views() {
    for reading in [ReadMode::Copies, ReadMode::Views] {
        let (mut outgoing, mut incoming) = (Outgoing::default(), Incoming::new(reading));
        for (fill, lengths) in [(1, &[LARGE][..]), (2, &[0, 1, LARGE, 63, 64, 65]), (3, &[HUGE_BYTES, 7])] {
            let (memory, parts) = send(&mut outgoing, &mut incoming, fill, lengths);
            assert_ne!(memory, 0);
            assert_eq!(parts, lengths.iter().map(|bytes| vec![fill; *bytes]).collect::<Vec<_>>());
            assert!(parts.iter().all(|part| part.is_empty() || part.as_ptr().addr().is_multiple_of(8)));
        }
    }
}

#[test]
fn a_frame_of_few_bytes_takes_no_memory() {
    let part = part(1, LARGE - 1);
    let placed = Outgoing::default().place([(LARGE - 1, part.as_slice())].into_iter());
    assert!(placed.memory == 0 && placed.descriptor.is_none());
}

#[test]
fn memory_is_written_again_when_its_last_view_is_gone_and_not_before() {
    let (mut outgoing, mut incoming) = (Outgoing::default(), Incoming::new(ReadMode::Views));
    let (first, kept) = send(&mut outgoing, &mut incoming, 1, &[LARGE, 10]);
    let (second, parts) = send(&mut outgoing, &mut incoming, 2, &[LARGE, 10]);
    assert_eq!((first, second), (1 | IS_NEW, 2 | IS_NEW));
    drop(parts);
    for fill in 3..10 {
        assert_eq!(send(&mut outgoing, &mut incoming, fill, &[LARGE, 10]).0, 2);
    }
    let small = kept[1].clone();
    assert_eq!(kept[0], vec![1; LARGE]);
    drop(kept);
    let (third, also_kept) = send(&mut outgoing, &mut incoming, 20, &[LARGE, 10]);
    assert_eq!(third, 2, "a view of ten bytes keeps the first");
    drop(small);
    assert_eq!(send(&mut outgoing, &mut incoming, 21, &[LARGE, 10]).0, 1);
    assert_eq!(also_kept[0], vec![20; LARGE]);
}

#[test]
fn memory_that_the_receiver_keeps_is_left_to_it() {
    let (mut outgoing, mut incoming) = (Outgoing::default(), Incoming::new(ReadMode::Views));
    let kept: Vec<_> = (0..100).map(|fill| send(&mut outgoing, &mut incoming, fill, &[LARGE]).1).collect();
    assert!((0..100).all(|fill| kept[usize::from(fill)][0] == vec![fill; LARGE]));
    assert!(Arc::strong_count(&incoming.mapped) <= MAX_MAPPED + 1, "the rest are copies");
}

#[test]
fn memory_shrinks_when_frames_have_been_small_for_some_time() {
    let (mut outgoing, mut incoming) = (Outgoing::default(), Incoming::new(ReadMode::Copies));
    send(&mut outgoing, &mut incoming, 1, &[16 * LARGE]);
    let size = |outgoing: &Outgoing| outgoing.memories[0].as_ref().map(|memory| memory.mapping.len());
    let large = size(&outgoing);
    for _ in 1..SMALL_USES {
        assert_eq!(send(&mut outgoing, &mut incoming, 1, &[LARGE]).0, 1);
    }
    assert_eq!(size(&outgoing), large);
    assert_eq!(send(&mut outgoing, &mut incoming, 1, &[LARGE]).0, 1 | IS_NEW);
    assert!(size(&outgoing) < large);
}

#[test]
fn the_memory_of_a_large_copy_is_used_again_when_the_copy_is_gone() {
    let (mut outgoing, mut incoming) = (Outgoing::default(), Incoming::new(ReadMode::Copies));
    let first = send(&mut outgoing, &mut incoming, 1, &[HUGE_BYTES]).1;
    let second = send(&mut outgoing, &mut incoming, 2, &[2 * HUGE_BYTES]).1;
    assert_eq!(first[0], vec![1; HUGE_BYTES]);
    let place = second[0].as_ptr();
    drop(second);
    let third = send(&mut outgoing, &mut incoming, 3, &[HUGE_BYTES + 1]).1;
    assert_eq!((third[0].as_ptr(), &third[0]), (place, &Bytes::from(vec![3; HUGE_BYTES + 1])));
    drop((first, third));
    let spare = incoming.spare.0.lock().as_ref().map(|spare| spare.len());
    assert_eq!(spare, Some(2 * HUGE_BYTES), "the memory that came back last");
}

/// Memory that is sparse costs its sender nothing, and address space the receiver.
#[test]
fn only_what_frames_need_of_a_memory_is_mapped_and_larger_memory_is_refused() {
    let mut incoming = Incoming::new(ReadMode::Copies);
    let mapped = |incoming: &Incoming| {
        incoming.memories[0].as_ref().and_then(|memory| memory.mapping.as_ref()).map(|(mapping, _)| mapping.len())
    };
    let largest = most_bytes((1000, 1)) as u64;
    let memory = new_memory(largest).unwrap();
    assert_eq!(incoming.read(1 | IS_NEW, Some(memory.into()), &[100], (1000, 1)).unwrap(), [vec![0; 100]]);
    assert_eq!(mapped(&incoming), Some(256));
    assert_eq!(incoming.read(1, None, &[900], (1000, 1)).unwrap(), [vec![0; 900]]);
    assert_eq!(mapped(&incoming), Some(1024));
    assert_eq!(incoming.read(1, None, &[1], (1000, 1)).unwrap(), [vec![0; 1]]);
    assert_eq!(mapped(&incoming), Some(1024));
    for bytes in [largest + 1, 1 << 46] {
        let memory = new_memory(bytes).unwrap();
        let error = incoming.read(1 | IS_NEW, Some(memory.into()), &[100], (1000, 1)).unwrap_err();
        assert!(matches!(error, MemoryError::TooLarge { .. }), "{error}");
    }
    assert_eq!(most_bytes((u64::MAX, 1)), usize::MAX);
}

#[test]
fn places_that_no_memory_can_have_are_refused() {
    assert_eq!(places([usize::MAX, 1]), None);
    let mut incoming = Incoming::new(ReadMode::Copies);
    let memory = new_memory(1024).unwrap();
    assert!(incoming.read(1 | IS_NEW, Some(memory.into()), &[960], (960, 1)).is_ok());
    for lengths in [&[961][..], &[1, 897], &[usize::MAX, 1], &[usize::MAX]] {
        let error = incoming.read(1, None, lengths, (u64::MAX, 2)).unwrap_err();
        assert!(matches!(error, MemoryError::TooSmall { bytes: 1024, .. }), "{error}");
    }
    for number in [0, 2, 4, 5, 127] {
        assert!(matches!(incoming.read(number, None, &[1], (960, 1)), Err(MemoryError::Unknown(_))), "{number}");
    }
}

/// The lengths of the memories of a sender.
fn sizes(outgoing: &Outgoing) -> Vec<Option<usize>> {
    outgoing.memories.iter().map(|memory| memory.as_ref().map(|memory| memory.mapping.len())).collect()
}

/// The bytes for which the system has given memory.
fn given(memory: &OwnMemory) -> usize {
    usize::try_from(memory.file.metadata().unwrap().blocks()).unwrap() * 512
}

#[test]
fn of_two_free_memories_a_frame_takes_the_first_that_is_large_enough() {
    let frame = |end: usize| [end - FIRST_PART];
    for (first, second, bytes, expected) in [
        (2 * LARGE, 8 * LARGE, 8 * LARGE, 2),
        (2 * LARGE, 8 * LARGE, 2 * LARGE, 1),
        (2 * LARGE, 8 * LARGE, 2 * LARGE - 1, 1),
        (8 * LARGE, 2 * LARGE, 8 * LARGE, 1),
    ] {
        let (mut outgoing, mut incoming) = (Outgoing::default(), Incoming::new(ReadMode::Views));
        let kept = send(&mut outgoing, &mut incoming, 1, &frame(first));
        let also_kept = send(&mut outgoing, &mut incoming, 2, &frame(second));
        assert_eq!(sizes(&outgoing), [Some(first), Some(second)]);
        drop((kept, also_kept));
        assert_eq!(send(&mut outgoing, &mut incoming, 3, &frame(bytes)).0, expected, "{first} {second} {bytes}");
    }
}

#[test]
fn a_sender_whose_memories_are_all_in_use_gives_up_the_oldest() {
    let (mut outgoing, mut incoming) = (Outgoing::default(), Incoming::new(ReadMode::Views));
    let kept: Vec<_> = (0..6).map(|fill| send(&mut outgoing, &mut incoming, fill, &[LARGE])).collect();
    let numbers: Vec<_> = kept.iter().map(|(memory, _)| memory & !IS_NEW).collect();
    assert_eq!(numbers, [1, 2, 1, 2, 1, 2]);
    assert!(kept.iter().all(|(memory, _)| Incoming::is_new(*memory)));
}

#[test]
fn a_memory_stays_while_frames_need_more_than_a_quarter_of_it() {
    for (bytes, stays) in [(2 * LARGE + 1, true), (2 * LARGE, false)] {
        let (mut outgoing, mut incoming) = (Outgoing::default(), Incoming::new(ReadMode::Copies));
        send(&mut outgoing, &mut incoming, 1, &[8 * LARGE - FIRST_PART]);
        let is_new = |_| Incoming::is_new(send(&mut outgoing, &mut incoming, 2, &[bytes - FIRST_PART]).0);
        assert_eq!((0..2 * SMALL_USES).any(is_new), !stays, "{bytes}");
    }
}

#[test]
fn a_frame_of_more_than_a_quarter_lets_small_ones_be_counted_from_the_start() {
    let mut memory = OwnMemory::new(4 * LARGE).unwrap();
    for bytes in [1, LARGE + 1, 1] {
        assert!((1..SMALL_USES).all(|_| memory.is_of_use_for(bytes)), "{bytes}");
    }
    assert!(!memory.is_of_use_for(1));
}

/// What the system has not given ends the writer by a signal when it writes there.
#[test]
fn the_system_gives_memory_before_it_is_written() {
    let mut memory = OwnMemory::new(5 * LARGE).unwrap();
    assert_eq!((memory.mapping.len(), memory.allocated), (8 * LARGE, 5 * LARGE));
    // A page may be a huge one.
    assert!(given(&memory) >= 5 * LARGE, "{}", given(&memory));
    memory.allocate(6 * LARGE).unwrap();
    memory.allocate(LARGE).unwrap();
    assert!(memory.allocated == 6 * LARGE && given(&memory) >= 6 * LARGE, "{}", given(&memory));
    assert!(memory.allocate(9 * LARGE).is_err(), "it does not grow");
    assert!(OwnMemory::new(usize::MAX).is_err());
}

#[test]
fn a_memory_is_mapped_again_only_for_a_frame_that_needs_more() {
    let mut memory = TheirMemory::new(new_memory(8192).unwrap().into(), 8192).unwrap();
    let mapped = Arc::new(());
    let mut map = |needed: usize| {
        memory.map(needed, &mapped);
        let (mapping, _) = memory.mapping.as_ref().unwrap();
        (mapping.as_ptr(), mapping.len())
    };
    let first = map(4096);
    assert_eq!((first.1, map(4096), map(1)), (4096, first, first));
    assert_eq!(map(4097).1, 8192);
}

#[test]
fn only_large_copies_lie_in_memory_that_is_used_again() {
    for (bytes, is_kept) in [(HUGE_BYTES - 1, false), (HUGE_BYTES, true), (HUGE_BYTES + 1, true)] {
        let (mut outgoing, mut incoming) = (Outgoing::default(), Incoming::new(ReadMode::Copies));
        let (_, parts) = send(&mut outgoing, &mut incoming, 1, &[bytes]);
        assert_eq!(parts, [vec![1; bytes]]);
        drop(parts);
        assert_eq!(incoming.spare.0.lock().is_some(), is_kept, "{bytes}");
    }
}

#[test]
fn only_memory_of_this_process_that_cannot_shrink_is_accepted() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let with = |seals: SealFlags| {
        let memory = File::from(memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
        memory.set_len(4096).unwrap();
        fcntl_add_seals(&memory, seals).unwrap();
        is_sealed_memory(&memory.into())
    };
    assert!(with(SealFlags::SHRINK) && !with(SealFlags::GROW));
    assert!(is_sealed_memory(&new_memory(4096).unwrap().into()));
    assert!(!is_sealed_memory(&File::open("/proc/self/exe").unwrap().into()));
    let own = new_memory(4096).unwrap();
    assert!(own.set_len(0).is_err() && own.set_len(8192).is_err());
    assert!(fcntl_add_seals(&own, SealFlags::WRITE).is_err());
}
