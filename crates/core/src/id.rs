//! Names and numbers as separate types, so that they cannot be confused.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps a name.
            #[must_use]
            pub fn new(name: &str) -> Self {
                Self(name.into())
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                Self::new(name)
            }
        }

        impl From<&String> for $name {
            fn from(name: &String) -> Self {
                Self::new(name)
            }
        }

        impl From<String> for $name {
            fn from(name: String) -> Self {
                Self(name.into())
            }
        }
    };
}

name_type! {
    /// The name of a stage; one per node.
    StageName
}

name_type! {
    /// The name of a route: a path such as `/digits`, or, of a private one, a word such as `@auth` or
    /// `@asgi/legacy`.
    RouteName
}

impl RouteName {
    /// Whether only this process calls the route.
    pub(crate) fn is_private(&self) -> bool {
        self.0.starts_with('@')
    }

    /// Whether edges must know of it at their start: a private route without a path, such as `@auth`.
    pub(crate) fn is_fixed_at_start(&self) -> bool {
        self.is_private() && !self.0.contains('/')
    }
}

/// The number of a route on this node, never used twice: the ledger stores it instead of the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RouteIndex(pub(crate) u32);

/// The number of one admitted request on this node, never used twice while the node lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct CallId(pub(crate) u64);

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
