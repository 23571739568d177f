//! `callboard models`: the models of a running node, from its admin listener: which there are, and changes of them.

use std::fmt;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};

use super::super::client::args::value_of;
use super::super::error::CliError;
use super::super::table::{Table, items, or_dash, text};
use super::super::{output, plain};
use super::admin_client::AdminClient;

/// What to do with the models of a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelsArgs {
    action: Action,
    client: AdminClient,
    is_json: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    List,
    /// `load` or `unload`, and the model.
    Change(&'static str, String),
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
        Command::new("models")
            .about("Show, load and unload the models of a running node")
            .subcommand_required(true)
            .subcommands([with(list, "10s"), with(load.arg(name.clone()), "10m"), with(unload.arg(name), "1m")])
    }

    /// Reads the matches of clap.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Self {
        let (verb, matches) = matches.subcommand().expect("clap requires a subcommand");
        let name = || value_of(matches, "name");
        let action = match verb {
            "load" => Action::Change("load", name()),
            "unload" => Action::Change("unload", name()),
            _ => Action::List,
        };
        Self { action, client: AdminClient::from_matches(matches), is_json: matches.get_flag("json") }
    }
}

/// Asks, and prints the answer.
pub(crate) fn run(args: &ModelsArgs) -> Result<(), CliError> {
    let models = match &args.action {
        Action::List => list(&args.client)?,
        Action::Change(verb, name) => {
            vec![args.client.ask("POST", format!("/v1/models/{}/{verb}", encoded(name)))?]
        }
    };
    if args.is_json {
        return match args.action {
            Action::List => output::result(json!({ "models": models })),
            Action::Change(..) => output::result(&models[0]),
        };
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
            if versions.is_empty() || model["reason"].is_string() {
                let state = if model["served"] == true { "served" } else { "not served" };
                table.row([name.clone(), "-".to_owned(), state.to_owned(), reason(&model["reason"])]);
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
            json!({ "name": "route", "served": false, "default_version": null, "reason": null, "versions": [] }),
        ];
        let expected = "\
model   version  state            reason
digits  9        served           -
digits  10       served, default  -
digits  11       not served       the file is empty
digits  v2       not served       a version is a\\u000anumber
route   -        not served       -";
        assert_eq!(ModelsText(&models).to_string(), expected);
    }

    #[test]
    fn a_name_in_a_url_is_escaped() {
        assert_eq!(encoded("a/b c?ü"), "a/b%20c%3F%C3%BC");
    }
}
