//! `callboard doctor`: says what this machine lacks to serve a target, one line for each thing, with its cure.
//!
//! It opens no port for longer than a look; it builds the routes, and starts no stage. Interpreters are looked at by
//! the tool of their package, `callboard.doctor`, whose lines are passed on.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::SystemTime;

use callboard_config::{Devices, Environment, Flags, Plan, Settings, StageKind, Target};
use callboard_net::{Authority, IdentityError};
use callboard_process::{PythonConfig, devices, driver};

use crate::error::{CliError, chain};
use crate::output;
use crate::program::Program;
use crate::secrets;
use crate::service::file_of;
use crate::target::{self, PythonTarget};

/// The tool of the package.
const TOOL: &str = "callboard.doctor";

/// Tells the tool the latest CUDA that the driver runs.
const CUDA_VARIABLE: &str = "_CALLBOARD_DRIVER_CUDA";

/// How a line of the tool, or of this module, begins that tells of a problem.
const PROBLEM: &str = "problem: ";

/// Files that a node needs besides its connections: its listeners, its children's sockets and pipes, its models.
const OTHER_FILES: u64 = 256;

/// Looks at everything, and prints it.
pub(crate) fn run(typed: Option<PathBuf>, flags: &Flags, variables: &Environment) -> Result<(), CliError> {
    let mut problems = 0;
    let mut say = |line: &str| {
        problems += usize::from(line.starts_with(PROBLEM));
        output::result(line)
    };
    let name = typed.as_ref().map_or_else(|| "this machine".to_owned(), |typed| typed.display().to_string());
    // A Python file is imported to be resolved, which needs all that its interpreter may lack.
    for (python, base) in apps(typed.as_deref()) {
        for line in tool_lines(&python, &base) {
            say(&line)?;
        }
    }
    let target = match &typed {
        Some(_) => target::open(Program::Callboard, typed.clone()),
        None => target::open(Program::Callboard, None).or(Ok(Target::Program { file: None })),
    };
    match target.and_then(|target| Plan::resolve(target, flags, variables)) {
        Ok(plan) => {
            // Also what is only known when the routes are built: models, types, and calls of routes that nothing
            // serves.
            if let Err(error) = callboard_config::assemble::routes(&plan) {
                say(&format!("{PROBLEM}{}", chain(&error)))?;
            }
            say(&format!(
                "ok: {name} is {} on {}",
                counted(plan.routes.len(), "route"),
                counted(plan.stages.len(), "stage")
            ))?;
            let lines = machine(&plan.settings).into_iter().chain(device_lines(&plan)).chain(issuer_line(&plan));
            for line in lines {
                say(&line)?;
            }
        }
        Err(error) => say(&format!("{PROBLEM}{error}"))?,
    }
    match problems {
        0 => Ok(()),
        problems => Err(CliError::Failed(format!("{name}: {}", counted(problems, "problem")))),
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The apps in Python of a target, and the directories of their files; one for each file.
fn apps(typed: Option<&Path>) -> Vec<(PythonConfig, PathBuf)> {
    if let Some(app) = typed.and_then(PythonTarget::of) {
        return vec![(PythonConfig::new(app.source), app.base)];
    }
    let Ok(target) = target::open(Program::Callboard, typed.map(Path::to_owned)) else { return Vec::new() };
    let base = target.base().to_owned();
    // Another check reports errors of the file.
    let Ok(plan) = Plan::resolve(target, &Flags::new(), &Environment::default()) else { return Vec::new() };
    secrets::withhold(&plan);
    let mut apps: Vec<(PythonConfig, PathBuf)> = Vec::new();
    for stage in &plan.stages {
        let StageKind::Python(keys) = &stage.kind else { continue };
        let mut python = keys.config();
        if let Some((file, _)) = python.app.rsplit_once(':') {
            python.app = file.to_owned();
        }
        if !apps.iter().any(|(known, _)| *known == python) {
            apps.push((python, base.clone()));
        }
    }
    apps
}

/// The report of the package's tool about an app and its interpreter, or why there is none.
fn tool_lines(python: &PythonConfig, base: &Path) -> Vec<String> {
    let mut command = python.tool(base, TOOL);
    let interpreter = python.interpreter(base).display().to_string();
    command.envs(driver().ok().map(|driver| (CUDA_VARIABLE, driver.cuda)));
    let output = command.arg(env!("CARGO_PKG_VERSION")).stdin(Stdio::null()).output();
    match output {
        Err(error) => vec![format!(
            "{PROBLEM}the interpreter `{interpreter}` cannot be run: {error}; install Python 3.10 or later, or activate a \
             virtual environment"
        )],
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
        }
        Ok(_) => vec![format!(
            "{PROBLEM}`{interpreter}` lacks the package `callboard`, or has another version; install it from the source of Callboard: \
             {interpreter} -m pip install PATH/TO/callboard/python"
        )],
    }
}

/// The facts about this machine for these settings.
fn machine(settings: &Settings) -> Vec<String> {
    let address = settings.http.value;
    let port = match TcpListener::bind(address) {
        Ok(_) => format!("ok: {address} is free"),
        Err(error) => {
            format!("{PROBLEM}{address} cannot be listened on: {error}; --http ADDR:PORT chooses another one")
        }
    };
    let wanted = settings.max_connections.value as u64 + OTHER_FILES;
    let files = open_files().map(|limit| match limit {
        limit if limit >= wanted => format!("ok: {limit} open files are allowed"),
        limit => format!(
            "{PROBLEM}{limit} open files are allowed, and http.max_connections = {} needs {wanted}; ulimit -n {wanted}, or \
             a smaller --max-connections",
            settings.max_connections.value
        ),
    });
    let wanted = settings.max_in_flight_bytes.value;
    let memory = available_memory().map(|bytes| match bytes {
        bytes if bytes >= wanted => format!("ok: {} MiB of memory are available", bytes >> 20),
        bytes => format!(
            "{PROBLEM}{} MiB of memory are available, and calls may hold {} MiB; a smaller --max-in-flight-bytes",
            bytes >> 20,
            wanted >> 20
        ),
    });
    [Some(port), files, memory].into_iter().flatten().collect()
}

/// How long the issuer's certificate is valid that the node would sign with, if it is to be one.
fn issuer_line(plan: &Plan) -> Option<String> {
    let directory = file_of(plan, &plan.settings.cluster)?;
    let issuer = match Authority::open(&directory).and_then(|authority| authority.issuer()) {
        Ok(issuer) => issuer?,
        // A member that issues nothing.
        Err(IdentityError::NoAuthority { .. }) => return None,
        Err(error) => return Some(format!("{PROBLEM}{}", chain(&error))),
    };
    let (now, name) = (SystemTime::now(), &issuer.name);
    let days = issuer.validity.left(now).as_secs_f64() / 86_400.0;
    Some(if issuer.is_due(now) {
        format!(
            "{PROBLEM}the certificate of the issuer {name} is valid for {days:.1} days; have the root sign another one \
             (callboard cluster issuer)"
        )
    } else {
        format!("ok: the certificate of the issuer {name} is valid for {days:.1} days")
    })
}

/// The devices of this machine and their driver, if there are some or a stage wants them.
fn device_lines(plan: &Plan) -> Vec<String> {
    let driver = match driver() {
        Ok(driver) => driver,
        Err(reason) => {
            return plan
                .stages
                .iter()
                .filter_map(|stage| without_devices(&stage.name.value, &stage.kind, &reason))
                .collect();
        }
    };
    let mut lines = vec![format!("ok: the driver {} runs CUDA up to {}", driver.version, driver.cuda)];
    for device in devices() {
        let (index, name) = (device.index, device.name.unwrap_or_default());
        lines.push(if device.is_lost {
            format!("{PROBLEM}device {index} is lost: it does not answer; reset it, or restart the machine")
        } else {
            let mib = |bytes: Option<u64>| bytes.map_or_else(|| "?".to_owned(), |bytes| (bytes >> 20).to_string());
            let (used, total) = (mib(device.memory_used), mib(device.memory_total));
            format!("ok: device {index} is {name}, with {used} of {total} MiB of memory in use")
        });
    }
    lines
}

/// What it means for a stage that there is no device.
fn without_devices(stage: &str, kind: &StageKind, reason: &str) -> Option<String> {
    let devices = match kind {
        StageKind::Python(keys) => keys.devices.as_ref()?,
        StageKind::Process(keys) => keys.devices.as_ref()?,
        _ => return None,
    };
    match devices {
        Devices::Auto => Some(format!("ok: stage `{stage}` runs on the CPU, as there is no device: {reason}")),
        Devices::Named(names) => {
            let device = names.iter().find(|name| name.starts_with("cuda"))?;
            Some(format!(
                "{PROBLEM}stage `{stage}` wants {device}, and there is no device: {reason}; install the driver"
            ))
        }
    }
}

/// The soft limit of open files; Linux only.
fn open_files() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let soft = line.split_whitespace().next()?;
    if soft == "unlimited" { Some(u64::MAX) } else { soft.parse().ok() }
}

/// The bytes of memory that can be used without swapping; Linux only.
fn available_memory() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes << 10)
}
