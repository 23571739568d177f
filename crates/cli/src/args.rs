//! The command line as it was typed. No file is opened and no value is parsed here.
//!
//! The flags of the settings come from the table in `config`, so help, file and environment cannot differ.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use callboard_config::{Flags, SETTINGS, SettingName};
use clap::builder::{EnumValueParser, UnknownArgumentValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use clap_complete::Shell;

use crate::client::args::value_of;
use crate::commands::actors::ActorsArgs;
use crate::commands::bench_args::BenchArgs;
use crate::commands::call::CallArgs;
use crate::commands::cluster::ClusterArgs;
use crate::commands::explain::ExplainFormat;
use crate::commands::mcp::McpArgs;
use crate::commands::models::ModelsArgs;
use crate::commands::status::StatusArgs;
use crate::commands::top::TopArgs;
use crate::program::Program;
use crate::snippet::Language;

/// The command line, split into words.
#[derive(Clone, Debug)]
pub(crate) struct ParsedArgs {
    /// The program's name, as shells know it.
    pub(crate) name: String,
    pub(crate) verb: CliCommand,
    /// The target; `None` if none was typed.
    pub(crate) target: Option<PathBuf>,
    /// Settings by the names of their flags.
    pub(crate) flags: Flags,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CliCommand {
    /// Start and serve until stopped.
    Serve {
        /// Build the routes again when a file changes.
        reload: bool,
    },
    /// Start, run the examples once, stop.
    Check,
    /// Write the OpenAPI document, to this file or to stdout.
    OpenApi {
        /// The file.
        output: Option<PathBuf>,
    },
    /// Write the configuration file that a Python file means.
    Export,
    /// Run what services do once on a node, or say whether that is needed.
    Prepare {
        /// Only look.
        only_check: bool,
    },
    /// Say what this machine lacks.
    Doctor,
    /// Write a small project into this directory.
    Init(PathBuf),
    /// Print programs that call the routes.
    Examples(Language),
    /// Print the resolved plan and stop.
    Explain(ExplainFormat),
    /// Serve tools to a host on stdin and stdout.
    Mcp(Box<McpArgs>),
    /// Put load on a server.
    Bench(Box<BenchArgs>),
    /// Show the status of a node.
    Status(Box<StatusArgs>),
    /// Draw a node each second.
    Top(Box<TopArgs>),
    /// Show or ask the keyed actors of a node.
    Actors(Box<ActorsArgs>),
    /// Show or change the models of a node.
    Models(Box<ModelsArgs>),
    /// Send one request to a server.
    Call(Box<CallArgs>),
    /// Make a cluster, let members in, join one, see and drain its nodes.
    Cluster(Box<ClusterArgs>),
    /// Print the completion script of a shell.
    Completions(Shell),
    /// Print the manual page of the program, or of one of its commands.
    Man(Option<String>),
}

/// Splits the command line.
///
/// # Errors
///
/// The error of clap, or its answer to `--help` and `--version`.
pub(crate) fn parse(program: Program, args: impl IntoIterator<Item = OsString>) -> Result<ParsedArgs, clap::Error> {
    let args = with_values(args);
    let typed_name = args.first().and_then(|path| Path::new(path).file_name()).map(|name| name.to_string_lossy());
    let name = typed_name.map_or_else(|| command(program).get_name().to_owned(), Cow::into_owned);
    let matches = command(program).mut_subcommands(with_unknown).try_get_matches_from(args)?;
    let (verb, matches) = matches.subcommand().expect("clap requires a subcommand");
    let explain = matches.try_get_one::<ExplainFormat>("explain").ok().flatten();
    let verb = match (verb, explain) {
        (_, Some(form)) => CliCommand::Explain(*form),
        ("check", None) => CliCommand::Check,
        ("bench", None) => CliCommand::Bench(Box::new(BenchArgs::from_matches(matches)?)),
        ("call", None) => CliCommand::Call(Box::new(CallArgs::from_matches(matches)?)),
        ("examples", None) => {
            let typed = matches.get_one::<String>("lang").expect("clap requires a language");
            let found = LANGUAGES.into_iter().find(|(name, _)| name == typed);
            CliCommand::Examples(found.expect("clap knows the languages").1)
        }
        ("export", None) => CliCommand::Export,
        ("prepare", None) => CliCommand::Prepare { only_check: matches.get_flag("check") },
        ("doctor", None) => CliCommand::Doctor,
        ("init", None) => CliCommand::Init(value_of(matches, "directory")),
        ("cluster", None) => CliCommand::Cluster(Box::new(ClusterArgs::from_matches(matches))),
        ("actors", None) => CliCommand::Actors(Box::new(ActorsArgs::from_matches(matches))),
        ("models", None) => CliCommand::Models(Box::new(ModelsArgs::from_matches(matches))),
        ("status", None) => CliCommand::Status(Box::new(StatusArgs::from_matches(matches))),
        ("top", None) => CliCommand::Top(Box::new(TopArgs::from_matches(matches))),
        ("completions", None) => CliCommand::Completions(value_of(matches, "shell")),
        ("man", None) => CliCommand::Man(matches.get_one::<String>("of").cloned()),
        ("mcp", None) => CliCommand::Mcp(Box::new(McpArgs::from_matches(matches))),
        ("openapi", None) => CliCommand::OpenApi { output: matches.get_one::<PathBuf>("output").cloned() },
        _ => CliCommand::Serve { reload: matches.try_get_one("reload").ok().flatten() == Some(&true) },
    };
    let target = matches.try_get_one::<PathBuf>("target").ok().flatten().cloned();
    Ok(ParsedArgs { name, verb, target, flags: flags(matches) })
}

/// The same words, with `=true` after each yes-or-no flag that has no value, and after `--watch` without a time: in
/// `serve --model-control DIR`, `DIR` is the target.
fn with_values(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    const VALUES: [&str; 8] = ["true", "false", "yes", "no", "on", "off", "1", "0"];
    let is_flag = |word: &str, is: fn(&SettingName) -> bool| {
        let is_named = |name: &SettingName| word == name.flag || name.spellings_of_key().any(|other| word == other);
        SETTINGS.into_iter().any(|name| is(name) && is_named(name))
    };
    let mut args = args.into_iter().peekable();
    let mut words = Vec::new();
    while let Some(mut word) = args.next() {
        let flag = word.to_str().and_then(|word| word.strip_prefix("--"));
        let named = |is: fn(&SettingName) -> bool| flag.is_some_and(|flag| is_flag(flag, is));
        // Words that are no value but look like one are values, so that the error names the flag.
        let next = args.peek().and_then(|next| next.to_str()).unwrap_or_default();
        let has_value = VALUES.contains(&next);
        let has_time = has_value || next == "none" || next.starts_with(|first: char| first.is_ascii_digit());
        if !has_value && named(SettingName::is_yes_or_no) || !has_time && named(SettingName::is_on_without_value) {
            word.push("=true");
        }
        words.push(word);
    }
    words
}

fn flags(matches: &ArgMatches) -> Flags {
    let typed = |name: &SettingName| {
        let value = matches.try_get_one::<String>(name.flag).ok().flatten()?;
        Some((name.flag, value.clone()))
    };
    SETTINGS.into_iter().filter_map(typed).collect()
}

/// The grammar.
pub(crate) fn command(program: Program) -> Command {
    let serve = Command::new("serve")
        .about("Start, and serve until stopped")
        .args((program == Program::Callboard).then(reload))
        .arg(explain());
    let check = Command::new("check")
        .about("Load and warm up everything, run the examples of all routes once, and report what fails")
        .arg(explain());
    let openapi = Command::new("openapi").about("Write the OpenAPI document without listening").arg(
        Arg::new("output")
            .short('o')
            .long("output")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("Write to this file instead of stdout"),
    );
    let examples = Command::new("examples").about("Print a ready-to-run program that calls every route").arg(
        Arg::new("lang")
            .long("lang")
            .value_name("LANGUAGE")
            .required(true)
            .value_parser(LANGUAGES.map(|(name, _)| name))
            .help("Language of the program; openai, grpc and mcp are clients in Python"),
    );
    let is_here = |name: &&SettingName| program == Program::Callboard || name.is_for_programs();
    let with_settings = |command: Command| {
        let shown = settings_in_help(command.get_name());
        let is_hidden = |name: &SettingName| shown.is_some_and(|shown| !shown.contains(&name.key));
        let settings = SETTINGS.into_iter().filter(is_here).map(|name| setting(name).hide(is_hidden(name)));
        let command = command.arg(target(program)).args(settings);
        if shown.is_some() { command.after_help(OTHER_SETTINGS) } else { command }
    };
    let with_target = |command: Command| match command.get_name() {
        "init" => command,
        "doctor" => with_settings(command),
        _ => command.arg(target(program)),
    };
    let command = match program {
        Program::Callboard => Command::new("callboard").version(env!("CARGO_PKG_VERSION")),
        // Another program has its own name, and its version is unknown here.
        Program::Own => Command::new("callboard-app").disable_version_flag(true),
    };
    command
        .about(env!("CARGO_PKG_DESCRIPTION"))
        .after_help(EXIT_CODES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([serve, check, openapi, examples, McpArgs::command()].map(with_settings))
        .subcommands(if program == Program::Callboard { for_files().map(with_target).to_vec() } else { Vec::new() })
        .subcommands([CallArgs::command(), BenchArgs::command(), StatusArgs::command(), TopArgs::command()])
        .subcommands([ModelsArgs::command(), ActorsArgs::command()])
        .subcommands([ClusterArgs::command()])
        .subcommands([completions(), man()])
}

/// The commands for files: a program has its routes in its code.
fn for_files() -> [Command; 4] {
    let check =
        Arg::new("check").long("check").action(ArgAction::SetTrue).help("Only say whether it is needed: exit code 1");
    let directory = Arg::new("directory").value_name("NAME").required(true).value_parser(value_parser!(PathBuf));
    [
        Command::new("export").about("Write the configuration file that a Python file means, to be changed and served"),
        Command::new("prepare").about("Run what services in Python do once on a node, such as downloads").arg(check),
        Command::new("doctor").about("Say what this machine lacks to serve, each with its cure"),
        Command::new("init")
            .about("Write a small project in Python that serves and tests itself")
            .arg(directory.help("Its directory, which must be new or empty")),
    ]
}

fn completions() -> Command {
    let shells = value_parser!(Shell);
    let shell = Arg::new("shell").value_name("SHELL").required(true).value_parser(shells).help("Which shell");
    Command::new("completions").about("Print a script by which a shell completes commands and options").arg(shell)
}

fn man() -> Command {
    let of = Arg::new("of").value_name("COMMAND").help("The page of this command instead of the program's");
    Command::new("man").about("Print a manual page, for man(1)").arg(of)
}

/// The languages of `examples`.
const LANGUAGES: [(&str, Language); 6] = [
    ("curl", Language::Curl),
    ("python", Language::Python),
    ("rust", Language::Rust),
    ("openai", Language::OpenAi),
    ("grpc", Language::Grpc),
    ("mcp", Language::Mcp),
];

/// The settings that change the output of a command that does not listen. The command accepts the other settings as
/// well, so that the arguments of `serve` can be used again.
fn settings_in_help(command: &str) -> Option<&'static [&'static str]> {
    match command {
        "doctor" => Some(&["http.listen", "http.max_connections", "limits.max_in_flight_bytes", "quic.cluster"]),
        "openapi" => Some(&["api.title", "api.version", "http.api_keys", "log.filter", "log.format"]),
        "examples" => {
            Some(&["http.listen", "http.tls_certificate", "http.tls_key", "http.api_keys", "log.filter", "log.format"])
        }
        _ => None,
    }
}

const OTHER_SETTINGS: &str = "The other settings of `serve` are accepted, too; its --help lists them.";

/// The flags of other servers, with the hint at what is written here.
const OF_OTHER_SERVERS: [(&str, &str); 8] = [
    ("port", ADDRESS),
    ("bind", ADDRESS),
    ("host", ADDRESS),
    ("address", ADDRESS),
    ("addr", ADDRESS),
    ("workers", REPLICAS),
    ("replicas", REPLICAS),
    ("num-replicas", REPLICAS),
];

const ADDRESS: &str = "`--http 127.0.0.1:8000` sets address and port";
const REPLICAS: &str = "`replicas` of each service or stage is their number";

/// The placeholder of the value of such a flag, which no message shows.
pub(crate) const OF_UNKNOWN: &str = "UNKNOWN";

/// A command that listens, with those flags, on the command line only: not in completions and manuals.
fn with_unknown(command: Command) -> Command {
    let listens = command.get_arguments().any(|arg| arg.get_id() == "http");
    if listens { command.args(OF_OTHER_SERVERS.map(unknown)) } else { command }
}

/// A flag that does not exist, with its hint.
fn unknown((name, hint): (&'static str, &'static str)) -> Arg {
    Arg::new(name)
        .long(name)
        .hide(true)
        .value_name(OF_UNKNOWN)
        .num_args(0..=1)
        .default_missing_value("")
        .value_parser(UnknownArgumentValueParser::suggest(hint))
}

// One paragraph is one line, which clap wraps at the width of the terminal.
const EXIT_CODES: &str = "\
Exit codes: 0 success; 1 failure; 2 the command line, the environment or the file is wrong; \
`call` also exits with 3, 4 or 5 for an answer of 3xx, 4xx or 5xx, and `bench` with 130 or 143 when a signal ended it \
early.
Settings come from flags, else CALLBOARD_* variables, else the file, else defaults; --explain shows which.";

fn target(program: Program) -> Arg {
    let target = Arg::new("target").value_parser(value_parser!(PathBuf));
    match program {
        Program::Callboard => target
            .value_name("DIR | FILE.toml | APP.py | MODEL.onnx")
            .help("A directory with a callboard.toml or with models, such a file, a Python file, or a model [default: the current directory]"),
        Program::Own => target.value_name("FILE.toml").help("A settings file"),
    }
}

fn reload() -> Arg {
    Arg::new("reload")
        .long("reload")
        .action(ArgAction::SetTrue)
        .help("Build the routes again when the file or a Python file below its directory changes, for development")
}

fn explain() -> Arg {
    Arg::new("explain")
        .long("explain")
        .value_name("FORM")
        .value_parser(EnumValueParser::<ExplainFormat>::new())
        // Only with `=`: the word after a bare `--explain` is the target.
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("text")
        .help("Only print every setting with the source of its value, or a picture of the routes")
}

fn setting(name: &'static SettingName) -> Arg {
    let arg = Arg::new(name.flag);
    let arg = if name.is_yes_or_no() || name.is_on_without_value() {
        arg.num_args(0..=1).default_missing_value("true")
    } else {
        arg
    };
    let without_value = if name.is_yes_or_no() { "; without a value: true" } else { "" };
    arg.long(name.flag)
        // The key of the file also works as a flag.
        .aliases(name.spellings_of_key().filter(|spelling| spelling != name.flag))
        .value_name(name.placeholder)
        .help(format!("{} [default: {}{without_value}]", name.help, name.default))
        .help_heading("Settings")
        // The last value counts, so that flags of a wrapper script can be overridden.
        .overrides_with(name.flag)
        .allow_hyphen_values(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<ParsedArgs, String> {
        let args = line.split_whitespace().map(OsString::from);
        super::parse(Program::Callboard, args).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definition_of_the_arguments_is_valid() {
        for program in [Program::Callboard, Program::Own] {
            command(program).mut_subcommands(with_unknown).debug_assert();
        }
    }

    #[test]
    fn values_of_flags_stay_unparsed() {
        let args = parse("callboard serve examples/digits --http nonsense --drain 1s --drain 2s").unwrap();
        assert_eq!(args.verb, CliCommand::Serve { reload: false });
        assert_eq!(parse("callboard serve --reload app.py").unwrap().verb, CliCommand::Serve { reload: true });
        assert_eq!(args.target, Some(PathBuf::from("examples/digits")));
        assert_eq!(args.flags, [("http", "nonsense".to_owned()), ("drain", "2s".to_owned())]);
    }

    #[test]
    fn a_yes_or_no_flag_without_a_value_is_true() {
        for (line, value, has_target) in [
            ("serve --model-control", "true", false),
            ("serve --model-control examples/digits", "true", true),
            ("serve --http-model-control examples/digits", "true", true),
            ("serve --model-control --drain 1s examples/digits", "true", true),
            ("serve examples/digits --model-control --", "true", true),
            ("serve --model-control false examples/digits", "false", true),
            ("serve --model-control=false examples/digits", "false", true),
            ("serve --model-control on examples/digits", "on", true),
            ("serve --model-control false --model-control", "true", false),
        ] {
            let args = parse(&format!("callboard {line}")).unwrap();
            assert!(args.flags.contains(&("model-control", value.to_owned())), "{line}: {:?}", args.flags);
            assert_eq!(args.target.is_some(), has_target, "{line}");
        }
    }

    #[test]
    fn explain_replaces_the_command() {
        assert_eq!(parse("callboard serve --explain").unwrap().verb, CliCommand::Explain(ExplainFormat::Text));
        assert_eq!(parse("callboard check --explain").unwrap().verb, CliCommand::Explain(ExplainFormat::Text));
        let mermaid = parse("callboard serve --explain=mermaid examples/digits").unwrap();
        assert_eq!(mermaid.verb, CliCommand::Explain(ExplainFormat::Mermaid));
        let with_target = parse("callboard serve --explain examples/digits").unwrap();
        assert_eq!(with_target.target, Some(PathBuf::from("examples/digits")));
        assert!(parse("callboard serve --explain=pdf").unwrap_err().contains("mermaid"));
        assert!(parse("callboard openapi --explain").is_err());
    }

    #[test]
    fn an_unknown_flag_names_the_nearest_one() {
        let error = parse("callboard serve --drian 1s").unwrap_err();
        assert!(error.contains("--drain"), "{error}");
        let error = parse("callboard sevre").unwrap_err();
        assert!(error.contains("serve"), "{error}");
    }

    #[test]
    fn a_key_of_the_file_is_accepted_as_a_flag() {
        let args = parse("callboard serve --listen 127.0.0.1:1 --log-filter info --limits-drain 1s").unwrap();
        let expected = [("http", "127.0.0.1:1"), ("log", "info"), ("drain", "1s")];
        for (flag, value) in expected {
            assert!(args.flags.contains(&(flag, value.to_owned())), "{flag}");
        }
    }

    #[test]
    fn a_command_without_a_listener_lists_only_its_settings() {
        for (name, listed, hidden) in [("openapi", "--api-title", "--http"), ("examples", "--http", "--max-body-bytes")]
        {
            let mut command = command(Program::Callboard);
            let help = command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            assert!(help.contains(&format!("{listed} <")) && !help.contains(&format!("{hidden} <")), "{help}");
            assert!(help.contains("other settings of `serve`"), "{help}");
            assert!(
                !parse(&format!("callboard {name} --lang curl {hidden} 1")).is_ok_and(|args| args.flags.is_empty())
            );
        }
    }

    #[test]
    fn the_help_names_every_setting() {
        let mut command = command(Program::Callboard);
        let serve = command.find_subcommand_mut("serve").unwrap();
        let help = serve.render_long_help().to_string();
        for name in SETTINGS {
            assert!(help.contains(&format!("--{}", name.flag)), "{help}");
            assert!(help.contains(name.default), "{help}");
        }
    }
}
