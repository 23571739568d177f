//! The plan of a pipeline: its steps as data, in one line, in the grammar of configuration files, and what they mean.
//!
//! A file and a Python app give a plan, from which a pipeline is [built](PipelinePlan::build); a pipeline gives its plan
//! for pictures and lists. A combinator begins here, with a variant.

use std::collections::HashMap;
use std::fmt;

use callboard_codec::Value;
use serde::{Deserialize, Serialize};

use super::check::PlanMistake;
use super::ensemble::Join;
use super::run::Combinator;
use super::{Graph, Pipeline, StreamPipeline, fields};
use crate::error::Failure;
use crate::id::StageName;
use crate::stage::StageSettings;

/// The steps of a pipeline, over stages that `S` identifies. Its text is one line.
///
/// ```
/// use callboard_core::{App, Pipeline, Stage};
///
/// let words = Stage::each("words", |text: &String| Ok(text.split(' ').count()));
/// let double = Stage::each("double", |n: &usize| Ok(n * 2));
/// let app = App::new().route("/count", Pipeline::from(words).then(double));
/// assert_eq!(app.routes()[0].plan().to_string(), "words → double");
/// ```
///
/// serde reads and writes the grammar of `stages` in a configuration file: the name of a stage, a list of steps, or a
/// map with the key of a step. It refuses [`Map`](Self::Map), [`Ask`](Self::Ask) and [`Choice::Code`], which only code
/// can be; [`check`](Self::check) refuses what the grammar allows and no file may say.
///
/// ```
/// use callboard_core::description::PipelinePlan;
///
/// let steps = r#"["decode", {"ensemble": {"best": [{"pick": "logits"}, "labels"], "raw": []}}]"#;
/// let plan: PipelinePlan<String> = serde_json::from_str(steps).unwrap();
/// assert_eq!(plan.to_string(), "decode → (best: [pick logits] → labels | raw: ·)");
/// assert_eq!(plan.stages(), ["decode", "labels"]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
#[serde(expecting = "expected the name of a stage, a list of steps, or a map with one of the keys ensemble, switch, \
                     pick and rename")]
pub enum PipelinePlan<S> {
    /// A stage.
    Stage(S),
    /// Steps one after the other. Without steps, the output is the input.
    Sequence(Vec<Self>),
    /// All members on the same input. The output is a map by name.
    Ensemble {
        /// The members in order, by their names, which are empty in an ensemble without names.
        #[serde(rename = "ensemble", with = "named")]
        members: Vec<(String, Self)>,
        /// Whether a failed member leaves its error in its place.
        #[serde(default, skip_serializing_if = "is_false")]
        partial: bool,
    },
    /// One of the cases.
    Switch {
        /// How it is chosen.
        #[serde(rename = "switch")]
        by: Choice,
        /// The cases in order, by their values, which are empty where code chooses and names none.
        #[serde(with = "named")]
        cases: Vec<(String, Self)>,
        /// For items without the field, and for values without a case. Without a default, such an item fails.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        default: Option<Box<Self>>,
    },
    /// The value of one field of the item.
    Pick {
        /// The field.
        #[serde(rename = "pick")]
        field: String,
    },
    /// The item with other names for some of its fields.
    Rename {
        /// Old and new names.
        #[serde(rename = "rename", with = "named")]
        fields: Vec<(String, String)>,
    },
    /// A function between stages, by its name.
    #[serde(skip)]
    Map(String),
    /// A question to an actor, by the name of the step.
    #[serde(skip)]
    Ask(String),
}

/// How the case of a switch is chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Choice {
    /// By the value of this field.
    Field(String),
    /// By a function of this name.
    #[serde(skip)]
    Code(String),
}

/// What a picture says of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageOutline {
    /// A stage of this node.
    Local {
        /// Its name.
        name: StageName,
        /// The number of its workers.
        replicas: usize,
        /// The largest batch.
        max_batch_size: usize,
        /// The stage whose workers these are, if they are not its own.
        replicas_of: Option<StageName>,
    },
    /// A stage that runs on other nodes only.
    Remote(StageName),
}

/// The name of the default case of a switch.
const DEFAULT: &str = "default";

impl<S> PipelinePlan<S> {
    /// The steps inside of this one, with their names; the default case of a switch is called `default`.
    #[must_use]
    pub fn parts(&self) -> Vec<(&str, &Self)> {
        let named = |(name, part)| -> (&str, &Self) { (String::as_str(name), part) };
        match self {
            Self::Sequence(steps) => steps.iter().map(|step| ("", step)).collect(),
            Self::Ensemble { members, .. } => members.iter().map(|(name, part)| named((name, part))).collect(),
            Self::Switch { cases, default, .. } => {
                let default = default.as_deref().map(|default| (DEFAULT, default));
                cases.iter().map(|(name, part)| named((name, part))).chain(default).collect()
            }
            Self::Stage(_) | Self::Pick { .. } | Self::Rename { .. } | Self::Map(_) | Self::Ask(_) => Vec::new(),
        }
    }

