//! `callboard cluster status` and `cluster drain`: the cluster as one of its nodes knows it, and the end of a node.
//!
//! The state comes from an admin listener or over QUIC. A node is drained over QUIC, by itself: the command asks any
//! node for the address, and then orders the drain of the node there, which checks the operator's certificate.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use callboard_core::CallError;
use callboard_core::remote::MemberDescription;
use callboard_http_client::Origin;
use callboard_net::{Client, ClusterState, QuicUrl};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::Value;

use super::admin_client::{self, AdminClient};
use super::block_on;
use super::status::{pause, watch};
use crate::client::args::{timeout, value_of};
use crate::error::CliError;
use crate::identity::identity;
use crate::output;
use crate::table::{Table, dash, items, or_dash, shown_span, span, text};

/// How long a command waits for a node that is just starting.
const START_UP_WAIT: Duration = Duration::from_secs(3);

/// The node to ask, and how to print its answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClusterStatusArgs {
    source: Source,
    is_json: bool,
    /// The time between two looks, if it is asked again and again.
    watch: Option<Duration>,
}

/// Where the state is asked for.
#[derive(Clone, Debug, PartialEq)]
enum Source {
    Admin(AdminClient),
    Quic(QuicNode),
}

/// The node to drain, and the one to ask for its address.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DrainArgs {
    node: String,
    asked: QuicNode,
}

/// A node that is asked over QUIC, with this identity.
#[derive(Clone, Debug, PartialEq)]
struct QuicNode {
    url: QuicUrl,
    cluster: Option<PathBuf>,
    timeout: Duration,
}

/// A URL of either kind.
#[derive(Clone, Debug)]
enum NodeUrl {
    Admin(Origin),
    Quic(QuicUrl),
}

impl ClusterStatusArgs {
    /// The grammar.
    pub(crate) fn command() -> Command {
        let url =
            |arg: Arg| arg.value_parser(node_url).help("The node to ask: its admin listener, or quic://HOST:PORT");
        Command::new("status")
            .about(
                "Show the nodes of a cluster, their links, and their stages with their load, as one of them knows it",
            )
            .args(AdminClient::args("10s"))
            .mut_arg("url", url)
            .arg(cluster())
            .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print the state as JSON"))
            .arg(watch("Ask again each time, until it is interrupted"))
    }

    /// Reads the matches of clap.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Self {
        let source = match value_of(matches, "url") {
            NodeUrl::Admin(origin) => Source::Admin(AdminClient::to(origin, matches)),
            NodeUrl::Quic(url) => Source::Quic(QuicNode::from_matches(url, matches)),
        };
        let watch = matches.get_one("watch").copied();
        Self { source, is_json: matches.get_flag("json"), watch }
    }
}

impl Source {
    fn state(&self) -> Result<Value, CliError> {
        match self {
            Self::Admin(client) => client.ask("GET", "/v1/cluster".to_owned()),
            Self::Quic(node) => {
                let state = block_on(within(node.timeout, node.state()))?;
                serde_json::to_value(state).map_err(|error| CliError::because("the state has no JSON", &error))
            }
        }
    }
}

impl DrainArgs {
    /// The grammar.
    pub(crate) fn command() -> Command {
        Command::new("drain").about("Drain a node: it finishes its calls and ends, as on SIGTERM").args([
            Arg::new("node").value_name("NODE").required(true).help("Name of the node, or its address"),
            Arg::new("url")
                .value_name("URL")
                .required(true)
                .value_parser(quic_url)
                .help("Any node of the cluster: quic://HOST:PORT"),
            cluster(),
            timeout("10s", "How long to wait for the answers"),
        ])
    }

    /// Reads the matches of clap.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Self {
        let asked = QuicNode::from_matches(value_of(matches, "url"), matches);
        Self { node: value_of(matches, "node"), asked }
    }
}

fn cluster() -> Arg {
    Arg::new("cluster")
        .long("cluster")
        .value_name("DIR")
        .value_parser(value_parser!(PathBuf))
        .help("Identity to ask with over QUIC: the directory of an operator [default: the development identity]")
}

fn node_url(text: &str) -> Result<NodeUrl, String> {
    if text.starts_with("quic://") {
        quic_url(text).map(NodeUrl::Quic)
    } else {
        admin_client::origin(text).map(NodeUrl::Admin)
    }
}

