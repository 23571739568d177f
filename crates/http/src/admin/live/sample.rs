//! The event of one second: what the node is and did, in the units that people read.
//!
//! Figures of calls are those between this sample and the last one. Lists are cut, so that an event has at most some
//! hundred kilobytes on the largest node: what is not ready or fails comes first then, next what is busy, and `more` says
//! how many entries are not in it.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use callboard_core::Instant;
use callboard_core::actor::ActorState;
use callboard_core::description::{
    ActorDescription, Description, Health, RemoteStageHealth, ReplicaDescription, RouteDescription, StageDescription,
    StageState,
};
use callboard_core::remote::{
    MemberDescription, MemberState, NodePhase, NodeReport, PeerDescription, StageLoadReport, StageReport,
};
use serde_json::{Map, Value, json};

use super::super::AdminState;
use super::figures::{DeviceFigures, Figures, Histogram};

/// The most entries of each list.
const LISTED: usize = 128;

/// The most stages of a peer in its row.
const STAGES_OF_PEER: usize = 16;

/// The most stages of a member in its row.
const STAGES_OF_MEMBER: usize = 8;

/// The longest text, in characters: reasons can be longer than a page.
const SHOWN: usize = 240;

/// The loads of the stages of members, by their names.
pub(super) type Loads = HashMap<String, Vec<StageLoadReport>>;

/// Takes samples, and keeps what the next one is compared with.
#[derive(Debug, Default)]
pub(super) struct LiveSampler {
    last: Option<(Instant, Figures)>,
    cpu: HashMap<u32, Duration>,
}

impl LiveSampler {
    /// The next event, with these loads of members. Takes milliseconds: off the runtime's threads.
    pub(super) fn event(&mut self, state: &AdminState, loads: &Loads) -> Bytes {
        let (mut node, health) = (state.client.describe(), state.client.health());
        for member in &mut node.members {
            member.load = loads.get(&member.name).cloned();
        }
        let mut sample =
            self.sample(&node, &health, Figures::parse(&state.metrics.page(&state.client)), Instant::now());
        sample["version"] = env!("CARGO_PKG_VERSION").into();
        sample["uptime_s"] = state.started_at.elapsed().as_secs().into();
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        sample["at_ms"] = (at.as_millis() as u64).into();
        format!("data: {sample}\n\n").into()
    }

    fn sample(&mut self, node: &Description, health: &Health, figures: Figures, now: Instant) -> Value {
        let (since, between) = match &self.last {
            Some((at, last)) => (now.saturating_duration_since(*at), figures.clone().since(last)),
            // Before the first sample nothing is known of a second.
            None => (Duration::ZERO, Figures::default()),
        };
        let mut more = Map::new();
        let routes: Vec<Value> =
            listed("routes", node.routes.iter(), |route| attention_of_route(route, &between), &mut more)
                .map(|route| route_row(route, &between, since))
                .collect();
        let cpu = self.take_processor_times(node);
        let share = |replica: &ReplicaDescription| processor_share(replica, &cpu, since);
        let all = node.stages.iter().map(AnyStage::Here).chain(health.remote_stages.iter().map(AnyStage::Remote));
        let stages: Vec<Value> = listed("stages", all, AnyStage::attention, &mut more)
            .map(|stage| match stage {
                AnyStage::Here(stage) => stage_row(stage, &between, &share),
                AnyStage::Remote(stage) => remote_stage_row(stage),
            })
            .collect();
        let actors: Vec<Value> = listed("actors", node.actors.iter(), |actor| attention_of_actor(actor), &mut more)
            .map(|actor| {
                json!({
                    "name": actor.name, "state": actor.state, "waiting": actor.waiting, "mailbox": actor.mailbox,
                    "restarts": actor.restarts, "active_keys": actor.active_keys,
                })
            })
            .collect();
        let without_connection = |peer: &&PeerDescription| Attention::new(peer.connected_for.is_none(), false);
        let peers: Vec<Value> =
            listed("peers", node.peers.iter(), without_connection, &mut more).map(peer_row).collect();
        let members: Vec<Value> =
            listed("members", node.members.iter(), |member| attention_of_member(member), &mut more)
                .map(member_row)
                .collect();
        let sample = json!({
            "state": if health.draining { "draining" } else if health.ready { "ready" } else { "not ready" },
            "in_flight": node.in_flight,
            "oldest_ms": node.oldest.map(millis),
            "admitted": node.admitted,
            "refused": node.refused,
            "routes": routes,
            "stages": stages,
            "actors": actors,
            "peers": peers,
            "members": members,
            "devices": figures.devices.iter().map(device_row).collect::<Vec<_>>(),
            "more": more,
        });
        self.last = Some((now, figures));
        sample
    }

