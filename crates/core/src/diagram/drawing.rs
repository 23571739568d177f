//! Boxes and arrows, and two languages to write them in.

use std::fmt::Write as _;

/// The kind of a box.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// A stage: a queue and its workers.
    Box,
    /// A beginning, an end, or a place where ways part or meet.
    Round,
    /// A function between stages.
    Slanted,
    /// A choice by content.
    Choice,
    /// An actor.
    Actor,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Drawing {
    frames: Vec<String>,
    boxes: Vec<(usize, Shape, String)>,
    arrows: Vec<(usize, usize, String)>,
    same: Vec<(usize, usize)>,
}

impl Drawing {
    pub(super) fn frame(&mut self, title: &str) -> usize {
        self.frames.push(title.to_owned());
        self.frames.len() - 1
    }

    pub(super) fn boxed(&mut self, frame: usize, shape: Shape, label: &str) -> usize {
        self.boxes.push((frame, shape, label.to_owned()));
        self.boxes.len() - 1
    }

    /// Arrows from all of these to one box.
    pub(super) fn join(&mut self, from: Vec<(usize, String)>, to: usize) {
        self.arrows.extend(from.into_iter().map(|(from, label)| (from, to, label)));
    }

    /// Two boxes that stand for one thing.
    pub(super) fn same(&mut self, one: usize, other: usize) {
        self.same.push((one, other));
    }

    pub(super) fn to_mermaid(&self) -> String {
        let mut text = String::from("flowchart LR\n");
        for (frame, title) in self.frames.iter().enumerate() {
            line(&mut text, format_args!("  subgraph f{frame} [\"{}\"]", mermaid(title)));
            for (id, (_, shape, label)) in self.boxes.iter().enumerate().filter(|(_, boxed)| boxed.0 == frame) {
                let (open, close) = match shape {
                    Shape::Box => ("[", "]"),
                    Shape::Round => ("(", ")"),
                    Shape::Slanted => ("[/", "/]"),
                    Shape::Choice => ("{", "}"),
                    Shape::Actor => ("([", "])"),
                };
                line(&mut text, format_args!("    n{id}{open}\"{}\"{close}", mermaid(label)));
            }
            line(&mut text, format_args!("  end"));
        }
        for (from, to, label) in &self.arrows {
            if label.is_empty() {
                line(&mut text, format_args!("  n{from} --> n{to}"))
            } else {
                line(&mut text, format_args!("  n{from} -->|\"{}\"| n{to}", mermaid(label)))
            }
        }
        for (one, other) in &self.same {
            line(&mut text, format_args!("  n{one} -.- n{other}"));
        }
        text
    }

    pub(super) fn to_dot(&self) -> String {
        let mut text = String::from("digraph callboard {\n  rankdir=LR;\n");
        for (frame, title) in self.frames.iter().enumerate() {
            line(&mut text, format_args!("  subgraph cluster_{frame} {{"));
            line(&mut text, format_args!("    label=\"{}\";", dot(title)));
            for (id, (_, shape, label)) in self.boxes.iter().enumerate().filter(|(_, boxed)| boxed.0 == frame) {
                let shape = match shape {
                    Shape::Box => "box",
                    Shape::Round => "oval",
                    Shape::Slanted => "parallelogram",
                    Shape::Choice => "diamond",
                    Shape::Actor => "hexagon",
                };
                line(&mut text, format_args!("    n{id} [label=\"{}\", shape={shape}];", dot(label)));
            }
            line(&mut text, format_args!("  }}"));
        }
        for (from, to, label) in &self.arrows {
            if label.is_empty() {
                line(&mut text, format_args!("  n{from} -> n{to};"))
            } else {
                line(&mut text, format_args!("  n{from} -> n{to} [label=\"{}\"];", dot(label)))
            }
        }
        for (one, other) in &self.same {
            line(&mut text, format_args!("  n{one} -> n{other} [style=dashed, dir=none, constraint=false];"));
        }
        text.push_str("}\n");
        text
    }
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing into a string does not fail.
    let _ = writeln!(text, "{arguments}");
}

/// A label inside Mermaid's quotes: what would end them, or be read as markup, becomes an entity.
fn mermaid(label: &str) -> String {
    label.chars().fold(String::with_capacity(label.len()), |mut text, character| {
        match character {
            '"' | '#' | '<' | '>' | '&' | '`' | '\\' => text.push_str(&format!("#{};", u32::from(character))),
            character if character.is_control() => text.push(' '),
            character => text.push(character),
        }
        text
    })
}

/// A label inside DOT's quotes.
fn dot(label: &str) -> String {
    label.chars().fold(String::with_capacity(label.len()), |mut text, character| {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            character if character.is_control() => text.push(' '),
            character => text.push(character),
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// No character of a name can end its quotes or its line.
        #[test]
        fn a_label_cannot_end_its_quotes(label in ".*") {
            prop_assert!(!mermaid(&label).contains(['"', '\n', '<', '`']));
            let dotted = dot(&label);
            let mut escaped = false;
            for character in dotted.chars() {
                prop_assert!(escaped || character != '"');
                prop_assert!(!character.is_control());
                escaped = !escaped && character == '\\';
            }
            prop_assert!(!escaped, "the last backslash would swallow the quote");
        }
    }
}
