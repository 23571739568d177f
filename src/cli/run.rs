//! Parse, resolve, run: the table of commands.

use std::ffi::OsString;
use std::process::ExitCode;

use callboard_core::App;

use super::args::{self, LowArgs, Program, Verb};
use super::commands::{check, explain, openapi, serve};
use super::error::CliError;
use super::service::Service;
use super::{logging, output, target};
use crate::config::{Environment, Plan};

/// Runs one command line from start to end.
pub(super) fn run(
    app: Option<App>,
    args: impl IntoIterator<Item = OsString>,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> ExitCode {
    let program = if app.is_some() { Program::Own } else { Program::Callboard };
    let low = match args::parse(program, args) {
        Ok(low) => low,
        Err(answer) => {
            // Help and version are answers too, with code 0 and on stdout; clap knows which is which.
            let _ = answer.print();
            return ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(2));
        }
    };
    match carry_out(app, program, low, variables) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::failure(&error);
            error.exit_code()
        }
    }
}

fn carry_out(
    app: Option<App>,
    program: Program,
    low: LowArgs,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(), CliError> {
    let target = target::open(program, low.target)?;
    let plan = Plan::resolve(target, &low.flags, &environment(variables)?)?;
    if low.verb == Verb::Explain {
        return explain::run(&plan, app.as_ref());
    }
    logging::start(&plan.settings.log.value)?;
    let service = Service::new(plan, app)?;
    match low.verb {
        Verb::Serve => serve::run(service),
        Verb::Check => check::run(service),
        Verb::OpenApi { output } => openapi::run(service, output.as_deref()),
        Verb::Explain => Ok(()),
    }
}

/// A variable that is not UTF-8 is no valid value of any setting; what replaces the bad bytes is refused by its form.
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
        let words = line.split_whitespace().map(OsString::from);
        let low = args::parse(Program::Own, words).map_err(|error| error.to_string())?;
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        carry_out(Some(app), Program::Own, low, variables).map_err(|error| error.to_string())
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
    fn a_program_has_the_same_settings_with_the_same_mistakes() {
        let error = run_own(app(), "program check", &[("CALLBOARD_QUEU", "1")]).unwrap_err();
        assert_eq!(error, "CALLBOARD_QUEU: unknown environment variable; did you mean `CALLBOARD_QUEUE`?");
        let error = run_own(app(), "program check --drain never", &[]).unwrap_err();
        assert!(error.starts_with("--drain: expected a duration"), "{error}");
    }
}
