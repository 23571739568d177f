//! The invariants of every script, at every look and at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use callboard_core::description::{Description, StageState};
use callboard_core::{Contract, ErrorKind, Instant, ReleaseReason};

use super::journal::{Answer, Book, CallOutcome, CallRecord, End, Journal, Visit};
use super::order;
use super::script::{CallPlan, Ending, Form, Nature, Script, StagePlan, Step};

/// A timer fires up to one tick of the runtime's clock after its time.
const TICK: Duration = Duration::from_millis(1);

/// Looks at a running node from outside.
pub(super) struct Sampler<'a> {
    script: &'a Script,
}

impl<'a> Sampler<'a> {
    pub(super) fn new(script: &'a Script) -> Self {
        Self { script }
    }

    /// The bounds that hold at any time.
    pub(super) fn inspect(&self, description: &Description, journal: &Journal) {
        let Description { in_flight, in_flight_bytes, admitted, outcomes, .. } = *description;
        if in_flight > self.script.limits.max_in_flight || in_flight_bytes > self.script.limits.max_in_flight_bytes {
            journal.violation(format_args!("{in_flight} calls with {in_flight_bytes} bytes are in flight"));
        }
        if outcomes + in_flight as u64 != admitted {
            journal.violation(format_args!("{admitted} admitted, {outcomes} outcomes, {in_flight} in flight"));
        }
        for stage in &description.stages {
            let Some(position) = self.position(stage.health.name.as_str()) else { continue };
            let bound = stage.queue_limit + self.comes_back(position);
            if stage.queued > bound {
                let name = &stage.health.name;
                journal.violation(format_args!("{} entries wait in stage {name}, at most {bound} may", stage.queued));
            }
        }
    }

    /// Every call in flight is in a queue or in user code, never in both. Only valid after all ready tasks have run.
    pub(super) fn inspect_at_rest(&self, description: &Description, journal: &Journal) {
        self.inspect(description, journal);
        // An abandoned entry stays in the bisection queue until a replica is back.
        if self.script.stages.iter().any(|plan| plan.hard_to_build) || self.script.ending != Ending::Calm {
            return;
        }
        let queued: usize = description.stages.iter().map(|stage| stage.queued).sum();
        let inside = journal.book().running_with_a_caller(Instant::now());
        if queued + inside > description.in_flight {
            let in_flight = description.in_flight;
            journal.violation(format_args!("{in_flight} in flight, {queued} in queues, {inside} in user code"));
        }
    }

    /// No trace of the calls is left.
    pub(super) fn at_rest(&self, description: &Description, journal: &Journal) {
        let Description { in_flight, in_flight_bytes, .. } = *description;
        if (in_flight, in_flight_bytes) != (0, 0) {
            journal.violation(format_args!("at rest, {in_flight} calls with {in_flight_bytes} bytes are in flight"));
        }
        for stage in &description.stages {
            let busy = stage.replicas.iter().filter(|replica| replica.busy).count();
            if stage.queued > 0 || busy > 0 {
                let name = &stage.health.name;
                journal.violation(format_args!("at rest, {} wait in stage {name}, {busy} are busy", stage.queued));
            }
            // Whatever its calls do.
            let plan = self.position(stage.health.name.as_str()).map(|position| &self.script.stages[position]);
            let may_fail = plan.is_none_or(StagePlan::may_fail);
            if stage.health.state == StageState::Failed && !may_fail && !self.is_aborted() {
                journal.violation(format_args!("stage {} has failed: {:?}", stage.health.name, stage.health.reason));
            }
        }
        let inside = journal.book().inside;
        if inside > 0 {
            journal.violation(format_args!("at rest, {inside} calls are in user code"));
        }
    }

    /// The counters agree with the journal.
    pub(super) fn books(&self, description: &Description, metrics: &str, journal: &Journal) {
        let moved = |line: &str| line.starts_with("callboard_stage_moved_to_threads_total") && !line.ends_with(" 0");
        journal.book().moved_to_threads |= metrics.lines().any(moved);
        self.inspect(description, journal);
        if !self.script.changes_revisions() {
            self.check_outcome_counts(metrics, journal);
        }
        for stage in &description.stages {
            let name = stage.health.name.as_str();
            let Some(position) = self.position(name) else { continue };
            let reasons: u64 = ReleaseReason::ALL
                .iter()
                .map(|reason| {
                    let labels = format!("stage=\"{name}\",reason=\"{}\"", reason.as_str());
                    read(metrics, "stage_batches_total", &labels)
                })
                .sum();
            let of_stage = format!("stage=\"{name}\"");
            let released = read(metrics, "stage_batch_size_count", &of_stage);
            if reasons != released || stage.batches != released {
                journal.violation(format_args!("stage {name}: {reasons} reasons for {released} batches"));
            }
            if self.script.changes_revisions() {
                continue;
            }
            let isolations = read(metrics, "stage_isolation_runs_total", &of_stage);
            let runs = runs_of(&journal.book(), position);
            if self.script.stages[position].form != Form::EachAsync && runs > reasons + isolations {
                journal
                    .violation(format_args!("stage {name}: {runs} runs, {reasons} releases, {isolations} isolations"));
            }
            if read(metrics, "stage_abandoned_threads", &of_stage) > 0 {
                journal.violation(format_args!("stage {name} has left a thread behind"));
            }
        }
    }

