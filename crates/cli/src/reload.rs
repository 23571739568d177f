//! `callboard serve --reload`: builds the routes again when a file of the app changes.
//!
//! * **Full:** one load at a time; changes during a load are one further load.
//! * **Broken:** the routes stay as they are, and the log has the reason in one line.
//! * **Cancelled:** a load that has not taken effect is undone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use callboard_config::{Plan, Target};
use callboard_models::ConfiguredRoutes;
use tokio::task::spawn_blocking;

use crate::log_lines::LogLines;

/// How often the files are looked at.
const INTERVAL: Duration = Duration::from_millis(500);

/// When each file was last written.
pub(crate) type Files = BTreeMap<PathBuf, SystemTime>;

/// The files whose change counts: the target, and the Python files beside and below it.
#[derive(Clone, Debug)]
pub(crate) struct WatchedFiles {
    base: PathBuf,
    target: PathBuf,
}

impl WatchedFiles {
    pub(crate) fn of(plan: &Plan) -> Self {
        let target = match &plan.target {
            Target::File { path, .. } | Target::Model { path } => path.clone(),
            Target::Models { .. } | Target::Program { .. } => PathBuf::new(),
        };
        Self { base: plan.target.base().to_owned(), target }
    }

    fn look(&self) -> Files {
        let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
        let mut files = python_files(&self.base);
        files.extend(modified(&self.target).map(|modified| (self.target.clone(), modified)));
        files
    }
}

#[cfg(feature = "process")]
fn python_files(base: &Path) -> Files {
    callboard_process::python_files(base)
}

#[cfg(not(feature = "process"))]
fn python_files(_: &Path) -> Files {
    Files::new()
}

/// Watches the files until it is dropped. `served` are the files that the running routes were built from.
pub(crate) async fn watch(files: WatchedFiles, mut served: Files, routes: Arc<ConfiguredRoutes>, lines: LogLines) {
    let mut before = served.clone();
    loop {
        tokio::time::sleep(INTERVAL).await;
        let Some(now) = look(files.clone()).await else { return };
        // A program that writes several files has finished.
        if now != served && now == before {
            served.clone_from(&now);
            match routes.load_all().await {
                Ok(()) => lines.note("the files have changed: the routes are built again"),
                Err(error) => tracing::error!("the files have changed, and the earlier routes serve on: {error}"),
            }
        }
        before = now;
    }
}

/// Looks at the files now.
pub(crate) async fn look(files: WatchedFiles) -> Option<Files> {
    spawn_blocking(move || files.look()).await.ok()
}
