//! Builds one stage of a plan: which crate builds which kind, and the types of its input and output.

#[cfg(feature = "process")]
use std::collections::BTreeMap;

use callboard_codec::{DataType, RawBody, Value};
#[cfg(feature = "process")]
use callboard_core::ReplicaHost;
use callboard_core::description::Planned;
#[cfg(feature = "process")]
use callboard_core::edge::RequestPlace;
use callboard_core::edge::{DeclaredResponse, RequestArgument};
use callboard_core::{CacheSettings, Pipeline, Rows as _, Stage};
#[cfg(feature = "process")]
use callboard_process::{
    FilesConfig, ProcessConfig, ProcessMethod, PythonRawBody, PythonRequestArgument, PythonRequestPlace,
};
use callboard_stages::{StageConfigError, image, labels};
use serde_json::json;

use super::BuildError;
#[cfg(feature = "process")]
use super::keyed::Computed;
use super::types::Needs;
#[cfg(feature = "process")]
use crate::placement::Placement;
use crate::{ConfigError, CostUnit, Plan, RemoteConfig, Source, StageKind, StagePlan};

/// The parts that processes of several stages share.
#[cfg(feature = "process")]
pub(super) type Processes = callboard_process::ForkServers;

/// No stage is a process.
#[cfg(not(feature = "process"))]
#[derive(Default)]
pub(super) struct Processes;

/// A stage with the types of its items.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) code: Planned,
    /// Its input, with a generated example if possible. `None`: not known here.
    pub(super) needs: Option<Needs>,
    pub(super) output: DataType,
    /// The routes that its code calls, by the attributes that name them.
    pub(super) calls: Vec<(String, String)>,
    /// The function of its file that names callers.
    pub(super) auth: Option<String>,
    /// What its code takes of a request beside its input.
    pub(super) arguments: Vec<RequestArgument>,
    /// What its route declares of successful answers; of several stages the last one counts.
    pub(super) response: Option<DeclaredResponse>,
    /// The engine of its model, if it has one.
    pub(super) engine: Option<String>,
    /// Its replicas, for stages with `replicas_of`; `None` where it cannot be a host.
    pub(super) host: Option<Host>,
    /// What computes it, if it is a method of a keyed class: `code` asks the actor of a key.
    #[cfg(feature = "process")]
    pub(super) computed: Option<Computed>,
}

/// A stage whose replicas run others.
#[cfg(feature = "process")]
#[derive(Clone)]
pub(super) struct Host {
    replicas: ReplicaHost,
    streams: bool,
}

/// No stage is a process.
#[cfg(not(feature = "process"))]
#[derive(Clone)]
pub(super) enum Host {}

