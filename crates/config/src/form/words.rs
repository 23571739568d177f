//! Forms of words: paths, the places of keys, names for people, filters of the log.

use std::path::{Path, PathBuf};

use super::{AUTO, Form, NONE, Raw};

/// The path of a file, or `none`. The file is opened later.
#[derive(Clone, Debug)]
pub(crate) struct FilePath;

impl Form for FilePath {
    type Value = Option<PathBuf>;

    fn read(&self, raw: Raw<'_>) -> Option<Option<PathBuf>> {
        match raw.text()? {
            "" => None,
            NONE => Some(None),
            path => Some(Some(PathBuf::from(path))),
        }
    }

    fn expected(&self) -> String {
        format!("the path of a file, or \"{NONE}\"")
    }

    fn show(&self, value: &Option<PathBuf>) -> String {
        value.as_ref().map_or_else(|| NONE.to_owned(), |path| path.display().to_string())
    }
}

/// Some of these names: a list, or text with commas; `none` for none of them.
#[derive(Clone, Debug)]
pub(crate) struct Names(pub(crate) &'static [&'static str]);

impl Form for Names {
    type Value = Vec<String>;

    fn read(&self, raw: Raw<'_>) -> Option<Vec<String>> {
        let names = raw.texts()?;
        let is_known = |(index, name): (usize, &&str)| self.0.contains(name) && !names[..index].contains(name);
        names.iter().enumerate().all(is_known).then(|| names.into_iter().map(str::to_owned).collect())
    }

    fn expected(&self) -> String {
        format!("\"{NONE}\", or some of {}", self.0.join(", "))
    }

    fn show(&self, value: &Vec<String>) -> String {
        if value.is_empty() { NONE.to_owned() } else { value.join(",") }
    }
}

/// The source of API keys: a file, `env:NAME` for an environment variable, or `none`. A key itself must not be on a
/// command line, which every process of the machine can read.
#[derive(Clone, Debug)]
pub(crate) struct KeysFrom;

/// The source of secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// A file.
    File(PathBuf),
    /// A variable of the environment.
    Variable(String),
}

pub(super) const VARIABLE: &str = "env:";

impl SecretSource {
    /// The variable that a setting with this text reads a secret from.
    #[must_use]
    pub fn variable(text: &str) -> Option<&str> {
        // Anything else may be the secret itself.
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        text.strip_prefix(VARIABLE).filter(|name| is_name(name))
    }
}

impl Form for KeysFrom {
    type Value = Option<SecretSource>;

    fn read(&self, raw: Raw<'_>) -> Option<Option<SecretSource>> {
        let text = raw.text()?;
        match SecretSource::variable(text) {
            None if text.starts_with(VARIABLE) => None,
            Some(name) => Some(Some(SecretSource::Variable(name.to_owned()))),
            None => Some(FilePath.read(Raw::Text(text))?.map(SecretSource::File)),
        }
    }

    fn expected(&self) -> String {
        format!("the path of a file, \"{VARIABLE}NAME\" for a variable of the environment, or \"{NONE}\"")
    }

    fn show(&self, value: &Option<SecretSource>) -> String {
        match value {
            None => NONE.to_owned(),
            Some(SecretSource::File(path)) => path.display().to_string(),
            Some(SecretSource::Variable(name)) => format!("{VARIABLE}{name}"),
        }
    }
}

/// Where the state of keyed actors is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateStoreAt {
    /// A file beside what the node serves.
    Auto,
    /// Memory: it ends with the node.
    Memory,
    /// This file.
    File(PathBuf),
    /// The PostgreSQL server whose connection string this variable has, which may be a secret.
    Server(String),
}

