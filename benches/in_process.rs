//! The cost of a call inside one process: through gateway, router, batcher and worker, next to hand-written loops.
//!
//! Run with `cargo bench --bench in_process`. Every figure is measured in the same run as what it is compared with, in
//! interleaved rounds; the best round of each side counts, because on a shared machine noise only ever adds.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and panics on an error")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use callboard::actor::keyed::{Answers, KeyContext, KeyedSpec, Stored};
use callboard::actor::{Actor, ActorContext, ActorSpec, Question, ReplyPort};
use callboard::testing::MemoryStore;
use callboard::{App, Batch, Failure, LocalClient, Node, Pipeline, Stage};
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

const ROUNDS: usize = 5;
const CALLERS: u64 = 64;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        // In a separate task: a call from `block_on`'s thread would pay for a wake-up across threads.
        tokio::spawn(latency_at_one_caller()).await.unwrap();
        tokio::spawn(throughput_at_many_callers()).await.unwrap();
        tokio::spawn(composition_at_one_caller()).await.unwrap();
        tokio::spawn(streams_and_calls()).await.unwrap();
        tokio::spawn(batches_at_saturation()).await.unwrap();
        tokio::spawn(asks_of_actors()).await.unwrap();
        tokio::spawn(restarts_under_load()).await.unwrap();
        tokio::spawn(descriptions_of_a_node()).await.unwrap();
    });
}

/// Call latency at one caller: task stages with and without batching, two stages, and a thread stage compared with a
/// bare wake-up.
async fn latency_at_one_caller() {
    let echo = |name: &str| Stage::each(name, |n: &u64| Ok(*n));
    let single = start(echo("echo")).await;
    let batching = start(echo("echo").max_batch_size(32)).await;
    let two_stages = start_pipeline(Pipeline::from(echo("one")).then(echo("two"))).await;
    let thread = start(echo("echo").on_threads()).await;
    let wake = BareThread::spawn();
    let channel = hand_written_loop(32);

    let mut best = [Latency::MAX; 6];
    for _ in 0..ROUNDS {
        best[0].update(measure_calls(&single.client()).await);
        best[1].update(measure_calls(&batching.client()).await);
        best[2].update(measure_calls(&two_stages.client()).await);
        best[3].update(measure(|n| channel_call(&channel, n)).await);
        best[4].update(measure_calls(&thread.client()).await);
        best[5].update(measure(|n| wake.round_trip(n)).await);
    }
    println!("\none caller                                p50 µs   p99 µs");
    let names = [
        "task stage",
        "task stage, max_batch_size = 32",
        "two task stages",
        "hand-written mpsc + oneshot loop",
        "thread stage",
        "bare wake-up of a thread and back",
    ];
    for (name, latency) in names.iter().zip(&best) {
        println!("  {name:<38} {:>7.2}  {:>7.2}", latency.p50, latency.p99);
    }
    println!("  batching penalty when idle             ratio {:.2}", best[1].p50 / best[0].p50);
    println!("  one more stage adds                    {:.2} µs", best[2].p50 - best[0].p50);
    println!(
        "  thread stage over task stage adds      {:.2} × a bare wake-up",
        (best[4].p50 - best[0].p50) / best[5].p50
    );
}

/// Calls per second at 64 callers, next to a hand-written batching loop.
async fn throughput_at_many_callers() {
    let task = start(Stage::each("echo", |n: &u64| Ok(*n)).max_batch_size(64)).await;
    let thread = start(Stage::each("echo", |n: &u64| Ok(*n)).max_batch_size(64).on_threads()).await;
    let channel = hand_written_loop(64);
    let mut best = [0.0f64; 4];
    for _ in 0..ROUNDS {
        let client = task.client();
        best[0] = best[0].max(calls_per_second(move |n| call(client.clone(), n)).await);
        let client = thread.client();
        best[1] = best[1].max(calls_per_second(move |n| call(client.clone(), n)).await);
        let plain = channel.clone();
        best[2] = best[2].max(calls_per_second(move |n| channel_call_owned(plain.clone(), n)).await);
        let timed = channel.clone();
        best[3] = best[3].max(calls_per_second(move |n| channel_call_in_time(timed.clone(), n)).await);
    }
    println!("\n{CALLERS} callers                                calls/s    of the hand-written loop");
    let names =
        ["task stage", "thread stage", "hand-written mpsc + oneshot loop", "the same with a timeout for each call"];
    for (name, rate) in names.iter().zip(best) {
        println!("  {name:<38} {rate:>8.0}    {:.2}", rate / best[2]);
    }
    println!("  mean batch of the task stage           {:.1}", mean_batch(&task));
}

