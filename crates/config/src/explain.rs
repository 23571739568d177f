//! The plan as a table for people: every value with its source.

use std::fmt;

use super::form::Form;
use super::plan::{Plan, Target};
use super::route::RoutePlan;
use super::setting::Name as SettingName;
use super::setting::route as of_route;
use super::source::{Source, Sourced};
use super::stage::{COST, MAX_BATCH_SIZE, StagePlan};
#[cfg(feature = "process")]
use super::units::show_bytes;

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
        #[cfg(feature = "process")]
        for helper in &plan.helpers {
            let own = helper.own.iter();
            let own = own.map(|key| Row::new(&key.key, key.text.clone(), &key.source));
            write_rows(f, &format!("process {}", helper.name.value), own.collect())?;
        }
        for stage in &plan.stages {
            write_rows(f, &stage_title(stage), stage_rows(stage))?;
        }
        for route in &plan.routes {
            write_rows(f, &format!("route {}", route.path.value), route_rows(plan, route))?;
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

    fn with_form<F: Form>(key: &str, form: &F, value: &Sourced<F::Value>) -> Self {
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
        Target::File { path, .. } if path.extension().is_some_and(|extension| extension == "py") => {
            format!("plan of {} (lines are those of `callboard export`)", path.display())
        }
        Target::File { path, .. } => format!("plan of {} (lines are its lines)", path.display()),
        Target::Model { path } => format!("plan of the model {}", path.display()),
        Target::Models { path, .. } => format!("plan of the models in {}", path.display()),
        Target::Program { file: Some((path, _)) } => {
            format!("plan of this program with {} (lines are its lines)", path.display())
        }
        Target::Program { file: None } => "plan of this program".to_owned(),
    }
}

fn stage_title(stage: &StagePlan) -> String {
    format!("stage {} ({})", stage.name.value, stage.kind.name())
}

/// The limit of children for which none is set.
#[cfg(feature = "process")]
fn memory_limit(stage: &StagePlan) -> Option<Row> {
    const KEY: &str = "memory_limit";
    if !stage.kind.has_children() || stage.replicas_of().is_some() || stage.own.iter().any(|own| own.key == KEY) {
        return None;
    }
    let children = stage.replicas.value.max + usize::from(stage.kind.has_spare());
    let bytes = callboard_process::default_memory_limit(children)?;
    Some(Row::new(KEY, format!("{} (a share of this machine's memory)", show_bytes(bytes)), &Source::Default))
}

#[cfg(not(feature = "process"))]
fn memory_limit(_: &StagePlan) -> Option<Row> {
    None
}

fn stage_rows(stage: &StagePlan) -> Vec<Row> {
    let own = stage.own.iter().map(|key| Row::new(&key.key, key.text.clone(), &key.source));
    let common = stage.rows().into_iter().filter(|(key, ..)| stage.has_effect(key)).map(|(key, value, source)| {
        let words = (*source == Source::Default).then(|| of_model(stage, key)).flatten();
        Row::new(key, words.unwrap_or(value), source)
    });
    own.chain(memory_limit(stage)).chain(common).collect()
}

/// The default of a key whose value only the model knows, which the plan does not open.
fn of_model(stage: &StagePlan, key: &str) -> Option<String> {
    if !stage.kind.has_rows() {
        None
    } else if key == MAX_BATCH_SIZE.key {
        Some(format!("{} (1 without a batch axis)", stage.max_batch_size.value))
    } else if key == COST.key {
        let is_padded = stage.kind.is_padded();
        Some(if is_padded { "tokens" } else { "entries (rows where items differ in length)" }.to_owned())
    } else {
        None
    }
}

fn route_rows(plan: &Plan, route: &RoutePlan) -> Vec<Row> {
    let rollout = route.rollout.value.as_ref().map_or("none", |rollout| &rollout.text);
    vec![
        Row::new("stages", plan.steps_of(route).to_string(), &route.steps.source),
        Row::with_form(of_route::MAX_IN_FLIGHT, &of_route::MAX_IN_FLIGHT_FORM, &route.max_in_flight),
        Row::with_form(of_route::TIMEOUT, of_route::timeout_form(), &route.timeout),
        Row::with_form(of_route::MAX_TIMEOUT, &of_route::MAX_TIMEOUT_FORM, &route.max_timeout),
        Row::with_form(of_route::PRIORITY, &of_route::PRIORITY_FORM, &route.priority),
        Row::with_form(of_route::MAX_BODY_BYTES, of_route::max_body_bytes_form(), &route.max_body_bytes),
        Row::with_form(of_route::HEADERS, &of_route::HEADERS_FORM, &route.headers),
        Row::with_form(of_route::QUERY, &of_route::QUERY_FORM, &route.query),
        Row::with_form(of_route::METHODS, &of_route::METHODS_FORM, &route.methods),
        Row::with_form(of_route::OPENAI, &of_route::OPENAI_FORM, &route.task),
        Row::with_form(of_route::ALIASES, &of_route::ALIASES_FORM, &route.aliases),
        Row::with_form(of_route::MCP, &of_route::MCP_FORM, &route.mcp),
        Row::new("rollout", rollout.to_owned(), &route.rollout.source),
    ]
}

/// The longest text in a column, in letters.
const MAX_COLUMN: usize = 60;

fn write_rows(f: &mut fmt::Formatter<'_>, title: &str, rows: Vec<Row>) -> fmt::Result {
    // A long value does not widen the column of all other rows.
    let width = |part: fn(&Row) -> &str| {
        rows.iter().map(|row| part(row).chars().count()).filter(|width| *width <= MAX_COLUMN).max().unwrap_or(0)
    };
    let (keys, values) = (width(|row| &row.key), width(|row| &row.value));
    writeln!(f, "\n{title}")?;
    for Row { key, value, source } in &rows {
        writeln!(f, "  {key:keys$}  {value:values$}  {source}")?;
    }
    Ok(())
}