impl Part {
    /// Builds the stage and applies its settings from the plan. `host` is the stage whose replicas run it, if they are
    /// not its own.
    #[cfg_attr(not(feature = "process"), expect(unused_variables, reason = "no stage is a process"))]
    pub(super) fn build(
        plan: &Plan,
        planned: &StagePlan,
        processes: &Processes,
        host: Option<&Host>,
    ) -> Result<Self, BuildError> {
        #[cfg(feature = "process")]
        let (planned, placement) = &placed(plan, planned)?;
        let name = &planned.name.value;
        let part = |stage, input, output| Self {
            code: Planned::Single(with_knobs(stage, planned).into()),
            needs: Some(Needs { input, example: None }),
            output,
            calls: Vec::new(),
            auth: None,
            arguments: Vec::new(),
            response: None,
            engine: None,
            host: None,
            #[cfg(feature = "process")]
            computed: None,
        };
        match &planned.kind {
            StageKind::Image(config) => {
                let stage = image::stage(name, config).map_err(|error| refused(plan, planned, error))?;
                Ok(part(stage, image::input_type(config), image::output_type(config)))
            }
            #[cfg(feature = "onnx")]
            StageKind::Onnx(config) => model::part(plan, planned, config.clone()),
            StageKind::Labels(config) => {
                let mut config = config.clone();
                config.names_file = config.names_file.map(|path| plan.target.base().join(path));
                let stage = labels::stage(name, &config).map_err(|error| refused(plan, planned, error))?;
                Ok(part(stage, labels::input_type(&config), labels::output_type(&config)))
            }
            #[cfg(feature = "process")]
            StageKind::Process(keys) => {
                let mut process = in_plan(keys.process(plan.target.base()), keys.max_batch_bytes, plan);
                process.replica_env.clone_from(&placement.env);
                process.replica_cores = cores_of_processes(plan, planned)?;
                let stage = processes.stage(name, &process).replica_settings(placement.settings.clone());
                Ok(part(stage, DataType::value(), DataType::value()))
            }
            #[cfg(feature = "process")]
            StageKind::Python(keys) => {
                let base = plan.target.base();
                let service = keys.config().service(base).map_err(|source| {
                    let place = plan.place(&planned.name.source, format!("stage `{name}`"));
                    BuildError::Python { place, source: Box::new(source) }
                })?;
                let keyed = service.keyed.clone().map(|class| (class, service.route.clone()));
                let calls = service.depends.iter().map(|call| (call.attribute.clone(), call.route.clone())).collect();
                let typed = |schema| DataType::value().with_name(name).with_schema(schema);
                let arguments = service.request.iter().map(request_argument).collect();
                let (response, auth) = (service.response.clone(), service.auth.clone());
                let mut process = in_plan(keys.process(base, service.clone()), keys.max_batch_bytes, plan);
                process.methods = methods_of(plan, name);
                process.replica_env.clone_from(&placement.env);
                process.replica_cores = cores_of_processes(plan, planned)?;
                let streams = service.streams;
                if let Some(host) = host.filter(|host| host.streams != streams) {
                    let (_, method) = keys.class_and_method();
                    return Err(cannot_share(plan, planned, method, host.streams));
                }
                let (mut input, output) = (typed(service.input), typed(service.output));
                if let Some(PythonRawBody { field, media_types }) = service.raw_body {
                    input = input.with_raw_body(RawBody { field, media_types });
                }
                if let Some(names) = service.parameters {
                    input = input.with_parameters(callboard_codec::Parameters { names, is_value: service.is_value });
                }
                let stage = processes.stage(name, &process);
                let stage = with_knobs(stage, planned);
                let stage = stage.replica_settings(placement.settings.clone());
                let (code, replicas) = if streams {
                    let settings = stage.settings().clone();
                    let stage = processes.stream_stage(name, &process).map_settings(|_| settings);
                    let stage = host.into_iter().fold(stage, |stage, host| stage.hosted_by(&host.replicas));
                    (Planned::Stream(stage.clone().into()), stage.as_host())
                } else {
                    let stage = host.into_iter().fold(stage, |stage, host| stage.hosted_by(&host.replicas));
                    (Planned::Single(stage.clone().into()), stage.as_host())
                };
                let (code, computed) = Computed::behind(keyed, name, code);
                let (needs, host) = (Some(Needs { input, example: None }), Some(Host { replicas, streams }));
                Ok(Self { code, needs, output, calls, auth, arguments, response, engine: None, host, computed })
            }
            StageKind::Remote(config) => Ok(remote(name, config)),
        }
    }
}

/// The stage with as many replicas as its devices want, and where these run.
#[cfg(feature = "process")]
fn placed(plan: &Plan, planned: &StagePlan) -> Result<(StagePlan, Placement), BuildError> {
    let mut planned = planned.clone();
    let Some(keys) = planned.kind.placement() else { return Ok((planned, Placement::default())) };
    let is_set = planned.replicas.source != Source::Default;
    let (replicas, placement) =
        keys.resolve(&planned.name.value, planned.replicas.value, is_set).map_err(|(key, message)| {
            let own = planned.own.iter().find(|own| own.key == key).map(|own| &own.source);
            let place =
                plan.place(own.unwrap_or(&planned.replicas.source), format!("stage `{}`: {key}", planned.name.value));
            ConfigError::Rejected { place, message }
        })?;
    planned.replicas.value = replicas;
    Ok((planned, placement))
}

