//! The stages that each peer may offer: by default any member any stage, or the rules of the operator.
//!
//! A peer receives the inputs of the stages that it offers. By default every node of a cluster is trusted with all of
//! them. A stage offered without permission is ignored and logged.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// Stands for any member, or any stage.
const ANY: &str = "*";

/// The text of rules that allow everything.
const EVERYTHING: &str = "any";

/// The stages that the members of a cluster may offer to a node. Default: any member any stage.
///
/// The text is `any`, or members with their stages: `gpu-1=digits+decode,gpu-2=*,*=labels`. `*` is any member, or any
/// stage. Members have the names in their certificates; under the development identity they have none.
///
/// ```
/// # use callboard_net::OfferRules;
/// let rules: OfferRules = "gpu-1=digits+decode,*=labels".parse()?;
/// assert!(rules.allow("gpu-1", "digits") && rules.allow("gpu-2", "labels"));
/// assert!(!rules.allow("gpu-2", "digits"));
/// # Ok::<(), callboard_net::InvalidOfferRules>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfferRules {
    /// The stages of each member; `None` allows everything.
    members: Option<BTreeMap<String, BTreeSet<String>>>,
}

/// The text is not [`OfferRules`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected `any`, or MEMBER=STAGE+STAGE with commas between members, and `*` for any of them")]
pub struct InvalidOfferRules;

impl OfferRules {
    /// Allows these members their stages, and nothing else.
    ///
    /// # Errors
    ///
    /// A name that is empty, or has a character that separates names.
    pub fn try_new<S: Into<String>>(
        members: impl IntoIterator<Item = (S, Vec<String>)>,
    ) -> Result<Self, InvalidOfferRules> {
        let mut rules = BTreeMap::<String, BTreeSet<String>>::new();
        for (member, stages) in members {
            let member = member.into();
            if !is_name(&member) || stages.is_empty() || !stages.iter().all(|stage| is_name(stage)) {
                return Err(InvalidOfferRules);
            }
            rules.entry(member).or_default().extend(stages);
        }
        if rules.is_empty() { Err(InvalidOfferRules) } else { Ok(Self { members: Some(rules) }) }
    }

    /// Whether every member may offer every stage.
    #[must_use]
    pub fn allow_all(&self) -> bool {
        self.members.is_none()
    }

    /// Whether this member may offer this stage.
    #[must_use]
    pub fn allow(&self, member: &str, stage: &str) -> bool {
        let Some(members) = &self.members else { return true };
        let allows =
            |member: &str| members.get(member).is_some_and(|stages| stages.contains(stage) || stages.contains(ANY));
        allows(ANY) || !member.is_empty() && allows(member)
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains([',', '=', '+']) && text.trim() == text
}

impl FromStr for OfferRules {
    type Err = InvalidOfferRules;

    fn from_str(text: &str) -> Result<Self, InvalidOfferRules> {
        if text == EVERYTHING {
            return Ok(Self::default());
        }
        let mut members = Vec::new();
        for rule in text.split(',') {
            let (member, stages) = rule.split_once('=').ok_or(InvalidOfferRules)?;
            let stages = stages.split('+').map(|stage| stage.trim().to_owned()).collect();
            members.push((member.trim(), stages));
        }
        Self::try_new(members)
    }
}

/// The text that [`FromStr`] reads.
impl fmt::Display for OfferRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(members) = &self.members else { return f.write_str(EVERYTHING) };
        for (nth, (member, stages)) in members.iter().enumerate() {
            let stages: Vec<&str> = stages.iter().map(String::as_str).collect();
            write!(f, "{}{member}={}", if nth > 0 { "," } else { "" }, stages.join("+"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_shown_as_they_are_written() {
        for text in ["any", "*=*", "gpu-1=decode+digits,gpu-2=*"] {
            assert_eq!(text.parse::<OfferRules>().unwrap().to_string(), text);
        }
        assert_eq!(" a = x + y , a=z".parse::<OfferRules>().unwrap().to_string(), "a=x+y+z");
        for wrong in ["", "a", "a=", "=x", "a=x,", "a=x++y", "none", "a=x=y"] {
            assert!(wrong.parse::<OfferRules>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn rules_for_one_member_forbid_the_offers_of_others() {
        let open = OfferRules::default();
        assert!(open.allow_all() && open.allow("", "x") && open.allow("a", "x"));
        let rules: OfferRules = "a=x,b=*".parse().unwrap();
        assert!(rules.allow("a", "x") && rules.allow("b", "y"));
        assert!(!rules.allow("a", "y") && !rules.allow("c", "x") && !rules.allow("", "x") && !rules.allow("*", "x"));
        let rules: OfferRules = "*=x".parse().unwrap();
        assert!(rules.allow("", "x") && rules.allow("c", "x") && !rules.allow("c", "y"));
    }
}
