//! Random changes of inputs: a small fuzzer without another toolchain.

/// xorshift64*.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // Consecutive seeds start far apart.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end.max(1)
    }
}

/// Changes one thing in `input` after its first byte; the result has at most `max` bytes.
pub(crate) fn mutate(input: &mut Vec<u8>, random: &mut Random, max: usize) {
    let at = 1 + random.below(input.len().saturating_sub(1));
    match random.below(5) {
        0 => input.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.below(256) as u8),
        1 => input.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
        2 => {
            // A false length.
            let lie = [0_u32, 1, 127, 255, 65_535, 1 << 20, u32::MAX][random.below(7)];
            let bytes = if random.below(2) == 0 { lie.to_le_bytes() } else { lie.to_be_bytes() };
            input.iter_mut().skip(at).zip(bytes).for_each(|(byte, new)| *byte = new);
        }
        3 => input.truncate(at),
        _ => {
            // A repeated piece.
            let len = 1 + random.below(64.min(input.len().saturating_sub(at)).max(1));
            let piece: Vec<u8> = input.iter().skip(at).take(len).copied().collect();
            let times = 1 << random.below(17);
            let room = max.saturating_sub(input.len()) / piece.len().max(1);
            let again = piece.repeat(times.min(room));
            input.splice(at.min(input.len())..at.min(input.len()), again);
        }
    }
}
