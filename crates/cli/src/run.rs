//! Runs a command line: parse, resolve, run.

use std::ffi::OsString;
use std::process::ExitCode;

use callboard_config::{Environment, Plan, StagePlan};
use callboard_core::App;
use callboard_http::ApiInfo;
use callboard_models::ReadAgain;
#[cfg(feature = "process")]
use callboard_server::ServeError;
use tracing::Level;

use crate::args::{self, CliCommand, ParsedArgs};
use crate::commands::{
    actors, bench, call, check, cluster, examples, explain, export, init, mcp, models, openapi, serve, status, top,
    words,
};
#[cfg(feature = "process")]
use crate::commands::{doctor, prepare};
use crate::complaint::complaint;
use crate::error::CliError;
use crate::logging::Log;
use crate::program::Program;
#[cfg(feature = "process")]
use crate::secrets;
use crate::service::{Service, api_info};
use crate::{logging, output, target};

/// A program's own app, and its title and version.
#[derive(Debug)]
pub(super) struct OwnApp {
    pub(super) app: App,
    pub(super) info: Option<ApiInfo>,
}

/// Runs one command line from start to end.
pub(super) fn run(
    own: Option<OwnApp>,
    args: impl IntoIterator<Item = OsString>,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> ExitCode {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    crate::arenas::bound();
    let program = if own.is_some() { Program::Own } else { Program::Callboard };
    #[cfg(feature = "process")]
    callboard_process::guard_if_asked();
    #[cfg(feature = "process")]
    if let Some(stage) = callboard_process::isolated_stage() {
        #[cfg(feature = "onnx")]
        let served = callboard_config::assemble::isolated::serve_if_asked(stage);
        #[cfg(not(feature = "onnx"))]
        let served = Ok(());
        let error = served.err().unwrap_or_else(|| ServeError::Replica { stage: stage.to_owned() }.to_string());
        output::note(output::failure(&error));
        return ExitCode::FAILURE;
    }
    let low = match args::parse(program, args) {
        Ok(low) => low,
        Err(answer) => {
            match complaint(&answer) {
                Some(line) => output::note(output::failure(&line)),
                // Help and version are answers too, with code 0 and on stdout; clap knows which is which.
                None => _ = answer.print(),
            }
            return ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(2));
        }
    };
    let mut log = None;
    match carry_out(own, program, low, variables, &mut log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let line = output::failure(&error.to_string());
            match &log {
                // The error follows the buffered lines, and the end does not wait for a reader.
                Some(log) => log.stderr.last_word(Level::ERROR, line),
                None => output::note(line),
            }
            error.exit_code()
        }
    }
}

/// Leaves in `log` the log of the command, for the last line.
fn carry_out(
    own: Option<OwnApp>,
    program: Program,
    low: ParsedArgs,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    log: &mut Option<Log>,
) -> Result<(), CliError> {
    let variables: Vec<(OsString, OsString)> = variables.into_iter().collect();
    #[cfg(feature = "process")]
    secrets::withhold_typed(&low.flags, &variables);
    match low.verb {
        CliCommand::Bench(args) => return bench::run(&args),
        CliCommand::Call(args) => return call::run(&args),
        CliCommand::Status(args) => return status::run(&args),
        CliCommand::Top(args) => return top::run(&args),
        CliCommand::Actors(args) => return actors::run(&args),
        CliCommand::Models(args) => return models::run(&args),
        CliCommand::Cluster(args) => return cluster::run(&args),
        CliCommand::Completions(shell) => return words::completions(args::command(program), &low.name, shell),
        CliCommand::Man(of) => return words::man(args::command(program), &low.name, of.as_deref()),
        CliCommand::Export => return export::run(&target::open(program, low.target)?),
        CliCommand::Init(directory) => return init::run(&directory),
        #[cfg(feature = "process")]
        CliCommand::Doctor => return doctor::run(low.target, &low.flags, &environment(variables)?),
        #[cfg(feature = "process")]
        CliCommand::Prepare { only_check } => {
            let plan = Plan::resolve(target::open(program, low.target)?, &low.flags, &environment(variables)?)?;
            secrets::withhold(&plan);
            return prepare::run(&plan, only_check);
        }
        #[cfg(not(feature = "process"))]
        CliCommand::Doctor | CliCommand::Prepare { .. } => {
            let message = "this program was built without the feature `process`, which services in Python need";
            return Err(CliError::Usage(message.to_owned()));
        }
        CliCommand::Mcp(ref args) if let Some(origin) = &args.node => return mcp::bridge(args, origin),
        CliCommand::Serve { .. }
        | CliCommand::Check
        | CliCommand::Mcp(_)
        | CliCommand::OpenApi { .. }
        | CliCommand::Examples(_)
        | CliCommand::Explain(_) => {}
    }
    let variables = environment(variables)?;
    let typed = low.target.clone();
    let read = move || -> Result<Plan, CliError> {
        let target = target::open(program, low.target.clone())?;
        let plan = Plan::resolve(target, &low.flags, &variables)?;
        #[cfg(feature = "process")]
        secrets::withhold(&plan);
        Ok(plan)
    };
    let plan = read()?;
    let (app, info) = own.map_or((None, None), |own| (Some(own.app), own.info));
    if let CliCommand::Explain(form) = low.verb {
        return explain::run(&plan, app, form);
    }
    let log = log.insert(logging::start(&plan.settings.log.value, plan.settings.log_format.value)?);
    let info = api_info(&plan, info);
    match low.verb {
        CliCommand::Serve { reload: watches } => {
            // A program changes its routes in its code.
            let reload = (program == Program::Callboard).then(|| Box::new(move || Ok(read()?)) as ReadAgain);
            serve::run(plan, app, reload, watches, info, log)
        }
        CliCommand::Mcp(args) => mcp::run(plan, app, info, &args, log),
        CliCommand::Check => check::run(Service::new(with_one_replica(plan), app)?),
        CliCommand::OpenApi { output } => openapi::run(Service::described(plan, app)?, &info, output.as_deref()),
        CliCommand::Examples(language) => {
            examples::run(Service::described(plan, app)?, language, &info, typed.as_deref())
        }
        CliCommand::Explain(_)
        | CliCommand::Bench(_)
        | CliCommand::Call(_)
        | CliCommand::Status(_)
        | CliCommand::Top(_)
        | CliCommand::Models(_)
        | CliCommand::Actors(_)
        | CliCommand::Cluster(_) => Ok(()),
        CliCommand::Completions(_)
        | CliCommand::Man(_)
        | CliCommand::Export
        | CliCommand::Prepare { .. }
        | CliCommand::Doctor
        | CliCommand::Init(_) => Ok(()),
    }
}

