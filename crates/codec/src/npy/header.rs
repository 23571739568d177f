//! The header of a `.npy` file: magic, version, and a Python dict literal of three known keys, read by a fixed grammar.

use crate::error::DecodeError;
use crate::out::ChargedBuffer;
use crate::value::tensor::{DType, MAX_RANK};

pub(super) const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Elements start at a multiple of this.
pub(super) const ALIGNMENT: usize = 64;
/// NumPy's own are below 200 bytes unless the array is structured.
const MAX_HEADER_BYTES: usize = 64 * 1024;

#[derive(Debug, PartialEq)]
pub(super) struct Header {
    pub(super) kind: ElementKind,
    pub(super) big_endian: bool,
    pub(super) fortran_order: bool,
    pub(super) shape: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ElementKind {
    Number(DType),
    Utf32 { chars: usize },
    Utf8 { bytes: usize },
}

/// NumPy's letter and size for each dtype that has one.
const DESCRS: [(&str, DType); 14] = [
    ("b1", DType::Bool),
    ("i1", DType::I8),
    ("i2", DType::I16),
    ("i4", DType::I32),
    ("i8", DType::I64),
    ("u1", DType::U8),
    ("u2", DType::U16),
    ("u4", DType::U32),
    ("u8", DType::U64),
    ("f2", DType::F16),
    ("f4", DType::F32),
    ("f8", DType::F64),
    ("c8", DType::C64),
    ("c16", DType::C128),
];

/// `<f4` for f32; `None` for a dtype that NumPy does not have.
pub(super) fn descr(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Bool => "|b1",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::U16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::C64 => "<c8",
        DType::C128 => "<c16",
        DType::BF16 => return None,
    })
}

/// Writes a header of version 1.0.
pub(super) fn write(out: &mut ChargedBuffer, descr: &str, shape: &[usize]) {
    let axes: String = shape.iter().map(|axis| format!("{axis}, ")).collect();
    let axes = if shape.len() == 1 { axes.trim_end() } else { axes.trim_end_matches(", ") };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({axes}), }}");
    let before = MAGIC.len() + 4;
    let padded = (before + text.len() + 1).next_multiple_of(ALIGNMENT) - before;
    text.extend(std::iter::repeat_n(' ', padded - 1 - text.len()));
    text.push('\n');
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[1, 0]);
    let len = u16::try_from(padded).expect("at most 32 axes of 20 digits");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

impl Header {
    /// Reads the header. Returns the start of the elements.
    pub(super) fn read(bytes: &[u8]) -> Result<(Self, usize), DecodeError> {
        let malformed = |message: &str, at: usize| DecodeError::malformed(message).at_offset(at);
        let short = || malformed("the input ends inside the header", bytes.len());
        let rest =
            bytes.strip_prefix(MAGIC).ok_or_else(|| malformed("not .npy: it does not start with \\x93NUMPY", 0))?;
        let ([major, minor], rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (len, start) = match (major, minor) {
            (1, 0) => (rest.first_chunk().map(|len| u32::from(u16::from_le_bytes(*len))), 10),
            (2 | 3, 0) => (rest.first_chunk().map(|len| u32::from_le_bytes(*len)), 12),
            _ => return Err(DecodeError::unsupported(format!(".npy version {major}.{minor}")).at_offset(6)),
        };
        let len = usize::try_from(len.ok_or_else(short)?).unwrap_or(usize::MAX);
        if len > MAX_HEADER_BYTES {
            return Err(malformed(&format!("a header of {len} bytes is longer than {MAX_HEADER_BYTES}"), 8));
        }
        let text = bytes.get(start..start + len).ok_or_else(short)?;
        let header = HeaderParser { text, at: 0 }.header().map_err(|error| error.shifted(start))?;
        Ok((header, start + len))
    }
}

/// A parser without recursion: the only nesting in the grammar is one tuple of integers.
struct HeaderParser<'a> {
    text: &'a [u8],
    at: usize,
}

