//! `callboard prepare`: runs what services in Python do once on a node, before their first replica starts.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use callboard_config::{Plan, PythonKeys, StageKind};
use callboard_process::PythonError;

use crate::error::CliError;
use crate::service::title;

/// The tool of the package, and its exit code if something is needed.
const TOOL: &str = "callboard.prepare";
const NEEDED: i32 = 1;

/// Runs `prepare` of all services, or says what is needed.
pub(crate) fn run(plan: &Plan, only_check: bool) -> Result<(), CliError> {
    let base = plan.target.base();
    let mut is_needed = false;
    for keys in services(plan) {
        let mut command = keys.config().tool(base, TOOL);
        command.envs(keys.env.of_all()).args(only_check.then_some("--check"));
        let code = code_of(&mut command)?;
        is_needed |= code == Some(NEEDED);
        if !matches!(code, Some(0 | NEEDED)) {
            return Err(CliError::Failed(format!("{}: prepare of `{}` has failed", title(&plan.target), keys.app)));
        }
    }
    let target = title(&plan.target);
    if is_needed {
        Err(CliError::Failed(format!("{target}: not prepared; callboard prepare {target}")))
    } else {
        Ok(())
    }
}

/// The services of a plan. A class with several routes has one of them.
fn services(plan: &Plan) -> Vec<&PythonKeys> {
    let mut known = BTreeSet::new();
    let keys = plan.stages.iter().filter_map(|stage| match &stage.kind {
        StageKind::Python(keys) => Some(keys),
        _ => None,
    });
    let class = |app: &str| {
        app.rsplit_once(':')
            .map_or_else(|| app.to_owned(), |(file, name)| format!("{file}:{}", name.split('.').next().unwrap_or(name)))
    };
    keys.filter(|keys| known.insert((class(&keys.app), keys.python.clone()))).collect()
}

/// Runs a tool to its end, with the output of this program.
fn code_of(command: &mut Command) -> Result<Option<i32>, CliError> {
    let status = command.stdin(Stdio::null()).status().map_err(|source| {
        let python = command.get_program().into();
        CliError::Failed(PythonError::NoInterpreter { python, source }.to_string())
    });
    Ok(status?.code())
}
