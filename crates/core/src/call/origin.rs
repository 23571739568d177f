//! What a call's caller tells of itself, beside what is decided by.

use std::sync::Arc;

/// Names with values, few enough to be looked through.
type Pairs = Vec<(Box<str>, Box<str>)>;

/// What user code may ask about where its call comes from. Most calls in process have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) request_id: Option<Box<str>>,
    pub(crate) traceparent: Option<Box<str>>,
    pub(crate) caller: Option<Box<str>>,
    pub(crate) headers: Pairs,
    pub(crate) tags: Pairs,
}

impl Origin {
    /// What an inner call says of itself, and where it says nothing, what its outer call said.
    pub(crate) fn within(own: Option<&Arc<Self>>, outer: Option<&Arc<Self>>) -> Option<Arc<Self>> {
        let (Some(own), Some(outer)) = (own, outer) else { return own.or(outer).cloned() };
        let mut both = Self::clone(own);
        both.request_id = both.request_id.or_else(|| outer.request_id.clone());
        both.traceparent = both.traceparent.or_else(|| outer.traceparent.clone());
        both.caller = both.caller.or_else(|| outer.caller.clone());
        inherit(&mut both.headers, &outer.headers);
        inherit(&mut both.tags, &outer.tags);
        Some(Arc::new(both))
    }
}

fn inherit(own: &mut Pairs, outer: &Pairs) {
    let new = outer.iter().filter(|(name, _)| find(own, name).is_none()).cloned().collect::<Pairs>();
    own.extend(new);
}

pub(crate) fn find<'a>(pairs: &'a Pairs, name: &str) -> Option<&'a str> {
    pairs.iter().find(|(known, _)| **known == *name).map(|(_, value)| &**value)
}
