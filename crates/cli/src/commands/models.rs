//! `callboard models`: the models of a running node, from its admin listener: which there are, and changes of them.

use std::fmt;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Value, json};

use super::admin_client::AdminClient;
use crate::client::args::value_of;
use crate::error::CliError;
use crate::table::{Table, items, or_dash, text};
use crate::{output, plain};

/// An order for the models of a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelsArgs {
    action: Action,
    client: AdminClient,
    is_json: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    List,
    /// `load` or `unload`, and the model; `promote` or `rollback`, and its route.
    Change(&'static str, String),
    /// `canary` or `shadow`.
    RollOut {
        verb: &'static str,
        name: String,
        version: Option<u64>,
        share: f64,
        min_calls: Option<u64>,
    },
    Scale {
        name: String,
        version: Option<u64>,
        replicas: u64,
    },
}

/// Models of one page of the list.
const PAGE: usize = 1000;

impl ModelsArgs {
    /// The grammar.
    pub(crate) fn command() -> Command {
        let json = Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print the answer as JSON");
        let name = Arg::new("name").value_name("NAME").required(true).help("The model");
        // A load may take as long as the model's warm-up.
        let with = |command: Command, timeout| command.args(AdminClient::args(timeout)).arg(json.clone());
        let list = Command::new("list").about("Show the models, their versions, and why a version is not served");
        let load = Command::new("load")
            .about("Serve a model, or its new and changed versions; it answers when callers see the change");
        let unload = Command::new("unload").about("Close a model with all of its versions; running calls finish");
        let canary =
            Command::new("canary").about("Give a share of the calls to the next revision, which is judged by them");
        let shadow = Command::new("shadow").about("Give copies of calls to the next revision, and compare its answers");
        let promote = Command::new("promote").about("Let the next revision take over now");
        let rollback =
            Command::new("rollback").about("End the rollout, or go back to the revision that is kept after it");
        Command::new("models")
            .about("Show, load, unload and scale the models of a running node, and roll them out step by step")
            .subcommand_required(true)
            .subcommands([with(list, "10s"), with(load.arg(name.clone()), "10m"), with(unload.arg(&name), "1m")])
            .subcommands([with(roll_out(canary), "10m"), with(roll_out(shadow), "10m")])
            .subcommands([with(promote.arg(&name), "10s"), with(rollback.arg(name), "10s"), with(scale(), "10m")])
    }

    /// Reads the matches of clap.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Self {
        let (verb, matches) = matches.subcommand().expect("clap requires a subcommand");
        let name = || value_of(matches, "name");
        let action = match verb {
            "load" => Action::Change("load", name()),
            "unload" => Action::Change("unload", name()),
            "promote" => Action::Change("promote", name()),
            "rollback" => Action::Change("rollback", name()),
            "canary" => roll_out_of("canary", matches),
            "shadow" => roll_out_of("shadow", matches),
            "scale" => {
                let (name, version) = name_and_version(&name());
                Action::Scale { name, version, replicas: value_of(matches, "replicas") }
            }
            _ => Action::List,
        };
        Self { action, client: AdminClient::from_matches(matches), is_json: matches.get_flag("json") }
    }
}

/// The arguments of a rollout.
fn roll_out(command: Command) -> Command {
    let name = Arg::new("name").value_name("NAME[:VERSION]").required(true).help("The model, and the version to try");
    let share = Arg::new("share").long("share").value_name("SHARE").required(true).value_parser(part);
    let calls = Arg::new("min-calls").long("min-calls").value_name("COUNT").value_parser(value_parser!(u64));
    command.args([
        name,
        share.help("The share of the calls, such as 5%"),
        calls.help("The calls of the next revision before it is promoted"),
    ])
}

fn roll_out_of(verb: &'static str, matches: &ArgMatches) -> Action {
    let (name, version) = name_and_version(&value_of::<String>(matches, "name"));
    let min_calls = matches.get_one("min-calls").copied();
    Action::RollOut { verb, name, version, share: value_of(matches, "share"), min_calls }
}

/// `NAME` or `NAME:VERSION`.
fn name_and_version(text: &str) -> (String, Option<u64>) {
    match text.rsplit_once(':').map(|(name, version)| (name, version.parse())) {
        Some((name, Ok(version))) => (name.to_owned(), Some(version)),
        _ => (text.to_owned(), None),
    }
}

/// The arguments of a change of replicas.
fn scale() -> Command {
    let name = Arg::new("name").value_name("NAME[:VERSION]").required(true);
    let replicas = Arg::new("replicas").value_name("REPLICAS").required(true).value_parser(|text: &str| {
        let expected = "expected a whole number; the bounds between which a model scales by itself are `replicas` of its \
                        settings";
        text.parse::<u64>().map_err(|_| expected)
    });
    Command::new("scale").about("Set the number of replicas of a version; it answers when the new ones are warm").args(
        [name.help("The model, and the version if not the default one"), replicas.help("How many replicas to run")],
    )
}

fn part(text: &str) -> Result<f64, String> {
    let expected = || "expected a part such as 5% or 0.5%".to_owned();
    let percent: f64 = text.strip_suffix('%').and_then(|number| number.parse().ok()).ok_or_else(expected)?;
    if percent > 0.0 && percent <= 100.0 { Ok(percent / 100.0) } else { Err(expected()) }
}

