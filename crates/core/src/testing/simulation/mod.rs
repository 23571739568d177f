//! A seeded simulation of an app: its real stages, batchers and supervisors on virtual time, under calls, crashes,
//! delays and callers as a seed draws them.
//!
//! [`Simulation`] configures a run, [`faults`] act on each stage, and the [`journal`] records the events.

mod faults;
mod journal;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use callboard_codec::Data;
use futures_util::future::BoxFuture;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use self::faults::{CRASH, Faults, Plan, with_faults};
pub(super) use self::journal::Journal;
pub use self::journal::SimulationRun;
use super::{Chance, TestApp};
use crate::call::CallOptions;
use crate::client::LocalClient;
use crate::clock;
use crate::containment::contain;
use crate::deadline::Deadline;
use crate::error::{CallError, ErrorKind};
use crate::node::{Description, Drained, Node};
use crate::pool::StageState;
use crate::stage::Factory;

/// Far beyond every deadline, in virtual time: a call without an answer by then never gets one.
pub(super) const FOREVER: Duration = Duration::from_secs(3_600);

/// A timer fires up to one tick of the runtime's clock after its time.
const TICK: Duration = Duration::from_millis(1);

/// The largest burst of calls that arrive at one moment.
const BURST: u64 = 40;

/// A simulation of an app with one seed: made by [`TestApp::simulate`], started by [`run`](Self::run).
///
/// Calls arrive at random, some in bursts, and a quarter of them have a deadline below 100 ms. Crashes, delays and
/// callers that leave are simulated if requested. Faults end after the last call. The run fails the test, and names its
/// seed, if
///
/// * a call has no answer, or has it after its deadline;
/// * a call has an error that no fault explains: `InvalidInput`, `Failed`, `Overloaded` and `DeadlineExceeded` are
///   always allowed, `WorkerFailed` only after a simulated crash, others by [`allow`](Self::allow);
/// * a call or its check panics;
/// * something is left at the end: a call in flight, bytes, an entry in a queue, a busy worker;
/// * a stage has given up, or no longer serves after the faults have ended.
///
/// The same seed gives the same run, event by event, if the app's code uses nothing from outside: no unseeded random
/// numbers, no real clock, no threads, no network. Stages run as futures, also after [`TestApp::keep_threads`], and
/// restart as often as they crash. Not simulated: [`StreamStage::worker`](crate::StreamStage::worker), calls of
/// streaming routes, stages that other nodes run.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// use callboard_core::testing::TestApp;
/// use callboard_core::{App, CallError, Stage};
/// use std::time::Duration;
///
/// fn app() -> App {
///     let price = Stage::each("price", |item: &String| Ok(item.len() as u64)).pure().queue(20);
///     App::new().route("/price", price)
/// }
///
/// for seed in 0..20 {
///     let run = TestApp::new(app())
///         .simulate(seed)
///         .calls(
///             "/price",
///             100,
///             |chance| chance.pick(&["pen", "ink"]).to_owned(),
///             |item: &String, outcome: &Result<u64, CallError>| {
///                 // Whatever happens, an answer is this item's.
///                 if let Ok(price) = outcome {
///                     assert_eq!(*price, item.len() as u64);
///                 }
///             },
///         )
///         .crashes("price", 10)
///         .delays("price", Duration::from_millis(20))
///         .callers_leave(10)
///         .run()
///         .await;
///     assert!(run.answered() > 0, "{run}");
/// }
/// # }
/// ```
#[must_use = "nothing happens before it is run"]
pub struct Simulation {
    app: TestApp,
    seed: u64,
    loads: Vec<CallLoad>,
    faults: BTreeMap<String, Plan>,
    leaves: u64,
    allowed: Vec<ErrorKind>,
}

/// The calls of one route.
struct CallLoad {
    route: String,
    calls: usize,
    call: Box<CallFn>,
}

