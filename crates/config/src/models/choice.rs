//! Which versions of a model are served, and which of them its own route runs through. Pure.

use std::collections::BTreeSet;

/// The versions to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VersionPolicy {
    /// The highest, at most this many.
    Latest(usize),
    /// All of them.
    All,
    /// These.
    Listed(BTreeSet<u64>),
}

/// The served versions of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Each has a route of its own.
    pub versions: BTreeSet<u64>,
    /// The version behind the model's own route. `None` only if there is no version.
    pub default: Option<u64>,
}

/// Chooses among the versions that can be served. A broken version is not among them, so the next lower one takes its
/// place. `wanted` is the default of the settings, `before` the one that is served now; while `wanted` cannot be
/// served, `before` stays.
pub(super) fn choose(
    policy: &VersionPolicy,
    wanted: Option<u64>,
    usable: &BTreeSet<u64>,
    before: Option<u64>,
) -> Choice {
    let mut versions: BTreeSet<u64> = match policy {
        VersionPolicy::Latest(count) => usable.iter().rev().take(*count).copied().collect(),
        VersionPolicy::All => usable.clone(),
        VersionPolicy::Listed(listed) => usable.intersection(listed).copied().collect(),
    };
    let served = |version: &u64| usable.contains(version);
    let highest = versions.last().copied();
    let default = match wanted {
        Some(wanted) => Some(wanted).filter(served).or_else(|| before.filter(served)).or(highest),
        None => highest,
    };
    // The default is served whatever the policy says: `versions = "latest"` with `default = 1` keeps version 1.
    versions.extend(default);
    Choice { versions, default }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(versions: &[u64]) -> BTreeSet<u64> {
        versions.iter().copied().collect()
    }

    fn chosen(
        policy: &VersionPolicy,
        wanted: Option<u64>,
        usable: &[u64],
        before: Option<u64>,
    ) -> (Vec<u64>, Option<u64>) {
        let Choice { versions, default } = choose(policy, wanted, &set(usable), before);
        (versions.into_iter().collect(), default)
    }

    #[test]
    fn each_policy_serves_its_versions_and_the_highest_is_the_default() {
        let usable = [1, 2, 5, 9];
        assert_eq!(chosen(&VersionPolicy::Latest(1), None, &usable, Some(1)), (vec![9], Some(9)));
        assert_eq!(chosen(&VersionPolicy::Latest(2), None, &usable, None), (vec![5, 9], Some(9)));
        assert_eq!(chosen(&VersionPolicy::All, None, &usable, None), (vec![1, 2, 5, 9], Some(9)));
        assert_eq!(chosen(&VersionPolicy::Listed(set(&[2, 3])), None, &usable, None), (vec![2], Some(2)));
        assert_eq!(chosen(&VersionPolicy::All, None, &[], Some(3)), (vec![], None));
    }

    #[test]
    fn a_default_that_cannot_be_served_leaves_the_one_before() {
        let latest = VersionPolicy::Latest(1);
        assert_eq!(chosen(&latest, Some(1), &[1, 2], None), (vec![1, 2], Some(1)));
        assert_eq!(chosen(&latest, Some(3), &[1, 2], Some(1)), (vec![1, 2], Some(1)));
        assert_eq!(chosen(&latest, Some(3), &[1, 2], Some(7)), (vec![2], Some(2)));
    }

    proptest! {
        #[test]
        fn only_usable_versions_are_served_and_one_of_them_is_the_default(
            usable in proptest::collection::btree_set(1..20_u64, 0..10),
            listed in proptest::collection::btree_set(1..20_u64, 1..5),
            count in 1..5_usize,
            wanted in proptest::option::of(1..20_u64),
            before in proptest::option::of(1..20_u64),
        ) {
            for policy in [VersionPolicy::Latest(count), VersionPolicy::All, VersionPolicy::Listed(listed)] {
                let chosen = choose(&policy, wanted, &usable, before);
                prop_assert!(chosen.versions.is_subset(&usable));
                prop_assert_eq!(chosen.default.is_none(), chosen.versions.is_empty());
                prop_assert!(chosen.default.is_none_or(|default| chosen.versions.contains(&default)));
                if wanted.is_none() {
                    prop_assert_eq!(chosen.default, chosen.versions.last().copied());
                }
                if let VersionPolicy::Latest(count) = policy {
                    let highest: BTreeSet<u64> = usable.iter().rev().take(count).copied().collect();
                    prop_assert!(chosen.versions.is_superset(&highest) && chosen.versions.len() <= count + 1);
                }
            }
        }
    }
}