/// Asks, and prints the answer.
pub(crate) fn run(args: &ModelsArgs) -> Result<(), CliError> {
    let models = match &args.action {
        Action::List => list(&args.client)?,
        Action::Change(verb, name) => {
            vec![args.client.ask("POST", format!("/v1/models/{}/{verb}", encoded(name)))?]
        }
        Action::RollOut { verb, name, version, share, min_calls } => {
            let version = version.map_or_else(String::new, |version| format!("&version={version}"));
            let calls = min_calls.map_or_else(String::new, |calls| format!("&min_calls={calls}"));
            let path = format!("/v1/models/{}/{verb}?share={share}{version}{calls}", encoded(name));
            vec![args.client.ask("POST", path)?]
        }
        Action::Scale { name, version, replicas } => {
            let version = version.map_or_else(String::new, |version| format!("?version={version}"));
            let path = format!("/v1/models/{}/scale{version}", encoded(name));
            vec![args.client.post(path, &json!({ "replicas": replicas }))?]
        }
    };
    if args.is_json {
        return match args.action {
            Action::List => output::result(json!({ "models": models })),
            Action::Change(..) | Action::RollOut { .. } | Action::Scale { .. } => output::result(&models[0]),
        };
    }
    if let Some(replicas) = models.first().and_then(|answer| answer.get("replicas")) {
        return output::result(format_args!("stage {}: {replicas} replicas", text(&models[0]["stage"])));
    }
    if let Some(rollout) = models.first().and_then(|answer| answer.get("rollout")) {
        let running = || {
            // 0.07 times 100 is 7.000000000000001.
            let percent = (rollout["share"].as_f64().unwrap_or_default() * 10_000.0).round() / 100.0;
            format!("{} with {percent}% of the calls", text(&rollout["mode"]))
        };
        let (state, reason) = (text(&rollout["state"]), rollout["reason"].as_str().map_or_else(running, str::to_owned));
        return output::result(format_args!("{}: {state}, {reason}", text(&models[0]["route"])));
    }
    output::result(ModelsText(&models))
}

/// All pages.
fn list(client: &AdminClient) -> Result<Vec<Value>, CliError> {
    let mut models = Vec::new();
    let mut after = String::new();
    loop {
        let mut page = client.ask("GET", format!("/v1/models?limit={PAGE}{after}"))?;
        if let Value::Array(page) = page["models"].take() {
            models.extend(page);
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={}", encoded(next)),
            None => return Ok(models),
        }
    }
}

/// A name in a URL; slashes stay.
fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/:@".contains(&byte);
    let escaped = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    name.bytes().map(escaped).collect()
}

/// The models, for people.
struct ModelsText<'a>(&'a [Value]);

impl fmt::Display for ModelsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(["model", "version", "state", "reason"]);
        for model in self.0 {
            let name = text(&model["name"]);
            let reason =
                |value: &Value| or_dash(value.as_str().map_or_else(String::new, |line| plain::line(line).into_owned()));
            let versions = items(&model["versions"]);
            let loading = model["loading_seconds"].as_f64();
            if versions.is_empty() || model["reason"].is_string() || loading.is_some() {
                let state = match loading {
                    Some(seconds) => format!("loading for {seconds:.0} s"),
                    None if model["served"] == true => "served".to_owned(),
                    None => "not served".to_owned(),
                };
                table.row([name.clone(), "-".to_owned(), state, reason(&model["reason"])]);
            }
            for version in versions {
                let number = text(&version["version"]);
                let is_default = model["default_version"].as_u64().is_some_and(|default| default.to_string() == number);
                let state = match (version["served"] == true, is_default) {
                    (true, true) => "served, default",
                    (true, false) => "served",
                    (false, _) => "not served",
                };
                table.row([name.clone(), number, state.to_owned(), reason(&version["reason"])]);
            }
        }
        f.write_str(table.to_string().trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_shown_as_a_table() {
        let models = [
            json!({ "name": "digits", "served": true, "default_version": 10, "reason": null, "versions": [
                { "version": "9", "served": true, "reason": null },
                { "version": "10", "served": true, "reason": null },
                { "version": "11", "served": false, "reason": "the file is empty" },
                { "version": "v2", "served": false, "reason": "a version is a\nnumber" },
            ] }),
            json!({ "name": "new", "served": false, "default_version": null, "reason": null, "loading_seconds": 12.3,
                    "versions": [] }),
            json!({ "name": "route", "served": false, "default_version": null, "reason": null, "versions": [] }),
        ];
        let expected = "\
model   version  state             reason
digits  9        served            -
digits  10       served, default   -
digits  11       not served        the file is empty
digits  v2       not served        a version is a\\u000anumber
new     -        loading for 12 s  -
route   -        not served        -";
        assert_eq!(ModelsText(&models).to_string(), expected);
    }

    #[test]
    fn a_rollout_has_a_model_a_version_and_a_share() {
        let action = |words: &[&str]| {
            let matches = ModelsArgs::command().try_get_matches_from([&["models"], words].concat())?;
            Ok::<_, clap::Error>(ModelsArgs::from_matches(&matches).action)
        };
        let planned = |verb, name: &str, version, share, min_calls| Action::RollOut {
            verb,
            name: name.to_owned(),
            version,
            share,
            min_calls,
        };
        let canary = action(&["canary", "digits:3", "--share", "5%"]).unwrap();
        assert_eq!(canary, planned("canary", "digits", Some(3), 0.05, None));
        let shadow = action(&["shadow", "a/b", "--share", "100%", "--min-calls", "9"]).unwrap();
        assert_eq!(shadow, planned("shadow", "a/b", None, 1.0, Some(9)));
        assert!(action(&["canary", "digits", "--share", "5"]).unwrap_err().to_string().contains("such as 5%"));
        assert_eq!(action(&["rollback", "digits"]).unwrap(), Action::Change("rollback", "digits".to_owned()));
    }

    #[test]
    fn a_name_in_a_url_is_escaped() {
        assert_eq!(encoded("a/b c?ü"), "a/b%20c%3F%C3%BC");
    }
}
