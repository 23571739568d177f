//! The figures of the last minute, of which the page draws a line for each route and stage.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;

use crate::table::{items, text};

/// The samples of a minute.
pub(super) const KEPT: usize = 60;

/// The calls of each route, and the waiting calls of each stage, in the last minute.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) routes: HashMap<String, VecDeque<f64>>,
    pub(super) stages: HashMap<String, VecDeque<f64>>,
}

impl History {
    /// Remembers a sample. What is not in it is forgotten.
    pub(super) fn note(&mut self, sample: &Value) {
        note(&mut self.routes, &sample["routes"], "calls_per_s");
        note(&mut self.stages, &sample["stages"], "queued");
    }
}

fn note(kept: &mut HashMap<String, VecDeque<f64>>, rows: &Value, figure: &str) {
    let mut before = std::mem::take(kept);
    for row in items(rows) {
        let name = text(&row["name"]);
        let mut values = before.remove(&name).unwrap_or_default();
        if values.len() == KEPT {
            values.pop_front();
        }
        values.push_back(row[figure].as_f64().unwrap_or_default());
        kept.insert(name, values);
    }
}
