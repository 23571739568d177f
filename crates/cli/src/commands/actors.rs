//! `callboard actors`: the keyed actors of a running node, from its admin listener, and orders for a key.

use std::fmt;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

use super::admin_client::AdminClient;
use crate::client::args::value_of;
use crate::error::CliError;
use crate::table::{Table, items, or_dash, text};
use crate::{output, plain};

/// A look at keyed actors, or an order for a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ActorsArgs {
    action: Action,
    client: AdminClient,
    is_json: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    /// The kinds, or the active keys of one.
    List(Option<String>),
    Ask {
        kind: String,
        key: String,
        question: String,
        value: Value,
    },
    Forget {
        kind: String,
        key: String,
    },
    /// `passivate` or `release`.
    Order {
        verb: &'static str,
        kind: String,
        key: String,
    },
}

/// The most keys that are shown.
const KEYS: usize = 1000;

impl ActorsArgs {
    /// The grammar.
    pub(crate) fn command() -> Command {
        let json = Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print the answer as JSON");
        let with = |command: Command, timeout| command.args(AdminClient::args(timeout)).arg(json.clone());
        let kind = Arg::new("kind").value_name("KIND").required(true).help("The kind, such as cart");
        let key = Arg::new("key").value_name("KEY").required(true).help("The key");
        let question = Arg::new("question").value_name("QUESTION").required(true).help("The name of the question");
        let value = Arg::new("value").long("value").value_name("TEXT").default_value("null").value_parser(json_of);
        let of_key = |command: Command| command.args([kind.clone(), key.clone()]);
        let list = Command::new("list")
            .about("Show the kinds of keyed actors, or the active keys of one")
            .arg(kind.clone().required(false).long("kind").help("Show the active keys of this kind"));
        let ask = of_key(Command::new("ask").about("Ask the actor of a key, on whichever node, and print its answer"))
            .args([question, value.help("The question as JSON")]);
        let passivate = of_key(
            Command::new("passivate").about("Ask a key on this node to save its state and end, unless a message waits"),
        );
        let release = of_key(Command::new("release").about(
            "Ask a key on this node to save its state and end; its messages follow it to the node that has it now",
        ));
        let forget = of_key(
            Command::new("forget").about("Remove the state of a key, on whichever node, as if it had never been asked"),
        );
        Command::new("actors")
            .about("Show the keyed actors of a running node, ask them questions, and ask them to end on this node")
            .subcommand_required(true)
            .subcommands([with(list, "10s"), with(ask, "30s"), with(passivate, "10s"), with(release, "10s")])
            .subcommand(with(forget, "30s"))
    }

    /// Reads the matches of clap.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Self {
        let (verb, matches) = matches.subcommand().expect("clap requires a subcommand");
        let word = |name: &str| value_of::<String>(matches, name);
        let action = match verb {
            "ask" => Action::Ask {
                kind: word("kind"),
                key: word("key"),
                question: word("question"),
                value: value_of(matches, "value"),
            },
            "forget" => Action::Forget { kind: word("kind"), key: word("key") },
            "passivate" => Action::Order { verb: "passivate", kind: word("kind"), key: word("key") },
            "release" => Action::Order { verb: "release", kind: word("kind"), key: word("key") },
            _ => Action::List(matches.get_one::<String>("kind").cloned()),
        };
        Self { action, client: AdminClient::from_matches(matches), is_json: matches.get_flag("json") }
    }
}

fn json_of(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("expected JSON, such as '{{\"item\": \"tea\"}}': {error}"))
}

