//! `callboard status`: the status of a running node, from its admin listener, as tables.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use callboard_http::{Calls, DeviceFigures, Figures, Histogram};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};

use super::admin_client::AdminClient;
use super::block_on;
use super::cluster_state::summary;
use crate::client::args::duration;
use crate::error::CliError;
use crate::table::{Table, dash, items, or_dash, percent, shown_bytes, shown_span, span, text};
use crate::{output, plain};

/// The admin listener to ask.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StatusArgs {
    client: AdminClient,
    is_json: bool,
    /// The time between two looks, if it is asked again and again.
    watch: Option<Duration>,
}

impl StatusArgs {
    /// The grammar.
    pub(crate) fn command() -> Command {
        let json = Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print the full status as JSON");
        let watch = watch("Ask again each time, with the figures since the last one, until it is interrupted");
        Command::new("status")
            .about("Show the stages, replicas and queues of a running node")
            .args(AdminClient::args("10s"))
            .arg(json)
            .arg(watch)
    }

    /// Reads the matches of clap.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Self {
        let watch = matches.get_one("watch").copied();
        Self { client: AdminClient::from_matches(matches), is_json: matches.get_flag("json"), watch }
    }
}

/// The argument of commands that ask again and again.
pub(super) fn watch(help: &'static str) -> Arg {
    Arg::new("watch")
        .long("watch")
        .value_name("DURATION")
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("2s")
        .value_parser(duration)
        .conflicts_with("json")
        .help(help)
}

/// Waits until the next look.
pub(super) fn pause(between: Duration) -> Result<(), CliError> {
    block_on(async {
        tokio::time::sleep(between).await;
        Ok(())
    })
}

/// Asks once or again and again, prints the answers.
pub(crate) fn run(args: &StatusArgs) -> Result<(), CliError> {
    let ask = || args.client.ask("GET", "/v1/status".to_owned());
    let read = || args.client.page("/metrics".to_owned()).map(|text| Figures::parse(&text));
    if args.is_json {
        let mut status = ask()?;
        if let Value::Object(entries) = &mut status {
            entries.insert("devices".to_owned(), devices(&read()?));
        }
        return output::result(status);
    }
    let (mut status, mut last, mut asked) = (ask()?, read()?, Instant::now());
    output::result(StatusText { status: &status, earlier: &Value::Null, figures: &last, interval: None })?;
    let Some(between) = args.watch else { return Ok(()) };
    loop {
        pause(between)?;
        let (next, figures) = match ask().and_then(|answer| Ok((answer, read()?))) {
            Ok(answer) => answer,
            // It may be started again.
            Err(error) => {
                output::note(output::failure(&error.to_string()));
                continue;
            }
        };
        let interval = Some(asked.elapsed());
        asked = Instant::now();
        let recent = figures.clone().since(&last);
        let text = StatusText { status: &next, earlier: &status, figures: &recent, interval };
        output::result(format_args!("\n{text}"))?;
        (status, last) = (next, figures);
    }
}

/// The status of a node, for people.
struct StatusText<'a> {
    status: &'a Value,
    /// That of the last look, if there was one.
    earlier: &'a Value,
    figures: &'a Figures,
    /// The time of the figures; None for all time since the start of the node.
    interval: Option<Duration>,
}