    /// The processor times of the last sample; this one's are kept for the next.
    fn take_processor_times(&mut self, node: &Description) -> HashMap<u32, Duration> {
        let processes = node.stages.iter().flat_map(|stage| &stage.replicas).filter_map(|replica| replica.process);
        let now = processes.map(|process| (process.pid, process.cpu)).collect();
        std::mem::replace(&mut self.cpu, now)
    }
}

/// How soon an operator should see an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Attention {
    Unwell,
    Busy,
    Idle,
    /// Only a memory.
    Gone,
}

impl Attention {
    fn new(is_unwell: bool, is_busy: bool) -> Self {
        match (is_unwell, is_busy) {
            (true, _) => Self::Unwell,
            (false, true) => Self::Busy,
            (false, false) => Self::Idle,
        }
    }
}

/// A stage of this node, or one that runs on other nodes only.
enum AnyStage<'a> {
    Here(&'a StageDescription),
    Remote(&'a RemoteStageHealth),
}

impl AnyStage<'_> {
    fn attention(&self) -> Attention {
        match self {
            Self::Here(stage) => {
                let is_unwell = !stage.health.ready || stage.health.state == StageState::Degraded;
                Attention::new(is_unwell, stage.queued > 0 || stage.replicas.iter().any(|replica| replica.busy))
            }
            Self::Remote(stage) => Attention::new(!stage.ready, false),
        }
    }
}

fn attention_of_route(route: &RouteDescription, between: &Figures) -> Attention {
    let calls = between.routes.get(route.name.as_str());
    Attention::new(calls.is_some_and(|calls| calls.failed > 0.0), calls.is_some_and(|calls| calls.ended > 0.0))
}

fn attention_of_actor(actor: &ActorDescription) -> Attention {
    Attention::new(!matches!(actor.state, ActorState::Up | ActorState::Ended), actor.waiting > 0)
}

/// A cluster that replaces its nodes knows many that are gone: they do not hide the others.
fn attention_of_member(member: &MemberDescription) -> Attention {
    if member.state.is_gone() {
        return Attention::Gone;
    }
    let is_ready = member.report.as_ref().is_none_or(|report| report.phase == NodePhase::Ready);
    let is_busy = |load: &StageLoadReport| load.queued > 0 || load.busy > 0;
    Attention::new(member.state != MemberState::Up || !is_ready, member.load.iter().flatten().any(is_busy))
}

/// The entries of a list, cut to those that need attention first, in their order. `more` gets the number of the others.
fn listed<T>(
    name: &str,
    all: impl Iterator<Item = T>,
    attention: impl Fn(&T) -> Attention,
    more: &mut Map<String, Value>,
) -> impl Iterator<Item = T> {
    let mut all: Vec<T> = all.collect();
    if all.len() > LISTED {
        more.insert(name.to_owned(), (all.len() - LISTED).into());
        all.sort_by_key(attention);
        all.truncate(LISTED);
    }
    all.into_iter()
}

