//! Walks over the fields of a protobuf message, in the bytes of the file, without decoding them: a file of millions of
//! empty messages costs the time of a walk and no memory.
//!
//! Wire types are those of <https://protobuf.dev/programming-guides/encoding/>. Groups, which ONNX has none of, are
//! refused.

/// Bytes that are no protobuf message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// The bytes end within a field, as those of a file that is cut short do.
    #[error("a field ends beyond the end of the bytes")]
    Truncated,
    /// A number of more than 64 bits.
    #[error("a number has more than 64 bits")]
    LongNumber,
    /// The fields of a message are numbered from 1.
    #[error("a field has the number 0")]
    NoNumber,
    /// A wire type that no field of ONNX has.
    #[error("a field has the wire type {0}")]
    WireType(u8),
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field<'a> {
    /// A number, a bool or an enumeration.
    Number(u64),
    /// A message, a text, bytes, or packed numbers.
    Bytes(&'a [u8]),
    /// A float or another number of a fixed size.
    Fixed,
}

/// The fields of a message, each with its number, in the order of its bytes. The first error is the last item.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(message: &'a [u8]) -> Self {
        Self(message)
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], WireError> {
        let count = usize::try_from(count).map_err(|_| WireError::Truncated)?;
        let (taken, rest) = self.0.split_at_checked(count).ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, WireError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(WireError::LongNumber)
    }

    fn field(&mut self) -> Result<(u32, Field<'a>), WireError> {
        let key = self.number()?;
        let number = u32::try_from(key >> 3).map_err(|_| WireError::LongNumber)?;
        if number == 0 {
            return Err(WireError::NoNumber);
        }
        let field = match key & 7 {
            0 => Field::Number(self.number()?),
            1 => self.take(8).map(|_| Field::Fixed)?,
            2 => {
                let length = self.number()?;
                Field::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Field::Fixed)?,
            other => return Err(WireError::WireType(other as u8)),
        };
        Ok((number, field))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Field<'a>), WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// The last message or text with this number.
pub(crate) fn last(bytes: &[u8], wanted: u32) -> Result<Option<&[u8]>, WireError> {
    let mut last = None;
    for field in Fields::new(bytes) {
        match field? {
            (number, Field::Bytes(message)) if number == wanted => last = Some(message),
            _ => {}
        }
    }
    Ok(last)
}

/// Packed numbers, up to the first that is none.
pub(crate) fn packed(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let mut rest = Fields(bytes);
    std::iter::from_fn(move || if rest.0.is_empty() { None } else { rest.number().ok() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fields(bytes: &[u8]) -> Vec<Result<(u32, Field<'_>), WireError>> {
        Fields::new(bytes).collect()
    }

    #[test]
    fn each_wire_type_is_skipped_by_its_own_length() {
        let bytes = [0x08, 0x96, 0x01, 0x12, 2, 7, 8, 0x1d, 1, 2, 3, 4, 0x21, 1, 2, 3, 4, 5, 6, 7, 8, 0x28, 1];
        let expected = [(1, Field::Number(150)), (2, Field::Bytes(&[7, 8])), (3, Field::Fixed), (4, Field::Fixed)];
        let read: Vec<_> = fields(&bytes).into_iter().map(Result::unwrap).collect();
        assert_eq!(read[..4], expected);
        assert_eq!(read[4], (5, Field::Number(1)));
    }

    #[test]
    fn an_error_ends_the_walk() {
        for (bytes, error) in [
            (&[0x08][..], WireError::Truncated),
            (&[0x12, 5, 1], WireError::Truncated),
            (&[0x1d, 1, 2, 3], WireError::Truncated),
            (&[0x21, 1, 2, 3, 4, 5, 6, 7], WireError::Truncated),
            (&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], WireError::Truncated),
            (&[0x00, 1], WireError::NoNumber),
            (&[0x0b, 1], WireError::WireType(3)),
            (&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], WireError::LongNumber),
            (&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1, 1], WireError::LongNumber),
        ] {
            assert_eq!(fields(bytes), [Err(error)], "{bytes:?}");
        }
        let largest = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(fields(&largest), [Ok((1, Field::Number(u64::MAX)))]);
    }

    proptest! {
        /// The lengths of the fields add up to those of the bytes: nothing is read twice, and nothing is left out.
        #[test]
        fn a_walk_reads_each_byte_once(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            let read = fields(&bytes);
            prop_assert!(read.len() <= bytes.len());
            prop_assert!(read.iter().rev().skip(1).all(Result::is_ok), "an error is the last item");
            let held = |field: &Result<(u32, Field<'_>), WireError>| match field {
                Ok((_, Field::Bytes(bytes))) => bytes.len(),
                _ => 0,
            };
            prop_assert!(read.iter().map(held).sum::<usize>() <= bytes.len());
        }
    }
}