type CallFn = dyn Fn(LocalClient, Chance, CallOptions) -> BoxFuture<'static, Answer> + Send + Sync;

/// The answer of a caller, and the verdict of its check.
struct Answer {
    error: Option<CallError>,
    broken: Option<String>,
}

impl Simulation {
    pub(super) fn new(app: TestApp, seed: u64) -> Self {
        Self { app, seed, loads: Vec::new(), faults: BTreeMap::new(), leaves: 0, allowed: Vec::new() }
    }

    /// This number of calls of a route. `input` draws the input of each call; `check` gets it with its outcome, and
    /// panics if that is wrong.
    pub fn calls<In: Data + Clone, Out: Data + Clone>(
        mut self,
        route: &str,
        calls: usize,
        input: impl Fn(&mut Chance) -> In + Send + Sync + 'static,
        check: impl Fn(&In, &Result<Out, CallError>) + Send + Sync + 'static,
    ) -> Self {
        let (name, check) = (route.to_owned(), Arc::new(check));
        let call = move |client: LocalClient, mut chance: Chance, options: CallOptions| -> BoxFuture<'static, Answer> {
            let (input, route, check) = (input(&mut chance), name.clone(), Arc::clone(&check));
            Box::pin(async move {
                let outcome = client.call_with::<In, Out>(&route, input.clone(), options).await;
                let broken = contain(|| check(&input, &outcome)).err();
                Answer { error: outcome.err(), broken: broken.map(|words| words.to_string()) }
            })
        };
        self.loads.push(CallLoad { route: route.to_owned(), calls, call: Box::new(call) });
        self
    }

    /// One batch in `one_in` kills its worker, half of them after the stage's own code has run.
    pub fn crashes(mut self, stage: &str, one_in: u64) -> Self {
        self.faults.entry(stage.to_owned()).or_default().crashes = one_in;
        self
    }

    /// Each batch takes up to `most` longer, in whole milliseconds.
    pub fn delays(mut self, stage: &str, most: Duration) -> Self {
        self.faults.entry(stage.to_owned()).or_default().delay = most;
        self
    }

    /// One caller in `one_in` leaves within 60 ms.
    pub fn callers_leave(mut self, one_in: u64) -> Self {
        self.leaves = one_in;
        self
    }

    /// Allows errors of this kind, such as those of the app's own code.
    pub fn allow(mut self, kind: ErrorKind) -> Self {
        self.allowed.push(kind);
        self
    }

    /// Runs the simulation, in a test with a paused clock.
    ///
    /// # Panics
    ///
    /// If a promise was broken, with the seed and the last events; if the clock runs or the app does not start; if no
    /// route has a named stage, or that stage cannot be simulated.
    pub async fn run(self) -> SimulationRun {
        expect_a_paused_clock();
        // This thread draws the jitter of back-offs.
        fastrand::seed(self.seed);
        let Self { mut app, seed, loads, faults, leaves, allowed } = self;
        let (journal, has_faults) =
            (Arc::new(Journal::new(seed, format!("TestApp::simulate({seed})"))), Arc::new(AtomicBool::new(true)));
        add_faults(&mut app, seed, &faults, &has_faults, &journal);
        let node = app.start_as_it_is().await.unwrap_or_else(|error| panic!("the app does not start: {error}"));
        let world =
            Arc::new(World { client: node.client(), journal: Arc::clone(&journal), loads, seed, leaves, allowed });

        world.play().await;
        has_faults.store(false, Ordering::Relaxed);
        world.come_to_rest().await;
        world.still_serves().await;
        world.end(node).await;
        journal.take().expect_kept()
    }
}

/// Under a paused clock no time passes while this thread is busy.
pub(super) fn expect_a_paused_clock() {
    let started = clock::now();
    #[expect(clippy::disallowed_methods, reason = "real time has to pass, and a sleep of the runtime may be virtual")]
    std::thread::sleep(Duration::from_millis(1));
    assert!(started == clock::now(), "a simulation needs a paused clock: `#[tokio::test(start_paused = true)]`");
}

