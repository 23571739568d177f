//! The steps of a route: the grammar of `stages`.
//!
//! ```toml
//! stages = [
//!   "decode",                                                    # a stage
//!   { ensemble = { best = ["digits", "labels"], raw = "digits" } },  # side by side; a map by member name
//!   { switch = "want", cases = { best = { pick = "best" }, all = [] } }, # one of them, by the value of a field
//! ]
//! ```
//!
//! A step is the name of a stage, a table with one of the keys above, or a list of steps that run in order; `[]`
//! returns its input. Steps may be nested, [`MAX_PLAN_DEPTH`](callboard_core::description::MAX_PLAN_DEPTH) deep at
//! most. They name stages and never each other, so there are no cycles.

use callboard_core::StageName;
use callboard_core::description::{Choice, PipelinePlan, StageOutline};

use super::document::{Entry, Section};
use super::error::ConfigError;
use super::form::Flag;
use super::nearest::Hint;
use super::source::Source;
use super::stage::StagePlan;

/// The steps of a route, over the indices of the plan's stages.
pub type Steps = PipelinePlan<usize>;

const STEP: &str =
    "the name of a stage, a list of steps, or a table with one of the keys ensemble, switch, pick and rename";
const MEMBERS: &str =
    "a table of one or more steps by name, such as { digit = [\"model\", \"labels\"], raw = \"model\" }";
const CASES: &str = "a table of one or more steps by value, such as { small = \"one\", large = \"other\" }";
const RENAMES: &str = "a table of one or more new names by old ones, such as { picture = \"image\" }";

const ENSEMBLE: &str = "ensemble";
const SWITCH: &str = "switch";
const PICK: &str = "pick";
const RENAME: &str = "rename";
const KEYS: [&str; 7] = [ENSEMBLE, "partial", SWITCH, "cases", "default", PICK, RENAME];

impl StagePlan {
    /// The stage in a picture. A size of batches that the file omits is up to the stage, which is not built here.
    pub(crate) fn outline(&self) -> StageOutline {
        let name = StageName::new(&self.name.value);
        if self.kind.is_remote() {
            return StageOutline::Remote(name);
        }
        let max_batch_size = if self.max_batch_size.source == Source::Default { 1 } else { self.max_batch_size.value };
        let replicas_of = self.replicas_of().map(StageName::new);
        StageOutline::Local { name, replicas: self.replicas.value.max, max_batch_size, replicas_of }
    }
}

/// Reads a step and its nested steps.
pub(crate) fn read(entry: &Entry<'_>, stages: &[StagePlan]) -> Result<Steps, ConfigError> {
    let steps = StepParser { stages }.step(entry)?;
    steps.check().map_err(|mistake| ConfigError::Rejected {
        place: entry.place_inside(&mistake.place),
        message: mistake.message,
    })?;
    Ok(steps)
}

struct StepParser<'s> {
    stages: &'s [StagePlan],
}

impl StepParser<'_> {
    /// The TOML parser has bounded the depth of what it gives.
    fn step(&self, entry: &Entry<'_>) -> Result<Steps, ConfigError> {
        if entry.value.is_str() {
            return self.stage(entry);
        }
        if entry.value.is_array() {
            let steps = entry.elements(STEP)?;
            let steps = steps.iter().map(|step| self.step(step)).collect::<Result<_, _>>()?;
            return Ok(PipelinePlan::Sequence(steps));
        }
        if !entry.value.is_table() {
            return Err(entry.bad(STEP));
        }
        self.table(entry, &entry.section()?)
    }

    fn stage(&self, entry: &Entry<'_>) -> Result<Steps, ConfigError> {
        let name = entry.text("the name of a stage")?.value;
        let names = || self.stages.iter().map(|stage| stage.name.value.as_str());
        match names().position(|known| known == name) {
            Some(index) => Ok(PipelinePlan::Stage(index)),
            None => Err(ConfigError::UnknownName {
                place: entry.place(),
                what: "stage",
                hint: Hint::new(&name, names()),
                name,
            }),
        }
    }

    /// A table has one key that gives its kind, and may have the other keys of that kind.
    fn table(&self, entry: &Entry<'_>, table: &Section<'_>) -> Result<Steps, ConfigError> {
        table.deny_unknown(&KEYS)?;
        let kinds: Vec<&str> =
            table.keys().into_iter().filter(|key| [ENSEMBLE, SWITCH, PICK, RENAME].contains(key)).collect();
        let [kind] = kinds[..] else {
            return match kinds[..] {
                [] => Err(entry.bad(STEP)),
                [one, other, ..] => {
                    let message = format!("`{one}` and `{other}` are two steps: give each a table of its own");
                    Err(ConfigError::Rejected { place: entry.place(), message })
                }
                [_] => unreachable!("a single one was taken above"),
            };
        };
        let known: &[&str] = match kind {
            ENSEMBLE => &[ENSEMBLE, "partial"],
            SWITCH => &[SWITCH, "cases", "default"],
            PICK => &[PICK],
            _ => &[RENAME],
        };
        table.deny_unknown(known)?;
        match kind {
            ENSEMBLE => self.ensemble(table),
            SWITCH => self.switch(table),
            PICK => Ok(PipelinePlan::Pick { field: table.require_text(PICK, "the name of a field")?.value }),
            _ => rename(table),
        }
    }

    fn ensemble(&self, table: &Section<'_>) -> Result<Steps, ConfigError> {
        let members = self.named(table, ENSEMBLE, MEMBERS)?;
        let partial = table.read("partial", &Flag)?.is_some_and(|partial| partial.value);
        Ok(PipelinePlan::Ensemble { members, partial })
    }

    fn switch(&self, table: &Section<'_>) -> Result<Steps, ConfigError> {
        let field = table.require_text(SWITCH, "the name of a field, whose value chooses the case")?.value;
        let cases = self.named(table, "cases", CASES)?;
        let default = table.get("default").map(|entry| self.step(&entry)).transpose()?;
        Ok(PipelinePlan::Switch { by: Choice::Field(field), cases, default: default.map(Box::new) })
    }

    fn named(
        &self,
        table: &Section<'_>,
        key: &'static str,
        expected: &str,
    ) -> Result<Vec<(String, Steps)>, ConfigError> {
        let named = entries(table, key, expected)?.into_iter();
        named.map(|(name, entry)| Ok((name, self.step(&entry)?))).collect()
    }
}

fn rename(table: &Section<'_>) -> Result<Steps, ConfigError> {
    let entries = entries(table, RENAME, RENAMES)?.into_iter();
    let fields = entries.map(|(old, entry)| Ok((old, entry.text("the new name of the field")?.value)));
    Ok(PipelinePlan::Rename { fields: fields.collect::<Result<_, _>>()? })
}

/// The entries of the table under `key`, in the order of the file.
fn entries<'d>(
    table: &Section<'d>,
    key: &'static str,
    expected: &str,
) -> Result<Vec<(String, Entry<'d>)>, ConfigError> {
    let entry = table.get(key).ok_or_else(|| table.missing(key, expected))?;
    if !entry.value.is_table() {
        return Err(entry.bad(expected));
    }
    let section = entry.section()?;
    Ok(section.keys().into_iter().filter_map(|name| Some((name.to_owned(), section.get(name)?))).collect())
}
