//! An evaluation gateway: it sends batches in order to other servers, and checks each answer before it sends more.
//!
//! Run with `cargo run --example evaluation`. Every contestant is its own process (this program with an argument) that
//! serves `/predict` over QUIC. No contestant sees batch n + 1 before its answer to batch n was checked, but that batch
//! is *encoded* while the gateway waits for the answer. A failed contestant gets a reason: one of five failures of a
//! call, or an invalid answer. The judge does not depend on where a contestant runs: the contestant `in process` runs in
//! the process of the judge.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};

use callboard::codec::DType;
use callboard::net::{CallFailure, ConnectError, Identity, NetConfig, QuicEdge};
use callboard::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const BATCHES: u64 = 4;
const ROWS: u64 = 8;

type Problem = Box<dyn std::error::Error>;

/// The input of a contestant: numbered rows, and the correct answers to the previous batch, to learn from.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
struct Batch {
    row_ids: Vec<u64>,
    /// `f32`, two for each row.
    features: Tensor,
    previous_answers: Tensor,
}

/// The answer of a contestant: a value for each row id.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
struct Predictions {
    row_ids: Vec<u64>,
    /// `f32`, one for each row.
    values: Tensor,
}

/// The result of a contestant.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// All batches were answered; the mean distance from the correct answers.
    Finished { error: f32 },
    /// The call failed: the class of the failure, and the error.
    Failed(CallFailure, String),
    /// The answer does not fit this batch.
    Invalid(String),
}

/// The timeouts of the gateway.
#[derive(Clone, Copy)]
struct Timeouts {
    start_up: Duration,
    per_batch: Duration,
}

/// The batches in order, each with its correct answers, which the contestants do not get.
fn batches() -> Result<Vec<(Batch, Vec<f32>)>, Problem> {
    let mut previous = Vec::new();
    let mut batches = Vec::new();
    for batch in 0..BATCHES {
        let row_ids: Vec<u64> = (batch * ROWS..(batch + 1) * ROWS).collect();
        let features: Vec<f32> = row_ids.iter().flat_map(|id| [*id as f32, (*id % 3) as f32]).collect();
        let correct: Vec<f32> = features.chunks(2).map(|row| 2.0 * row[0] + row[1]).collect();
        let features = Tensor::from_vec(&[row_ids.len(), 2], features)?;
        let previous_answers = Tensor::from_vec(&[previous.len()], std::mem::replace(&mut previous, correct.clone()))?;
        batches.push((Batch { row_ids, features, previous_answers }, correct));
    }
    Ok(batches)
}

/// The gateway: connects to a contestant and runs the judge.
async fn evaluate(url: &str, timeouts: Timeouts) -> Result<Verdict, Problem> {
    let connecting = Client::builder().start_up_wait(timeouts.start_up).connect_timeout(Duration::from_secs(1));
    match connecting.connect(url).await {
        Ok(client) => judge(&client, timeouts.per_batch).await,
        Err(ConnectError::NoAnswer { waited, .. }) => {
            Ok(Verdict::Failed(CallFailure::NeverStarted, format!("no answer within {waited:?}")))
        }
        Err(error) => Err(error.into()),
    }
}

/// Sends the batches in order, and checks each answer before it sends the next batch.
async fn judge(contestant: &impl Caller, per_batch: Duration) -> Result<Verdict, Problem> {
    let mut batches = batches()?.into_iter();
    let mut next = || {
        let (batch, correct) = batches.next()?;
        Some((batch.row_ids.clone(), correct, contestant.prepare("/predict", batch)))
    };
    let (mut distance, mut rows) = (0.0, 0.0);
    let mut current = next();
    while let Some((row_ids, correct, prepared)) = current {
        let options = CallOptions::new().with_timeout(per_batch);
        // Encodes the next batch while it waits for the answer. The batch is sent if the answer is valid.
        let (answer, next) = tokio::join!(contestant.call_prepared::<Value>(prepared?, options), async { next() });
        let values = match answer {
            Ok(answer) => match check(&answer, &row_ids) {
                Ok(values) => values,
                Err(reason) => return Ok(Verdict::Invalid(reason)),
            },
            Err(error) => return Ok(Verdict::Failed(CallFailure::classify(&error), error.message().to_owned())),
        };
        distance += values.iter().zip(&correct).map(|(value, correct)| (value - correct).abs()).sum::<f32>();
        rows += correct.len() as f32;
        current = next;
    }
    Ok(Verdict::Finished { error: distance / rows })
}

/// Checks an answer to these rows: its form, the row ids, and the type and count of its values.
fn check(answer: &Value, row_ids: &[u64]) -> Result<Vec<f32>, String> {
    let Predictions { row_ids: answered_ids, values } =
        answer.deserialize().map_err(|error| format!("no predictions: {error}"))?;
    if answered_ids.len() != row_ids.len() {
        return Err(format!("expected {} rows, found {}", row_ids.len(), answered_ids.len()));
    }
    if let Some((expected, found)) = row_ids.iter().zip(&answered_ids).find(|(expected, found)| expected != found) {
        return Err(format!("expected row {expected}, found row {found} in its place"));
    }
    if values.dtype() != DType::F32 || values.shape() != [row_ids.len()] {
        let (dtype, shape) = (values.dtype().name(), values.shape());
        return Err(format!("expected f32 values of the shape [{}], found {dtype} of {shape:?}", row_ids.len()));
    }
    values.as_slice::<f32>().map(<[f32]>::to_vec).map_err(|error| error.to_string())
}