/// The methods that the replicas of this stage run beside its own, by the names of their stages.
#[cfg(feature = "process")]
fn methods_of(plan: &Plan, host: &str) -> BTreeMap<String, ProcessMethod> {
    let hosted = plan.stages.iter().enumerate().filter(|(index, _)| plan.uses(*index));
    let method = |(_, stage): (usize, &StagePlan)| match &stage.kind {
        StageKind::Python(keys) if keys.replicas_of.as_deref() == Some(host) => {
            let name = keys.class_and_method().1.to_owned();
            let (timeout, contract) = (stage.timeout.value, stage.contract.value);
            Some((stage.name.value.clone(), ProcessMethod { name, timeout, contract }))
        }
        _ => None,
    };
    hosted.filter_map(method).collect()
}

/// Refuses `replicas_of` between a stage that streams and one that does not: a replica has one form of worker.
#[cfg(feature = "process")]
fn cannot_share(plan: &Plan, planned: &StagePlan, method: &str, host_streams: bool) -> BuildError {
    let place = plan.place(&planned.name.source, format!("stage `{}`: replicas_of", planned.name.value));
    let host = planned.replicas_of().unwrap_or_default();
    let (own, other) = if host_streams { ("one output", "a stream") } else { ("a stream", "one output") };
    let message = format!(
        "`{method}` answers with {own}, and stage `{host}` with {other}: such methods cannot share replicas; remove it"
    );
    ConfigError::Rejected { place, message }.into()
}

#[cfg(feature = "process")]
fn request_argument(described: &PythonRequestArgument) -> RequestArgument {
    RequestArgument {
        place: match described.place {
            PythonRequestPlace::Query => RequestPlace::Query,
            PythonRequestPlace::Cookie => RequestPlace::Cookie,
            PythonRequestPlace::Path => RequestPlace::Path,
            _ => RequestPlace::Header,
        },
        name: described.name.clone(),
        is_required: described.required,
        data_type: DataType::value().with_schema(described.schema.clone()),
    }
}

/// The most bytes of a batch of one item beside its body.
#[cfg(feature = "process")]
const ITEM_BYTES: u64 = 1 << 20;

/// A process as the settings of its node want it: it takes every body that the node takes, and may fetch files.
#[cfg(feature = "process")]
fn in_plan(mut process: ProcessConfig, max_batch_bytes: Option<u64>, plan: &Plan) -> ProcessConfig {
    let settings = &plan.settings;
    if max_batch_bytes.is_none() {
        let bodies = plan.routes.iter().map(|route| route.max_body_bytes.value);
        let largest = bodies.fold(settings.max_body_bytes.value, u64::max);
        process.max_batch_bytes = process.max_batch_bytes.max(largest.saturating_add(ITEM_BYTES));
    }
    process.files = FilesConfig {
        hosts: settings.file_hosts.value.clone(),
        max_bytes: settings.file_max_bytes.value,
        timeout: settings.file_timeout.value,
    };
    process
}

/// A remote stage: only the nodes that run it know its types.
fn remote(name: &str, config: &RemoteConfig) -> Part {
    let known = |what| known_to_others(&format!("what stage `{name}` {what} is known to the nodes that run it"));
    let needs = config.field.as_ref().map(|field| {
        let raw_body = RawBody { field: field.clone(), media_types: FILES.map(str::to_owned).to_vec() };
        Needs { input: known("takes").with_raw_body(raw_body), example: None }
    });
    Part {
        code: Planned::Single(Pipeline::remote(name)),
        needs,
        output: known("gives"),
        calls: Vec::new(),
        auth: None,
        arguments: Vec::new(),
        response: None,
        engine: None,
        host: None,
        #[cfg(feature = "process")]
        computed: None,
    }
}

/// Media types of bodies that are not values.
const FILES: [&str; 4] = ["image/*", "audio/*", "video/*", "application/octet-stream"];

/// Any value, with a description.
pub(super) fn known_to_others(words: &str) -> DataType {
    DataType::value().with_name("Remote").with_schema(json!({ "description": words }))
}

/// The core of each thread of a stage. Processes have theirs from their start on.
fn cores_of_threads(planned: &StagePlan) -> Vec<usize> {
    #[cfg(feature = "process")]
    if planned.kind.placement().is_some() {
        return Vec::new();
    }
    planned.affinity.value.concat()
}

