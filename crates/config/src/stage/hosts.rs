//! Which stages are run by the replicas of another one (`replicas_of`): methods of one class in Python.

use super::{OF_REPLICAS, StagePlan};
use crate::document::Section;
use crate::error::ConfigError;
use crate::kind::StageKind;
use crate::nearest::Hint;
use crate::process::PythonKeys;

/// Checks each `replicas_of`: it names a stage of the same class with replicas of its own, and the stage has no key
/// that says something of them.
pub(super) fn check<'d>(
    sections: impl IntoIterator<Item = Section<'d>>,
    stages: &[StagePlan],
) -> Result<(), ConfigError> {
    for (section, stage) in sections.into_iter().zip(stages) {
        let (StageKind::Python(keys), Some(host)) = (&stage.kind, stage.replicas_of()) else { continue };
        let section = section.called(format!("stage `{}`", stage.name.value));
        let place = |key: &str| section.get(key).map_or_else(|| section.place(), |entry| entry.place());
        let refused = |key: &str, message: String| Err(ConfigError::Rejected { place: place(key), message });
        let Some(found) = stages.iter().find(|other| other.name.value == host) else {
            let (what, place) = ("stage", place("replicas_of"));
            let hint = Hint::new(host, stages.iter().map(|stage| &*stage.name.value));
            return Err(ConfigError::UnknownName { place, what, hint, name: host.to_owned() });
        };
        let (class, method) = keys.class_and_method();
        match &found.kind {
            StageKind::Python(other) if other.class_and_method().0 != class => {
                let message = format!("stage `{host}` is of `{}`: only methods of one class share replicas", other.app);
                return refused("replicas_of", message);
            }
            StageKind::Python(PythonKeys { replicas_of: Some(next), .. }) => {
                let message = format!("stage `{host}` has no replicas, it is run by those of stage `{next}`");
                return refused("replicas_of", message);
            }
            StageKind::Python(_) => {}
            other => {
                let message =
                    format!("stage `{host}` is of kind `{}`: only methods of one class share replicas", other.name());
                return refused("replicas_of", message);
            }
        }
        // A worker knows a method by its name.
        let is_same = |other: &&StagePlan| match &other.kind {
            StageKind::Python(keys) => other.replicas_of() == Some(host) && keys.class_and_method().1 == method,
            _ => false,
        };
        if let Some(first) = stages.iter().find(is_same).filter(|first| !std::ptr::eq(*first, stage)) {
            let message = format!(
                "stage `{}` runs `{method}` in the replicas of stage `{host}` already: use it in the routes of both",
                first.name.value
            );
            return refused("replicas_of", message);
        }
        let own = stage.own.iter().map(|own| &*own.key).filter(|key| !["app", "replicas_of"].contains(key));
        if let Some(key) = OF_REPLICAS.into_iter().filter(|key| section.get(key).is_some()).chain(own).next() {
            let message = format!(
                "it has no effect beside `replicas_of`: the replicas are those of stage `{host}`; set it there, or \
                 remove `replicas_of`"
            );
            return refused(key, message);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use crate::{Environment, Flags, Plan, Target};

    fn plan(second: &str) -> Result<Plan, String> {
        let text = format!(
            "[[stage]]\nname = \"search\"\nkind = \"python\"\napp = \"app.py:Search\"\n\
             [[stage]]\nname = \"embed\"\nkind = \"python\"\n{second}\n\
             [[stage]]\nname = \"labels\"\nkind = \"labels\"\n\
             [[route]]\npath = \"/embed\"\nstages = \"embed\"\n"
        );
        let target = Target::File { path: PathBuf::from("f"), text };
        Plan::resolve(target, &Flags::new(), &Environment::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn methods_of_one_class_share_replicas() {
        let plan = plan("app = \"app.py:Search.embed\"\nreplicas_of = \"search\"\nmax_batch_size = 8").unwrap();
        assert!(plan.uses(0) && plan.uses(1), "the stage with the replicas is started, though no route uses it");
        assert_eq!(plan.unused_stages().map(|stage| &*stage.name.value).collect::<Vec<_>>(), ["labels"]);
        let shown = crate::Explanation(&plan).to_string();
        let of_embed = shown.split("stage embed").nth(1).unwrap().split("\n\n").next().unwrap();
        assert!(of_embed.contains("replicas_of") && of_embed.contains("max_batch_size"), "{of_embed}");
        assert!(!of_embed.contains("memory_limit") && !of_embed.contains("\n  replicas "), "{of_embed}");
    }

    #[test]
    fn a_method_has_one_stage_in_the_replicas_of_its_class() {
        let embed = "app = \"app.py:Search.embed\"\nreplicas_of = \"search\"\n";
        let error = plan(&format!("{embed}[[stage]]\nname = \"again\"\nkind = \"python\"\n{embed}")).unwrap_err();
        let expected =
            "stage `again`: replicas_of: stage `embed` runs `embed` in the replicas of stage `search` already";
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn other_stages_and_keys_of_replicas_are_refused() {
        for (second, message) in [
            ("app = \"app.py:Search.embed\"\nreplicas_of = \"serch\"", "`search`"),
            ("app = \"app.py:Search.embed\"\nreplicas_of = \"embed\"", "no replicas"),
            ("app = \"app.py:Other.embed\"\nreplicas_of = \"search\"", "only methods of one class share replicas"),
            ("app = \"app.py:Search.embed\"\nreplicas_of = \"labels\"", "of kind `labels`"),
            ("app = \"app.py:Search.embed\"\nreplicas_of = \"search\"\nreplicas = 2", "set it there"),
            ("app = \"app.py:Search.embed\"\nreplicas_of = \"search\"\nwarm = false", "set it there"),
        ] {
            let error = plan(second).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
