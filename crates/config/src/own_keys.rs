//! Reads the keys that belong to a stage's kind into the type its crate declares for them.
//!
//! The crates know neither files nor lines; they declare a serde struct that denies unknown fields. Its field names are
//! read from serde first, so that an unknown key of a kind gets the same answer as any other unknown key.

use callboard_http_client::without_credentials;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor, value::Error as PlainError};
use serde::forward_to_deserialize_any;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::document::{Section, one_line};
use super::error::ConfigError;

/// Reads the keys of `section` that are not in `common`.
pub(crate) fn read<T: DeserializeOwned>(section: &Section<'_>, common: &[&str]) -> Result<T, ConfigError> {
    read_with(section, common, None, None)
}

/// The same with a key that the section does not have and must not have: its value comes from elsewhere. A key that is
/// not there is taken from `defaults`, whose own errors were found before.
pub(crate) fn read_with<T: DeserializeOwned>(
    section: &Section<'_>,
    common: &[&str],
    given: Option<(&'static str, &str)>,
    defaults: Option<DeTable<'_>>,
) -> Result<T, ConfigError> {
    let is_given = |key: &&str| given.is_some_and(|(given, _)| given == *key);
    let known: Vec<&str> = common.iter().chain(fields_of::<T>()).copied().filter(|key| !is_given(key)).collect();
    section.deny_unknown(&known)?;
    let mut table = section.without(common);
    for (key, value) in defaults.into_iter().flatten() {
        if section.get(key.get_ref()).is_none() {
            // Its place is in another file.
            table.insert(Spanned::new(0..0, key.into_inner()), Spanned::new(0..0, value.into_inner()));
        }
    }
    if let Some((key, text)) = given {
        table.insert(Spanned::new(0..0, key.into()), Spanned::new(0..0, DeValue::String(text.into())));
    }
    let table = DeValue::Table(table);
    T::deserialize(ValueDeserializer::from(Spanned::new(0..0, table))).map_err(|error| {
        // The table made above has no place in the file; an error about the whole table belongs to the section.
        let at = error.span().filter(|span| !span.is_empty()).map(|span| span.start);
        let place = at.map_or_else(|| section.place(), |at| section.place_at(at));
        let has_secrets = at.and_then(|at| section.key_at(at)).is_some_and(|key| SECRET_KEYS.contains(&key));
        ConfigError::Rejected { place, message: without_secrets(one_line(error.message()), has_secrets) }
    })
}

/// Keys whose values may be secrets, whatever they look like.
const SECRET_KEYS: [&str; 3] = ["command", "env", "settings"];

/// A message about a value of a wrong type, or out of range. Credentials in a text are not shown, and where there may
/// be secrets, nothing of the value but its type.
fn without_secrets(message: String, has_secrets: bool) -> String {
    let parts = FOUND.iter().find_map(|words| message.split_once(words).map(|(before, rest)| (before, *words, rest)));
    let Some((before, words, rest)) = parts else { return message };
    let Some((found, expected)) = rest.rsplit_once(EXPECTED) else { return message };
    let found = match found.split_once(['"', '`']) {
        Some((kind, _)) if has_secrets => kind.trim_end().to_owned(),
        Some((kind, text)) if found.ends_with('"') => {
            format!("{kind}\"{}\"", without_credentials(text.trim_end_matches('"')))
        }
        _ => found.to_owned(),
    };
    format!("{before}{words}{found}{EXPECTED}{expected}")
}

/// What serde says before a value that it refuses, and after it.
const FOUND: [&str; 2] = ["invalid type: ", "invalid value: "];
const EXPECTED: &str = ", expected ";

/// The names of a struct's fields, as its `Deserialize` announces them.
fn fields_of<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    // The probe always ends in an error, after it has seen the names.
    let _ = T::deserialize(FieldNames { fields: &mut fields });
    fields
}

struct FieldNames<'p> {
    fields: &'p mut &'static [&'static str],
}

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = PlainError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, PlainError> {
        *self.fields = fields;
        Err(PlainError::custom("a probe reads nothing"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, PlainError> {
        Err(PlainError::custom("the keys of a kind are a struct"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use serde::Deserialize;

    use super::super::document::Document;
    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct TestKeys {
        width: u32,
        #[serde(default)]
        layout: Layout,
        #[serde(default)]
        env: BTreeMap<String, String>,
        #[serde(default)]
        command: Vec<String>,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "snake_case")]
    enum Layout {
        #[default]
        Nchw,
        Nhwc,
    }

    fn read_own(text: &str) -> Result<TestKeys, String> {
        let document = Document::parse(Path::new("f.toml"), text).unwrap();
        let stage = document.root().sections("stage").unwrap().remove(0).called("stage `a`".to_owned());
        read(&stage, &["name"]).map_err(|error| error.to_string())
    }

    #[test]
    fn the_other_keys_of_the_table_are_read() {
        let own = read_own("[[stage]]\nname = \"a\"\nwidth = 8\nlayout = \"nhwc\"\n").unwrap();
        assert_eq!((own.width, own.layout), (8, Layout::Nhwc));
    }

    #[test]
    fn an_unknown_key_of_a_kind_is_reported_like_any_other() {
        let error = read_own("[[stage]]\nname = \"a\"\nwidth = 8\nlayot = \"nhwc\"\n").unwrap_err();
        assert_eq!(error, "f.toml:4: stage `a`: unknown key `layot`; did you mean `layout`?");
        let error = read_own("[[stage]]\nnam = \"a\"\nwidth = 8\n").unwrap_err();
        assert_eq!(error, "f.toml:2: stage `a`: unknown key `nam`; did you mean `name`?");
    }

    #[test]
    fn a_wrong_type_names_line_and_key() {
        let error = read_own("[[stage]]\nname = \"a\"\n\nwidth = \"8\"\n").unwrap_err();
        assert_eq!(error, "f.toml:4: stage `a`: width: invalid type: string \"8\", expected u32");
        let error = read_own("[[stage]]\nname = \"a\"\nwidth = 8\nlayout = \"nhcw\"\n").unwrap_err();
        assert_eq!(error, "f.toml:4: stage `a`: layout: unknown variant `nhcw`, expected `nchw` or `nhwc`");
    }

    #[test]
    fn a_value_that_may_be_a_secret_is_not_shown() {
        for (line, expected) in [
            ("env = \"TOKEN=hunter2\"", "env: invalid type: string, expected a map"),
            ("env = { TOKEN = 4711 }", "env: invalid type: integer, expected a string"),
            ("command = \"run --token \\\"hunter2, expected\"", "command: invalid type: string, expected a sequence"),
            ("width = \"http://me:hunter2@host\"", "width: invalid type: string \"http://…@host\", expected u32"),
        ] {
            let error = read_own(&format!("[[stage]]\nname = \"a\"\n{line}\n")).unwrap_err();
            assert_eq!(error, format!("f.toml:3: stage `a`: {expected}"));
        }
    }

    #[test]
    fn a_missing_key_names_the_stage() {
        let error = read_own("[[stage]]\nname = \"a\"\n").unwrap_err();
        assert_eq!(error, "f.toml:1: stage `a`: missing field `width`");
    }
}
