//! A part of the request that the code of a route takes as an argument, as its documentation shows it.

use callboard_codec::DataType;

/// Where an argument is in a request over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestPlace {
    /// A header.
    Header,
    /// A query parameter.
    Query,
    /// A cookie. Its route lists the header `cookie`.
    Cookie,
    /// A parameter in the name of the route.
    Path,
}

impl RequestPlace {
    /// As OpenAPI calls it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Query => "query",
            Self::Cookie => "cookie",
            Self::Path => "path",
        }
    }
}

/// A header, query parameter or cookie with its type, for documentation. The code that takes it checks it.
#[derive(Clone, Debug)]
pub struct RequestArgument {
    /// Where it is.
    pub place: RequestPlace,
    /// Its name there; of a header in lower case.
    pub name: String,
    /// Whether a call without it is refused.
    pub is_required: bool,
    /// Its type; an array is a list with commas.
    pub data_type: DataType,
}

impl PartialEq for RequestArgument {
    fn eq(&self, other: &Self) -> bool {
        let told = |argument: &Self| (argument.place, argument.is_required);
        told(self) == told(other) && self.name == other.name && self.data_type.schema() == other.data_type.schema()
    }
}
