//! Services in Python: the interpreter, what a file serves, and the command of its workers.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::Value as Json;

use crate::config::ProcessConfig;
use crate::environment::child_command;

/// The service of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonConfig {
    /// File and name, `app.py:Sentiment`, or module and name, `package.module:Sentiment`.
    pub app: String,

    /// The interpreter. By default that of the active virtual environment, else of `.venv` beside the file, else of the
    /// environment that this program is installed in, else `python3`.
    pub python: Option<PathBuf>,
}

/// How many replicas a service has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum PythonReplicas {
    /// Always this many.
    Fixed(usize),
    /// Between these bounds.
    Between {
        /// The fewest.
        min: usize,
        /// The most.
        max: usize,
    },
}

impl fmt::Display for PythonReplicas {
    /// As in a configuration file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(replicas) => replicas.fmt(f),
            Self::Between { min, max } => write!(f, "{{ min = {min}, max = {max} }}"),
        }
    }
}

/// Something that a Python file serves.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct PythonService {
    /// What a worker is told to serve: file or module, and name.
    pub target: String,
    /// The path of its route.
    pub route: String,
    /// The JSON schema of its input.
    pub input: Json,
    /// The parameter that a body without fields is.
    #[serde(default)]
    pub raw_body: Option<PythonRawBody>,
    /// The names of its parameters, in their order.
    #[serde(default)]
    pub parameters: Option<Vec<String>>,
    /// Whether its input is the value of its only parameter.
    #[serde(default)]
    pub is_value: bool,
    /// The JSON schema of its output, or of one of its outputs.
    pub output: Json,
    /// Whether it answers with a stream of outputs.
    #[serde(default)]
    pub streams: bool,
    /// The largest batch that it says.
    #[serde(default)]
    pub max_batch_size: Option<usize>,
    /// The number of replicas that it says.
    #[serde(default)]
    pub replicas: Option<PythonReplicas>,
    /// The timeout of a batch that it says.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// The contract that it says.
    #[serde(default)]
    pub contract: Option<String>,
    /// Whether its replicas are forked from a process that has imported it.
    #[serde(default = "yes")]
    pub warm: bool,
    /// Whether they are forked from a process that has also set it up.
    #[serde(default)]
    pub share_setup: bool,
    /// The time until a replica must be ready that it says.
    #[serde(default)]
    pub start_timeout_ms: Option<u64>,
    /// How long a batch that is not full may wait, as it says.
    #[serde(default)]
    pub max_delay_ms: Option<u64>,
    /// The length of the queue that it says.
    #[serde(default)]
    pub queue: Option<usize>,
    /// The memory of a replica that it says, as a configuration file has it.
    #[serde(default)]
    pub memory_limit: Option<String>,
    /// The variables of its replicas that it says.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// How many calls a replica works on at once; 1 if it does not say.
    #[serde(default)]
    pub concurrency: Option<u32>,
    /// What it does, in one line.
    #[serde(default)]
    pub description: Option<String>,
    /// Valid inputs.
    #[serde(default)]
    pub examples: Vec<Json>,
    /// The routes that its code calls.
    #[serde(default)]
    pub depends: Vec<PythonDependency>,
    /// Whether it is a step of pipelines, and has no route of its own.
    #[serde(default)]
    pub is_step: bool,
}

/// A parameter that is the whole body of some requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PythonRawBody {
    /// The name of the parameter.
    pub field: String,
    /// Media types or ranges of the bodies.
    pub media_types: Vec<String>,
}

/// A route that a service calls.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PythonDependency {
    /// The attribute of the class.
    pub attribute: String,
    /// The path of the route.
    pub route: String,
}

/// All that a Python file serves.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct PythonApp {
    /// Its services and functions.
    pub services: Vec<PythonService>,
    /// The stages of its pipelines that are no Python.
    #[serde(default)]
    stages: Vec<NodeStage>,
    #[serde(default)]
    pipelines: Vec<PythonPipeline>,
}

/// A model or a built-in stage, with its keys in a configuration file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct NodeStage {
    name: String,
    kind: String,
    keys: serde_json::Map<String, Json>,
}

/// Steps under a route, as in a configuration file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct PythonPipeline {
    name: String,
    route: String,
    steps: Json,
}

fn yes() -> bool {
    true
}