/// The cores of each process of a stage, all of which are there: those of later replicas, too.
#[cfg(feature = "process")]
fn cores_of_processes(plan: &Plan, planned: &StagePlan) -> Result<Vec<Vec<usize>>, BuildError> {
    let cores = &planned.affinity;
    callboard_process::check_cores(&cores.value.concat()).map_err(|message| {
        let place = plan.place(&cores.source, format!("stage `{}`: affinity", planned.name.value));
        BuildError::from(ConfigError::Rejected { place, message })
    })?;
    Ok(cores.value.clone())
}

/// Applies the settings of the plan to a stage.
pub(super) fn with_knobs(stage: Stage<Value, Value>, planned: &StagePlan) -> Stage<Value, Value> {
    let is_set = |source: &Source| *source != Source::Default;
    let mut stage = stage
        .max_delay(planned.max_delay.value)
        .replicas_between(planned.replicas.value.min, planned.replicas.value.max)
        .scale_delay(planned.scale_delay.value)
        .idle(planned.idle.value)
        .queue(planned.queue.value)
        .contract(planned.contract.value)
        .ageing(planned.ageing.value)
        .pinned_to(cores_of_threads(planned));
    stage = stage.map_settings(|settings| {
        let settings = settings
            .with_max_abandoned_threads(planned.max_abandoned_threads.value)
            .with_crash_retries(planned.crash_retries.value as u32)
            .with_pinned(planned.pinned.value)
            .with_revision(planned.revision.value as u64);
        match planned.cache.value.map(CacheSettings::new) {
            None => settings,
            Some(cache) if planned.cache_shared.value => settings.with_cache(cache.shared()),
            Some(cache) => settings.with_cache(cache),
        }
    });
    if let Some(timeout) = planned.timeout.value {
        stage = stage.timeout(timeout);
    }
    // A setting that the file omits has the stage's own default, which may come from its model.
    if is_set(&planned.max_batch_size.source) {
        stage = stage.max_batch_size(planned.max_batch_size.value);
    }
    match planned.cost.value {
        // Rows are counted but items are never split: only the model knows whether the rows of an item are independent.
        CostUnit::Rows => stage = stage.cost(|item: &Value| item.rows().unwrap_or(1) as u64),
        CostUnit::Entries if is_set(&planned.cost.source) => stage = stage.cost(|_: &Value| 1),
        // The default of a padded model.
        CostUnit::Tokens | CostUnit::Entries => {}
    }
    if let Some(bytes) = planned.memory.value {
        stage = stage.memory(bytes);
    }
    if let Some(cost) = planned.max_cost.value {
        stage = stage.max_cost(cost as u64);
    }
    stage
}

/// The error of a built-in stage about its keys, with the line of the key.
fn refused(plan: &Plan, planned: &StagePlan, error: StageConfigError) -> BuildError {
    let place = |key: &str| {
        let own = planned.own.iter().find(|own| own.key == key);
        let source = own.map_or_else(|| planned.name.source.clone(), |own| own.source.clone());
        plan.place(&source, format!("stage `{}`: {key}", planned.name.value))
    };
    match error {
        StageConfigError::Read { key, path, source } => BuildError::Read { place: place(key), path, source },
        StageConfigError::Invalid { key, reason } => {
            ConfigError::Rejected { place: place(key), message: reason }.into()
        }
        other => {
            let place = plan.place(&planned.name.source, format!("stage `{}`", planned.name.value));
            ConfigError::Rejected { place, message: other.to_string() }.into()
        }
    }
}

#[cfg(feature = "onnx")]
mod model {
    //! Stages of kind `onnx`.

    use std::num::NonZeroUsize;
    use std::time::Duration;

    use callboard_codec::{DType, Map, Value};
    use callboard_core::Stage;
    use callboard_onnx::{Axis, BatchAxis, Kind, Model, OnnxConfig, Signature, TensorSpec};

    #[cfg(feature = "process")]
    use callboard_process::MemoryLimit;

    use crate::units::parse_duration;
    use crate::{ConfigError, Place};
    #[cfg(feature = "process")]
    use crate::{MEMORY_LIMIT, read_memory_limit};

    use super::{BuildError, Needs, Part, Plan, Planned, StagePlan, with_knobs};

