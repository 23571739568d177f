//! What a plan must be beside its grammar: no step without its parts, no name twice, and a bounded depth.

use super::PipelinePlan;

/// The depth of nested steps. Deeper ones are unreadable, and a walk through this depth fits the stack.
pub const MAX_PLAN_DEPTH: usize = 16;

/// A mistake in the steps of a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("steps{place}: {message}")]
#[non_exhaustive]
pub struct PlanMistake {
    /// Its place inside of the plan, as in `[1].cases.large`; empty for the plan itself.
    pub place: String,
    /// What is wrong, with the limit if there is one.
    pub message: String,
}

impl<S> PipelinePlan<S> {
    /// Checks the steps as a file's are checked. An ensemble and a switch have a part, a renaming has a field; no name
    /// is given twice; steps are nested [`MAX_PLAN_DEPTH`] deep at most.
    ///
    /// # Errors
    ///
    /// The first mistake.
    pub fn check(&self) -> Result<(), PlanMistake> {
        self.check_at(String::new(), MAX_PLAN_DEPTH)
    }

    fn check_at(&self, place: String, depth_left: usize) -> Result<(), PlanMistake> {
        let Some(depth_left) = depth_left.checked_sub(1) else {
            return mistake(place, format!("steps inside steps, more than {MAX_PLAN_DEPTH} deep"));
        };
        match self {
            Self::Stage(_) | Self::Pick { .. } | Self::Map(_) | Self::Ask(_) => Ok(()),
            Self::Sequence(steps) => {
                let mut steps = steps.iter().enumerate();
                steps.try_for_each(|(index, step)| step.check_at(format!("{place}[{index}]"), depth_left))
            }
            Self::Ensemble { members, .. } => check_named(members, &format!("{place}.ensemble"), depth_left),
            Self::Switch { cases, default, .. } => {
                check_named(cases, &format!("{place}.cases"), depth_left)?;
                default.as_ref().map_or(Ok(()), |step| step.check_at(format!("{place}.default"), depth_left))
            }
            Self::Rename { fields } => {
                let place = format!("{place}.rename");
                check_names(fields, &place, "field")?;
                let clash = |(number, (old, new)): (usize, &(String, String))| {
                    let (first, _) = fields[..number].iter().find(|(_, other)| other == new)?;
                    Some((format!("{place}.{old}"), format!("`{first}` is to be called `{new}` already")))
                };
                fields.iter().enumerate().find_map(clash).map_or(Ok(()), |(place, message)| mistake(place, message))
            }
        }
    }
}

fn check_named<S>(parts: &[(String, PipelinePlan<S>)], place: &str, depth_left: usize) -> Result<(), PlanMistake> {
    check_names(parts, place, "step")?;
    parts.iter().try_for_each(|(name, part)| part.check_at(format!("{place}.{name}"), depth_left))
}

fn check_names<T>(parts: &[(String, T)], place: &str, what: &str) -> Result<(), PlanMistake> {
    if parts.is_empty() {
        return mistake(place.to_owned(), format!("expected one or more {what}s by name, found none"));
    }
    let is_second =
        |(number, (name, _)): &(usize, &(String, T))| parts[..*number].iter().any(|(first, _)| first == name);
    match parts.iter().enumerate().find(is_second) {
        None => Ok(()),
        Some((_, (name, _))) => mistake(place.to_owned(), format!("the name `{name}` is there twice")),
    }
}

fn mistake(place: String, message: String) -> Result<(), PlanMistake> {
    Err(PlanMistake { place, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{PlanError, Planned};
    use crate::stage::Stage;
    use callboard_codec::Value;

    #[test]
    fn a_plan_is_refused_with_the_place_of_its_mistake() {
        let deep = format!(r#"{{"ensemble": {{"a": {}[]{}}}}}"#, "[".repeat(15), "]".repeat(15));
        let deep_place = format!(".ensemble.a{}", "[0]".repeat(15));
        let cases = [
            (r#"["a", {"ensemble": {}}]"#, "steps[1].ensemble: expected one or more steps by name, found none"),
            (r#"{"switch": "x", "cases": {}}"#, "steps.cases: expected one or more steps by name, found none"),
            (r#"[{"rename": {}}]"#, "steps[0].rename: expected one or more fields by name, found none"),
            (
                r#"{"switch": "x", "cases": {"a": []}, "default": [{"ensemble": {"b": "a", "b": []}}]}"#,
                "steps.default[0].ensemble: the name `b` is there twice",
            ),
            (
                r#"{"switch": "x", "cases": {"a": {"rename": {"c": "z", "d": "z"}}}}"#,
                "steps.cases.a.rename.d: `c` is to be called `z` already",
            ),
            (&deep, &format!("steps{deep_place}: steps inside steps, more than 16 deep")),
        ];
        for (text, expected) in cases {
            let plan: PipelinePlan<String> = serde_json::from_str(text).unwrap();
            assert_eq!(plan.check().unwrap_err().to_string(), expected, "{text}");
            let stage = |_: &String| Planned::Single(Stage::each("a", |value: &Value| Ok(value.clone())).into());
            let error = plan.build(&stage).unwrap_err();
            assert!(matches!(&error, PlanError::Mistake(_)) && error.to_string() == expected, "{text}: {error}");
        }
        let deepest = format!("{}[]{}", "[".repeat(15), "]".repeat(15));
        serde_json::from_str::<PipelinePlan<String>>(&deepest).unwrap().check().unwrap();
    }
}