/// An import that takes longer does not end.
const IMPORT_LIMIT: Duration = Duration::from_secs(120);

/// Keeps files beside the app from taking the place of Python's own modules. The package removes it for the app.
const SAFE_PATH: (&str, &str) = ("PYTHONSAFEPATH", "1");

/// Why a Python file cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PythonError {
    /// The interpreter cannot be run.
    #[error("the Python interpreter `{}` cannot be run: {source}; set `python` to another one", python.display())]
    NoInterpreter {
        /// The interpreter.
        python: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The interpreter lacks our package.
    #[error("`{}` lacks the package `callboard`; install it from the source of Callboard: {} -m pip install PATH/TO/callboard/python", python.display(), python.display())]
    NoPackage {
        /// The interpreter.
        python: PathBuf,
    },
    /// The file cannot be imported, or serves nothing.
    #[error("{message}")]
    Refused {
        /// The last line that the interpreter printed.
        message: String,
    },
    /// The file serves nothing of this name.
    #[error("`{app}` is not served: {}", names(known))]
    UnknownName {
        /// What was asked for.
        app: String,
        /// What is served.
        known: Vec<String>,
    },
}

fn names(known: &[String]) -> String {
    if known.is_empty() { "nothing is".to_owned() } else { format!("there is {}", known.join(", ")) }
}

/// The environment of Python that a program is installed in, as by `pip install`.
fn environment_of(program: &Path) -> Option<PathBuf> {
    let program = program.canonicalize().ok()?;
    let environment = program.parent()?.parent()?;
    environment.join("pyvenv.cfg").is_file().then(|| environment.to_owned())
}

impl PythonConfig {
    /// With the default interpreter.
    pub fn new(app: impl Into<String>) -> Self {
        Self { app: app.into(), python: None }
    }

    /// The interpreter for files in `base`.
    #[must_use]
    pub fn interpreter(&self, base: &Path) -> PathBuf {
        let active = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
        self.interpreter_of(base, active, std::env::current_exe().ok().as_deref())
    }

    /// The same, where this environment is active and this program runs.
    fn interpreter_of(&self, base: &Path, active: Option<PathBuf>, program: Option<&Path>) -> PathBuf {
        // The interpreter is started in `base`.
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        match &self.python {
            // A path, not a name that is looked up in `PATH`.
            Some(python) if python.components().count() > 1 => absolute(base.join(python)),
            Some(python) => python.clone(),
            None => {
                let beside = absolute(base.join(".venv"));
                let installed = program.and_then(environment_of);
                let environments = active.into_iter().chain([beside]).chain(installed);
                let mut interpreters = environments.map(|environment| environment.join("bin/python"));
                interpreters.find(|python| python.exists()).unwrap_or_else(|| "python3".into())
            }
        }
    }

    /// The same for this service: whether its replicas are forked, and from a process that has set it up.
    #[must_use]
    pub fn process_of(&self, base: &Path, service: &PythonService) -> ProcessConfig {
        let mut process = self.process(base);
        if service.share_setup
            && let (Some(command), Some(target)) = (&mut process.fork_server, process.fork_target.take())
        {
            command.pop();
            command.push(target.into());
        }
        process.fork_server = process.fork_server.filter(|_| service.warm);
        process
    }

    /// The file or module. A path may have a colon, a name has none.
    fn source(&self) -> &str {
        match self.app.rsplit_once(':') {
            Some((source, name)) if !name.contains(['/', '\\']) => source,
            _ => &self.app,
        }
    }

    /// All that the file or module serves. Imports it, in a process of its own; the stages of one file share an import
    /// while no Python file of `base` changes.
    ///
    /// # Errors
    ///
    /// Without an interpreter or our package, or when the file cannot be imported.
    pub fn served(&self, base: &Path) -> Result<PythonApp, PythonError> {
        let python = self.interpreter(base);
        let source = self.source();
        let path = base.join(source);
        let is_here = path.is_file() || is_module_in(base, source);
        let imported = Imported { python: python.clone(), path, files: python_files(base) };
        let latest = LATEST.lock().clone();
        let is_fresh = |at: Instant| is_here || at.elapsed() < MAX_AGE;
        if let Some((.., app)) = latest.filter(|(of, at, _)| *of == imported && is_fresh(*at)) {
            return Ok(app);
        }
        let app = describe(&python, source, base)?;
        *LATEST.lock() = Some((imported, Instant::now(), app.clone()));
        Ok(app)
    }