impl fmt::Display for StatusText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (health, node) = (&self.status["health"], &self.status["node"]);
        let state = match (health["ready"].as_bool(), health["draining"].as_bool()) {
            (_, Some(true)) => "draining",
            (Some(true), _) => "ready",
            _ => "not ready",
        };
        let up = self.status["uptime_seconds"].as_f64().unwrap_or_default();
        let up = Duration::try_from_secs_f64(up).unwrap_or_default();
        let version = text(&self.status["version"]);
        writeln!(f, "callboard {version}, {state}, up {}", shown_span(up))?;
        let calls = ["in_flight", "admitted", "refused"].map(|key| text(&node[key]));
        writeln!(f, "calls: {} in flight, {} admitted and {} refused since the start", calls[0], calls[1], calls[2])?;
        let wanted = &node["nodes_wanted"];
        if let Some(nodes) = wanted["nodes"].as_f64() {
            writeln!(f, "load: for {nodes:.1} nodes, because {}", text(&wanted["reason"]))?;
        }
        let doors = items(&self.status["doors"]);
        if !doors.is_empty() {
            writeln!(f, "doors: {}", doors.iter().map(text).collect::<Vec<_>>().join(", "))?;
        }
        let loading = items(&self.status["loading"]);
        if !loading.is_empty() {
            let model = |model: &Value| {
                format!("{} (for {:.0} s)", text(&model["name"]), model["seconds"].as_f64().unwrap_or_default())
            };
            writeln!(f, "loading: {}", loading.iter().map(model).collect::<Vec<_>>().join(", "))?;
        }
        let members = items(&node["members"]);
        if !members.is_empty() {
            writeln!(f, "nodes: {}", summary(members))?;
        }
        writeln!(f)?;

        let mut routes = Table::new(["route", "revision", "calls", "calls/s", "failed", "p50", "p99", "pipeline"]);
        for route in items(&node["routes"]) {
            let closed = if route["closed"] == true { " (closed)" } else { "" };
            let calls = route["name"].as_str().and_then(|name| self.figures.routes.get(name));
            let count = |count: fn(&Calls) -> f64| calls.map_or_else(dash, |calls| count(calls).to_string());
            let interval = self.interval.unwrap_or(up).as_secs_f64();
            let rate = calls.filter(|_| interval > 0.0).map(|calls| format!("{:.1}", calls.ended / interval));
            let took = |share| time_of(calls.map(|calls| &calls.took), share);
            routes.row([
                text(&route["name"]) + closed,
                text(&route["revision"]),
                count(|calls| calls.ended),
                rate.unwrap_or_else(dash),
                count(|calls| calls.failed),
                took(0.5),
                took(0.99),
                text(&route["pipeline"]),
            ]);
        }
        writeln!(f, "{routes}")?;
        let rollouts: Vec<_> = items(&node["routes"]).iter().filter(|route| route["rollout"].is_object()).collect();
        if !rollouts.is_empty() {
            let mut table = Table::new(["rollout", "state", "mode", "share", "candidate failed", "current failed"]);
            for route in &rollouts {
                let rollout = &route["rollout"];
                let failed = |side: &Value| format!("{} of {}", text(&side["failed"]), text(&side["calls"]));
                table.row([
                    text(&route["name"]),
                    text(&rollout["state"]),
                    text(&rollout["mode"]),
                    format!("{:.3} %", rollout["share"].as_f64().unwrap_or_default() * 100.0),
                    failed(&rollout["candidate"]),
                    failed(&rollout["current"]),
                ]);
            }
            writeln!(f, "{table}")?;
        }
        let mut stages = Table::new([
            "stage",
            "state",
            "replicas",
            "busy",
            "queue",
            "waits p50",
            "waits p99",
            "batches",
            "mean size",
            "batch takes",
            "restarts",
        ]);
        for stage in items(&node["stages"]) {
            let replicas = items(&stage["replicas"]);
            let queue = stage["name"].as_str().and_then(|name| self.figures.queues.get(name));
            let waits = |share| time_of(queue, share);
            let busy = replicas.iter().filter(|replica| replica["busy"] == true).count();
            stages.row([
                text(&stage["name"]),
                text(&stage["state"]),
                stage["replicas_of"].as_str().map_or_else(|| replicas.len().to_string(), |host| format!("of {host}")),
                busy.to_string(),
                format!("{}/{}", text(&stage["queued"]), text(&stage["queue_limit"])),
                waits(0.5),
                waits(0.99),
                text(&stage["batches"]),
                format!("{:.1}", stage["mean_batch_size"].as_f64().unwrap_or_default()),
                shown_span(span(&stage["batch_estimate"])),
                text(&stage["restarts"]),
            ]);
        }
        for stage in items(&health["remote_stages"]) {
            let state = if stage["ready"] == true { "remote" } else { "unreachable" };
            let mut row = std::array::from_fn(|_| dash());
            (row[0], row[1]) = (text(&stage["name"]), state.to_owned());
            stages.row(row);
        }
        write!(f, "{stages}")?;
        self.write_processes(f)?;
        self.write_devices(f)?;
        if !items(&node["peers"]).is_empty() {
            let mut peers = Table::new(["peer", "node", "connected for", "stages"]);
            for peer in items(&node["peers"]) {
                let connected_for = &peer["connected_for"];
                let connected_for =
                    if connected_for.is_null() { "disconnected".to_owned() } else { shown_span(span(connected_for)) };
                let stages: Vec<String> = items(&peer["stages"]).iter().map(text).collect();
                peers.row([
                    text(&peer["address"]),
                    or_dash(text(&peer["node"])),
                    connected_for,
                    or_dash(stages.join(", ")),
                ]);
            }
            write!(f, "\n{peers}")?;
        }
        if !items(&node["actors"]).is_empty() {
            let mut actors = Table::new(["actor", "state", "for", "keys", "waiting", "restarts"]);
            for actor in items(&node["actors"]) {
                let waiting = format!("{}/{}", text(&actor["waiting"]), text(&actor["mailbox"]));
                let age = shown_span(span(&actor["age"]));
                let keys = or_dash(text(&actor["active_keys"]));
                actors.row([text(&actor["name"]), text(&actor["state"]), age, keys, waiting, text(&actor["restarts"])]);
            }
            write!(f, "\n{actors}")?;
        }
        for route in rollouts {
            if let Some(reason) = route["rollout"]["reason"].as_str() {
                write!(f, "\n{}: {}", text(&route["name"]), plain::line(reason))?;
            }
        }
        if let Some(reason) = health["joining"].as_str() {
            write!(f, "\nkeyed actors: {}", plain::line(reason))?;
        }
        let down = items(&health["down_actors"]);
        for stage in items(&node["stages"]).iter().chain(items(&health["remote_stages"])).chain(down) {
            if let Some(reason) = stage["reason"].as_str() {
                write!(f, "\n{}: {}", text(&stage["name"]), plain::line(reason))?;
            }
        }
        Ok(())
    }
}

