//! Weights of revisions, as in the file: `{ 1 = 9, 2 = 1 }`.

use std::ops::RangeInclusive;

use super::{Count, Form, NONE, Raw};

/// A weight for each of a few revisions, by their numbers.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    pub(crate) revisions: RangeInclusive<usize>,
    pub(crate) weights: RangeInclusive<usize>,
    pub(crate) at_most: usize,
}

impl Form for Weights {
    type Value = Vec<(u64, u32)>;

    fn read(&self, raw: Raw<'_>) -> Option<Self::Value> {
        let Raw::Toml(value) = raw else { return None };
        let table = value.as_table()?;
        let (revision, weight) = (Count(self.revisions.clone()), Count(self.weights.clone()));
        let each = table.iter().map(|(key, value)| {
            let key = key.get_ref().as_ref();
            let number = revision.read(Raw::Text(key)).filter(|number| number.to_string() == key)?;
            let weight = weight.read(Raw::Toml(value.get_ref()))?;
            Some((number as u64, u32::try_from(weight).ok()?))
        });
        let mut weights: Self::Value = each.collect::<Option<_>>()?;
        weights.sort_unstable();
        let is_one = (1..=self.at_most).contains(&weights.len()) && weights.iter().any(|(_, weight)| *weight > 0);
        is_one.then_some(weights)
    }

    fn expected(&self) -> String {
        let (from, to) = (self.weights.start(), self.weights.end());
        format!("weights from {from} to {to} of at most {} revisions, such as {{ 1 = 9, 2 = 1 }}", self.at_most)
    }

    fn show(&self, value: &Self::Value) -> String {
        let each: Vec<_> = value.iter().map(|(revision, weight)| format!("{revision} = {weight}")).collect();
        if each.is_empty() { NONE.to_owned() } else { format!("{{ {} }}", each.join(", ")) }
    }
}
