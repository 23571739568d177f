//! The configuration file as a tree in which every key and value has its line.
//!
//! Only this file knows the TOML parser. The other files ask a [`Section`] for keys, and get an error with place, key
//! and expectation.

use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Place};
use super::form::{Form, Raw};
use super::nearest::Hint;
use super::source::{Source, Sourced};

/// A parsed file.
#[derive(Debug)]
pub(crate) struct Document<'a> {
    path: &'a Path,
    text: &'a str,
    root: DeTable<'a>,
    has_defaults: bool,
}

impl<'a> Document<'a> {
    /// Parses `text`; `path` is for messages only.
    pub(crate) fn parse(path: &'a Path, text: &'a str) -> Result<Self, ConfigError> {
        match DeTable::parse(text) {
            Ok(root) => Ok(Self { path, text, root: root.into_inner(), has_defaults: false }),
            Err(error) => {
                let line = line_of(text, error.span().map_or(0, |span| span.start));
                let place = Place::File { path: path.into(), line, part: Box::default() };
                Err(ConfigError::Syntax { place, message: one_line(error.message()) })
            }
        }
    }

    /// The same for reading `[models.defaults]`: its values say that they come from there.
    pub(crate) fn of_defaults(self) -> Self {
        Self { has_defaults: true, ..self }
    }

    /// The whole file.
    pub(crate) fn root(&self) -> Section<'_> {
        Section { document: self, part: String::new(), table: &self.root, line: 1 }
    }
}

/// One table of the file.
#[derive(Clone, Debug)]
pub(crate) struct Section<'d> {
    document: &'d Document<'d>,
    /// Its name in messages: `limits`, ``stage `digits` ``.
    part: String,
    table: &'d DeTable<'d>,
    line: usize,
}

/// One key of a table with its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry<'d> {
    document: &'d Document<'d>,
    part: String,
    span: Range<usize>,
    pub(crate) value: &'d DeValue<'d>,
    pub(crate) line: usize,
}

impl<'d> Section<'d> {
    /// The same table under another name in messages.
    pub(crate) fn called(mut self, part: String) -> Self {
        self.part = part;
        self
    }

    /// The place of an error about the whole table.
    pub(crate) fn place(&self) -> Place {
        self.document.place(self.line, &self.part)
    }