fn route_row(route: &RouteDescription, between: &Figures, since: Duration) -> Value {
    let calls = between.routes.get(route.name.as_str());
    let rate = |count: Option<f64>| count.filter(|_| !since.is_zero()).map(|count| count / since.as_secs_f64());
    let mut row = json!({
        "name": route.name,
        "pipeline": short(&route.pipeline),
        "calls_per_s": rate(calls.map(|calls| calls.ended)),
        "failed_per_s": rate(calls.map(|calls| calls.failed)),
        "p50_ms": quantile(calls.map(|calls| &calls.took), 0.5),
        "p99_ms": quantile(calls.map(|calls| &calls.took), 0.99),
    });
    if route.closed {
        row["closed"] = true.into();
    }
    if let Some(rollout) = &route.rollout {
        row["rollout"] = json!({ "state": rollout.state, "share": rollout.share });
    }
    row
}

fn stage_row(stage: &StageDescription, between: &Figures, share: &dyn Fn(&ReplicaDescription) -> Option<f64>) -> Value {
    let waits = between.queues.get(stage.health.name.as_str());
    let shares: Vec<f64> = stage.replicas.iter().filter_map(share).collect();
    let memory =
        stage.replicas.iter().filter_map(|replica| Some(replica.process?.memory_bytes)).reduce(|one, two| one + two);
    json!({
        "name": stage.health.name,
        "state": stage.health.state,
        "reason": stage.health.reason.as_deref().map(short),
        "note": stage.note.as_deref().map(short),
        "replicas_of": stage.replicas_of,
        "replicas": stage.replicas.len(),
        "target": stage.scaling.target,
        "busy": stage.replicas.iter().filter(|replica| replica.busy).count(),
        "queued": stage.queued,
        "queue_limit": stage.queue_limit,
        "waits_p99_ms": quantile(waits, 0.99),
        "batches": stage.batches,
        "mean_batch": stage.mean_batch_size,
        "max_batch": stage.max_batch_size,
        "batch_ms": millis(stage.batch_estimate),
        "restarts": stage.restarts,
        "cpu": (!shares.is_empty()).then(|| shares.iter().sum::<f64>()),
        "memory_bytes": memory,
    })
}

fn remote_stage_row(stage: &RemoteStageHealth) -> Value {
    let state = if stage.ready { "remote" } else { "unreachable" };
    json!({ "name": stage.name, "state": state, "reason": stage.reason.as_deref().map(short) })
}

/// Of one processor, since the last sample.
fn processor_share(replica: &ReplicaDescription, before: &HashMap<u32, Duration>, since: Duration) -> Option<f64> {
    let process = replica.process?;
    let before = before.get(&process.pid)?;
    (!since.is_zero()).then(|| process.cpu.saturating_sub(*before).as_secs_f64() / since.as_secs_f64())
}

fn member_row(member: &MemberDescription) -> Value {
    let report = member.report.as_ref();
    let present = report.filter(|_| !member.state.is_gone());
    let load = member.load.as_ref().filter(|_| present.is_some());
    let waiting = |stage: &StageReport| load?.iter().find(|load| load.name == stage.name).map(|load| load.queued);
    let of_stage = |stage: &StageReport| {
        let replicas = format!("{} {}/{}", short(&stage.name), stage.ready, stage.wanted);
        match waiting(stage) {
            None | Some(0) => replicas,
            Some(waiting) => format!("{replicas} ({waiting} waiting)"),
        }
    };
    let replicas = |report: &NodeReport| report.stages.iter().take(STAGES_OF_MEMBER).map(of_stage).collect::<Vec<_>>();
    // A member's own figures, which may be anything.
    let sum = |figure: fn(&StageLoadReport) -> u64| {
        load.map(|load| load.iter().fold(0, |sum: u64, stage| sum.saturating_add(figure(stage))))
    };
    json!({
        "name": short(&member.name),
        "address": member.address,
        "state": member.state,
        "is_this_node": member.is_this_node,
        "phase": present.map(|report| report.phase),
        "version": report.map(|report| short(&report.version)),
        "since": present.map_or(member.since, |report| report.since),
        "routes": present.map(|report| report.routes.len()),
        "stages": present.map(|report| report.stages.len()),
        "replicas": present.map(|report| replicas(report)),
        "busy": sum(|load| load.busy.into()),
        "queued": sum(|load| load.queued),
        "queue_limit": sum(|load| load.queue_limit),
    })
}

