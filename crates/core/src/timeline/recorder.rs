//! The record of a call: passed with the call's options, written by each part that works for the call, readable at any
//! time.
//!
//! * **Full:** visits after the first [`MAX_VISITS`] are only counted.
//! * **Late, cancelled:** the record keeps the entries until then; later entries have no reader.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{BatchFacts, BatchObserver, NodeFacts, RunEnd, SpanId, StageRun, StageVisit, Timeline};
use crate::clock::{self, Instant};
use crate::id::StageName;

/// Enough for any pipeline. In a stream, each output visits the later stages.
const MAX_VISITS: usize = 64;

/// Records one call, or a few related calls. Cloning it is cheap: all clones write the same record.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use callboard_core::timeline::Recorder;
/// use callboard_core::{App, CallOptions, Instant, Stage};
///
/// let double = Stage::each("double", |n: &u64| Ok(2 * n));
/// let node = App::new().route("/double", double).start().await?;
///
/// let recorder = Recorder::new(Instant::now());
/// let options = CallOptions::new().with_recorder(recorder.clone());
/// assert_eq!(node.client().call_with::<u64, u64>("/double", 21, options).await?, 42);
///
/// let timeline = recorder.timeline(Instant::now());
/// let run = &timeline.visits[0].runs[0];
/// println!("waited {:?}, computed {:?}", run.queue, run.compute);
/// assert_eq!(run.batch.unwrap().size, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Recorder(Arc<RecorderState>);

struct RecorderState {
    began: Instant,
    /// The call's place in a trace, and the observer of its batches.
    traced: Option<(SpanId, Arc<dyn BatchObserver>)>,
    /// Called with the record when its last clone is dropped.
    on_complete: Option<OnComplete>,
    notes: Mutex<VisitList>,
}

type OnComplete = Box<dyn FnOnce(Timeline) + Send + Sync>;

#[derive(Default)]
struct VisitList {
    visits: Vec<VisitRecord>,
    omitted: usize,
}

struct VisitRecord {
    stage: StageName,
    /// Its number in the stage's queue; `None` on another node.
    sequence: Option<u64>,
    arrived: Instant,
    left: Option<Instant>,
    /// The facts from the other node.
    there: Option<NodeFacts>,
    runs: Vec<RunRecord>,
}

struct RunRecord {
    queued: Instant,
    taken: Option<(Instant, BatchFacts)>,
    started: Option<Instant>,
    ended: Option<(Instant, RunEnd)>,
}

impl RunRecord {
    fn new(queued: Instant) -> Self {
        Self { queued, taken: None, started: None, ended: None }
    }
}

