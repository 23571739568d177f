//! The names in a directory, read as models and versions. Pure.
//!
//! A name that begins with a dot is ignored, and so is a file or directory that does not look like a model: a README, a
//! script, a directory without a version. One that looks like a model and is none is named with its reason.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::super::route::check_path;
use super::{route_name, version_route_name};

/// The model file of a version directory.
pub const MODEL_FILE: &str = "model.onnx";

/// The settings file of a model's directory.
pub const SETTINGS_FILE: &str = "model.toml";

/// The settings of the node, beside the models.
const NODE_FILE: &str = "callboard.toml";

const ONNX: &str = ".onnx";
const TOML: &str = ".toml";

/// The longest name of a model: every file system has room for it with an ending.
pub const MAX_NAME_BYTES: usize = 128;

/// An ONNX file is one protobuf message, which cannot be larger; larger weights lie in files beside it.
const MAX_MODEL_BYTES: u64 = 2 << 30;

/// Whole numbers of TOML and JSON, which clients write.
const MAX_VERSION: u64 = (1 << 53) - 1;

/// One path below the directory of models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A regular file.
    File(FileStamp),
    /// A settings file: its text, or why it cannot be read.
    Settings(Result<String, String>),
    /// A directory with its entries.
    Directory(Listing),
    /// A link to a place outside of the directory of models, or to nothing.
    Outside,
    /// A pipe, a socket, a device, or a directory that cannot be read.
    Other(String),
}

/// The entries of a directory.
pub type Listing = BTreeMap<String, Node>;

/// Tells whether the content of a file changed, without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStamp {
    /// Its size.
    pub bytes: u64,
    /// When it was last written.
    pub modified: Option<SystemTime>,
    /// Its number in the file system: another one after a rename over it. 0 where there is none.
    pub inode: u64,
}

/// A model of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundModel {
    /// Its name.
    pub name: String,
    /// Its settings file and the text in it, or why that cannot be read.
    pub settings: Option<(PathBuf, Result<String, String>)>,
    /// Its versions.
    pub versions: BTreeMap<u64, FoundVersion>,
    /// Entries that look like a version and are none.
    pub refused: Vec<RefusedVersion>,
    /// Why none of it can be served.
    pub problem: Option<String>,
    /// Whether it is the single file `NAME.onnx`.
    pub is_flat: bool,
}

/// A version of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundVersion {
    /// Its model file, relative to the directory of models.
    pub file: PathBuf,
    /// The stamps of its files, weights beside the model included.
    pub files: Vec<(String, FileStamp)>,
    /// Why it cannot be served.
    pub problem: Option<String>,
}

impl FoundVersion {
    /// The bytes of its files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, (_, file)| sum.saturating_add(file.bytes))
    }
}

/// A name that looks like a version and is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedVersion {
    /// The name.
    pub version: String,
    /// The reason.
    pub reason: String,
}

/// The models of the directory `root`, by name.
#[must_use]
pub fn models(root: &Path, listing: &Listing) -> BTreeMap<String, FoundModel> {
    let mut models = BTreeMap::new();
    for (name, node) in visible(listing) {
        let found = match (name.strip_suffix(ONNX), node) {
            (Some(name), node) if !name.is_empty() => Some(flat(root, name, node, listing)),
            (None, Node::Directory(entries)) => versioned(root, name, entries),
            (None, Node::Outside) if !name.contains('.') => {
                Some(FoundModel { problem: Some(LINK_OUT.to_owned()), ..FoundModel::new(name) })
            }
            _ => None,
        };
        let Some(mut found) = found else { continue };
        found.problem = found.problem.or_else(|| check_name(&found.name).err());
        // The directory comes before the file in no order to rely on.
        match models.entry(found.name.clone()) {
            std::collections::btree_map::Entry::Vacant(place) => _ = place.insert(found),
            std::collections::btree_map::Entry::Occupied(mut place) => {
                let (file, directory) = if found.is_flat { (&found, place.get()) } else { (place.get(), &found) };
                let reason = format!("there is a directory `{}`, too; move the file into it", file.name);
                let mut kept = directory.clone();
                kept.refused.push(RefusedVersion { version: format!("{}{ONNX}", file.name), reason });
                place.insert(kept);
            }
        }
    }
    models
}

/// Whether a model may have this name: it is in its routes and in the names of files.
///
/// # Errors
///
/// A name that no model may have; the error has the limit.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.len() > MAX_NAME_BYTES {
        return Err(format!("its name has {} bytes, more than the {MAX_NAME_BYTES} allowed", name.len()));
    }
    if name.starts_with('.') || name.contains('/') || name.ends_with(ONNX) || name.ends_with(TOML) {
        return Err(format!("`{name}` is no name of a model"));
    }
    check_path(&route_name(name)).and_then(|()| check_path(&version_route_name(name, 1)))
}