fn quic_url(text: &str) -> Result<QuicUrl, String> {
    text.parse::<QuicUrl>().map_err(|error| error.to_string())
}

impl QuicNode {
    fn from_matches(url: QuicUrl, matches: &ArgMatches) -> Self {
        let cluster = matches.get_one::<PathBuf>("cluster").cloned();
        Self { url, cluster, timeout: value_of(matches, "timeout") }
    }

    /// The same identity, to ask the node at this address.
    fn at(&self, address: &str) -> Result<Self, CliError> {
        let url = quic_url(&format!("quic://{address}")).map_err(CliError::Failed)?;
        Ok(Self { url, ..self.clone() })
    }

    async fn connect(&self) -> Result<Client, CliError> {
        let mut builder = Client::builder().start_up_wait(START_UP_WAIT.min(self.timeout));
        if let Some(directory) = &self.cluster {
            builder = builder.identity(identity(Some(directory))?);
        }
        let client = builder.connect(&self.url.to_string()).await;
        client.map_err(|error| CliError::because(&self.url, &error))
    }

    fn refused(&self, error: &CallError) -> CliError {
        CliError::because(&self.url, error)
    }

    async fn state(&self) -> Result<ClusterState, CliError> {
        let client = self.connect().await?;
        let state = client.cluster_state().await;
        client.close().await;
        state.map_err(|error| self.refused(&error))
    }

    /// Drains the node at this address, if it still is the one of this name.
    async fn drain(&self, name: &str) -> Result<(), CliError> {
        let client = self.connect().await?;
        let drained = async {
            let state = client.cluster_state().await.map_err(|error| self.refused(&error))?;
            let there = state.members.iter().find(|member| member.is_this_node).map_or("", |member| &member.name);
            if there != name {
                let message = format!("{}: the node there is `{there}`, not `{name}`: nothing was drained", self.url);
                return Err(CliError::Failed(message));
            }
            client.drain_node().await.map_err(|error| self.refused(&error))
        };
        let drained = drained.await;
        client.close().await;
        drained
    }
}

/// Shows the state of the cluster, once or again and again.
pub(crate) fn run_status(args: &ClusterStatusArgs) -> Result<(), CliError> {
    let state = args.source.state()?;
    if args.is_json {
        return output::result(state);
    }
    if items(&state["members"]).is_empty() {
        let message = "this node knows no members: it is in no cluster (--quic, --join), or of an earlier version";
        return Err(CliError::Failed(message.to_owned()));
    }
    output::result(StateText::new(&state))?;
    let Some(between) = args.watch else { return Ok(()) };
    loop {
        pause(between)?;
        match args.source.state() {
            Ok(state) => output::result(format_args!("\n{}", StateText::new(&state)))?,
            // It may be started again.
            Err(error) => output::note(output::failure(&error.to_string())),
        }
    }
}

/// Drains a node.
pub(crate) fn run_drain(args: &DrainArgs) -> Result<(), CliError> {
    let DrainArgs { node, asked } = args;
    block_on(within(asked.timeout, async {
        let state = asked.state().await?;
        let member = find(&state.members, node)?;
        // The asked node may be reached by another address than the others know.
        let there = if member.is_this_node { asked.clone() } else { asked.at(&member.address)? };
        there.drain(&member.name).await?;
        output::note(format_args!("{} at {} is draining: it finishes its calls and ends", member.name, member.address));
        Ok(())
    }))
}

/// The member of this name; else the one at this address. An earlier node at that address may be down.
fn find<'a>(members: &'a [MemberDescription], node: &str) -> Result<&'a MemberDescription, CliError> {
    let is_down = |member: &&MemberDescription| member.state.is_gone();
    let at_address = || members.iter().filter(|member| member.address == node);
    let found = members
        .iter()
        .find(|member| member.name == node)
        .or_else(|| at_address().find(|member| !is_down(member)))
        .or_else(|| at_address().next());
    match found {
        Some(member) if is_down(&member) => Err(CliError::Failed(format!("the node `{node}` is down"))),
        Some(member) => Ok(member),
        None => {
            let up: Vec<&str> = members.iter().filter(|member| !is_down(member)).map(|member| &*member.name).collect();
            Err(CliError::Failed(format!("there is no node `{node}` in the cluster: its nodes are {}", first(&up))))
        }
    }
}

