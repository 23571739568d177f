//! The check of a model file before this node loads it or gives it its place: a child loads it and warms it up.
//!
//! A file can end the process that loads it, fill its memory, or never come to an end. In the child this costs the
//! child: it is a replica of the isolated stage of the model, with its limits of memory and time.

#[cfg(feature = "process")]
use std::time::Duration;

use callboard_config::Plan;
#[cfg(feature = "process")]
use callboard_core::App;
use tokio::task::spawn_blocking;

use super::served::build_stage;
#[cfg(feature = "process")]
use callboard_config::Replicas;

/// A child that does not stop is killed.
#[cfg(feature = "process")]
const END_GRACE: Duration = Duration::from_secs(1);

/// Whether the model of this plan's only stage is loaded and runs.
///
/// # Errors
///
/// The error of the model, in the words of its stage.
#[cfg(feature = "process")]
pub(super) async fn check(mut plan: Plan) -> Result<(), String> {
    let stage = &mut plan.stages[0];
    stage.kind.isolate();
    stage.replicas.value = Replicas::fixed(1);
    let build = move || build_stage(plan).and_then(|stage| stage.route("/checked").map_err(|error| error.to_string()));
    let route = spawn_blocking(build).await.map_err(|panic| panic.to_string())??;
    let node = App::new().mount(route).start().await.map_err(|error| error.to_string())?;
    let _ = node.shutdown(END_GRACE).await;
    Ok(())
}

/// Without processes there is none beside this one.
#[cfg(not(feature = "process"))]
pub(super) async fn check(plan: Plan) -> Result<(), String> {
    spawn_blocking(move || build_stage(plan).map(drop)).await.map_err(|panic| panic.to_string())?
}