    /// The counted outcomes are those of the callers. Detached and abandoned calls may have any outcome.
    fn check_outcome_counts(&self, metrics: &str, journal: &Journal) {
        let book = journal.book();
        let unknown = book.calls.values().filter(|call| call.outcome.is_none()).count() as u64;
        let count_of = |is: &dyn Fn(&Answer) -> bool| {
            book.calls.values().filter_map(|call| call.outcome.as_ref()).filter(|outcome| is(&outcome.what)).count()
                as u64
        };
        let counted = |outcome: &str| -> u64 {
            let of_route = |route: &super::script::RoutePlan| {
                read(metrics, "requests_total", &format!("route=\"{}\",outcome=\"{outcome}\"", route.name))
            };
            self.script.routes.iter().map(of_route).sum()
        };
        let is_kind =
            |kind: ErrorKind| move |what: &Answer| what.as_ref().err().is_some_and(|(actual, _)| *actual == kind);
        let found = [
            ("ok", count_of(&Result::is_ok)),
            (ErrorKind::Failed.as_str(), count_of(&is_kind(ErrorKind::Failed))),
            (ErrorKind::WorkerFailed.as_str(), count_of(&is_kind(ErrorKind::WorkerFailed))),
        ];
        drop(book);
        for (outcome, received) in found {
            let counted = counted(outcome);
            if counted < received || counted > received + unknown {
                journal.violation(format_args!("{received} callers got `{outcome}`, {counted} were counted"));
            }
        }
    }

    fn is_aborted(&self) -> bool {
        matches!(self.script.ending, Ending::Abort { .. })
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.script.stages.iter().position(|plan| plan.name == name)
    }

    /// The number of entries that may exceed a queue's bound: entries that a worker gave back.
    fn comes_back(&self, stage: usize) -> usize {
        let plan = &self.script.stages[stage];
        if !plan.dangerous && !self.script.scales(stage) && self.script.ending == Ending::Calm {
            return 0;
        }
        let scaled = |step: &(Duration, Step)| match step.1 {
            Step::Scale { stage: scaled, replicas } if scaled == stage => Some(replicas),
            _ => None,
        };
        let replicas = self.script.steps.iter().filter_map(scaled).fold(plan.replicas, usize::max);
        replicas * plan.concurrency as usize * plan.max_batch_size
    }
}

fn runs_of(book: &Book, stage: usize) -> u64 {
    let runs: BTreeSet<u64> = book.visits.iter().filter(|visit| visit.stage == stage).map(|visit| visit.run).collect();
    runs.len() as u64
}

/// A sample of the metrics' text; zero if it is missing.
fn read(metrics: &str, family: &str, labels: &str) -> u64 {
    let start = format!("callboard_{family}{{{labels}}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok()).unwrap_or(0)
}

/// Judges the run from its journal.
pub(super) fn judge(script: &Script, journal: &Journal) {
    let mut found = Vec::new();
    {
        let book = journal.book();
        let plans = plans(script);
        let visits = visits_by_call(&book);
        for (call, record) in &book.calls {
            let none = Vec::new();
            let run = Judged {
                script,
                book: &book,
                call: *call,
                plan: plans.get(call).copied(),
                record,
                visits: visits.get(call).unwrap_or(&none),
            };
            let outcome = record.outcome.as_ref().map(|outcome| (journal.time(outcome.at), &outcome.what));
            found.extend(run.complaint().map(|why| format!("call {call}: {why}; outcome {outcome:?}")));
        }
        for stage in 0..script.stages.len() {
            found.extend(order::overtakings(script, &book, &plans, stage));
        }
    }
    journal.book().violations.extend(found);
}

fn plans(script: &Script) -> BTreeMap<u64, &CallPlan> {
    let plan = |step: &'_ (Duration, Step)| matches!(step.1, Step::Call(_));
    let calls = script.steps.iter().filter(|step| plan(step));
    calls.filter_map(|(_, step)| if let Step::Call(plan) = step { Some((plan.id, plan)) } else { None }).collect()
}

fn visits_by_call(book: &Book) -> BTreeMap<u64, Vec<&Visit>> {
    let mut visits: BTreeMap<u64, Vec<&Visit>> = BTreeMap::new();
    for visit in &book.visits {
        visits.entry(visit.call).or_default().push(visit);
    }
    visits
}

/// One call, with all its records.
struct Judged<'a> {
    script: &'a Script,
    book: &'a Book,
    call: u64,
    /// `None` for a stream's calls.
    plan: Option<&'a CallPlan>,
    record: &'a CallRecord,
    visits: &'a [&'a Visit],
}