fn add_faults(
    app: &mut TestApp,
    seed: u64,
    plans: &BTreeMap<String, Plan>,
    is_on: &Arc<AtomicBool>,
    journal: &Arc<Journal>,
) {
    let mut unknown: Vec<&String> = plans.keys().collect();
    app.map_each_stage(|stage| {
        let name = stage.name();
        let streams_on_a_thread = stage.is_streaming() && matches!(stage.factory(), Factory::Sync(_));
        assert!(!streams_on_a_thread, "stage `{name}` streams from a thread: put a fake in its place");
        unknown.retain(|planned| planned.as_str() != name.as_str());
        let plan = plans.get(name.as_str()).copied().unwrap_or_default();
        with_faults(stage, Arc::new(Faults::new(name, plan, seed, is_on, journal)))
    });
    assert!(unknown.is_empty(), "no route has a stage {unknown:?}");
}

/// One call, as drawn from the seed.
#[derive(Clone, Copy, Debug)]
struct CallPlan {
    number: usize,
    load: usize,
    timeout: Option<Duration>,
    leaves_after: Option<Duration>,
}

/// A running simulation.
struct World {
    client: LocalClient,
    journal: Arc<Journal>,
    loads: Vec<CallLoad>,
    seed: u64,
    leaves: u64,
    allowed: Vec<ErrorKind>,
}

impl World {
    /// Makes all calls, and waits for their answers.
    async fn play(self: &Arc<Self>) {
        let started = clock::now();
        let mut players = JoinSet::new();
        for (at, plan) in self.plans() {
            sleep_until(started + at).await;
            players.spawn(Arc::clone(self).call(plan));
        }
        let all = async {
            while let Some(played) = players.join_next().await {
                if let Err(error) = played {
                    self.journal.violation(format_args!("a call has no end: {error}"));
                }
            }
        };
        if timeout(FOREVER, all).await.is_err() {
            self.journal.violation(format_args!("{} calls have no answer", players.len()));
        }
        let (ended, made) = (self.journal.ended(), self.loads.iter().map(|load| load.calls).sum::<usize>());
        if ended != made {
            self.journal.violation(format_args!("{made} calls were made, and {ended} had an end"));
        }
    }

    /// The calls in the order of their arrival.
    fn plans(&self) -> Vec<(Duration, CallPlan)> {
        let mut plans = Vec::new();
        for (load, CallLoad { calls, .. }) in self.loads.iter().enumerate() {
            let mut chance = Chance::for_thing(self.seed, &[0, load as u64]);
            let mean = Duration::from_millis(chance.pick(&[1, 5, 20]));
            let (mut at, mut made) = (Duration::ZERO, 0);
            while made < *calls {
                at += Duration::from_millis(chance.gap(mean).as_millis() as u64);
                let together = if chance.one_in(25) { chance.within(2..BURST) as usize } else { 1 };
                for _ in 0..together.min(calls - made) {
                    let timeout = chance.one_in(4).then(|| chance.millis(1..100));
                    let leaves_after = chance.one_in(self.leaves).then(|| chance.millis(0..60));
                    plans.push((at, CallPlan { number: 0, load, timeout, leaves_after }));
                    made += 1;
                }
            }
        }
        plans.sort_by_key(|(at, _)| *at);
        plans.iter_mut().enumerate().for_each(|(number, (_, plan))| plan.number = number);
        plans
    }

