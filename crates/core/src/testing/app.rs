//! An app for its tests, with fakes in the place of stages.

use std::sync::Arc;

use callboard_codec::Data;

use super::Simulation;
use crate::app::App;
use crate::node::{Node, StartError};
use crate::stage::{Stage, StageSpec, StreamStage};

/// An app for its tests: the same routes and limits, with other stages where a test replaces them.
///
/// All stages run as tasks, so a test with a paused clock (`#[tokio::test(start_paused = true)]`) waits for no timeout:
/// while no task can run, the clock jumps to the next timer. A [`StreamStage::worker`] keeps its thread; the clock
/// stands still while the thread works, and goes on while it waits for its reader. Code that blocks on a runtime, such
/// as with a [`BlockingClient`](crate::BlockingClient), panics in a task, and waits forever on a thread that holds the
/// clock: [keep the threads](Self::keep_threads) for it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use callboard_core::testing::TestApp;
/// use callboard_core::{App, ErrorKind, Failure, Stage};
///
/// fn app() -> App {
///     let price = Stage::each("price", |item: &String| Ok(item.len() as u64)).timeout(Duration::from_secs(5));
///     let with_tax = Stage::each("tax", |price: &u64| Ok(price * 12 / 10));
///     App::new().route("/price", callboard_core::Pipeline::from(price).then(with_tax))
/// }
///
/// // A price of 100 for every item.
/// let fake = Stage::each("price", |_: &String| Ok(100_u64));
/// let node = TestApp::new(app()).replace(fake).start().await?;
/// assert_eq!(node.client().call::<_, u64>("/price", "pen".to_owned()).await?, 120);
///
/// // A stage that never answers: its timeout passes at once.
/// let fake = Stage::each_async("price", |_: std::sync::Arc<String>| std::future::pending::<Result<u64, Failure>>());
/// let node = TestApp::new(app()).replace(fake.timeout(Duration::from_secs(5))).start().await?;
/// let error = node.client().call::<_, u64>("/price", "pen".to_owned()).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "it does nothing until it is started"]
pub struct TestApp {
    app: App,
    keeps_threads: bool,
}

impl TestApp {
    /// The app as it is served.
    pub fn new(app: App) -> Self {
        Self { app, keeps_threads: false }
    }

    /// Lets stages run on threads as they do in the program. Do not pause the clock then.
    pub fn keep_threads(mut self) -> Self {
        self.keeps_threads = true;
        self
    }

    /// Replaces the stage of the same name in all routes. The fake brings its own settings.
    ///
    /// # Panics
    ///
    /// If no route has a stage of this name, or that stage has other types.
    pub fn replace<In: Data, Out: Data>(self, fake: Stage<In, Out>) -> Self {
        self.put(fake.spec())
    }

    /// The same for a stage that answers one input with many outputs.
    ///
    /// # Panics
    ///
    /// As [`replace`](Self::replace).
    pub fn replace_streaming<In: Data, Out: Data>(self, fake: StreamStage<In, Out>) -> Self {
        self.put(fake.spec())
    }

    fn put(mut self, fake: &Arc<StageSpec>) -> Self {
        let mut is_used = false;
        self.map_stages(|stage| {
            if stage.name() != fake.name() {
                return Arc::clone(stage);
            }
            is_used = true;
            assert_eq!(
                stage.is_streaming(),
                fake.is_streaming(),
                "stage `{fake}` and its fake both stream, or none of them"
            );
            let (real, other) = (stage.types(), fake.types());
            assert!(real == other, "stage `{fake}` turns {real}, and its fake {other}");
            Arc::clone(fake)
        });
        assert!(is_used, "no route has a stage `{fake}`");
        self
    }

    /// Starts the node on the current runtime.
    ///
    /// # Errors
    ///
    /// As [`App::start`].
    pub async fn start(mut self) -> Result<Node, StartError> {
        if !self.keeps_threads {
            self.map_each_stage(StageSpec::for_virtual_time);
        }
        self.app.start().await
    }

    /// A simulation of this app: calls, faults and callers as the seed draws them, on virtual time.
    pub fn simulate(self, seed: u64) -> Simulation {
        Simulation::new(self, seed)
    }

    /// Maps each stage once: routes that share a stage share the mapped stage.
    pub(super) fn map_each_stage(&mut self, mut map: impl FnMut(&StageSpec) -> StageSpec) {
        let mut mapped: Vec<(Arc<StageSpec>, Arc<StageSpec>)> = Vec::new();
        self.map_stages(|stage| {
            if let Some((_, other)) = mapped.iter().find(|(known, _)| Arc::ptr_eq(known, stage)) {
                return Arc::clone(other);
            }
            let other = Arc::new(map(stage));
            mapped.push((Arc::clone(stage), Arc::clone(&other)));
            other
        });
    }

    pub(super) async fn start_as_it_is(self) -> Result<Node, StartError> {
        self.app.start().await
    }

    fn map_stages(&mut self, mut map: impl FnMut(&Arc<StageSpec>) -> Arc<StageSpec>) {
        for route in self.app.routes_mut() {
            route.graph = route.graph.map(&mut map);
        }
    }
}
