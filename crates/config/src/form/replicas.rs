//! A number of replicas, or its bounds.

use std::ops::RangeInclusive;

use toml::de::DeValue;

use super::{Count, Form, Raw};

/// The fewest and the most replicas of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// The fewest; 0 for a stage that its first call loads.
    pub min: usize,
    /// The most.
    pub max: usize,
}

impl Replicas {
    /// Always this many.
    #[must_use]
    pub const fn fixed(replicas: usize) -> Self {
        Self { min: replicas, max: replicas }
    }
}

/// A number in this range, or `{ min = 0, max = 4 }`, where `min` may also be 0.
#[derive(Clone, Debug)]
pub(crate) struct ReplicaBounds(pub(crate) RangeInclusive<usize>);

impl Form for ReplicaBounds {
    type Value = Replicas;

    fn read(&self, raw: Raw<'_>) -> Option<Replicas> {
        let Raw::Toml(DeValue::Table(table)) = raw else {
            return Count(self.0.clone()).read(raw).map(Replicas::fixed);
        };
        let bound = |key: &str, from: usize| Count(from..=*self.0.end()).read(Raw::Toml(table.get(key)?.get_ref()));
        let bounds = Replicas { min: bound("min", 0)?, max: bound("max", *self.0.start())? };
        (table.len() == 2 && bounds.min <= bounds.max).then_some(bounds)
    }

    fn expected(&self) -> String {
        let Self(range) = self;
        format!("a whole number from {} to {}, or bounds such as {{ min = 0, max = 4 }}", range.start(), range.end())
    }

    fn show(&self, Replicas { min, max }: &Replicas) -> String {
        if min == max { max.to_string() } else { format!("{{ min = {min}, max = {max} }}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_bounds_are_read_and_shown_as_written() {
        let form = ReplicaBounds(1..=1024);
        let read = |text: &str| form.read(Raw::Toml(&DeValue::parse(text).unwrap().into_inner()));
        for (text, min, max) in [("3", 3, 3), ("{ min = 0, max = 4 }", 0, 4), ("{ min = 2, max = 1024 }", 2, 1024)] {
            assert_eq!(read(text), Some(Replicas { min, max }), "{text}");
            assert_eq!(form.show(&Replicas { min, max }), text);
        }
        for text in [
            "0",
            "1025",
            "\"3\"",
            "{ min = 0 }",
            "{ max = 4 }",
            "{ min = 0, max = 0 }",
            "{ min = 5, max = 4 }",
            "{ min = 0, max = 1025 }",
            "{ min = 0, max = 4, idle = 3 }",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
