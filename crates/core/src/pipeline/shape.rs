//! The shape of a pipeline: its steps without their code, as data and in one line.

use std::fmt;

use super::Graph;
use super::ensemble::Join;
use crate::id::StageName;
use crate::stage::StageSettings;

/// The steps of a pipeline, without code and types. Its text is one line.
///
/// ```
/// use callboard_core::{App, Pipeline, Stage};
///
/// let words = Stage::each("words", |text: &String| Ok(text.split(' ').count()));
/// let double = Stage::each("double", |n: &usize| Ok(n * 2));
/// let app = App::new().route("/count", Pipeline::from(words).then(double));
/// assert_eq!(app.routes()[0].shape().to_string(), "words → double");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PipelineShape {
    /// A stage.
    Stage {
        /// Its name.
        name: StageName,
        /// The number of its workers.
        replicas: usize,
        /// The largest batch.
        max_batch_size: usize,
    },
    /// A stage that runs on other nodes only.
    Remote(StageName),
    /// Steps one after the other. Without steps, the output is the input.
    Sequence(Vec<Self>),
    /// A function between stages, by its name.
    Map(String),
    /// A question to an actor, by the name of the step.
    Ask(String),
    /// All members on the same input.
    Ensemble {
        /// The members.
        members: Vec<Self>,
        /// The names of the members; empty without names.
        labels: Vec<String>,
        /// Whether a failed member leaves its error in its place.
        is_partial: bool,
    },
    /// One branch, chosen by the item's content.
    Switch {
        /// The name of the choice.
        name: String,
        /// The branches.
        branches: Vec<Self>,
        /// The names of the branches; empty without names.
        labels: Vec<String>,
    },
}

impl<S> Graph<S> {
    pub(crate) fn shape(&self, stage: fn(&S) -> (&StageName, &StageSettings)) -> PipelineShape {
        let all = |parts: &[Self]| parts.iter().map(|part| part.shape(stage)).collect();
        match self {
            Self::Stage(one) => {
                let (name, settings) = stage(one);
                PipelineShape::Stage {
                    name: name.clone(),
                    replicas: settings.replicas().get(),
                    max_batch_size: settings.batching().max_batch_size.get(),
                }
            }
            Self::Remote(stage) => PipelineShape::Remote(stage.name.clone()),
            Self::Sequence(steps) => PipelineShape::Sequence(all(steps)),
            Self::Map { name, .. } => PipelineShape::Map(name.to_string()),
            Self::Ask { name, .. } => PipelineShape::Ask(name.to_string()),
            Self::Ensemble { members, join, labels } => PipelineShape::Ensemble {
                members: all(members),
                labels: labels.to_vec(),
                is_partial: matches!(join, Join::Partial(_)),
            },
            Self::Switch { name, branches, labels, .. } => {
                PipelineShape::Switch { name: name.to_string(), branches: all(branches), labels: labels.to_vec() }
            }
        }
    }
}

impl fmt::Display for PipelineShape {
    /// `decode → (a | b) → choose{x / y} → join`, with names: `(one: a | other: b)`; a partial ensemble is `(a | b)?`,
    /// a stage that runs on other nodes only `↗a`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stage { name, .. } => name.fmt(f),
            Self::Remote(name) => write!(f, "↗{name}"),
            Self::Sequence(steps) if steps.is_empty() => f.write_str("·"),
            Self::Sequence(steps) => separated(f, steps, &[], " → "),
            Self::Map(name) => write!(f, "[{name}]"),
            Self::Ask(name) => write!(f, "<{name}>"),
            Self::Ensemble { members, labels, is_partial } => {
                f.write_str("(")?;
                separated(f, members, labels, " | ")?;
                f.write_str(if *is_partial { ")?" } else { ")" })
            }
            Self::Switch { name, branches, labels } => {
                write!(f, "{name}{{")?;
                separated(f, branches, labels, " / ")?;
                f.write_str("}")
            }
        }
    }
}

fn separated(f: &mut fmt::Formatter<'_>, parts: &[PipelineShape], labels: &[String], separator: &str) -> fmt::Result {
    for (position, part) in parts.iter().enumerate() {
        if position > 0 {
            f.write_str(separator)?;
        }
        if let Some(label) = labels.get(position) {
            write!(f, "{label}: ")?;
        }
        fmt::Display::fmt(part, f)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use callboard_codec::Value;

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
    fn named_members_and_branches_have_their_names() {
        let value = |name: &str| Pipeline::from(Stage::each(name, |value: &Value| Ok(value.clone())));
        let members = vec![("left".to_owned(), value("a")), ("right".to_owned(), Pipeline::pass_through())];
        let either = Pipeline::switch("side?", |_: &Value| Ok(0), vec![value("b"), value("c")]);
        let either = either.labelled(["l \"1\"".to_owned(), "r".to_owned()]);
        let line = Pipeline::ensemble_named_partial(members).then(either).to_string();
        assert_eq!(line, "(left: a | right: ·)? → side?{l \"1\": b / r: c}");
    }
}