/// Asks, and prints the answer.
pub(crate) fn run(args: &ActorsArgs) -> Result<(), CliError> {
    let answer = match &args.action {
        Action::List(None) => args.client.ask("GET", "/v1/actors".to_owned())?,
        Action::List(Some(kind)) => args.client.ask("GET", format!("/v1/actors/{}?limit={KEYS}", encoded(kind)))?,
        Action::Ask { kind, key, question, value } => {
            let (kind, key, question) = (encoded(kind), encoded(key), encoded(question));
            args.client.post(format!("/v1/actors/{kind}/ask?key={key}&question={question}"), value)?
        }
        Action::Forget { kind, key } => {
            args.client.ask("POST", format!("/v1/actors/{}/forget?key={}", encoded(kind), encoded(key)))?
        }
        Action::Order { verb, kind, key } => {
            args.client.ask("POST", format!("/v1/actors/{}/{verb}?key={}", encoded(kind), encoded(key)))?
        }
    };
    if args.is_json {
        return output::result(&answer);
    }
    match &args.action {
        Action::List(None) => output::result(KindsText(items(&answer["kinds"]))),
        Action::List(Some(_)) => output::result(KeysText(&answer)),
        Action::Ask { .. } => output::result(&answer["answer"]),
        Action::Forget { key, .. } => output::result(format_args!("{}: was forgotten", plain::line(key))),
        Action::Order { key, .. } if answer["was_active"] == true => {
            output::result(format_args!("{}: was asked to save its state and end", plain::line(key)))
        }
        Action::Order { key, .. } => output::result(format_args!("{}: is not active on this node", plain::line(key))),
    }
}

/// A name in a URL.
fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let escaped = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    name.bytes().map(escaped).collect()
}

/// The kinds, for people.
struct KindsText<'a>(&'a [Value]);

impl fmt::Display for KindsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(["kind", "active keys", "waiting", "refused", "crashes", "last crash"]);
        for kind in self.0 {
            let last = items(&kind["reasons"]).last().and_then(Value::as_str).unwrap_or_default();
            let [active, waiting, refused, crashes] =
                ["active_keys", "waiting", "refused", "crashes"].map(|name| text(&kind[name]));
            let last = or_dash(plain::line(last).into_owned());
            table.row([text(&kind["kind"]), active, waiting, refused, crashes, last]);
        }
        f.write_str(table.to_string().trim_end())
    }
}

/// Active keys, for people: one on each line.
struct KeysText<'a>(&'a Value);

impl fmt::Display for KeysText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = items(&self.0["keys"]);
        let lines = keys.iter().filter_map(Value::as_str).map(|key| plain::line(key).into_owned());
        let mut lines: Vec<String> = lines.collect();
        let active = self.0["active_keys"].as_u64().unwrap_or_default();
        if active > keys.len() as u64 {
            lines.push(format!("… of {active}"));
        }
        f.write_str(&lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_and_keys_are_shown_for_people() {
        let kinds = [
            json!({ "kind": "cart", "active_keys": 12, "waiting": 0, "refused": 3, "crashes": 1,
                    "reasons": ["cart/ann: panicked: no\nmoney"] }),
            json!({ "kind": "visit", "active_keys": 0, "waiting": 0, "refused": 0, "crashes": 0, "reasons": [] }),
        ];
        let expected = "\
kind   active keys  waiting  refused  crashes  last crash
cart   12           0        3        1        cart/ann: panicked: no\\u000amoney
visit  0            0        0        0        -";
        assert_eq!(KindsText(&kinds).to_string(), expected);
        let keys = json!({ "active_keys": 3, "keys": ["ann", "b\nb"] });
        assert_eq!(KeysText(&keys).to_string(), "ann\nb\\u000ab\n… of 3");
    }

    #[test]
    fn a_question_is_json_and_names_are_escaped() {
        let action = |words: &[&str]| {
            let matches = ActorsArgs::command().try_get_matches_from([&["actors"], words].concat())?;
            Ok::<_, clap::Error>(ActorsArgs::from_matches(&matches).action)
        };
        let text = str::to_owned;
        let asked = action(&["ask", "cart", "ann", "add", "--value", "{\"item\": \"tea\"}"]).unwrap();
        let value = json!({ "item": "tea" });
        assert_eq!(asked, Action::Ask { kind: text("cart"), key: text("ann"), question: text("add"), value });
        assert!(action(&["ask", "cart", "ann", "add", "--value", "tea"]).is_err());
        assert_eq!(action(&["list"]).unwrap(), Action::List(None));
        assert_eq!(action(&["list", "--kind", "cart"]).unwrap(), Action::List(Some(text("cart"))));
        let released = Action::Order { verb: "release", kind: text("cart"), key: text("ann") };
        assert_eq!(action(&["release", "cart", "ann"]).unwrap(), released);
        assert_eq!(encoded("a/b c&ü"), "a%2Fb%20c%26%C3%BC");
    }
}
