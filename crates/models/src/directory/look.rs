//! Reads the names in a directory of models. No model is opened, so that a look is cheap and may be repeated.
//!
//! * **Full:** more entries than a directory of models has are an error, before they take memory.
//! * **Links** are followed inside of the directory, and lead nowhere outside of it.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use callboard_codec::edited_text;

use callboard_config::models::listing::{Listing, Node, SETTINGS_FILE, models};
use callboard_config::{FileStamp, FoundModel};

/// The most entries of all directories together.
const MAX_ENTRIES: usize = 100_000;

/// A longer settings file is none.
const MAX_SETTINGS_BYTES: u64 = 64 << 10;

/// The models in this directory, by name.
///
/// # Errors
///
/// A directory that cannot be read, or has too many entries. A subdirectory that cannot be read is a model or version
/// with that reason.
pub fn look(root: &Path) -> io::Result<BTreeMap<String, FoundModel>> {
    look_at(root, &|_| true)
}

/// One model in this directory, if it is there.
pub(super) fn look_at_model(root: &Path, name: &str) -> io::Result<Option<FoundModel>> {
    let is_of_model = |entry: &str| {
        // Weights of a flat file begin with its name: `NAME.onnx.data`.
        let rest = entry.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest == ".toml" || rest.starts_with(".onnx"))
    };
    Ok(look_at(root, &is_of_model)?.remove(name))
}

fn look_at(root: &Path, is_wanted: &dyn Fn(&str) -> bool) -> io::Result<BTreeMap<String, FoundModel>> {
    let mut look = Look { root: fs::canonicalize(root)?, entries: 0 };
    let listing = look.directory(root, 0, is_wanted)?;
    Ok(models(root, &listing))
}

struct Look {
    /// The directory without links.
    root: PathBuf,
    entries: usize,
}

impl Look {
    /// The entries of a directory at this depth: models, versions, files.
    fn directory(&mut self, path: &Path, depth: usize, is_wanted: &dyn Fn(&str) -> bool) -> io::Result<Listing> {
        let mut listing = Listing::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') || !is_wanted(&name) {
                continue;
            }
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                return Err(io::Error::other(format!("it has more than {MAX_ENTRIES} entries")));
            }
            // It may be gone since the directory was read.
            if let Some(node) = self.node(&entry.path(), &name, depth)? {
                listing.insert(name, node);
            }
        }
        Ok(listing)
    }

    fn node(&mut self, path: &Path, name: &str, depth: usize) -> io::Result<Option<Node>> {
        let Ok(own) = fs::symlink_metadata(path) else { return Ok(None) };
        if own.is_symlink() && !fs::canonicalize(path).is_ok_and(|target| target.starts_with(&self.root)) {
            return Ok(Some(Node::Outside));
        }
        let Ok(metadata) = fs::metadata(path) else { return Ok(None) };
        let is_settings = if depth == 0 { name.ends_with(".toml") } else { depth == 1 && name == SETTINGS_FILE };
        Ok(Some(if metadata.is_file() && is_settings {
            Node::Settings(settings(path).map_err(|error| error.to_string()))
        } else if metadata.is_file() {
            Node::File(stamp(&metadata))
        } else if metadata.is_dir() {
            match depth {
                0 | 1 => self.below(path, depth + 1)?,
                // Below a version only the file of the model counts; a directory is none.
                _ => Node::Directory(Listing::new()),
            }
        } else {
            Node::Other("it is not a regular file".to_owned())
        }))
    }

    /// A subdirectory. An unreadable one does not hide the others.
    fn below(&mut self, path: &Path, depth: usize) -> io::Result<Node> {
        match self.directory(path, depth, &|_| true) {
            Ok(listing) => Ok(Node::Directory(listing)),
            Err(error) if self.entries > MAX_ENTRIES => Err(error),
            Err(error) => Ok(Node::Other(format!("it cannot be read: {error}"))),
        }
    }
}

fn settings(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_SETTINGS_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_SETTINGS_BYTES {
        return Err(io::Error::other(format!("it has more than the {MAX_SETTINGS_BYTES} bytes allowed")));
    }
    Ok(edited_text(&text).into_owned())
}

pub(super) fn stamp(metadata: &Metadata) -> FileStamp {
    #[cfg(unix)]
    let inode = std::os::unix::fs::MetadataExt::ino(metadata);
    #[cfg(not(unix))]
    let inode = 0;
    FileStamp { bytes: metadata.len(), modified: metadata.modified().ok(), inode }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A directory that is removed at the end.
    pub(in crate::directory) struct Temporary(pub(in crate::directory) PathBuf);

    impl Temporary {
        pub(in crate::directory) fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("callboard-look-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        pub(in crate::directory) fn write(&self, path: &str, content: &[u8]) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_has_another_print_after_it_was_written_or_replaced() {
        let directory = Temporary::new("stamps");
        let files = || look(&directory.0).unwrap()["a"].versions[&1].files.clone();
        directory.write("a/1/model.onnx", b"one");
        let first = files();
        assert_eq!((first.clone(), first[0].1.bytes), (files(), 3));
        directory.write("new", b"two");
        fs::rename(directory.0.join("new"), directory.0.join("a/1/model.onnx")).unwrap();
        assert_ne!(files(), first);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_followed_inside_of_the_directory_only() {
        use std::os::unix::fs::symlink;

        let (directory, outside) = (Temporary::new("links"), Temporary::new("outside"));
        outside.write("1/model.onnx", b"secret");
        directory.write("a/1/model.onnx", b"x");
        let at = |path: &str| directory.0.join(path);
        symlink("1", at("a/2")).unwrap();
        symlink(outside.0.join("1"), at("a/3")).unwrap();
        symlink(&outside.0, at("b")).unwrap();
        symlink("../outside", at("dangling")).unwrap();
        fs::create_dir_all(at("c/1")).unwrap();
        symlink(outside.0.join("1/model.onnx"), at("c/1/model.onnx")).unwrap();
        let found = look(&directory.0).unwrap();
        assert_eq!(found["a"].versions.keys().collect::<Vec<_>>(), [&1, &2]);
        assert!(found["a"].refused[0].reason.contains("outside"), "{:?}", found["a"].refused);
        for name in ["b", "dangling"] {
            assert!(found[name].problem.as_ref().unwrap().contains("outside"), "{:?}", found[name]);
        }
        assert!(found["c"].versions[&1].problem.as_ref().unwrap().contains("outside"));
    }

    #[test]
    fn one_model_is_looked_at_alone() {
        let directory = Temporary::new("alone");
        for path in ["a.onnx", "a.onnx.data", "ab.onnx", "b/1/model.onnx"] {
            directory.write(path, b"x");
        }
        let all = look(&directory.0).unwrap();
        assert_eq!(all.len(), 3);
        for name in ["a", "ab", "b"] {
            assert_eq!(look_at_model(&directory.0, name).unwrap().as_ref(), all.get(name));
        }
        assert_eq!(look_at_model(&directory.0, "c").unwrap(), None);
    }

    #[test]
    fn settings_that_are_too_long_are_named() {
        let directory = Temporary::new("settings");
        directory.write("a/1/model.onnx", b"x");
        directory.write("a/model.toml", "#".repeat(70_000).as_bytes());
        let found = look(&directory.0).unwrap();
        let (_, text) = found["a"].settings.clone().unwrap();
        assert!(text.unwrap_err().contains("65536"));
    }
}