/// A contestant's process: serves until its stdin is closed.
async fn contest(character: &str) -> Result<(), Problem> {
    let edge = QuicEdge::bind("127.0.0.1:0".parse()?, Identity::development()?, NetConfig::default())?;
    let node = app(character).start().await?;
    edge.open(node.client());
    println!("quic://{}", edge.address());
    std::io::stdout().flush()?;
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    Ok(())
}

/// The app of a contestant.
fn app(character: &str) -> App {
    let character = character.to_owned();
    let route = if character == "lost" { "/prediction" } else { "/predict" };
    App::new().route(route, Stage::each("predict", move |batch: &Batch| predict(&character, batch)).on_threads())
}

/// The model. Some characters fail from the second batch on.
fn predict(character: &str, batch: &Batch) -> Result<Predictions, Failure> {
    let values = batch.features.as_slice::<f32>()?.chunks(2).map(|row| 2.0 * row[0] + row[1]);
    let (mut row_ids, mut values) = (batch.row_ids.clone(), values.collect::<Vec<f32>>());
    let is_first = batch.previous_answers.is_empty();
    match character {
        "clumsy" if !is_first => return Err(Failure::new("division by zero").with_type("ZeroDivisionError")),
        #[expect(clippy::disallowed_methods, reason = "the example shows a function that does not return")]
        "sleepy" if !is_first => std::thread::sleep(Duration::from_secs(60)),
        #[expect(clippy::exit, reason = "the example shows a process that ends during a call")]
        "mortal" if !is_first => std::process::exit(3),
        "hasty" => row_ids.truncate(5),
        "careless" => row_ids.rotate_left(1),
        "exact" => {
            let values = Tensor::from_vec(&[values.len()], values.iter().copied().map(f64::from).collect::<Vec<_>>())?;
            return Ok(Predictions { row_ids, values });
        }
        _ => values.iter_mut().for_each(|value| *value += 0.5),
    }
    let values = Tensor::from_vec(&[values.len()], values)?;
    Ok(Predictions { row_ids, values })
}

/// The process of a contestant. Killed when dropped.
struct Contestant {
    process: Child,
    url: String,
}

impl Contestant {
    fn start(character: &str) -> Result<Self, Problem> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut process = command.arg(character).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut url = String::new();
        let read = process.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut url));
        let contestant = Self { process, url: url.trim().to_owned() };
        match read {
            Some(Ok(1..)) => Ok(contestant),
            _ => Err(format!("{character} printed no address").into()),
        }
    }
}

impl Drop for Contestant {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::main]
async fn main() -> Result<(), Problem> {
    if let Some(character) = std::env::args().nth(1) {
        return contest(&character).await;
    }
    let timeouts = Timeouts { start_up: Duration::from_secs(30), per_batch: Duration::from_secs(30) };
    let mut verdicts = BTreeMap::new();
    for character in ["sound", "lost", "clumsy", "sleepy", "mortal", "hasty", "careless", "exact"] {
        let contestant = Contestant::start(character)?;
        let per_batch = if character == "sleepy" { Duration::from_secs(2) } else { timeouts.per_batch };
        verdicts.insert(character, evaluate(&contestant.url, Timeouts { per_batch, ..timeouts }).await?);
    }
    let local_node = app("sound").start().await?;
    verdicts.insert("in process", judge(&local_node.client(), timeouts.per_batch).await?);
    // A bound port that does not answer.
    let unused = UdpSocket::bind("127.0.0.1:0")?;
    let url = format!("quic://{}", unused.local_addr()?);
    let short_wait = Timeouts { start_up: Duration::from_millis(500), ..timeouts };
    verdicts.insert("absent", evaluate(&url, short_wait).await?);

    for (character, verdict) in &verdicts {
        println!("{character:<12}{verdict:?}");
    }
    assert_eq!(verdicts["sound"], Verdict::Finished { error: 0.5 });
    assert_eq!(verdicts["in process"], verdicts["sound"]);
    let failure_of = |character| match &verdicts[character] {
        Verdict::Failed(failure, _) => Some(*failure),
        _ => None,
    };
    let failures = ["absent", "mortal", "lost", "clumsy", "sleepy"].map(failure_of);
    let expected = [
        CallFailure::NeverStarted,
        CallFailure::ConnectionLost,
        CallFailure::NoSuchRoute,
        CallFailure::Function,
        CallFailure::Deadline,
    ];
    assert_eq!(failures, expected.map(Some));
    assert_eq!(verdicts["clumsy"], Verdict::Failed(CallFailure::Function, "division by zero".to_owned()));
    let invalid = |reason: &str| Verdict::Invalid(reason.to_owned());
    assert_eq!(verdicts["hasty"], invalid("expected 8 rows, found 5"));
    assert_eq!(verdicts["careless"], invalid("expected row 0, found row 1 in its place"));
    assert_eq!(verdicts["exact"], invalid("expected f32 values of the shape [8], found f64 of [8]"));
    Ok(())
}
