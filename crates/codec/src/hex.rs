//! Bytes as hexadecimal digits, two for each byte.

use std::fmt::Write;

/// The bytes as lowercase digits.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Exactly `N` bytes, from digits in either case. `None` for any other text.
#[must_use]
pub fn decode<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_round_trip_and_other_text_is_refused() {
        assert_eq!(decode(encode(&[0, 1, 0xab, 0xff]).as_bytes()), Some([0, 1, 0xab, 0xff]));
        assert_eq!(decode(b"AbfF"), Some([0xab, 0xff]));
        assert_eq!(decode(b""), Some([]));
        for wrong in ["", "0", "0g", "é", "+1", "0x", "012", "0102"] {
            assert_eq!(decode::<1>(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