    async fn call(self: Arc<Self>, plan: CallPlan) {
        let CallPlan { number, load, timeout: patience, leaves_after } = plan;
        let deadline = patience.map(|patience| clock::now() + patience);
        let CallLoad { route, call, .. } = &self.loads[load];
        let journal = &self.journal;
        journal.event(format_args!("call {number}: {route}"));
        let options = deadline.map_or_else(CallOptions::new, |at| CallOptions::new().with_deadline(Deadline::at(at)));
        let answer = call(self.client.clone(), Chance::for_thing(self.seed, &[1, number as u64]), options);
        let answer = match leaves_after {
            None => answer.await,
            Some(patience) => match timeout(patience, answer).await {
                Ok(answer) => answer,
                Err(_) => return journal.left(number),
            },
        };
        journal.answered(number, answer.error.as_ref().map(CallError::kind));
        if let Some(late) = deadline.and_then(|deadline| clock::now().checked_duration_since(deadline + TICK))
            && !late.is_zero()
        {
            journal.violation(format_args!("call {number}: its answer comes {:?} after its deadline", late + TICK));
        }
        if let Some(error) = answer.error.filter(|error| !self.is_explained(error)) {
            journal.violation(format_args!("call {number}: {error}"));
        }
        if let Some(broken) = answer.broken {
            journal.violation(format_args!("call {number}: {broken}"));
        }
    }

    fn is_explained(&self, error: &CallError) -> bool {
        use ErrorKind::{DeadlineExceeded, Failed, InvalidInput, Overloaded, WorkerFailed};
        match error.kind() {
            InvalidInput | Failed | Overloaded | DeadlineExceeded => true,
            WorkerFailed if error.message().contains(CRASH) => true,
            kind => self.allowed.contains(&kind),
        }
    }

    /// After every caller has an answer or left, nothing may remain: at once, except entries that wait for a worker
    /// that restarts.
    async fn come_to_rest(&self) {
        let end = clock::now() + FOREVER;
        while !left(&self.client.describe()).is_empty() && clock::now() < end {
            sleep(Duration::from_millis(10)).await;
        }
        let description = self.client.describe();
        left(&description).into_iter().for_each(|what| self.journal.violation(what));
        let Description { admitted, outcomes, .. } = description;
        if admitted != outcomes {
            self.journal.violation(format_args!("{admitted} calls were let in, and {outcomes} had an outcome"));
        }
    }

    /// Checks that each route answers one more call without faults.
    async fn still_serves(&self) {
        for (index, CallLoad { route, call, .. }) in self.loads.iter().enumerate() {
            let answer =
                call(self.client.clone(), Chance::for_thing(self.seed, &[2, index as u64]), CallOptions::new()).await;
            if let Some(broken) = answer.broken {
                self.journal.violation(format_args!("{route} after the faults: {broken}"));
            }
            let Some(error) = answer.error else { continue };
            let never = matches!(error.kind(), ErrorKind::WorkerFailed | ErrorKind::DeadlineExceeded);
            if never || !self.is_explained(&error) || error.is_refusal() {
                self.journal.violation(format_args!("{route} does not serve after the faults: {error}"));
            }
        }
    }

    async fn end(&self, node: Node) {
        let drained = node.shutdown(Duration::from_secs(60)).await;
        if drained != Drained::Completely {
            self.journal.violation(format_args!("nothing was in flight, and the node ends as {drained:?}"));
        }
    }
}

/// The parts that are not at rest.
fn left(description: &Description) -> Vec<String> {
    let mut found = Vec::new();
    let Description { in_flight, in_flight_bytes, stages, .. } = description;
    if (*in_flight, *in_flight_bytes) != (0, 0) {
        found.push(format!("{in_flight} calls with {in_flight_bytes} bytes are left in flight"));
    }
    for stage in stages {
        let name = &stage.health.name;
        let busy = stage.replicas.iter().filter(|replica| replica.busy).count();
        if stage.queued > 0 || busy > 0 {
            found
                .push(format!("stage {name}: {} entries are left in its queue, {busy} workers are busy", stage.queued));
        }
        if stage.health.state == StageState::Failed {
            found.push(format!("stage {name} has given up: {}", stage.health.reason.as_deref().unwrap_or_default()));
        }
    }
    found
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation").field("app", &self.app).field("seed", &self.seed).finish_non_exhaustive()
    }
}