    /// A picture of 32 by 32 in one colour: small enough for a page of documentation.
    const MAX_EXAMPLE_ELEMENTS: usize = 1024;

    pub(super) fn part(plan: &Plan, planned: &StagePlan, mut config: OnnxConfig) -> Result<Part, BuildError> {
        let name = &planned.name.value;
        let limit_place = plan.place(&planned.name.source, format!("stage `{name}`: memory_limit"));
        if config.memory_limit.is_some() && !config.isolate {
            let message = "a limit of memory needs a process of its own: set `isolate = true`".to_owned();
            return Err(ConfigError::Rejected { place: limit_place, message }.into());
        }
        if let Some(timeout) = &config.start_timeout
            && parse_duration(timeout).is_none_or(|timeout| timeout.is_zero())
        {
            let place = plan.place(&planned.name.source, format!("stage `{name}`: start_timeout"));
            let message = format!("expected a duration such as \"5m\", got `{timeout}`");
            return Err(ConfigError::Rejected { place, message }.into());
        }
        config.timeout = planned.timeout.value;
        config.model = plan.target.base().join(config.model);
        config.library = config.library.map(|library| plan.target.base().join(library));
        config.replicas = NonZeroUsize::new(planned.replicas.value.max).unwrap_or(NonZeroUsize::MIN);
        let load = match planned.replicas.value.min {
            _ if config.isolate => Model::run_elsewhere,
            0 => Model::on_demand,
            _ => Model::from_config,
        };
        let model = load(&config).map_err(|source| {
            let place = plan.place(&planned.name.source, format!("stage `{name}`"));
            BuildError::Model { place, source: Box::new(source) }
        })?;
        Ok(Part {
            code: Planned::Single(
                isolated(
                    with_knobs(callboard_onnx::stage(name, &model), planned),
                    &config,
                    limit_place,
                    planned.kind.start_timeout(model.bytes()),
                )?
                .into(),
            ),
            needs: Some(Needs { input: model.input_type(), example: zeros(model.signature()) }),
            output: model.output_type(),
            calls: Vec::new(),
            auth: None,
            arguments: Vec::new(),
            response: None,
            engine: Some(model.runs_on()),
            host: None,
            #[cfg(feature = "process")]
            computed: None,
        })
    }

    #[cfg(feature = "process")]
    fn isolated(
        stage: Stage<Value, Value>,
        config: &OnnxConfig,
        limit_place: Place,
        start_timeout: Duration,
    ) -> Result<Stage<Value, Value>, BuildError> {
        if !config.isolate {
            return Ok(stage);
        }
        let memory_limit = match &config.memory_limit {
            None => MemoryLimit::default(),
            Some(text) => read_memory_limit(text).ok_or_else(|| {
                let message = format!("expected {MEMORY_LIMIT}, got `{text}`");
                ConfigError::Rejected { place: limit_place, message }
            })?,
        };
        let place = Place::Target { part: format!("stage `{}`: model", stage.name()).into() };
        let isolated = super::super::isolated::isolate(stage, config, (memory_limit, start_timeout));
        isolated.map_err(|message| ConfigError::Rejected { place, message }.into())
    }

    #[cfg(not(feature = "process"))]
    fn isolated(
        stage: Stage<Value, Value>,
        config: &OnnxConfig,
        _: Place,
        _: Duration,
    ) -> Result<Stage<Value, Value>, BuildError> {
        if !config.isolate {
            return Ok(stage);
        }
        let place = Place::Target { part: format!("stage `{}`: isolate", stage.name()).into() };
        let message = "this program was built without the feature `process`".to_owned();
        Err(ConfigError::Rejected { place, message }.into())
    }

    /// An item of zeros, if the shapes are known and small enough to read.
    fn zeros(signature: &Signature) -> Option<Value> {
        let inputs = signature.inputs().iter();
        let inputs = inputs.map(|spec| Some((spec.name().to_owned(), zeros_of(signature, spec)?)));
        inputs.collect::<Option<Map>>().map(Value::Map)
    }

