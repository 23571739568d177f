//! What a call carries for user code beside its input: parts of the request that its route reads, and tags.
//!
//! All but the [extensions](super::extensions) cross to other nodes and into children, so there are limits. What is
//! beyond them is left out at once, and the call is refused before a stage runs
//! ([`CallOptions::check`](super::CallOptions::check)).

use std::sync::Arc;

use super::extensions::CallExtensions;
use super::options::CallOptions;
use crate::error::{CallError, ErrorKind};

/// Names with values, each name once; few enough for a linear search. Inner calls share them.
type Pairs = Vec<(Arc<str>, Arc<str>)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PairKind {
    Header,
    QueryParameter,
    Tag,
}

impl PairKind {
    const ALL: [Self; 3] = [Self::Header, Self::QueryParameter, Self::Tag];

    const fn plural(self) -> &'static str {
        match self {
            Self::Header => "headers",
            Self::QueryParameter => "query parameters",
            Self::Tag => "tags",
        }
    }
}

/// What a request has once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestFact {
    Path,
    Method,
    /// The address of its client.
    Client,
}

impl RequestFact {
    const ALL: [Self; 3] = [Self::Path, Self::Method, Self::Client];

    /// Those by which calls are told apart: one caller may have many addresses.
    const OF_CALL: [Self; 2] = [Self::Path, Self::Method];

    const fn name(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Method => "method",
            Self::Client => "client",
        }
    }
}

#[derive(Clone, Default)]
pub(crate) struct Attributes {
    pairs: [Pairs; 3],
    facts: [Option<Box<str>>; 3],
    pub(crate) extensions: CallExtensions,
    /// Of all names and values, and of the facts.
    bytes: usize,
    /// The first excess.
    excess: Option<Excess>,
}

/// What a call has too much of.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Excess {
    Count(PairKind),
    Bytes(&'static str),
    Caller,
    /// A query parameter of this name, of which no code could tell which one counts.
    Twice(Arc<str>),
}

impl Attributes {
    /// Adds a pair, unless there is one of this name: the first header or tag counts.
    pub(crate) fn push(&mut self, kind: PairKind, name: Arc<str>, value: Arc<str>) {
        if self.find(kind, &name).is_some() {
            if kind == PairKind::QueryParameter {
                self.exceed(Excess::Twice(name));
            }
            return;
        }
        if self.pairs[kind as usize].len() == CallOptions::MAX_ATTRIBUTES {
            self.exceed(Excess::Count(kind));
        } else if self.take_bytes(name.len().saturating_add(value.len()), kind.plural()) {
            self.pairs[kind as usize].push((name, value));
        }
    }

    pub(crate) fn set(&mut self, fact: RequestFact, text: Box<str>) {
        if self.take_bytes(text.len(), fact.name()) {
            self.facts[fact as usize] = Some(text);
        }
    }

    fn take_bytes(&mut self, bytes: usize, what: &'static str) -> bool {
        let fits = bytes <= CallOptions::MAX_ATTRIBUTE_BYTES - self.bytes;
        if fits {
            self.bytes += bytes;
        } else {
            self.exceed(Excess::Bytes(what));
        }
        fits
    }

    pub(crate) fn exceed(&mut self, excess: Excess) {
        self.excess.get_or_insert(excess);
    }

    /// Takes what an inner call does not say itself from its outer call, as far as it fits: the outer call's caller
    /// must not be able to make the inner call exceed a limit.
    pub(crate) fn inherit(&mut self, outer: &Self) {
        let excess = self.excess.take();
        for fact in RequestFact::ALL {
            if let (None, Some(text)) = (self.get(fact), &outer.facts[fact as usize]) {
                self.set(fact, text.clone());
            }
        }
        for kind in PairKind::ALL {
            for (name, value) in &outer.pairs[kind as usize] {
                self.push(kind, Arc::clone(name), Arc::clone(value));
            }
        }
        self.extensions.inherit(&outer.extensions);
        self.excess = excess;
    }

    /// Whether all is the same but the address of the client.
    pub(crate) fn is_same_call(&self, other: &Self) -> bool {
        self.pairs == other.pairs
            && self.extensions == other.extensions
            && RequestFact::OF_CALL.iter().all(|fact| self.get(*fact) == other.get(*fact))
    }

    /// Writes all of it but the extensions and the address of the client, each name and value with its length, such as
    /// into a hash.
    pub(crate) fn write(&self, mut write: impl FnMut(&[u8])) {
        let mut text = |text: &str| {
            write(&(text.len() as u64).to_le_bytes());
            write(text.as_bytes());
        };
        for (kind, pairs) in PairKind::ALL.iter().zip(&self.pairs) {
            for (name, value) in pairs {
                [kind.plural(), name, value].into_iter().for_each(&mut text);
            }
        }
        for fact in RequestFact::OF_CALL {
            if let Some(value) = self.get(fact) {
                [fact.name(), value].into_iter().for_each(&mut text);
            }
        }
    }

    pub(crate) fn find(&self, kind: PairKind, name: &str) -> Option<&str> {
        self.pairs(kind).find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    pub(crate) fn pairs(&self, kind: PairKind) -> impl Iterator<Item = (&str, &str)> {
        self.pairs[kind as usize].iter().map(|(name, value)| (&**name, &**value))
    }

    pub(crate) fn get(&self, fact: RequestFact) -> Option<&str> {
        self.facts[fact as usize].as_deref()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The refusal of a call with too much of something.
    pub(crate) fn check(&self) -> Result<(), CallError> {
        let message = match &self.excess {
            None => return Ok(()),
            Some(Excess::Count(kind)) => {
                format!("the call has more than {} {}", CallOptions::MAX_ATTRIBUTES, kind.plural())
            }
            Some(Excess::Bytes(what)) => format!(
                "the call's {what} exceed the limit: headers, query parameters, tags, path, method and client may \
                 have {} bytes together",
                CallOptions::MAX_ATTRIBUTE_BYTES
            ),
            Some(Excess::Twice(name)) => {
                format!("query parameter `{name}` must be given once; a list is written `{name}=a,b`")
            }
            Some(Excess::Caller) => format!("caller: the name has more than {} bytes", CallOptions::MAX_CALLER_BYTES),
        };
        Err(CallError::new(ErrorKind::InvalidInput, message))
    }
}