/// The cost of composition at one caller: a stage, a switch and an ensemble of no-ops.
async fn composition_at_one_caller() {
    let echo = |name: &str| Pipeline::from(Stage::each(name, |n: &u64| Ok(*n)));
    let switch = Pipeline::switch("by_parity", |n: &u64| Ok((n % 2) as usize), vec![echo("even"), echo("odd")]);
    let ensemble = Pipeline::ensemble_of((0..5).map(|n| echo(&format!("echo{n}"))));
    let ensemble = ensemble.map("first", |outputs: &Vec<u64>| Ok(outputs[0]));
    let nodes = [
        start_pipeline(echo("echo")).await,
        start_pipeline(echo("one").then(echo("two"))).await,
        start_pipeline(switch).await,
        start_pipeline(ensemble).await,
    ];

    let mut best = [Latency::MAX; 4];
    for _ in 0..ROUNDS {
        for (best, node) in best.iter_mut().zip(&nodes) {
            best.update(measure_calls(&node.client()).await);
        }
    }
    println!("\ncomposition, one caller                  p50 µs   p99 µs   over one stage");
    for (name, latency) in ["one stage", "two stages", "switch over one stage", "ensemble of five"].iter().zip(&best) {
        let added = latency.p50 - best[0].p50;
        println!("  {name:<38} {:>7.2}  {:>7.2}  {added:>7.2}", latency.p50, latency.p99);
    }
}

/// An ordered stream compared with plain calls at the same concurrency: as many callers as the stream looks ahead.
async fn streams_and_calls() {
    println!("\nordered stream and plain calls             calls/s   stream/s   time, stream over calls");
    let echo = |max: usize| Stage::each("echo", |n: &u64| Ok(*n)).max_batch_size(max);
    let work = |max: usize| {
        let stage = Stage::batch("model", |batch: Batch<u64>| {
            spin(Duration::from_micros(200));
            batch.iter().map(|n| Ok(*n)).collect()
        });
        stage.max_batch_size(max).on_threads()
    };
    let cases = [
        ("no-op, batches of 64", 64, 4000, echo(64)),
        ("no-op, one by one", 64, 2000, echo(1)),
        ("no-op on a thread, batches of 64", 64, 4000, echo(64).on_threads()),
        ("200 µs a batch, batches of 16", 32, 200, work(16)),
    ];
    for (name, concurrency, calls, stage) in cases {
        let node = start(stage).await;
        let mut best = [0.0f64; 2];
        for _ in 0..ROUNDS {
            let client = node.client();
            best[0] = best[0].max(rate(concurrency, calls, move |n| call(client.clone(), n)).await);
            best[1] = best[1].max(stream_rate(&node.client(), concurrency as usize, concurrency * calls).await);
        }
        let [plain, stream] = best;
        println!("  {name:<38} {plain:>9.0}  {stream:>9.0}   {:.2}", plain / stream);
    }
}

async fn stream_rate(client: &LocalClient, look_ahead: usize, calls: u64) -> f64 {
    let begin = Instant::now();
    let mut numbers = client.stream::<_, u64>("/echo", 0..calls).unwrap().look_ahead(look_ahead);
    let mut expected = 0;
    while let Some(n) = numbers.next().await {
        assert_eq!(n.unwrap(), expected);
        expected += 1;
    }
    assert_eq!(expected, calls);
    calls as f64 / begin.elapsed().as_secs_f64()
}

/// The mean batch size when work takes a millisecond per batch and callers wait.
async fn batches_at_saturation() {
    println!("\nsaturation, 1 ms per batch               mean batch   of what the callers allow");
    for (callers, max) in [(64u64, 32usize), (64, 64), (16, 32)] {
        let stage = Stage::batch("model", |batch: Batch<u64>| {
            spin(Duration::from_millis(1));
            batch.iter().map(|n| Ok(*n)).collect()
        });
        let node = start(stage.max_batch_size(max).on_threads()).await;
        let client = node.client();
        let _ = rate(callers, 500, move |n| call(client.clone(), n)).await;
        let allowed = (callers as usize).min(max) as f64;
        let mean = mean_batch(&node);
        println!("  {callers} callers, max_batch_size = {max:<12}  {mean:>6.1}       {:.2}", mean / allowed);
    }
}

