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
//! returns its input. Steps may be nested, [`MAX_DEPTH`] deep at most. They name stages and never each other, so there
//! are no cycles.

use callboard_core::StageName;
use callboard_core::description::PipelineShape;

use super::document::{Entry, Section};
use super::error::ConfigError;
use super::form::Flag;
use super::nearest::Hint;
use super::source::Source;
use super::stage::StagePlan;

/// One step of a route, with its nested steps.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepPlan {
    /// A stage: the index of one in the plan.
    Stage(usize),
    /// Steps in order. An empty sequence returns its input.
    Sequence(Vec<Self>),
    /// All members in parallel on the same input; the result is a map by member name.
    Ensemble {
        /// Names and steps, in the order of the file.
        members: Vec<(String, Self)>,
        /// Whether a failed member leaves its error in its place.
        partial: bool,
    },
    /// One of the cases, by the value of a field of the item.
    Switch {
        /// The field.
        field: String,
        /// Values and steps, in the order of the file.
        cases: Vec<(String, Self)>,
        /// For items without the field, and for values without a case. Without a default, such an item fails.
        default: Option<Box<Self>>,
    },
    /// The value of one field of the item.
    Pick {
        /// The field.
        field: String,
    },
    /// The item with other names for some of its fields.
    Rename {
        /// Old and new names.
        fields: Vec<(String, String)>,
    },
}

/// The depth of nested steps. Deeper ones are unreadable, and a walk through this depth fits the stack.
pub(crate) const MAX_DEPTH: usize = 16;

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

impl StepPlan {
    /// The stages of the step, each as often as it is used.
    #[must_use]
    pub fn stages(&self) -> Vec<usize> {
        match self {
            Self::Stage(index) => vec![*index],
            _ => self.parts().into_iter().flat_map(Self::stages).collect(),
        }
    }

    /// The direct parts of this step.
    fn parts(&self) -> Vec<&Self> {
        match self {
            Self::Stage(_) | Self::Pick { .. } | Self::Rename { .. } => Vec::new(),
            Self::Sequence(steps) => steps.iter().collect(),
            Self::Ensemble { members, .. } => members.iter().map(|(_, member)| member).collect(),
            Self::Switch { cases, default, .. } => {
                cases.iter().map(|(_, case)| case).chain(default.as_deref()).collect()
            }
        }
    }

    /// The same steps as a pipeline of `stages` has them.
    pub(crate) fn shape(&self, stages: &[StagePlan]) -> PipelineShape {
        let all = |parts: &[(String, Self)]| -> (Vec<String>, Vec<PipelineShape>) {
            parts.iter().map(|(name, part)| (name.clone(), part.shape(stages))).unzip()
        };
        match self {
            Self::Stage(index) => stages[*index].shape(),
            Self::Sequence(steps) => PipelineShape::Sequence(steps.iter().map(|step| step.shape(stages)).collect()),
            Self::Ensemble { members, partial } => {
                let (labels, members) = all(members);
                PipelineShape::Ensemble { members, labels, is_partial: *partial }
            }
            Self::Switch { cases, default, .. } => {
                let (mut labels, mut branches) = all(cases);
                if let Some(default) = default {
                    labels.push(DEFAULT_LABEL.to_owned());
                    branches.push(default.shape(stages));
                }
                PipelineShape::Switch { name: self.title(), branches, labels }
            }
            Self::Pick { .. } | Self::Rename { .. } => PipelineShape::Map(self.title()),
        }
    }

    /// The label of a step without a stage, in plans and diagrams: the fields of `switch`, `pick` and `rename`.
    pub(crate) fn title(&self) -> String {
        match self {
            Self::Switch { field, .. } => format!("switch {field}"),
            Self::Pick { field } => format!("pick {field}"),
            Self::Rename { fields } => {
                let fields: Vec<String> = fields.iter().map(|(old, new)| format!("{old} to {new}")).collect();
                format!("rename {}", fields.join(", "))
            }
            Self::Stage(_) | Self::Sequence(_) | Self::Ensemble { .. } => String::new(),
        }
    }
}

impl StagePlan {
    /// The stage as a step. A size of batches that the file omits is up to the stage, which is not built here.
    fn shape(&self) -> PipelineShape {
        let name = StageName::new(&self.name.value);
        if self.kind.is_remote() {
            return PipelineShape::Remote(name);
        }
        let max_batch_size = if self.max_batch_size.source == Source::Default { 1 } else { self.max_batch_size.value };
        PipelineShape::Stage { name, replicas: self.replicas.value.max, max_batch_size }
    }
}

