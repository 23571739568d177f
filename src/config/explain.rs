//! The plan as a table for people: every value with where it came from.

use std::fmt;

use super::form::Form;
use super::plan::{Plan, Target};
use super::setting::Name as SettingName;
use super::setting::stage::{
    MAX_BATCH_SIZE, MAX_BATCH_SIZE_FORM, MAX_DELAY, MAX_DELAY_FORM, QUEUE, QUEUE_FORM, REPLICAS, REPLICAS_FORM,
};
use super::source::{Source, Sourced};
use super::stage::StagePlan;

/// Prints a plan with its sources.
#[derive(Debug)]
pub struct Explanation<'a>(pub &'a Plan);

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(plan) = self;
        writeln!(f, "{}", title(&plan.target))?;
        let is_program = matches!(plan.target, Target::Program { .. });
        let rows = plan.settings.rows().into_iter().filter(|(name, ..)| !is_program || name.is_for_programs());
        write_rows(f, "settings", rows.map(Row::from).collect())?;
        for stage in &plan.stages {
            write_rows(f, &stage_title(stage), stage_rows(stage))?;
        }
        for route in &plan.routes {
            let names = route.stages.value.iter().map(|index| plan.stages[*index].name.value.as_str());
            let pipeline = names.collect::<Vec<_>>().join(" → ");
            let rows = vec![Row::new("stages", pipeline, &route.stages.source)];
            write_rows(f, &format!("route {}", route.path.value), rows)?;
        }
        for stage in plan.unused_stages() {
            writeln!(f, "\nstage {} is used by no route and will not be started", stage.name.value)?;
        }
        Ok(())
    }
}

struct Row {
    key: String,
    value: String,
    source: String,
}

impl Row {
    fn new(key: &str, value: String, source: &Source) -> Self {
        Self { key: key.to_owned(), value, source: source.to_string() }
    }

    fn of<F: Form>(key: &str, form: &F, value: &Sourced<F::Value>) -> Self {
        Self::new(key, form.show(&value.value), &value.source)
    }
}

impl From<(&'static SettingName, String, &Source)> for Row {
    fn from((name, value, source): (&'static SettingName, String, &Source)) -> Self {
        Self::new(name.key, value, source)
    }
}

fn title(target: &Target) -> String {
    match target {
        Target::File { path, .. } => format!("plan of {} (lines are its lines)", path.display()),
        Target::Model { path } => format!("plan of the model {}", path.display()),
        Target::Program { file: Some((path, _)) } => {
            format!("plan of this program with {} (lines are its lines)", path.display())
        }
        Target::Program { file: None } => "plan of this program".to_owned(),
    }
}

fn stage_title(stage: &StagePlan) -> String {
    format!("stage {} ({})", stage.name.value, stage.kind.name())
}

fn stage_rows(stage: &StagePlan) -> Vec<Row> {
    let own = stage.own.iter();
    let own = own.map(|key| Row::new(&key.key, key.text.clone(), &Source::File { line: key.line }));
    let common = [
        Row::of(MAX_BATCH_SIZE, &MAX_BATCH_SIZE_FORM, &stage.max_batch_size),
        Row::of(MAX_DELAY, &MAX_DELAY_FORM, &stage.max_delay),
        Row::of(REPLICAS, &REPLICAS_FORM, &stage.replicas),
        Row::of(QUEUE, &QUEUE_FORM, &stage.queue),
    ];
    own.chain(common).collect()
}

fn write_rows(f: &mut fmt::Formatter<'_>, title: &str, rows: Vec<Row>) -> fmt::Result {
    let width = |part: fn(&Row) -> &str| rows.iter().map(|row| part(row).chars().count()).max().unwrap_or(0);
    let (keys, values) = (width(|row| &row.key), width(|row| &row.value));
    writeln!(f, "\n{title}")?;
    for Row { key, value, source } in &rows {
        writeln!(f, "  {key:keys$}  {value:values$}  {source}")?;
    }
    Ok(())
}
