//! What each member may do by name: by default any member anything, or the rules of the operator.
//!
//! A peer receives the inputs of the stages and actors that it offers. By default every node of a cluster is trusted
//! with all of them, and may ask each actor that is published. What is offered without permission is ignored and
//! logged; what is asked without it is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// Stands for any member, or any name.
const ANY: &str = "*";

/// The text of rules that allow everything.
const EVERYTHING: &str = "any";

/// The stages and actors that the members of a cluster may offer to a node, or its actors that they may ask. Default:
/// any member all of them.
///
/// The text is `any`, or members with their names of stages or actors: `gpu-1=digits+decode,gpu-2=*,*=labels`. `*` is
/// any member, or any name. Members have the names in their certificates; under the development identity they have
/// none.
///
/// ```
/// # use callboard_net::MemberRules;
/// let rules: MemberRules = "gpu-1=digits+decode,*=labels".parse()?;
/// assert!(rules.allow("gpu-1", "digits") && rules.allow("gpu-2", "labels"));
/// assert!(!rules.allow("gpu-2", "digits"));
/// # Ok::<(), callboard_net::InvalidMemberRules>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberRules {
    /// The names of each member; `None` allows everything.
    members: Option<BTreeMap<String, BTreeSet<String>>>,
}

/// The text is not [`MemberRules`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected `any`, or MEMBER=NAME+NAME with commas between members, and `*` for any of them")]
pub struct InvalidMemberRules;

impl MemberRules {
    /// Allows these members their names, and nothing else.
    ///
    /// # Errors
    ///
    /// A name that is empty, or has a character that separates names.
    pub fn try_new<S: Into<String>>(
        members: impl IntoIterator<Item = (S, Vec<String>)>,
    ) -> Result<Self, InvalidMemberRules> {
        let mut rules = BTreeMap::<String, BTreeSet<String>>::new();
        for (member, stages) in members {
            let member = member.into();
            if !is_name(&member) || stages.is_empty() || !stages.iter().all(|stage| is_name(stage)) {
                return Err(InvalidMemberRules);
            }
            rules.entry(member).or_default().extend(stages);
        }
        if rules.is_empty() { Err(InvalidMemberRules) } else { Ok(Self { members: Some(rules) }) }
    }

    /// Whether every member may do everything.
    #[must_use]
    pub fn allow_all(&self) -> bool {
        self.members.is_none()
    }

    /// Whether this member may offer, or ask, what has this name.
    #[must_use]
    pub fn allow(&self, member: &str, name: &str) -> bool {
        let Some(members) = &self.members else { return true };
        let allows =
            |member: &str| members.get(member).is_some_and(|names| names.contains(name) || names.contains(ANY));
        allows(ANY) || !member.is_empty() && allows(member)
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains([',', '=', '+']) && text.trim() == text
}

impl FromStr for MemberRules {
    type Err = InvalidMemberRules;

    fn from_str(text: &str) -> Result<Self, InvalidMemberRules> {
        if text == EVERYTHING {
            return Ok(Self::default());
        }
        let mut members = Vec::new();
        for rule in text.split(',') {
            let (member, stages) = rule.split_once('=').ok_or(InvalidMemberRules)?;
            let stages = stages.split('+').map(|stage| stage.trim().to_owned()).collect();
            members.push((member.trim(), stages));
        }
        Self::try_new(members)
    }
}

/// The text that [`FromStr`] reads.
impl fmt::Display for MemberRules {
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
            assert_eq!(text.parse::<MemberRules>().unwrap().to_string(), text);
        }
        assert_eq!(" a = x + y , a=z".parse::<MemberRules>().unwrap().to_string(), "a=x+y+z");
        for wrong in ["", "a", "a=", "=x", "a=x,", "a=x++y", "none", "a=x=y"] {
            assert!(wrong.parse::<MemberRules>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn rules_for_one_member_forbid_the_offers_of_others() {
        let open = MemberRules::default();
        assert!(open.allow_all() && open.allow("", "x") && open.allow("a", "x"));
        let rules: MemberRules = "a=x,b=*".parse().unwrap();
        assert!(rules.allow("a", "x") && rules.allow("b", "y"));
        assert!(!rules.allow("a", "y") && !rules.allow("c", "x") && !rules.allow("", "x") && !rules.allow("*", "x"));
        let rules: MemberRules = "*=x".parse().unwrap();
        assert!(rules.allow("", "x") && rules.allow("c", "x") && !rules.allow("c", "y"));
    }
}