    /// The service that this names.
    ///
    /// # Errors
    ///
    /// As [`served`](Self::served), and if nothing has the name.
    pub fn service(&self, base: &Path) -> Result<PythonService, PythonError> {
        let PythonApp { services, .. } = self.served(base)?;
        let known = || services.iter().map(|service| service.target.clone()).collect();
        let found = services.iter().find(|service| service.target == self.app);
        found.cloned().ok_or_else(|| PythonError::UnknownName { app: self.app.clone(), known: known() })
    }

    /// A module of the package, such as `callboard.prepare`, to be run for this app with files in `base`.
    #[must_use]
    pub fn tool(&self, base: &Path, module: &str) -> Command {
        let mut command = child_command(self.interpreter(base));
        command.args(["-m", module]).arg(&self.app).env(SAFE_PATH.0, SAFE_PATH.1).current_dir(directory(base));
        command
    }

    /// The command of a worker for files in `base`, and that of a fork server, which imports the file and may have the
    /// workers of all its services. It may take its time to start, as long as it works.
    #[must_use]
    pub fn process(&self, base: &Path) -> ProcessConfig {
        let words = |module: &str, target: &str| -> [OsString; 4] {
            [self.interpreter(base).into(), "-m".into(), module.into(), target.into()]
        };
        let mut process = ProcessConfig::new(words("callboard.worker", &self.app));
        process.fork_server = Some(words("callboard.fork_server", self.source()).into());
        process.fork_target = Some(self.app.clone());
        process.start_timeout = None;
        process.label = Some(self.app.clone());
        process.directory = Some(directory(base).to_owned());
        process.env.insert(SAFE_PATH.0.to_owned(), SAFE_PATH.1.to_owned());
        process
    }
}

/// A file as it was imported.
#[derive(Clone, PartialEq, Eq)]
struct Imported {
    python: PathBuf,
    path: PathBuf,
    files: BTreeMap<PathBuf, SystemTime>,
}

/// The file or module that was imported last, when, and what it serves.
static LATEST: Mutex<Option<(Imported, Instant, PythonApp)>> = Mutex::new(None);

/// An installed module may change without a file of the app: what it serves is kept for the stages of one plan.
const MAX_AGE: Duration = Duration::from_secs(10);

/// Whether a module is a file or package in this directory.
#[must_use]
pub fn is_module_in(base: &Path, module: &str) -> bool {
    let path = base.join(module.replace('.', "/"));
    path.with_extension("py").is_file() || path.join("__init__.py").is_file()
}

/// The most files and levels of a directory that are looked at.
const MAX_FILES: usize = 10_000;
const MAX_LEVELS: usize = 8;

/// The Python files in a directory and below it, and when each was last written: what an import may read. Without
/// hidden directories and virtual environments; of a very large directory a part.
#[must_use]
pub fn python_files(directory: &Path) -> BTreeMap<PathBuf, SystemTime> {
    let (mut files, mut entries) = (BTreeMap::new(), 0);
    let mut directories = vec![(self::directory(directory).to_owned(), 0)];
    while let Some((directory, level)) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            entries += 1;
            let (name, Ok(kind)) = (entry.file_name(), entry.file_type()) else { continue };
            let path = entry.path();
            let is_left_out = name.to_string_lossy().starts_with('.')
                || name == "__pycache__"
                || name == "node_modules"
                || path.join("pyvenv.cfg").exists();
            if entries > MAX_FILES {
                return files;
            }
            if kind.is_dir() && !is_left_out && level < MAX_LEVELS {
                directories.push((path, level + 1));
            } else if path.extension().is_some_and(|extension| extension == "py")
                && let Ok(modified) = path.metadata().and_then(|metadata| metadata.modified())
            {
                files.insert(path, modified);
            }
        }
    }
    files
}