impl HeaderParser<'_> {
    fn header(mut self) -> Result<Header, DecodeError> {
        let (mut kind, mut fortran_order, mut shape) = (None, None, None);
        self.expect(b'{')?;
        while !self.take(b'}') {
            let at = self.at;
            let key = self.text()?;
            self.expect(b':')?;
            let twice = match key.as_str() {
                "descr" => kind.replace(self.descr()?).is_some(),
                "fortran_order" => fortran_order.replace(self.bool()?).is_some(),
                "shape" => shape.replace(self.shape()?).is_some(),
                _ => {
                    return Err(DecodeError::malformed("a key other than descr, fortran_order, shape").at_offset(at));
                }
            };
            if twice {
                return Err(DecodeError::malformed("the same key twice").in_key(&key).at_offset(at));
            }
            if !self.take(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        if self.peek().is_some() {
            return Err(self.malformed("more in the header than its dict"));
        }
        let missing = |key: &str| DecodeError::malformed(format!("a header without {key}")).at_offset(0);
        let (kind, big_endian) = kind.ok_or_else(|| missing("descr"))?;
        let fortran_order = fortran_order.ok_or_else(|| missing("fortran_order"))?;
        Ok(Header { kind, big_endian, fortran_order, shape: shape.ok_or_else(|| missing("shape"))? })
    }

    fn descr(&mut self) -> Result<(ElementKind, bool), DecodeError> {
        let first = self.peek();
        let at = self.at;
        if first == Some(b'[') {
            return Err(DecodeError::unsupported("a structured array").in_key("descr").at_offset(at));
        }
        let text = self.text()?;
        let unsupported = || {
            let what = match text.get(1..2) {
                Some("O") => "an object array: it would be a pickle, which can run anything".to_owned(),
                _ => format!("dtype {text:?}"),
            };
            DecodeError::unsupported(what).in_key("descr").at_offset(at)
        };
        let (order, name) = text.split_at_checked(1).ok_or_else(unsupported)?;
        let big_endian = match order {
            "<" | "|" | "=" => false,
            ">" => true,
            _ => return Err(unsupported()),
        };
        if let Some((_, dtype)) = DESCRS.iter().find(|(descr, _)| *descr == name) {
            return Ok((ElementKind::Number(*dtype), big_endian && dtype.size_bytes() > 1));
        }
        let width = || name[1..].parse::<u32>().ok().and_then(|width| usize::try_from(width).ok());
        match name.get(..1) {
            Some("U") if !big_endian => Ok((ElementKind::Utf32 { chars: width().ok_or_else(unsupported)? }, false)),
            Some("S") => Ok((ElementKind::Utf8 { bytes: width().ok_or_else(unsupported)? }, false)),
            _ => Err(unsupported()),
        }
    }

    fn shape(&mut self) -> Result<Vec<usize>, DecodeError> {
        let mut shape = Vec::new();
        self.expect(b'(')?;
        while !self.take(b')') {
            let at = self.at;
            let axis =
                self.number().ok_or_else(|| DecodeError::malformed("not the length of an axis").at_offset(at))?;
            if shape.len() == MAX_RANK {
                return Err(DecodeError::malformed(format!("more than {MAX_RANK} axes")).in_key("shape").at_offset(at));
            }
            shape.push(axis);
            if !self.take(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(shape)
    }

    /// Digits. Python 2 wrote an `L` after long integers.
    fn number(&mut self) -> Option<usize> {
        self.peek();
        let len = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let digits = std::str::from_utf8(&self.text[self.at..self.at + len]).ok()?;
        self.at += len;
        self.at += usize::from(self.text.get(self.at) == Some(&b'L'));
        digits.parse().ok()
    }

    fn bool(&mut self) -> Result<bool, DecodeError> {
        self.peek();
        for (word, value) in [(&b"True"[..], true), (b"False", false)] {
            if self.text[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.malformed("neither True nor False"))
    }

    /// A text in either quotes, without escapes.
    fn text(&mut self) -> Result<String, DecodeError> {
        let quote = self.peek().filter(|byte| matches!(byte, b'\'' | b'"'));
        let quote = quote.ok_or_else(|| self.malformed("expected a text in quotes"))?;
        let inside = &self.text[self.at + 1..];
        let len = inside.iter().take(MAX_TEXT_BYTES).position(|byte| *byte == quote);
        let len = len.ok_or_else(|| self.malformed("a text without an end"))?;
        let text = std::str::from_utf8(&inside[..len]).ok().filter(|text| !text.contains('\\'));
        let text = text.ok_or_else(|| self.malformed("a text with escapes or no UTF-8"))?.to_owned();
        self.at += len + 2;
        Ok(text)
    }

    fn expect(&mut self, byte: u8) -> Result<(), DecodeError> {
        if self.take(byte) { Ok(()) } else { Err(self.malformed(&format!("expected {:?}", char::from(byte)))) }
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.text.get(self.at) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn malformed(&self, message: &str) -> DecodeError {
        DecodeError::malformed(message).at_offset(self.at)
    }
}

/// The longest key or descr.
const MAX_TEXT_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// The shapes have headers of every length up to the alignment, and of more.
    #[test]
    fn a_written_header_ends_where_elements_are_aligned() {
        for (rank, first) in (1..=MAX_RANK).flat_map(|rank| [1, 10, 100].map(|first| (rank, first))) {
            let mut shape = vec![1; rank];
            shape[0] = first;
            let mut out = ChargedBuffer::new(0);
            write(&mut out, "<f4", &shape);
            let (header, start) = Header::read(out.as_slice()).unwrap();
            assert_eq!((header.shape, start, start % ALIGNMENT), (shape, out.len(), 0));
            assert!(out.as_slice().ends_with(b"\n"));
        }
    }

    #[test]
    fn a_descr_names_kind_and_order() {
        let read = |descr: &str, axis: &str| {
            let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({axis},)}}");
            let header = HeaderParser { text: text.as_bytes(), at: 0 }.header().ok()?;
            assert_eq!(header.shape, [3]);
            Some((header.kind, header.big_endian))
        };
        use ElementKind::{Number, Utf8, Utf32};
        for (descr, expected) in [
            ("<i2", Some((Number(DType::I16), false))),
            ("=i2", Some((Number(DType::I16), false))),
            (">i2", Some((Number(DType::I16), true))),
            (">u1", Some((Number(DType::U8), false))), // A byte has no order.
            ("<U7", Some((Utf32 { chars: 7 }, false))),
            (">U7", None),
            ("|S7", Some((Utf8 { bytes: 7 }, false))),
            ("!i2", None),
            ("", None),
        ] {
            assert_eq!(read(descr, "3"), expected, "{descr}");
        }
        assert!(read("<i2", "3L").is_some() && read("<i2", "3LL").is_none(), "a long integer of Python 2");
    }

    #[test]
    fn a_header_has_a_longest_length() {
        let file = |len: usize| {
            let start = b"{'descr': '|u1', 'fortran_order': False, 'shape': (0,), }";
            let mut text = start.to_vec();
            text.resize(len - 1, b' ');
            [&MAGIC[..], &[2, 0], &(len as u32).to_le_bytes(), &text, b"\n"].concat()
        };
        assert_eq!(Header::read(&file(MAX_HEADER_BYTES)).unwrap().1, 12 + MAX_HEADER_BYTES);
        let error = Header::read(&file(MAX_HEADER_BYTES + 1)).map(drop).unwrap_err();
        assert_eq!(error.message(), "a header of 65537 bytes is longer than 65536");
    }
}