    /// The stages, each as often as it is used.
    #[must_use]
    pub fn stages(&self) -> Vec<&S> {
        match self {
            Self::Stage(stage) => vec![stage],
            _ => self.parts().into_iter().flat_map(|(_, part)| part.stages()).collect(),
        }
    }

    /// The same steps over other stages.
    #[must_use]
    pub fn map<T>(&self, stage: &impl Fn(&S) -> T) -> PipelinePlan<T> {
        let all = |parts: &[(String, Self)]| parts.iter().map(|(name, part)| (name.clone(), part.map(stage))).collect();
        match self {
            Self::Stage(one) => PipelinePlan::Stage(stage(one)),
            Self::Sequence(steps) => PipelinePlan::Sequence(steps.iter().map(|step| step.map(stage)).collect()),
            Self::Ensemble { members, partial } => PipelinePlan::Ensemble { members: all(members), partial: *partial },
            Self::Switch { by, cases, default } => PipelinePlan::Switch {
                by: by.clone(),
                cases: all(cases),
                default: default.as_deref().map(|default| Box::new(default.map(stage))),
            },
            Self::Pick { field } => PipelinePlan::Pick { field: field.clone() },
            Self::Rename { fields } => PipelinePlan::Rename { fields: fields.clone() },
            Self::Map(name) => PipelinePlan::Map(name.clone()),
            Self::Ask(name) => PipelinePlan::Ask(name.clone()),
        }
    }

    /// The label of a step, in pictures and errors; empty for a stage and a sequence.
    #[must_use]
    pub fn title(&self) -> String {
        match self {
            Self::Switch { by: Choice::Field(field), .. } => format!("switch {field}"),
            Self::Pick { field } => format!("pick {field}"),
            Self::Rename { fields } => {
                let fields: Vec<String> = fields.iter().map(|(old, new)| format!("{old} to {new}")).collect();
                format!("rename {}", fields.join(", "))
            }
            Self::Switch { by: Choice::Code(name), .. } | Self::Map(name) | Self::Ask(name) => name.clone(),
            Self::Ensemble { partial: false, .. } => "all of".to_owned(),
            Self::Ensemble { partial: true, .. } => "any of".to_owned(),
            Self::Stage(_) | Self::Sequence(_) => String::new(),
        }
    }
}

impl<S> Graph<S> {
    pub(crate) fn plan(&self, stage: fn(&S) -> (&StageName, &StageSettings)) -> PipelinePlan<StageOutline> {
        let all = |parts: &[Self], labels: &[String]| {
            let name = |position| labels.get(position).cloned().unwrap_or_default();
            parts.iter().enumerate().map(|(position, part)| (name(position), part.plan(stage))).collect()
        };
        match self {
            Self::Stage(one) => {
                let (name, settings) = stage(one);
                PipelinePlan::Stage(StageOutline::Local {
                    name: name.clone(),
                    replicas: settings.replicas().get(),
                    max_batch_size: settings.batching().max_batch_size.get(),
                    replicas_of: settings.replicas_of().cloned(),
                })
            }
            Self::Remote(stage) => PipelinePlan::Stage(StageOutline::Remote(stage.name.clone())),
            Self::Sequence(steps) => PipelinePlan::Sequence(steps.iter().map(|step| step.plan(stage)).collect()),
            Self::Map { name, .. } => PipelinePlan::Map(name.to_string()),
            Self::Ask { name, .. } => PipelinePlan::Ask(name.to_string()),
            Self::Nested { combinator: Combinator::Ensemble(join), parts, labels } => {
                PipelinePlan::Ensemble { members: all(parts, labels), partial: matches!(join, Join::Partial(_)) }
            }
            Self::Nested { combinator: Combinator::Switch { name, .. }, parts, labels } => {
                PipelinePlan::Switch { by: Choice::Code(name.to_string()), cases: all(parts, labels), default: None }
            }
        }
    }
}

