//! Tables of values in an answer, and the form of each value, for people at a terminal.

use std::fmt::{self, Write as _};
use std::time::Duration;

use serde_json::Value;

use crate::plain;

/// A longer cell makes its line longer, and no other one. Threat: one long text in a table of thousands of rows.
const WIDEST: usize = 64;

/// A table whose columns fit their contents.
pub(crate) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// A table with these heads.
    pub(crate) fn new(heads: [&str; N]) -> Self {
        Self { rows: vec![heads.map(str::to_owned)] }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
        let widths: [usize; N] = std::array::from_fn(|column| width(column).min(WIDEST));
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                write!(line, "{cell:width$}  ")?;
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// The elements of a list; of anything else none.
pub(crate) fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

/// One line.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => plain::line(text).into_owned(),
        Value::Null => dash(),
        other => plain::line(&other.to_string()).into_owned(),
    }
}

/// The text, or a dash for an empty one.
pub(crate) fn or_dash(text: String) -> String {
    if text.is_empty() { dash() } else { text }
}

/// A value that is not known.
pub(crate) fn dash() -> String {
    "-".to_owned()
}

/// Parses a `Duration` as serde writes it.
pub(crate) fn span(value: &Value) -> Duration {
    let part = |key: &str| value[key].as_u64().unwrap_or_default();
    Duration::new(part("secs"), u32::try_from(part("nanos")).unwrap_or_default())
}

pub(crate) fn shown_span(span: Duration) -> String {
    match span.as_secs() {
        0 => format!("{:.1} ms", span.as_secs_f64() * 1000.0),
        seconds => shown_seconds(seconds),
    }
}

pub(crate) fn shown_seconds(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

pub(crate) fn shown_bytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_long_cell_widens_no_other_line() {
        let mut table = Table::new(["a", "b"]);
        table.row(["x".repeat(30_000), "1".to_owned()]);
        (0..100).for_each(|_| table.row(["y".to_owned(), "2".to_owned()]));
        let shown = table.to_string();
        assert!(shown.len() < 40_000, "{}", shown.len());
        assert!(shown.lines().skip(2).all(|line| line == format!("{:66}2", "y")));
    }
}