/// The first of these names, and how many more there are.
fn first(names: &[impl AsRef<str>]) -> String {
    const NAMED: usize = 10;
    let shown = names.iter().take(NAMED).map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    if names.len() > NAMED { format!("{shown} and {} more", names.len() - NAMED) } else { shown }
}

async fn within<T>(limit: Duration, asking: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let answered = tokio::time::timeout(limit, asking).await;
    answered.unwrap_or_else(|_| Err(CliError::Failed(format!("no answer within {limit:?}"))))
}

/// How many members are in which state, in one line.
pub(super) fn summary(members: &[Value]) -> String {
    let of_state = |state: &str| -> Vec<String> {
        let names = members.iter().filter(|member| member["state"] == state).map(|member| text(&member["name"]));
        names.collect()
    };
    let mut line = format!("{} up", of_state("up").len());
    for state in ["suspected", "down", "left"] {
        let names = of_state(state);
        if !names.is_empty() {
            line = format!("{line}, {} {state} ({})", names.len(), first(&names));
        }
    }
    line
}

/// The state of a cluster, for people.
struct StateText<'a> {
    state: &'a Value,
    /// Since 1970.
    now: Duration,
}

impl<'a> StateText<'a> {
    fn new(state: &'a Value) -> Self {
        Self { state, now: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() }
    }
}

