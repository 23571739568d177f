//! Short texts of headers and ids, written on the stack: every response has some, and the formatting machinery or a
//! growing buffer would cost each of them.

/// ASCII text of at most `N` bytes. A piece that does not fit is left out; callers choose `N` so that all fit.
#[derive(Clone, Debug)]
pub struct StackText<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Default for StackText<N> {
    fn default() -> Self {
        Self { bytes: [0; N], len: 0 }
    }
}

impl<const N: usize> StackText<N> {
    /// Appends text. Inlined, so that a text of known length is a store or two.
    #[inline]
    pub fn push(&mut self, text: &[u8]) {
        debug_assert!(self.len + text.len() <= N, "too long for {N} bytes");
        if let Some(free) = self.bytes.get_mut(self.len..self.len + text.len()) {
            free.copy_from_slice(text);
            self.len += text.len();
        }
    }

    /// Appends a number with at least this many digits, padded with zeros.
    pub fn push_decimal(&mut self, mut number: u64, least_digits: usize) {
        // Most numbers of most responses.
        if number < 10 && least_digits < 2 {
            return self.push(&[b'0' + number as u8]);
        }
        let mut digits = [b'0'; 20];
        let mut start = digits.len();
        while number > 0 || digits.len() - start < least_digits {
            start -= 1;
            digits[start] = b'0' + (number % 10) as u8;
            number /= 10;
        }
        self.push(&digits[start..]);
    }

    /// Appends a number in lowercase hexadecimal with at least this many digits, padded with zeros.
    pub fn push_hex(&mut self, number: u64, least_digits: usize) {
        let [high, low] = [(number >> 32) as u32, number as u32].map(hex_of);
        let mut digits = [b'0'; 16];
        digits[..8].copy_from_slice(&high);
        digits[8..].copy_from_slice(&low);
        let needed = (u64::BITS - number.leading_zeros()).div_ceil(4) as usize;
        self.push(&digits[16 - needed.max(least_digits).min(16)..]);
    }

    /// The text as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

/// All eight digits at once, each in a byte of one word.
fn hex_of(number: u32) -> [u8; 8] {
    const ONES: u64 = u64::MAX / 255;
    let mut nibbles = u64::from(number);
    nibbles = (nibbles << 16 | nibbles) & 0x0000_ffff_0000_ffff;
    nibbles = (nibbles << 8 | nibbles) & 0x00ff_00ff_00ff_00ff;
    nibbles = (nibbles << 4 | nibbles) & 0x0f0f_0f0f_0f0f_0f0f;
    // 6 more carries those from ten on into the fifth bit: they are letters.
    let letters = (nibbles + ONES * 6) >> 4 & ONES;
    (nibbles + ONES * u64::from(b'0') + letters * u64::from(b'a' - b'0' - 10)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pads_numbers_with_zeros() {
        let mut text = StackText::<64>::default();
        text.push_decimal(0, 1);
        text.push(b" ");
        text.push_decimal(42, 3);
        text.push(b" ");
        text.push_decimal(u64::MAX, 3);
        text.push(b" ");
        text.push_hex(0xbeef, 8);
        text.push(b" ");
        text.push_hex(0, 1);
        assert_eq!(text.as_str(), "0 042 18446744073709551615 0000beef 0");

        for number in [0, 1, 0x9a, 0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, u64::MAX] {
            let mut text = StackText::<33>::default();
            text.push_hex(number, 16);
            text.push(b"-");
            text.push_hex(number, 1);
            assert_eq!(text.as_str(), format!("{number:016x}-{number:x}"));
        }
    }
}
