//! The cells of the page: their colours, and the tables that they make.

use std::collections::VecDeque;

use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};
use serde_json::Value;

use super::history::KEPT;
use crate::table::dash;

pub(super) const GOOD: Color = Color::Green;
pub(super) const WARNING: Color = Color::Yellow;
pub(super) const BAD: Color = Color::Red;

/// The columns of a drawn minute: two samples each.
const SPARKS: usize = KEPT / 2;

/// A cell, with its colour where it says something.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) text: String,
    style: Style,
}

impl Cell {
    pub(super) fn styled(text: impl Into<String>, colour: Color) -> Self {
        Self { text: text.into(), style: Style::new().fg(colour) }
    }

    /// One of the states of stages, actors, devices and links.
    pub(super) fn state(state: &str) -> Self {
        let colour = match state {
            "ready" | "remote" | "up" => GOOD,
            "failed" | "unreachable" | "down" => BAD,
            "sleeping" | "left" => Color::DarkGray,
            _ => WARNING,
        };
        Self::styled(state.replace('_', " "), colour)
    }

    fn width(&self) -> usize {
        Span::raw(&self.text).width()
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, style: Style::new() }
    }
}

/// A column: its head, whether it holds numbers, and the cell of a row.
pub(super) type Column<'a> = (&'static str, Side, &'a dyn Fn(&Value) -> Cell);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// The lines of a table, its heads first. A column in which nothing is known is left out.
pub(super) fn table(rows: &[Value], columns: &[Column<'_>]) -> Vec<Line<'static>> {
    let columns: Vec<(&str, Side, Vec<Cell>)> = columns
        .iter()
        .map(|(head, side, cell)| (*head, *side, rows.iter().map(cell).collect::<Vec<_>>()))
        .filter(|(_, _, cells)| cells.iter().any(|cell| cell.text != dash()))
        .collect();
    let widths: Vec<usize> = columns
        .iter()
        .map(|(head, _, cells)| cells.iter().map(Cell::width).chain([head.len()]).max().unwrap_or_default())
        .collect();
    let line = |cells: &mut dyn Iterator<Item = (Cell, Side)>| {
        let mut spans = Vec::new();
        for ((cell, side), width) in cells.zip(&widths) {
            let room = " ".repeat(width.saturating_sub(cell.width()));
            let (before, after) = if side == Side::Right { (room, String::new()) } else { (String::new(), room) };
            spans.push(Span::raw(before));
            spans.push(Span::styled(cell.text, cell.style));
            spans.push(Span::raw(after + "  "));
        }
        Line::from(spans)
    };
    let heads = line(&mut columns.iter().map(|(head, side, _)| (Cell::from((*head).to_owned()), *side))).dim();
    let body = (0..rows.len()).map(|row| line(&mut columns.iter().map(|(_, side, cells)| (cells[row].clone(), *side))));
    std::iter::once(heads).chain(body).collect()
}

/// The last minute of a figure, from 0 to its largest value.
pub(super) fn spark(values: Option<&VecDeque<f64>>) -> Cell {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let values: Vec<f64> = values.into_iter().flatten().copied().collect();
    let most = values.iter().copied().fold(0.0, f64::max);
    let bar = |pair: &[f64]| {
        let value = pair.iter().copied().fold(0.0, f64::max);
        // What is more than nothing is seen.
        let eighths = if value > 0.0 { (value / most * 8.0).round().clamp(1.0, 8.0) } else { 0.0 };
        BARS[eighths as usize]
    };
    let mut bars: Vec<char> = values.rchunks(2).map(bar).collect();
    bars.resize(SPARKS, ' ');
    Cell::styled(bars.into_iter().rev().collect::<String>(), Color::Cyan)
}