impl fmt::Display for StateText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members = items(&self.state["members"]);
        writeln!(f, "nodes: {}\n", summary(members))?;
        let mut nodes = Table::new(["node", "address", "state", "phase", "for", "version", "generation"]);
        let mut stages = Table::new(["stage", "node", "revision", "replicas", "busy", "queue"]);
        let (mut has_stages, mut left_out) = (false, 0u64);
        for member in members {
            let (name, report) = (text(&member["name"]), &member["report"]);
            let is_down = member["state"] == "down" || member["state"] == "left";
            let since = if is_down || report.is_null() { &member["since"] } else { &report["since"] };
            let since = since.as_u64().filter(|since| *since > 0).map(Duration::from_secs);
            let asked = if member["is_this_node"] == true { " (asked)" } else { "" };
            nodes.row([
                format!("{name}{asked}"),
                text(&member["address"]),
                text(&member["state"]),
                if is_down { dash() } else { text(&report["phase"]).replace('_', " ") },
                since.map_or_else(dash, |since| shown_span(self.now.saturating_sub(since))),
                text(&report["version"]),
                // Empty if the asked node has an earlier version.
                member["generation"].as_str().filter(|it| !it.is_empty()).map_or_else(dash, str::to_owned),
            ]);
            if is_down {
                continue;
            }
            left_out = left_out.saturating_add(report["left_out"].as_u64().unwrap_or_default());
            for stage in items(&report["stages"]) {
                has_stages = true;
                let replicas = format!("{} of {}", text(&stage["ready"]), text(&stage["wanted"]));
                // Unknown of a node that was not reached.
                let load = items(&member["load"]).iter().find(|load| load["name"] == stage["name"]);
                let [busy, queue] = load.map_or_else(
                    || [dash(), dash()],
                    |load| [text(&load["busy"]), format!("{}/{}", text(&load["queued"]), text(&load["queue_limit"]))],
                );
                stages.row([text(&stage["name"]), name.clone(), text(&stage["revision"]), replicas, busy, queue]);
            }
        }
        write!(f, "{nodes}")?;
        if has_stages {
            write!(f, "\n{stages}")?;
        }
        if left_out > 0 {
            writeln!(f, "and {left_out} routes and stages that have no room in the nodes' reports")?;
        }
        let peers = items(&self.state["peers"]);
        if !peers.is_empty() {
            let mut links = Table::new(["link to", "node", "state"]);
            for peer in peers {
                let state = match (&peer["connected_for"], peer["silent"].as_bool()) {
                    (Value::Null, _) => "not connected".to_owned(),
                    (_, Some(true)) => "silent".to_owned(),
                    (lasting, _) => format!("connected for {}", shown_span(span(lasting))),
                };
                links.row([text(&peer["address"]), or_dash(text(&peer["node"])), state]);
            }
            write!(f, "\n{links}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use callboard_core::remote::MemberState;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cluster_is_shown_as_tables() {
        let stage = |ready| json!({ "name": "digits", "revision": 3, "ready": ready, "wanted": 2 });
        let report = |phase: &str, since: u64, ready: u64| json!({ "version": "1.2.3", "phase": phase, "since": since, "stages": [stage(ready)], "left_out": 0 });
        let load = json!([{ "name": "digits", "queued": 7, "queue_limit": 1024, "busy": 2, "capacity": 16 }]);
        let member = |name: &str, state: &str, report: Value| {
            json!({ "name": name, "address": format!("{name}:1"), "state": state, "since": 940, "report": report,
                    "generation": if name == "d" { "" } else { "17" }, "is_this_node": name == "a",
                    "load": if name == "a" { load.clone() } else { Value::Null } })
        };
        let state = json!({
            "members": [
                member("a", "up", report("ready", 400, 2)),
                member("b", "suspected", report("not_ready", 990, 1)),
                member("c", "left", report("draining", 930, 2)),
                member("d", "down", Value::Null),
                member("e", "up", Value::Null),
            ],
            "peers": [
                { "address": "b:1", "node": "b", "connected_for": { "secs": 61, "nanos": 0 }, "silent": true },
                { "address": "c:1", "node": "", "connected_for": null, "silent": false },
                { "address": "e:1", "node": "e", "connected_for": { "secs": 61, "nanos": 0 }, "silent": false },
            ],
        });
        let expected = "\
nodes: 2 up, 1 suspected (b), 1 down (d), 1 left (c)

node       address  state      phase      for     version  generation
a (asked)  a:1      up         ready      10 min  1.2.3    17
b          b:1      suspected  not ready  10 s    1.2.3    17
c          c:1      left       -          1 min   1.2.3    17
d          d:1      down       -          1 min   -        -
e          e:1      up         -          1 min   -        17

stage   node  revision  replicas  busy  queue
digits  a     3         2 of 2    2     7/1024
digits  b     3         1 of 2    -     -

link to  node  state
b:1      b     silent
c:1      -     not connected
e:1      e     connected for 1 min
";
        assert_eq!(StateText { state: &state, now: Duration::from_secs(1_000) }.to_string(), expected);
    }

    #[test]
    fn a_node_is_found_by_name_or_address_unless_it_is_down() {
        let member = |name: &str, state| MemberDescription::new(name, format!("{name}:1"), state, 0);
        let members =
            [member("a", MemberState::Up), member("b", MemberState::Suspected), member("c", MemberState::Down)];
        assert_eq!(find(&members, "a").unwrap().name, "a");
        assert_eq!(find(&members, "b:1").unwrap().name, "b");
        assert_eq!(find(&members, "c").unwrap_err().to_string(), "the node `c` is down");
        let unknown = find(&members, "x").unwrap_err().to_string();
        assert_eq!(unknown, "there is no node `x` in the cluster: its nodes are a, b");
        // A node was restarted at the same address under another name.
        let mut again = MemberDescription::new("z", "c:1", MemberState::Up, 0);
        let members = [members, [member("d", MemberState::Left), again.clone(), member("e", MemberState::Up)]].concat();
        assert_eq!(find(&members, "c:1").unwrap().name, "z");
        assert_eq!(find(&members, "c").unwrap_err().to_string(), "the node `c` is down");
        again.state = MemberState::Down;
        assert_eq!(find(&[again], "c:1").unwrap_err().to_string(), "the node `c:1` is down");
    }

    #[test]
    fn a_line_names_ten_nodes_of_a_state_and_counts_the_others() {
        let members: Vec<Value> = (0..12).map(|n| json!({ "name": format!("n{n}"), "state": "down" })).collect();
        assert_eq!(summary(&members), "0 up, 12 down (n0, n1, n2, n3, n4, n5, n6, n7, n8, n9 and 2 more)");
    }

    #[test]
    fn reports_that_lie_about_what_they_leave_out_are_shown() {
        let member = |left_out: u64| json!({ "name": "a", "state": "up", "report": { "left_out": left_out } });
        let state = json!({ "members": [member(u64::MAX), member(5)] });
        let shown = StateText { state: &state, now: Duration::ZERO }.to_string();
        assert!(
            shown.ends_with(&format!("and {} routes and stages that have no room in the nodes' reports\n", u64::MAX))
        );
    }
}