impl<S: fmt::Display> fmt::Display for PipelinePlan<S> {
    /// `decode → (a | b) → choose{x / y} → join`, with names: `(one: a | other: b)`; a partial ensemble is `(a | b)?`,
    /// a stage that runs on other nodes only `↗a`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, separator, close) = match self {
            Self::Stage(stage) => return stage.fmt(f),
            Self::Sequence(steps) if steps.is_empty() => return f.write_str("·"),
            Self::Sequence(_) => (String::new(), " → ", ""),
            Self::Ensemble { partial, .. } => ("(".to_owned(), " | ", if *partial { ")?" } else { ")" }),
            Self::Switch { .. } => (self.title() + "{", " / ", "}"),
            Self::Pick { .. } | Self::Rename { .. } | Self::Map(_) => return write!(f, "[{}]", self.title()),
            Self::Ask(name) => return write!(f, "<{name}>"),
        };
        f.write_str(&open)?;
        for (position, (name, part)) in self.parts().into_iter().enumerate() {
            if position > 0 {
                f.write_str(separator)?;
            }
            if !name.is_empty() {
                write!(f, "{name}: ")?;
            }
            part.fmt(f)?;
        }
        f.write_str(close)
    }
}

impl fmt::Display for StageOutline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local { name, .. } => name.fmt(f),
            Self::Remote(name) => write!(f, "↗{name}"),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// Entries by name as a map, in their order.
mod named {
    use std::fmt;
    use std::marker::PhantomData;