/// Echoes numbers: an actor of its own, or one for each key.
struct EchoActor;

/// The question for one.
#[derive(Serialize, Deserialize)]
struct Echo(u64);

impl Question for Echo {
    const NAME: &str = "echo";
    type Answer = u64;
}

impl Actor for EchoActor {
    type Message = (u64, ReplyPort<u64>);

    async fn handle(&mut self, (n, answer): Self::Message, _: &ActorContext<Self>) -> Result<(), Failure> {
        answer.send(n);
        Ok(())
    }
}

impl Answers<Echo> for Stored<u64> {
    async fn answer(&mut self, Echo(n): Echo, _: &KeyContext) -> Result<u64, Failure> {
        Ok(n)
    }
}

/// Questions to actors of this node: by a typed reference, by a name, and to the actor of a key.
async fn asks_of_actors() {
    let within = Duration::from_secs(30);
    let plain = ActorSpec::new("echo", |_| EchoActor).accepts(|Echo(n), answer| (n, answer));
    let reference = plain.reference();
    let keyed = KeyedSpec::new("echo", Arc::new(MemoryStore::new()), |_, n: Stored<u64>| async { Ok(n) });
    let node = App::new().actor(plain).keyed(keyed.accepts::<Echo>()).start().await.unwrap();
    let (named, keys) = (node.remote_actor("echo"), node.keyed("echo"));
    let mut best = [Latency::MAX; 3];
    for _ in 0..ROUNDS {
        best[0].update(measure(|n| reference.ask(within, move |answer| (n, answer)).map(Result::unwrap)).await);
        best[1].update(measure(|n| named.ask(within, Echo(n)).map(Result::unwrap)).await);
        best[2].update(measure(|n| keys.ask("ann", within, Echo(n)).map(Result::unwrap)).await);
    }
    println!("\nquestions to actors of this node          p50 µs   p99 µs   over the first");
    for (name, latency) in ["by a typed reference", "by a name", "by a kind and a key"].iter().zip(&best) {
        println!("  {name:<38} {:>7.2}  {:>7.2}  {:.2}", latency.p50, latency.p99, latency.p50 / best[0].p50);
    }
}

/// The time from the panic of the only replica to the first answer of the next one.
async fn restarts_under_load() {
    std::panic::set_hook(Box::new(|_| {}));
    println!("\nrestart after a panic                      p50 ms    p99 ms");
    let fragile = || {
        Stage::each("fragile", |n: &u64| {
            assert_ne!(*n, u64::MAX);
            Ok(*n)
        })
    };
    for (name, stage) in [("task stage", fragile()), ("thread stage", fragile().on_threads())] {
        let node = start(stage).await;
        let client = node.client();
        let mut millis = Vec::new();
        for n in 0..300 {
            assert!(client.call::<u64, u64>("/echo", u64::MAX).await.is_err());
            let begin = Instant::now();
            assert_eq!(call(client.clone(), n).await, n);
            millis.push(begin.elapsed().as_nanos() as f64 / 1e6);
        }
        millis.sort_unstable_by(f64::total_cmp);
        println!("  {name:<38} {:>7.2}   {:>7.2}", millis[millis.len() / 2], millis[millis.len() * 99 / 100]);
    }
    let _ = std::panic::take_hook();
}

/// The cost of describing a node with ten stages of four replicas and a thousand calls in flight.
async fn descriptions_of_a_node() {
    let mut app = App::new();
    for n in 0..10 {
        let stage = Stage::each_async(format!("stage{n}").as_str(), |n: Arc<u64>| async move {
            std::future::pending::<()>().await;
            Ok(*n)
        });
        app = app.route(&format!("/route{n}"), stage.replicas(4));
    }
    let node = app.start().await.unwrap();
    let calls: Vec<_> = (0..1000u64)
        .map(|n| {
            let client = node.client();
            tokio::spawn(async move { client.call::<u64, u64>(&format!("/route{}", n % 10), n).await.map(drop) })
        })
        .collect();
    while node.describe().in_flight < calls.len() {
        tokio::task::yield_now().await;
    }
    let mut best = [f64::INFINITY; 2];
    for _ in 0..1000 {
        let begin = Instant::now();
        std::hint::black_box(node.describe());
        best[0] = best[0].min(begin.elapsed().as_nanos() as f64 / 1000.0);
        let begin = Instant::now();
        std::hint::black_box(node.metrics());
        best[1] = best[1].min(begin.elapsed().as_nanos() as f64 / 1000.0);
    }
    println!("\ndescription of 10 stages of 4 replicas, 1,000 calls in flight");
    println!("  describe() {:.0} µs, metrics() {:.0} µs", best[0], best[1]);
    for call in calls {
        call.abort();
    }
}

