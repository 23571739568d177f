//! The knobs of an ONNX stage.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Number;

/// How a model is loaded and run. In `callboard.toml` these are the keys of a stage of kind `onnx`.
///
/// Batching itself is the stage's: `max_batch_size` (32 by default if the model has a batch axis), `max_delay`,
/// `replicas`, `queue`. Replicas share the weights.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OnnxConfig {
    /// The `.onnx` file. Weights in separate files (`.onnx.data`) are found by their names. Required.
    pub model: PathBuf,

    /// The engine that computes the model. `"auto"`, the default, is ONNX Runtime if its library is found, else rten;
    /// `"onnxruntime"` and `"rten"` allow no other.
    #[serde(default)]
    pub engine: EngineChoice,

    /// The library of ONNX Runtime, for a machine with several. By default `ORT_DYLIB_PATH`, then the package
    /// `onnxruntime` of the active virtual environment, then what the system finds. A process has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library: Option<PathBuf>,

    /// The providers that run the operators in ONNX Runtime, in order: `"cpu"`, `"cuda"`, `"tensorrt"`, `"openvino"`,
    /// `"coreml"`. A provider that this machine lacks is an error, unless `"cpu"` follows; the start logs which run.
    #[serde(default = "Provider::default_order", deserialize_with = "providers")]
    pub providers: Vec<Provider>,

    /// Threads that compute this model, for all its replicas together. By default, with ONNX Runtime, a model has a
    /// thread per core: one of each replica, and the rest in a pool of its own; with rten all models of the process
    /// share one pool with a thread per physical core. With a number this model gets a pool of its own, so that a large
    /// model cannot starve its neighbours. More replicas than threads wait for each other. At most 1,024.
    #[serde(default, deserialize_with = "threads", skip_serializing_if = "Option::is_none")]
    pub threads: Option<NonZeroUsize>,

    /// Threads of ONNX Runtime that run independent operators of one batch at the same time. By default operators run
    /// one after the other; more helps wide graphs and costs the others. At most 1,024.
    #[serde(default, deserialize_with = "threads", skip_serializing_if = "Option::is_none")]
    pub inter_threads: Option<NonZeroUsize>,

    /// Whether idle threads of ONNX Runtime wait in a loop, which shortens a run by some microseconds and keeps cores
    /// busy after it. By default only with one replica: several share the cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spinning: Option<bool>,

    /// Whether ONNX Runtime keeps the memory of a run for the next one. On by default; off saves memory and costs time
    /// where batches differ much in size.
    #[serde(default = "yes")]
    pub arena: bool,

    /// How much of the graph ONNX Runtime rewrites at the start. `"all"` by default; less starts sooner and runs
    /// slower.
    #[serde(default)]
    pub optimization: Optimization,

    /// Whether the first axis of inputs and outputs is the batch. By default the declared shapes decide, see
    /// [`BatchAxis`](crate::BatchAxis). Say `false` for a model whose first axis has any length but is no batch, such
    /// as the length of a text; `true` makes it an error if the shapes do not allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batched: Option<bool>,

    /// How items of different lengths are made equally long, so that they share a run. By default they are not: only
    /// items of one shape do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pad: Option<PadConfig>,

    /// Whether a node with a configuration file runs each replica in a process of its own, so that a model that ends
    /// its process costs one replica. Default `false`. Each replica then has weights and a pool of threads of its own.
    #[serde(default)]
    pub isolate: bool,

    /// The most memory of each such process, with the weights, such as `2GiB`; Linux. Default: no limit. A model
    /// decides by the values of its inputs how large its tensors are, so one small item may ask for any amount. Needs
    /// [`isolate`](Self::isolate): the item then fails, and its replica is started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<String>,

    /// How long a start may take, such as `5m`: of such a process, or of a model of a directory until it serves.
    /// Default 60 s, and a second more for each 16 MiB of its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_timeout: Option<String>,

    /// The replicas of the stage, which share the threads. Not a key of its own: the stage has it.
    #[serde(skip, default = "one")]
    pub replicas: NonZeroUsize,

    /// The longest that a run of a trial at the start may take. Not a key of its own: it is the timeout of the stage.
    #[serde(skip)]
    pub timeout: Option<Duration>,
}

/// How items of different lengths are made equally long: the key `pad`.
///
/// Every input with the axis is extended at its end, to the bucket of the item or to the longest item of the run.
/// Outputs that declare the same axis are cropped back to the length of their item.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PadConfig {
    /// The axis whose length differs. Required.
    pub axis: PadAxis,

    /// The number that inputs are extended with. Default 0.
    #[serde(default = "zero")]
    pub value: Number,

    /// Other numbers than `value`, by the names of inputs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, Number>,

    /// The input that is 1 where an item is and 0 where padding is. An item may leave it out. By default there is none,
    /// for models that know padding by its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<String>,

    /// The lengths that items are padded to, ascending: each to the first that is long enough, and only items of one
    /// bucket share a run. A longer item than the last is refused. By default a run is as long as its longest item.
    #[serde(default, deserialize_with = "buckets", skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<usize>,
}

