//! The orders of operators to a directory of models: loads, unloads, rollouts, uploads and removals.
//!
//! An upload is checked before it has its turn. An unload and a removal wait for no load; see [`ModelDirectory`] for
//! what happens when it is full or cancelled.

use std::collections::BTreeSet;

use callboard_config::FoundModel;
use callboard_config::models::settings::ModelSettings;
use callboard_config::models::{route_name, stage_name};
use callboard_core::Rollout;
use callboard_http::{ModelRepository, ModelUpload, RepositoryChange, RepositoryError, RepositoryModel};
use tokio::task::spawn_blocking;

use super::check::check;
use super::look::look_at_model;
use super::served::ModelDirectory;
use super::state::{ModelState, VersionStamp};
use super::upload;

impl ModelRepository for ModelDirectory {
    fn routes(&self) -> Vec<String> {
        self.states().keys().map(|name| route_name(name)).collect()
    }

    fn models(&self) -> Vec<RepositoryModel> {
        let (models, loading) = (self.states(), self.turns.loading());
        // A model in its first load has no state yet.
        let names: BTreeSet<&String> = models.keys().chain(loading.keys()).collect();
        let described = |name: &String| {
            let known = models.get(name).map(|state| state.describe(name, self.served_default(name)));
            let known = known.unwrap_or_else(|| RepositoryModel::without_versions(name));
            RepositoryModel { loading: loading.get(name).copied(), ..known }
        };
        names.into_iter().map(described).collect()
    }

    fn load<'a>(&'a self, route: &'a str) -> RepositoryChange<'a> {
        Box::pin(self.load_now(route))
    }

    fn unload<'a>(&'a self, route: &'a str) -> RepositoryChange<'a> {
        Box::pin(self.unload_now(route))
    }

    fn roll_out<'a>(&'a self, route: &'a str, version: Option<u64>, rollout: Rollout) -> RepositoryChange<'a> {
        Box::pin(self.roll_out_now(route, version, rollout))
    }

    fn stage_of(&self, route: &str, version: Option<u64>) -> Result<String, RepositoryError> {
        let name = route.trim_start_matches('/');
        let state = self.states().get(name).cloned().ok_or(RepositoryError::Unknown)?;
        let source = |message: String| RepositoryError::Source(message);
        let version =
            version.or_else(|| self.served_default(name)).ok_or_else(|| source("it is not served".to_owned()))?;
        if !state.running.contains_key(&version) {
            return Err(RepositoryError::NotServed(version));
        }
        Ok(stage_name(name, version))
    }

    fn max_upload_bytes(&self) -> Option<u64> {
        self.plan.settings.model_uploads.value
    }

    fn begin_upload(&self, name: &str, version: &str) -> Result<ModelUpload, RepositoryError> {
        upload::begin(&self.root, name, version).map_err(RepositoryError::Source)
    }

    fn finish_upload(&self, upload: ModelUpload) -> RepositoryChange<'_> {
        Box::pin(self.finish_now(upload))
    }

    fn remove_version<'a>(&'a self, name: &'a str, version: &'a str) -> RepositoryChange<'a> {
        Box::pin(self.remove_now(name, version))
    }
}

impl ModelDirectory {
    async fn load_now(&self, route: &str) -> Result<(), RepositoryError> {
        let name = route.trim_start_matches('/');
        let found = self.find(name).await?;
        self.update(name, found, true).await
    }

    async fn unload_now(&self, route: &str) -> Result<(), RepositoryError> {
        let name = route.trim_start_matches('/');
        // A model in its first load has no state yet.
        let first = self.turns.loading().contains_key(name).then(ModelState::default);
        let unload = async {
            let mut state = self.states().get(name).cloned().or(first).ok_or(RepositoryError::Unknown)?;
            self.close(name, &mut state).await?;
            state.is_unloaded = true;
            self.keep(name, state);
            Ok(())
        };
        self.turns.at_once(name, unload).await
    }

    /// The version goes on being served under its own route as well.
    async fn roll_out_now(&self, route: &str, version: Option<u64>, rollout: Rollout) -> Result<(), RepositoryError> {
        let name = route.trim_start_matches('/');
        self.turns.after_loads(name, self.roll_out_in_turn(name, version, rollout)).await
    }

    async fn roll_out_in_turn(
        &self,
        name: &str,
        version: Option<u64>,
        rollout: Rollout,
    ) -> Result<(), RepositoryError> {
        let state = self.states().get(name).cloned().ok_or(RepositoryError::Unknown)?;
        let source = |message: String| RepositoryError::Source(message);
        let version = version.ok_or_else(|| source("a rollout needs a version, such as NAME:3".to_owned()))?;
        let running = state.running.get(&version);
        let running = running.ok_or(RepositoryError::NotServed(version))?;
        let route = running.stage.route(&route_name(name)).map_err(|error| source(error.to_string()))?;
        self.node.roll_out(route, rollout).await?;
        Ok(())
    }

    /// Checks a whole file before it has its place, so that a node which starts or watches never sees a broken one.
    async fn finish_now(&self, upload: ModelUpload) -> Result<(), RepositoryError> {
        let (name, version) = (upload.name.clone(), upload.version);
        let found = self.find(&name).await?.unwrap_or_else(|| FoundModel::new(&name));
        let settings = ModelSettings::read(&found, &self.plan.settings);
        let settings = settings.map_err(|error| RepositoryError::Source(error.to_string()))?;
        let file = upload.path().strip_prefix(&self.root).unwrap_or_else(|_| upload.path());
        let plan = self.plan.of_stage(settings.stage(&name, version, file));
        let stamp = VersionStamp::of_upload(upload.path(), &settings);
        let refused = |reason: String| RepositoryError::Source(format!("version {version}: {reason}"));
        {
            let _place = self.turns.place().await;
            check(plan).await.map_err(refused)?;
        }
        let root = self.root.clone();
        let put = spawn_blocking(move || upload::put(&root, upload)).await;
        put.map_err(|panic| RepositoryError::Source(panic.to_string()))?.map_err(refused)?;
        let found = self.find(&name).await?;
        self.turns.load(&name, self.update_in_turn(&name, found, true, stamp.as_ref())).await
    }

    /// Removes its files; what runs of it is closed by the update.
    async fn remove_now(&self, name: &str, version: &str) -> Result<(), RepositoryError> {
        let is_known = self
            .states()
            .get(name)
            .is_some_and(|state| state.describe(name, None).versions.iter().any(|known| known.version == version));
        if !is_known {
            return Err(RepositoryError::Unknown);
        }
        let (root, model, version) = (self.root.clone(), name.to_owned(), version.to_owned());
        let removed = spawn_blocking(move || upload::remove(&root, &model, &version)).await;
        let removed = removed.map_err(|panic| RepositoryError::Source(panic.to_string()))?;
        removed.map_err(RepositoryError::Source)?;
        let found = self.find(name).await?;
        self.turns.at_once(name, self.update_in_turn(name, found, false, None)).await
    }

    async fn find(&self, name: &str) -> Result<Option<FoundModel>, RepositoryError> {
        let (root, name) = (self.root.clone(), name.to_owned());
        let found = spawn_blocking(move || look_at_model(&root, &name)).await;
        found.map_err(|panic| RepositoryError::Source(panic.to_string()))?.map_err(|error| self.unreadable(&error))
    }
}
