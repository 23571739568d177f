//! Short header values, written on the stack: what is on every reply should not pass through the formatting machinery, nor
//! grow a buffer piece by piece.

use axum::http::header::HeaderValue;

/// ASCII text of at most `N` bytes. What does not fit is left out, which the callers' sizes exclude.
#[derive(Clone, Debug)]
pub(crate) struct Ascii<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Ascii<N> {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    pub(crate) fn push(&mut self, text: &[u8]) {
        debug_assert!(self.len + text.len() <= N, "too long for {N} bytes");
        if let Some(free) = self.bytes.get_mut(self.len..self.len + text.len()) {
            free.copy_from_slice(text);
            self.len += text.len();
        }
    }

    /// At least this many digits, with zeros before.
    pub(crate) fn push_decimal(&mut self, mut number: u64, least_digits: usize) {
        let mut digits = [b'0'; 20];
        let mut start = digits.len();
        while number > 0 || digits.len() - start < least_digits {
            start -= 1;
            digits[start] = b'0' + (number % 10) as u8;
            number /= 10;
        }
        self.push(&digits[start..]);
    }

    /// At least this many digits, with zeros before.
    pub(crate) fn push_hex(&mut self, mut number: u64, least_digits: usize) {
        let mut digits = [b'0'; 16];
        let mut start = digits.len();
        while number > 0 || digits.len() - start < least_digits {
            start -= 1;
            digits[start] = b"0123456789abcdef"[(number & 15) as usize];
            number >>= 4;
        }
        self.push(&digits[start..]);
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    pub(crate) fn to_header(&self) -> HeaderValue {
        HeaderValue::from_bytes(self.as_bytes()).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_numbers_with_zeros_before() {
        let mut text = Ascii::<64>::new();
        text.push_decimal(0, 1);
        text.push(b" ");
        text.push_decimal(42, 3);
        text.push(b" ");
        text.push_decimal(u64::MAX, 3);
        text.push(b" ");
        text.push_hex(0xbeef, 8);
        text.push(b" ");
        text.push_hex(0, 1);
        assert_eq!(text.to_header(), "0 042 18446744073709551615 0000beef 0");
    }
}
