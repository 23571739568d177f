//! The seam behind models that are loaded and unloaded while the node serves: a source of models.
//!
//! The edge knows routes, not how they are made. The admin listener lists, loads and unloads the models of a repository
//! under `/v1/models`, the Open Inference Protocol under `/v2/repository`.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use callboard_core::{ChangeError, Rollout};
use serde::Serialize;

/// A change of the served routes in progress.
///
/// # Cancellation
///
/// Dropping it before it took effect undoes it.
pub type RepositoryChange<'a> = Pin<Box<dyn Future<Output = Result<(), RepositoryError>> + Send + 'a>>;

/// Makes routes by name while the node serves.
pub trait ModelRepository: fmt::Debug + Send + Sync + 'static {
    /// The routes that it can make, served or not. A model with versions has one, `/NAME`; its versions have routes
    /// `/NAME/versions/V` of their own, which are not listed.
    fn routes(&self) -> Vec<String>;

    /// Its models in the order of their names, with the models that cannot be served. Default: none of them has
    /// versions.
    fn models(&self) -> Vec<RepositoryModel> {
        let mut models: Vec<_> = self.routes().iter().map(|route| RepositoryModel::without_versions(route)).collect();
        models.sort_by(|one, other| one.name.cmp(&other.name));
        models
    }

    /// Serves a route. A served route is made again, and replaced when the new one is warm. No call fails because of
    /// it. Of a model with versions, only the changed versions are made again.
    fn load<'a>(&'a self, route: &'a str) -> RepositoryChange<'a>;

    /// Closes a route, of a model with versions the routes of all of them. Its calls finish. A route that is not served
    /// stays so.
    fn unload<'a>(&'a self, route: &'a str) -> RepositoryChange<'a>;

    /// Begins a rollout of a served route: made again, or of this version of its model. Default: refused.
    fn roll_out<'a>(&'a self, route: &'a str, version: Option<u64>, rollout: Rollout) -> RepositoryChange<'a> {
        let _ = (route, version, rollout);
        Box::pin(async { Err(RepositoryError::Source("this repository has no rollouts".to_owned())) })
    }

    /// The stage of a served model, or of this version of it, whose replicas are to change. Default: refused.
    ///
    /// # Errors
    ///
    /// A model or version that is not served.
    fn stage_of(&self, _route: &str, _version: Option<u64>) -> Result<String, RepositoryError> {
        let message = "its stages are those of a file; `POST /v1/stages/NAME/replicas` scales each of them";
        Err(RepositoryError::Source(message.to_owned()))
    }

    /// The most bytes of a model file that operators may upload. Default: it takes none.
    fn max_upload_bytes(&self) -> Option<u64> {
        None
    }

    /// A place for the file of a version, beside the models. It blocks.
    ///
    /// # Errors
    ///
    /// A name or version that cannot be one, or a file that cannot be made.
    fn begin_upload(&self, _name: &str, _version: &str) -> Result<ModelUpload, RepositoryError> {
        Err(RepositoryError::Unknown)
    }

    /// Checks the whole file, puts it into its place, and serves it if its model's settings say so.
    fn finish_upload(&self, _upload: ModelUpload) -> RepositoryChange<'_> {
        Box::pin(std::future::ready(Err(RepositoryError::Unknown)))
    }

    /// Closes the route of a version, and removes its files.
    fn remove_version<'a>(&'a self, _name: &'a str, _version: &'a str) -> RepositoryChange<'a> {
        Box::pin(std::future::ready(Err(RepositoryError::Unknown)))
    }
}

/// The file of a version while it arrives, in a directory of its own. Dropped before it has its place, it is removed.
#[derive(Debug)]
pub struct ModelUpload {
    /// The model.
    pub name: String,
    /// The version.
    pub version: u64,
    directory: PathBuf,
    path: PathBuf,
    file: File,
}

impl ModelUpload {
    /// A new file `VERSION/file` in the new directory `directory`: as deep as at its place, with nothing beside it. It
    /// is locked as long as this process writes it.
    ///
    /// # Errors
    ///
    /// Errors of the file system; there must be no such directory.
    pub fn create(name: &str, version: u64, directory: PathBuf, file: &str) -> io::Result<Self> {
        fs::create_dir(&directory)?;
        let parent = directory.join(version.to_string());
        let path = parent.join(file);
        let opened = fs::create_dir(parent).and_then(|()| File::options().write(true).create_new(true).open(&path));
        match opened {
            Ok(file) => {
                // It tells that this process is alive. A file system without locks has none.
                let _ = file.try_lock();
                Ok(Self { name: name.to_owned(), version, directory, path, file })
            }
            Err(error) => {
                let _ = fs::remove_dir_all(directory);
                Err(error)
            }
        }
    }

    /// Appends to the file. It blocks.
    ///
    /// # Errors
    ///
    /// Errors of the file system, such as a full disk.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the file to its place, which may have an earlier one. After a loss of power it is there as a whole or not
    /// at all. It blocks.
    ///
    /// # Errors
    ///
    /// Errors of the file system. The place is unchanged, unless only the last step fails, which makes the move outlast
    /// a loss of power.
    pub fn put(self, place: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, place)?;
        match place.parent() {
            #[cfg(unix)]
            Some(parent) => File::open(parent)?.sync_all(),
            _ => Ok(()),
        }
    }
}

impl Drop for ModelUpload {
    fn drop(&mut self) {
        // After `put` it is empty.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A model of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RepositoryModel {
    /// Its name: its route without the leading slash.
    pub name: String,
    /// The version behind its own route, if it has versions and one of them is served.
    pub default_version: Option<u64>,
    /// Its versions, numbers first.
    pub versions: Vec<RepositoryVersion>,
    /// The reason why the model as a whole cannot be served, if there is one.
    pub reason: Option<String>,
    /// How long its load has taken so far, while there is one.
    pub loading: Option<Duration>,
}

impl RepositoryModel {
    /// The model of a route without versions.
    #[must_use]
    pub fn without_versions(route: &str) -> Self {
        let name = route.trim_start_matches('/').to_owned();
        Self { name, default_version: None, versions: Vec::new(), reason: None, loading: None }
    }
}

/// A version of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RepositoryVersion {
    /// Its number, or the name that is no number.
    pub version: String,
    /// Whether its route is open.
    pub served: bool,
    /// Why it is not served, or what is wrong although it is.
    pub reason: Option<String>,
}

/// Why a route was not loaded or unloaded. The served routes are unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepositoryError {
    /// The repository does not know the route.
    #[error("there is no such model in the repository")]
    Unknown,
    /// The repository knows the model, but does not serve this version of it.
    #[error("version {0} is not served")]
    NotServed(u64),
    /// The route cannot be made: the configuration or the model is wrong. Other versions of the model
    /// may have changed.
    #[error("{0}")]
    Source(String),
    /// The node refuses the change.
    #[error(transparent)]
    Change(#[from] ChangeError),
}