/// Asks an interpreter what a file or module in `base` serves.
fn describe(python: &Path, file: &str, base: &Path) -> Result<PythonApp, PythonError> {
    let failed = |source| PythonError::NoInterpreter { python: python.to_owned(), source };
    let mut command = child_command(python);
    command.args(["-m", "callboard.describe", file]).env(SAFE_PATH.0, SAFE_PATH.1).current_dir(directory(base));
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn();
    let child = child.map_err(failed)?;
    // An import that does not end, or that leaves a process with these pipes.
    let group = Pid::from_child(&child);
    let (done, is_done) = channel::<()>();
    let limit = thread::spawn(move || {
        let is_late = is_done.recv_timeout(IMPORT_LIMIT) == Err(RecvTimeoutError::Timeout);
        is_late.then(|| kill_process_group(group, Signal::KILL)).is_some()
    });
    let output = child.wait_with_output();
    drop(done);
    if limit.join().unwrap_or_default() {
        return Err(PythonError::Refused { message: format!("{file} was not imported within {IMPORT_LIMIT:?}") });
    }
    let Output { status, stdout, stderr } = output.map_err(failed)?;
    if !status.success() {
        // The lines before it are the traceback.
        let printed = String::from_utf8_lossy(&stderr);
        let printed = printed.trim_end();
        let last = || printed.lines().last().unwrap_or_default();
        let message = printed.rsplit_once("callboard.describe: ").map_or_else(last, |(_, message)| message).to_owned();
        let is_missing = message.contains("No module named callboard") || message.contains("named 'callboard'");
        return Err(if is_missing {
            PythonError::NoPackage { python: python.to_owned() }
        } else {
            PythonError::Refused { message }
        });
    }
    serde_json::from_slice(&stdout).map_err(|error| PythonError::Refused {
        message: format!("`{}` described {file} as something that is not known: {error}", python.display()),
    })
}

/// A path that a process can change to.
fn directory(base: &Path) -> &Path {
    if base.as_os_str().is_empty() { Path::new(".") } else { base }
}

impl PythonService {
    /// The name of its stage: its route without the slash.
    #[must_use]
    pub fn stage_name(&self) -> String {
        self.route.trim_start_matches('/').replace('/', "-")
    }
}