    fn zeros_of(signature: &Signature, spec: &TensorSpec) -> Option<Value> {
        let batch_axes = usize::from(signature.batch_axis() != BatchAxis::Absent);
        let axes = spec.shape()?.get(batch_axes..)?.iter();
        let shape = axes.map(|axis| match axis {
            Axis::Fixed(length) => Some(*length),
            _ => None,
        });
        let shape = shape.collect::<Option<Vec<usize>>>()?;
        let elements = shape.iter().try_fold(1, |product: usize, length| product.checked_mul(*length))?;
        if elements > MAX_EXAMPLE_ELEMENTS {
            return None;
        }
        Some(shape.iter().rev().fold(zero(spec.kind())?, |item, length| Value::List(vec![item; *length])))
    }

    fn zero(kind: &Kind) -> Option<Value> {
        use DType::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
        let dtype = match kind {
            Kind::Numbers(dtype) => dtype,
            Kind::Texts => return Some(Value::from("")),
            _ => return None,
        };
        match dtype {
            Bool => Some(Value::Bool(false)),
            I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64 => Some(Value::Int(0)),
            F16 | BF16 | F32 | F64 => Some(Value::Float(0.0)),
            _ => None,
        }
    }
}

#[cfg(test)]
#[cfg(feature = "onnx")]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use callboard_codec::{DataType, Value};
    use callboard_core::{App, Contract, ErrorKind, Stage};

    use super::*;
    use crate::{Environment, Flags, Target};

    const KNOBS: &str = r#"
[[stage]]
name = "x"
kind = "onnx"
model = "x.onnx"
max_batch_size = 5
max_delay = "2ms"
replicas = { min = 0, max = 3 }
scale_delay = "5ms"
idle = "17s"
memory = "1GiB"
queue = 7
contract = "pure"
crash_retries = 3
cache = "1MiB"
cache_shared = true
timeout = "11s"
max_abandoned_threads = 2
cost = "rows"
max_cost = 2
ageing = "13s"
affinity = [1, 0]
revision = 3

[[route]]
path = "/x"
stages = "x"
"#;

    fn stage(knobs: &str) -> Stage<Value, Value> {
        let target = Target::File { path: PathBuf::from("f"), text: knobs.to_owned() };
        let plan = Plan::resolve(target, &Flags::new(), &Environment::default()).unwrap();
        with_knobs(Stage::each("x", |item: &Value| Ok(item.clone())), &plan.stages[0])
    }

    #[test]
    fn every_knob_of_a_plan_is_applied() {
        let stage = stage(KNOBS);
        let settings = stage.settings();
        let batching = settings.batching();
        assert_eq!(batching.max_batch_size.get(), 5);
        assert_eq!(batching.max_delay, Duration::from_millis(2));
        assert_eq!(batching.max_cost.map(u64::from), Some(2));
        assert_eq!(batching.ageing, Duration::from_secs(13));
        let scaling = settings.scaling();
        assert_eq!((scaling.min(), scaling.max().get()), (0, 3));
        assert_eq!((scaling.queue_delay(), scaling.idle()), (Duration::from_millis(5), Duration::from_secs(17)));
        assert_eq!((settings.memory(), settings.is_pinned()), (1 << 30, false));
        assert_eq!(settings.queue().get(), 7);
        assert_eq!(settings.contract(), Contract::Pure);
        assert_eq!(settings.crash_retries(), 3);
        assert_eq!(settings.cache(), Some(CacheSettings::new(1 << 20).shared()));
        assert_eq!(settings.timeout(), Some(Duration::from_secs(11)));
        assert_eq!(settings.max_abandoned_threads(), 2);
        assert_eq!(settings.affinity(), [1, 0]);
        assert_eq!(settings.revision(), 3);
    }

    #[tokio::test]
    async fn an_entry_with_more_rows_than_a_batch_may_have_is_refused() {
        let route = |stage| App::new().route_described("/x", stage, DataType::value(), DataType::value());
        let node = route(stage(KNOBS)).start().await.unwrap();
        let rows = |count: i64| Value::List((0..count).map(Value::Int).collect());
        assert_eq!(node.client().call::<Value, Value>("/x", rows(2)).await.unwrap(), rows(2));
        let error = node.client().call::<Value, Value>("/x", rows(3)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}