async fn start(stage: Stage<u64, u64>) -> Node {
    start_pipeline(stage.into()).await
}

async fn start_pipeline(pipeline: Pipeline<u64, u64>) -> Node {
    App::new().route("/echo", pipeline).start().await.unwrap()
}

async fn call(client: LocalClient, n: u64) -> u64 {
    client.call("/echo", n).await.unwrap()
}

fn mean_batch(node: &Node) -> f64 {
    let description = node.describe();
    description.admitted as f64 / description.stages[0].batches as f64
}

fn spin(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[derive(Clone, Copy)]
struct Latency {
    p50: f64,
    p99: f64,
}

impl Latency {
    const MAX: Self = Self { p50: f64::INFINITY, p99: f64::INFINITY };

    fn update(&mut self, round: Self) {
        self.p50 = self.p50.min(round.p50);
        self.p99 = self.p99.min(round.p99);
    }
}

async fn measure_calls(client: &LocalClient) -> Latency {
    measure(|n| call(client.clone(), n)).await
}

async fn measure<F: Future<Output = u64>>(mut call: impl FnMut(u64) -> F) -> Latency {
    let mut micros = Vec::with_capacity(20_000);
    for n in 0..20_000 {
        let begin = Instant::now();
        assert_eq!(call(n).await, n);
        micros.push(begin.elapsed().as_nanos() as f64 / 1000.0);
    }
    micros.sort_unstable_by(f64::total_cmp);
    Latency { p50: micros[micros.len() / 2], p99: micros[micros.len() * 99 / 100] }
}

async fn calls_per_second<F>(call: impl Fn(u64) -> F + Clone + Send + 'static) -> f64
where
    F: Future<Output = u64> + Send,
{
    rate(CALLERS, 10_000, call).await
}

async fn rate<F>(callers: u64, calls: u64, call: impl Fn(u64) -> F + Clone + Send + 'static) -> f64
where
    F: Future<Output = u64> + Send,
{
    let begin = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let call = call.clone();
            tokio::spawn(async move {
                for n in 0..calls {
                    assert_eq!(call(n).await, n);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    (callers * calls) as f64 / begin.elapsed().as_secs_f64()
}

type Request = (u64, oneshot::Sender<u64>);

/// A hand-written alternative: a bounded channel into a task that takes all waiting requests and answers each.
fn hand_written_loop(max: usize) -> mpsc::Sender<Request> {
    let (sender, mut inbox) = mpsc::channel::<Request>(1024);
    tokio::spawn(async move {
        let mut batch = Vec::with_capacity(max);
        while inbox.recv_many(&mut batch, max).await > 0 {
            for (n, reply) in batch.drain(..) {
                let _ = reply.send(n);
            }
        }
    });
    sender
}

async fn channel_call(channel: &mpsc::Sender<Request>, n: u64) -> u64 {
    let (reply, answer) = oneshot::channel();
    channel.send((n, reply)).await.unwrap();
    answer.await.unwrap()
}

async fn channel_call_owned(channel: mpsc::Sender<Request>, n: u64) -> u64 {
    channel_call(&channel, n).await
}

/// The same with a timeout, which every server needs.
async fn channel_call_in_time(channel: mpsc::Sender<Request>, n: u64) -> u64 {
    tokio::time::timeout(Duration::from_secs(30), channel_call(&channel, n)).await.unwrap()
}

/// An OS thread that sends back its message: the lower bound of a thread stage.
struct BareThread(std::sync::mpsc::SyncSender<Request>);

impl BareThread {
    fn spawn() -> Self {
        let (sender, inbox) = std::sync::mpsc::sync_channel::<Request>(1);
        std::thread::spawn(move || {
            while let Ok((n, reply)) = inbox.recv() {
                let _ = reply.send(n);
            }
        });
        Self(sender)
    }

    fn round_trip(&self, n: u64) -> impl Future<Output = u64> + use<> {
        let (reply, answer) = oneshot::channel();
        self.0.send((n, reply)).unwrap();
        async move { answer.await.unwrap() }
    }
}