impl PythonApp {
    /// The names of its services, functions and pipelines.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let class = |service: &PythonService| service.target.rsplit_once(':')?.1.split('.').next().map(str::to_owned);
        let pipelines = self.pipelines.iter().map(|pipeline| pipeline.name.clone());
        self.services.iter().filter_map(class).chain(pipelines).collect()
    }

    /// A service, function or pipeline of `file` alone, with what it uses; `None` if nothing has the name.
    #[must_use]
    pub fn only(mut self, file: &str, name: &str) -> Option<Self> {
        let own = format!("{file}:{name}");
        let methods = format!("{own}.");
        let mut kept = Self::default();
        let (mut pipelines, mut services): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
        pipelines.extend(self.pipelines.extract_if(.., |pipeline| pipeline.name == name));
        let is_own = |service: &mut PythonService| service.target == own || service.target.starts_with(&methods);
        services.extend(self.services.extract_if(.., |service| is_own(service)));
        // It is asked for by its name, as a route.
        services.iter_mut().for_each(|service| service.is_step &= !pipelines.is_empty());
        while !pipelines.is_empty() || !services.is_empty() {
            let stages: Vec<&str> = pipelines.iter().flat_map(|pipeline| stages_of(&pipeline.steps)).collect();
            kept.stages.extend(self.stages.extract_if(.., |stage| stages.contains(&&*stage.name)));
            let routes: Vec<&str> = services.iter().flat_map(|each| &each.depends).map(|each| &*each.route).collect();
            let is_used = |service: &mut PythonService| {
                stages.contains(&&*service.stage_name()) || routes.contains(&&*service.route)
            };
            let used: Vec<_> = self.services.extract_if(.., |service| is_used(service)).collect();
            let called: Vec<_> = self.pipelines.extract_if(.., |each| routes.contains(&&*each.route)).collect();
            kept.pipelines.append(&mut pipelines);
            kept.services.append(&mut services);
            (pipelines, services) = (called, used);
        }
        (!kept.pipelines.is_empty() || !kept.services.is_empty()).then_some(kept)
    }

    /// The configuration file that it means.
    #[must_use]
    pub fn configuration(&self) -> String {
        let mut text = String::new();
        for service in &self.services {
            let name = quoted(&service.stage_name());
            let _ = writeln!(text, "[[stage]]\nname = {name}\nkind = \"python\"\napp = {}", quoted(&service.target));
            let mut line = |key: &str, value: Option<String>| {
                let _ = value.map(|value| writeln!(text, "{key} = {value}"));
            };
            line("max_batch_size", service.max_batch_size.filter(|size| *size > 1).map(|size| size.to_string()));
            line("concurrency", service.concurrency.filter(|calls| *calls > 1).map(|calls| calls.to_string()));
            let replicas = service.replicas.filter(|replicas| *replicas != PythonReplicas::Fixed(1));
            line("replicas", replicas.map(|replicas| replicas.to_string()));
            let millis = |time: u64| format!("\"{time}ms\"");
            line("timeout", service.timeout_ms.map(millis));
            line("max_delay", service.max_delay_ms.map(millis));
            line("queue", service.queue.map(|entries| entries.to_string()));
            line("start_timeout", service.start_timeout_ms.map(millis));
            line("memory_limit", service.memory_limit.as_deref().map(quoted));
            let variables = service.env.iter().map(|(name, value)| format!("{} = {}", key_of(name), quoted(value)));
            let variables = variables.collect::<Vec<_>>().join(", ");
            line("env", (!variables.is_empty()).then(|| format!("{{ {variables} }}")));
            line("contract", service.contract.as_deref().filter(|contract| *contract != "at_most_once").map(quoted));
            line("warm", (!service.warm).then(|| "false".to_owned()));
            if !service.is_step {
                let _ = writeln!(text, "\n[[route]]\npath = {}\nstages = {name}", quoted(&service.route));
                let summary = service.description.as_deref().filter(|text| !text.is_empty());
                let _ = summary.map(|summary| writeln!(text, "summary = {}", quoted(summary)));
                let examples: Vec<String> = service.examples.iter().filter_map(inline).collect();
                if !examples.is_empty() {
                    let examples: Vec<String> = examples.iter().map(|each| format!("{{ json = {each} }}")).collect();
                    let _ = writeln!(text, "examples = [{}]", examples.join(", "));
                }
            }
            text.push('\n');
        }
        for NodeStage { name, kind, keys } in &self.stages {
            let _ = writeln!(text, "[[stage]]\nname = {}\nkind = {}", quoted(name), quoted(kind));
            for (key, value) in keys {
                let _ = inline(value).map(|value| writeln!(text, "{key} = {value}"));
            }
            text.push('\n');
        }
        for PythonPipeline { route, steps, .. } in &self.pipelines {
            let _ =
                writeln!(text, "[[route]]\npath = {}\nstages = {}\n", quoted(route), inline(steps).unwrap_or_default());
        }
        text
    }
}

/// The names of the stages of steps.
fn stages_of(steps: &Json) -> Vec<&str> {
    match steps {
        Json::String(name) => vec![name],
        Json::Array(steps) => steps.iter().flat_map(stages_of).collect(),
        Json::Object(step) => {
            let named = ["ensemble", "cases"].into_iter().filter_map(|key| step.get(key)?.as_object());
            named.flat_map(serde_json::Map::values).chain(step.get("default")).flat_map(stages_of).collect()
        }
        _ => Vec::new(),
    }
}