/// One replica of each stage shows what all of them would.
fn with_one_replica(mut plan: Plan) -> Plan {
    plan.stages.iter_mut().for_each(StagePlan::keep_one_replica);
    plan
}

/// A variable that is not UTF-8 is no valid value of any setting: its form refuses the replaced bytes.
fn environment(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Environment, CliError> {
    let text = |text: OsString| text.to_string_lossy().into_owned();
    Ok(Environment::try_new(variables.into_iter().map(|(name, value)| (text(name), text(value))))?)
}

#[cfg(test)]
mod tests {
    use callboard_codec::Value;
    use callboard_core::{Failure, RouteSpec, Stage};

    use super::*;

    fn app() -> App {
        let shout = Stage::each("shout", |text: &String| match text.as_str() {
            "" => Err(Failure::invalid_input("nothing to shout")),
            text => Ok(text.to_uppercase()),
        });
        let route = RouteSpec::new("/shout", shout).example(Value::from("hello"));
        App::new().mount(route)
    }

    fn run_own(app: App, line: &str, variables: &[(&str, &str)]) -> Result<(), String> {
        let arguments = line.split_whitespace().map(OsString::from);
        let low = args::parse(Program::Own, arguments).map_err(|error| error.to_string())?;
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        let own = OwnApp { app, info: None };
        carry_out(Some(own), Program::Own, low, variables, &mut None).map_err(|error| error.to_string())
    }

    #[test]
    fn a_program_checks_its_own_routes() {
        assert_eq!(run_own(app(), "program check", &[]), Ok(()));
        let empty = RouteSpec::new(
            "/quiet",
            Stage::each("quiet", |_: &String| Err::<String, _>(Failure::invalid_input("never"))),
        );
        let broken = app().mount(empty.example(Value::from("x")));
        assert_eq!(run_own(broken, "program check", &[]), Err("this program: 1 example failed".to_owned()));
    }

    #[test]
    fn every_command_refuses_a_program_with_a_route_on_a_page() {
        for command in ["check", "openapi", "serve --http 127.0.0.1:0"] {
            let hiding = App::new().route("/metrics", Stage::each("x", |x: &i64| Ok(*x)));
            let error = run_own(hiding, &format!("program {command}"), &[]).unwrap_err();
            assert_eq!(error, "route `/metrics` has a path that is reserved for the http edge", "{command}");
        }
    }

    #[test]
    fn a_program_has_the_same_settings_and_errors() {
        let error = run_own(app(), "program check", &[("CALLBOARD_QUEU", "1")]).unwrap_err();
        assert_eq!(error, "CALLBOARD_QUEU: unknown environment variable; did you mean `CALLBOARD_QUEUE`?");
        let error = run_own(app(), "program check --drain never", &[]).unwrap_err();
        assert!(error.starts_with("--drain: expected a duration"), "{error}");
    }
}
