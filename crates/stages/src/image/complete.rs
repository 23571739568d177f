//! Checks that a picture is complete, for formats whose decoders fill in missing data.
//!
//! Half a JPEG decodes without an error: the rest is grey, and a model would give a wrong answer. PNG, GIF and BMP
//! decoders report an error themselves.

/// Whether a JPEG has its end marker: segments are skipped by their lengths (thumbnails with end markers of their own
/// are inside of one), scans are read through (ITU-T T.81, B.1.1).
pub(super) fn is_whole_jpeg(bytes: &[u8]) -> bool {
    let mut at = 2; // behind the start marker, by which the format was recognised
    loop {
        match next_marker(bytes, at) {
            None => return false,
            Some((END, _)) => return true,
            // Restart and temporary markers have no segment.
            Some((0x01 | 0xd0..=0xd7, behind)) => at = behind,
            Some((_, behind)) => match bytes.get(behind..behind + 2) {
                Some(&[high, low]) => at = behind + usize::from(u16::from_be_bytes([high, low])).max(2),
                _ => return false,
            },
        }
    }
}

const END: u8 = 0xd9;

/// The next marker and the offset after it. Inside a scan 0xff is followed by 0, or by another 0xff as padding.
fn next_marker(bytes: &[u8], from: usize) -> Option<(u8, usize)> {
    let rest = bytes.get(from..)?;
    let is_marker = |pair: &[u8]| pair[0] == 0xff && pair[1] != 0x00 && pair[1] != 0xff;
    let at = rest.windows(2).position(is_marker)?;
    Some((rest[at + 1], from + at + 2))
}

/// Whether a WebP is as long as its RIFF header says (<https://developers.google.com/speed/webp/docs/riff_container>).
pub(super) fn is_whole_webp(bytes: &[u8]) -> bool {
    match bytes.get(4..8) {
        Some(&[a, b, c, d]) => bytes.len() as u64 >= u64::from(u32::from_le_bytes([a, b, c, d])) + 8,
        _ => false,
    }
}