/// An axis of a model's inputs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged, expecting = "expected the name or the number of an axis")]
pub enum PadAxis {
    /// By the number, for models that name no axes. The batch axis is 0.
    Number(usize),
    /// By the name in the file, such as `sequence`.
    Name(String),
}

impl PadConfig {
    /// The defaults, for this axis.
    #[must_use]
    pub fn new(axis: PadAxis) -> Self {
        Self { axis, value: zero(), values: BTreeMap::new(), mask: None, buckets: Vec::new() }
    }
}

impl fmt::Display for PadAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// The engine that computes a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EngineChoice {
    /// ONNX Runtime if its library is found, rten if it is not.
    #[default]
    Auto,
    /// ONNX Runtime; no library is an error.
    OnnxRuntime,
    /// The embedded engine.
    Rten,
}

/// An execution provider of ONNX Runtime: it runs operators on one kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Provider {
    /// The processor: takes every operator.
    Cpu,
    /// Apple's accelerators.
    Coreml,
    /// GPUs of NVIDIA.
    Cuda,
    /// Processors and accelerators of Intel.
    Openvino,
    /// GPUs of NVIDIA, with a plan for the whole graph made at the start.
    Tensorrt,
}

/// How much of the graph ONNX Runtime rewrites when it loads a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Optimization {
    /// Nothing.
    Off,
    /// Rewrites that are the same on every machine, such as of constants.
    Basic,
    /// Fused operators, too.
    Extended,
    /// Layouts of memory, too.
    #[default]
    All,
}

impl Provider {
    fn default_order() -> Vec<Self> {
        vec![Self::Cpu]
    }

    /// The name in a file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Coreml => "coreml",
            Self::Cuda => "cuda",
            Self::Openvino => "openvino",
            Self::Tensorrt => "tensorrt",
        }
    }
}

impl OnnxConfig {
    /// The defaults, for this file.
    #[must_use]
    pub fn new(model: impl Into<PathBuf>) -> Self {
        Self {
            model: model.into(),
            engine: EngineChoice::default(),
            library: None,
            providers: Provider::default_order(),
            threads: None,
            inter_threads: None,
            spinning: None,
            arena: true,
            optimization: Optimization::default(),
            batched: None,
            pad: None,
            isolate: false,
            memory_limit: None,
            start_timeout: None,
            replicas: one(),
            timeout: None,
        }
    }

    /// A key that is set and means nothing to rten.
    pub(crate) fn key_of_onnx_runtime(&self) -> Option<&'static str> {
        let set = [
            ("library", self.library.is_some()),
            ("providers", self.providers != Provider::default_order()),
            ("inter_threads", self.inter_threads.is_some()),
            ("spinning", self.spinning.is_some()),
            ("arena", !self.arena),
            ("optimization", self.optimization != Optimization::default()),
        ];
        set.into_iter().find_map(|(key, is_set)| is_set.then_some(key))
    }
}

fn one() -> NonZeroUsize {
    NonZeroUsize::MIN
}

fn yes() -> bool {
    true
}

fn providers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Provider>, D::Error> {
    let providers = Vec::<Provider>::deserialize(deserializer)?;
    let once = |(index, provider): (usize, &Provider)| !providers[..index].contains(provider);
    if providers.is_empty() || !providers.iter().enumerate().all(once) {
        return Err(D::Error::custom("expected one provider or more, each once"));
    }
    Ok(providers)
}

fn zero() -> Number {
    Number::from(0)
}

/// No model takes longer items; a longer bucket is a mistake that would cost the memory of its padding.
const MAX_BUCKET: usize = 1 << 20;

fn buckets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<usize>, D::Error> {
    let buckets = Vec::<usize>::deserialize(deserializer)?;
    let ascend = buckets.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascend || buckets.iter().any(|bucket| !(1..=MAX_BUCKET).contains(bucket)) {
        return Err(D::Error::custom(format!("expected ascending lengths from 1 to {MAX_BUCKET}")));
    }
    Ok(buckets)
}

/// A larger pool would take longer to start than any model to run.
const MAX_THREADS: usize = 1024;

fn threads<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<NonZeroUsize>, D::Error> {
    let threads = NonZeroUsize::deserialize(deserializer)?;
    if threads.get() > MAX_THREADS {
        let (found, expected) = (Unexpected::Unsigned(threads.get() as u64), format!("at most {MAX_THREADS} threads"));
        return Err(D::Error::invalid_value(found, &expected.as_str()));
    }
    Ok(Some(threads))
}