    /// Its keys, in the order in which they stand in the file.
    pub(crate) fn keys(&self) -> Vec<&'d str> {
        let mut keys: Vec<_> = self.table.keys().collect();
        keys.sort_by_key(|key| key.span().start);
        keys.into_iter().map(|key| key.get_ref().as_ref()).collect()
    }

    /// Its keys with their values, in the same order.
    pub(crate) fn entries(&self) -> Vec<Entry<'d>> {
        self.keys().into_iter().filter_map(|key| self.get(key)).collect()
    }

    /// Fails on the first key that is not among `known`.
    pub(crate) fn deny_unknown(&self, known: &[&str]) -> Result<(), ConfigError> {
        match self.keys().into_iter().find(|key| !known.contains(key)) {
            None => Ok(()),
            Some(key) => Err(ConfigError::UnknownKey {
                place: self.document.place(self.line_of(key), &self.part),
                key: key.to_owned(),
                hint: Hint::new(key, known.iter().copied()),
            }),
        }
    }

    /// The key, if the table has it.
    pub(crate) fn get(&self, key: &str) -> Option<Entry<'d>> {
        let value = self.table.get(key)?;
        Some(Entry {
            document: self.document,
            part: join(&self.part, key),
            span: value.span(),
            value: value.get_ref(),
            line: self.line_of(key),
        })
    }

    /// The table under this key, if it exists.
    pub(crate) fn section(&self, key: &str) -> Result<Option<Self>, ConfigError> {
        self.get(key).map(|entry| entry.section()).transpose()
    }

    /// The tables of the array under this key; empty without the key.
    pub(crate) fn sections(&self, key: &str) -> Result<Vec<Self>, ConfigError> {
        self.get(key).map_or(Ok(Vec::new()), |entry| entry.sections())
    }

    /// The value of a required key, as text.
    pub(crate) fn require_text(&self, key: &'static str, expected: &str) -> Result<Sourced<String>, ConfigError> {
        self.get(key).ok_or_else(|| self.missing(key, expected))?.text(expected)
    }

    /// The error for a missing required key.
    pub(crate) fn missing(&self, key: &'static str, expected: &str) -> ConfigError {
        ConfigError::MissingKey { place: self.place(), key, expected: expected.to_owned() }
    }

    /// The error for a table with the name of an earlier one.
    pub(crate) fn duplicate(&self, what: &'static str, key: &str, earlier: &Sourced<String>) -> ConfigError {
        let place = self.get(key).map_or_else(|| self.place(), |entry| entry.place());
        let first = match earlier.source {
            Source::File { line } | Source::ModelDefaults { line } => line,
            Source::Flag(_) | Source::Env(_) | Source::Target | Source::Default => 0,
        };
        ConfigError::Duplicate { place, what, name: earlier.value.clone(), first }
    }

    /// The value of a key in this form, if the key exists.
    pub(crate) fn read<F: Form>(&self, key: &str, form: &F) -> Result<Option<Sourced<F::Value>>, ConfigError> {
        self.get(key).map(|entry| entry.read(form)).transpose()
    }

    /// The keys that are not among `taken`, as a separate table.
    pub(crate) fn without(&self, excluded: &[&str]) -> DeTable<'d> {
        let rest = self.table.iter().filter(|(key, _)| !excluded.contains(&key.get_ref().as_ref()));
        rest.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// The place of an error at this offset of the file, inside this table: its line and the key around it.
    pub(crate) fn place_at(&self, offset: usize) -> Place {
        let part = self.key_at(offset).map_or_else(|| self.part.clone(), |key| join(&self.part, key));
        self.document.place(line_of(self.document.text, offset), &part)
    }

    /// The key of this table around this offset of the file.
    pub(crate) fn key_at(&self, offset: usize) -> Option<&str> {
        let mut keys = self.table.iter();
        let around = keys.find(|(key, value)| key.span().start <= offset && offset < value.span().end);
        around.map(|(key, _)| &**key.get_ref())
    }

    fn line_of(&self, key: &str) -> usize {
        let offset = self.table.get_key_value(key).map_or(0, |(key, _)| key.span().start);
        line_of(self.document.text, offset)
    }
}

impl<'d> Entry<'d> {
    /// The place of an error about this value.
    pub(crate) fn place(&self) -> Place {
        self.document.place(self.line, &self.part)
    }

    /// The place of the value inside of this one at `path`, such as `[1].cases.large`.
    pub(crate) fn place_inside(&self, path: &str) -> Place {
        self.find(&format!("{}{path}", self.part)).map_or_else(|| self.place(), |found| found.place())
    }

    fn find(&self, part: &str) -> Option<Self> {
        if self.part == part {
            return Some(self.clone());
        }
        let inner = self.elements("").or_else(|_| self.section().map(|table| table.entries()));
        inner.ok()?.iter().find_map(|inner| inner.find(part))
    }

    /// The source of a value from here.
    pub(crate) fn source(&self) -> Source {
        if self.document.has_defaults {
            Source::ModelDefaults { line: self.line }
        } else {
            Source::File { line: self.line }
        }
    }

