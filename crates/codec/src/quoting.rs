//! Shortens the input that error messages quote: serde quotes an unexpected text in full, and a text may be megabytes.
//!
//! [`ShortError`] is the error of a type that is being read: its messages end after a few KiB. serde_json also quotes
//! by itself, before it asks the type. So if a type expects something other than a text, serde_json is asked for any
//! type, and [`KindVisitor`] refuses the wrong kind.

use std::fmt::{self, Write as _};

use serde::de::value::{BorrowedStrDeserializer, MapAccessDeserializer, StrDeserializer};
use serde::de::{Error, Expected, MapAccess, SeqAccess, Unexpected, Visitor};

/// The longest message.
const MAX_MESSAGE_BYTES: usize = 4096;

/// Prints the beginning of a value, at most [`MAX_MESSAGE_BYTES`].
pub(crate) struct Shortened<T>(pub(crate) T);

impl<T: fmt::Display> fmt::Display for Shortened<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cut = CutWriter { out: f, room: MAX_MESSAGE_BYTES, is_full: false };
        // An error here means that the rest was left out.
        let _is_whole = write!(cut, "{}", self.0);
        Ok(())
    }
}

struct CutWriter<'a, 'b> {
    out: &'a mut fmt::Formatter<'b>,
    room: usize,
    is_full: bool,
}

impl fmt::Write for CutWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Some types continue to print after an error.
        if self.is_full {
            return Err(fmt::Error);
        }
        if text.len() <= self.room {
            self.room -= text.len();
            return self.out.write_str(text);
        }
        self.is_full = true;
        self.out.write_str(&text[..text.floor_char_boundary(self.room)])?;
        self.out.write_char('…')?;
        Err(fmt::Error)
    }
}

/// A format's error with a short message.
#[repr(transparent)]
pub(crate) struct ShortError<E>(pub(crate) E);

impl<E> ShortError<E> {
    pub(crate) fn into_inner(self) -> E {
        self.0
    }
}

impl<E: fmt::Debug> fmt::Debug for ShortError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: fmt::Display> fmt::Display for ShortError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: std::error::Error> std::error::Error for ShortError<E> {}

impl<E: Error> Error for ShortError<E> {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(E::custom(Shortened(message)))
    }

    // A format has its own messages for other kinds, such as null.

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        if is_text(found) {
            Self::custom(format_args!("invalid type: {found}, expected {expected}"))
        } else {
            Self(E::invalid_type(found, expected))
        }
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        if is_text(found) {
            Self::custom(format_args!("invalid value: {found}, expected {expected}"))
        } else {
            Self(E::invalid_value(found, expected))
        }
    }
}

fn is_text(found: Unexpected<'_>) -> bool {
    matches!(found, Unexpected::Str(_) | Unexpected::Bytes(_) | Unexpected::Other(_))
}

/// The kind of value that a type requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestedKind {
    Bool,
    Number,
    Unit,
    List,
    Map,
    /// A struct may be written as either.
    ListOrMap,
    Enum,
}

/// A visitor that gets only the requested kind.
pub(crate) struct KindVisitor<V> {
    pub(crate) visitor: V,
    pub(crate) requested: RequestedKind,
}

/// A visitor that takes an enum from a map with one entry.
pub(crate) trait EnumOfMap<'de>: Visitor<'de> {
    fn visit_enum_of_map<A: MapAccess<'de>>(self, entry: A) -> Result<Self::Value, A::Error>;
}

impl<V> KindVisitor<V> {
    fn wants(&self, requested: RequestedKind) -> bool {
        self.requested == requested
    }
}

impl<'de, V: EnumOfMap<'de>> KindVisitor<V> {
    fn refuse<T, E: Error>(&self, found: Unexpected<'_>) -> Result<T, E> {
        Err(ShortError::invalid_type(found, &self.visitor).into_inner())
    }
}

impl<'de, V: EnumOfMap<'de>> Visitor<'de> for KindVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<V::Value, E> {
        if self.wants(RequestedKind::Bool) {
            self.visitor.visit_bool(value)
        } else {
            self.refuse(Unexpected::Bool(value))
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<V::Value, E> {
        if self.wants(RequestedKind::Number) {
            self.visitor.visit_i64(value)
        } else {
            self.refuse(Unexpected::Signed(value))
        }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<V::Value, E> {
        if self.wants(RequestedKind::Number) {
            self.visitor.visit_u64(value)
        } else {
            self.refuse(Unexpected::Unsigned(value))
        }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<V::Value, E> {
        if self.wants(RequestedKind::Number) {
            self.visitor.visit_f64(value)
        } else {
            self.refuse(Unexpected::Float(value))
        }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<V::Value, E> {
        if self.wants(RequestedKind::Enum) {
            self.visitor.visit_enum(StrDeserializer::new(value))
        } else {
            self.refuse(Unexpected::Str(value))
        }
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<V::Value, E> {
        if self.wants(RequestedKind::Enum) {
            self.visitor.visit_enum(BorrowedStrDeserializer::new(value))
        } else {
            self.refuse(Unexpected::Str(value))
        }
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        if self.wants(RequestedKind::Unit) { self.visitor.visit_unit() } else { self.refuse(Unexpected::Unit) }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        match self.requested {
            RequestedKind::List | RequestedKind::ListOrMap => self.visitor.visit_seq(items),
            _ => self.refuse(Unexpected::Seq),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        match self.requested {
            RequestedKind::Map | RequestedKind::ListOrMap => self.visitor.visit_map(entries),
            RequestedKind::Enum => self.visitor.visit_enum_of_map(entries),
            _ => self.refuse(Unexpected::Map),
        }
    }
}

/// Whether serde_json visits a number as a number. With its feature `arbitrary_precision`, which any crate may turn on,
/// it does so only for a type that requests a number.
pub(crate) const NUMBERS_ARE_SHOWN: bool = size_of::<serde_json::Number>() < size_of::<String>();

pub(crate) fn enum_of_map<A>(entries: A) -> MapAccessDeserializer<A> {
    MapAccessDeserializer::new(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A type that continues to print after an error.
    struct Stubborn;

    impl fmt::Display for Stubborn {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            for _ in 0..3 {
                let _failed = f.write_str(&"ä".repeat(MAX_MESSAGE_BYTES / 2 + 1));
                let _failed = f.write_str("x");
            }
            Ok(())
        }
    }

    #[test]
    fn a_message_ends_once_although_its_type_prints_on() {
        let text = Shortened(Stubborn).to_string();
        assert_eq!((text.len(), text.matches('…').count()), (MAX_MESSAGE_BYTES + '…'.len_utf8(), 1));
        assert_eq!(Shortened("short").to_string(), "short");
    }
}