impl Judged<'_> {
    /// The first broken promise of this call.
    fn complaint(&self) -> Option<String> {
        let Some(CallOutcome { at, what }) = &self.record.outcome else {
            let Some(plan) = self.plan else {
                return self.record.left_at.is_none().then(|| "has no outcome".to_owned());
            };
            return (!plan.is_cast && self.record.left_at.is_none()).then(|| "has no outcome".to_owned());
        };
        if let Some(deadline) = self.record.deadline
            && *at > deadline + TICK
        {
            return Some(format!("got its outcome {:?} after its deadline", *at - deadline));
        }
        match what {
            Ok(answer) => self.complaint_about_success(*answer),
            Err((kind, message)) => self.complaint_about_error(*kind, message, *at),
        }
    }

    fn complaint_about_success(&self, answer: u64) -> Option<String> {
        if answer != self.call {
            return Some("got another call's answer".to_owned());
        }
        let returned = self.visits.iter().filter(|visit| matches!(visit.end, Some((_, End::Returned)))).count();
        let stages = self.plan.map_or(1, |plan| self.script.routes[plan.route].stages.len());
        (returned < stages).then(|| format!("came through {returned} of {stages} stages"))
    }

    fn complaint_about_error(&self, kind: ErrorKind, message: &str, at: Instant) -> Option<String> {
        let is_expected = match kind {
            ErrorKind::Failed => self.nature_among(&[Nature::Fails]),
            ErrorKind::WorkerFailed => self.crashed(at) || self.is_ending(at),
            ErrorKind::DeadlineExceeded => self.is_late(message, at),
            ErrorKind::Overloaded => self.plan.is_none() || self.has_stages_left(),
            ErrorKind::Unavailable => self.is_ending(at) || self.stages().any(StagePlan::may_fail),
            ErrorKind::NotFound => self.script.changes_revisions(),
            _ => false,
        };
        (!is_expected).then(|| "should not have this outcome".to_owned())
    }

    /// The stages of its route, or all stages if the route is unknown.
    fn stages(&self) -> impl Iterator<Item = &StagePlan> {
        let of_route = self.plan.map(|plan| self.script.routes[plan.route].stages.clone());
        let stages = of_route.unwrap_or_else(|| (0..self.script.stages.len()).collect());
        stages.into_iter().map(|stage| &self.script.stages[stage])
    }

    fn has_stages_left(&self) -> bool {
        let visited: BTreeSet<usize> = self.visits.iter().map(|visit| visit.stage).collect();
        self.plan.is_some_and(|plan| visited.len() < self.script.routes[plan.route].stages.len())
    }

    /// Whether this call has one of these natures in a stage that it visited.
    fn nature_among(&self, natures: &[Nature]) -> bool {
        self.visits.iter().any(|visit| natures.contains(&self.script.nature(self.call, visit.stage)))
    }

    /// Whether the call may fail by a crash: as the culprit, or as a member of the batch in a stage whose calls run at
    /// most once.
    fn crashed(&self, at: Instant) -> bool {
        self.crashed_before_its_turn(at)
            || self.visits.iter().any(|visit| {
                let plan = &self.script.stages[visit.stage];
                let nature = self.script.nature(self.call, visit.stage);
                let is_culprit = matches!(nature, Nature::Kills | Nature::KillsOnce);
                // A stream's results are yielded in their order, not at the time of their outcome.
                let is_of_then = |crashed_at: Instant| crashed_at == at || (self.plan.is_none() && crashed_at < at);
                let may_answer = is_culprit || plan.contract == Contract::AtMostOnce;
                may_answer && self.book.crashes_of(visit, plan.form).into_iter().any(is_of_then)
            })
    }

    /// The first item of an asynchronous closure's batch may panic before the other items are polled.
    fn crashed_before_its_turn(&self, at: Instant) -> bool {
        let is_run_once = |stage: usize| {
            let plan = &self.script.stages[stage];
            plan.form == Form::EachAsync && plan.contract == Contract::AtMostOnce && plan.max_batch_size > 1
        };
        let not_visited = |stage: usize| !self.visits.iter().any(|visit| visit.stage == stage);
        self.book.visits.iter().any(|other| {
            let crashed_at_once = other.end == Some((other.started_at, End::Panicked)) && other.started_at <= at;
            crashed_at_once && is_run_once(other.stage) && not_visited(other.stage)
        })
    }

    fn is_late(&self, message: &str, at: Instant) -> bool {
        let cannot_make_it = message.contains("takes about");
        let timed_out = self.visits.iter().any(|visit| {
            let timeout = self.script.stages[visit.stage].timeout;
            timeout.is_some_and(|timeout| at >= visit.started_at + timeout) && message.contains("within its timeout")
        });
        cannot_make_it || timed_out || self.record.deadline.is_none_or(|deadline| at >= deadline)
    }

    /// Whether the node was ending.
    fn is_ending(&self, at: Instant) -> bool {
        let first = self.book.events.iter().find(|(_, what)| {
            what.starts_with("draining") || what.starts_with("shutting down") || what.starts_with("aborted")
        });
        first.is_some_and(|(ending, _)| at >= *ending)
    }
}