    /// The value as it is written in the file.
    pub(crate) fn written(&self) -> &'d str {
        self.document.text.get(self.span.clone()).unwrap_or_default()
    }

    /// The error for a value other than `expected`.
    pub(crate) fn bad(&self, expected: impl Into<String>) -> ConfigError {
        let found = Raw::Toml(self.value).found();
        ConfigError::BadValue { place: self.place(), expected: expected.into(), found }
    }

    /// The value as a whole number.
    pub(crate) fn integer(&self) -> Option<u64> {
        Raw::Toml(self.value).integer()
    }

    /// A whole number in a table of bounds.
    pub(crate) fn bound(&self, key: &str) -> Option<u64> {
        Raw::Toml(self.value.as_table()?.get(key)?.get_ref()).integer()
    }

    pub(crate) fn read<F: Form>(&self, form: &F) -> Result<Sourced<F::Value>, ConfigError> {
        match form.read(Raw::Toml(self.value)) {
            Some(value) => Ok(Sourced::new(value, self.source())),
            None => Err(self.bad(form.expected())),
        }
    }

    /// The value as text that is not empty.
    pub(crate) fn text(&self, expected: &str) -> Result<Sourced<String>, ConfigError> {
        match self.value.as_str() {
            Some(text) if !text.is_empty() => Ok(Sourced::new(text.to_owned(), self.source())),
            _ => Err(self.bad(expected)),
        }
    }

    /// The elements of an array.
    pub(crate) fn elements(&self, expected: &str) -> Result<Vec<Self>, ConfigError> {
        let array = self.value.as_array().ok_or_else(|| self.bad(expected))?;
        let element = |(index, value): (usize, &'d toml::Spanned<DeValue<'d>>)| Self {
            document: self.document,
            part: format!("{}[{index}]", self.part),
            span: value.span(),
            value: value.get_ref(),
            line: line_of(self.document.text, value.span().start),
        };
        Ok(array.iter().enumerate().map(element).collect())
    }

    /// The value as a table.
    pub(crate) fn section(&self) -> Result<Section<'d>, ConfigError> {
        let table = self.value.as_table().ok_or_else(|| self.bad("a table"))?;
        Ok(Section { document: self.document, part: self.part.clone(), table, line: self.line })
    }

    fn sections(&self) -> Result<Vec<Section<'d>>, ConfigError> {
        let expected = format!("tables, each headed [[{}]]", self.part);
        self.elements(&expected)?.iter().map(Self::section).collect()
    }
}

impl Document<'_> {
    fn place(&self, line: usize, part: &str) -> Place {
        Place::File { path: self.path.into(), line, part: part.into() }
    }
}

fn join(part: &str, key: &str) -> String {
    match part {
        "" => key.to_owned(),
        // ``stage `digits`: model`` reads better than a dot after the backtick.
        part if part.ends_with('`') => format!("{part}: {key}"),
        part => format!("{part}.{key}"),
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = text.get(..offset).unwrap_or(text);
    before.matches('\n').count() + 1
}

/// Joins the lines of a parser message into one.
pub(crate) fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::form::Count;
    use super::*;

    fn parse(text: &str) -> Result<Document<'_>, ConfigError> {
        Document::parse(Path::new("callboard.toml"), text)
    }

    #[test]
    fn a_syntax_error_is_one_line_with_its_position() {
        let error = parse("[limits]\ntimeout = \n").unwrap_err().to_string();
        assert!(error.starts_with("callboard.toml:2: "), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn an_unknown_key_names_line_table_and_the_nearest_key() {
        let document = parse("[limits]\n\ntimout = \"1s\"\n").unwrap();
        let limits = document.root().section("limits").unwrap().unwrap();
        let error = limits.deny_unknown(&["timeout", "drain"]).unwrap_err();
        assert_eq!(error.to_string(), "callboard.toml:3: limits: unknown key `timout`; did you mean `timeout`?");
    }

    #[test]
    fn the_first_unknown_key_in_the_file_is_named() {
        let document = parse("zebra = 1\napple = 2\n").unwrap();
        let error = document.root().deny_unknown(&["known"]).unwrap_err();
        assert_eq!(error.to_string(), "callboard.toml:1: unknown key `zebra`; known: known");
    }

    #[test]
    fn a_bad_value_names_line_key_expectation_and_found_value() {
        let document = parse("[[stage]]\nname = \"a\"\nreplicas = 0\n").unwrap();
        let stage = document.root().sections("stage").unwrap().remove(0).called("stage `a`".to_owned());
        let error = stage.read("replicas", &Count(1..=8)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "callboard.toml:3: stage `a`: replicas: expected a whole number from 1 to 8, found 0"
        );
    }

    #[test]
    fn a_table_instead_of_an_array_of_tables_is_refused() {
        let document = parse("[stage]\nname = \"a\"\n").unwrap();
        let error = document.root().sections("stage").unwrap_err();
        assert_eq!(
            error.to_string(),
            "callboard.toml:1: stage: expected tables, each headed [[stage]], found a value of type table"
        );
    }
}