    use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
    use serde::ser::{Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, Se: Serializer>(
        entries: &[(String, T)],
        serializer: Se,
    ) -> Result<Se::Ok, Se::Error> {
        serializer.collect_map(entries.iter().map(|(name, entry)| (name, entry)))
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(String, T)>, D::Error> {
        struct Entries<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Vec<(String, T)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(entries)
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}

// ---- What a plan means ---------------------------------------------------------------------------------------------

/// The code of a stage or a pipeline, over values.
#[derive(Clone, Debug)]
pub enum Planned {
    /// One output for each item.
    Single(Pipeline<Value, Value>),
    /// A stream of outputs for each item.
    Stream(StreamPipeline<Value, Value>),
}

/// Why a plan is no pipeline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError<S> {
    /// Its steps are wrong.
    #[error(transparent)]
    Mistake(#[from] PlanMistake),
    /// This stage answers with a stream where one output is possible.
    #[error("stage `{0}` answers with a stream: a route has at most one such stage, outside of ensembles and switches")]
    Streams(S),
    /// The step of this name is code, which no plan has.
    #[error("the step `{0}` is code, and a plan has none")]
    Code(String),
}

impl<S: Clone> PipelinePlan<S> {
    /// The pipeline of this plan. `stage` gives the code of each stage. At most one stage streams, as a step of its own:
    /// the steps before it run once, the steps after it run for each output.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use callboard_codec::Value;
    /// use callboard_core::description::{PipelinePlan, Planned};
    /// use callboard_core::{App, Stage};
    ///
    /// let plan: PipelinePlan<String> = serde_json::from_str(r#"["text", {"ensemble": {"one": "text", "same": []}}]"#)?;
    /// let text = Stage::each("text", |value: &Value| Ok(value.clone()));
    /// let Planned::Single(pipeline) = plan.build(&|_| Planned::Single(text.clone().into()))? else { unreachable!() };
    /// let node = App::new().route("/both", pipeline).start().await?;
    /// let both: Value = node.client().call("/both", Value::from("a")).await?;
    /// assert_eq!(both.as_map().unwrap().get("one"), Some(&Value::from("a")));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`PlanError`]
    pub fn build(&self, stage: &impl Fn(&S) -> Planned) -> Result<Planned, PlanError<S>> {
        self.check()?;
        let steps = match self {
            Self::Sequence(steps) => steps.as_slice(),
            step => std::slice::from_ref(step),
        };
        let streaming = |(position, step): (usize, &Self)| match step {
            Self::Stage(name) => match stage(name) {
                Planned::Stream(stream) => Some((position, stream)),
                Planned::Single(_) => None,
            },
            _ => None,
        };
        let Some((position, stream)) = steps.iter().enumerate().find_map(streaming) else {
            return Ok(Planned::Single(self.single(stage)?));
        };
        let (before, after) = (&steps[..position], &steps[position + 1..]);
        let stream = if before.is_empty() { stream } else { in_order(before, stage)?.then_stream(stream) };
        Ok(Planned::Stream(if after.is_empty() { stream } else { stream.then(in_order(after, stage)?) }))
    }

    /// The pipeline of a step, if no stage of it streams.
    fn single(&self, stage: &impl Fn(&S) -> Planned) -> Result<Pipeline<Value, Value>, PlanError<S>> {
        let nothing = Pipeline::pass_through();
        let parts = || -> Result<Vec<(String, Pipeline<_, _>)>, PlanError<S>> {
            self.parts().into_iter().map(|(name, part)| Ok((name.to_owned(), part.single(stage)?))).collect()
        };
        Ok(match self {
            Self::Stage(name) => match stage(name) {
                Planned::Single(pipeline) => pipeline,
                Planned::Stream(_) => return Err(PlanError::Streams(name.clone())),
            },
            Self::Sequence(steps) => in_order(steps, stage)?,
            Self::Ensemble { partial: false, .. } => Pipeline::ensemble_named(parts()?),
            Self::Ensemble { partial: true, .. } => Pipeline::ensemble_named_partial(parts()?),
            Self::Switch { by: Choice::Field(field), cases, default } => {
                let values = cases.iter().map(|(value, _)| value.clone()).collect();
                let choose = choice(field.clone(), values, default.is_some());
                let (labels, branches): (Vec<_>, Vec<_>) = parts()?.into_iter().unzip();
                Pipeline::switch(&self.title(), choose, branches).labelled(labels)
            }
            Self::Pick { field } => {
                let field = field.clone();
                nothing.map(&self.title(), move |item: &Value| fields::pick(&field, item))
            }
            Self::Rename { fields } => {
                let fields = fields.clone();
                nothing.map(&self.title(), move |item: &Value| fields::rename(&fields, item))
            }
            Self::Switch { by: Choice::Code(name), .. } | Self::Map(name) | Self::Ask(name) => {
                return Err(PlanError::Code(name.clone()));
            }
        })
    }
}

/// The pipeline of these steps, one after the other.
fn in_order<S: Clone>(
    steps: &[PipelinePlan<S>],
    stage: &impl Fn(&S) -> Planned,
) -> Result<Pipeline<Value, Value>, PlanError<S>> {
    steps.iter().try_fold(Pipeline::pass_through(), |all, step| Ok(all.then(step.single(stage)?)))
}

/// The branch of an item: its case, else the default behind the cases if there is one.
fn choice(
    field: String,
    values: Vec<String>,
    has_default: bool,
) -> impl Fn(&Value) -> Result<usize, Failure> + Send + Sync {
    let branches: HashMap<String, usize> =
        values.iter().enumerate().map(|(number, value)| (value.clone(), number)).collect();
    move |item| match fields::case_of(&field, item, |value| branches.get(value).copied()) {
        Err(_) if has_default => Ok(values.len()),
        Err(missed) => Err(missed.into_failure(&field, &values)),
        Ok(number) => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::PipelinePlan;
    use crate::pipeline::Pipeline;
    use crate::stage::Stage;

    #[test]
    fn a_pipeline_in_one_line() {
        let number = |name: &str| Stage::each(name, |n: &u64| Ok(*n));
        let shared = number("a \"shared\" <one>");
        let both = Pipeline::ensemble_of([shared.clone(), number("other")]);
        let sum = both.map("sum", |members: &Vec<u64>| Ok(members.iter().sum::<u64>()));
        assert_eq!(sum.to_string(), "(a \"shared\" <one> | other) → [sum]");
        let branches = [shared.into(), Pipeline::pass_through()];
        let choice = Pipeline::switch("odd?", |n: &u64| Ok((n % 2) as usize), branches);
        assert_eq!(choice.to_string(), "odd?{a \"shared\" <one> / ·}");
    }

    #[test]
    fn every_step_is_written_as_it_is_read() {
        let steps = [
            r#""a""#,
            r#"[]"#,
            r#"["a",["b","a"]]"#,
            r#"{"ensemble":{"z":"a","a":[]}}"#,
            r#"{"ensemble":{"z":"a"},"partial":true}"#,
            r#"{"switch":"want","cases":{"2":"a","1":[{"pick":"x"}]}}"#,
            r#"{"switch":"want","cases":{"b":{"rename":{"z":"a","c":"d"}}},"default":"a"}"#,
        ];
        for text in steps {
            let plan: PipelinePlan<String> = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&plan).unwrap(), text);
        }
    }

    #[test]
    fn an_unknown_step_is_refused_with_the_known_ones() {
        let wrong = [
            "5",
            "{}",
            r#"{"race":["a"]}"#,
            r#"{"pick":5}"#,
            r#"{"ensemble":{"a":"b"},"default":"a"}"#,
            r#"["a",{"switch":"x"}]"#,
        ];
        for text in wrong {
            let error = serde_json::from_str::<PipelinePlan<String>>(text).unwrap_err().to_string();
            assert!(error.contains("one of the keys ensemble, switch, pick and rename"), "{text}: {error}");
        }
        let chosen = Pipeline::switch("odd?", |_: &u64| Ok(0), [Stage::each("a", |n: &u64| Ok(*n))]);
        let plan = chosen.graph().plan(|spec| (spec.name(), spec.settings())).map(&ToString::to_string);
        assert!(serde_json::to_string(&plan).is_err(), "a function is no data");
    }
}
