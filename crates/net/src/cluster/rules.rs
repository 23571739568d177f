//! Which peers may offer which stages: any member any stage, or what the operator has written down.
//!
//! A peer is given the inputs of the stages that it offers. Within one cluster every node is trusted with all of them unless somebody says
//! otherwise; what is not allowed is passed over as if it was not offered, and told.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// Any member, or any stage.
const ANY: &str = "*";

/// How a rule is written that allows everything.
const EVERYTHING: &str = "any";

/// Which members of a cluster may offer which stages to a node. Default: any member any stage.
///
/// Written as `any`, or as members with their stages: `gpu-1=digits+decode,gpu-2=*,*=labels`. `*` is any member, or any stage. Members are
/// known by the names in their certificates; under the development identity nobody has one.
///
/// ```
/// # use callboard_net::OfferRules;
/// let rules: OfferRules = "gpu-1=digits+decode,*=labels".parse()?;
/// assert!(rules.allow("gpu-1", "digits") && rules.allow("gpu-2", "labels"));
/// assert!(!rules.allow("gpu-2", "digits"));
/// # Ok::<(), callboard_net::NotOfferRules>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfferRules {
    /// The stages of each member; none for everything.
    members: Option<BTreeMap<String, BTreeSet<String>>>,
}

/// Why a text is no [`OfferRules`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected `any`, or MEMBER=STAGE+STAGE with commas between members, and `*` for any of them")]
pub struct NotOfferRules;

impl OfferRules {
    /// These members with their stages. Nobody else may offer anything.
    ///
    /// # Errors
    ///
    /// An empty name, or one with a character that separates names.
    pub fn try_new<S: Into<String>>(
        members: impl IntoIterator<Item = (S, Vec<String>)>,
    ) -> Result<Self, NotOfferRules> {
        let mut rules = BTreeMap::<String, BTreeSet<String>>::new();
        for (member, stages) in members {
            let member = member.into();
            if !is_name(&member) || stages.is_empty() || !stages.iter().all(|stage| is_name(stage)) {
                return Err(NotOfferRules);
            }
            rules.entry(member).or_default().extend(stages);
        }
        if rules.is_empty() { Err(NotOfferRules) } else { Ok(Self { members: Some(rules) }) }
    }

    /// Whether every member may offer every stage.
    #[must_use]
    pub fn are_open(&self) -> bool {
        self.members.is_none()
    }

    /// Whether this member may offer this stage.
    #[must_use]
    pub fn allow(&self, member: &str, stage: &str) -> bool {
        let Some(members) = &self.members else { return true };
        let of = |member: &str| members.get(member).is_some_and(|of| of.contains(stage) || of.contains(ANY));
        of(ANY) || !member.is_empty() && of(member)
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains([',', '=', '+']) && text.trim() == text
}

impl FromStr for OfferRules {
    type Err = NotOfferRules;

    fn from_str(text: &str) -> Result<Self, NotOfferRules> {
        if text == EVERYTHING {
            return Ok(Self::default());
        }
        let mut members = Vec::new();
        for rule in text.split(',') {
            let (member, stages) = rule.split_once('=').ok_or(NotOfferRules)?;
            let stages = stages.split('+').map(|stage| stage.trim().to_owned()).collect();
            members.push((member.trim(), stages));
        }
        Self::try_new(members)
    }
}

/// As it is written.
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
    fn who_is_not_named_may_offer_nothing_once_somebody_is() {
        let open = OfferRules::default();
        assert!(open.are_open() && open.allow("", "x") && open.allow("a", "x"));
        let rules: OfferRules = "a=x,b=*".parse().unwrap();
        assert!(rules.allow("a", "x") && rules.allow("b", "y"));
        assert!(!rules.allow("a", "y") && !rules.allow("c", "x") && !rules.allow("", "x") && !rules.allow("*", "x"));
        let rules: OfferRules = "*=x".parse().unwrap();
        assert!(rules.allow("", "x") && rules.allow("c", "x") && !rules.allow("c", "y"));
    }
}