/// The label of the default case of a switch.
pub(crate) const DEFAULT_LABEL: &str = "default";

/// Reads a step and its nested steps.
pub(crate) fn read(entry: &Entry<'_>, stages: &[StagePlan]) -> Result<StepPlan, ConfigError> {
    StepParser { stages }.step(entry, MAX_DEPTH)
}

struct StepParser<'s> {
    stages: &'s [StagePlan],
}

impl StepParser<'_> {
    fn step(&self, entry: &Entry<'_>, depth_left: usize) -> Result<StepPlan, ConfigError> {
        let Some(depth_left) = depth_left.checked_sub(1) else {
            let message = format!("steps inside steps, more than {MAX_DEPTH} deep");
            return Err(ConfigError::Rejected { place: entry.place(), message });
        };
        if entry.value.is_str() {
            return self.stage(entry);
        }
        if entry.value.is_array() {
            let steps = entry.elements(STEP)?;
            let steps = steps.iter().map(|step| self.step(step, depth_left)).collect::<Result<_, _>>()?;
            return Ok(StepPlan::Sequence(steps));
        }
        if !entry.value.is_table() {
            return Err(entry.bad(STEP));
        }
        self.table(entry, &entry.section()?, depth_left)
    }

    fn stage(&self, entry: &Entry<'_>) -> Result<StepPlan, ConfigError> {
        let name = entry.text("the name of a stage")?.value;
        let names = || self.stages.iter().map(|stage| stage.name.value.as_str());
        match names().position(|known| known == name) {
            Some(index) => Ok(StepPlan::Stage(index)),
            None => Err(ConfigError::UnknownName {
                place: entry.place(),
                what: "stage",
                hint: Hint::new(&name, names()),
                name,
            }),
        }
    }

    /// A table has one key that gives its kind, and may have the other keys of that kind.
    fn table(&self, entry: &Entry<'_>, table: &Section<'_>, depth_left: usize) -> Result<StepPlan, ConfigError> {
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
            ENSEMBLE => self.ensemble(table, depth_left),
            SWITCH => self.switch(table, depth_left),
            PICK => Ok(StepPlan::Pick { field: table.require_text(PICK, "the name of a field")?.value }),
            _ => rename(table),
        }
    }

    fn ensemble(&self, table: &Section<'_>, depth_left: usize) -> Result<StepPlan, ConfigError> {
        let members = self.named(table, ENSEMBLE, MEMBERS, depth_left)?;
        let partial = table.read("partial", &Flag)?.is_some_and(|partial| partial.value);
        Ok(StepPlan::Ensemble { members, partial })
    }

    fn switch(&self, table: &Section<'_>, depth_left: usize) -> Result<StepPlan, ConfigError> {
        let field = table.require_text(SWITCH, "the name of a field, whose value chooses the case")?.value;
        let cases = self.named(table, "cases", CASES, depth_left)?;
        let default = table.get("default").map(|entry| self.step(&entry, depth_left)).transpose()?;
        Ok(StepPlan::Switch { field, cases, default: default.map(Box::new) })
    }

    fn named(
        &self,
        table: &Section<'_>,
        key: &'static str,
        expected: &str,
        depth_left: usize,
    ) -> Result<Vec<(String, StepPlan)>, ConfigError> {
        let named = entries(table, key, expected)?.into_iter();
        named.map(|(name, entry)| Ok((name, self.step(&entry, depth_left)?))).collect()
    }
}

fn rename(table: &Section<'_>) -> Result<StepPlan, ConfigError> {
    let mut fields: Vec<(String, String)> = Vec::new();
    for (old, entry) in entries(table, RENAME, RENAMES)? {
        let new = entry.text("the new name of the field")?.value;
        if let Some((first, _)) = fields.iter().find(|(_, other)| *other == new) {
            let message = format!("`{first}` is to be called `{new}` already");
            return Err(ConfigError::Rejected { place: entry.place(), message });
        }
        fields.push((old, new));
    }
    Ok(StepPlan::Rename { fields })
}

/// The entries of the table under `key`, in the order of the file. At least one.
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
    let entries = section.keys().into_iter().filter_map(|name| Some((name.to_owned(), section.get(name)?)));
    let entries: Vec<_> = entries.collect();
    if entries.is_empty() { Err(entry.bad(expected)) } else { Ok(entries) }
}