impl Recorder {
    /// Begins a record.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self(Arc::new(RecorderState { began: now, traced: None, on_complete: None, notes: Mutex::default() }))
    }

    /// Begins the record of a call that is part of a trace; `observer` gets its batches.
    #[must_use]
    pub fn for_span(now: Instant, span: SpanId, observer: Arc<dyn BatchObserver>) -> Self {
        Self(Arc::new(RecorderState {
            began: now,
            traced: Some((span, observer)),
            on_complete: None,
            notes: Mutex::default(),
        }))
    }

    /// As [`for_span`](Self::for_span), for a call without another observer of its end: `on_complete` gets the record
    /// when its last clone is dropped. It runs there, so it must not block.
    #[must_use]
    pub fn with_on_complete(
        now: Instant,
        span: SpanId,
        observer: Arc<dyn BatchObserver>,
        on_complete: impl FnOnce(Timeline) + Send + Sync + 'static,
    ) -> Self {
        let (traced, on_complete) = (Some((span, observer)), Some(Box::new(on_complete) as OnComplete));
        Self(Arc::new(RecorderState { began: now, traced, on_complete, notes: Mutex::default() }))
    }

    /// When the record began.
    #[must_use]
    pub fn began(&self) -> Instant {
        self.0.began
    }

    /// The record up to `now`.
    #[must_use]
    pub fn timeline(&self, now: Instant) -> Timeline {
        self.0.timeline(now)
    }

    /// Its call's place in a trace, if it has one.
    #[must_use]
    pub fn span(&self) -> Option<SpanId> {
        self.0.traced.as_ref().map(|(span, _)| *span)
    }

    /// Its place in a trace, and the observer of its batches.
    pub(crate) fn traced(&self) -> Option<&(SpanId, Arc<dyn BatchObserver>)> {
        self.0.traced.as_ref()
    }

    /// The call waits in the queue of a stage. `sequence` is its number there.
    pub(crate) fn queued(&self, stage: &StageName, sequence: u64, now: Instant) {
        let _ = self.visit(stage, Some(sequence), now, vec![RunRecord::new(now)]);
    }

    /// The call leaves for another node. Returns the index of the visit, if there was room for it: a call may have
    /// several such visits to one stage at once.
    pub(crate) fn sent(&self, stage: &StageName, now: Instant) -> Option<usize> {
        self.visit(stage, None, now, Vec::new())
    }

    /// The call came back.
    pub(crate) fn came_back(&self, visit: usize, now: Instant, there: Option<NodeFacts>) {
        if let Some(visit) = self.0.notes.lock().visits.get_mut(visit) {
            visit.left = Some(now);
            visit.there = there;
        }
    }

    /// The call belongs to this batch.
    pub(crate) fn taken(&self, stage: &StageName, sequence: u64, now: Instant, facts: BatchFacts) {
        self.note_run(stage, sequence, |run| run.taken = Some((now, facts)));
    }

    /// User code begins with the batch.
    pub(crate) fn started(&self, stage: &StageName, sequence: u64, now: Instant, facts: BatchFacts) {
        self.note_run(stage, sequence, |run| {
            run.started = Some(now);
            run.taken = run.taken.map(|(at, _)| (at, facts));
        });
    }

    /// The call has its outcome.
    pub(crate) fn ended(&self, stage: &StageName, sequence: u64, now: Instant, end: RunEnd) {
        self.note(stage, sequence, |visit| {
            visit.left = Some(now);
            if let Some(run) = visit.runs.last_mut() {
                run.ended = Some((now, end));
            }
        });
    }

    /// The run is over, and the call waits for another one.
    pub(crate) fn waits_again(&self, stage: &StageName, sequence: u64, now: Instant, end: RunEnd) {
        self.note(stage, sequence, |visit| {
            if let Some(run) = visit.runs.last_mut() {
                run.ended = Some((now, end));
            }
            visit.runs.push(RunRecord::new(now));
        });
    }

    /// Adds a visit and returns its index.
    fn visit(&self, stage: &StageName, sequence: Option<u64>, now: Instant, runs: Vec<RunRecord>) -> Option<usize> {
        let mut notes = self.0.notes.lock();
        if notes.visits.len() == MAX_VISITS {
            notes.omitted += 1;
            return None;
        }
        notes.visits.push(VisitRecord { stage: stage.clone(), sequence, arrived: now, left: None, there: None, runs });
        Some(notes.visits.len() - 1)
    }

    fn note_run(&self, stage: &StageName, sequence: u64, write: impl FnOnce(&mut RunRecord)) {
        self.note(stage, sequence, |visit| visit.runs.last_mut().map_or((), write));
    }

    /// Usually the last visit is the right one.
    fn note(&self, stage: &StageName, sequence: u64, write: impl FnOnce(&mut VisitRecord)) {
        let mut notes = self.0.notes.lock();
        let mut visits = notes.visits.iter_mut().rev();
        if let Some(visit) = visits.find(|visit| visit.sequence == Some(sequence) && visit.stage == *stage) {
            write(visit);
        }
    }
}

impl RecorderState {
    fn timeline(&self, now: Instant) -> Timeline {
        let since = |at: Instant| at.saturating_duration_since(self.began);
        let notes = self.notes.lock();
        let run = |run: &RunRecord| {
            let (ended, taken) = (run.ended.map_or(now, |(at, _)| at), run.taken.map(|(at, _)| at));
            let batch_wait = taken.map(|at| run.started.unwrap_or(ended).saturating_duration_since(at));
            StageRun {
                queued: since(run.queued),
                queue: taken.unwrap_or(ended).saturating_duration_since(run.queued),
                batch_wait,
                compute: run.started.map(|at| ended.saturating_duration_since(at)),
                batch: run.taken.map(|(_, facts)| facts),
                end: run.ended.map(|(_, end)| end),
            }
        };
        let visit = |visit: &VisitRecord| StageVisit {
            stage: visit.stage.clone(),
            arrived: since(visit.arrived),
            left: visit.left.map(since),
            is_remote: visit.sequence.is_none(),
            remote: visit.there.clone(),
            runs: visit.runs.iter().map(run).collect(),
        };
        Timeline { total: since(now), visits: notes.visits.iter().map(visit).collect(), omitted: notes.omitted }
    }
}

impl Drop for RecorderState {
    fn drop(&mut self) {
        if let Some(on_complete) = self.on_complete.take() {
            on_complete(self.timeline(clock::now()));
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("began", &self.0.began).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn two_branches_at_the_same_remote_stage_return_separately() {
        let (start, stage) = (Instant::now(), StageName::new("classify"));
        let recorder = Recorder::new(start);
        let visits =
            [recorder.sent(&stage, start), recorder.sent(&stage, start)].map(|visit| visit.expect("there is room"));
        recorder.came_back(visits[0], start + Duration::from_millis(5), None);
        let left = |visit: &StageVisit| visit.left;
        let known = recorder.timeline(start + Duration::from_millis(7)).visits;
        assert_eq!(known.iter().map(left).collect::<Vec<_>>(), [Some(Duration::from_millis(5)), None]);
        recorder.came_back(visits[1], start + Duration::from_millis(9), None);
        let known = recorder.timeline(start + Duration::from_millis(9)).visits;
        assert_eq!(
            known.iter().map(left).collect::<Vec<_>>(),
            [5, 9].map(|millis| Some(Duration::from_millis(millis)))
        );
    }
}