fn is_no_file(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let is_path = ["/", "./"].iter().any(|begin| text.starts_with(begin));
    let is_connection = text.contains("://") || !is_path && (text.contains('=') || text.starts_with("postgres"));
    is_connection || [AUTO, MEMORY].iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// The form of a [`StateStoreAt`].
#[derive(Clone, Debug)]
pub(crate) struct StoreForm;

const MEMORY: &str = "memory";

impl Form for StoreForm {
    type Value = StateStoreAt;

    fn read(&self, raw: Raw<'_>) -> Option<StateStoreAt> {
        match KeysFrom.read(raw)? {
            // The word for no file.
            None => None,
            Some(SecretSource::Variable(name)) => Some(StateStoreAt::Server(name)),
            Some(SecretSource::File(path)) if path.as_os_str() == AUTO => Some(StateStoreAt::Auto),
            Some(SecretSource::File(path)) if path.as_os_str() == MEMORY => Some(StateStoreAt::Memory),
            // A connection string with its password, or a word of this form with another case.
            Some(SecretSource::File(path)) if is_no_file(&path) => None,
            Some(SecretSource::File(path)) => Some(StateStoreAt::File(path)),
        }
    }

    fn expected(&self) -> String {
        format!(
            "\"{AUTO}\", the path of a file, \"{VARIABLE}NAME\" for a variable with the connection string of a \
             PostgreSQL server, or \"{MEMORY}\""
        )
    }

    fn show(&self, value: &StateStoreAt) -> String {
        match value {
            StateStoreAt::Auto => AUTO.to_owned(),
            StateStoreAt::Memory => MEMORY.to_owned(),
            StateStoreAt::File(path) => path.display().to_string(),
            StateStoreAt::Server(variable) => format!("{VARIABLE}{variable}"),
        }
    }
}

/// Names of a model: a list of different ones.
#[derive(Clone, Debug)]
pub(crate) struct ModelNames;

/// More names are a mistake, and each of them is in the list of models.
const MAX_MODEL_NAMES: usize = 32;

impl Form for ModelNames {
    type Value = Vec<String>;

    fn read(&self, raw: Raw<'_>) -> Option<Vec<String>> {
        let Raw::Toml(value) = raw else { return None };
        let is_name = |name: &&str| (1..=128).contains(&name.len()) && !name.contains(char::is_control);
        let names = value.as_array()?.iter().map(|name| name.get_ref().as_str().filter(is_name).map(str::to_owned));
        let names: Vec<String> = names.collect::<Option<_>>()?;
        let is_new = |(index, name): (usize, &String)| !names[..index].contains(name);
        (names.len() <= MAX_MODEL_NAMES && names.iter().enumerate().all(is_new)).then_some(names)
    }

    fn expected(&self) -> String {
        format!("a list of at most {MAX_MODEL_NAMES} different names of a model, such as [\"gpt-4o-mini\"]")
    }

    fn show(&self, value: &Vec<String>) -> String {
        if value.is_empty() { NONE.to_owned() } else { value.join(",") }
    }
}

/// A name or version for people: one short line, or `auto` for the default.
#[derive(Clone, Debug)]
pub(crate) struct Label;

/// A longer title would be a description.
const MAX_LABEL_CHARS: usize = 100;

impl Form for Label {
    type Value = Option<String>;

    fn read(&self, raw: Raw<'_>) -> Option<Option<String>> {
        let text = raw.text()?;
        if text == AUTO {
            return Some(None);
        }
        let is_line = !text.trim().is_empty() && !text.chars().any(char::is_control);
        (is_line && text.chars().count() <= MAX_LABEL_CHARS).then(|| Some(text.to_owned()))
    }

    fn expected(&self) -> String {
        format!("\"{AUTO}\" or one line of at most {MAX_LABEL_CHARS} characters")
    }

    fn show(&self, value: &Option<String>) -> String {
        value.clone().unwrap_or_else(|| AUTO.to_owned())
    }
}

/// The log lines to write: a level, or `target=level` pairs, separated by commas.
///
/// A single word that is no level is refused. Other parsers take it for a target at its most verbose level, so a
/// misspelt `inof` would silence the log.
#[derive(Clone, Debug)]
pub(crate) struct LogFilter;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

impl Form for LogFilter {
    type Value = String;

    fn read(&self, raw: Raw<'_>) -> Option<String> {
        let text = raw.text()?;
        text.split(',').all(is_directive).then(|| text.to_owned())
    }

    fn expected(&self) -> String {
        "a log filter of levels (off, error, warn, info, debug, trace), such as \"info\" or \"warn,callboard=debug\""
            .to_owned()
    }

    fn show(&self, value: &String) -> String {
        value.clone()
    }
}

fn is_directive(text: &str) -> bool {
    let is_target = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let (target, level) = text.split_once('=').unwrap_or(("any", text));
    !target.is_empty() && target.chars().all(is_target) && LEVELS.contains(&level)
}

/// The format of lines on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people: short and coloured at a terminal.
    Text,
    /// One JSON object per line.
    Json,
}