fn peer_row(peer: &PeerDescription) -> Value {
    let stages = &peer.stages[..peer.stages.len().min(STAGES_OF_PEER)];
    json!({
        "address": peer.address, "node": peer.node, "stages": stages,
        "connected_s": peer.connected_for.map(|lasting| lasting.as_secs()), "silent": peer.silent,
    })
}

fn device_row((index, device): (&u32, &DeviceFigures)) -> Value {
    json!({
        "index": index, "name": short(&device.name), "lost": device.is_lost, "utilisation": device.utilisation,
        "memory_used": device.memory_used, "memory_total": device.memory_total, "temperature": device.temperature,
    })
}

fn quantile(histogram: Option<&Histogram>, share: f64) -> Option<f64> {
    histogram.and_then(|histogram| histogram.quantile(share)).map(millis)
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// The start of a text.
fn short(text: &str) -> &str {
    text.char_indices().nth(SHOWN).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use callboard_core::{App, Pipeline, RouteName, Stage, StageName};

    use super::*;

    fn names(sample: &Value, list: &str) -> Vec<String> {
        sample[list].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    }

    /// A node with this many routes, stages and remote stages, which are idle and ready.
    async fn node_with(entries: usize) -> (Description, Health) {
        let app = App::new()
            .route("/here", Stage::each("here", |input: &u64| Ok(*input)))
            .route("/far", Pipeline::<u64, u64>::remote("far"));
        let node = app.start().await.unwrap();
        let (mut description, mut health) = (node.describe(), node.health());
        let named = |name: &str, number: usize| StageName::new(&format!("{name}-{number}"));
        let route = description.routes.remove(0);
        description.routes = vec![route; entries];
        for (number, route) in description.routes.iter_mut().enumerate() {
            route.name = RouteName::new(&format!("/here-{number}"));
        }
        description.stages = vec![description.stages.remove(0); entries];
        for (number, stage) in description.stages.iter_mut().enumerate() {
            stage.health.name = named("here", number);
        }
        health.remote_stages = vec![health.remote_stages.remove(0); entries];
        for (number, stage) in health.remote_stages.iter_mut().enumerate() {
            (stage.name, stage.ready) = (named("far", number), true);
        }
        (description, health)
    }

    #[tokio::test]
    async fn a_list_that_is_cut_begins_with_what_is_unwell_and_what_is_busy() {
        let (mut node, mut health) = node_with(500).await;
        node.stages[300].queued = 1;
        node.stages[499].health.ready = false;
        node.stages[400].health.state = StageState::Degraded;
        health.remote_stages[450].ready = false;
        let calls = |ended: f64, failed: f64| {
            let mut figures = Figures::default();
            for (route, ended, failed) in [("/here-498", ended, 0.0), ("/here-499", ended, failed)] {
                let calls = figures.routes.entry(route.to_owned()).or_default();
                (calls.ended, calls.failed) = (ended, failed);
            }
            figures
        };
        let (mut sampler, now) = (LiveSampler::default(), Instant::now());
        sampler.sample(&node, &health, calls(7.0, 3.0), now);
        let sample = sampler.sample(&node, &health, calls(9.0, 4.0), now + Duration::from_secs(1));

        let stages = names(&sample, "stages");
        assert_eq!(stages[..5], ["here-400", "here-499", "far-450", "here-300", "here-0"]);
        assert_eq!((stages.len(), &sample["more"]["stages"]), (LISTED, &(1000 - LISTED).into()));
        let routes = names(&sample, "routes");
        assert_eq!(routes[..3], ["/here-499", "/here-498", "/here-0"]);
        assert_eq!((routes.len(), &sample["more"]["routes"]), (LISTED, &(500 - LISTED).into()));
    }

    #[tokio::test]
    async fn members_that_are_gone_have_no_work_and_hide_no_others() {
        let (mut node, health) = node_with(1).await;
        let mut report = NodeReport::starting();
        let mut stage = StageReport::default();
        (stage.name, stage.ready, stage.wanted) = ("digits".to_owned(), 1, 2);
        report.stages = vec![stage; 3];
        let report = Arc::new(report);
        let member = |number: usize, state| {
            MemberDescription::new(format!("n{number}"), "a:1", state, 7).with_report(Some(Arc::clone(&report)))
        };
        let gone = |number| member(number, if number % 2 == 0 { MemberState::Down } else { MemberState::Left });
        node.members = (0..LISTED).map(gone).chain([member(900, MemberState::Up)]).collect();
        let sample = LiveSampler::default().sample(&node, &health, Figures::default(), Instant::now());
        assert_eq!(sample["members"][0]["name"], "n900");
        assert_eq!((&sample["members"][0]["phase"], &sample["members"][0]["stages"]), (&json!("starting"), &json!(3)));
        assert_eq!(sample["members"][0]["replicas"], json!(["digits 1/2", "digits 1/2", "digits 1/2"]));
        let (down, left) = (&sample["members"][1], &sample["members"][2]);
        assert_eq!((&down["state"], &left["state"], &left["since"]), (&json!("down"), &json!("left"), &json!(7)));
        for gone in [down, left] {
            assert!(["phase", "routes", "stages", "replicas"].iter().all(|field| gone[*field].is_null()), "{gone}");
        }
        assert_eq!(sample["more"]["members"], 1);
    }

    #[tokio::test]
    async fn a_member_shows_the_load_that_it_has_told() {
        let (mut node, health) = node_with(1).await;
        let mut report = NodeReport::starting();
        let mut stage = StageReport::default();
        (stage.name, stage.ready, stage.wanted) = ("digits".to_owned(), 2, 2);
        report.stages = vec![stage];
        let load = |name: &str, queued, busy| {
            let mut load = StageLoadReport::default();
            (load.name, load.queued, load.queue_limit, load.busy) = (name.to_owned(), queued, 8, busy);
            load
        };
        let member = |name: &str, state, load| {
            let report = Some(Arc::new(report.clone()));
            MemberDescription::new(name, "a:1", state, 7).with_report(report).with_load(load)
        };
        node.members = vec![
            member("busy", MemberState::Up, Some(vec![load("digits", 3, 2), load("sharp", 1, 0)])),
            member("endless", MemberState::Up, Some(vec![load("digits", u64::MAX, 0); 2])),
            member("idle", MemberState::Up, Some(vec![load("digits", 0, 0)])),
            member("unknown", MemberState::Up, None),
            member("gone", MemberState::Down, Some(vec![load("digits", 3, 2)])),
        ];
        let sample = LiveSampler::default().sample(&node, &health, Figures::default(), Instant::now());
        let shown = |row: usize| {
            let row = &sample["members"][row];
            ["busy", "queued", "queue_limit"].map(|figure| row[figure].as_u64())
        };
        assert_eq!(shown(0), [Some(2), Some(4), Some(16)]);
        assert_eq!(sample["members"][0]["replicas"], json!(["digits 2/2 (3 waiting)"]));
        assert_eq!(shown(1)[1], Some(u64::MAX));
        assert_eq!((shown(2), shown(3), shown(4)), ([Some(0), Some(0), Some(8)], [None; 3], [None; 3]));
        assert_eq!(sample["members"][2]["replicas"], json!(["digits 2/2"]));
    }

    #[tokio::test]
    async fn a_list_that_is_not_cut_keeps_its_order() {
        let (mut node, health) = node_with(LISTED / 2).await;
        node.stages[5].health.ready = false;
        let sample = LiveSampler::default().sample(&node, &health, Figures::default(), Instant::now());
        assert_eq!((sample["stages"].as_array().unwrap().len(), &sample["more"]), (LISTED, &json!({})));
        assert_eq!(names(&sample, "stages")[4..6], ["here-4", "here-5"]);
    }
}