impl StatusText<'_> {
    /// The replicas with a process of their own.
    fn write_processes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(["stage", "replica", "process", "up", "batches", "cpu", "memory"]);
        let earlier: HashMap<_, _> = items(&self.earlier["node"]["stages"])
            .iter()
            .flat_map(|stage| items(&stage["replicas"]))
            .map(|replica| (replica["process"]["pid"].as_u64(), span(&replica["process"]["cpu"])))
            .collect();
        let mut has_some = false;
        for stage in items(&self.status["node"]["stages"]) {
            for replica in items(&stage["replicas"]).iter().filter(|replica| replica["process"].is_object()) {
                has_some = true;
                let (age, process) = (span(&replica["age"]), &replica["process"]);
                let before = earlier.get(&process["pid"].as_u64()).copied().unwrap_or_default();
                let used = span(&process["cpu"]).saturating_sub(before).as_secs_f64();
                // Of one processor, since the last look or the start of the replica.
                let share = used / self.interval.unwrap_or(age).min(age).as_secs_f64().max(1e-3);
                table.row([
                    text(&stage["name"]),
                    text(&replica["index"]),
                    text(&process["pid"]),
                    shown_span(age),
                    text(&replica["batches"]),
                    percent(share),
                    process["memory_bytes"].as_u64().map_or_else(dash, shown_bytes),
                ]);
            }
        }
        if has_some { write!(f, "\n{table}") } else { Ok(()) }
    }

    fn write_devices(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(["device", "name", "memory", "in use", "utilisation", "temperature"]);
        for (index, device) in &self.figures.devices {
            let bytes = |bytes: Option<f64>| bytes.map_or_else(dash, |bytes| shown_bytes(bytes as u64));
            let share = device.utilisation.map_or_else(dash, percent);
            table.row([
                index.to_string(),
                if device.is_lost { "lost".to_owned() } else { plain::line(&device.name).into_owned() },
                bytes(device.memory_total),
                bytes(device.memory_used),
                share,
                device.temperature.map_or_else(dash, |degrees| format!("{degrees:.0} °C")),
            ]);
        }
        if self.figures.devices.is_empty() { Ok(()) } else { write!(f, "\n{table}") }
    }
}

/// The devices of the node's machine, for programs.
fn devices(figures: &Figures) -> Value {
    let row = |(index, device): (&u32, &DeviceFigures)| {
        let bytes = |bytes: Option<f64>| bytes.map(|bytes| bytes as u64);
        json!({
            "index": index, "name": device.name, "memory_used": bytes(device.memory_used),
            "memory_total": bytes(device.memory_total), "utilisation": device.utilisation,
            "temperature": device.temperature, "lost": device.is_lost,
        })
    };
    figures.devices.iter().map(row).collect()
}