/// A version number: a whole number from 1, without leading zeros, which would be a second name of the same number.
///
/// # Errors
///
/// A text that is no version; the error says why.
pub fn parse_version(text: &str) -> Result<u64, String> {
    let wrong = || format!("a version is a whole number from 1 to {MAX_VERSION} without leading zeros, not `{text}`");
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    let number = text.parse::<u64>().ok().filter(|number| is_plain && (1..=MAX_VERSION).contains(number));
    number.ok_or_else(wrong)
}

const LINK_OUT: &str = "it is a link to a place outside of the directory of models, or to nothing";

impl FoundModel {
    /// A model without versions.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            settings: None,
            versions: BTreeMap::new(),
            refused: Vec::new(),
            problem: None,
            is_flat: false,
        }
    }
}

fn visible(listing: &Listing) -> impl Iterator<Item = (&String, &Node)> {
    listing.iter().filter(|(name, _)| !name.starts_with('.'))
}

/// The settings of an entry, if it is a file of settings.
fn settings(path: PathBuf, node: Option<&Node>) -> Option<(PathBuf, Result<String, String>)> {
    let text = match node? {
        Node::Settings(text) => text.clone(),
        Node::Outside => Err(LINK_OUT.to_owned()),
        _ => Err("it is not a regular file".to_owned()),
    };
    Some((path, text))
}

fn flat(root: &Path, name: &str, node: &Node, around: &Listing) -> FoundModel {
    let (file_name, settings_name) = (format!("{name}{ONNX}"), format!("{name}{TOML}"));
    let beside = |entry: &&(&String, &Node)| entry.0.starts_with(&file_name);
    let version = FoundVersion {
        file: PathBuf::from(&file_name),
        files: stamps(visible(around).filter(|entry| beside(&entry))),
        problem: problem_of(node),
    };
    // The settings of the node are not those of a model `callboard`: it has its own as a directory.
    let own = around.get(&settings_name).filter(|_| settings_name != NODE_FILE);
    FoundModel {
        settings: settings(root.join(&settings_name), own),
        versions: BTreeMap::from([(1, version)]),
        is_flat: true,
        ..FoundModel::new(name)
    }
}

/// The model of a directory; `None` if nothing in it says that it is one.
fn versioned(root: &Path, name: &str, entries: &Listing) -> Option<FoundModel> {
    let mut model = FoundModel::new(name);
    model.settings = settings(root.join(name).join(SETTINGS_FILE), entries.get(SETTINGS_FILE));
    for (entry, node) in visible(entries) {
        let number = parse_version(entry);
        let refused = match (&number, node) {
            (Ok(number), Node::Directory(files)) => match files.get(MODEL_FILE) {
                Some(file) => {
                    let version = FoundVersion {
                        file: Path::new(name).join(entry).join(MODEL_FILE),
                        files: stamps(visible(files)),
                        problem: problem_of(file),
                    };
                    model.versions.insert(*number, version);
                    continue;
                }
                None => format!("there is no {MODEL_FILE} in it"),
            },
            (Err(reason), Node::Directory(files)) if files.contains_key(MODEL_FILE) => reason.clone(),
            (Ok(_), Node::Outside) => LINK_OUT.to_owned(),
            (Ok(_), Node::Other(reason)) => reason.clone(),
            (Ok(_), _) => format!("expected a directory with a {MODEL_FILE}"),
            (Err(_), Node::File(_)) if entry == MODEL_FILE => {
                format!("a model lies in the directory of its version: {name}/1/{MODEL_FILE}")
            }
            _ => continue,
        };
        model.refused.push(RefusedVersion { version: entry.clone(), reason: refused });
    }
    let is_model = model.settings.is_some() || !model.versions.is_empty() || !model.refused.is_empty();
    is_model.then_some(model)
}

/// Why a model file cannot be one, as far as its name and size tell.
fn problem_of(node: &Node) -> Option<String> {
    match node {
        Node::File(stamp) if stamp.bytes == 0 => Some("the file is empty".to_owned()),
        Node::File(stamp) if stamp.bytes > MAX_MODEL_BYTES => Some(format!(
            "the file has {} bytes, more than the {MAX_MODEL_BYTES} that an ONNX file can have; larger weights lie in \
             files beside it",
            stamp.bytes
        )),
        Node::File(_) => None,
        Node::Outside => Some(LINK_OUT.to_owned()),
        Node::Directory(_) => {
            let problem = "it is a directory, not a file; move the model and its weights up into that of the version";
            Some(problem.to_owned())
        }
        Node::Settings(_) => Some("it is not a regular file".to_owned()),
        Node::Other(reason) => Some(reason.clone()),
    }
}

fn stamps<'a>(entries: impl Iterator<Item = (&'a String, &'a Node)>) -> Vec<(String, FileStamp)> {
    let stamp = |(name, node): (&String, &Node)| match node {
        Node::File(stamp) => Some((name.clone(), stamp.clone())),
        _ => None,
    };
    entries.filter_map(stamp).collect()
}