/// A text in TOML. JSON's texts are also TOML's, but for one character.
fn quoted(text: &str) -> String {
    Json::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A value of TOML on one line, without what is null; `None` if nothing else would be left, or a number is too large.
fn inline(value: &Json) -> Option<String> {
    match value {
        Json::Null => None,
        Json::Bool(_) => Some(value.to_string()),
        Json::Number(number) => (number.is_i64() || number.is_f64()).then(|| number.to_string()),
        Json::String(text) => Some(quoted(text)),
        Json::Array(items) => {
            let items: Option<Vec<String>> = items.iter().map(inline).collect();
            Some(format!("[{}]", items?.join(", ")))
        }
        Json::Object(entries) => {
            let kept = entries.iter().filter(|(_, value)| !value.is_null());
            let entries = kept.map(|(key, value)| Some(format!("{} = {}", key_of(key), inline(value)?)));
            Some(format!("{{ {} }}", entries.collect::<Option<Vec<_>>>()?.join(", ")))
        }
    }
}

fn key_of(key: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if !key.is_empty() && key.chars().all(is_bare) { key.to_owned() } else { quoted(key) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn app() -> PythonApp {
        let service = |name: &str, is_step: bool, depends: &str| {
            format!(
                r#"{{"target": "app.py:{name}", "route": "/{name}", "input": {{}}, "output": {{}}, "is_step": {is_step},
                    "depends": [{depends}]}}"#
            )
        };
        let services = [
            service("decode", true, ""),
            service("best", true, r#"{"attribute": "a", "route": "/other"}"#),
            service("other", false, ""),
            service("alone", false, ""),
        ];
        let text = format!(
            r#"{{"services": [{}],
                "stages": [{{"name": "m", "kind": "onnx", "keys": {{"model": "m.onnx", "max_batch_size": 32}}}},
                           {{"name": "n", "kind": "onnx", "keys": {{"model": "n.onnx"}}}}],
                "pipelines": [
                    {{"name": "app", "route": "/app", "steps": ["decode", "m", {{"switch": "n", "cases": {{"a b": "best"}}}}]}},
                    {{"name": "more", "route": "/more", "steps": {{"ensemble": {{"x": ["n"]}}}}}}]}}"#,
            services.join(",")
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn pipelines_are_routes_and_steps_have_none() {
        let text = app().configuration();
        assert!(text.contains("[[stage]]\nname = \"m\"\nkind = \"onnx\"\nmodel = \"m.onnx\"\nmax_batch_size = 32\n"));
        let steps = r#"stages = ["decode", "m", { switch = "n", cases = { "a b" = "best" } }]"#;
        assert!(text.contains(&format!("path = \"/app\"\n{steps}\n")), "{text}");
        assert!(text.contains("path = \"/other\"") && !text.contains("path = \"/decode\""), "{text}");
    }

    #[test]
    fn a_name_is_served_with_all_that_it_uses() {
        let names = |app: &PythonApp| {
            let mut names: Vec<String> = app.services.iter().map(PythonService::stage_name).collect();
            names.extend(app.stages.iter().map(|stage| stage.name.clone()));
            names.join(" ")
        };
        assert_eq!(names(&app().only("app.py", "app").unwrap()), "decode best other m");
        assert_eq!(names(&app().only("app.py", "more").unwrap()), "n");
        let best = app().only("app.py", "best").unwrap();
        assert_eq!(names(&best), "best other");
        assert!(best.configuration().contains("path = \"/best\""), "it is asked for by name");
        assert_eq!(app().only("app.py", "nothing"), None);
    }

    #[test]
    fn the_interpreter_is_the_nearest_that_is_there() {
        let root = std::env::temp_dir().join(format!("callboard-interpreters-{}", std::process::id()));
        let environment = |name: &str| {
            let bin = root.join(name).join("bin");
            fs::create_dir_all(&bin).unwrap();
            fs::write(bin.join("python"), "").unwrap();
            root.join(name)
        };
        let config = PythonConfig::new("app.py");
        let base = root.join("app");
        let (active, program) = (root.join("active"), environment("installed").join("bin/callboard"));
        fs::write(&program, "").unwrap();
        let found = || config.interpreter_of(&base, Some(active.clone()), Some(&program));
        assert_eq!(found(), Path::new("python3"), "a directory like /usr/local, which is no environment");
        fs::write(root.join("installed/pyvenv.cfg"), "").unwrap();
        assert_eq!(found(), root.canonicalize().unwrap().join("installed/bin/python"));
        for name in ["app/.venv", "active"] {
            let made = environment(name);
            assert_eq!(found(), made.join("bin/python"));
        }
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn replicas_are_a_number_or_bounds() {
        for (described, written) in [(json!(3), "3"), (json!({ "min": 0, "max": 4 }), "{ min = 0, max = 4 }")] {
            let replicas: PythonReplicas = serde_json::from_value(described).unwrap();
            assert_eq!(replicas.to_string(), written);
        }
    }

    #[test]
    fn an_example_is_a_value_of_toml_if_it_can_be() {
        let example =
            json!({ "text": "a\u{7f}\"", "top": 3, "scale": 0.5, "none": null, "names": [["a"], []], "on": true });
        let expected = r#"{ text = "a\u007f\"", top = 3, scale = 0.5, names = [["a"], []], on = true }"#;
        assert_eq!(inline(&example).as_deref(), Some(expected));
        for none in [json!(null), json!([1, null]), json!({ "a": u64::MAX })] {
            assert_eq!(inline(&none), None, "{none}");
        }
    }
}
