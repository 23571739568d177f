//! The event of one second: what the node is and did, in the units that people read.
//!
//! Figures of calls are those between this sample and the last one. Lists are cut, so that an event has at most some
//! hundred kilobytes on the largest node: `more` says how many entries are not in it.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use callboard_core::Instant;
use callboard_core::description::{Description, Health, ReplicaDescription, RouteDescription, StageDescription};
use callboard_core::remote::PeerDescription;
use serde_json::{Map, Value, json};

use super::super::AdminState;
use super::figures::{DeviceFigures, Figures, Histogram};

/// The most entries of each list.
const LISTED: usize = 128;

/// The most stages of a peer in its row.
const STAGES_OF_PEER: usize = 16;

/// The longest text, in characters: reasons can be longer than a page.
const SHOWN: usize = 240;

/// Takes samples, and keeps what the next one is compared with.
#[derive(Debug, Default)]
pub(super) struct LiveSampler {
    last: Option<(Instant, Figures)>,
    cpu: HashMap<u32, Duration>,
}

impl LiveSampler {
    /// The next event. Takes milliseconds: off the runtime's threads.
    pub(super) fn event(&mut self, state: &AdminState) -> Bytes {
        let (node, health) = (state.client.describe(), state.client.health());
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
            listed("routes", &node.routes, &mut more).map(|route| route_row(route, &between, since)).collect();
        let cpu = self.take_processor_times(node);
        let mut stages: Vec<Value> = listed("stages", &node.stages, &mut more)
            .map(|stage| stage_row(stage, &between, &|replica| processor_share(replica, &cpu, since)))
            .collect();
        stages.extend(health.remote_stages.iter().take(LISTED).map(|stage| {
            let state = if stage.ready { "remote" } else { "unreachable" };
            json!({ "name": stage.name, "state": state, "reason": stage.reason.as_deref().map(short) })
        }));
        let actors: Vec<Value> = listed("actors", &node.actors, &mut more)
            .map(|actor| {
                json!({
                    "name": actor.name, "state": actor.state, "waiting": actor.waiting, "mailbox": actor.mailbox,
                    "restarts": actor.restarts,
                })
            })
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
            "peers": listed("peers", &node.peers, &mut more).map(peer_row).collect::<Vec<_>>(),
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

/// The first entries of a list. `more` gets the number of the others.
fn listed<'a, T>(name: &str, all: &'a [T], more: &mut Map<String, Value>) -> impl Iterator<Item = &'a T> + use<'a, T> {
    if all.len() > LISTED {
        more.insert(name.to_owned(), (all.len() - LISTED).into());
    }
    all.iter().take(LISTED)
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

/// Of one processor, since the last sample.
fn processor_share(replica: &ReplicaDescription, before: &HashMap<u32, Duration>, since: Duration) -> Option<f64> {
    let process = replica.process?;
    let before = before.get(&process.pid)?;
    (!since.is_zero()).then(|| process.cpu.saturating_sub(*before).as_secs_f64() / since.as_secs_f64())
}

fn peer_row(peer: &PeerDescription) -> Value {
    let stages = &peer.stages[..peer.stages.len().min(STAGES_OF_PEER)];
    json!({
        "address": peer.address, "node": peer.node, "stages": stages,
        "connected_s": peer.connected_for.map(|lasting| lasting.as_secs()),
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