fn time_of(histogram: Option<&Histogram>, share: f64) -> String {
    histogram.and_then(|histogram| histogram.quantile(share)).map_or_else(dash, shown_span)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: &str = "callboard_device_memory_used_bytes{device=\"0\",name=\"A card\"} 1073741824\n\
         callboard_device_memory_total_bytes{device=\"0\",name=\"A card\"} 85899345920\n\
         callboard_device_utilisation_ratio{device=\"0\",name=\"A card\"} 0.25\n\
         callboard_device_temperature_celsius{device=\"0\",name=\"A card\"} 41\n\
         callboard_device_lost{device=\"1\",name=\"\"} 1\n";

    #[test]
    fn devices_are_a_list_with_null_for_figures_that_they_do_not_report() {
        let expected = json!([
            {
                "index": 0, "name": "A card", "memory_used": 1_073_741_824_u64, "memory_total": 85_899_345_920_u64,
                "utilisation": 0.25, "temperature": 41.0, "lost": false,
            },
            {
                "index": 1, "name": "", "memory_used": null, "memory_total": null, "utilisation": null,
                "temperature": null, "lost": true,
            },
        ]);
        assert_eq!(devices(&Figures::parse(DEVICES)), expected);
        assert_eq!(devices(&Figures::default()), json!([]));
    }

    #[test]
    fn a_node_is_shown_as_tables() {
        let status = json!({
            "version": "1.2.3",
            "uptime_seconds": 3725,
            "doors": ["http", "grpc"],
            "loading": [{ "name": "large", "seconds": 12.3 }, { "name": "small", "seconds": 0.0 }],
            "health": { "ready": false, "draining": false },
            "node": {
                "in_flight": 3, "admitted": 10, "refused": 1,
                "nodes_wanted": { "nodes": 1.428, "reason": "there is a queue" },
                "routes": [{ "name": "/digits", "revision": 1, "pipeline": "decode → digits", "closed": false }],
                "stages": [{
                    "name": "digits", "state": "failed", "reason": "no such file", "queued": 2, "queue_limit": 64,
                    "batches": 4, "mean_batch_size": 2.25, "batch_estimate": { "secs": 0, "nanos": 1_500_000 },
                    "restarts": 7, "replicas": [
                        { "index": 0, "busy": true, "batches": 3, "age": { "secs": 60, "nanos": 0 },
                          "process": { "pid": 4711, "cpu": { "secs": 9, "nanos": 0 }, "memory_bytes": 157_286_400 } },
                        { "index": 1, "busy": false, "process": null },
                    ],
                }],
                "members": [{ "name": "first", "state": "up" }, { "name": "second", "state": "suspected" }],
                "peers": [
                    { "address": "10.0.0.2:4433", "node": "second", "connected_for": { "secs": 61, "nanos": 0 },
                      "stages": ["decode", "digits"] },
                    { "address": "10.0.0.3:4433", "node": "", "connected_for": null, "stages": [] },
                ],
            },
        });
        let expected = "\
callboard 1.2.3, not ready, up 1 h 2 min
calls: 3 in flight, 10 admitted and 1 refused since the start
load: for 1.4 nodes, because there is a queue
doors: http, grpc
loading: large (for 12 s), small (for 0 s)
nodes: 1 up, 1 suspected (second)

route    revision  calls  calls/s  failed  p50     p99     pipeline
/digits  1         45     22.5     1       1.0 ms  2.0 ms  decode → digits

stage   state   replicas  busy  queue  waits p50  waits p99  batches  mean size  batch takes  restarts
digits  failed  2         1     2/64   0.5 ms     1.0 ms     4        2.2        1.5 ms       7

stage   replica  process  up     batches  cpu   memory
digits  0        4711     1 min  3        75 %  150.0 MiB

device  name    memory       in use      utilisation  temperature
0       A card  81920.0 MiB  1024.0 MiB  25 %         41 °C
1       lost    -            -           -            -

peer           node    connected for  stages
10.0.0.2:4433  second  1 min          decode, digits
10.0.0.3:4433  -       disconnected   -

digits: no such file";
        let calls = "callboard_requests_total{route=\"/digits\",outcome=\"ok\"} 44\n\
             callboard_requests_total{route=\"/digits\",outcome=\"failed\"} 1\n\
             callboard_request_duration_seconds_bucket{le=\"0.002\",route=\"/digits\"} 45\n\
             callboard_stage_queue_seconds_bucket{le=\"0.001\",stage=\"digits\"} 45\n";
        let figures = Figures::parse(&format!("{calls}{DEVICES}"));
        let process = json!({ "pid": 4711, "cpu": { "secs": 7, "nanos": 500_000_000 } });
        // That of another revision, with the same index.
        let other = json!({ "pid": 4712, "cpu": { "secs": 100, "nanos": 0 } });
        let earlier = json!({ "node": { "stages": [{ "replicas": [{ "process": process }, { "process": other }] }] } });
        let interval = Some(Duration::from_secs(2));
        let shown = StatusText { status: &status, earlier: &earlier, figures: &figures, interval };
        assert_eq!(shown.to_string(), expected);
    }

    #[test]
    fn a_missing_value_is_shown_as_a_dash() {
        let figures = Figures::default();
        let shown =
            StatusText { status: &json!({}), earlier: &Value::Null, figures: &figures, interval: None }.to_string();
        assert!(shown.starts_with("callboard -, not ready, up 0.0 ms"), "{shown}");
        let status = json!({ "uptime_seconds": 0.25 });
        let shown =
            StatusText { status: &status, earlier: &Value::Null, figures: &figures, interval: None }.to_string();
        assert!(shown.starts_with("callboard -, not ready, up 250.0 ms"), "{shown}");
    }
}
